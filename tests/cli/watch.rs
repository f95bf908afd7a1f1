//! The judge beside an editor: a verdict for every save, whatever way the editor writes.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use warpsmith::workspace::DeviceLock;

use crate::common::processes::Session;
use crate::common::{GPT2, Place, kernels, slot};
use crate::consistency::{check, journal};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(200);

const KERNEL: &str = "kernels/cpu/rmsnorm.c";

/// The kernel with a change.
fn with(text: &str, from: &str, to: &str) -> String {
    let changed = text.replacen(from, to, 1);
    assert_ne!(changed, text);
    changed
}

fn fast() -> String {
    with(&kernels::keeps(), "value = 200", "value = 4")
}

/// Writes a file as many editors do: a new one takes the old one's name.
fn save_by_rename(place: &Place, text: &str) {
    place.write("kernels/cpu/.rmsnorm.c.swp", "an editor's own");
    place.write("kernels/cpu/4913", text);
    fs::rename(place.root.join(KERNEL), place.root.join("kernels/cpu/rmsnorm.c~")).unwrap();
    fs::rename(place.root.join("kernels/cpu/4913"), place.root.join(KERNEL)).unwrap();
}

#[track_caller]
fn says(session: &mut Session, text: &str) {
    assert!(session.says(text, PATIENCE), "`{text}` in\n{}", session.output());
}

/// Ctrl-C: it ends in order, with a summary.
#[track_caller]
fn end(session: &mut Session) -> String {
    session.signal("INT");
    assert_eq!(session.ends_within(PATIENCE), Ok(Some(0)), "{}", session.output());
    session.nothing_left();
    session.output()
}

#[test]
fn every_save_has_its_verdict_and_a_gain_is_what_the_next_is_held_against() {
    let place = Place::without_repository(&kernels::keeps()).really_judged();
    let mut session = Session::start(place.command(&["watch", KERNEL]));
    says(&mut session, "watching kernels/cpu/rmsnorm.c: rmsnorm on ");
    says(&mut session, "#1   base    rmsnorm ");
    save_by_rename(&place, &fast());
    says(&mut session, "#2   keep    rmsnorm ");
    // Truncated and written; it does not compile.
    place.write(KERNEL, &with(&fast(), "float sum = 0;", "float sum = ;"));
    says(&mut session, "#3   error   rmsnorm          at compile");
    place.write(KERNEL, &with(&fast(), "sum / (float)cols", "sum"));
    says(&mut session, "#4   reject  rmsnorm          at smoke");
    // Right, and slower than what was kept.
    save_by_rename(&place, &format!("{}\n// again\n", kernels::keeps()));
    assert!(!place.root.join("results.tsv").exists() && !place.root.join(".warpsmith").exists());
    says(&mut session, "#5   revert  rmsnorm ");
    place.write(KERNEL, &fast());
    says(&mut session, "this is what was kept last");
    let out = end(&mut session);
    for part in [
        "judging the kernel as it is\n",
        "judging +1 -1 lines\n",
        "(at least ",
        ", incumbent ",
        "% of the roofline (",
        "error: expected expression",
        "are outside their bound",
        "kernels/cpu/rmsnorm.c: 5 judged, 1 kept\n",
        "in full      warpsmith bench kernels/cpu/rmsnorm.c\n",
    ] {
        assert!(out.contains(part), "{part} in\n{out}");
    }
    assert!(!place.root.join("results.tsv").exists() && !place.root.join(".git").exists());
}

#[test]
fn with_keep_a_gain_is_a_commit_on_a_branch_of_its_own() {
    let place = Place::new(&kernels::keeps());
    let mut session = Session::start(place.command(&["watch", KERNEL, "--keep", "--model", "model"]));
    // The pass of warpsmith.toml through the model, not the operation's primary shape.
    says(&mut session, "timed at cols=64 rows=16 f32\n");
    says(&mut session, "#1   base ");
    let run = place.only_run();
    place.write(KERNEL, &fast());
    says(&mut session, "#2   keep ");
    place.write(KERNEL, &with(&fast(), "sum / (float)cols", "sum"));
    says(&mut session, "#3   reject ");
    let out = end(&mut session);
    assert!(out.contains("3 judged, 1 kept\n") && out.contains("  #2   "), "{out}");
    assert!(out.contains(&format!("history      git log --stat warpsmith/{run}\n")), "{out}");
    assert!(out.contains(&format!("git show warpsmith/{run}:./{KERNEL} (the file is another by now)\n")), "{out}");
    assert_eq!(place.git(&["show", &format!("warpsmith/{run}:./{KERNEL}")]), fast());
    // The user's own commit, branch and file are as they left them.
    assert_eq!(place.git(&["rev-list", "--count", "main"]).trim(), "1");
    assert!(place.read(KERNEL).contains("sqrtf(sum + eps)"));
    let log = place.git(&["log", "-1", "--format=%s%n%b", &format!("warpsmith/{run}")]);
    assert!(log.starts_with("rmsnorm: +1 -1 lines (") && log.contains("\nAgent: watch\n"), "{log}");
    // It is looked at as a run is, and not resumed.
    let status = place.warpsmith(&["status"]).ok();
    assert!(status.contains("ended because the watch is over") && !status.contains("predicted"), "{status}");
    let report = place.warpsmith(&["report"]).ok();
    assert!(report.starts_with("report "), "{report}");
    let said = place.warpsmith(&["run", "model", "--resume"]).refusal();
    assert!(said.contains(&format!("run {run} is a watch's")), "{said}");
    place.write(KERNEL, &kernels::keeps());
    check(&place);
    let applied = place.warpsmith(&["apply"]).ok();
    assert!(applied.contains("Faster kernels of run ") && place.read(KERNEL) == fast(), "{applied}");
}

#[test]
fn a_save_during_the_judging_takes_its_place() {
    let place = Place::new(&kernels::keeps());
    let mut session = Session::start(place.command(&["watch", KERNEL, "--keep"]));
    says(&mut session, "#1   base ");
    let state: Value = serde_json::from_str(&place.warpsmith(&["status", "--json"]).ok()).unwrap();
    // While the device is somebody else's there is no verdict.
    let key = state["device_key"].as_str().unwrap();
    let device = DeviceLock::take(&slot::cache(), key, "a test", |_| true).unwrap().unwrap();
    place.write(KERNEL, &format!("{}\n// not\n// yet\n", fast()));
    says(&mut session, "judging +4 -1 lines\n");
    place.write(KERNEL, &fast());
    says(&mut session, "saved again before there was a verdict\njudging +1 -1 lines\n");
    drop(device);
    says(&mut session, "#2   keep ");
    end(&mut session);
    let journal = journal(&place, &place.only_run());
    assert_eq!(journal.len(), 2, "{journal:?}");
    place.write(KERNEL, &kernels::keeps());
    check(&place);
}

#[test]
fn it_can_start_from_another_file_and_from_one_that_is_not_right_yet() {
    let place = Place::without_repository(&kernels::keeps());
    place.write("mine.c", &fast());
    let mut session = Session::start(place.command(&["watch", "mine.c", "--against", KERNEL]));
    says(&mut session, "#2   keep ");
    assert!(end(&mut session).contains("mine.c: 2 judged, 1 kept\n"));

    place.write("mine.c", &with(&fast(), "float sum = 0;", "float sum = ;"));
    let mut session = Session::start(place.command(&["watch", "mine.c", "--shape", "rows=5,cols=32"]));
    says(&mut session, "rows=5");
    says(&mut session, "#1   error ");
    place.write("mine.c", &fast());
    says(&mut session, "#2   base ");
    assert!(end(&mut session).contains("mine.c: 2 judged, 0 kept\n"));

    let ended = place.warpsmith(&["watch", KERNEL, "--against", "notes.txt"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("the file to start from does not pass"), "{ended:?}");
}

#[test]
fn what_cannot_be_watched_is_said_in_a_sentence() {
    let place = Place::new(&kernels::keeps());
    let said = place.warpsmith(&["watch", "nothing.c"]).refusal();
    assert!(said.contains("nothing.c cannot be read"), "{said}");
    // It is in the program, and would be here if it had been asked for.
    let said = place.warpsmith(&["watch", "kernels/cpu/softmax.c"]).refusal();
    assert!(said.contains("kernels/cpu/softmax.c is not there; `warpsmith init --copy`"), "{said}");
    let said = place.warpsmith(&["watch", "notes.txt"]).refusal();
    assert!(said.contains("notes.txt"), "{said}");
    place.write("gpt/config.json", GPT2);
    let said = place.warpsmith(&["watch", KERNEL, "--model", "gpt"]).refusal();
    assert!(said.contains("gpt has no rmsnorm; it has layernorm, "), "{said}");
    let elsewhere = Place::empty();
    elsewhere.write("mine.c", &kernels::keeps());
    let said = elsewhere.warpsmith(&["watch", "mine.c", "--keep"]).refusal();
    assert!(said.contains("belongs to no workspace") && said.contains("warpsmith init"), "{said}");
}
