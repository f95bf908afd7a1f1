use super::*;

/// The sentence, which is one and has something to do in it.
fn sentence(error: &HistoryError, words: &[&str]) {
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_branch_named_warpsmith_is_in_the_way() {
    let place = Place::new();
    place.git(&["branch", "warpsmith"]);
    let error = History::begin(&place.workspace(), RUN, state(0)).unwrap_err();
    sentence(&error, &["a branch is named `warpsmith`", "git branch -m warpsmith"]);
    place.git(&["pack-refs", "--all"]);
    assert!(matches!(History::begin(&place.workspace(), RUN, state(0)), Err(HistoryError::NameTaken { .. })));
    place.git(&["branch", "-m", "warpsmith", "other"]);
    History::begin(&place.workspace(), RUN, state(0)).unwrap();
}

#[test]
fn a_run_branch_that_is_checked_out_is_not_moved() {
    let place = Place::new();
    let mut history = short_run(place.path());
    let branch = history.branch().to_owned();
    fs::remove_file(place.path().join("results.tsv")).unwrap();
    place.git(&["switch", "-q", &branch]);
    history.begin_experiment(&pending(4)).unwrap();
    let error = history.record(entry(4, true)).unwrap_err();
    sentence(&error, &[&branch, "checked out", "git switch --detach"]);
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    drop(history);
    assert!(matches!(History::open(&place.workspace(), RUN), Err(HistoryError::CheckedOut { .. })));
    // What was judged is in the journal, and moves the branch as soon as it may.
    place.git(&["switch", "-q", "main"]);
    let (history, redo) = History::open(&place.workspace(), RUN).unwrap();
    assert_eq!(redo, []);
    check(place.path(), &history, &[(1, true), (2, false), (3, true), (4, true)]);
}

#[test]
fn a_run_branch_in_another_working_tree_is_not_moved() {
    let place = Place::new();
    drop(short_run(place.path()));
    let other = tempfile::tempdir().unwrap();
    let tree = other.path().join("tree");
    place.git(&["worktree", "add", "-q", tree.to_str().unwrap(), &format!("warpsmith/{RUN}")]);
    let error = History::open(&place.workspace(), RUN).unwrap_err();
    sentence(&error, &["checked out in", tree.to_str().unwrap()]);
}

#[test]
fn a_second_run_in_the_same_repository_waits() {
    let place = Place::new();
    let history = short_run(place.path());
    let other = tempfile::tempdir().unwrap();
    let tree = other.path().join("tree");
    place.git(&["worktree", "add", "-q", "--detach", tree.to_str().unwrap()]);
    for workspace in [place.workspace(), workspace(&tree)] {
        let error = History::begin(&workspace, "260214b", state(0)).unwrap_err();
        sentence(&error, &["run 260214a (process ", "is using this repository"]);
    }
    // Looking is free.
    assert_eq!(Archive::open(&place.workspace()).unwrap().runs().unwrap(), [RUN]);
    drop(history);
    History::begin(&workspace(&tree), "260214b", state(0)).unwrap();
}

#[test]
fn a_run_that_exists_is_not_begun_and_one_that_does_not_is_not_opened() {
    let place = Place::new();
    drop(short_run(place.path()));
    sentence(&History::begin(&place.workspace(), RUN, state(0)).unwrap_err(), &["--resume 260214a"]);
    sentence(&History::open(&place.workspace(), "260214z").unwrap_err(), &["no run 260214z", "warpsmith log"]);
    sentence(&History::open(&place.workspace(), "../x").unwrap_err(), &["not a run id"]);
    let archive = Archive::open(&place.workspace()).unwrap();
    assert!(matches!(archive.entries("260214z", Order::NewestFirst), Err(HistoryError::NoRun { .. })));
    place.git(&["branch", "warpsmith/260214c"]);
    let taken = History::begin(&place.workspace(), "260214c", state(0)).unwrap_err();
    assert!(matches!(taken, HistoryError::RunExists { .. }));
}

#[test]
fn a_branch_that_someone_moved_is_not_moved_back() {
    let place = Place::new();
    let mut history = short_run(place.path());
    let name = format!("refs/heads/warpsmith/{RUN}");
    let tip = history.tip();
    place.git(&["update-ref", &name, "main"]);
    sentence(&experiment(&mut history, 4, true).unwrap_err(), &[&name, "moved", "git update-ref"]);
    drop(history);
    let error = History::open(&place.workspace(), RUN).unwrap_err();
    sentence(&error, &[&name, "moved", "git update-ref"]);
    place.git(&["update-ref", &name, &tip]);
    let (history, _) = History::open(&place.workspace(), RUN).unwrap();
    check(place.path(), &history, &[(1, true), (2, false), (3, true), (4, true)]);
}

#[test]
fn a_deleted_branch_comes_back_from_the_journal() {
    let place = Place::new();
    drop(short_run(place.path()));
    place.git(&["branch", "-q", "-D", &format!("warpsmith/{RUN}")]);
    let (history, _) = History::open(&place.workspace(), RUN).unwrap();
    check(place.path(), &history, &[(1, true), (2, false), (3, true)]);
}

#[test]
fn a_journal_of_someone_else_is_called_damaged() {
    let place = Place::new();
    place.git(&["update-ref", &format!("refs/warpsmith/{RUN}/journal"), "main"]);
    let error = History::open(&place.workspace(), RUN).unwrap_err();
    sentence(&error, &["journal of run 260214a is damaged", "no experiment's number"]);
}

#[test]
fn repositories_that_cannot_hold_a_run_are_refused_in_a_sentence() {
    for (init, word) in [
        (Some(vec!["init", "-q", "--object-format=sha256"]), "sha256"),
        (Some(vec!["init", "-q", "--ref-format=reftable"]), "reftable"),
        (None, "git init"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("warpsmith.toml"), "").unwrap();
        if let Some(init) = init {
            git(folder.path(), &init);
        }
        sentence(&History::begin(&workspace(folder.path()), RUN, state(0)).unwrap_err(), &[word]);
    }
}
