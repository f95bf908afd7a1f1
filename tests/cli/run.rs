//! A plain run, from its first line to its last, and what it leaves behind.

use std::sync::LazyLock;

use crate::common::{Outcome, Place, RUN, kernels};

/// A run over two targets that has ended by itself.
pub struct Finished {
    pub place: Place,
    pub out: String,
    pub run: String,
    before: String,
}

/// One for all tests that only look.
pub static FINISHED: LazyLock<Finished> = LazyLock::new(|| {
    let place = Place::shared("finished", &kernels::keeps());
    let before = place.untouched();
    let out = place.warpsmith(&["run", "model", "--only", "rmsnorm,fused_mlp"]).ok();
    let run = place.only_run();
    Finished { place, out, run, before }
});

#[test]
fn a_run_leaves_a_ledger_with_a_base_for_each_target_and_what_it_kept() {
    let Finished { place, out, run, .. } = &*FINISHED;
    let rows = place.ledger();
    let mut told: Vec<_> = rows.iter().map(|row| (row.op.as_str(), row.status.as_str())).collect();
    told.sort_unstable();
    assert_eq!(told, [("fused_mlp", "base"), ("rmsnorm", "base"), ("rmsnorm", "keep")], "{out}");
    let keep = rows.iter().find(|row| row.status == "keep").unwrap();
    assert_eq!((keep.op.as_str(), keep.technique.as_str(), keep.stage.as_str()), ("rmsnorm", "tune", "confirm"));
    assert_eq!(keep.description, "PASSES 200→4");
    // 200 passes against 4.
    assert_eq!((keep.speedup, keep.vs_user), (Some(50.0), Some(50.0)), "{keep:?}");
    assert!(keep.low.unwrap() <= 50.0 && keep.low.unwrap() > 49.0, "{keep:?}");
    let numbers: Vec<u64> = rows.iter().map(|row| row.exp).collect();
    assert_eq!(numbers, (1..=rows.len() as u64).collect::<Vec<_>>());
    assert!(rows.iter().all(|row| row.run == *run && row.us.unwrap() > 0.0 && row.backend == "cpu"));
}

#[test]
fn the_branch_reads_as_a_story_and_says_why_to_believe_it() {
    let Finished { place, run, .. } = &*FINISHED;
    let log = place.git(&["log", "--format=%s", &format!("main..warpsmith/{run}")]);
    let subjects: Vec<_> = log.lines().collect();
    // A start that the repository already has is no commit.
    assert_eq!(subjects.len(), 1, "{log}");
    assert!(subjects[0].starts_with("rmsnorm: PASSES 200→4 (") && subjects[0].ends_with("x total)"), "{log}");
    let message = place.git(&["log", "-1", "--format=%B", &format!("warpsmith/{run}")]);
    for part in ["µs, was", "cases correct; margin", "confirmed in fresh processes: "] {
        assert!(message.contains(part), "{part} is missing in\n{message}");
    }
    let trailers = place.git(&["log", "-1", "--format=%(trailers:only)", &format!("warpsmith/{run}")]);
    let names: Vec<_> =
        trailers.lines().filter_map(|line| line.split(": ").next()).filter(|name| !name.is_empty()).collect();
    assert_eq!(names, ["Latency-us", "Speedup-low", "Technique", "Agent", "Experiment"], "{trailers}");
    let changed = place.git(&["diff", "--stat", "main", &format!("warpsmith/{run}")]);
    assert!(changed.contains("kernels/cpu/rmsnorm.c | 2 +-") && changed.lines().count() == 2, "{changed}");
}

#[test]
fn a_run_touches_neither_head_nor_index_nor_the_users_files() {
    let Finished { place, before, .. } = &*FINISHED;
    assert_eq!(place.untouched(), *before);
    assert_eq!(place.git(&["status", "--porcelain"]), "?? results.tsv\n");
    let branches = place.git(&["branch", "--list", "--format=%(refname:short)"]);
    assert_eq!(branches.lines().count(), 2, "{branches}");
    place.git(&["fsck", "--strict"]);
}

#[test]
fn the_first_lines_say_where_on_what_and_how_long() {
    let Finished { place, out, run, .. } = &*FINISHED;
    let line = |name: &str| {
        let found = out.lines().find(|line| line.starts_with(name));
        found.unwrap_or_else(|| panic!("no line `{name}` in\n{out}"))[name.len()..].trim().to_owned()
    };
    assert!(out.starts_with("profiling model on "), "{out}");
    assert_eq!(line("workspace "), place.root.to_string_lossy());
    assert_eq!(line("branch "), format!("warpsmith/{run}"));
    assert!(line("device ").ends_with(" (cpu)"));
    assert_eq!(line("agent "), "tuner");
    assert_eq!(line("budget "), "until the targets end; 2h00 a target");
    assert!(!line("protection ").is_empty());
    assert_eq!(line("follow "), format!("tail -f {}/results.tsv", place.root.display()));
}

#[test]
fn the_last_lines_are_the_summary_and_the_commands_to_look_closer() {
    let Finished { out, run, .. } = &*FINISHED;
    let summary = &out[out.find(&format!("run {run}: ")).unwrap()..];
    assert!(summary.contains("ended because no targets left"), "{summary}");
    for op in ["rmsnorm", "fused_mlp", "matmul", "flash_attention", "rotary_embedding"] {
        assert!(summary.lines().any(|line| line.trim().starts_with(op)), "{op} in\n{summary}");
    }
    for part in [
        "x what you had (limit 2x)",
        "all 1 points of its space were tried",
        "not asked for",
        "predicted (",
        "measured ",
        "outputs agree to ",
    ] {
        assert!(summary.contains(part), "{part} is missing in\n{summary}");
    }
    let last: Vec<_> = out.trim_end().lines().rev().take(4).collect();
    let wanted = [
        format!("as a page    warpsmith report {run}"),
        "every try    warpsmith log".to_owned(),
        format!("take it      warpsmith apply {run}    (or every step: git merge warpsmith/{run})"),
        format!("history      git log --stat warpsmith/{run}"),
    ];
    assert_eq!(last, wanted);
    assert!(!out.contains("go on with"), "{out}");
}

#[test]
fn what_was_kept_can_be_merged_and_the_next_run_starts_from_it() {
    let place = FINISHED.place.copy();
    let run = &FINISHED.run;
    place.git(&["merge", "-q", &format!("warpsmith/{run}")]);
    assert!(place.read("kernels/cpu/rmsnorm.c").contains("PASSES = { value = 4,"));
    place.begin(&RUN);
    let next = format!("{}b", &run[..6]);
    assert_eq!(place.git(&["rev-parse", &format!("warpsmith/{next}")]), place.git(&["rev-parse", "main"]));
    // The rows of the earlier run stand where they stood.
    assert_eq!(place.read("results.tsv"), FINISHED.place.read("results.tsv"));
    assert!(place.read(&format!(".warpsmith/{next}/pending.json")).contains("PASSES = { value = 4,"));
}

#[test]
fn each_way_to_go_wrong_has_its_status_and_the_run_goes_on() {
    let place = Place::new(&kernels::goes_wrong(&[1, 2, 3, 4]));
    let out = place.run(&[]).ok();
    let rows = place.ledger();
    let mut found: Vec<_> = rows.iter().map(|row| (row.status.as_str(), row.stage.as_str())).collect();
    found.sort_unstable();
    let wanted =
        [("base", "timing"), ("crash", "edges"), ("error", "compile"), ("reject", "edges"), ("timeout", "edges")];
    assert_eq!(found, wanted, "{out}");
    for part in
        ["SIGSEGV at a null pointer", "not written yet", "it did not return within", "elements are outside their bound"]
    {
        assert!(rows.iter().any(|row| row.description.contains(part)), "{part}\n{out}");
    }
    // Nothing kept: nothing to merge, and nothing compared.
    let run = place.only_run();
    assert_eq!(place.git(&["rev-parse", &format!("warpsmith/{run}")]), place.git(&["rev-parse", "main"]));
    assert!(!out.contains("git merge") && !out.contains("verifying"), "{out}");
}

#[test]
fn a_run_with_time_left_goes_on_with_what_was_left_because_it_is_fast_enough() {
    let place = Place::new(&kernels::keeps());
    let out = place.run(&["--speedup", "1.0001", "--budget", "1h"]).ok();
    assert_eq!(place.statuses(), ["base", "keep"]);
    let left: Vec<&str> = out.lines().filter(|line| line.starts_with("left rmsnorm: ")).collect();
    assert_eq!(left.len(), 2, "{out}");
    assert!(left[0].contains("x what you had (limit 1.0001x)"), "{out}");
    assert!(left[1].contains("all 2 points of its space were tried"), "{out}");
}

#[test]
fn quiet_says_what_was_kept_and_the_summary_only() {
    let place = Place::new(&kernels::keeps());
    let Outcome { code, out, err } = place.run(&["--quiet", "--speedup", "1.0001"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(place.statuses(), ["base", "keep"]);
    assert!(out.contains("#2   keep    rmsnorm") && out.contains("ended because no targets left"), "{out}");
    assert!(out.contains("x what you had (limit 1.0001x)"), "{out}");
    for noise in ["profiling", "one pass", "next, by ", "target rmsnorm:", "#1 ", "left rmsnorm", "verifying"] {
        assert!(!out.contains(noise), "`{noise}` in\n{out}");
    }
}
