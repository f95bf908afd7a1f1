//! A run on the terminal: three lines in place and one scrolled for each keep; plain lines where there is no terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::lines::{decided_line, experiment_line, run_line, stage_words, target_line, waiting_words};
use crate::engine::{Phase, RunEvent, RunState, TargetState, Watcher, is_keep};
use crate::profile::amdahl::in_words;

/// How much a run says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Voice {
    /// Three lines in place, keeps scrolled.
    Terminal,
    /// A line for each event worth one.
    Plain,
    /// Keeps and troubles only.
    Quiet,
}

impl Voice {
    /// What suits standard output.
    pub(super) fn choose(quiet: bool) -> Self {
        match (quiet, std::io::stdout().is_terminal()) {
            (true, _) => Self::Quiet,
            (false, true) => Self::Terminal,
            (false, false) => Self::Plain,
        }
    }
}

/// Shows a run's events.
pub(super) struct Progress {
    voice: Voice,
    bars: Option<Bars>,
    state: Option<RunState>,
    since: Instant,
    doing: String,
}

struct Bars {
    all: MultiProgress,
    lines: [ProgressBar; 3],
}

impl Bars {
    fn new() -> Self {
        let all = MultiProgress::new();
        let style = ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
        let lines = [(); 3].map(|()| all.add(ProgressBar::new(1).with_style(style.clone())));
        Self { all, lines }
    }
}

impl Progress {
    pub(super) fn new(voice: Voice) -> Self {
        let bars = (voice == Voice::Terminal).then(Bars::new);
        Self { voice, bars, state: None, since: Instant::now(), doing: String::new() }
    }

    /// A line that stays.
    fn scroll(&self, line: &str) {
        match &self.bars {
            // `println` fails only where the terminal is gone, and then nobody reads.
            Some(bars) => drop(bars.all.println(line)),
            None => super::say(line),
        }
    }

    fn plain(&self, line: &str) {
        if self.voice == Voice::Plain {
            super::say(line);
        }
    }

    fn take_state(&mut self, state: &RunState) {
        self.state = Some(state.clone());
        self.since = Instant::now();
    }

    fn redraw(&self) {
        let (Some(bars), Some(state)) = (&self.bars, &self.state) else { return };
        let live = self.since.elapsed();
        let spent = Duration::from_secs_f64(state.elapsed_s) + live;
        bars.lines[0].set_message(run_line(state, spent));
        let target = state.active().map(|target| target_line(state, target, target.progress.spent + live));
        bars.lines[1].set_message(target.unwrap_or_default());
        bars.lines[2].set_message(experiment_line(state, &self.doing));
    }

    fn doing(&mut self, what: String) {
        self.doing = what;
        self.redraw();
    }
}

impl Watcher for Progress {
    fn on(&mut self, event: &RunEvent<'_>) {
        match event {
            RunEvent::Started { state, .. } => self.take_state(state),
            RunEvent::Ranked { state } => {
                self.take_state(state);
                let next = if state.workload.whole_us().is_some() { ranking(state) } else { String::new() };
                if !next.is_empty() {
                    self.plain(&format!("next, by what the whole could gain: {next}"));
                }
            }
            RunEvent::Target { target, state } => {
                self.take_state(state);
                // A kernel alone was named in the first line.
                if state.workload.whole_us().is_some() {
                    self.plain(&format!("target {}: {:.0} % of the model", target.op, 100.0 * target.share));
                }
            }
            RunEvent::Proposing => {
                let what = self.state.as_ref().map(|state| waiting_words(&state.agent));
                self.doing(what.unwrap_or_default());
            }
            RunEvent::Experiment { number, description } => self.doing(format!("#{number} {description}")),
            RunEvent::Judging { number, progress } => {
                self.doing(format!("#{number} {}: {}", stage_words(progress.stage), progress.detail));
            }
            RunEvent::Decided { number, description, evaluation, state } => {
                self.take_state(state);
                let line = decided_line(*number, description, evaluation);
                if is_keep(evaluation) {
                    self.scroll(&line);
                } else {
                    self.plain(&line);
                }
            }
            RunEvent::TargetDone { target, reason } => self.plain(&left_line(target, &reason.to_string())),
            RunEvent::Trouble { what } => self.scroll(&format!("warning: {what}")),
            RunEvent::Verifying => {
                self.plain("verifying the whole model, before and after");
                self.doing("verifying the whole model, before and after".into());
            }
            RunEvent::Verified { .. } => {}
        }
        self.redraw();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bars) = &self.bars {
            bars.lines.iter().for_each(ProgressBar::finish_and_clear);
            // Fails only where the terminal is gone.
            drop(bars.all.clear());
        }
    }
}

/// `matmul 1.32x at its roof (37 % of the time), fused_mlp 1.23x (49 %)`: the order is that of the first figure.
fn ranking(state: &RunState) -> String {
    let open = |target: &&TargetState| matches!(target.phase, Phase::Waiting | Phase::Active);
    let ranked = state.workload.ranked(&state.speedups());
    // Nobody has a roofline of what PyTorch computes.
    let at_best = if state.workload.compiled().is_some() { " without it" } else { " at its roof" };
    let words = |(at, target): (usize, &TargetState)| {
        let [roof, time] = if at == 0 { [at_best, " of the time"] } else { [""; 2] };
        let known = ranked.iter().find(|known| known.op == target.op);
        let ceiling = known.map_or(String::new(), |known| format!("{}{roof} ", in_words(known.ceiling)));
        format!("{} {ceiling}({:.0} %{time})", target.op, 100.0 * target.share)
    };
    state.targets.iter().filter(open).enumerate().map(words).collect::<Vec<_>>().join(", ")
}

fn left_line(target: &TargetState, reason: &str) -> String {
    format!("left {}: {:.2}x, {} kept, {} not; {reason}", target.op, target.vs_user(), target.kept, target.not_kept)
}
