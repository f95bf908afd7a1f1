//! A run on a single kernel, outside of any model: the same history, and nothing that speaks of a model.

use std::sync::LazyLock;

use crate::common::{GPT2, Place, kernels, outcome};
use crate::consistency::check;

const KERNEL: &str = "kernels/cpu/rmsnorm.c";

/// A run that was killed when its first gain was in the journal, and then went on to its end.
struct Ended {
    place: Place,
    run: String,
    /// What was said until it was killed.
    killed: String,
    /// What was said until it ended.
    out: String,
    before: String,
}

static ENDED: LazyLock<Ended> = LazyLock::new(|| {
    let place = Place::shared("kernel-alone", &kernels::keeps());
    let before = place.untouched();
    let mut command = place.command(&["run", KERNEL, "--shape", "rows=16,cols=512", "--seed", "1"]);
    command.env("WARPSMITH_FAILPOINT", "journal:2");
    let killed = outcome(command);
    assert_eq!(killed.code, None, "{killed:?}");
    let tell = "printf '%s %s' \"$WARPSMITH_SPEEDUP_IS\" \"$WARPSMITH_SUMMARY\" > .warpsmith/news";
    let out = place.warpsmith(&["run", KERNEL, "--resume", "--notify", tell]).ok();
    Ended { run: place.only_run(), place, killed: killed.out, out, before }
});

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
}

#[track_caller]
fn lacks(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(!text.contains(part), "`{part}` in\n{text}");
    }
}

#[test]
fn a_kernel_is_improved_without_a_model_and_killed_it_goes_on() {
    let Ended { place, run, killed, out, before } = &*ENDED;
    has(killed, &["improving kernels/cpu/rmsnorm.c: rmsnorm on ", ", timed at cols=512 rows=16 f32\n", "#1   base "]);
    has(out, &[&format!("branch      warpsmith/{run} (resumed)"), "take it      warpsmith apply "]);
    // What is left of a model's run would be a profile, a ranking, a share and a comparison.
    for said in [killed, out] {
        lacks(said, &["profiling", "one pass", "next, by", "of the model", "verifying", "predicted", "share"]);
    }
    assert_eq!(place.statuses(), ["base", "keep"]);
    assert_eq!(place.untouched(), *before);
    check(place);
    let log = place.git(&["log", "-1", "--format=%s", &format!("warpsmith/{run}")]);
    assert!(log.starts_with("rmsnorm: PASSES 200→4 ("), "{log}");
}

#[test]
fn its_summary_says_how_the_kernel_started_and_what_it_is_now() {
    let Ended { place, run, out, .. } = &*ENDED;
    let status = place.warpsmith(&["status"]).ok();
    assert!(out.contains(status.trim_end()), "{status}\nis not in\n{out}");
    let last = status.trim_end().lines().last().unwrap();
    assert!(last.starts_with("  kernels/cpu/rmsnorm.c at cols=512 rows=16 f32: "), "{status}");
    let (start, now) = last.rsplit_once(": ").unwrap().1.split_once(" -> ").unwrap();
    assert!(start.ends_with('s') && now.ends_with('s') && start != now, "{last}");
    has(&status, &["ended because no targets left", "x what you had (limit 2x)"]);
    has(&place.warpsmith(&["show", "2"]).ok(), &["PASSES 200→4", "cols=512 rows=16"]);
    // A command of the user's is told of a gain that was measured.
    let news = place.read(".warpsmith/news");
    assert!(news.starts_with("measured ") && news.contains("of kernels/cpu/rmsnorm.c on "), "{news}");
    lacks(&news, &[": 1.00x", ": 0."]);
    // Once it has ended it is not gone on with, and never by a name that is not its own.
    let said = place.warpsmith(&["run", KERNEL, "--resume"]).refusal();
    has(&said, &["has ended: no targets left"]);
    let said = place.warpsmith(&["run", "model", "--resume", run]).refusal();
    has(&said, &["is on kernels/cpu/rmsnorm.c, not on ", &format!("`warpsmith run {KERNEL} --resume {run}`")]);
}

#[test]
fn its_page_and_its_commit_speak_of_the_kernel() {
    let place = ENDED.place.copy();
    place.warpsmith(&["report", "--out", ".warpsmith/page"]).ok();
    let page = place.read(".warpsmith/page/index.html");
    has(&page, &["<h1>rmsnorm.c is ", " as fast</h1>", "cols=512 rows=16 f32 on ", "Of its roofline", "PASSES 200→4"]);
    let body = page.split("</style>").last().unwrap();
    lacks(body, &["One pass", "Predicted", "of the model", "warpsmith verify", "not profiled"]);
    assert!(place.root.join(".warpsmith/page/roofline.svg").is_file());
    place.warpsmith(&["apply"]).ok();
    has(&place.read(KERNEL), &["PASSES = { value = 4,"]);
    let message = place.git(&["log", "-1", "--format=%B"]);
    has(&message, &["Faster kernels of run ", "\nat cols=512 rows=16 f32:\n", "x what was there before, "]);
    lacks(&message, &["a pass", "whole model"]);
    has(&place.warpsmith(&["prune", "--all"]).ok(), &["were freed"]);
}

#[test]
fn a_model_that_calls_the_operation_can_be_run_with_the_kernel() {
    let place = ENDED.place.copy();
    let verified = place.warpsmith(&["verify", "model"]).ok();
    has(&verified, &["outputs agree to ", "x measured ("]);
    assert!(verified.lines().any(|line| line.starts_with("rmsnorm ")), "{verified}");
    // One that has no such call.
    place.write("other/config.json", GPT2);
    let said = place.warpsmith(&["verify", "other"]).refusal();
    has(&said, &["is on rmsnorm alone, which this model does not call", "--run RUN"]);
}

#[test]
fn what_means_nothing_for_a_kernel_or_for_a_model_is_refused_by_name() {
    let place = &ENDED.place;
    let refused = |arguments: &[&str], parts: &[&str]| {
        let said = place.warpsmith(&[&["run"], arguments].concat()).refusal();
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        has(&said, parts);
    };
    let rest = [["--only", "rmsnorm"], ["--skip", "rmsnorm"], ["--batch", "2"], ["--seq", "8"], ["--layers", "1"]];
    for [option, value] in rest.into_iter().chain([["--phase", "decode"]]) {
        refused(&[KERNEL, option, value], &[option, "is for a model", KERNEL, "--shape and --dtype"]);
    }
    refused(&["model", "--shape", "rows=3"], &["--shape is for a kernel file", "--batch, --seq and --phase"]);
    refused(&[KERNEL, "--shape", "lines=3"], &["lines"]);
    refused(&["nowhere.c"], &["nowhere.c is not there", "config.json", "a kernel file"]);
    refused(&["notes.txt"], &["notes.txt", "front matter"]);
    refused(&["model/config.json"], &["model/config.json", "front matter"]);
    let copy = format!(".warpsmith/{}/{KERNEL}", ENDED.run);
    refused(&[&copy], &["is a run's own copy", "name the kernel file itself"]);
    let elsewhere = Place::empty();
    elsewhere.write("mine.c", &kernels::keeps());
    has(&elsewhere.warpsmith(&["run", "mine.c"]).refusal(), &["belongs to no workspace", "`warpsmith init`"]);
}
