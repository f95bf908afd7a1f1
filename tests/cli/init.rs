//! A directory becomes a workspace; and the completions of a shell.

use crate::common::{CONFIG, Place};

#[test]
fn a_folder_becomes_a_workspace_in_a_repository_of_its_own() {
    let place = Place::empty();
    place.write("weights.safetensors", "large");
    let out = place.warpsmith(&["init"]).ok();
    let root = place.root.display();
    assert!(out.contains(&format!("made a workspace: {root}/warpsmith.toml\n")), "{out}");
    assert!(out.contains(&format!("made a git repository in {root}")), "{out}");
    assert!(out.contains("next         warpsmith run MODEL_DIR"), "{out}");
    let settings = place.read("warpsmith.toml");
    let keys = settings.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '['])).count();
    assert!(keys == 0 && settings.contains("# budget = ") && settings.contains("# notify = "), "{settings}");
    // Only what Warpsmith made is in the repository, and all of it is committed.
    assert!(!place.git(&["ls-files"]).contains("weights"));
    assert_eq!(place.git(&["status", "--porcelain"]), "");

    let (head, before) = (place.git(&["rev-parse", "HEAD"]), settings);
    let again = place.warpsmith(&["init"]).ok();
    assert!(again.contains("is a workspace already, and nothing is missing"), "{again}");
    assert_eq!((place.git(&["rev-parse", "HEAD"]), place.read("warpsmith.toml")), (head, before));
}

#[test]
fn every_setting_that_is_shown_can_be_switched_on() {
    let place = Place::empty();
    place.warpsmith(&["init"]).ok();
    let mut on = String::new();
    for line in place.read("warpsmith.toml").lines() {
        let setting = line.strip_prefix("# ").filter(|rest| rest.split(' ').nth(1) == Some("="));
        on.push_str(setting.unwrap_or(line));
        on.push('\n');
    }
    assert!(on.matches(" = ").count() > 8, "{on}");
    let settings: toml::Table = on.parse().unwrap_or_else(|error| panic!("{error}\n{on}"));
    assert!(settings["run"]["notify"].as_str().unwrap().contains("$WARPSMITH_SUMMARY"), "{on}");
    place.write("warpsmith.toml", &on);
    // Read again, and every key is known.
    assert!(place.warpsmith(&["init"]).ok().contains("already"));
}

#[test]
fn with_copies_the_kernels_and_operations_are_there_and_nothing_of_the_users_is_replaced() {
    let place = Place::empty();
    place.write("mine/kernels/cpu/rmsnorm.c", "the user's own");
    place.write("mine/config.json", CONFIG);
    let out = place.warpsmith(&["init", "mine", "--copy"]).ok();
    assert!(out.contains("copied ") && out.contains("/mine/kernels/cpu") && out.contains("/mine/reference"), "{out}");
    assert!(out.contains("next         warpsmith run mine"), "{out}");
    assert_eq!(place.read("mine/kernels/cpu/rmsnorm.c"), "the user's own");
    let shipped = |name: &str| std::fs::read_to_string(format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    for name in ["kernels/cpu/matmul.c", "kernels/cuda/matmul.cu", "reference/rmsnorm.toml", "reference/rmsnorm.h"] {
        assert_eq!(place.read(&format!("mine/{name}")), shipped(name), "{name}");
    }
    assert_eq!(place.git(&["-C", "mine", "status", "--porcelain"]), "");
    assert!(place.warpsmith(&["init", "mine", "--copy"]).ok().contains("nothing is missing"));
}

#[test]
fn in_the_users_repository_files_are_written_and_nothing_is_committed() {
    let place = Place::empty();
    place.git(&["init", "-q"]);
    let out = place.warpsmith(&["init", "new/model"]).ok();
    assert!(!out.contains("git repository"), "{out}");
    let status = place.git(&["status", "--porcelain", "--untracked-files=all"]);
    assert!(status.contains("?? new/model/warpsmith.toml\n"), "{status}");
    assert_eq!(place.try_git(&["rev-parse", "-q", "--verify", "HEAD"]).1, "");
}

#[test]
fn a_folder_of_another_workspace_and_what_cannot_be_made_are_refused() {
    let place = Place::empty();
    place.write("warpsmith.toml", "");
    let said = place.warpsmith(&["init", "models/new"]).refusal();
    assert!(said.contains("is in the workspace") && said.contains("an empty warpsmith.toml"), "{said}");
    assert!(!place.root.join("models").exists());
    // As it says.
    place.write("models/new/warpsmith.toml", "");
    place.warpsmith(&["init", "models/new"]).ok();

    let place = Place::empty();
    place.write("file", "");
    assert!(place.warpsmith(&["init", "file"]).refusal().contains("file"));
    assert!(place.warpsmith(&["init", "file/below"]).refusal().contains("cannot be made"));
    place.git(&["init", "-q", "--bare", "bare"]);
    assert!(place.warpsmith(&["init", "bare"]).refusal().contains("bare git repository"));
    assert!(!place.root.join("bare/warpsmith.toml").exists());
}

#[test]
fn each_shell_has_its_completions_with_every_command() {
    let nowhere = Place::empty();
    for shell in ["bash", "zsh", "fish"] {
        let script = nowhere.warpsmith(&["completions", shell]).ok();
        for word in ["verify", "apply", "prune", "init", "diagnose", "per-device", "bf16"] {
            assert!(script.contains(word), "{word} for {shell}");
        }
    }
    // The shell itself has no complaint about it.
    let script = nowhere.warpsmith(&["completions", "bash"]).ok();
    nowhere.write("script", &script);
    let mut bash = std::process::Command::new("bash");
    bash.args(["-n", "script"]).current_dir(&nowhere.root);
    let checked = crate::common::outcome(bash);
    assert_eq!((checked.code, checked.err.as_str()), (Some(0), ""));
    assert_eq!(nowhere.warpsmith(&["completions", "cmd"]).code, Some(2));
}
