//! Which kernel is to blame: each one alone in the model as it was, and the model with all but that one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::ask::{compare, installed};
use super::{Change, Question, Speedup, VerifyError, predicted};
use crate::forward::{Depth, OutputCheck};
use crate::model::Pass;
use crate::worker::{Client, WorkerError};

/// Share of the pass (as it was) that must be missing before a kernel is named: one timed alone predicts the whole only to
/// some percent, since caches and clocks in the model are not its own.
const LEAST_LOSS: f64 = 0.03;

/// One swap: what the model said and how fast it was, or why it did not get so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trial {
    /// It ran.
    Ran {
        /// Against the model as it was.
        speedup: Speedup,
        /// Against what that one says.
        output: OutputCheck,
    },
    /// It did not compile, crashed or hung.
    Failed {
        /// In a sentence.
        why: String,
    },
}

/// A kernel with its trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Suspect {
    /// The operation.
    pub op: String,
    /// The judge's speedup over what the user has; 1 where no judge has seen it.
    pub vs_user: f64,
    /// What it alone should do for the whole, by Amdahl's law.
    pub predicted: f64,
    /// It alone.
    pub alone: Trial,
    /// All but it; none where it is the only one.
    pub without: Option<Trial>,
}

/// A kernel that is to blame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Culprit {
    /// The operation.
    pub op: String,
    /// For what, in half a sentence.
    pub why: String,
}

/// Everything that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// The model's name.
    pub model: String,
    /// The pass.
    pub pass: Pass,
    /// The device's name.
    pub device: String,
    /// What all of them together should do for the whole.
    pub predicted: f64,
    /// All of them together.
    pub all: Trial,
    /// Each of them.
    pub suspects: Vec<Suspect>,
    /// Those to blame, wrong outputs before lost time.
    pub culprits: Vec<Culprit>,
}

/// Where the time of a pass goes as it is before; µs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Shares {
    /// A whole pass.
    pub whole_us: f64,
    /// All calls of an operation, by its name.
    pub op_us: BTreeMap<String, f64>,
}

impl Trial {
    /// Whether it ran and says what the model said before.
    #[must_use]
    pub const fn is_right(&self) -> bool {
        matches!(self, Self::Ran { output: OutputCheck { wrong: None, .. }, .. })
    }

    /// What is wrong with it; `None` where nothing is.
    fn fault(&self) -> Option<&str> {
        match self {
            Self::Ran { output, .. } => output.wrong.as_deref(),
            Self::Failed { why } => Some(why),
        }
    }

    /// How much faster, where it ran.
    const fn speedup(&self) -> Option<&Speedup> {
        match self {
            Self::Ran { speedup, .. } => Some(speedup),
            Self::Failed { .. } => None,
        }
    }
}

/// Tries every kernel of `question` alone, and the model without it. `tell` hears what is being tried.
///
/// # Errors
/// [`VerifyError`]; a kernel that takes the worker down with it is a finding.
pub async fn diagnose(
    worker: &mut Client,
    question: &Question<'_>,
    shares: &Shares,
    read: &dyn Fn(&str) -> Option<String>,
    cancel: &CancellationToken,
    tell: &mut dyn FnMut(&str),
) -> Result<Diagnosis, VerifyError> {
    let changes = installed(question);
    let all: BTreeSet<&str> = changes.iter().map(|change| change.op.as_str()).collect();
    // With two kernels, all but one is the other alone.
    let mut tried: BTreeMap<BTreeSet<&str>, Trial> = BTreeMap::new();
    let mut sets = vec![all.clone()];
    for &op in &all {
        sets.push(BTreeSet::from([op]));
        sets.push(all.iter().copied().filter(|other| *other != op).collect());
    }
    for set in sets.into_iter().filter(|set| !set.is_empty()) {
        if tried.contains_key(&set) {
            continue;
        }
        tell(&format!("trying {}", words(&set, &all)));
        let chosen: Vec<Change> = changes.iter().filter(|change| set.contains(change.op.as_str())).cloned().collect();
        let trial = match compare(worker, question, &chosen, Depth::Times, read, cancel).await {
            Ok((_, comparison)) => Trial::Ran { speedup: Speedup::of(&comparison.sessions), output: comparison.output },
            Err(VerifyError::Worker(error @ WorkerError::Failed { .. })) if !error.is_cancelled() => {
                Trial::Failed { why: error.to_string() }
            }
            Err(VerifyError::Worker(error @ (WorkerError::Died(_) | WorkerError::Protocol(_)))) => {
                worker.restart().await?;
                Trial::Failed { why: error.to_string() }
            }
            Err(error) => return Err(error),
        };
        tried.insert(set, trial);
    }
    let trial = |set: &BTreeSet<&str>| tried.get(set).cloned();
    let share = |change: &Change| (shares.op_us.get(&change.op).copied().unwrap_or(0.0), change.vs_user);
    let suspects: Vec<Suspect> = changes
        .iter()
        .filter_map(|change| {
            let others = all.iter().copied().filter(|other| *other != change.op).collect();
            Some(Suspect {
                op: change.op.clone(),
                vs_user: change.vs_user,
                predicted: predicted(shares.whole_us, &[share(change)]),
                alone: trial(&BTreeSet::from([change.op.as_str()]))?,
                without: trial(&others),
            })
        })
        .collect();
    let together = trial(&all).unwrap_or(Trial::Failed { why: "nothing was changed".to_owned() });
    Ok(Diagnosis {
        model: question.config.name.clone(),
        pass: question.pass,
        device: worker.device().name.clone(),
        predicted: predicted(shares.whole_us, &changes.iter().map(share).collect::<Vec<_>>()),
        culprits: culprits(&together, &suspects),
        all: together,
        suspects,
    })
}

fn words(set: &BTreeSet<&str>, all: &BTreeSet<&str>) -> String {
    if set == all && all.len() > 1 {
        return format!("all {} kernels together", all.len());
    }
    let missing: Vec<&str> = all.difference(set).copied().collect();
    match (set.len(), missing.as_slice()) {
        (1, _) => format!("{} alone", set.iter().copied().collect::<String>()),
        (_, [one]) => format!("all but {one}"),
        _ => set.iter().copied().collect::<Vec<_>>().join(", "),
    }
}

/// Who is to blame. First those that are wrong alone; where nobody is, those without whom the rest is right. Then those
/// that lose time: less than predicted alone, beyond the interval and by [`LEAST_LOSS`] of the pass; or the model is
/// faster without them, intervals apart.
#[must_use]
pub fn culprits(all: &Trial, suspects: &[Suspect]) -> Vec<Culprit> {
    let mut found: Vec<Culprit> = Vec::new();
    let blame = |suspect: &Suspect, why: String| Culprit { op: suspect.op.clone(), why };
    for suspect in suspects {
        if let Some(fault) = suspect.alone.fault() {
            found.push(blame(suspect, format!("with it alone, {fault}")));
        }
    }
    if let (true, Some(fault)) = (found.is_empty(), all.fault()) {
        let needed = suspects.iter().filter(|suspect| suspect.without.as_ref().is_some_and(Trial::is_right));
        found.extend(needed.map(|suspect| blame(suspect, format!("only together with the others, {fault}"))));
    }
    for suspect in suspects {
        if found.iter().any(|culprit| culprit.op == suspect.op) {
            continue;
        }
        let why = falls_short(suspect).or_else(|| slows_the_others(suspect, all));
        found.extend(why.map(|why| blame(suspect, why)));
    }
    found
}

/// Whether it alone does less for the model than predicted.
fn falls_short(suspect: &Suspect) -> Option<String> {
    let speedup = suspect.alone.speedup()?;
    let loss = 1.0 / speedup.median - 1.0 / suspect.predicted;
    let beyond = speedup.high.is_some_and(|high| high < suspect.predicted);
    (beyond && loss > LEAST_LOSS).then(|| {
        format!(
            "alone it gives {:.2}x where {:.2}x was predicted, {:.0} % of the pass short",
            speedup.median,
            suspect.predicted,
            100.0 * loss
        )
    })
}

/// Whether the model is faster with all the others.
fn slows_the_others(suspect: &Suspect, all: &Trial) -> Option<String> {
    let (without, all) = (suspect.without.as_ref()?.speedup()?, all.speedup()?);
    let apart = without.low? > all.high?;
    apart.then(|| format!("the model is faster without it: {:.2}x instead of {:.2}x", without.median, all.median))
}

impl Diagnosis {
    /// Whether all kernels together say what the model said before.
    #[must_use]
    pub const fn is_right(&self) -> bool {
        self.all.is_right()
    }

    /// The table and the finding, at most 100 columns wide but for what went wrong.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = vec![
            format!("{} · {} · {} · {}", self.model, self.pass.label(), self.pass.dtype, self.device),
            "each kernel alone in the model as it was, and the model with all of them but that one".to_owned(),
            String::new(),
            format!(
                "{:<18} {:>8} {:>9}  {:<23} {:<7} {:>10}  outputs",
                "operation", "vs_user", "predicted", "alone (95 %)", "outputs", "without it"
            ),
        ];
        for suspect in &self.suspects {
            let without = suspect.without.as_ref();
            let line = format!(
                "{:<18} {:>7.2}x {:>8.2}x  {:<23} {:<7} {:>10}  {}",
                suspect.op,
                suspect.vs_user,
                suspect.predicted,
                interval(&suspect.alone),
                outputs(&suspect.alone),
                without.map_or_else(|| "-".to_owned(), median),
                without.map_or("-", outputs)
            );
            lines.push(line.trim_end().to_owned());
        }
        if self.suspects.len() > 1 {
            let (all, name) = (&self.all, "all together");
            let line = format!("{name:<18} {:>8} {:>8.2}x  {:<23} {}", "", self.predicted, interval(all), outputs(all));
            lines.push(line.trim_end().to_owned());
        }
        lines.push(String::new());
        lines.extend(self.culprits.iter().map(|culprit| format!("culprit: {}: {}", culprit.op, culprit.why)));
        if self.culprits.is_empty() {
            lines.push(match self.all.fault() {
                Some(fault) => format!("no single kernel is to blame, but all together: {fault}"),
                None => "no culprit: outputs agree, and no kernel falls clearly short of what was predicted".to_owned(),
            });
        }
        lines.join("\n") + "\n"
    }
}

fn median(trial: &Trial) -> String {
    trial.speedup().map_or_else(|| "failed".to_owned(), |speedup| format!("{:.2}x", speedup.median))
}

fn interval(trial: &Trial) -> String {
    let bounds = trial.speedup().and_then(|speedup| speedup.low.zip(speedup.high));
    bounds.map_or_else(|| median(trial), |(low, high)| format!("{} ({low:.2} to {high:.2})", median(trial)))
}

const fn outputs(trial: &Trial) -> &'static str {
    match trial {
        Trial::Failed { .. } => "none",
        Trial::Ran { output: OutputCheck { wrong: None, .. }, .. } => "agree",
        Trial::Ran { .. } => "DIFFER",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(median: f64, wrong: bool) -> Trial {
        let speedup = Speedup {
            median,
            low: Some(median * 0.99),
            high: Some(median * 1.01),
            sessions: vec![median],
            before_us: 100.0,
            after_us: 100.0 / median,
            passes: 20,
        };
        let wrong = wrong.then(|| "the outputs differ by 5.0e-2 of their rms, more than 2.4e-4".to_owned());
        let output = OutputCheck { rms_relative: Some(1e-6), bound: 2.4e-4, same_token: 3, positions: 3, wrong };
        Trial::Ran { speedup, output }
    }

    fn failed() -> Trial {
        Trial::Failed { why: "layers.0.mlp: SIGSEGV".to_owned() }
    }

    fn suspect(op: &str, predicted: f64, alone: Trial, without: Option<Trial>) -> Suspect {
        Suspect { op: op.to_owned(), vs_user: 2.0, predicted, alone, without }
    }

    fn named(all: &Trial, suspects: &[Suspect]) -> Vec<String> {
        culprits(all, suspects).into_iter().map(|culprit| culprit.op).collect()
    }

    #[test]
    fn what_is_wrong_alone_is_the_culprit_however_the_others_do() {
        let bad = suspect("bad", 1.3, ran(1.3, true), Some(ran(1.2, false)));
        let good = suspect("good", 1.2, ran(1.2, false), Some(ran(1.3, true)));
        assert_eq!(named(&ran(1.5, true), &[good.clone(), bad]), ["bad"]);
        let crash = suspect("crash", 1.3, failed(), Some(ran(1.2, false)));
        assert_eq!(named(&failed(), &[good.clone(), crash]), ["crash"]);
        let alone = suspect("only", 1.3, ran(1.3, true), None);
        assert_eq!(named(&ran(1.3, true), &[alone]), ["only"]);
        assert_eq!(named(&ran(1.5, false), &[good]), Vec::<String>::new());
    }

    #[test]
    fn what_is_wrong_only_in_company_is_found_by_leaving_it_out() {
        let a = suspect("a", 1.2, ran(1.2, false), Some(ran(1.2, false)));
        let b = suspect("b", 1.2, ran(1.2, false), Some(ran(1.2, true)));
        assert_eq!(named(&ran(1.4, true), &[a.clone(), b.clone()]), ["a"]);
        let found = culprits(&ran(1.4, true), &[a, b.clone()]);
        assert!(found[0].why.starts_with("only together with the others, the outputs differ"), "{found:?}");
        // Nobody is to blame where leaving any one of them out does not help.
        assert_eq!(named(&ran(1.4, true), &[b]), Vec::<String>::new());
    }

    #[test]
    fn lost_time_has_a_culprit_only_beyond_doubt() {
        let short = suspect("short", 1.5, ran(1.1, false), None);
        assert_eq!(named(&ran(1.1, false), std::slice::from_ref(&short)), ["short"]);
        let little = suspect("little", 1.5, ran(1.46, false), None);
        assert_eq!(named(&ran(1.46, false), &[little]), Vec::<String>::new());
        let mut unsure = short;
        if let Trial::Ran { speedup, .. } = &mut unsure.alone {
            speedup.high = Some(1.6);
        }
        assert_eq!(named(&ran(1.1, false), &[unsure]), Vec::<String>::new());
        let better = suspect("better", 1.1, ran(1.5, false), None);
        assert_eq!(named(&ran(1.5, false), &[better]), Vec::<String>::new());
        // Fast alone, and in the way of the others.
        let rival = suspect("rival", 1.2, ran(1.2, false), Some(ran(1.5, false)));
        assert_eq!(named(&ran(1.3, false), &[rival]), ["rival"]);
    }

    #[test]
    fn the_diagnosis_reads_well() {
        let bad = suspect("fused_mlp", 1.3, ran(1.31, true), Some(ran(1.21, false)));
        let good = suspect("rmsnorm", 1.2, ran(1.21, false), Some(ran(1.31, true)));
        let crash = suspect("flash_attention", 1.1, failed(), Some(failed()));
        let suspects = vec![bad, good, crash];
        let diagnosis = Diagnosis {
            model: "tiny".to_owned(),
            pass: Pass {
                phase: crate::model::Phase::Prefill,
                batch: 1,
                seq: 3,
                dtype: crate::op::Dtype::F32,
                layers: None,
            },
            device: "two cores".to_owned(),
            predicted: 1.56,
            culprits: culprits(&failed(), &suspects),
            all: failed(),
            suspects,
        };
        insta::assert_snapshot!(diagnosis.text(), @r"
        tiny · 1x3 tokens · f32 · two cores
        each kernel alone in the model as it was, and the model with all of them but that one

        operation           vs_user predicted  alone (95 %)            outputs without it  outputs
        fused_mlp             2.00x     1.30x  1.31x (1.30 to 1.32)    DIFFER       1.21x  agree
        rmsnorm               2.00x     1.20x  1.21x (1.20 to 1.22)    agree        1.31x  DIFFER
        flash_attention       2.00x     1.10x  failed                  none        failed  none
        all together                    1.56x  failed                  none

        culprit: fused_mlp: with it alone, the outputs differ by 5.0e-2 of their rms, more than 2.4e-4
        culprit: flash_attention: with it alone, layers.0.mlp: SIGSEGV
        ");
        assert!(!diagnosis.is_right());
    }
}
