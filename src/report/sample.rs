//! Invented runs for tests: any number of targets and experiments, every outcome, hostile words.

use std::time::Duration;

use crate::rng::Stream;

use super::data::{
    CeilingLines, Measured, Outcome, Outputs, PartKind, PartReport, RunReport, ShapeReport, TargetReport, TargetWork,
    TimingReport, Try, Whole,
};

/// An experiment without figures.
pub(super) fn tried(number: u64, outcome: Outcome) -> Try {
    Try {
        number,
        technique: if outcome == Outcome::Base { "start" } else { "tune" }.to_owned(),
        description: format!("experiment {number}"),
        outcome,
        predicted: None,
        speedup: None,
        vs_user: None,
        commit: format!("{number:010x}"),
        stage: "sweep".to_owned(),
        why: String::new(),
    }
}

/// A target that was begun.
pub(super) fn target(op: &str, tries: Vec<Try>) -> TargetReport {
    TargetReport {
        op: op.to_owned(),
        file: format!("kernels/cpu/{op}.c"),
        share: 0.2,
        begun: true,
        left: true,
        why: "5 reverts in a row".to_owned(),
        spent: Duration::from_secs(600),
        vs_user: Some(1.5),
        sol_score: None,
        against: None,
        start_us: Some(900.0),
        best_us: Some(600.0),
        timing: None,
        tries,
        work: None,
    }
}

/// An operation in the Amdahl table.
pub(super) fn part(name: &str, before_us: f64, after_us: f64) -> PartReport {
    PartReport {
        name: name.to_owned(),
        kind: PartKind::Op,
        calls: 8,
        before_us,
        after_us,
        roofline_us: Some(before_us / 3.0),
        vs_user: Some(before_us / after_us),
        in_place: None,
    }
}

/// A run over these targets that has not ended, of which nothing is known but its experiments.
pub(super) fn bare(targets: Vec<TargetReport>) -> RunReport {
    RunReport {
        run: "261120a".to_owned(),
        model: "models/tiny-llama".to_owned(),
        pass: "1 × 128 tokens, f32".to_owned(),
        device: "a processor".to_owned(),
        backend: "cpu".to_owned(),
        agent: "tuner".to_owned(),
        used: None,
        span: None,
        spent: Duration::ZERO,
        busy: 0.0,
        ended: None,
        resumed: 0,
        resumed_at: Vec::new(),
        troubles: Vec::new(),
        whole: Some(Whole::default()),
        parts: Vec::new(),
        targets,
        ceilings: None,
        notes: Vec::new(),
        seed: 1,
    }
}

const OPS: [(&str, f64, f64); 9] = [
    ("matmul", 0.46, 250.0),
    ("flash_attention", 0.21, 90.0),
    ("fused_mlp", 0.11, 400.0),
    ("rmsnorm", 0.06, 0.9),
    ("softmax", 0.04, 1.2),
    ("cross_entropy", 0.03, 1.0),
    ("rotary_embedding", 0.02, 1.5),
    ("layernorm", 0.02, 2.0),
    ("reduce", 0.01, 0.5),
];
const TECHNIQUES: [&str; 5] = ["tune", "vector-loads", "split-k", "warp-specialise", "persistent"];

/// A night on a GPU: `count` experiments over `targets` (at most 9) targets, with every outcome.
pub(super) fn night(count: u64, targets: usize) -> RunReport {
    let each = (count / targets as u64).max(1);
    let begun: Vec<TargetReport> = (0..targets).map(|at| worked_on(at, at as u64 * each + 1, each)).collect();
    let whole_us = 41_800.0;
    let mut parts: Vec<PartReport> = OPS[..targets]
        .iter()
        .zip(&begun)
        .map(|((op, share, _), target)| {
            part(op, share * whole_us, share * whole_us / target.vs_user.unwrap_or(1.0).max(1.0))
        })
        .collect();
    parts.push(PartReport { kind: PartKind::Glue, vs_user: None, ..part("embedding", 320.0, 320.0) });
    parts.push(PartReport {
        kind: PartKind::Other,
        calls: 0,
        vs_user: None,
        roofline_us: None,
        ..part("other", 900.0, 900.0)
    });
    RunReport {
        model: "models/llama-7b".to_owned(),
        pass: "1 × 2048 tokens, bf16".to_owned(),
        device: "NVIDIA H200".to_owned(),
        backend: "cuda".to_owned(),
        span: Some(["2026-11-20T22:58:03".to_owned(), "2026-11-21T07:00:11".to_owned()]),
        spent: Duration::from_secs(28_900),
        busy: 0.83,
        ended: Some("it is 07:00".to_owned()),
        resumed: 2,
        resumed_at: vec![14, 90],
        troubles: vec![(14, "#14 is judged again: the worker died (signal 9)".to_owned())],
        whole: Some(Whole {
            before_us: Some(whole_us),
            predicted: Some(1.41),
            measured: Some(Measured { ratio: 1.374, interval: Some((1.361, 1.388)), passes_us: (41_900.0, 30_500.0) }),
            outputs: Some(Outputs {
                agree: true,
                words: "outputs agree to 3.1e-3 of their rms (bound 9.0e-2); same next token at 2047 of 2048 positions"
                    .to_owned(),
            }),
        }),
        parts,
        ceilings: Some(CeilingLines {
            read_gb_s: 4_380.0,
            write_gb_s: 4_010.0,
            arithmetic: Some(("bf16".to_owned(), 712_000.0)),
        }),
        notes: vec!["the first 8 of 32 layers are run".to_owned()],
        ..bare(begun)
    }
}

/// A target with `count` experiments from `first` on.
fn worked_on(at: usize, first: u64, count: u64) -> TargetReport {
    let (op, share, intensity) = OPS[at];
    let mut best = 1.0;
    let tries: Vec<Try> = (0..count)
        .map(|step| {
            let dice = Stream::new(7, op).bits(first + step) % 1000;
            let luck = dice as f64 / 1000.0;
            let outcome = match dice {
                _ if step == 0 => Outcome::Base,
                0..100 => Outcome::Keep,
                100..780 => Outcome::Revert,
                780..900 => Outcome::Reject,
                900..930 => Outcome::Crash,
                930..960 => Outcome::Timeout,
                _ => Outcome::Error,
            };
            let ratio = match outcome {
                Outcome::Keep => Some(1.012 + luck * 4.0 / (1.0 + 0.3 * step as f64)),
                Outcome::Revert => Some(0.55 + 0.6 * luck),
                _ => None,
            };
            if outcome == Outcome::Keep {
                best *= ratio.unwrap_or(1.0);
            }
            Try {
                technique: if step == 0 { "start" } else { TECHNIQUES[(dice / 7) as usize % 5] }.to_owned(),
                description: if step == 0 { "the kernel as it is".to_owned() } else { format!("BLOCK_M 32→64, STAGES 2→{}", dice % 7) },
                predicted: (step > 0 && !dice.is_multiple_of(3)).then_some(1.0 + luck / 3.0),
                speedup: ratio.map(|ratio| (ratio, ratio * 0.985)),
                vs_user: matches!(outcome, Outcome::Base | Outcome::Keep).then_some(0.8 * best),
                why: match outcome {
                    Outcome::Revert => "not faster than the margin of 1.1 %".to_owned(),
                    Outcome::Reject => "3 of 4096 elements are outside their bound; the worst is element 17: 1.20312 where 1.19727 belongs".to_owned(),
                    Outcome::Error => "error: identifier \"vec4\" is undefined (line 31)".to_owned(),
                    _ => String::new(),
                },
                ..tried(first + step, outcome)
            }
        })
        .collect();
    let start_us = 41_800.0 * share;
    TargetReport {
        share,
        vs_user: Some(0.8 * best),
        sol_score: Some(0.41),
        against: Some("cuBLAS".to_owned()).filter(|_| at == 0),
        start_us: Some(start_us),
        best_us: Some(start_us / best),
        timing: Some(TimingReport {
            latency_us: start_us / best,
            spread: 0.0021,
            margin: 0.011,
            roofline_pct: 58.3,
            confirmations: vec![1.031, 1.028, 1.033],
            condition: Some("1755 MHz, 698 W of 700 W, capped by power".to_owned()),
            shapes: vec![
                ShapeReport {
                    label: "B=1 M=2048 N=4096 K=4096 bf16".to_owned(),
                    calls: 32,
                    us: 180.0,
                    roofline_us: 98.0,
                    bound: "compute".to_owned(),
                },
                ShapeReport {
                    label: "B=1 M=2048 N=32000 K=4096 bf16".to_owned(),
                    calls: 1,
                    us: 1220.0,
                    roofline_us: 760.0,
                    bound: "compute".to_owned(),
                },
            ],
        }),
        work: Some(TargetWork { flops: start_us * intensity * 1.3e6, bytes: start_us * 1.3e6 }),
        ..target(op, tries)
    }
}
