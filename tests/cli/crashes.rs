//! Killed at every step of the crash order, a run that is resumed ends as if nothing had happened.

use serde_json::Value;

use crate::common::{Outcome, Place, kernels, outcome};
use crate::consistency::{check, journal};

/// Starts or resumes, to be killed at `step` of experiment `number`.
fn killed(place: &Place, arguments: &[&str], step: &str, number: u64) {
    let mut command = place.command(arguments);
    command.env("WARPSMITH_FAILPOINT", format!("{step}:{number}"));
    let Outcome { code, out, err } = outcome(command);
    assert_eq!(code, None, "{step}: {out}{err}");
}

/// A run of this kernel that was killed when its second experiment had just been written down as pending.
fn begun(kernel: &str) -> Place {
    let place = Place::new(kernel);
    killed(&place, &["run", "model", "--only", "rmsnorm", "--seed", "1", "--max-reverts", "1"], "pending", 2);
    assert_eq!(place.statuses(), ["base"]);
    place
}

/// Kills the same second experiment at each of the `steps`, and lets the run end each time.
fn killed_at_each_step(kernel: &str, status: &str, steps: &[&str]) {
    let begun = begun(kernel);
    let run = begun.only_run();
    let pending: Value = serde_json::from_str(&begun.read(&format!(".warpsmith/{run}/pending.json"))).unwrap();
    for step in steps {
        let place = begun.copy();
        killed(&place, &["run", "model", "--resume"], step, 2);
        // What is in the journal is only finished: then the run may as well end, which saves measuring the model twice.
        let rules: &[&str] = if *step == "objects" { &[] } else { &["--budget", "1ms"] };
        let out = place.warpsmith(&[&["run", "model", "--resume"], rules].concat()).ok();
        assert!(out.contains(&format!("branch      warpsmith/{run} (resumed)")), "{step}: {out}");
        assert_eq!(place.statuses(), ["base", status], "{step}: {out}{}", place.read("results.tsv"));
        check(&place);
        // What was decided is what was pending, with its seed.
        let journal = journal(&place, &run);
        assert_eq!(journal[1]["evaluation"]["seed"], pending["seed"], "{step}");
        let text = place.warpsmith(&["show", "2", "--kernel"]).ok();
        assert_eq!(text.trim_end(), pending["text"].as_str().unwrap().trim_end(), "{step}");
        let file = place.read(&format!(".warpsmith/{run}/kernels/cpu/rmsnorm.c"));
        assert_eq!(file, place.git(&["show", &format!("warpsmith/{run}:kernels/cpu/rmsnorm.c")]), "{step}");
    }
}

#[test]
fn killed_at_any_step_of_a_keep_a_run_ends_the_same() {
    killed_at_each_step(&kernels::keeps(), "keep", &["objects", "journal", "branch", "ledger", "restored", "done"]);
}

#[test]
fn killed_at_any_step_of_a_revert_a_run_ends_the_same() {
    killed_at_each_step(&kernels::reverts(), "revert", &["objects", "journal", "ledger", "restored", "done"]);
}

#[test]
fn killed_at_any_step_of_a_reject_a_run_ends_the_same() {
    killed_at_each_step(&kernels::goes_wrong(&[1]), "reject", &["objects", "journal", "ledger", "restored", "done"]);
}

#[test]
fn killed_as_an_experiment_becomes_pending_the_same_one_is_done() {
    let place = begun(&kernels::goes_wrong(&[1]));
    // Killed again before it is judged: the resumed run writes it down anew.
    killed(&place, &["run", "model", "--resume"], "pending", 2);
    let out = place.warpsmith(&["run", "model", "--resume"]).ok();
    assert_eq!(place.statuses(), ["base", "reject"], "{out}");
    check(&place);
}

#[test]
fn killed_at_its_start_a_run_resumes_or_was_never_there() {
    let start = ["run", "model", "--only", "rmsnorm", "--per-kernel", "1ms"];
    for step in ["begin-objects", "begin-journal", "begin-branch"] {
        let place = Place::new(&kernels::keeps());
        killed(&place, &start, step, 0);
        if step == "begin-objects" {
            let said = place.warpsmith(&["run", "model", "--resume"]).refusal();
            assert!(said.contains("there is no run to resume here"), "{said}");
            place.warpsmith(&start).ok();
        } else {
            place.warpsmith(&["run", "model", "--resume"]).ok();
        }
        assert_eq!(place.statuses(), ["base"], "{step}: {}", place.read("results.tsv"));
        check(&place);
    }
}

#[test]
fn every_step_of_the_crash_order_is_killed_somewhere_here() {
    let mut tested = vec!["begin-objects", "begin-journal", "begin-branch", "pending"];
    tested.extend(["objects", "journal", "branch", "ledger", "restored", "done"]);
    assert_eq!(warpsmith::history::FAILPOINTS.to_vec(), tested);
}
