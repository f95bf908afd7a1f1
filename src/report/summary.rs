//! The summary: per target where it started and stands, what was tried, why it stopped; the model before and after.

use std::time::Duration;

use super::figures::counted;

/// A run in a page.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The run's name.
    pub run: String,
    /// Experiments made.
    pub experiments: u64,
    /// Time spent.
    pub spent: Duration,
    /// Share of the time in which the device was at work (0 to 1).
    pub busy: f64,
    /// What the agent used, where it used anything.
    pub agent: Option<String>,
    /// Why it ended.
    pub ended: String,
    /// Each target, in the order they were worked on.
    pub targets: Vec<TargetSummary>,
    /// What was improved.
    pub subject: Subject,
}

/// What a run improves.
#[derive(Debug, Clone, PartialEq)]
pub enum Subject {
    /// A model; its figures where it was profiled.
    Model(Option<ModelSummary>),
    /// A single kernel, outside of any model: the run's only target.
    Kernel(KernelSummary),
}

/// A kernel on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSummary {
    /// Its file.
    pub file: String,
    /// The shapes it was timed at, in words.
    pub at: String,
}

/// One target in a line and a reason.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetSummary {
    /// The operation.
    pub op: String,
    /// Share of the model at the last ranking (0 to 1).
    pub share: f64,
    /// Σ calls × time at the start and now, µs, where it was timed.
    pub times_us: Option<(f64, f64)>,
    /// Speed against what the user had.
    pub vs_user: f64,
    /// Percent of the roofline.
    pub roofline_pct: Option<f64>,
    /// Experiments kept.
    pub kept: u32,
    /// Experiments that were right and not faster.
    pub reverted: u32,
    /// Experiments that were wrong, crashed, hung or did not compile.
    pub rejected: u32,
    /// Why it was left.
    pub why: String,
}

/// The whole model before and after.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSummary {
    /// µs of a pass before.
    pub before_us: f64,
    /// Speedup that the targets' speedups predict.
    pub predicted: f64,
    /// Speedup measured on the whole model, with its interval, where it was measured.
    pub measured: Option<(f64, f64, f64)>,
    /// What the comparison of the outputs says.
    pub outputs: Option<String>,
}

/// Experiments an hour.
#[must_use]
pub fn an_hour(experiments: u64, spent: Duration) -> f64 {
    if spent.is_zero() { 0.0 } else { experiments as f64 * 3600.0 / spent.as_secs_f64() }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "run {}: {} in {} ({:.0}/h), device busy {:.0} %; ended because {}",
            self.run,
            counted(self.experiments as usize, "experiment", "experiments"),
            spell(self.spent),
            an_hour(self.experiments, self.spent),
            100.0 * self.busy,
            self.ended
        )?;
        if let Some(agent) = &self.agent {
            writeln!(f, "agent {agent}")?;
        }
        writeln!(f)?;
        // A kernel alone is all there is.
        let share = |words: String| match &self.subject {
            Subject::Model(_) => format!(" {words:>6}"),
            Subject::Kernel(_) => String::new(),
        };
        writeln!(
            f,
            "  {:<18}{} {:>22} {:>8} {:>6}  {:>4} {:>6} {:>6}  stopped because",
            "target",
            share("share".to_owned()),
            "start -> now",
            "vs yours",
            "roof",
            "kept",
            "revert",
            "reject"
        )?;
        for target in &self.targets {
            let times = target
                .times_us
                .map_or_else(|| "-".to_owned(), |(start, now)| format!("{} -> {}", latency(start), latency(now)));
            let roofline = target.roofline_pct.map_or_else(|| "-".to_owned(), |pct| format!("{pct:.0} %"));
            writeln!(
                f,
                "  {:<18}{} {:>22} {:>7.2}x {:>6}  {:>4} {:>6} {:>6}  {}",
                target.op,
                share(format!("{:.0} %", 100.0 * target.share)),
                times,
                target.vs_user,
                roofline,
                target.kept,
                target.reverted,
                target.rejected,
                target.why
            )?;
        }
        match &self.subject {
            Subject::Model(None) => Ok(()),
            Subject::Model(Some(model)) => write!(f, "\n{model}"),
            Subject::Kernel(kernel) => {
                let (start, now) = self.targets.first().and_then(|target| target.times_us).unzip();
                let time = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), latency);
                writeln!(f, "\n  {} at {}: {} -> {}", kernel.file, kernel.at, time(start), time(now))
            }
        }
    }
}

impl std::fmt::Display for ModelSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "  model {} -> {} predicted ({})",
            latency(self.before_us),
            latency(self.before_us / self.predicted),
            fine_times(self.predicted)
        )?;
        if let Some((ratio, low, high)) = self.measured {
            let digits = places(ratio);
            write!(f, ", measured {ratio:.digits$}x ({low:.digits$} to {high:.digits$})")?;
        }
        writeln!(f)?;
        if let Some(outputs) = &self.outputs {
            writeln!(f, "  {outputs}")?;
        }
        Ok(())
    }
}

/// Places behind the point of a speedup: near 1, two would hide it.
pub(super) fn places(ratio: f64) -> usize {
    if (0.9..1.1).contains(&ratio) { 3 } else { 2 }
}

/// A speedup for people: `2.31x`, `1.024x`.
#[must_use]
pub fn fine_times(ratio: f64) -> String {
    format!("{ratio:.*}x", places(ratio))
}

/// A latency for people, in three digits or more: `12.40 ms`, `0.226 ms`, `31.2 µs`.
#[must_use]
pub fn latency(us: f64) -> String {
    let ms = us / 1000.0;
    if ms >= 1.0 {
        format!("{ms:.2} ms")
    } else if ms >= 0.1 {
        format!("{ms:.3} ms")
    } else {
        format!("{us:.1} µs")
    }
}

/// A length of time for people: `3h12`, `41 min`, `12 s`.
#[must_use]
pub fn spell(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) if minutes < 10 => format!("{minutes} min {:02} s", seconds % 60),
        (0, minutes, _) => format!("{minutes} min"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_names_start_end_and_reason_of_every_target() {
        let summary = Summary {
            run: "261120a".into(),
            experiments: 14,
            spent: Duration::from_secs(3 * 60 + 7),
            busy: 0.71,
            agent: None,
            ended: "no targets left".into(),
            targets: vec![TargetSummary {
                op: "matmul".into(),
                share: 0.62,
                times_us: Some((12_400.0, 6_200.0)),
                vs_user: 2.0,
                roofline_pct: Some(41.0),
                kept: 3,
                reverted: 2,
                rejected: 1,
                why: "2.00x what you had (limit 2x)".into(),
            }],
            subject: Subject::Model(Some(ModelSummary {
                before_us: 20_000.0,
                predicted: 1.45,
                measured: Some((1.44, 1.43, 1.46)),
                outputs: None,
            })),
        };
        let text = summary.to_string();
        for part in [
            "14 experiments in 3 min 07 s",
            "12.40 ms -> 6.20 ms",
            "2.00x",
            "41 %",
            "(limit 2x)",
            "measured 1.44x (1.43 to 1.46)",
            "vs yours",
            " 62 %",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let kernel = KernelSummary { file: "kernels/cpu/softmax.c".into(), at: "rows=8 f32".into() };
        let mut alone = Summary { subject: Subject::Kernel(kernel), ..summary };
        alone.targets[0].times_us = Some((12_400.0, 620.0));
        let text = alone.to_string();
        assert!(text.ends_with("\n\n  kernels/cpu/softmax.c at rows=8 f32: 12.40 ms -> 0.620 ms\n"), "{text}");
        assert!(!text.contains("predicted") && !text.contains("share") && !text.contains("62 %"), "{text}");
        alone.targets[0].times_us = None;
        assert!(alone.to_string().ends_with("at rows=8 f32: - -> -\n"), "{alone}");
    }

    #[test]
    fn a_small_gain_has_three_places() {
        let told = [1.0, 0.994, 1.0216, 1.0999, 1.1, 0.89, 2.314].map(fine_times);
        assert_eq!(told, ["1.000x", "0.994x", "1.022x", "1.100x", "1.10x", "0.89x", "2.31x"]);
    }

    #[test]
    fn lengths_of_time_are_short() {
        let spelled = |s| spell(Duration::from_secs(s));
        assert_eq!(
            [spelled(12), spelled(187), spelled(2460), spelled(11_520)],
            ["12 s", "3 min 07 s", "41 min", "3h12"]
        );
    }
}
