//! Ctrl-C and SIGTERM end a run in order, and it can go on.

use std::time::Duration;

use crate::common::processes::Session;
use crate::common::{Place, RUN, kernels};
use crate::consistency::check;

const PATIENCE: Duration = Duration::from_secs(100);

/// What is judged waits for this file: an interruption comes in the middle of it.
const GO: &str = ".warpsmith/go";

/// Interrupts a run as soon as it has said `moment`, while it judges a kernel of which `when` is true, and has it go on; it ends
/// when `target` says why.
fn interrupted_by(signal: &str, (moment, when): (&str, &str), more: &[&str], target: &str) {
    let rule = format!("[[event]]\nwhen = \"{when}\"\nuntil = \"{GO}\"\n");
    let place = Place::new(&kernels::goes_wrong(&[1])).judged_by(&rule);
    let mut session = Session::start(place.command(&[&RUN, more].concat()));
    assert!(session.says(moment, PATIENCE), "{}", session.output());
    session.signal(signal);
    assert_eq!(session.ends_within(PATIENCE), Ok(Some(130)), "{}", session.output());
    session.nothing_left();
    let run = place.only_run();
    let out = session.output();
    assert!(out.contains("ended because it was interrupted"), "{out}");
    assert!(out.contains(&format!("go on with   warpsmith run model --resume {run}\n")), "{out}");
    let status = place.warpsmith(&["status"]).ok();
    assert!(status.contains(&format!("warpsmith run model --resume {run}")), "{status}");
    check(&place);
    // The command that was printed.
    place.write(GO, "");
    let out = place.warpsmith(&["run", "model", "--resume", &run]).ok();
    assert!(out.contains(target), "{out}");
    check(&place);
}

#[test]
fn ctrl_c_ends_a_run_with_the_command_that_resumes_it() {
    interrupted_by("INT", ("#1 ", "MODE == 1"), &[], "all 2 points of its space were tried");
}

#[test]
fn sigterm_ends_a_run_with_the_command_that_resumes_it() {
    interrupted_by("TERM", ("follow ", "MODE == 0"), &["--per-kernel", "1ms"], "its 1 ms are over");
}

#[test]
fn interrupted_before_there_is_a_run_nothing_is_left_behind() {
    let place = Place::new(&kernels::keeps()).judged_by("[[event]]\nop = \"model\"\nuntil = \".warpsmith/go\"\n");
    let mut session = Session::start(place.command(&["run", "model"]));
    assert!(session.says("profiling", PATIENCE), "{}", session.output());
    session.signal("INT");
    assert_eq!(session.ends_within(PATIENCE), Ok(Some(130)), "{}", session.output());
    session.nothing_left();
    assert_eq!(place.git(&["for-each-ref", "refs/warpsmith"]), "");
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    assert!(!session.output().contains("error:"), "{}", session.output());
}
