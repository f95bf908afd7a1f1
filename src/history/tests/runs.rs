use super::*;

#[test]
fn a_run_leaves_a_branch_a_journal_and_a_ledger_and_nothing_else() {
    let place = Place::new();
    let before = (place.git(&["rev-parse", "HEAD"]), place.git(&["status", "--porcelain", "--branch"]));
    let index = fs::read(place.path().join(".git/index")).unwrap();
    let history = short_run(place.path());
    assert_eq!(fs::read(place.path().join(".git/index")).unwrap(), index);
    assert_eq!(place.read(KERNEL), "/* start */\n");
    assert_eq!(place.git(&["rev-parse", "HEAD"]), before.0);
    let after = place.git(&["status", "--porcelain", "--branch"]);
    assert_eq!(after, format!("{}?? results.tsv\n", before.1));
    // Nothing differed from HEAD, so that the branch starts there.
    assert_eq!(place.git(&["rev-parse", &format!("warpsmith/{RUN}~2")]), before.0);
    assert_eq!(history.branch(), "warpsmith/260214a");
    assert_eq!(history.run(), RUN);
    assert!(history.left_out().is_empty());

    let message = place.git(&["log", "-1", "--format=%B", &format!("warpsmith/{RUN}")]);
    let wanted = "rmsnorm: change 3 (1.18x, 2.31x total)\n\nBecause.\n\nLatency-us: 12.50\nExperiment: 3\n\n";
    assert_eq!(message, wanted);
    let trailers =
        place.git(&["log", "-1", "--format=%(trailers:key=Latency-us,valueonly)", &format!("warpsmith/{RUN}")]);
    assert_eq!(trailers.trim(), "12.50");
    assert_eq!(place.git(&["diff", "--name-only", "HEAD", &format!("warpsmith/{RUN}")]), format!("{KERNEL}\n"));

    let journal = place.git(&["log", "--first-parent", "--format=%s", &format!("refs/warpsmith/{RUN}/journal")]);
    let subjects: Vec<_> = journal.lines().take(4).collect();
    let change = |n: u64, kept: &str| format!("#{n} {kept}: rmsnorm: change {n} (1.18x, 2.31x total)");
    assert_eq!(subjects, [change(3, "kept"), change(2, "not kept"), change(1, "kept"), format!("Begin run {RUN}")]);
    let tree = place.git(&["ls-tree", "--name-only", &format!("refs/warpsmith/{RUN}/journal")]);
    assert_eq!(tree, "evaluation.json\nrow.tsv\nstate.json\ntrial.json\n");
    // The one that was not kept stays reachable.
    let reverted = place.git(&["show", &format!("refs/warpsmith/{RUN}/journal~1^2:{KERNEL}")]);
    assert_eq!(reverted, candidate(2));
}

#[test]
fn the_branch_can_be_merged() {
    let place = Place::new();
    drop(short_run(place.path()));
    place.git(&["merge", "-q", &format!("warpsmith/{RUN}")]);
    assert_eq!(place.read(KERNEL), candidate(3));
}

#[test]
fn several_kernels_change_in_one_run_and_one_may_be_new() {
    let place = Place::new();
    let mut history = History::begin(&place.workspace(), RUN, state(0)).unwrap();
    let other = "kernels/cpu/matmul.c";
    assert_eq!(history.tip_text(other).unwrap(), None);
    for (number, path, keep) in [(1, KERNEL, true), (2, other, false), (3, other, true), (4, KERNEL, true)] {
        history.begin_experiment(&Pending { path: path.to_owned(), ..pending(number) }).unwrap();
        assert_eq!(fs::read_to_string(history.candidate_path(path)).unwrap(), candidate(number));
        history.record(Entry { path: path.to_owned(), ..entry(number, keep) }).unwrap();
        assert_eq!(history.candidate_path(other).exists(), number >= 3);
    }
    assert_eq!(history.tip_text(other).unwrap(), Some(candidate(3)));
    assert_eq!(history.tip_text(KERNEL).unwrap(), Some(candidate(4)));
    let newest: Vec<_> = history.entries(Order::NewestFirst).unwrap().map(|e| e.unwrap().number).collect();
    assert_eq!(newest, [4, 3, 2, 1]);
    assert_eq!(history.archive().last_entry(RUN).unwrap().unwrap().number, 4);
}

#[test]
fn runs_follow_each_other_and_share_the_ledger() {
    let place = Place::new();
    let workspace = place.workspace();
    drop(short_run(place.path()));
    let archive = Archive::open(&workspace).unwrap();
    let second = next_run_id(jiff::civil::date(2026, 2, 14), &archive.used_run_ids().unwrap());
    assert_eq!(second, "260214b");
    let mut history = History::begin(&workspace, &second, state(0)).unwrap();
    experiment(&mut history, 1, true).unwrap();
    let runs: Vec<_> = archive.ledger().unwrap().into_iter().map(|row| row.run).collect();
    assert_eq!(runs, [RUN, RUN, RUN, "260214b"]);
    assert_eq!(archive.runs().unwrap(), [RUN, "260214b"]);
    assert_eq!(archive.latest_run().unwrap().as_deref(), Some("260214b"));
    assert!(archive.last_entry("260214b").unwrap().is_some());
    drop(history);

    // Rows whose journal is gone stay, and their id is not given again.
    place.git(&["update-ref", "-d", "refs/warpsmith/260214b/journal"]);
    place.git(&["branch", "-D", "warpsmith/260214b"]);
    drop(History::open(&workspace, RUN).unwrap());
    assert_eq!(archive.ledger().unwrap().len(), 4);
    assert_eq!(next_run_id(jiff::civil::date(2026, 2, 14), &archive.used_run_ids().unwrap()), "260214c");
}

#[test]
fn a_changed_or_lost_ledger_is_written_anew() {
    let place = Place::new();
    let mut history = short_run(place.path());
    let good = place.read("results.tsv");
    fs::remove_file(place.path().join("results.tsv")).unwrap();
    experiment(&mut history, 4, false).unwrap();
    assert!(place.read("results.tsv").starts_with(&good));
    place.write("results.tsv", &good.replace("revert", "keep  "));
    drop(history);
    let (history, pending) = History::open(&place.workspace(), RUN).unwrap();
    assert_eq!(pending, []);
    check(place.path(), &history, &[(1, true), (2, false), (3, true), (4, false)]);
}

#[test]
fn a_night_of_experiments_does_not_leave_a_pack_each() {
    let place = Place::new();
    let mut history = History::begin(&place.workspace(), RUN, state(0)).unwrap();
    let experiments: Vec<_> = (1..=90).map(|number| (number, number % 7 == 0)).collect();
    for (number, keep) in &experiments {
        experiment(&mut history, *number, *keep).unwrap();
    }
    check(place.path(), &history, &experiments);
    let packs = fs::read_dir(place.path().join(".git/objects/pack")).unwrap();
    let packs = packs.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "pack")).count();
    assert!(packs < 20, "{packs}");
}

#[test]
fn an_experiment_out_of_order_is_refused() {
    let place = Place::new();
    let mut history = short_run(place.path());
    for number in [0, 3] {
        assert!(matches!(history.begin_experiment(&pending(number)), Err(HistoryError::OutOfOrder { last: 3, .. })));
    }
    for number in [0, 3, 5] {
        assert!(matches!(history.record(entry(number, true)), Err(HistoryError::OutOfOrder { last: 3, .. })));
    }
    check(place.path(), &history, &[(1, true), (2, false), (3, true)]);
}

#[test]
fn a_kernel_cannot_be_written_where_there_is_something_else() {
    let place = Place::new();
    let mut history = History::begin(&place.workspace(), RUN, state(0)).unwrap();
    for path in ["kernels/cpu", "README.md/x.c"] {
        let error = history.record(Entry { path: path.to_owned(), ..entry(1, true) }).unwrap_err();
        assert!(matches!(error, HistoryError::BadPath { .. }), "{error}");
    }
    for path in ["../x.c", "/x.c", ""] {
        let error = history.record(Entry { path: path.to_owned(), ..entry(1, true) }).unwrap_err();
        assert!(matches!(error, HistoryError::Workspace(_)), "{error}");
    }
    experiment(&mut history, 1, true).unwrap();
}
