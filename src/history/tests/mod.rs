//! Histories as a user sees them: made here, looked at with the real git.
#![allow(clippy::unwrap_used)]

mod crashes;
mod environments;
mod git_meanwhile;
mod places;
mod refusals;
mod runs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::workspace::Workspace;

pub const RUN: &str = "260214a";
pub const KERNEL: &str = "kernels/cpu/rmsnorm.c";

/// Runs git and returns what it printed; it must succeed.
pub fn git(folder: &Path, arguments: &[&str]) -> String {
    let (ok, out, error) = try_git(folder, arguments);
    assert!(ok, "git {arguments:?}: {error}");
    out
}

/// Runs git: whether it succeeded, what it printed, what it complained about.
pub fn try_git(folder: &Path, arguments: &[&str]) -> (bool, String, String) {
    let mut command = Command::new("git");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GIT_")) {
        command.env_remove(name);
    }
    let identity = ["-c", "user.name=User", "-c", "user.email=user@example.com", "-c", "protocol.file.allow=always"];
    let output = command.arg("-C").arg(folder).args(identity).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// A user's repository with one commit.
pub struct Place {
    pub folder: TempDir,
}

impl Place {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "-b", "main"]);
        let place = Self { folder };
        place.write("warpsmith.toml", "");
        place.write(KERNEL, "/* start */\n");
        place.write("README.md", "A model.\n");
        git(place.path(), &["add", "-A"]);
        git(place.path(), &["commit", "-q", "-m", "A model"]);
        place
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap()
    }

    pub fn workspace(&self) -> Workspace {
        workspace(self.path())
    }

    pub fn git(&self, arguments: &[&str]) -> String {
        git(self.path(), arguments)
    }
}

pub fn workspace(path: &Path) -> Workspace {
    Workspace::find(path).unwrap().unwrap()
}

pub fn pending(number: u64) -> Pending {
    Pending {
        trial: 0,
        number,
        path: KERNEL.to_owned(),
        text: candidate(number),
        seed: u64::MAX - number,
        meta: json!({ "agent": "tuner" }),
    }
}

pub fn candidate(number: u64) -> String {
    format!("/* candidate {number} */\n")
}

pub fn entry(number: u64, keep: bool) -> Entry {
    Entry {
        trial: 0,
        number,
        path: KERNEL.to_owned(),
        candidate_text: candidate(number),
        keep,
        removes: None,
        subject: format!("rmsnorm: change {number} (1.18x, 2.31x total)"),
        body: "Because.".to_owned(),
        trailers: vec![("Latency-us".to_owned(), "12.50".to_owned()), ("Experiment".to_owned(), number.to_string())],
        row: Row {
            time: "2026-02-14T03:12:45".to_owned(),
            status: if keep { "keep" } else { "revert" }.to_owned(),
            speedup: Some(1.18),
            op: "rmsnorm".to_owned(),
            description: format!("change {number}"),
            ..Row::default()
        },
        record: json!({ "experiment": number }),
        evaluation: json!({ "number": number }),
        state: state(number),
    }
}

pub fn state(number: u64) -> Value {
    json!({ "experiments": number, "seed": u64::MAX - number })
}

/// One experiment from begin to end.
pub fn experiment(history: &mut History, number: u64, keep: bool) -> Result<Recorded, HistoryError> {
    history.begin_experiment(&pending(number))?;
    history.record(entry(number, keep))
}

/// Two kept with one reverted between them, and everything a user can look at checked.
pub fn short_run(path: &Path) -> History {
    let workspace = workspace(path);
    let mut history = History::begin(&workspace, RUN, state(0)).unwrap();
    for (number, keep) in [(1, true), (2, false), (3, true)] {
        experiment(&mut history, number, keep).unwrap();
    }
    check(path, &history, &[(1, true), (2, false), (3, true)]);
    history
}

/// Everything a user can look at after these experiments: the log, the ledger, the journal, git's own checks.
pub fn check(path: &Path, history: &History, experiments: &[(u64, bool)]) {
    let kept: Vec<_> = experiments.iter().filter(|(_, keep)| *keep).map(|(number, _)| *number).collect();
    let log = git(path, &["log", "--format=%s", &format!("-{}", kept.len().max(1)), &format!("warpsmith/{RUN}")]);
    let wanted: Vec<_> = kept.iter().rev().map(|n| format!("rmsnorm: change {n} (1.18x, 2.31x total)")).collect();
    if !kept.is_empty() {
        assert_eq!(log.lines().collect::<Vec<_>>(), wanted);
    }

    let rows: Vec<_> = history.archive().ledger().unwrap().into_iter().filter(|row| row.run == RUN).collect();
    let entries: Vec<_> = history.entries(Order::OldestFirst).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), experiments.len());
    assert_eq!(entries.len(), experiments.len());
    for ((row, entry), (number, keep)) in rows.iter().zip(&entries).zip(experiments) {
        assert_eq!((row.exp, row.status.as_str()), (*number, if *keep { "keep" } else { "revert" }));
        assert_eq!((entry.number, entry.kept, entry.path.as_str()), (*number, *keep, KERNEL));
        assert_eq!((&entry.evaluation, &entry.state), (&json!({ "number": number }), &state(*number)));
        assert_eq!(row.commit, entry.commit[..10]);
        assert_eq!(Row::parse(&entry.row).unwrap(), *row);
        assert_eq!(history.archive().text(&entry.commit, KERNEL).unwrap(), Some(candidate(*number)));
    }
    let last = experiments.last().map_or(0, |(number, _)| *number);
    assert_eq!((history.state(), history.next_number()), (&state(last), last + 1));
    assert_eq!(history.archive().state(RUN).unwrap(), state(last));
    let tip = git(path, &["rev-parse", &format!("warpsmith/{RUN}")]);
    assert_eq!(history.tip(), tip.trim());
    assert_eq!(history.archive().tip(RUN).unwrap(), tip.trim());
    if let Some(number) = kept.last() {
        assert_eq!(history.tip_text(KERNEL).unwrap(), Some(candidate(*number)));
    }

    let folder = history.folder();
    assert!(!folder.join("pending.json").exists());
    if last > 0 {
        assert_eq!(fs::read_to_string(folder.join(KERNEL)).ok(), history.tip_text(KERNEL).unwrap());
    }
    let packs = PathBuf::from(git(path, &["rev-parse", "--path-format=absolute", "--git-path", "objects/pack"]).trim());
    let keeps =
        fs::read_dir(packs).unwrap().filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|e| e == "keep"));
    assert_eq!(keeps.count(), 0);
    let (ok, out, error) = try_git(path, &["fsck", "--strict", "--no-dangling"]);
    assert!(ok && out.is_empty(), "{out}{error}");
}
