//! What of a run goes into the user's branch, and the words of that commit.

use crate::report::milliseconds;

use super::{RunState, TargetState};

/// The longest subject that `git log --oneline` shows well.
const LONGEST_SUBJECT: usize = 72;

impl RunState {
    /// The targets whose kernel beats what the user has: these are installed. In the order they were worked on.
    pub fn winners(&self) -> impl Iterator<Item = &TargetState> {
        self.targets.iter().filter(|target| target.kept > 0 && target.vs_user() > 1.0)
    }

    /// The targets whose kernel was improved and still does not beat what the user has (a library, on a GPU).
    pub fn not_installed(&self) -> impl Iterator<Item = &TargetState> {
        self.targets.iter().filter(|target| target.kept > 0 && target.vs_user() <= 1.0)
    }

    /// The message of the commit with these winners: what became faster, by how much, measured where and by which run.
    /// `files` are where they go, in the order of [`Self::winners`].
    #[must_use]
    pub fn winners_message(&self, files: &[String]) -> String {
        let winners: Vec<&TargetState> = self.winners().collect();
        let each: Vec<String> =
            winners.iter().map(|target| format!("{} {:.2}x", target.op, target.vs_user())).collect();
        let mut subject = format!("Faster kernels of run {}: {}", self.run, each.join(", "));
        if subject.chars().count() > LONGEST_SUBJECT {
            subject = format!("Faster kernels of run {} for {} operations", self.run, winners.len());
        }
        let mut lines = vec![
            subject,
            String::new(),
            format!("Measured on {} ({})", self.device, self.backend),
            format!("with {}, {}:", self.model, self.workload()),
            String::new(),
        ];
        for (target, file) in winners.iter().zip(files) {
            let times = target.start_us.zip(target.best_us).map_or(String::new(), |(start, best)| {
                format!(", {} -> {} a pass", milliseconds(start), milliseconds(best))
            });
            lines.push(format!("- {}: {:.2}x what was there before{times}", target.op, target.vs_user()));
            lines.push(format!("  {file}"));
        }
        lines.extend(self.model_lines());
        lines.join("\n")
    }

    /// What is known of the whole model.
    fn model_lines(&self) -> Vec<String> {
        let said = match (&self.verified, self.predicted()) {
            (Some(report), _) => {
                let outputs = if report.output.wrong.is_none() { "outputs agree" } else { "OUTPUTS DIFFER" };
                format!("The whole model: {:.2}x measured, {outputs}.", report.measured.median)
            }
            (None, Some((_, ratio))) => format!("The whole model: {ratio:.2}x predicted."),
            (None, None) => return Vec::new(),
        };
        vec![String::new(), said]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::run::VERSION;
    use crate::run::stop::{Rules, TargetProgress};

    fn target(op: &str, kept: u32, vs_user: Option<f64>) -> TargetState {
        TargetState {
            kept,
            start_us: Some(3180.0),
            best_us: Some(2500.0),
            progress: TargetProgress { vs_user, ..TargetProgress::default() },
            ..TargetState::new(op, format!("kernels/cpu/{op}.c"), "text".to_owned(), Vec::new())
        }
    }

    fn state(targets: Vec<TargetState>) -> RunState {
        RunState {
            version: VERSION,
            run: "261120a".into(),
            model: "models/tiny-llama".into(),
            pass: crate::model::Pass {
                phase: crate::model::Phase::Prefill,
                batch: 1,
                seq: 128,
                dtype: crate::op::Dtype::F32,
                layers: None,
            },
            agent: crate::agent::Choice::Tuner,
            bill: crate::agent::Bill::default(),
            backend: "cpu".into(),
            device: "two cores".into(),
            device_key: "cpu-1".into(),
            judge: String::new(),
            seed: 1,
            rules: Rules::default(),
            elapsed_s: 0.0,
            busy_s: 0.0,
            next_experiment: 1,
            before: None,
            targets,
            in_model: None,
            resumed: 0,
            ceilings: None,
            troubles: Vec::new(),
            ended: None,
            verified: None,
        }
    }

    #[test]
    fn only_what_beats_what_the_user_has_is_a_winner() {
        let state = state(vec![
            target("a", 1, Some(1.5)),
            target("b", 1, Some(1.0)),
            target("c", 2, Some(0.6)),
            target("d", 0, Some(1.5)),
            target("e", 1, None),
            target("f", 1, Some(f64::NAN)),
        ]);
        let ops = |targets: Vec<&TargetState>| targets.iter().map(|target| target.op.clone()).collect::<Vec<_>>();
        assert_eq!(ops(state.winners().collect()), ["a"]);
        assert_eq!(ops(state.not_installed().collect()), ["b", "c", "e"]);
    }

    #[test]
    fn the_message_says_what_by_how_much_where_and_from_which_run() {
        let state = state(vec![target("flash_attention", 2, Some(1.326)), target("matmul", 0, None)]);
        insta::assert_snapshot!(state.winners_message(&["kernels/cpu/flash_attention.c".into()]), @r"
        Faster kernels of run 261120a: flash_attention 1.33x

        Measured on two cores (cpu)
        with models/tiny-llama, 1x128 tokens, f32:

        - flash_attention: 1.33x what was there before, 3.18 ms -> 2.50 ms a pass
          kernels/cpu/flash_attention.c
        ");
    }

    #[test]
    fn a_subject_that_would_be_too_long_counts_the_operations() {
        let many = ["flash_attention", "rotary_embedding", "fused_mlp", "matmul"];
        let state = state(many.iter().map(|op| target(op, 1, Some(1.5))).collect());
        let message = state.winners_message(&many.map(|op| format!("kernels/cpu/{op}.c")));
        assert_eq!(message.lines().next(), Some("Faster kernels of run 261120a for 4 operations"));
        assert!(many.iter().all(|op| message.contains(&format!("- {op}: 1.50x"))), "{message}");
    }
}
