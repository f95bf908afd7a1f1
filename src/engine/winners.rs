//! What of a run goes into the user's branch, and the words of that commit.

use crate::report::{fine_times, latency};

use super::{RunState, TargetState};

/// The longest subject that `git log --oneline` shows well.
const LONGEST_SUBJECT: usize = 72;

impl RunState {
    /// The targets whose kernel beats what the user has, in the model too: these are installed. In the order they were worked on.
    pub fn winners(&self) -> impl Iterator<Item = &TargetState> {
        self.targets.iter().filter(|target| target.kept > 0 && target.gain() > 1.0)
    }

    /// The targets whose kernel was improved and still does not beat what the user has (a library, on a GPU), or makes the model slower.
    pub fn not_installed(&self) -> impl Iterator<Item = &TargetState> {
        self.targets.iter().filter(|target| target.kept > 0 && target.gain() <= 1.0)
    }

    /// The targets whose kernel beats what the user has (a library, on a GPU) as it stood at the start: the model was measured
    /// with these too, and there is nothing to bring.
    pub fn fast_from_the_start(&self) -> impl Iterator<Item = &TargetState> {
        self.targets.iter().filter(|target| target.kept == 0 && target.gain() > 1.0)
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
            match self.single() {
                Some(_) => format!("at {}:", self.timed_at()),
                None => format!("with {}, {}:", self.model, self.timed_at()),
            },
            String::new(),
        ];
        let each = if self.single().is_some() { "" } else { " a pass" };
        for (target, file) in winners.iter().zip(files) {
            let times = target
                .start_us
                .zip(target.best_us)
                .map_or(String::new(), |(start, best)| format!(", {} -> {}{each}", latency(start), latency(best)));
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
                format!("The whole model: {} measured, {outputs}.", fine_times(report.measured.median))
            }
            (None, Some((_, ratio))) => format!("The whole model: {} predicted.", fine_times(ratio)),
            (None, None) => return Vec::new(),
        };
        let mut lines = vec![String::new(), said];
        // What the figure counts and the commit does not bring.
        lines.extend(self.fast_from_the_start().map(|target| {
            let than = target.against.as_deref().unwrap_or("what was there before");
            format!("It counts {} as it was, {:.2}x {than}: {}", target.op, target.vs_user(), target.file)
        }));
        lines
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::engine::stop::{Rules, TargetProgress};
    use crate::engine::{VERSION, Workload};

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
            workload: Workload::Model(Box::new(crate::profile::sample())),
            agent: crate::agent::Choice::Tuner,
            usage: crate::agent::Usage::default(),
            backend: "cpu".into(),
            device: "two cores".into(),
            device_key: "cpu-1".into(),
            judge: String::new(),
            seed: 1,
            rules: Rules::default(),
            elapsed_s: 0.0,
            busy_s: 0.0,
            next_experiment: 1,
            trials: 0,
            decided: 0,
            targets,
            in_model: None,
            resumed: 0,
            resumed_at: Vec::new(),
            ceilings: None,
            troubles: Vec::new(),
            closing: false,
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

        The whole model: 1.000x predicted.
        ");
    }

    #[test]
    fn the_message_of_a_kernel_alone_says_at_which_shapes() {
        let at = |rows| crate::op::TargetShape {
            shape: crate::op::Shape::from([("rows", rows)]),
            dtype: crate::op::Dtype::F32,
            calls: 1,
        };
        let kernel = TargetState { shapes: vec![at(8), at(9)], ..target("softmax", 1, Some(1.326)) };
        let state = RunState { workload: Workload::Operation, ..state(vec![kernel]) };
        insta::assert_snapshot!(state.winners_message(&["kernels/cpu/softmax.c".into()]), @r"
        Faster kernels of run 261120a: softmax 1.33x

        Measured on two cores (cpu)
        at rows=8 f32; rows=9 f32:

        - softmax: 1.33x what was there before, 3.18 ms -> 2.50 ms
          kernels/cpu/softmax.c
        ");
    }

    #[test]
    fn the_message_names_what_the_models_figure_counts_and_the_commit_does_not_bring() {
        let starter = TargetState { against: Some("cuBLAS".into()), ..target("fused_mlp", 0, Some(1.06)) };
        let mut state = state(vec![target("rmsnorm", 2, Some(1.12)), starter, target("matmul", 0, Some(0.6))]);
        let files = ["kernels/cpu/rmsnorm.c".to_owned()];
        state.verified = Some(report());
        let message = state.winners_message(&files);
        let tail: Vec<&str> = message.lines().rev().take(2).collect();
        assert_eq!(tail[0], "It counts fused_mlp as it was, 1.06x cuBLAS: kernels/cpu/fused_mlp.c");
        assert_eq!(tail[1], "The whole model: 1.021x measured, outputs agree.");
        assert!(!message.contains("matmul"), "{message}");
    }

    fn report() -> crate::verify::Report {
        let json = serde_json::json!({
            "model": "tiny", "device": "two cores", "parts": [], "notes": [],
            "pass": {"phase": "prefill", "batch": 1, "seq": 128, "dtype": "f32", "layers": null},
            "output": {"bound": 2e-4, "rms_relative": 1e-7, "same_token": 1, "positions": 1, "wrong": null},
            "measured": {"median": 1.021, "low": null, "high": null, "before_us": 1.0, "after_us": 1.0, "passes": 0,
                "sessions": []},
            "predicted": 1.0, "from_parts": 1.0,
        });
        serde_json::from_value(json).unwrap()
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
