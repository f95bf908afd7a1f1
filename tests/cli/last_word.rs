//! The model has the last word: what it does not agree with is taken back, and the run goes on.

use std::os::unix::fs::PermissionsExt;

use crate::common::{Place, kernels};
use crate::consistency::journal;

/// Fewer passes each time it is asked, then nothing.
const SCRIPT: &str = r#"#!/bin/sh
case $(grep -o 'value = [0-9]*' "$WARPSMITH_KERNEL") in
    'value = 200') sed -i 's/value = 200/value = 40/' "$WARPSMITH_KERNEL" ;;
    'value = 40') sed -i 's/value = 40/value = 4/' "$WARPSMITH_KERNEL" ;;
esac
echo 'Technique: tune'
echo 'Description: fewer passes'
"#;

#[test]
fn a_kernel_that_is_wrong_in_the_model_alone_is_taken_back_to_the_newest_that_is_not() {
    let place = Place::new(&kernels::wrong_in_a_model());
    place.write(".git/agent.sh", SCRIPT);
    let script = place.root.join(".git/agent.sh");
    std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let out =
        place.run(&["--speedup", "100", "--max-reverts", "1", "--agent", "command", "--", "./.git/agent.sh"]).ok();
    let statuses = place.statuses();
    assert_eq!(statuses[..3], ["base", "keep", "keep"], "{out}");
    assert_eq!(statuses.last().unwrap(), "withdrawn", "{out}");
    let (run, rows) = (place.only_run(), place.ledger());
    let last = rows.last().unwrap();
    assert_eq!(last.stage, "model");
    assert!(last.description.starts_with("back to #2; with #3 the model's outputs differ: "), "{}", last.description);
    // Nothing is rewritten: the commit that was taken back stays, and another restores the file.
    let tip = place.git(&["show", &format!("warpsmith/{run}:kernels/cpu/rmsnorm.c")]);
    assert!(tip.contains("value = 40,"), "{tip}");
    let commits = place.git(&["log", "--format=%s", &format!("main..warpsmith/{run}")]);
    let subjects: Vec<&str> = commits.lines().collect();
    assert_eq!(subjects.len(), 3, "{commits}");
    assert_eq!(subjects[0], "rmsnorm: back to #2 (withdrawn)");
    assert!(!out.contains("OUTPUTS DIFFER") && out.contains("outputs agree"), "{out}");
    let entries = journal(&place, &run);
    let taken_back = &entries.last().unwrap()["evaluation"];
    assert_eq!(taken_back["verdict"]["experiments"], serde_json::json!([3]));
    // What counts from now on is what stands.
    let kept = &entries[1]["evaluation"];
    assert_eq!(taken_back["vs_user"], kept["vs_user"]);
    let shown = place.warpsmith(&["show", &last.exp.to_string()]).ok();
    assert!(shown.contains("withdrawn"), "{shown}");
    assert!(place.warpsmith(&["report"]).ok().contains(".html"));
}

#[test]
fn where_no_kernel_but_the_first_agrees_the_run_goes_back_to_that() {
    let place = Place::new(&kernels::wrong_in_a_model().replace("choices = [4, 40, 200]", "choices = [4, 200]"));
    let out = place.run(&[]).ok();
    assert_eq!(place.statuses(), ["base", "keep", "withdrawn"], "{out}");
    assert!(place.ledger()[2].description.starts_with("back to #1; with #2 "), "{out}");
    let run = place.only_run();
    assert_eq!(place.git(&["diff", "--stat", "main", &format!("warpsmith/{run}"), "--", "kernels"]), "");
}

/// A place where so many comparisons of the model's outputs that are `asked` cost the worker its life.
fn where_workers_die(asked: &str, times: usize) -> Place {
    let left = ".git/left";
    let event = format!("[[event]]\nop = \"model\"\ntext = \"{asked}\"\nleft = \"{left}\"\ndies = true\n");
    let place = Place::new(&kernels::keeps()).judged_by(&event);
    place.write(left, &"x".repeat(times));
    place
}

#[test]
fn a_worker_that_dies_of_something_else_takes_back_nothing() {
    let place = where_workers_die("compare Outputs", 1);
    let out = place.run(&[]).ok();
    assert_eq!(place.statuses(), ["base", "keep"], "{out}");
    assert!(
        out.contains("the whole model with and without what was kept is asked about again: the worker died"),
        "{out}"
    );
    assert!(out.contains("outputs agree"), "{out}");
}

#[test]
fn where_the_model_does_not_even_run_as_it_was_the_machine_is_to_blame_and_what_was_kept_stays() {
    let place = where_workers_die("compare Outputs", 1000);
    let out = place.run(&[]).ok();
    assert_eq!(place.statuses(), ["base", "keep"], "{out}");
    assert!(
        out.contains("could not be compared with and without what was kept, which stays: the worker died"),
        "{out}"
    );
    assert!(!out.contains("differ"), "{out}");
}

#[test]
fn a_kernel_with_which_the_model_never_runs_is_taken_back() {
    let place = where_workers_die("compare Outputs changed", 1000);
    let out = place.run(&[]).ok();
    assert_eq!(place.statuses(), ["base", "keep", "withdrawn"], "{out}");
    let said = &place.ledger()[2].description;
    assert!(
        said.starts_with("back to #1; with #2 the model does not run, and does without: the worker died"),
        "{said}"
    );
}

#[test]
fn who_edits_the_model_while_a_run_goes_on_changes_nothing_for_it() {
    let place = Place::new(&kernels::keeps());
    let (config, operation) = (place.root.join("model/config.json"), place.root.join("reference/rmsnorm.toml"));
    let script = format!(
        "#!/bin/sh\nsed -i 's/value = 200/value = 4/' \"$WARPSMITH_KERNEL\"\necho '{{' > '{}'\necho 'half' > '{}'\n\
         echo 'Technique: tune'\necho 'Description: fewer passes'\n",
        config.display(),
        operation.display()
    );
    place.write(".git/agent.sh", &script);
    std::fs::set_permissions(place.root.join(".git/agent.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let out = place.run(&["--agent", "command", "--", "./.git/agent.sh"]).ok();
    assert_eq!(place.statuses(), ["base", "keep"], "{out}");
    assert_eq!(
        (place.read("model/config.json"), place.read("reference/rmsnorm.toml")),
        ("{\n".into(), "half\n".into())
    );
    assert!(out.contains("outputs agree") && !out.contains("asked about again"), "{out}");
}

/// A kernel that is 1.05x of what was there by itself, and takes so many times as long in the model.
fn small_gain(in_model: &str) -> Place {
    let cost = "[[cost]]\nop = \"rmsnorm\"\nwhen = \"PASSES == 4\"\ntimes_roofline = \"190\"\n";
    Place::new(&kernels::keeps()).judged_by(&format!("{cost}in_model = {in_model}\n"))
}

#[test]
fn a_kernel_that_makes_the_model_slower_is_left_out_whatever_it_gains_by_itself() {
    let place = small_gain("2.0");
    let out = place.run(&[]).ok();
    assert_eq!(place.statuses(), ["base", "keep"], "{out}");
    assert!(
        out.contains("rmsnorm is left out: it is 1.05x what was there before by itself, and the model is 0."),
        "{out}"
    );
    assert!(out.contains("measured 1.000x"), "{out}");
    let applied = place.warpsmith(&["apply"]).refusal();
    assert!(applied.contains("rmsnorm is left out: it is 1.05x what you have, and the model is 0."), "{applied}");
}

#[test]
fn a_kernel_that_gains_little_stays_where_the_model_is_not_slower_with_it() {
    let place = small_gain("1.0");
    let out = place.run(&[]).ok();
    assert_eq!(place.statuses(), ["base", "keep"], "{out}");
    assert!(!out.contains("left out"), "{out}");
    place.warpsmith(&["apply"]).ok();
}
