//! A run that goes on in another clone from a file.

use crate::common::{Outcome, Place, kernels, outcome};
use crate::consistency::check;

/// A run that was killed after its third experiment, and the name of its bundle.
fn interrupted() -> (Place, String) {
    let place = Place::new(&kernels::reverts());
    let mut command = place.command(&["run", "model", "--only", "rmsnorm", "--seed", "1", "--max-reverts", "1"]);
    command.env("WARPSMITH_FAILPOINT", "pending:2");
    let Outcome { code, out, err } = outcome(command);
    assert_eq!((code, place.statuses()), (None, vec!["base".to_owned()]), "{out}{err}");
    let run = place.only_run();
    let said = place.warpsmith(&["bundle", &run, "night.bundle"]).ok();
    assert!(said.contains(&format!("run {run} is in night.bundle")), "{said}");
    (place, run)
}

/// A clone that knows nothing of the run.
fn cloned(place: &Place) -> Place {
    let clone = Place::empty();
    clone.git(&["clone", "-q", "--single-branch", "--branch", "main", place.root.to_str().unwrap(), "."]);
    clone
}

#[test]
fn a_run_goes_on_in_another_clone_from_its_bundle() {
    let (place, run) = interrupted();
    place.git(&["bundle", "verify", "-q", "night.bundle"]);
    let there = cloned(&place);
    let file = place.root.join("night.bundle");
    let file = file.to_str().unwrap();
    let out = there.warpsmith(&["run", "model", "--resume", file]).ok();
    assert!(out.contains(&format!("branch      warpsmith/{run} (resumed)")), "{out}");
    assert_eq!(there.statuses(), ["base", "revert"], "{out}");
    check(&there);
    // Here it can still be gone on with from where it was; there it has gone further than the file.
    let said = there.warpsmith(&["run", "model", "--resume", file]).refusal();
    assert!(said.contains(&format!("there is a run {run} already")), "{said}");
    place.warpsmith(&["run", "model", "--resume"]).ok();
}

#[test]
fn what_is_no_bundle_of_a_run_is_refused_in_a_sentence() {
    let (place, run) = interrupted();
    let there = cloned(&place);
    let whole = std::fs::read(place.root.join("night.bundle")).unwrap();
    let begins = whole.windows(2).position(|two| two == b"\n\n").unwrap();
    let cut = [&whole[..30], &whole[..begins], &whole[..begins + 20], &whole[..whole.len() - 30]];
    let files =
        cut.iter().map(|bytes| bytes.to_vec()).chain([b"not a bundle\n".to_vec(), vec![0xff; 5000], Vec::new()]);
    for bytes in files {
        std::fs::write(there.root.join("cut"), &bytes).unwrap();
        let said = there.warpsmith(&["run", "model", "--resume", "cut"]).refusal();
        assert!(said.contains("is no run that can be gone on with"), "{said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    }
    place.git(&["bundle", "create", "-q", "other", "main"]);
    std::fs::copy(place.root.join("other"), there.root.join("cut")).unwrap();
    let said = there.warpsmith(&["run", "model", "--resume", "cut"]).refusal();
    assert!(said.contains("it has no journal of a run"), "{said}");
    assert!(!there.git(&["for-each-ref"]).contains(&run));
    assert!(place.warpsmith(&["bundle", "261120z", "x"]).refusal().contains("there is no run 261120z"));
}
