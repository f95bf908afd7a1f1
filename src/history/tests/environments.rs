use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::history::{pack, snapshot, store};

#[test]
fn uncommitted_changes_are_in_the_branch_and_stay_uncommitted() {
    let place = Place::new();
    place.write("staged.txt", "staged");
    place.git(&["add", "staged.txt"]);
    place.write("README.md", "Changed.\n");
    place.write("new/untracked.txt", "untracked");
    place.write(".gitignore", "ignored.txt\nbuild/\n");
    place.write("ignored.txt", "ignored");
    place.write("build/x.o", "ignored");
    place.write("tool.sh", "#!/bin/sh\n");
    fs::set_permissions(place.path().join("tool.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("README.md", place.path().join("link")).unwrap();
    place.git(&["add", "-N", "new/untracked.txt"]);
    place.write("gone.txt", "gone");
    place.git(&["add", "gone.txt"]);
    fs::remove_file(place.path().join("gone.txt")).unwrap();
    place.write("results.tsv", "mine\n");
    let index = fs::read(place.path().join(".git/index")).unwrap();
    let status = place.git(&["status", "--porcelain"]);
    drop(short_run(place.path()));
    assert_eq!(fs::read(place.path().join(".git/index")).unwrap(), index);
    assert_eq!(place.git(&["status", "--porcelain"]), status);

    let start = format!("warpsmith/{RUN}~2");
    let listed = place.git(&["ls-tree", "-r", "--format=%(objectmode) %(path)", &start]);
    let wanted = "100644 .gitignore\n100644 README.md\n100644 kernels/cpu/rmsnorm.c\n120000 link\n\
                  100644 new/untracked.txt\n100644 staged.txt\n100755 tool.sh\n100644 warpsmith.toml\n";
    assert_eq!(listed, wanted);
    assert_eq!(place.git(&["show", &format!("{start}:README.md")]), "Changed.\n");
    assert_eq!(place.git(&["show", &format!("{start}:new/untracked.txt")]), "untracked");
    assert_eq!(
        place.git(&["log", "-1", "--format=%s", &start]).trim(),
        "Start run 260214a from the workspace as it is"
    );
    assert_eq!(place.git(&["rev-parse", &format!("{start}^")]), place.git(&["rev-parse", "main"]));
    assert!(place.read("results.tsv").contains("\nmine\n"));
}

#[test]
fn deleted_and_replaced_files_are_so_in_the_branch() {
    let place = Place::new();
    for name in ["folder/a", "folder/b", "file", "sub/deep/x"] {
        place.write(name, name);
    }
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "More"]);
    fs::remove_dir_all(place.path().join("folder")).unwrap();
    place.write("folder", "now a file");
    fs::remove_file(place.path().join("file")).unwrap();
    place.write("file/inner", "now a folder");
    fs::remove_dir_all(place.path().join("sub")).unwrap();
    drop(short_run(place.path()));
    let listed = place.git(&["ls-tree", "-r", "--name-only", &format!("warpsmith/{RUN}")]);
    assert_eq!(listed, "README.md\nfile/inner\nfolder\nkernels/cpu/rmsnorm.c\nwarpsmith.toml\n");
}

#[test]
fn a_tracked_ledger_is_as_in_head_on_the_branch() {
    let place = Place::new();
    place.write("results.tsv", "old\n");
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "Results"]);
    place.write("results.tsv", "newer\n");
    drop(short_run(place.path()));
    assert_eq!(place.git(&["show", &format!("warpsmith/{RUN}:results.tsv")]), "old\n");
    place.git(&["merge", "-q", &format!("warpsmith/{RUN}")]);
    assert!(place.read("results.tsv").contains("change 3"));
}

#[test]
fn a_detached_head_stays_where_it_is() {
    let place = Place::new();
    place.git(&["switch", "-q", "--detach"]);
    let head = place.read(".git/HEAD");
    drop(short_run(place.path()));
    assert_eq!(place.read(".git/HEAD"), head);
}

#[test]
fn an_unborn_head_stays_unborn() {
    let place = Place::new();
    fs::remove_dir_all(place.path().join(".git")).unwrap();
    place.git(&["init", "-q", "-b", "main"]);
    drop(short_run(place.path()));
    assert!(!try_git(place.path(), &["rev-parse", "--verify", "-q", "HEAD"]).0);
    assert_eq!(place.git(&["rev-list", "--count", &format!("warpsmith/{RUN}")]).trim(), "3");
}

#[test]
fn a_workspace_without_files_of_its_own_can_be_run() {
    let place = Place::new();
    fs::remove_dir_all(place.path().join(".git")).unwrap();
    place.git(&["init", "-q", "-b", "main"]);
    place.write(".gitignore", "*\n");
    drop(short_run(place.path()));
    assert_eq!(place.git(&["ls-tree", "-r", "--name-only", &format!("warpsmith/{RUN}")]), format!("{KERNEL}\n"));
}

#[test]
fn submodules_are_carried_over() {
    let inner = Place::new();
    let place = Place::new();
    place.git(&["submodule", "--quiet", "add", inner.path().to_str().unwrap(), "dep"]);
    place.git(&["commit", "-q", "-m", "Dependency"]);
    let was = place.git(&["ls-tree", "HEAD", "dep"]);
    // Changed, moved on and full of new files: HEAD's commit it is.
    fs::write(place.path().join("dep/README.md"), "changed").unwrap();
    git(&place.path().join("dep"), &["commit", "-q", "-a", "-m", "On"]);
    fs::write(place.path().join("dep/new"), "new").unwrap();
    place.write("README.md", "Changed.\n");
    drop(short_run(place.path()));
    assert_eq!(place.git(&["ls-tree", &format!("warpsmith/{RUN}"), "dep"]), was);
    assert_eq!(place.git(&["show", &format!("warpsmith/{RUN}:README.md")]), "Changed.\n");
}

#[test]
fn a_submodule_can_be_the_workspace() {
    let inner = Place::new();
    let place = Place::new();
    place.git(&["submodule", "--quiet", "add", inner.path().to_str().unwrap(), "dep"]);
    drop(short_run(&place.path().join("dep")));
    assert!(!try_git(place.path(), &["rev-parse", "--verify", "-q", &format!("warpsmith/{RUN}")]).0);
}

#[test]
fn a_shallow_clone_is_enough() {
    let origin = Place::new();
    origin.write("README.md", "Second.\n");
    origin.git(&["commit", "-q", "-a", "-m", "Second"]);
    let folder = tempfile::tempdir().unwrap();
    let clone = folder.path().join("clone");
    let url = format!("file://{}", origin.path().display());
    git(folder.path(), &["clone", "-q", "--depth=1", &url, clone.to_str().unwrap()]);
    fs::write(clone.join("README.md"), "Changed.\n").unwrap();
    drop(short_run(&clone));
    assert_eq!(git(&clone, &["rev-list", "--count", &format!("warpsmith/{RUN}")]).trim(), "4");
}

#[test]
fn what_a_sparse_clone_leaves_out_is_carried_over() {
    for (option, index) in
        [("--no-cone", "--no-sparse-index"), ("--cone", "--no-sparse-index"), ("--cone", "--sparse-index")]
    {
        let place = Place::new();
        place.write("elsewhere/big", "big");
        place.write("kernels/note", "note");
        place.git(&["add", "-A"]);
        place.git(&["commit", "-q", "-m", "More"]);
        place.git(&[
            "sparse-checkout",
            "set",
            option,
            index,
            if option == "--cone" { "kernels" } else { "/*\n!/elsewhere" },
        ]);
        if option == "--no-cone" {
            place.git(&["sparse-checkout", "set", option, index, "/*", "!/elsewhere"]);
        }
        assert!(!place.path().join("elsewhere").exists() && place.path().join("kernels/note").exists());
        fs::remove_file(place.path().join("README.md")).unwrap();
        place.write("new.txt", "new");
        drop(short_run(place.path()));
        let listed = place.git(&["ls-tree", "-r", "--name-only", &format!("warpsmith/{RUN}")]);
        assert!(listed.contains("elsewhere/big\n") && listed.contains("new.txt\n"), "{option} {index}: {listed}");
        if index == "--no-sparse-index" {
            assert!(!listed.contains("README.md"), "{option}: {listed}");
        }
    }
}

#[test]
fn a_workspace_in_a_subfolder_changes_only_its_own_part() {
    let place = Place::new();
    fs::remove_file(place.path().join("warpsmith.toml")).unwrap();
    place.write("models/a/warpsmith.toml", "");
    place.write("models/a/config.json", "{}");
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "Move"]);
    place.write("models/a/config.json", "{ }");
    place.write("README.md", "Changed outside.\n");
    place.write("outside.txt", "new outside");
    let model = place.path().join("models/a");
    let history = short_run(&model);
    assert!(history.folder().starts_with(model.canonicalize().unwrap()));
    let branch = format!("warpsmith/{RUN}");
    let changed = place.git(&["diff", "--name-only", "main", &branch]);
    assert_eq!(changed, format!("models/a/config.json\nmodels/a/{KERNEL}\n"));
    assert!(model.join("results.tsv").exists() && !place.path().join("results.tsv").exists());
}

#[test]
fn a_linked_working_tree_can_be_the_workspace() {
    let place = Place::new();
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    place.git(&["worktree", "add", "-q", "-b", "side", tree.to_str().unwrap()]);
    fs::write(tree.join("README.md"), "Side.\n").unwrap();
    let status = git(&tree, &["status", "--porcelain"]);
    drop(short_run(&tree));
    assert_eq!(git(&tree, &["status", "--porcelain"]), format!("{status}?? results.tsv\n"));
    assert_eq!(place.git(&["show", &format!("warpsmith/{RUN}:README.md")]), "Side.\n");
}

#[test]
fn without_a_name_for_the_user_the_commits_are_warpsmiths() {
    let place = Place::new();
    // An empty name is what libgit2 takes for none, whoever runs this test.
    place.git(&["config", "user.name", ""]);
    place.git(&["config", "user.email", ""]);
    drop(short_run(place.path()));
    let authors = place.git(&["log", "-2", "--format=%an <%ae> %cn", &format!("warpsmith/{RUN}")]);
    assert_eq!(authors, "Warpsmith <warpsmith@localhost> Warpsmith\n".repeat(2));
}

#[test]
fn the_users_name_is_on_the_commits_where_there_is_one() {
    let place = Place::new();
    place.git(&["config", "user.name", "Ada"]);
    place.git(&["config", "user.email", "ada@example.com"]);
    drop(short_run(place.path()));
    assert_eq!(place.git(&["log", "-1", "--format=%an <%ae>", &format!("warpsmith/{RUN}")]), "Ada <ada@example.com>\n");
}

#[test]
fn hooks_do_not_run_and_nothing_is_signed() {
    let place = Place::new();
    let marker = place.path().join(".git/hook-ran");
    for hook in
        ["pre-commit", "commit-msg", "post-commit", "reference-transaction", "post-checkout", "post-index-change"]
    {
        let path = place.path().join(".git/hooks").join(hook);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\ntouch {}\nexit 1\n", marker.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (key, value) in [("commit.gpgsign", "true"), ("gpg.program", "/bin/false"), ("core.fsmonitor", "true")] {
        place.git(&["config", key, value]);
    }
    place.write("README.md", "Changed.\n");
    drop(short_run(place.path()));
    assert!(!marker.exists());
}

/// The bytes that a snapshot reads in order to hash them.
fn bytes_read(place: &Place) -> (u64, Vec<PathBuf>) {
    let store = store::Store::of(&place.workspace()).unwrap();
    let (written, plain) = (store.open().unwrap(), store.open().unwrap());
    let head = plain.head().unwrap().peel_to_tree().unwrap();
    let mut batch = pack::Batch::new(&written).unwrap();
    let taken = snapshot::take(&mut batch, &plain, "", Some(&head)).unwrap();
    (taken.read, taken.left_out)
}

/// Much more than all else that a run reads.
const HUGE: u64 = 8 << 20;

#[test]
fn a_huge_tracked_file_is_not_hashed_again() {
    let place = Place::new();
    let huge = place.path().join("model.bin");
    fs::File::create(&huge).unwrap().set_len(HUGE).unwrap();
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "Weights"]);
    place.write("README.md", "Changed.\n");
    // Git's index knows the file to be unchanged only if the index is younger.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    place.git(&["add", "README.md"]);
    let read = bytes_read(&place).0;
    assert!(read < 1000, "{read}");
    // Touched, it is read; changed, it is stored.
    fs::File::open(&huge).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(bytes_read(&place).0, HUGE);
    fs::OpenOptions::new().write(true).open(&huge).unwrap().set_len(HUGE + 1).unwrap();
    drop(short_run(place.path()));
    let size = place.git(&["cat-file", "-s", &format!("warpsmith/{RUN}:model.bin")]);
    assert_eq!(size.trim(), (HUGE + 1).to_string());
}

#[test]
fn a_large_file_that_git_does_not_track_is_left_out_and_named() {
    let place = Place::new();
    fs::File::create(place.path().join("weights.bin")).unwrap().set_len(snapshot::LARGE + 1).unwrap();
    let history = short_run(place.path());
    assert_eq!(history.left_out(), [PathBuf::from("weights.bin")]);
    assert!(!place.git(&["ls-tree", "-r", "--name-only", &format!("warpsmith/{RUN}")]).contains("weights.bin"));
}

#[test]
fn a_file_behind_a_filter_is_carried_over() {
    let place = Place::new();
    place.write(".gitattributes", "*.lfs filter=lfs\n");
    place.write("w.lfs", "pointer\n");
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "Pointer"]);
    place.write("w.lfs", "the real, long content\n");
    drop(short_run(place.path()));
    assert_eq!(place.git(&["show", &format!("warpsmith/{RUN}:w.lfs")]), "pointer\n");
}

#[test]
fn line_ends_are_stored_as_git_would() {
    let place = Place::new();
    place.git(&["config", "core.autocrlf", "input"]);
    place.write("README.md", "one\r\ntwo\r\n");
    drop(short_run(place.path()));
    assert_eq!(place.git(&["show", &format!("warpsmith/{RUN}:README.md")]), "one\ntwo\n");
}

#[test]
fn an_unfinished_merge_is_no_obstacle() {
    let place = Place::new();
    place.git(&["switch", "-q", "-c", "side"]);
    place.write("README.md", "Side.\n");
    place.git(&["commit", "-q", "-a", "-m", "Side"]);
    place.git(&["switch", "-q", "main"]);
    place.write("README.md", "Main.\n");
    place.git(&["commit", "-q", "-a", "-m", "Main"]);
    assert!(!try_git(place.path(), &["merge", "-q", "side"]).0);
    drop(short_run(place.path()));
    assert!(place.git(&["show", &format!("warpsmith/{RUN}:README.md")]).contains("<<<<<<<"));
}
