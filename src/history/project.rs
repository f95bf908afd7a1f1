//! `results.tsv` as a projection of the journals.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use super::HistoryError;
use super::ledger::header;
use crate::workspace::write_synced;

/// What a ledger should say, given what it says and the rows of the runs that have a journal (run, rows in order).
/// Lines of runs without a journal are kept as they are, where they are; so is the order of the runs.
#[must_use]
pub fn project(current: &str, journals: &[(String, Vec<String>)]) -> String {
    let header = header();
    let mut kept: Vec<&str> = current.lines().filter(|line| !line.is_empty() && **line != header).collect();
    // A last line without its end was torn by a power cut. If a row of ours begins like it, it is ours.
    if !current.ends_with('\n')
        && let Some(torn) = kept.last()
        && journals.iter().flat_map(|(_, rows)| rows).any(|row| row.starts_with(torn))
    {
        kept.pop();
    }
    let mut text = header;
    text.push('\n');
    let mut written = vec![false; journals.len()];
    let mut put = |text: &mut String, at: usize| {
        if !std::mem::replace(&mut written[at], true) {
            for row in &journals[at].1 {
                text.push_str(row);
                text.push('\n');
            }
        }
    };
    for line in kept {
        let run = line.split('\t').next().unwrap_or_default().trim();
        match journals.iter().position(|(name, _)| name == run) {
            Some(at) => put(&mut text, at),
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    for at in 0..journals.len() {
        put(&mut text, at);
    }
    text
}

/// Makes the ledger at `path` what it should be. Rows that only lack at the end are appended in one write, so that a
/// `tail -f` goes on; anything else replaces the file. Synced either way.
pub fn update(path: &Path, journals: &[(String, Vec<String>)]) -> Result<(), HistoryError> {
    let current = match std::fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(HistoryError::io("read", path)(error)),
    };
    let wanted = project(&current, journals);
    if wanted == current {
        return Ok(());
    }
    let written = match wanted.strip_prefix(&current) {
        Some(rest) => append(path, rest),
        // A link is written through: what it points to is the ledger.
        None => write_synced(&path.canonicalize().unwrap_or_else(|_| path.to_owned()), wanted.as_bytes()),
    };
    written.map_err(HistoryError::io("write", path))
}

fn append(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn rows(run: &str, numbers: std::ops::RangeInclusive<u32>) -> (String, Vec<String>) {
        (run.to_owned(), numbers.map(|n| format!("{run}\t{n}\tkeep")).collect())
    }

    fn ledger(lines: &[&str]) -> String {
        lines.iter().fold(header() + "\n", |text, line| text + line + "\n")
    }

    #[test]
    fn a_ledger_that_agrees_stays_as_it_is() {
        let text = ledger(&["260213z\t1\tkeep", "260214a\t1\tkeep", "260214a\t2\tkeep"]);
        assert_eq!(project(&text, &[rows("260214a", 1..=2)]), text);
    }

    #[test]
    fn missing_rows_are_appended_and_wrong_ones_replaced_in_place() {
        let start = ledger(&["260214a\t1\tkeep"]);
        assert_eq!(project(&start, &[rows("260214a", 1..=2)]), format!("{start}260214a\t2\tkeep\n"));
        let wrong = ledger(&["260214a\t1\tXXXX", "260214a\t9\tkeep", "260214b\t1\tkeep"]);
        let right = ledger(&["260214a\t1\tkeep", "260214b\t1\tkeep"]);
        assert_eq!(project(&wrong, &[rows("260214a", 1..=1)]), right);
    }

    #[test]
    fn rows_of_runs_whose_journal_is_gone_are_kept() {
        let text = ledger(&["260101a\t1\tkeep", "a note of the user's"]);
        assert_eq!(project(&text, &[rows("260214a", 1..=1)]), format!("{text}260214a\t1\tkeep\n"));
    }

    #[test]
    fn a_torn_last_row_is_mended() {
        for torn in ["26", "260214a\t2\tke", "260214a\t2\tkeep"] {
            let text = ledger(&["260214a\t1\tkeep"]) + torn;
            let right = ledger(&["260214a\t1\tkeep", "260214a\t2\tkeep"]);
            assert_eq!(project(&text, &[rows("260214a", 1..=2)]), right, "{torn}");
        }
    }

    #[test]
    fn a_lost_ledger_is_written_anew_with_every_run() {
        let right = ledger(&["260213a\t1\tkeep", "260214a\t1\tkeep"]);
        assert_eq!(project("", &[rows("260213a", 1..=1), rows("260214a", 1..=1)]), right);
    }

    #[test]
    fn appending_keeps_the_file_that_tail_has_open() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.tsv");
        update(&path, &[rows("260214a", 1..=1)]).unwrap();
        let before = std::fs::metadata(&path).unwrap().ino();
        update(&path, &[rows("260214a", 1..=3)]).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), before);
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 4);
        let link = folder.path().join("link.tsv");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        update(&link, &[rows("260214a", 2..=2)]).unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), ledger(&["260214a\t2\tkeep"]));
    }
}
