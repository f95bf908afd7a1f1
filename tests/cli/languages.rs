//! A target whose kernel may be in two languages: both are judged, the faster one is gone on from, and the branch has one file.

use std::fmt::Write as _;
use std::process::Command;

use serde_json::json;

use crate::common::{Outcome, Place, outcome};
use crate::consistency::journal;

const CUDA: &str = "kernels/cuda/rmsnorm.cu";
const TRITON: &str = "kernels/triton/rmsnorm.py";

/// A GPU on which a kernel takes what its text says.
const SCRIPT: &str = "backend = \"cuda\"\n\
                      [[fault]]\ntext = \"wrong\"\nstatus = \"reject\"\nstage = \"sweep\"\nwhy = \"off by far\"\n\
                      [[cost]]\ntext = \"takes 40\"\ntimes_roofline = \"40\"\n[[cost]]\ntext = \"takes 20\"\ntimes_roofline = \"20\"\n\
                      [[cost]]\ntext = \"takes 5\"\ntimes_roofline = \"5\"\n[[cost]]\ntext = \"takes 3\"\ntimes_roofline = \"3\"\n";

const ARGS: &str = "args = [\"x\", \"weight\", \"y\", \"rows\", \"cols\", \"eps\"]";

fn cuda(says: &str) -> String {
    format!(
        "/*---\nop = \"rmsnorm\"\ndtypes = [\"f16\", \"bf16\", \"f32\"]\n[[launch]]\nkernel = \"norm\"\ngrid = [\"rows\"]\nblock = [\"64\"]\n{ARGS}\n\
         ---*/\n// {says}\n__global__ void norm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps) {{ y[0] = x[0]; }}\n"
    )
}

fn triton(says: &str) -> String {
    format!(
        "\"\"\"\n---\nop = \"rmsnorm\"\ndtypes = [\"f16\", \"bf16\", \"f32\"]\n[[launch]]\nkernel = \"norm\"\ngrid = [\"rows\"]\n{ARGS}\n---\n\"\"\"\n\
         import triton\nimport triton.language as tl\n\n\n# {says}\n@triton.jit\ndef norm(x, weight, y, rows, cols, eps):\n    tl.store(y, tl.load(x))\n"
    )
}

/// A workspace with a kernel in each language, and a transcript that proposes these texts.
fn place(begin: (&str, &str), proposed: &[String]) -> Place {
    let place = Place::without_repository("").judged_by(SCRIPT);
    place.write(CUDA, &cuda(begin.0));
    place.write(TRITON, &triton(begin.1));
    place.commit_all();
    let lines = proposed.iter().enumerate().fold(String::new(), |mut lines, (at, text)| {
        let proposal = json!({"text": text, "technique": "write", "description": "anew", "ticket": at});
        let said = json!({"at": "2026-03-01T07:00:00Z", "said": "proposed", "op": "rmsnorm", "experiment": 1, "proposal": proposal});
        writeln!(lines, "{said}").unwrap();
        lines
    });
    place.write(".git/said.jsonl", &lines);
    place
}

/// The program, as on a machine with a GPU.
fn command(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    command.env("WARPSMITH_BACKEND", "cuda");
    command
}

fn warpsmith(place: &Place, arguments: &[&str]) -> Outcome {
    outcome(command(place, arguments))
}

fn run(place: &Place, more: &[&str]) -> Command {
    of_any_language(place, &[&["--language", "cuda,triton"], more].concat())
}

fn of_any_language(place: &Place, more: &[&str]) -> Command {
    let rules = ["--speedup", "100", "--roofline", "1000", "--seed", "1"];
    command(place, &[&["run", CUDA, "--agent", "replay", ".git/said.jsonl"], &rules[..], more].concat())
}

/// The files below `kernels/` of a GPU's at the branch's tip.
fn at_the_tip(place: &Place) -> Vec<String> {
    let branch = format!("warpsmith/{}", place.only_run());
    let all = place.git(&["ls-tree", "-r", "--name-only", &branch, "kernels/cuda", "kernels/triton"]);
    all.lines().map(str::to_owned).collect()
}

#[test]
fn the_faster_of_two_languages_is_gone_on_from_and_the_branch_has_one_file() {
    let place = place(("takes 40", "takes 20"), &[triton("takes 5")]);
    let before = place.untouched();
    let said = outcome(run(&place, &[])).ok();
    assert_eq!(place.statuses(), ["base", "keep", "keep"], "{said}");
    assert_eq!(at_the_tip(&place), [TRITON]);
    assert_eq!(place.untouched(), before);
    let run = place.only_run();
    let trials = journal(&place, &run);
    assert_eq!(trials[1]["trial"]["proposal"]["technique"], "language");
    assert_eq!(trials[1]["trial"]["author"], "warpsmith");
    assert_eq!(trials[2]["trial"]["file"], TRITON);
    // What was left stays where git finds it.
    let tip = place.git(&["show", &format!("warpsmith/{run}:{TRITON}")]);
    assert!(tip.contains("takes 5") && place.git(&["show", &format!("main:{CUDA}")]).contains("takes 40"));
    warpsmith(&place, &["apply", &run]).ok();
    assert!(place.read(TRITON).contains("takes 5"));
    assert!(place.read(CUDA).contains("takes 40"), "nobody's other file is taken away");
}

#[test]
fn a_second_language_that_is_slower_or_wrong_changes_nothing() {
    for (theirs, verdict) in [("takes 40", "revert"), ("wrong", "reject")] {
        let place = place(("takes 20", theirs), &[cuda("takes 5")]);
        outcome(run(&place, &[])).ok();
        assert_eq!(place.statuses(), ["base", verdict, "keep"]);
        assert_eq!(at_the_tip(&place), [CUDA, TRITON], "what the user has there stays");
        let tip = place.git(&["show", &format!("warpsmith/{}:{CUDA}", place.only_run())]);
        assert!(tip.contains("takes 5"));
    }
}

#[test]
fn an_agent_may_answer_in_either_language_and_is_told_so() {
    let place = place(("takes 20", "takes 40"), &[triton("takes 5"), cuda("takes 3"), triton("wrong")]);
    outcome(run(&place, &[])).ok();
    assert_eq!(place.statuses(), ["base", "revert", "keep", "keep", "reject"]);
    assert_eq!(at_the_tip(&place), [CUDA]);
    let asked = warpsmith(&place, &["prompt"]).ok();
    assert!(asked.contains("or as well in Triton"), "{asked}");
}

#[test]
fn a_run_that_is_killed_between_two_languages_judges_each_once() {
    for failpoint in ["journal:1", "objects:2", "journal:2", "branch:2", "journal:3"] {
        let place = place(("takes 40", "takes 20"), &[triton("takes 5")]);
        let mut command = run(&place, &[]);
        command.env("WARPSMITH_FAILPOINT", failpoint);
        assert_eq!(outcome(command).code, None, "{failpoint}");
        let resume = ["run", CUDA, "--agent", "replay", ".git/said.jsonl", "--resume"];
        let said = warpsmith(&place, &resume).ok();
        assert_eq!(place.statuses(), ["base", "keep", "keep"], "{failpoint}: {said}");
        assert_eq!(at_the_tip(&place), [TRITON], "{failpoint}");
    }
}

#[test]
fn a_language_that_the_device_or_the_file_does_not_have_is_refused() {
    let place = place(("takes 40", "takes 20"), &[]);
    let said = warpsmith(&place, &["run", CUDA, "--language", "triton"]).refusal();
    assert!(said.contains("--language leaves out cuda"), "{said}");
    let said = warpsmith(&place, &["run", CUDA, "--language", "cuda,c"]).refusal();
    assert!(said.contains("--language c: kernels there are in cuda or triton"), "{said}");
}

#[test]
fn what_was_applied_is_found_by_the_next_run_though_nobody_names_a_language() {
    let place = place(("takes 40", "takes 20"), &[triton("takes 5")]);
    outcome(run(&place, &[])).ok();
    let first = place.only_run();
    warpsmith(&place, &["apply", &first]).ok();
    place.write(".git/said.jsonl", "");
    let said = outcome(of_any_language(&place, &[])).ok();
    let word =
        "rmsnorm: there is a kernel in cuda and one in triton; both are judged, and the faster one is gone on from";
    assert!(said.contains(word), "{said}");
    // The second run: the kernel in CUDA, then the winner of the first.
    assert_eq!(place.statuses()[3..], ["base", "keep"], "{said}");
    // One language by its name is only that.
    let said = outcome(of_any_language(&place, &["--language", "cuda"])).ok();
    assert!(!said.contains("both are judged"), "{said}");
    assert_eq!(place.statuses()[5..], ["base"]);
}

#[test]
fn a_kernel_that_ships_is_nobodys_winner() {
    let place = place(("takes 40", "takes 20"), &[]);
    let shipped = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(TRITON);
    place.write(TRITON, &std::fs::read_to_string(shipped).unwrap());
    place.commit_all();
    let said = outcome(of_any_language(&place, &[])).ok();
    assert!(!said.contains("both are judged"), "{said}");
    assert_eq!(place.statuses(), ["base"]);
}

#[test]
fn an_answer_in_a_language_that_is_left_out_is_refused() {
    let place = place(("takes 20", "takes 40"), &[triton("takes 5"), cuda("takes 3")]);
    outcome(of_any_language(&place, &["--language", "cuda"])).ok();
    assert_eq!(place.statuses(), ["base", "error", "keep"]);
    assert!(place.read("results.tsv").contains("it is in triton, and this run takes kernels for rmsnorm in cuda only"));
    assert_eq!(at_the_tip(&place), [CUDA, TRITON]);
    assert!(place.read(TRITON).contains("takes 40"));
}
