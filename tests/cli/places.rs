//! Runs in repositories of every kind, and in none.

use crate::common::{CONFIG, Place, RUN, kernels};

#[test]
fn outside_any_repository_a_run_makes_one_that_holds_only_its_own_files() {
    let place = Place::empty();
    // The workspace will be the model directory.
    place.write("config.json", CONFIG);
    place.write("pytorch_model.bin", "weights");
    place.write("kernels/cpu/rmsnorm.c", &kernels::keeps());
    place.write("reference/rmsnorm.toml", &kernels::few_cases("rmsnorm", "rows = 3\ncols = 31"));
    let out = place.warpsmith(&["run", ".", "--only", "rmsnorm", "--seq", "16"]).ok();
    let root = place.root.display();
    assert!(out.starts_with(&format!("made a workspace: {root}/warpsmith.toml\n")), "{out}");
    assert!(out.contains(&format!("made a git repository in {root}; it holds only Warpsmith's own files")), "{out}");
    let run = place.only_run();
    assert_eq!(place.git(&["ls-tree", "-r", "--name-only", "HEAD"]), "warpsmith.toml\n");
    let held = place.git(&["ls-tree", "-r", "--name-only", &format!("warpsmith/{run}")]);
    assert_eq!(held, "kernels/cpu/rmsnorm.c\nreference/rmsnorm.toml\nwarpsmith.toml\n");
    assert_eq!(place.statuses(), ["base", "keep"]);
    // The next one finds everything in place and says nothing about it.
    let again = place.begin(&["run", ".", "--only", "rmsnorm", "--seq", "16"]);
    assert!(!again.contains("made a "), "{again}");
    // The model's own files stay out of sight, Warpsmith's are seen.
    assert_eq!(place.git(&["status", "--porcelain"]), "?? kernels/\n?? reference/\n");
}

#[test]
fn a_workspace_in_a_subfolder_changes_only_what_is_in_it() {
    let mut place = Place::empty();
    let top = place.root.clone();
    place.write("outside.txt", "not the workspace's\n");
    place.root = top.join("deep/workspace");
    place.fill(&kernels::keeps());
    place.root = top;
    place.commit_all();
    place.root = place.root.join("deep/workspace");
    let out = place.run(&[]).ok();
    assert!(out.contains(&format!("workspace   {}", place.root.display())), "{out}");
    let run = place.only_run();
    let changed = place.git(&["diff", "--name-only", "main", &format!("warpsmith/{run}")]);
    assert_eq!(changed, "deep/workspace/kernels/cpu/rmsnorm.c\n");
    assert_eq!(place.git(&["status", "--porcelain"]), "?? results.tsv\n".replace("results", "deep/workspace/results"));
}

#[test]
fn of_two_workspaces_in_a_repository_each_goes_on_with_its_own_runs() {
    let mut place = Place::empty();
    let top = place.root.clone();
    for folder in ["one", "two"] {
        place.root = top.join(folder);
        place.fill(&kernels::keeps());
    }
    place.root.clone_from(&top);
    place.commit_all();
    place.root = top.join("one");
    place.begin(&RUN);
    let run = place.only_run();
    place.root = top.join("two");
    let said = place.warpsmith(&["run", "model", "--resume"]).refusal();
    assert!(said.contains("there is no run to resume here"), "{said}");
    let said = place.warpsmith(&["run", "model", "--resume", &run]).refusal();
    assert!(said.contains(&format!("run {run} is of another workspace of this repository, the one in one")), "{said}");
    place.root = top.join("one");
    place.warpsmith(&["run", "model", "--resume"]).ok();
    assert_eq!(place.statuses(), ["base", "keep"]);
}

#[test]
fn a_detached_head_signing_hooks_and_no_name_do_not_stop_a_run() {
    let place = Place::new(&kernels::keeps());
    place.git(&["switch", "-q", "--detach"]);
    place.git(&["config", "commit.gpgsign", "true"]);
    place.git(&["config", "gpg.program", "/bin/false"]);
    place.git(&["config", "core.hooksPath", ".hooks"]);
    for hook in ["pre-commit", "commit-msg", "post-commit", "reference-transaction", "prepare-commit-msg"] {
        place.write(&format!(".hooks/{hook}"), "#!/bin/sh\nexit 1\n");
        let path = place.root.join(".hooks").join(hook);
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let head = place.git(&["rev-parse", "HEAD"]);
    place.run(&[]).ok();
    place.git(&["config", "core.hooksPath", "/dev/null"]);
    assert_eq!(place.statuses(), ["base", "keep"]);
    assert_eq!(place.git(&["rev-parse", "HEAD"]), head);
    assert!(!place.try_git(&["symbolic-ref", "-q", "HEAD"]).0);
    let run = place.only_run();
    let tip = format!("warpsmith/{run}");
    assert_eq!(place.git(&["log", "-1", "--format=%an <%ae>", &tip]), "Warpsmith <warpsmith@localhost>\n");
}

#[test]
fn before_the_first_commit_and_with_changes_a_run_starts_from_what_is_on_disk() {
    let place = Place::without_repository(&kernels::keeps());
    place.git(&["init", "-q", "-b", "main"]);
    place.begin(&RUN);
    let branch = format!("warpsmith/{}", place.only_run());
    assert_eq!(place.git(&["show", &format!("{branch}:notes.txt")]), "The user's own.\n");
    assert!(!place.try_git(&["rev-parse", "-q", "--verify", "HEAD"]).0);

    let place = Place::new(&kernels::keeps());
    place.write("notes.txt", "Not committed.\n");
    place.write("new.txt", "Not even added.\n");
    place.write("staged.txt", "Added.\n");
    place.git(&["add", "staged.txt"]);
    let status = place.git(&["status", "--porcelain"]);
    place.begin(&RUN);
    let branch = format!("warpsmith/{}", place.only_run());
    for (file, text) in
        [("notes.txt", "Not committed.\n"), ("new.txt", "Not even added.\n"), ("staged.txt", "Added.\n")]
    {
        assert_eq!(place.git(&["show", &format!("{branch}:{file}")]), text);
    }
    assert_eq!(
        place.git(&["log", "--format=%s", "-1", &branch]),
        format!("Start run {} from the workspace as it is\n", &branch[10..])
    );
    assert_eq!(place.git(&["status", "--porcelain"]), format!("{status}?? results.tsv\n"));
}
