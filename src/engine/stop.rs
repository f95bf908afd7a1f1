//! When a target ends, and when the run does: pure rules over plain progress.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::evaluation::{Verdict, sol_score};

/// The limits, each of which can be set; `None` switches a rule off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    /// Experiments in a row that were not kept (`--max-reverts`).
    pub max_reverts: Option<u32>,
    /// Percent of the roofline at which a kernel is good enough (`--roofline`).
    pub roofline_pct: Option<f64>,
    /// Speedup against what the user has today at which a kernel is good enough (`--speedup`).
    pub speedup: Option<f64>,
    /// Time for one target (`--per-kernel`).
    pub per_kernel: Option<Duration>,
    /// Time that the second tier may take of each keep; by the budget where it is not set (`--examination`).
    #[serde(default)]
    pub examination: Option<Duration>,
    /// Time for the whole run, earlier sessions of a resumed run included (`--budget`).
    pub budget: Option<Duration>,
    /// When the run must be over (`--until`).
    pub until: Option<Moment>,
    /// Tokens that its agent may read and write (`--max-tokens`).
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// US dollars that its agent may cost (`--max-cost`).
    #[serde(default)]
    pub max_cost: Option<f64>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            max_reverts: Some(5),
            roofline_pct: Some(90.0),
            speedup: Some(2.0),
            per_kernel: Some(Duration::from_secs(2 * 60 * 60)),
            examination: None,
            budget: None,
            until: None,
            max_tokens: None,
            max_cost: None,
        }
    }
}

/// Seconds that the second tier may take of each keep, unless the run is short.
const EXAMINATION_S: f64 = 20.0;

/// Of a short run, the part of its time that one may take; and the least, in which every topic has its turn on a processor.
const EXAMINATION_SHARE: f64 = 0.02;
const LEAST_EXAMINATION_S: f64 = 3.0;

impl Rules {
    /// Seconds that the second tier may take of a keep: some 20, less where the run's time is short.
    #[must_use]
    pub fn examination_s(&self) -> f64 {
        if let Some(time) = self.examination {
            return time.as_secs_f64();
        }
        let share = self.budget.map_or(EXAMINATION_S, |budget| EXAMINATION_SHARE * budget.as_secs_f64());
        share.clamp(LEAST_EXAMINATION_S, EXAMINATION_S)
    }
}

/// Of a run's budget what is kept for the target after the current one, and the most that is.
const ROOM: u32 = 6;
const MOST_ROOM: Duration = Duration::from_secs(120);

/// What the whole must gain from a target at its best for time to be kept for it.
const WORTH_ROOM: f64 = 1.03;

/// A moment, kept in files as text (`2026-03-01T07:00:00Z`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Moment(pub jiff::Timestamp);

impl From<Moment> for String {
    fn from(moment: Moment) -> Self {
        moment.0.to_string()
    }
}

impl TryFrom<String> for Moment {
    type Error = jiff::Error;

    fn try_from(text: String) -> Result<Self, jiff::Error> {
        text.parse().map(Self)
    }
}

/// What comes before the next target can begin, by what it took the last time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ahead {
    /// One more trial of the target, from one decision to the next.
    pub trial: Duration,
    /// Leaving it: the model is asked about its kernel.
    pub leaving: Duration,
}

/// How far a target is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetProgress {
    /// Experiments since the last gain that were not kept.
    pub reverts: u32,
    /// The incumbent's percentage of the roofline, where it was timed.
    pub roofline_pct: Option<f64>,
    /// The incumbent's speedup against what the user has today, where it was measured.
    pub vs_user: Option<f64>,
    /// Time spent on it, over all sessions of the run.
    pub spent: Duration,
    /// Why its agent has nothing left, once it said so.
    pub exhausted: Option<String>,
    /// Whether it is gone on with although it is fast enough, because the run has time that nothing else needs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beyond: bool,
}

impl TargetProgress {
    /// The incumbent's SOL score ([`sol_score`]), where it was timed.
    #[must_use]
    pub fn sol_score(&self) -> Option<f64> {
        sol_score(self.vs_user?, self.roofline_pct?)
    }

    /// Counts a verdict. A gain starts the row anew; a simplification leaves it as it is, or a kernel could be pared
    /// down for ever; a revert, reject, crash, timeout or error is one more that was not kept.
    pub fn record(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Keep { simpler: false, .. } => self.reverts = 0,
            Verdict::Keep { simpler: true, .. } | Verdict::Base | Verdict::Start | Verdict::Withdrawn { .. } => {}
            Verdict::Revert { .. }
            | Verdict::Reject { .. }
            | Verdict::Crash { .. }
            | Verdict::Timeout { .. }
            | Verdict::Error { .. } => self.reverts = self.reverts.saturating_add(1),
        }
    }
}

/// How far the run is.
#[derive(Debug, Clone, PartialEq)]
pub struct RunProgress {
    /// Time spent, over all its sessions.
    pub spent: Duration,
    /// The time of day.
    pub now: Moment,
    /// Targets still to be worked on, the current one included.
    pub targets_left: usize,
    /// Whether the user asked it to end.
    pub interrupted: bool,
    /// Tokens used.
    pub tokens: u64,
    /// US dollars spent.
    pub cost_usd: f64,
}

/// Which rule fired.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum StopReason {
    /// So many experiments in a row were not kept.
    Reverts {
        /// The limit.
        limit: u32,
    },
    /// Near the hardware's limit.
    Roofline {
        /// Percent reached.
        pct: f64,
        /// The limit.
        limit: f64,
    },
    /// Fast enough against what the user has.
    Speedup {
        /// Speedup reached.
        vs_user: f64,
        /// The limit.
        limit: f64,
    },
    /// The target's time is up.
    PerKernel {
        /// The limit.
        limit: Duration,
    },
    /// The agent has nothing left to propose.
    Exhausted {
        /// The agent's words.
        why: String,
    },
    /// The judge could not judge it: the machine or its starting point is at fault.
    Unjudged {
        /// The judge's words.
        why: String,
    },
    /// What is left of the run's time is for another target.
    Room {
        /// How much that is.
        kept: Duration,
        /// The target.
        next: String,
    },
    /// The run's time is up.
    Budget {
        /// The limit.
        limit: Duration,
    },
    /// The hour has come.
    Until {
        /// The limit.
        limit: Moment,
    },
    /// The agent's tokens are used up.
    Tokens {
        /// The limit.
        limit: u64,
    },
    /// The agent's money is spent.
    Cost {
        /// The limit, US dollars.
        limit: f64,
    },
    /// Whoever drove it ended it.
    Closed,
    /// Every target has ended.
    NoTargets,
    /// The user ended it.
    Interrupted,
    /// It was no run of an agent: a watch is over whenever its user goes, and is not resumed.
    Watch,
}

impl Rules {
    /// No limits at all.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            max_reverts: None,
            roofline_pct: None,
            speedup: None,
            per_kernel: None,
            examination: None,
            budget: None,
            until: None,
            max_tokens: None,
            max_cost: None,
        }
    }

    /// The rule by which the target ends, if one does. Where several hold, what was achieved is named before what ran
    /// out: roofline, speedup, exhausted, reverts, time.
    #[must_use]
    pub fn target(&self, progress: &TargetProgress) -> Option<StopReason> {
        let roofline = || {
            let (pct, limit) = (progress.roofline_pct?, self.roofline_pct?);
            (pct >= limit).then_some(StopReason::Roofline { pct, limit })
        };
        let speedup = || {
            let (vs_user, limit) = (progress.vs_user?, self.speedup?);
            (vs_user >= limit && !progress.beyond).then_some(StopReason::Speedup { vs_user, limit })
        };
        let exhausted = || progress.exhausted.clone().map(|why| StopReason::Exhausted { why });
        let reverts = || {
            let limit = self.max_reverts?;
            (progress.reverts >= limit).then_some(StopReason::Reverts { limit })
        };
        let time = || {
            let limit = self.per_kernel?;
            (progress.spent >= limit).then_some(StopReason::PerKernel { limit })
        };
        roofline().or_else(speedup).or_else(exhausted).or_else(reverts).or_else(time)
    }

    /// Whether a target that has had its time is left, so that the one after it, which could make the whole run so many times as fast, begins
    /// within the run's budget. What would come before that takes time as well.
    #[must_use]
    pub fn room(&self, run: Duration, target: Duration, ahead: Ahead, next: Option<(&str, f64)>) -> Option<StopReason> {
        let (next, ceiling) = next?;
        let budget = self.budget?;
        let kept = (budget / ROOM).min(MOST_ROOM);
        let Ahead { trial, leaving } = ahead;
        let due = ceiling >= WORTH_ROOM && target >= kept && run + trial + leaving + kept >= budget;
        due.then(|| StopReason::Room { kept: leaving + kept, next: next.to_owned() })
    }

    /// Whether a run has a time of its own: then it may as well use what is left of it.
    #[must_use]
    pub const fn is_timed(&self) -> bool {
        self.budget.is_some() || self.until.is_some()
    }

    /// The rule by which the run ends, if one does: interrupted, no targets, budget, until, tokens, cost.
    #[must_use]
    pub fn run(&self, progress: &RunProgress) -> Option<StopReason> {
        let interrupted = progress.interrupted.then_some(StopReason::Interrupted);
        let no_targets = (progress.targets_left == 0).then_some(StopReason::NoTargets);
        let budget = self.budget.filter(|limit| progress.spent >= *limit).map(|limit| StopReason::Budget { limit });
        let until = self.until.filter(|limit| progress.now >= *limit).map(|limit| StopReason::Until { limit });
        let tokens =
            self.max_tokens.filter(|limit| progress.tokens >= *limit).map(|limit| StopReason::Tokens { limit });
        let cost = self.max_cost.filter(|limit| progress.cost_usd >= *limit).map(|limit| StopReason::Cost { limit });
        interrupted.or(no_targets).or(budget).or(until).or(tokens).or(cost)
    }

    /// How long an agent may still think on a target, after so much time for run and target; `None` without a limit.
    #[must_use]
    pub fn time_left(&self, run: Duration, target: Duration, now: Moment) -> Option<Duration> {
        let until = self.until.map(|limit| Duration::try_from(limit.0.duration_since(now.0)).unwrap_or_default());
        let of = |limit: Option<Duration>, spent| limit.map(|limit| limit.saturating_sub(spent));
        [of(self.budget, run), of(self.per_kernel, target), until].into_iter().flatten().min()
    }
}

impl StopReason {
    /// Whether it ends the whole run rather than one target.
    #[must_use]
    pub const fn ends_run(&self) -> bool {
        match self {
            Self::Budget { .. } | Self::Until { .. } | Self::Tokens { .. } | Self::Cost { .. } => true,
            Self::NoTargets | Self::Closed | Self::Interrupted | Self::Watch => true,
            Self::Reverts { .. } | Self::Roofline { .. } | Self::Speedup { .. } | Self::PerKernel { .. } => false,
            Self::Exhausted { .. } | Self::Unjudged { .. } | Self::Room { .. } => false,
        }
    }
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sentence = match self {
            Self::Reverts { limit: 1 } => "1 revert".to_owned(),
            Self::Reverts { limit } => format!("{limit} reverts in a row"),
            Self::Roofline { pct, limit } => format!("{pct:.0} % of the roofline (limit {limit:.0} %)"),
            Self::Speedup { vs_user, limit } => format!("{vs_user:.2}x what you had (limit {limit}x)"),
            Self::PerKernel { limit } => format!("its {} are over", words(*limit)),
            Self::Exhausted { why } => format!("nothing left to propose: {why}"),
            Self::Unjudged { why } => format!("it could not be judged: {why}"),
            Self::Room { kept, next } => format!("the last {} of the run's budget are for {next}", words(*kept)),
            Self::Budget { limit } => format!("the run's budget of {} is spent", words(*limit)),
            Self::Until { limit } => {
                format!("it is {}", limit.0.to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M"))
            }
            Self::Tokens { limit } => format!("the agent's {limit} tokens are used up"),
            Self::Cost { limit } => format!("the agent's ${limit:.2} are spent"),
            Self::Closed => "whoever drove it ended it".to_owned(),
            Self::NoTargets => "no targets left".to_owned(),
            Self::Interrupted => "interrupted".to_owned(),
            Self::Watch => "the watch is over".to_owned(),
        };
        f.pad(&sentence)
    }
}

/// A duration for people: `2h`, `1h30`, `45 min`, `90 s`, `5 ms`.
fn words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, 0, 0) => format!("{} ms", duration.as_millis()),
        (0, minutes, 0) if minutes > 0 => format!("{minutes} min"),
        (0, _, _) => format!("{seconds} s"),
        (hours, 0, _) => format!("{hours}h"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}"),
    }
}

/// The next moment at which clocks show `text` (`07:00`), strictly after `now`: what `--until` means.
///
/// # Errors
/// A text that is not a time of day, or a day on which the calendar ends.
pub fn next_time_of_day(text: &str, now: &jiff::Zoned) -> Result<Moment, UntilError> {
    let wrong = || UntilError { text: text.to_owned() };
    let time = jiff::civil::Time::strptime("%H:%M", text.trim()).map_err(|_| wrong())?;
    let today = now.with().time(time).build().map_err(|_| wrong())?;
    let next = if today > *now {
        today
    } else {
        now.tomorrow().and_then(|day| day.with().time(time).build()).map_err(|_| wrong())?
    };
    Ok(Moment(next.timestamp()))
}

/// A text that is no time of day.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a time of day; write hours and minutes, as in `--until 07:00`")]
pub struct UntilError {
    text: String,
}

#[cfg(test)]
mod tests;
