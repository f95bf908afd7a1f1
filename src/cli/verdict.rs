//! An evaluation for people.

use std::fmt::Write as _;

use crate::evaluation::{COULD_NOT_LOOK, Evaluation, Examination, ShapeTiming, Stage, Timing, Verdict, sol_score};

/// So many lines of a compiler are shown: one or two for each kernel of a file.
const MOST_REMARKS: usize = 12;

/// What a large margin means, and what to do about it.
pub(super) const NOISY: &str = "; smaller gains cannot be proven until this machine is quieter";

/// The verdict on a kernel outside of any run: the cases by stage, the times of each shape, what the compiler said.
pub(super) fn full(evaluation: &Evaluation) -> String {
    told(evaluation, ["a run would keep it", "a run would revert it"])
}

/// The same of a run's experiment.
pub(super) fn of_a_run(evaluation: &Evaluation) -> String {
    told(evaluation, ["the run kept it", "the run reverted it"])
}

fn told(evaluation: &Evaluation, [kept, reverted]: [&str; 2]) -> String {
    let mut text = String::new();
    let headline = match &evaluation.verdict {
        Verdict::Base => "correct".to_owned(),
        Verdict::Start => "correct, and the first of its target that is".to_owned(),
        Verdict::Keep { speedup, .. } => {
            format!("correct and faster: {:.3}x, at least {:.3}x ({kept})", speedup.ratio, speedup.low)
        }
        Verdict::Revert { speedup, why } => {
            format!("correct, not a gain: {:.3}x; {why} ({reverted})", speedup.ratio)
        }
        other => format!("{} at {}: {}", other.status(), other.stage(), other.why()),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}: {headline}", evaluation.op);
    for stage in [Stage::Smoke, Stage::Sweep, Stage::Stability, Stage::Determinism, Stage::Edges] {
        let cases: Vec<_> = evaluation.cases.iter().filter(|case| case.stage == stage).collect();
        if cases.is_empty() {
            continue;
        }
        let failed = cases.iter().filter(|case| case.failure.is_some()).count();
        let shrunk = cases.iter().filter(|case| case.shrunk).count();
        let worst = cases.iter().map(|case| case.errors.worst.max(case.errors.row_ratio)).fold(0.0, f64::max);
        // A NaN where a number belongs is as far off as a double can say.
        let worst = match worst {
            f64::MAX => "beyond any bound".to_owned(),
            large if large >= 1e6 => format!("{large:.1e} of its bound"),
            _ => format!("{worst:.2} of its bound"),
        };
        let note = if shrunk > 0 { format!(", {shrunk} made smaller for this machine") } else { String::new() };
        let _ = writeln!(
            text,
            "  {:<12} {:>3} cases, {failed} failed, worst error {worst}{note}",
            stage.name(),
            cases.len(),
        );
    }
    if let Some(timing) = &evaluation.timing {
        text.push_str(&shapes(evaluation, timing));
        let noisy = if timing.is_noisy() { NOISY } else { "" };
        let _ = writeln!(text, "  margin here {:.1} %, {} blocks{noisy}", timing.margin_pct(), timing.blocks);
        // A starting point that is itself what there is to beat has a half by definition.
        let itself = evaluation.verdict == Verdict::Base && evaluation.against.is_none();
        if let Some(score) =
            evaluation.vs_user.filter(|_| !itself).and_then(|ratio| sol_score(ratio, timing.roofline_pct))
        {
            let _ =
                writeln!(text, "  SOL score {score:.2} (0.5: as fast as what there is to beat; 1: at the roofline)");
        }
    }
    text.push_str(&beside_pytorch(evaluation));
    if let Some(examination) = &evaluation.examination {
        text.push_str(&examined(examination));
    }
    // Registers, spills and occupancy on a GPU; warnings of a C compiler.
    let remarks: Vec<&str> = evaluation.build_log.lines().filter(|line| !line.trim().is_empty()).collect();
    for line in remarks.iter().take(MOST_REMARKS) {
        let _ = writeln!(text, "  {line}");
    }
    if remarks.len() > MOST_REMARKS {
        let _ = writeln!(text, "  and {} lines more; --json has them all", remarks.len() - MOST_REMARKS);
    }
    let _ = write!(text, "  seed {}, judged in {:.1} s", evaluation.seed, evaluation.wall_s);
    text
}

/// What PyTorch takes, and which cases it could not judge, where it is the oracle.
fn beside_pytorch(evaluation: &Evaluation) -> String {
    let mut text = String::new();
    for baseline in &evaluation.baselines {
        let took = match (&baseline.us, &baseline.why) {
            (Some(us), _) => match &baseline.paired {
                Some(paired) => format!("{us:.1} µs, the kernel is {:.2}x as fast", paired.ratio),
                None => format!("{us:.1} µs"),
            },
            (None, why) => format!("does not work: {}", why.as_deref().unwrap_or("for no reason given")),
        };
        let _ = writeln!(text, "  {} {}: {took}", baseline.name, baseline.dtype);
    }
    if let (Some(ratio), Some(first)) = (evaluation.vs_user, evaluation.baselines.first()) {
        let beaten = evaluation.baselines.iter().find_map(|baseline| baseline.unbeaten.as_deref());
        let beaten = match beaten {
            Some("") => "; the rule keeps it against that".to_owned(),
            Some(why) => format!("; the rule would not keep it against that: {why}"),
            None => String::new(),
        };
        let _ = writeln!(text, "  {ratio:.2}x the fastest of these ({}){beaten}", first.how);
    }
    let untested: Vec<_> = evaluation.cases.iter().filter_map(|case| case.errors.untested.as_ref()).collect();
    if let Some(why) = untested.first() {
        let _ = writeln!(text, "  {} hostile inputs test nothing here and were dropped: {why}", untested.len());
    }
    text
}

/// A topic of the examination that took less is named without its time.
const WORTH_SAYING_S: f64 = 1.0;

/// What the second tier asked.
fn examined(examination: &Examination) -> String {
    let cases: u32 = examination.asked.values().sum();
    let took = |topic: &str| examination.asked_s.get(topic).copied().filter(|seconds| *seconds >= WORTH_SAYING_S);
    let words = |(topic, count): (&String, &u32)| match took(topic) {
        Some(seconds) => format!("{topic} {count} ({seconds:.1} s)"),
        None => format!("{topic} {count}"),
    };
    let asked: Vec<String> = examination.asked.iter().map(words).collect();
    let asked = format!("  examined in {cases} more cases, {:.1} s: {}\n", examination.took_s, asked.join(", "));
    let left_out = examination.left_out.iter().map(|(topic, why)| format!("  could not be asked, {topic}: {why}\n"));
    std::iter::once(asked)
        .chain(left_out)
        .chain(examination.instruments.iter().map(|(name, words)| looked(name, words)))
        .collect()
}

/// What an instrument said; where it could not look, what nobody looked for.
fn looked(name: &str, words: &str) -> String {
    let Some(why) = words.strip_prefix(COULD_NOT_LOOK) else { return format!("  {name}: {words}\n") };
    let unseen = match name {
        "racecheck" => "races over shared memory",
        "memcheck" => "accesses outside of buffers",
        "synccheck" => "barriers that not all threads reach",
        _ => "what it finds",
    };
    format!("  {name} could not look{why}: nobody looked for {unseen}\n")
}

/// A line for each timed shape.
pub(super) fn shapes(evaluation: &Evaluation, timing: &Timing) -> String {
    let compared = !matches!(evaluation.verdict, Verdict::Base | Verdict::Start);
    let line = |shape: &ShapeTiming| {
        let against = if compared { format!(", incumbent {:.1} µs", shape.incumbent_us) } else { String::new() };
        format!(
            "  {} {}: {:.1} µs{against}, {:.0} % of the roofline ({:.1} µs, {} bound)\n",
            shape.shape,
            shape.dtype,
            shape.candidate_us,
            100.0 * shape.roofline_us / shape.candidate_us,
            shape.roofline_us,
            shape.bound
        )
    };
    timing.shapes.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::Speedup;

    #[test]
    fn a_run_did_what_a_bench_would() {
        let speedup = Speedup { ratio: 0.998, low: 0.987 };
        let log = |lines: usize| (0..lines).map(|at| format!("k{at}: 40 registers\n")).collect::<String>();
        let evaluation = |lines| Evaluation {
            op: "rmsnorm".into(),
            backend: "cuda".into(),
            verdict: Verdict::Revert { speedup, why: "slower".into() },
            cases: Vec::new(),
            timing: None,
            vs_user: None,
            against: None,
            baselines: Vec::new(),
            examination: None,
            seed: 1,
            wall_s: 1.0,
            build_log: log(lines),
            stage_s: [].into(),
        };
        assert!(full(&evaluation(1)).contains("0.998x; slower (a run would revert it)\n  k0: 40 registers\n  seed 1"));
        assert!(of_a_run(&evaluation(0)).contains("0.998x; slower (the run reverted it)\n  seed 1"));
        let long = full(&evaluation(MOST_REMARKS + 3));
        assert!(long.contains("k11: ") && !long.contains("k12: ") && long.contains("and 3 lines more"), "{long}");
    }
}
