//! What cannot be done is refused in a sentence that says what to do, with exit code 2.

use std::time::Duration;

use crate::common::processes::Session;
use crate::common::{CONFIG, Outcome, Place, RUN, kernels, outcome};
use crate::run::FINISHED;

/// The refusal is one sentence with all of these in it.
#[track_caller]
fn says(outcome: Outcome, parts: &[&str]) {
    let said = outcome.refusal();
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    for part in parts {
        assert!(said.contains(part), "`{part}` is missing in\n{said}");
    }
}

#[test]
fn a_repository_that_cannot_be_used_is_refused_before_anything_is_measured() {
    for (option, parts) in [
        ("--ref-format=reftable", ["reftable", "git refs migrate --ref-format=files"]),
        ("--object-format=sha256", ["sha256", "git init --object-format=sha1"]),
    ] {
        let place = Place::without_repository(&kernels::keeps());
        place.git(&["init", "-q", option]);
        let refused = place.run(&[]);
        assert!(!refused.out.contains("profiling"), "{refused:?}");
        says(refused, &parts);
        assert!(!place.root.join("results.tsv").exists());
    }
}

#[test]
fn a_branch_named_warpsmith_is_in_the_way() {
    let place = Place::new(&kernels::keeps());
    place.git(&["branch", "warpsmith"]);
    let refused = place.run(&[]);
    assert!(!refused.out.contains("one pass"), "measured for nothing: {refused:?}");
    says(refused, &["a branch is named `warpsmith`", "git branch -m warpsmith NEW-NAME"]);
}

#[test]
fn a_run_whose_branch_is_checked_out_elsewhere_is_not_resumed() {
    let place = Place::new(&kernels::keeps());
    place.begin(&RUN);
    let run = place.only_run();
    let elsewhere = place.root.join(".elsewhere");
    place.git(&["worktree", "add", "-q", elsewhere.to_str().unwrap(), &format!("warpsmith/{run}")]);
    says(place.warpsmith(&["run", "model", "--resume"]), &["is checked out in", ".elsewhere", "git switch --detach"]);
    // Git remembers a folder that is gone.
    std::fs::remove_dir_all(&elsewhere).unwrap();
    let resumed = place.warpsmith(&["run", "model", "--resume", "--budget", "1s"]);
    assert!(!resumed.out.contains("is checked out in"), "{resumed:?}");
    assert!(resumed.code == Some(0), "{resumed:?}");
}

#[test]
fn a_run_is_resumed_on_its_own_model_only() {
    let place = Place::new(&kernels::keeps());
    place.begin(&RUN);
    let run = place.only_run();
    std::fs::create_dir(place.root.join("other")).unwrap();
    std::fs::copy(place.root.join("model/config.json"), place.root.join("other/config.json")).unwrap();
    let right = format!("`warpsmith run model --resume {run}`");
    says(place.warpsmith(&["run", "other", "--resume"]), &["is on model, not on other", &right, "--resume RUN"]);
    says(place.warpsmith(&["run", "other", "--resume", &run]), &["is on model, not on other", &right]);
}

#[test]
fn a_second_run_in_the_same_repository_is_told_of_the_first() {
    // The first one is not going to end by itself.
    let place = Place::new(&kernels::keeps()).judged_by("[[event]]\nop = \"rmsnorm\"\nuntil = \".warpsmith/go\"\n");
    let mut first = Session::start(place.command(&RUN));
    assert!(first.says("follow ", Duration::from_secs(100)), "{}", first.output());
    let run = place.only_run();
    let refused = place.run(&[]);
    assert!(!refused.out.contains("one pass"), "measured for nothing: {refused:?}");
    says(refused, &[&format!("run {run} (process {}", first.id()), "is using this repository", "wait until it ends"]);
    says(place.warpsmith(&["run", "model", "--resume"]), &["is using this repository"]);
    first.signal("KILL");
    first.nothing_left();
}

#[test]
fn a_model_that_is_not_understood_is_refused_by_its_key() {
    let place = Place::new(&kernels::keeps()).really_judged();
    let change = |from: &str, to: &str| {
        assert!(CONFIG.contains(from));
        CONFIG.replace(from, to)
    };
    for (config, parts) in [
        (change("LlamaForCausalLM", "FalconForCausalLM"), ["FalconForCausalLM", "BertModel"]),
        (change("\"hidden_size\": 64", "\"hidden_size\": 0"), ["hidden_size", "0"]),
        (change("\"hidden_size\": 64", "\"hidden_size\": -4"), ["hidden_size", "-4"]),
        (change("\"vocab_size\": 128", "\"vocab_size\": 1e300"), ["vocab_size", "1e"]),
        (change("\"vocab_size\": 128,", ""), ["vocab_size", "number of tokens"]),
        (
            change("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 18446744073709551616"),
            ["num_hidden_layers", "from 1 to 4096"],
        ),
        (change("\"num_key_value_heads\": 1", "\"num_key_value_heads\": 3"), ["num_key_value_heads", "divisor"]),
        ("{".to_owned(), ["config.json", "JSON"]),
        (String::new(), ["config.json", "JSON"]),
    ] {
        place.write("model/config.json", &config);
        says(place.run(&[]), &parts);
        says(place.warpsmith(&["profile", "model"]), &parts);
    }
    // Sizes that are possible, but not here.
    place.write("model/config.json", &change("\"hidden_size\": 64", "\"hidden_size\": 1048576"));
    says(place.run(&[]), &["GiB", "free"]);
    std::fs::remove_file(place.root.join("model/config.json")).unwrap();
    says(place.run(&[]), &["config.json"]);
    says(place.warpsmith(&["run", "nowhere"]), &["nowhere", "config.json"]);
    assert!(!place.root.join("results.tsv").exists());
}

#[test]
fn without_a_c_compiler_the_first_sentence_says_so() {
    let place = Place::new(&kernels::keeps()).really_judged();
    let mut command = place.command(&["run", "model"]);
    command.env("CC", "/nonexistent");
    let said = outcome(command);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("/nonexistent") && said.err.contains("set CC"), "{said:?}");
    let mut doctor = place.command(&["doctor"]);
    doctor.env("CC", "/nonexistent");
    let said = outcome(doctor);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.out.contains("/nonexistent"), "{said:?}");
}

#[test]
fn a_name_or_number_that_means_nothing_is_refused_before_anything_is_measured() {
    let place = &FINISHED.place;
    let run = FINISHED.run.as_str();
    let quick = |arguments: &[&str], parts: &[&str]| {
        let refused = place.warpsmith(&[&["run", "model"], arguments].concat());
        assert!(!refused.out.contains("one pass"), "{arguments:?} measured for nothing");
        says(refused, parts);
    };
    quick(&["--only", "matmull"], &["`matmull` is no operation of this model", "fused_mlp"]);
    quick(&["--skip", "rmsnorm,conv2d"], &["`conv2d` is no operation of this model", "rmsnorm"]);
    quick(&["--until", "25:00"], &["25:00", "--until 07:00"]);
    quick(&["--resume", run], &["has ended: no targets left", "leave --resume out"]);
    quick(&["--resume", "991231z"], &["there is no run 991231z", "warpsmith log"]);
    quick(&["--resume", "../../x"], &["`../../x` is not a run id", "260214a"]);
    says(place.warpsmith(&["show", "999"]), &["has no experiment 999", "warpsmith log"]);
    says(place.warpsmith(&["status", "--run", "991231z"]), &["there is no run 991231z"]);
    says(place.warpsmith(&["bench", "nowhere.c"]), &["nowhere.c cannot be read"]);
    says(place.warpsmith(&["ops", "conv2d"]), &["conv2d"]);
    says(place.warpsmith(&["bench", "kernels/cpu/rmsnorm.c", "--shape", "lines=3"]), &["lines"]);
    // What the command line's own reader refuses has a usage line below.
    for arguments in [
        ["run", "model", "--budget", "soon"],
        ["run", "model", "--max-reverts", "0"],
        ["run", "model", "--roofline", "0"],
        ["run", "model", "--roofline", "NaN"],
        ["run", "model", "--speedup", "-1"],
        ["run", "model", "--batch", "0"],
        ["bench", "kernels/cpu/rmsnorm.c", "--shape", "rows"],
        ["bench", "kernels/cpu/rmsnorm.c", "--self-test", "0"],
    ] {
        let refused = place.warpsmith(&arguments);
        assert_eq!(refused.code, Some(2), "{arguments:?} {refused:?}");
        assert!(refused.err.contains(arguments[2]) && refused.err.contains("--help"), "{refused:?}");
    }
}

#[test]
fn where_there_is_no_workspace_or_no_run_each_command_says_how_to_get_one() {
    let nothing = Place::empty();
    for command in [["status"].as_slice(), &["log"], &["show", "1"]] {
        says(nothing.warpsmith(command), &["belongs to no workspace", "warpsmith run MODEL_DIR"]);
    }
    let place = Place::new(&kernels::keeps());
    for command in [["status"].as_slice(), &["log"], &["show", "1"]] {
        says(place.warpsmith(command), &["there is no run here yet", "warpsmith run MODEL_DIR"]);
    }
    says(place.warpsmith(&["verify", "model"]), &["there is no run here yet", "warpsmith run"]);
    says(place.warpsmith(&["run", "model", "--resume"]), &["there is no run to resume here", "leave --resume out"]);
    nothing.write("config.json", CONFIG);
    says(nothing.warpsmith(&["verify", "."]), &["belongs to no workspace", "warpsmith run"]);
}

#[test]
fn a_limit_of_memory_that_is_no_number_of_bytes_is_refused_and_not_taken_for_none() {
    let place = Place::new(&kernels::keeps());
    let mut command = place.command(&["doctor"]);
    command.env("WARPSMITH_MEMORY", "16 GB");
    says(outcome(command), &["WARPSMITH_MEMORY is `16 GB`", "write it as 16G"]);
}
