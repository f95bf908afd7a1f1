//! What was tried before, as a prompt says it.

use std::collections::BTreeMap;

use super::budget::Cut;
use super::fenced;
use crate::agent::Attempt;
use crate::evaluation::Verdict;

/// Longest reason of an attempt in the list, in characters: the last failure has its own in full.
const REASON: usize = 300;
/// Longest hypothesis of an attempt, in characters.
const HYPOTHESIS: usize = 200;

/// The attempts, oldest first, as a fenced list; old ones shorter as the cut says.
pub(super) fn tried(attempts: &[Attempt], cut: &Cut) -> String {
    if attempts.is_empty() {
        return String::new();
    }
    let whole = cut.whole_attempts().min(attempts.len());
    let (old, recent) = attempts.split_at(attempts.len() - whole);
    let mut lines = if cut.old_attempts_counted() { counts(old) } else { old.iter().map(short).collect() };
    lines.extend(recent.iter().map(full));
    fenced::code(&lines.join("\n"))
}

/// `#12 read-once revert, 1.002x, predicted 1.300x: one pass`.
fn short(attempt: &Attempt) -> String {
    let verdict = &attempt.verdict;
    let simpler = matches!(verdict, Verdict::Keep { simpler: true, .. });
    let mut line = format!(
        "#{} {} {}",
        attempt.experiment,
        fenced::one_line(&attempt.technique, 40),
        if simpler { "keep (simpler)" } else { verdict.status() }
    );
    if let Some(speedup) = verdict.speedup() {
        line.push_str(&format!(", {:.3}x", speedup.ratio));
    }
    if let Some(predicted) = attempt.predicted {
        line.push_str(&format!(", predicted {predicted:.3}x"));
    }
    line.push_str(&format!(": {}", fenced::one_line(&attempt.description, 120)));
    line
}

/// The same with its author's reason and the judge's.
fn full(attempt: &Attempt) -> String {
    let mut line = short(attempt);
    let hypothesis = fenced::one_line(&attempt.hypothesis, HYPOTHESIS);
    // Where its author gave no description, that is the beginning of the hypothesis.
    let description = fenced::one_line(&attempt.description, HYPOTHESIS);
    if !hypothesis.is_empty() && (description.is_empty() || !hypothesis.starts_with(description.trim_end_matches('…')))
    {
        line.push_str(&format!(" | because: {hypothesis}"));
    }
    let why = fenced::one_line(attempt.verdict.why(), REASON);
    if !why.is_empty() {
        line.push_str(&format!(" | judge: {why}"));
    }
    line
}

/// A line for each technique: how often, how often kept, the best that was measured.
fn counts(attempts: &[Attempt]) -> Vec<String> {
    let mut by_technique = BTreeMap::<&str, (usize, usize, Option<f64>)>::new();
    for attempt in attempts {
        let (tried, kept, best) = by_technique.entry(&attempt.technique).or_default();
        *tried += 1;
        *kept += usize::from(attempt.verdict.advances());
        let ratio = attempt.verdict.speedup().map(|speedup| speedup.ratio);
        *best = (*best).into_iter().chain(ratio).reduce(f64::max);
    }
    let line = |(technique, (tried, kept, best)): (&str, (usize, usize, Option<f64>))| {
        let best = best.map_or("never timed".to_owned(), |ratio| format!("best {ratio:.3}x"));
        format!("earlier: {} {tried} times, {kept} kept, {best}", fenced::one_line(technique, 40))
    };
    by_technique.into_iter().map(line).collect()
}

/// The last attempt that did not compile or was wrong, with the judge's words in full; empty where there is none.
pub(super) fn last_failure(attempts: &[Attempt]) -> String {
    let failed = |attempt: &&Attempt| {
        use Verdict::{Crash, Error, Reject, Timeout};
        matches!(attempt.verdict, Error { .. } | Reject { .. } | Crash { .. } | Timeout { .. })
    };
    let Some(attempt) = attempts.iter().rev().find(failed) else { return String::new() };
    let verdict = &attempt.verdict;
    let told = format!("{}\n{} at {}: {}", short(attempt), verdict.status(), verdict.stage(), verdict.why());
    fenced::log(&told)
}
