//! Every rule that ends a target or a run, named where the summary says why. That a target ends at a speedup, and when
//! its agent has nothing left, is seen in [`super::run`].

use std::sync::LazyLock;

use serde_json::{Value, json};
use warpsmith::history::History;
use warpsmith::workspace::Workspace;

use crate::common::{Place, RUN, kernels, outcome};

/// A run that was killed when it had judged its start: resumed with new rules, for each of which it can end.
static BEGUN: LazyLock<Place> = LazyLock::new(|| {
    let place = Place::shared("begun", &kernels::reverts());
    let mut command = place.command(&RUN);
    command.env("WARPSMITH_FAILPOINT", "done:1");
    assert_eq!(outcome(command).code, None);
    assert_eq!(place.statuses(), ["base"]);
    place
});

/// Changes what the run has written down about itself.
fn written(place: &Place, change: impl FnOnce(&mut Value)) {
    let workspace = Workspace::find(&place.root).unwrap().unwrap();
    let (mut history, _) = History::open(&workspace, &place.only_run()).unwrap();
    let mut state = history.state().clone();
    change(&mut state);
    history.checkpoint(state).unwrap();
}

/// The run resumed with this rule: the summary's line of its target, and why the run ended.
fn stopped(rule: &[&str]) -> (String, String) {
    stops(&BEGUN.copy(), rule)
}

fn stops(place: &Place, rule: &[&str]) -> (String, String) {
    let out = place.warpsmith(&[&["run", "model", "--resume"], rule].concat()).ok();
    let summary = &out[out.find("device busy").unwrap()..];
    let target = summary.lines().find(|line| line.trim().starts_with("rmsnorm")).unwrap();
    let ended = summary.lines().next().unwrap().split_once("ended because ").unwrap().1;
    (target.to_owned(), ended.to_owned())
}

#[test]
fn a_target_ends_at_so_many_reverts() {
    let (target, ended) = stopped(&["--max-reverts", "1"]);
    assert!(target.ends_with("  1 revert"), "{target}");
    assert_eq!(ended, "no targets left");
}

#[test]
fn a_target_ends_near_its_roofline() {
    let (target, ended) = stopped(&["--roofline", "0.01"]);
    assert!(target.ends_with(" % of the roofline (limit 0 %)"), "{target}");
    assert_eq!(ended, "no targets left");
}

#[test]
fn a_target_ends_when_its_time_is_over() {
    let (target, ended) = stopped(&["--per-kernel", "1ms"]);
    assert!(target.ends_with("its 1 ms are over"), "{target}");
    assert_eq!(ended, "no targets left");
}

#[test]
fn the_run_ends_with_its_budget_which_counts_what_was_spent_before() {
    let place = BEGUN.copy();
    written(&place, |state| state["elapsed_s"] = json!(3600.0));
    let (target, ended) = stops(&place, &["--budget", "1h"]);
    assert_eq!(ended, "the run's budget of 1h is spent");
    assert!(!target.ends_with("not asked for"), "{target}");
    assert_eq!(place.statuses(), ["base"]);
}

#[test]
fn a_run_past_its_hour_is_not_ended_by_who_resumes_it_but_told_what_has_it_go_on() {
    // What a run is told is a moment, and it is kept with the run.
    let place = BEGUN.copy();
    written(&place, |state| state["rules"]["until"] = json!("2026-03-01T07:00:00Z"));
    let mut command = place.command(&["run", "model", "--resume", "--max-reverts", "1"]);
    command.env("TZ", "UTC");
    let said = outcome(command).refusal();
    assert!(said.contains("was to end at 07:00 on 1 March, which is past; --until HH:MM or --budget TIME"), "{said}");
    let (target, ended) = stops(&place, &["--budget", "1h", "--max-reverts", "1"]);
    assert!(target.ends_with("  1 revert"), "{target}");
    assert_eq!(ended, "no targets left");
}

#[test]
fn the_run_ends_at_the_hour_asked_for() {
    // An hour that is to come, or is over by the time the run gets to it.
    let place = BEGUN.copy();
    let mut command = place.command(&["run", "model", "--resume", "--until", "23:58", "--max-reverts", "1"]);
    command.env("TZ", "UTC");
    let out = outcome(command).ok();
    assert!(out.contains("at the latest until 23:58"), "{out}");
    assert!(out.contains("  1 revert") || out.contains("ended because it is 23:58"), "{out}");
}

#[test]
fn settings_count_where_the_command_line_says_nothing_and_what_is_skipped_is_left_alone() {
    let place = Place::new(&kernels::keeps());
    place.write("warpsmith.toml", "[run]\nseq = 16\nexamination = \"1s\"\nroofline = 0.0001\nbudget = \"1h\"\n");
    let others = "matmul,fused_mlp,flash_attention,rotary_embedding";
    let out = place.warpsmith(&["run", "model", "--skip", others]).ok();
    assert!(out.contains("budget      1h00; 2h00 a target"), "{out}");
    assert!(out.contains(" % of the roofline (limit 0 %)"), "{out}");
    assert_eq!(out.matches("not asked for").count(), 4, "{out}");
    let ops: Vec<String> = place.ledger().into_iter().map(|row| row.op).collect();
    assert_eq!(ops, ["rmsnorm"]);
}

#[test]
fn a_target_whose_definition_fails_is_left_and_the_others_go_on() {
    let undefined = "[[event]]\nop = \"matmul\"\nundefined = \"matmul.py, line 3: it cannot be\"\n";
    let place = Place::new(&kernels::keeps()).judged_by(undefined);
    let out = place.warpsmith(&["run", "model", "--only", "matmul,rmsnorm", "--max-reverts", "2"]).ok();
    let target =
        |op: &str| out.lines().find(|line| line.trim_start().starts_with(op)).unwrap_or_else(|| panic!("{out}"));
    assert!(out.contains("it could not be judged: matmul.py, line 3: it cannot be"), "{out}");
    assert!(target("rmsnorm").contains("x"), "{out}");
    assert!(place.ledger().iter().any(|row| row.op == "rmsnorm" && row.status == "keep"), "{out}");
    // By itself it is what the whole run was for.
    let alone = place.warpsmith(&["run", "model", "--only", "matmul"]);
    assert!(alone.code != Some(0) && alone.err.contains("matmul.py, line 3: it cannot be"), "{alone:?}");
}
