//! What a watch shows: on a terminal the latest verdict in place, elsewhere one after the other.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::lines::{decided_line, stage_words};
use super::verdict::shapes;
use crate::engine::{Edited, is_keep};
use crate::evaluation::Verdict;
use crate::harness::Progress;
use crate::report::latency;
use crate::watch::Watch;

/// A compiler's messages are shown up to so many lines: the first ones say what is wrong.
const MOST_LINES: usize = 16;

/// What became of a save.
pub(super) enum Seen<'a> {
    /// It has a verdict.
    Judged(&'a Edited),
    /// It is the text that the next is held against: what was kept last, or where it started.
    Best { kept: bool },
    /// The next save came before its verdict.
    Overtaken,
    /// The machine could not judge it.
    Trouble(&'a str),
}

impl Seen<'_> {
    fn text(&self) -> String {
        match self {
            Self::Judged(judged) => judged_text(judged),
            Self::Best { kept: true } => "this is what was kept last; nothing to judge".to_owned(),
            Self::Best { kept: false } => "this is the kernel as it was at the start; nothing to judge".to_owned(),
            Self::Overtaken => "saved again before there was a verdict".to_owned(),
            Self::Trouble(what) => format!("it could not be judged: {what}; save again for another try"),
        }
    }
}

/// Where a watch is shown.
pub(super) struct Screen(Option<InPlace>);

/// The part of a terminal that changes: the latest verdict in the bar's prefix, what is being done in its message.
struct InPlace {
    bar: ProgressBar,
    /// The save that is being judged.
    judging: Mutex<String>,
}

impl Screen {
    /// In place where standard output is a terminal.
    pub(super) fn new() -> Self {
        Self(std::io::stdout().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix}{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
            InPlace { bar: ProgressBar::new(1).with_style(style), judging: Mutex::default() }
        }))
    }

    /// Something that stays.
    pub(super) fn line(&self, text: &str) {
        match &self.0 {
            Some(place) => place.bar.println(text),
            None => super::say(text),
        }
    }

    /// Judging begins.
    pub(super) fn judging(&self, description: &str) {
        let Some(place) = &self.0 else { return super::say(&format!("judging {description}")) };
        place.bar.set_message(format!("judging {description}"));
        description.clone_into(&mut place.judging.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Where the judge is; on a terminal only.
    pub(super) fn progress(&self, progress: &Progress) {
        if let Some(place) = &self.0 {
            let description = place.judging.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let stage = stage_words(progress.stage);
            place.bar.set_message(format!("judging {description} · {stage}: {}", progress.detail));
        }
    }

    /// What became of a save. A keep stays on a terminal, anything else is replaced by the next.
    pub(super) fn seen(&self, seen: &Seen<'_>) {
        let text = seen.text();
        let Some(place) = &self.0 else { return super::say(&text) };
        if let Seen::Judged(judged) = seen
            && (is_keep(&judged.evaluation) || judged.evaluation.verdict == Verdict::Base)
        {
            place.bar.set_prefix(String::new());
            self.line(&text);
        } else {
            place.bar.set_prefix(format!("{text}\n"));
        }
        place.bar.set_message("waiting for a save");
    }

    /// Draws no more; what is in place stays. It cannot be taken away: at Ctrl-C the terminal has written `^C` behind it,
    /// which may have begun another line.
    pub(super) fn end(&self) {
        if let Some(place) = &self.0 {
            place.bar.set_draw_target(ProgressDrawTarget::hidden());
        }
    }
}

/// A verdict: its line, the judge's words in full, and the time of each shape.
fn judged_text(judged: &Edited) -> String {
    let Edited { number, description, evaluation } = judged;
    let mut text = decided_line(*number, description, evaluation);
    let why = evaluation.verdict.why();
    let lines = why.lines().count();
    if lines > 1 {
        let shown: String = why.lines().take(MOST_LINES).map(|line| format!("\n  {line}")).collect();
        let rest = lines.saturating_sub(MOST_LINES);
        let more = if rest > 0 { format!("\n  ... and {rest} more lines") } else { String::new() };
        let head = text.split_once(": ").map_or(text.as_str(), |(head, _)| head);
        text = format!("{head}:{shown}{more}");
    }
    if let Some(timing) = &evaluation.timing {
        text.push('\n');
        text.push_str(shapes(evaluation, timing).trim_end());
    }
    text
}

/// The last lines: what was kept, and where to look closer.
pub(super) fn closing(kernel: &Path, watch: &Watch, recorded: bool) -> String {
    let (state, target) = (watch.state(), watch.target());
    let judged = state.next_experiment - 1;
    let mut lines = vec![format!("\n{}: {judged} judged, {} kept", kernel.display(), target.kept)];
    if let Some((start, best)) = target.start_us.zip(target.best_us).filter(|_| target.kept > 0) {
        lines.push(format!(
            "  {} -> {}, {:.2}x as fast as at the start",
            latency(start),
            latency(best),
            target.vs_user()
        ));
    }
    let kept = target.tried.iter().filter(|tried| matches!(tried.verdict, Verdict::Keep { .. }));
    for tried in kept {
        let gain = tried
            .verdict
            .speedup()
            .map_or(String::new(), |speedup| format!("{:.2}x (at least {:.2}x)", speedup.ratio, speedup.low));
        lines.push(format!("  #{:<3} {gain}  {}", tried.experiment, tried.description));
    }
    let now = std::fs::read_to_string(kernel).ok();
    let differs = target.kept > 0 && now != watch.best();
    if recorded && judged > 0 {
        if target.kept > 0 {
            lines.push(format!("history      git log --stat warpsmith/{}", state.run));
        }
        if differs {
            lines.push(format!(
                "the best     git show warpsmith/{}:./{} (the file is another by now)",
                state.run, target.file
            ));
        }
        lines.push(format!("every save   warpsmith log --run {}", state.run));
    }
    if !recorded {
        if differs {
            lines.push("the file is not what was kept last, which nobody wrote down; --keep does".to_owned());
        }
        lines.push(format!("in full      warpsmith bench {}", kernel.display()));
    }
    lines.join("\n")
}
