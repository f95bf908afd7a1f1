//! Places where a test can have the process killed: one for each step of the crash order.
//!
//! `WARPSMITH_FAILPOINT=<step>:<experiment>` in the environment of a build with the feature `test-support`; no other build has
//! any of it.

use super::HistoryError;

/// The steps in their order. `begin-` is of a run's start (experiment 0); the others happen in every experiment,
/// `branch` only in one that is kept.
pub const STEPS: [&str; 10] = [
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

/// The steps of applying a run's winners, which belong to no experiment: `WARPSMITH_FAILPOINT=<step>:0`.
pub const APPLY_STEPS: [&str; 4] = ["apply-objects", "apply-branch", "apply-files", "apply-index"];

#[cfg(test)]
thread_local! {
    static ARMED: std::cell::Cell<Option<(&'static str, u64)>> = const { std::cell::Cell::new(None) };
}

/// For tests in this process: the next time `step` of `experiment` is reached on this thread, it ends in
/// [`HistoryError::Killed`], and everything is left as SIGKILL would leave it.
#[cfg(test)]
pub fn arm(step: &'static str, experiment: u64) {
    assert!(STEPS.contains(&step));
    ARMED.with(|armed| armed.set(Some((step, experiment))));
}

/// Dies here, if that was asked for.
pub fn hit(step: &'static str, experiment: u64) -> Result<(), HistoryError> {
    assert!(STEPS.contains(&step) || APPLY_STEPS.contains(&step), "{step} is not in the list");
    #[cfg(test)]
    if ARMED.with(std::cell::Cell::get) == Some((step, experiment)) {
        ARMED.with(|armed| armed.set(None));
        return Err(HistoryError::Killed(step));
    }
    #[cfg(feature = "test-support")]
    if let Some(wanted) = std::env::var_os("WARPSMITH_FAILPOINT")
        && wanted.to_str() == Some(&format!("{step}:{experiment}"))
    {
        // Nothing can be done about a failure, and the process then goes on, which the test sees.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    let _ = (step, experiment);
    Ok(())
}
