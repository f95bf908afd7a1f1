//! Names: of runs, and of their refs.

use jiff::civil::Date;

use super::HistoryError;

/// Where journals are: not branches, so that `git branch` does not list them.
pub const JOURNALS: &str = "refs/warpsmith/";
/// The last part of a journal's name. Without it `warpsmith/<run>` would mean the journal to `git log` and `git merge`,
/// which look for `refs/warpsmith/<run>` before `refs/heads/warpsmith/<run>`.
pub const JOURNAL: &str = "/journal";
/// Where branches are.
pub const BRANCHES: &str = "refs/heads/warpsmith/";

/// The id of a new run: the day as `yymmdd` and the first free letter; after `z` come `za`, `zb`, … so that ids
/// sort as they were given. `taken` are the ids in use.
#[must_use]
pub fn next_run_id<S: AsRef<str>>(today: Date, taken: &[S]) -> String {
    let day = today.strftime("%y%m%d").to_string();
    let mut rounds = String::new();
    loop {
        for letter in 'a'..='z' {
            let id = format!("{day}{rounds}{letter}");
            if !taken.iter().any(|run| run.as_ref() == id) {
                return id;
            }
        }
        rounds.push('z');
    }
}

/// Whether `run` looks like an id: six digits, then small letters.
#[must_use]
pub fn is_run_id(run: &str) -> bool {
    let (day, letters) = run.split_at_checked(6).unwrap_or(("", ""));
    day.len() == 6
        && day.bytes().all(|b| b.is_ascii_digit())
        && (1..=8).contains(&letters.len())
        && letters.bytes().all(|b| b.is_ascii_lowercase())
}

/// A run's refs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The run's id.
    pub run: String,
    /// `refs/warpsmith/<run>/journal`.
    pub journal: String,
    /// `refs/heads/warpsmith/<run>`.
    pub branch: String,
}

impl Names {
    /// The names for a run.
    ///
    /// # Errors
    /// [`HistoryError::BadRun`] if it is not an id.
    pub fn of(run: &str) -> Result<Self, HistoryError> {
        if !is_run_id(run) {
            return Err(HistoryError::BadRun(run.to_owned()));
        }
        Ok(Self {
            run: run.to_owned(),
            journal: format!("{JOURNALS}{run}{JOURNAL}"),
            branch: format!("{BRANCHES}{run}"),
        })
    }

    /// The branch as a user writes it.
    #[must_use]
    pub fn short_branch(&self) -> &str {
        self.branch.trim_start_matches("refs/heads/")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn run_ids_are_the_day_and_the_first_free_letter() {
        let day = jiff::civil::date(2026, 2, 14);
        assert_eq!(next_run_id::<&str>(day, &[]), "260214a");
        assert_eq!(next_run_id(day, &["260214a", "260213b"]), "260214b");
        assert_eq!(next_run_id(day, &["260214b"]), "260214a");
    }

    #[test]
    fn run_ids_never_run_out_repeat_or_go_back() {
        let day = jiff::civil::date(2026, 2, 14);
        let mut taken: Vec<String> = Vec::new();
        for _ in 0..80 {
            let id = next_run_id(day, &taken);
            assert!(is_run_id(&id), "{id}");
            assert!(taken.last().is_none_or(|last| *last < id), "{id} after {:?}", taken.last());
            taken.push(id);
        }
    }

    #[test]
    fn what_is_not_a_run_id_is_refused() {
        for run in ["", "260214", "26021a", "260214A", "260214a/b", "../x", "260214a.lock", "२६०२१४a"] {
            assert!(Names::of(run).is_err(), "{run}");
        }
        let names = Names::of("260214a").unwrap();
        assert_eq!(names.short_branch(), "warpsmith/260214a");
        assert_eq!(names.journal, "refs/warpsmith/260214a/journal");
    }
}
