//! The journal: one commit an experiment.
//!
//! Its parents are the previous entry and the candidate's commit; its tree holds `trial.json`, `evaluation.json`, `row.tsv` and
//! `state.json`. The first one begins the run: its parent is where the branch starts, and it has only `state.json` and `workspace.json`,
//! which says where in the repository the run's workspace is.

use git2::{Commit, Oid, Repository, Signature};
use serde_json::Value;

use super::HistoryError;
use super::pack::Batch;
use super::tree::PLAIN;

const TRIAL: &str = "trial.json";
const EVALUATION: &str = "evaluation.json";
const ROW: &str = "row.tsv";
const STATE: &str = "state.json";
const WORKSPACE: &str = "workspace.json";

/// An experiment as the journal has it.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalEntry {
    /// Its number, from 1.
    pub number: u64,
    /// The kernel file, relative to the workspace.
    pub path: String,
    /// Whether the branch advanced.
    pub kept: bool,
    /// The candidate's subject.
    pub subject: String,
    /// The candidate's commit.
    pub commit: String,
    /// The journal's commit.
    pub journal: String,
    /// The ledger's line.
    pub row: String,
    /// What was proposed, by whom and against what; null in journals that do not have it.
    pub trial: Value,
    /// What the judge found.
    pub evaluation: Value,
    /// The run's state after it.
    pub state: Value,
}

/// What recovery needs of an entry; read without its evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    pub id: Oid,
    /// 0 for the one that begins the run; a note has the number of the experiment before it.
    pub number: u64,
    /// Whether it is a note: a state between experiments.
    pub note: bool,
    pub kept: bool,
    /// The candidate's commit; the branch's start for the one that begins the run.
    pub commit: Oid,
    /// The previous entry.
    pub previous: Option<Oid>,
}

/// What is written of an experiment.
pub struct Draft<'a> {
    pub number: u64,
    pub path: &'a str,
    pub kept: bool,
    pub subject: &'a str,
    pub row: &'a str,
    pub trial: &'a Value,
    pub evaluation: &'a Value,
    pub state: &'a Value,
}

/// A commit message: subject, body, trailers. Subject and trailers are made single lines.
pub fn message(subject: &str, body: &str, trailers: &[(String, String)]) -> String {
    let mut text = one_line(subject);
    for part in [body.trim().to_owned(), trailers_text(trailers)] {
        if !part.is_empty() {
            text.push_str("\n\n");
            text.push_str(&part);
        }
    }
    text.push('\n');
    // Git's objects end a message there.
    text.replace('\0', " ")
}

/// A message that is a text already, with one more paragraph of trailers.
pub fn message_with(text: &str, trailers: &[(String, String)]) -> String {
    format!("{}\n\n{}\n", text.trim_end(), trailers_text(trailers)).replace('\0', " ")
}

fn trailers_text(trailers: &[(String, String)]) -> String {
    let lines = trailers.iter().map(|(key, value)| format!("{}: {}", one_line(key), one_line(value)));
    lines.collect::<Vec<_>>().join("\n")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A trailer of a commit: in the last paragraph of its message.
pub fn trailer<'m>(message: &'m str, key: &str) -> Option<&'m str> {
    let last = message.trim_end().rsplit("\n\n").next()?;
    last.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
}

/// Writes the commit that begins a run; `place` is its workspace's in the repository.
pub fn begin(
    batch: &mut Batch<'_>,
    (run, place): (&str, &str),
    start: Oid,
    state: &Value,
    who: &Signature<'_>,
) -> Result<Oid, git2::Error> {
    let text = message(&format!("Begin run {run}"), "", &[("Experiment".to_owned(), "0".to_owned())]);
    commit(batch, &[(STATE, json(state)), (WORKSPACE, json(&place.into()))], &text, &[start], who)
}

/// Writes a note: the run's state between experiments, such as how it ended.
pub fn note(
    batch: &mut Batch<'_>,
    number: u64,
    state: &Value,
    previous: Oid,
    tip: Oid,
    who: &Signature<'_>,
) -> Result<Oid, git2::Error> {
    let trailers = [("Experiment".to_owned(), number.to_string()), ("Note".to_owned(), "yes".to_owned())];
    let text = message(&format!("After #{number}: the run's state"), "", &trailers);
    commit(batch, &[(STATE, &json(state))], &text, &[previous, tip], who)
}

/// Writes an entry.
pub fn add(
    batch: &mut Batch<'_>,
    draft: &Draft<'_>,
    previous: Oid,
    candidate: Oid,
    who: &Signature<'_>,
) -> Result<Oid, git2::Error> {
    let kept = if draft.kept { "kept" } else { "not kept" };
    let trailers = [
        ("Experiment".to_owned(), draft.number.to_string()),
        ("Kept".to_owned(), if draft.kept { "yes" } else { "no" }.to_owned()),
        ("Path".to_owned(), draft.path.to_owned()),
    ];
    let text = message(&format!("#{} {kept}: {}", draft.number, draft.subject), "", &trailers);
    let files = [
        (TRIAL, json(draft.trial)),
        (EVALUATION, json(draft.evaluation)),
        (ROW, format!("{}\n", draft.row)),
        (STATE, json(draft.state)),
    ];
    commit(batch, &files.each_ref().map(|(name, text)| (*name, text.as_str())), &text, &[previous, candidate], who)
}

fn json(value: &Value) -> String {
    format!("{value:#}\n")
}

fn commit<S: AsRef<str>>(
    batch: &mut Batch<'_>,
    files: &[(&str, S)],
    message: &str,
    parents: &[Oid],
    who: &Signature<'_>,
) -> Result<Oid, git2::Error> {
    let repository = batch.repository();
    let mut tree = repository.treebuilder(None)?;
    for (name, text) in files {
        tree.insert(*name, batch.blob(text.as_ref().as_bytes())?, PLAIN)?;
    }
    let tree = batch.add(tree.write()?);
    commit_tree(batch, tree, message, parents, who)
}

/// Writes a commit of a tree; no ref is touched, no hook runs, nothing is signed.
pub fn commit_tree(
    batch: &mut Batch<'_>,
    tree: Oid,
    message: &str,
    parents: &[Oid],
    who: &Signature<'_>,
) -> Result<Oid, git2::Error> {
    let repository = batch.repository();
    let parents = parents.iter().map(|id| repository.find_commit(*id)).collect::<Result<Vec<_>, _>>()?;
    let parents: Vec<&Commit<'_>> = parents.iter().collect();
    let id = repository.commit(None, who, who, message, &repository.find_tree(tree)?, &parents)?;
    Ok(batch.add(id))
}

/// A failure that names the run and the place.
fn damaged(run: &str, at: Oid, what: &str) -> HistoryError {
    HistoryError::Damaged { run: run.to_owned(), at: at.to_string(), what: what.to_owned() }
}

/// Reads an entry's place in the chain.
pub fn link(repository: &Repository, run: &str, id: Oid) -> Result<Link, HistoryError> {
    let commit = repository.find_commit(id).map_err(HistoryError::git("read the journal"))?;
    let message = String::from_utf8_lossy(commit.message_bytes());
    let number = trailer(&message, "Experiment").and_then(|number| number.parse().ok());
    let number = number.ok_or_else(|| damaged(run, id, "its message has no experiment's number"))?;
    let parent = |at| commit.parent_id(at).map_err(|_| damaged(run, id, "a parent is missing"));
    let note = trailer(&message, "Note") == Some("yes");
    Ok(if number == 0 && !note {
        Link { id, number, note, kept: false, commit: parent(0)?, previous: None }
    } else {
        let kept = trailer(&message, "Kept") == Some("yes");
        Link { id, number, note, kept, commit: parent(1)?, previous: Some(parent(0)?) }
    })
}

impl Link {
    /// Whether it is an experiment, rather than the beginning or a note.
    pub const fn is_experiment(&self) -> bool {
        self.number > 0 && !self.note
    }
}

/// The chain from an entry (the newest) back to the one that begins the run, in this order.
pub fn chain(repository: &Repository, run: &str, newest: Oid) -> Result<Vec<Link>, HistoryError> {
    let mut links = vec![link(repository, run, newest)?];
    while let Some(previous) = links.last().and_then(|last| last.previous) {
        links.push(link(repository, run, previous)?);
    }
    Ok(links)
}

/// The place in the repository of the workspace in which a run was begun, by the entry that begins it; none where that is from before it was
/// written down.
pub fn place(repository: &Repository, run: &str, first: Oid) -> Result<Option<String>, HistoryError> {
    if !has(repository, first, WORKSPACE)? {
        return Ok(None);
    }
    let place = value(repository, run, first, WORKSPACE)?;
    let text = place.as_str().ok_or_else(|| damaged(run, first, &format!("{WORKSPACE} is no text")))?;
    Ok(Some(text.to_owned()))
}

/// The kernel file of an experiment, relative to its workspace.
pub fn path(repository: &Repository, id: Oid) -> Result<String, HistoryError> {
    let message = find(repository, id)?.message_bytes().to_vec();
    Ok(trailer(&String::from_utf8_lossy(&message), "Path").unwrap_or_default().to_owned())
}

/// Reads an experiment.
pub fn entry(repository: &Repository, run: &str, id: Oid) -> Result<JournalEntry, HistoryError> {
    let Link { number, kept, commit, .. } = link(repository, run, id)?;
    let path = path(repository, id)?;
    let subject = String::from_utf8_lossy(find(repository, commit)?.message_bytes())
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned();
    Ok(JournalEntry {
        number,
        path,
        kept,
        subject,
        commit: commit.to_string(),
        journal: id.to_string(),
        row: row(repository, run, id)?,
        trial: if has(repository, id, TRIAL)? { value(repository, run, id, TRIAL)? } else { Value::Null },
        evaluation: value(repository, run, id, EVALUATION)?,
        state: state(repository, run, id)?,
    })
}

/// An entry's line of the ledger.
pub fn row(repository: &Repository, run: &str, id: Oid) -> Result<String, HistoryError> {
    let text = file(repository, run, id, ROW)?;
    Ok(text.trim_end_matches('\n').to_owned())
}

/// The run's state after an entry.
pub fn state(repository: &Repository, run: &str, id: Oid) -> Result<Value, HistoryError> {
    value(repository, run, id, STATE)
}

fn has(repository: &Repository, id: Oid, name: &str) -> Result<bool, HistoryError> {
    let tree = find(repository, id)?.tree().map_err(HistoryError::git("read the journal"))?;
    Ok(tree.get_name(name).is_some())
}

fn value(repository: &Repository, run: &str, id: Oid, name: &str) -> Result<Value, HistoryError> {
    let text = file(repository, run, id, name)?;
    serde_json::from_str(&text).map_err(|error| damaged(run, id, &format!("{name} does not parse ({error})")))
}

fn file(repository: &Repository, run: &str, id: Oid, name: &str) -> Result<String, HistoryError> {
    let failed = HistoryError::git("read the journal");
    let tree = find(repository, id)?.tree().map_err(&failed)?;
    let entry = tree.get_name(name).ok_or_else(|| damaged(run, id, &format!("it has no {name}")))?.id();
    let blob = repository.find_blob(entry).map_err(&failed)?;
    String::from_utf8(blob.content().to_vec()).map_err(|_| damaged(run, id, &format!("{name} is not text")))
}

fn find(repository: &Repository, id: Oid) -> Result<Commit<'_>, HistoryError> {
    repository.find_commit(id).map_err(HistoryError::git("read the journal"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_subject_a_body_and_trailers() {
        let trailers = [("Latency-us".to_owned(), "12.5".to_owned()), ("Agent".to_owned(), "a\nKept: yes".to_owned())];
        let text = message("rmsnorm: vectorised\nloads", "  Why it helps.\n", &trailers);
        assert_eq!(text, "rmsnorm: vectorised loads\n\nWhy it helps.\n\nLatency-us: 12.5\nAgent: a Kept: yes\n");
        assert_eq!(trailer(&text, "Latency-us"), Some("12.5"));
        assert_eq!(trailer(&text, "Kept"), None);
        assert_eq!(message("a", "", &[]), "a\n");
    }
}
