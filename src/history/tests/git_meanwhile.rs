use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Runs experiments while git does `work` again and again; all of it must be there afterwards.
fn meanwhile(work: &[&[&str]], least: usize) {
    let place = Place::new();
    let path = place.path().to_owned();
    let experiments: Vec<_> = (1..=50).map(|number| (number, number % 3 == 0)).collect();
    let over = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let looping = scope.spawn(|| {
            let mut rounds = 0;
            while !over.load(Ordering::Relaxed) || rounds < least {
                for arguments in work {
                    // Git may find its own lock files of another git; it may not find anything broken.
                    let (_, _, error) = try_git(&path, arguments);
                    for word in ["corrupt", "missing", "bad object", "broken"] {
                        assert!(!error.contains(word), "git {arguments:?}: {error}");
                    }
                }
                rounds += 1;
            }
            rounds
        });
        let mut history = History::begin(&place.workspace(), RUN, state(0)).unwrap();
        for (number, keep) in &experiments {
            experiment(&mut history, *number, *keep).unwrap();
        }
        over.store(true, Ordering::Relaxed);
        let rounds = looping.join().unwrap();
        check(&path, &history, &experiments);
        rounds
    });
    assert!(rounds >= least);
    let (history, redo) = History::open(&place.workspace(), RUN).unwrap();
    assert_eq!(redo, []);
    check(&path, &history, &experiments);
}

#[test]
fn nothing_is_lost_while_git_collects_garbage() {
    meanwhile(&[&["gc", "-q", "--prune=now"]], 3);
}

#[test]
fn nothing_is_lost_while_git_prunes_and_repacks() {
    meanwhile(&[&["prune", "--expire=now"], &["repack", "-q", "-a", "-d"], &["prune-packed", "-q"]], 3);
}

#[test]
fn nothing_is_lost_while_git_packs_refs() {
    meanwhile(&[&["pack-refs", "--all", "--prune"]], 3);
}
