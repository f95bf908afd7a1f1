use super::*;

/// A repository with two workspaces that have the same files.
fn two() -> (Place, Workspace, Workspace) {
    let place = Place::new();
    for folder in ["a", "deep/b"] {
        place.write(&format!("{folder}/warpsmith.toml"), "");
        place.write(&format!("{folder}/{KERNEL}"), "/* start */\n");
    }
    place.git(&["add", "-A"]);
    place.git(&["commit", "-q", "-m", "Two workspaces"]);
    let at = |folder: &str| workspace(&place.path().join(folder));
    let (a, b) = (at("a"), at("deep/b"));
    (place, a, b)
}

fn latest(workspace: &Workspace) -> Option<String> {
    Archive::open(workspace).unwrap().latest_run().unwrap()
}

#[test]
fn a_run_goes_on_in_the_workspace_where_it_was_begun_and_in_no_other_of_the_repository() {
    let (place, a, b) = two();
    drop(History::begin(&b, RUN, state(0)).unwrap());
    assert_eq!((latest(&a), latest(&b)), (None, Some(RUN.to_owned())));
    for other in [a.clone(), place.workspace()] {
        let said = History::open(&other, RUN).unwrap_err().to_string();
        assert!(said.contains("another workspace") && said.contains("the one in deep/b;"), "{said}");
    }
    let (mut history, _) = History::open(&b, RUN).unwrap();
    experiment(&mut history, 1, true).unwrap();
    drop(history);
    // A later run of another workspace is not the latest here.
    drop(History::begin(&a, "260214b", state(0)).unwrap());
    drop(History::begin(&place.workspace(), "260214c", state(0)).unwrap());
    assert_eq!((latest(&a), latest(&b)), (Some("260214b".to_owned()), Some(RUN.to_owned())));
    let said = History::open(&b, "260214c").unwrap_err().to_string();
    assert!(said.contains("the one at its root"), "{said}");
    assert_eq!(History::open(&b, RUN).unwrap().0.tip_text(KERNEL).unwrap(), Some(candidate(1)));
}

#[test]
fn a_run_that_does_not_say_where_it_was_begun_belongs_to_the_workspace_whose_files_it_changes() {
    let (place, a, b) = two();
    drop(History::begin(&a, RUN, state(0)).unwrap());
    // As runs began before their workspace was written down.
    let journal = format!("refs/warpsmith/{RUN}/journal");
    let listed = place.git(&["ls-tree", &journal]);
    let old: String = listed.lines().filter(|line| line.ends_with("state.json")).collect();
    assert_ne!(old.trim(), listed.trim());
    place.write("listing", &format!("{old}\n"));
    let tree = Command::new("git")
        .args(["mktree"])
        .current_dir(place.path())
        .stdin(fs::File::open(place.path().join("listing")).unwrap())
        .output()
        .unwrap();
    let tree = String::from_utf8(tree.stdout).unwrap();
    let (message, start) = (place.git(&["log", "-1", "--format=%B", &journal]), format!("warpsmith/{RUN}"));
    let first = place.git(&["commit-tree", tree.trim(), "-p", &start, "-m", message.trim()]);
    place.git(&["update-ref", &journal, first.trim()]);

    // It has changed nothing yet, and either may be where it was begun.
    assert_eq!((latest(&a).is_some(), latest(&b).is_some()), (true, true));
    let (mut history, _) = History::open(&a, RUN).unwrap();
    experiment(&mut history, 1, false).unwrap();
    drop(history);
    assert_eq!((latest(&a), latest(&b)), (Some(RUN.to_owned()), None));
    let said = History::open(&b, RUN).unwrap_err().to_string();
    assert!(said.contains("another workspace of this repository;"), "{said}");
    History::open(&a, RUN).unwrap();
}
