use super::*;
use crate::history::failpoint;

/// Ends the history as SIGKILL would at `step` of experiment 3, opens it again, does what it says is pending, goes on
/// with one more, and checks that everything is as if nothing had happened.
fn killed_at(step: &'static str, keep: bool) {
    let place = Place::new();
    let workspace = place.workspace();
    let mut history = History::begin(&workspace, RUN, state(0)).unwrap();
    experiment(&mut history, 1, true).unwrap();
    experiment(&mut history, 2, false).unwrap();
    failpoint::arm(step, 3);
    let end = experiment(&mut history, 3, keep);
    assert!(matches!(end, Err(HistoryError::Killed(at)) if at == step), "{step}: {end:?}");
    drop(history);

    let (mut history, redo) = History::open(&workspace, RUN).unwrap();
    let committed = !matches!(step, "pending" | "objects");
    assert_eq!(redo, Vec::from_iter((!committed).then(|| pending(3))), "{step}");
    if !redo.is_empty() {
        assert_eq!(fs::read_to_string(history.candidate_path(KERNEL)).unwrap(), candidate(3));
        assert_eq!((history.state(), history.next_number()), (&state(2), 3));
        history.record(entry(3, keep)).unwrap();
    }
    check(place.path(), &history, &[(1, true), (2, false), (3, keep)]);
    experiment(&mut history, 4, true).unwrap();
    check(place.path(), &history, &[(1, true), (2, false), (3, keep), (4, true)]);
    assert_eq!(
        place.git(&["rev-list", "--count", &format!("main..warpsmith/{RUN}")]).trim(),
        if keep { "3" } else { "2" }
    );
}

#[test]
fn killed_at_any_step_of_a_kept_experiment_it_resumes_the_same() {
    for step in ["pending", "objects", "journal", "branch", "ledger", "restored", "done"] {
        killed_at(step, true);
    }
}

#[test]
fn killed_at_any_step_of_an_experiment_that_is_not_kept_it_resumes_the_same() {
    for step in ["pending", "objects", "journal", "ledger", "restored", "done"] {
        killed_at(step, false);
    }
}

#[test]
fn every_step_has_its_test() {
    let tested = [
        "begin-objects",
        "begin-journal",
        "begin-branch",
        "pending",
        "objects",
        "journal",
        "branch",
        "ledger",
        "restored",
        "done",
    ];
    assert_eq!(FAILPOINTS, tested);
}

#[test]
fn killed_while_evaluating_the_same_is_done_again() {
    let place = Place::new();
    let history = History::begin(&place.workspace(), RUN, state(0)).unwrap();
    history.begin_experiment(&pending(1)).unwrap();
    drop(history);
    for _ in 0..2 {
        let (history, redo) = History::open(&place.workspace(), RUN).unwrap();
        assert_eq!(redo, [pending(1)]);
        drop(history);
    }
}

#[test]
fn killed_at_its_start_a_run_resumes_or_was_never_there() {
    for step in ["begin-objects", "begin-journal", "begin-branch"] {
        let place = Place::new();
        place.write("new.txt", "new");
        failpoint::arm(step, 0);
        let end = History::begin(&place.workspace(), RUN, state(0));
        assert!(matches!(end, Err(HistoryError::Killed(at)) if at == step), "{step}");
        let mut history = if step == "begin-objects" {
            let error = History::open(&place.workspace(), RUN).unwrap_err();
            assert!(matches!(error, HistoryError::NoRun { .. }), "{error}");
            History::begin(&place.workspace(), RUN, state(0)).unwrap()
        } else {
            let (history, redo) = History::open(&place.workspace(), RUN).unwrap();
            assert_eq!(redo, []);
            history
        };
        check(place.path(), &history, &[]);
        experiment(&mut history, 1, true).unwrap();
        check(place.path(), &history, &[(1, true)]);
        assert_eq!(place.git(&["show", &format!("warpsmith/{RUN}:new.txt")]), "new");
    }
}

#[test]
fn a_lock_left_on_a_ref_by_a_kill_does_not_stop_the_resume() {
    let place = Place::new();
    let mut history = short_run(place.path());
    for name in [format!("refs/warpsmith/{RUN}/journal"), format!("refs/heads/warpsmith/{RUN}")] {
        fs::write(place.path().join(format!(".git/{name}.lock")), "").unwrap();
    }
    experiment(&mut history, 4, true).unwrap();
    check(place.path(), &history, &[(1, true), (2, false), (3, true), (4, true)]);
}

#[test]
fn a_row_torn_by_a_power_cut_is_mended() {
    let place = Place::new();
    drop(short_run(place.path()));
    let good = place.read("results.tsv");
    for lost in [1, 30, 90] {
        place.write("results.tsv", &good[..good.len() - lost]);
        drop(History::open(&place.workspace(), RUN).unwrap());
        assert_eq!(place.read("results.tsv"), good);
    }
}

#[test]
fn a_lost_private_folder_or_an_unreadable_pending_file_costs_only_what_was_pending() {
    let place = Place::new();
    let history = short_run(place.path());
    history.begin_experiment(&pending(4)).unwrap();
    let file = history.folder().join("pending.json");
    drop(history);
    fs::write(file, "{").unwrap();
    let (history, redo) = History::open(&place.workspace(), RUN).unwrap();
    assert_eq!((redo, history.next_number()), (Vec::new(), 4));
    drop(history);
    fs::remove_dir_all(place.path().join(".warpsmith")).unwrap();
    let (mut history, redo) = History::open(&place.workspace(), RUN).unwrap();
    assert_eq!(redo, []);
    experiment(&mut history, 4, false).unwrap();
    check(place.path(), &history, &[(1, true), (2, false), (3, true), (4, false)]);
}

#[test]
fn of_several_experiments_under_way_those_without_a_verdict_are_done_again() {
    let place = Place::new();
    let mut history = short_run(place.path());
    let under_way = |number| Pending { trial: number + 10, ..pending(number) };
    (4..=6).for_each(|number| history.begin_experiment(&under_way(number)).unwrap());
    history.record(Entry { trial: 14, ..entry(4, true) }).unwrap();
    // What was taken back leaves its number to those behind it.
    history.withdraw(15, KERNEL).unwrap();
    drop(history);
    let (mut history, redo) = History::open(&place.workspace(), RUN).unwrap();
    assert_eq!(redo, [under_way(6)]);
    history.begin_experiment(&under_way(7)).unwrap();
    history.record(Entry { trial: 16, candidate_text: candidate(6), ..entry(5, false) }).unwrap();
    drop(history);
    let (history, redo) = History::open(&place.workspace(), RUN).unwrap();
    assert_eq!(redo, [under_way(7)]);
    assert_eq!(history.next_number(), 6);
}
