//! The user's command hears how a run ended, and cannot change it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::processes::Session;
use crate::common::{Outcome, Place, kernels};
use crate::made::NEXT;

/// Writes down what it is told.
const COMMAND: &str = "env | grep ^WARPSMITH_ > note.env; cat > note.txt; echo told";

/// A run that ends before it has tried anything: nothing here depends on what is faster.
fn run(place: &Place, more: &[&str]) -> Outcome {
    place.warpsmith(&[&NEXT[..], &["--per-kernel", "1ms"], more].concat())
}

/// What the command was told.
fn told(place: &Place, folder: &str) -> BTreeMap<String, String> {
    let lines = place.read(&format!("{folder}note.env"));
    lines.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect()
}

#[test]
fn when_a_run_ends_the_command_has_the_summary_and_its_figures() {
    let place = Place::new(&kernels::keeps());
    // The command line comes first.
    place.write("warpsmith.toml", "[run]\nseq = 16\nexamination = \"1s\"\nnotify = \"touch told-by-the-settings\"\n");
    let done = run(&place, &["--notify", COMMAND]);
    assert!(!place.root.join("told-by-the-settings").exists());
    // What the command prints does not get between what the run prints.
    assert!(done.err.contains("told") && !done.out.contains("\ntold"), "{done:?}");
    let out = done.ok();
    assert!(out.contains(&format!("notify      {COMMAND}")), "{out}");
    let told = told(&place, "");
    assert_eq!(told["WARPSMITH_RUN"], place.only_run());
    assert_eq!((told["WARPSMITH_STATUS"].as_str(), told["WARPSMITH_REASON"].as_str()), ("ended", "no targets left"));
    assert_eq!((told["WARPSMITH_KEPT"].as_str(), told["WARPSMITH_EXPERIMENTS"].as_str()), ("0", "1"));
    assert_eq!((told["WARPSMITH_SPEEDUP"].as_str(), told["WARPSMITH_SPEEDUP_IS"].as_str()), ("1.0000", "predicted"));
    let said = "1.00x predicted, 0 of 1 experiment kept; ended: no targets left";
    assert!(told["WARPSMITH_SUMMARY"].ends_with(said), "{told:?}");
    assert_eq!(told["WARPSMITH_WORKSPACE"], place.root.to_string_lossy());
    let summary = place.read("note.txt");
    assert!(summary.starts_with(&format!("run {}: 1 experiment in", place.only_run())), "{summary}");
    assert!(out.contains(summary.trim()), "{summary}\n{out}");
}

#[test]
fn a_command_in_the_settings_runs_in_the_workspace() {
    let place = Place::new(&kernels::keeps());
    place.write("warpsmith.toml", &format!("[run]\nseq = 16\nexamination = \"1s\"\nnotify = \"{COMMAND}\"\n"));
    let mut command = place.command(&["run", ".", "--only", "fused_mlp", "--per-kernel", "1ms"]);
    command.current_dir(place.root.join("model"));
    crate::common::outcome(command).ok();
    assert_eq!(told(&place, "")["WARPSMITH_STATUS"], "ended");
}

#[test]
fn an_interrupted_run_is_told_of_and_a_command_that_fails_changes_nothing() {
    let place = Place::new(&kernels::keeps()).judged_by("[[event]]\nop = \"fused_mlp\"\nuntil = \".warpsmith/go\"\n");
    let failing = format!("{COMMAND}; exit 7");
    let mut session = Session::start(place.command(&[&NEXT[..], &["--notify", &failing]].concat()));
    assert!(session.says("follow ", Duration::from_secs(100)), "{}", session.output());
    session.signal("INT");
    assert_eq!(session.ends_within(Duration::from_secs(100)), Ok(Some(130)), "{}", session.output());
    session.nothing_left();
    let said = session.output();
    assert!(said.contains("note: the command of --notify failed: exit status: 7"), "{said}");
    let told = told(&place, "");
    assert_eq!(
        (told["WARPSMITH_STATUS"].as_str(), told["WARPSMITH_REASON"].as_str()),
        ("interrupted", "it was interrupted")
    );
    place.write(".warpsmith/go", "");
    // It goes on as any other, and may be told of again.
    let resumed = place.warpsmith(&["run", "model", "--resume", "--per-kernel", "1ms", "--notify", "exit 1"]);
    assert!(resumed.err.contains("note: the command of --notify failed"), "{resumed:?}");
    resumed.ok();
}
