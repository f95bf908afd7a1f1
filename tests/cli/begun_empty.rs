//! A target that begins without a kernel: what there is to beat is PyTorch, and the first correct candidate is where the search starts.

use std::fmt::Write as _;
use std::process::Command;

use serde_json::json;

use crate::common::{Outcome, Place, outcome};
use crate::consistency::{check, journal};

const KERNEL: &str = "kernels/cpu/scaled.c";

const TOML: &str = "name = \"scaled\"\nsummary = \"twice x\"\noracle = \"torch\"\nsymbols = []\nflops = \"65536\"\nshrink = []\nprimary = 0\nsmoke = {}\n\
                    sweep = [{}]\nedges = []\nrandom = {}\n\n[[tensors]]\nname = \"x\"\nrole = \"input\"\nshape = [\"65536\"]\ndtype = \"T\"\n\
                    draw = { dist = \"normal\", scale = \"1\", shift = \"0\" }\n\n[[tensors]]\nname = \"out\"\nrole = \"output\"\n\
                    shape = [\"65536\"]\ndtype = \"T\"\n";

const FRONT: &str =
    "/*---\nop = \"scaled\"\ndtypes = [\"f32\"]\narch = [\"native\"]\n---*/\nvoid scaled(const T *x, T *out) {\n";

/// PyTorch takes ten times the roofline; a kernel what its body says.
const SCRIPT: &str = "pytorch = 10.0\nown_devices = true\n\
                      [[fault]]\ntext = \"wrong\"\nstatus = \"reject\"\nstage = \"sweep\"\nwhy = \"off by far\"\n\
                      [[cost]]\ntext = \"takes 40\"\ntimes_roofline = \"40\"\n[[cost]]\ntext = \"takes 20\"\ntimes_roofline = \"20\"\n\
                      [[cost]]\ntext = \"takes 5\"\ntimes_roofline = \"5\"\n[[cost]]\ntext = \"takes 3\"\ntimes_roofline = \"3\"\n";

/// A kernel with this body.
fn kernel(body: &str) -> String {
    format!("{FRONT}    // {body}\n    out[0] = 2 * x[0];\n}}\n")
}

/// A workspace in which `init --problem` has been, and a transcript that proposes kernels with these bodies.
fn place(bodies: &[&str]) -> Place {
    let place = Place::without_repository("").judged_by(SCRIPT);
    place.write("reference/scaled.toml", TOML);
    place.write("reference/scaled.py", "def reference(x):\n    return 2 * x\n");
    place.write(KERNEL, &format!("{FRONT}    /* To be written. */\n}}\n"));
    place.commit_all();
    let lines = bodies.iter().enumerate().fold(String::new(), |mut lines, (at, body)| {
        let proposal = json!({"text": kernel(body), "technique": "write", "description": body, "ticket": at});
        let said = json!({"at": "2026-03-01T07:00:00Z", "said": "proposed", "op": "scaled", "experiment": 1, "proposal": proposal});
        writeln!(lines, "{said}").unwrap();
        lines
    });
    place.write(".git/first.jsonl", &lines);
    place
}

fn run(place: &Place, more: &[&str]) -> Command {
    let rules = ["--speedup", "100", "--roofline", "1000", "--seed", "1"];
    place.command(&[&["run", KERNEL, "--agent", "replay", ".git/first.jsonl"], &rules[..], more].concat())
}

/// What was decided about these proposals, in order.
#[track_caller]
fn decided(bodies: &[&str]) -> (Place, Vec<String>) {
    let place = place(bodies);
    let before = place.untouched();
    outcome(run(&place, &[])).ok();
    check(&place);
    assert_eq!(place.untouched(), before);
    let statuses = place.statuses();
    (place, statuses)
}

/// The kernel at the branch's tip.
fn tip(place: &Place) -> String {
    place.git(&["show", &format!("warpsmith/{}:{KERNEL}", place.only_run())])
}

#[test]
fn the_first_correct_kernel_is_a_keep_where_it_beats_pytorch_and_else_where_the_search_starts() {
    let cases: [(&[&str], &[&str]); 9] = [
        (&["takes 5"], &["keep"]),
        (&["takes 20"], &["start"]),
        (&["wrong"], &["reject"]),
        (&["wrong", "takes 5"], &["reject", "keep"]),
        (&["wrong", "takes 20", "takes 5"], &["reject", "start", "keep"]),
        // What beats only the kernel from which the search started is kept against that, and is no gain for the user.
        (&["takes 40", "takes 20", "takes 5", "takes 3"], &["start", "keep", "keep", "keep"]),
        (&["takes 20", "takes 40", "wrong"], &["start", "revert", "reject"]),
        (&["takes 5", "takes 20", "takes 3"], &["keep", "revert", "keep"]),
        (&["takes 20", "takes 20 // again"], &["start", "revert"]),
    ];
    for (bodies, wanted) in cases {
        let (place, statuses) = decided(bodies);
        assert_eq!(statuses, wanted, "{bodies:?}");
        let last = bodies.iter().zip(wanted).rfind(|(_, status)| ["start", "keep"].contains(*status));
        let there = last.map_or_else(|| place.read(KERNEL), |(body, _)| kernel(body));
        assert_eq!(tip(&place), there, "{bodies:?}");
    }
}

#[test]
fn what_never_beat_pytorch_stays_out_of_the_users_branch() {
    let (place, _) = decided(&["takes 40", "takes 20"]);
    let ledger = place.ledger();
    let against: Vec<f64> = ledger.iter().filter_map(|row| row.vs_user).collect();
    assert!(against.len() == 2 && against.iter().all(|ratio| *ratio < 1.0), "{against:?}");
    assert!(ledger[0].description.contains("vs_user is against eager, PyTorch 2"), "{ledger:?}");
    let said = place.warpsmith(&["apply"]).refusal();
    assert!(said.contains("scaled"), "{said}");

    let (place, _) = decided(&["takes 40", "takes 5"]);
    place.warpsmith(&["apply"]).ok();
    assert_eq!(place.read(KERNEL), kernel("takes 5"));
}

#[test]
fn wrong_ones_count_toward_the_stop_rule_and_a_start_does_not() {
    let (place, statuses) = decided(&["wrong", "wrong 2", "wrong 3", "wrong 4", "wrong 5", "takes 5"]);
    assert_eq!(statuses, ["reject"; 5]);
    let status = place.warpsmith(&["status"]).ok();
    assert!(status.contains("5 reverts in a row"), "{status}");
    let (_, statuses) = decided(&["wrong", "wrong 2", "wrong 3", "wrong 4", "takes 20", "wrong 6", "takes 5"]);
    assert_eq!(statuses, [&["reject"; 4][..], &["start", "reject"]].concat());
}

#[test]
fn a_run_that_was_killed_at_its_first_kernel_goes_on_as_it_would_have() {
    let bodies = ["wrong", "takes 20", "takes 5"];
    let (whole, _) = decided(&bodies);
    for point in ["pending:1", "journal:1", "pending:2", "journal:2", "branch:2", "done:2", "pending:3"] {
        let place = place(&bodies);
        let mut first = run(&place, &[]);
        first.env("WARPSMITH_FAILPOINT", point);
        let killed: Outcome = outcome(first);
        assert_eq!(killed.code, None, "{point}: {killed:?}");
        place.warpsmith(&["run", KERNEL, "--resume"]).ok();
        check(&place);
        assert_eq!(place.statuses(), ["reject", "start", "keep"], "{point}");
        assert_eq!(tip(&place), tip(&whole), "{point}");
    }
}

#[test]
fn candidates_that_are_judged_at_once_with_nothing_to_beat_must_beat_each_other() {
    let place = place(&["takes 20", "takes 40", "takes 5"]);
    let worker = place.worker().unwrap();
    outcome(run(&place, &["--worker", &worker, "--worker", &worker, "--worker", &worker])).ok();
    check(&place);
    assert_eq!(place.statuses(), ["start", "revert", "keep"]);
    assert_eq!(tip(&place), kernel("takes 5"));
}

#[test]
fn one_that_kills_its_judges_is_a_crash_and_the_next_one_is_judged() {
    let place = place(&["takes them down", "takes 5"]);
    let deadly = place.judged_by(&format!("{SCRIPT}[[event]]\ntext = \"takes them down\"\ndies = true\n"));
    let out = outcome(run(&deadly, &[])).ok();
    assert_eq!(deadly.statuses(), ["crash", "keep"], "{out}");
    check(&deadly);
    let said = &deadly.ledger()[0].description;
    assert!(said.contains("it took the judge down with it, 3 times"), "{said}");
    assert_eq!(tip(&deadly), kernel("takes 5"));
}

#[test]
fn the_tuner_says_that_there_is_nothing_to_tune_and_who_could_write_it() {
    let place = place(&[]);
    let said = place.warpsmith(&["run", KERNEL]).ok();
    assert!(said.contains("the tuner only tunes what is written; `--agent openai`"), "{said}");
    assert!(place.ledger().is_empty(), "{said}");
}

#[test]
fn an_agent_is_told_that_it_writes_the_first_kernel_and_what_there_is_to_beat() {
    let place = place(&["wrong"]);
    outcome(run(&place, &[])).ok();
    let asked = place.warpsmith(&["prompt"]).ok();
    for part in [
        "There is no kernel yet",
        "/* To be written. */",
        "return 2 * x",
        "void scaled(const T *x, T *out);",
        "Against what the user has today (PyTorch)",
        "off by far",
    ] {
        assert!(asked.contains(part), "`{part}` is missing in\n{asked}");
    }
    let (place, _) = decided(&["takes 20"]);
    let asked = place.warpsmith(&["prompt"]).ok();
    assert!(asked.contains("takes 20") && !asked.contains("There is no kernel yet"), "{asked}");
}

#[test]
fn a_program_writes_the_first_kernel_of_a_file_with_an_empty_body() {
    let place = place(&[]);
    place.write("good.c", &kernel("takes 5"));
    let good = place.root.join("good.c");
    let copy = format!(
        "if grep -q 'To be written' {KERNEL}; then cp '{}' {KERNEL}; fi; echo Description: a first one",
        good.display()
    );
    let said =
        place.warpsmith(&["run", KERNEL, "--agent", "command", "--max-reverts", "1", "--", "sh", "-c", &copy]).ok();
    assert_eq!(place.statuses(), ["keep"], "{said}");
    let entry = &journal(&place, &place.only_run())[0];
    assert_eq!(entry["trial"]["proposal"]["description"], "a first one");
    assert_eq!(tip(&place), kernel("takes 5"));
}
