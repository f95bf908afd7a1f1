//! Which kernel of a package is to blame: each one alone in the model.

use serde::{Deserialize, Serialize};

use super::verify::{Output, asked_of};
use super::{Asked, Plans, Verified};
use crate::stats;
use crate::torch::{Python, TorchError};
use crate::verify::Culprit;

/// Share of the original pass that a kernel must add before it is named: the same code compiled anew differs by some percent.
const LEAST_LOSS: f64 = 0.03;

/// Sessions that a loss of time must be seen in: two may both have met what others do on the machine.
pub const LEAST_SESSIONS: u32 = 3;

/// One kernel alone in the model, or why it did not get so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trial {
    /// It ran.
    Ran {
        /// µs of the original compiled pass, one for each session; as CUDA graphs where both can be.
        before_us: Vec<f64>,
        /// The same with this kernel alone.
        after_us: Vec<f64>,
        /// How often the kernel was called while results were compared.
        called: u64,
        /// The result that is off by the most of what is allowed, of all inputs and both ways.
        output: Output,
    },
    /// It raised an error or ended the process.
    Failed {
        /// In a sentence.
        why: String,
    },
}

/// A kernel with its trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Suspect {
    /// The operation.
    pub op: String,
    /// The judge's speedup over what the user has, of this part.
    pub vs_user: f64,
    /// It alone.
    pub alone: Trial,
}

/// Everything that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// What is wrong with all of them together, where anything is.
    pub all: Option<String>,
    /// Each of them, the worst first.
    pub suspects: Vec<Suspect>,
    /// Those to blame, wrong outputs before lost time.
    pub culprits: Vec<Culprit>,
}

#[derive(Deserialize)]
struct Told {
    trials: Vec<Tried>,
}

#[derive(Deserialize)]
struct Tried {
    op: String,
    alone: Trial,
}

/// Tries every kernel of a package that can be used here alone in its model. `all` is what came of all together.
///
/// # Errors
/// What is wrong with the model or the package without any kernel; one that ends the process is a finding.
pub fn diagnose(
    python: &Python,
    asked: &Asked<'_>,
    plans: &Plans,
    all: &Result<Verified, TorchError>,
    tell: &mut dyn FnMut(&str),
) -> Result<Diagnosis, TorchError> {
    let usable = |name: &str| all.as_ref().map_or(true, |verified| !verified.unusable.contains_key(name));
    let names: Vec<String> = plans.kernels.iter().map(|plan| plan.name.clone()).filter(|name| usable(name)).collect();
    let mut tried: Vec<Tried> = Vec::new();
    while tried.len() < names.len() {
        let asked = Asked { alone: Some(names[tried.len()..].to_vec()), ..asked.clone() };
        let told: Told = asked_of(python, &asked, tell)?;
        tried.extend(told.trials);
        // An answer that ends early is of a process that ended early; the others are tried in a fresh one.
        if let Some(op) = names.get(tried.len()) {
            let why = "the process ended (a crash)".to_owned();
            tried.push(Tried { op: op.clone(), alone: Trial::Failed { why } });
        }
    }
    let speedup = |op: &str| plans.kernels.iter().find(|plan| plan.name == op).map_or(1.0, |plan| plan.speedup);
    let suspects = tried.into_iter().map(|it| Suspect { vs_user: speedup(&it.op), op: it.op, alone: it.alone });
    let fault = match all {
        Ok(verified) => verified.wrong().into_iter().next(),
        Err(error) => Some(error.to_string()),
    };
    Ok(Diagnosis::new(fault, suspects.collect()))
}

impl Trial {
    /// What is wrong with it; `None` where nothing is.
    fn fault(&self) -> Option<String> {
        match self {
            Self::Ran { output, .. } => {
                output.wrong.as_ref().map(|wrong| format!("{}, result {}: {wrong}", output.way, output.output))
            }
            Self::Failed { why } => Some(why.clone()),
        }
    }

    /// The original pass over the pass with the kernel, for each session, sorted.
    fn ratios(&self) -> Vec<f64> {
        let Self::Ran { before_us, after_us, .. } = self else { return Vec::new() };
        let mut ratios: Vec<f64> = before_us.iter().zip(after_us).map(|(before, after)| before / after).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    /// How bad it is: what failed, then what is wrong by how many times what is allowed, then what is slow.
    fn badness(&self) -> (u8, f64) {
        match self {
            Self::Failed { .. } => (2, 0.0),
            Self::Ran { output: Output { wrong: Some(_), error, limit, .. }, .. } => {
                let share = error.zip(*limit).map(|(error, limit)| error / limit);
                (1, share.unwrap_or(f64::INFINITY))
            }
            Self::Ran { .. } => (0, -stats::median(&self.ratios()).unwrap_or(1.0)),
        }
    }

    /// Whether the pass is slower with it, beyond doubt: the fastest session with it is slower than the slowest of the original.
    fn loss(&self) -> Option<String> {
        let Self::Ran { before_us, after_us, .. } = self else { return None };
        let slowest = before_us.iter().copied().reduce(f64::max)?;
        let fastest = after_us.iter().copied().reduce(f64::min)?;
        (after_us.len() >= LEAST_SESSIONS as usize && fastest > slowest * (1.0 + LEAST_LOSS)).then_some(())?;
        let (before, after) = (stats::median(before_us)?, stats::median(after_us)?);
        Some(format!("with it alone the pass is slower: {:.3} ms instead of {:.3} ms", after / 1e3, before / 1e3))
    }
}

fn wrong(suspects: &[Suspect]) -> Vec<Culprit> {
    let blamed =
        |it: &Suspect| Some(Culprit { op: it.op.clone(), why: format!("with it alone, {}", it.alone.fault()?) });
    suspects.iter().filter_map(blamed).collect()
}

fn slow(suspects: &[Suspect]) -> Vec<Culprit> {
    let right = suspects.iter().filter(|it| it.alone.fault().is_none());
    right.filter_map(|it| Some(Culprit { op: it.op.clone(), why: it.alone.loss()? })).collect()
}

impl Diagnosis {
    /// What the trials say; `all` is what is wrong with all kernels together.
    #[must_use]
    pub fn new(all: Option<String>, mut suspects: Vec<Suspect>) -> Self {
        suspects.sort_by(|one, other| {
            let ((kind, size), (other_kind, other_size)) = (other.alone.badness(), one.alone.badness());
            kind.cmp(&other_kind).then(size.total_cmp(&other_size))
        });
        let culprits = wrong(&suspects).into_iter().chain(slow(&suspects)).collect();
        Self { all, suspects, culprits }
    }

    /// Kernels that fail, or with which alone results differ.
    #[must_use]
    pub fn wrong(&self) -> Vec<Culprit> {
        wrong(&self.suspects)
    }

    /// Kernels that are right, and with which alone the pass is slower beyond doubt.
    #[must_use]
    pub fn slow(&self) -> Vec<Culprit> {
        slow(&self.suspects)
    }

    /// Whether nothing is wrong, neither with all kernels together nor with any alone.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.all.is_none() && self.suspects.iter().all(|it| it.alone.fault().is_none())
    }

    /// The table and the finding.
    #[must_use]
    pub fn text(&self) -> String {
        let width = self.suspects.iter().map(|it| it.op.len()).max().unwrap_or(0).max("operation".len());
        let mut lines = vec![
            "each kernel alone in the model, beside the original compiled; the worst first".to_owned(),
            String::new(),
            format!(
                "{:<width$} {:>8}  {:<7} {:>8} {:>8} {:>10} {:>10}  alone (sessions)",
                "operation", "vs_user", "outputs", "off by", "allowed", "ms a pass", "original"
            ),
        ];
        for suspect in &self.suspects {
            lines.push(format!("{:<width$} {:>7.2}x  {}", suspect.op, suspect.vs_user, suspect.alone.cells()));
        }
        lines.push(String::new());
        lines.extend(self.culprits.iter().map(|culprit| format!("culprit: {}: {}", culprit.op, culprit.why)));
        if self.culprits.is_empty() {
            lines.push(match &self.all {
                Some(fault) => format!("no single kernel is to blame, but all together: {fault}"),
                None => "no culprit: outputs agree, and no kernel alone makes the pass clearly slower".to_owned(),
            });
        }
        lines.join("\n")
    }
}

impl Trial {
    /// The right half of its row.
    fn cells(&self) -> String {
        let Self::Ran { before_us, after_us, called, output } = self else { return "none".to_owned() };
        let number = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| format!("{number:.1e}"));
        let word = if output.wrong.is_some() { "DIFFER" } else { "agree" };
        let ms = |times: &[f64]| stats::median(times).unwrap_or(f64::NAN) / 1e3;
        let ratios = self.ratios();
        let alone = match (ratios.first(), ratios.last()) {
            (Some(low), Some(high)) => {
                format!("{:.2}x ({low:.2} to {high:.2})", stats::median(&ratios).unwrap_or(f64::NAN))
            }
            _ => "-".to_owned(),
        };
        let never = if *called == 0 { ", never called" } else { "" };
        format!(
            "{word:<7} {:>8} {:>8} {:>10.3} {:>10.3}  {alone}{never}",
            number(output.error),
            number(output.limit),
            ms(after_us),
            ms(before_us)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(op: &str, error: f64, after_us: &[f64]) -> Suspect {
        let wrong = (error > 1e-5).then(|| format!("off by {error:.2e}, and 1.00e-05 is allowed"));
        let way = "patched and compiled".to_owned();
        let output = Output { way, output: 0, error: Some(error), limit: Some(1e-5), wrong };
        let before_us = vec![100.0; after_us.len()];
        let alone = Trial::Ran { before_us, after_us: after_us.to_vec(), called: 3, output };
        Suspect { op: op.into(), vs_user: 2.0, alone }
    }

    fn failed(op: &str) -> Suspect {
        Suspect { op: op.into(), vs_user: 2.0, alone: Trial::Failed { why: "the process ended (a crash)".into() } }
    }

    fn ops<'a>(found: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
        found.map(String::as_str).collect()
    }

    #[test]
    fn the_worst_comes_first_and_what_is_wrong_before_what_is_slow() {
        let suspects = vec![
            ran("fast", 1e-7, &[80.0; 3]),
            ran("off", 1e-3, &[80.0; 3]),
            ran("slow", 1e-7, &[120.0; 3]),
            failed("crash"),
            ran("far off", 1.0, &[80.0; 3]),
        ];
        let it = Diagnosis::new(Some("patched, result 0: off by 1".into()), suspects);
        assert_eq!(ops(it.suspects.iter().map(|one| &one.op)), ["crash", "far off", "off", "slow", "fast"]);
        assert_eq!(ops(it.culprits.iter().map(|one| &one.op)), ["crash", "far off", "off", "slow"]);
        assert!(!it.is_right());
        let text = it.text();
        assert!(text.contains("culprit: off: with it alone, patched and compiled, result 0: off by 1.00e-3"), "{text}");
        assert!(
            text.contains("culprit: slow: with it alone the pass is slower: 0.120 ms instead of 0.100 ms"),
            "{text}"
        );
    }

    #[test]
    fn a_loss_must_be_seen_in_every_session_and_in_three() {
        let named = |after: &[f64]| !Diagnosis::new(None, vec![ran("it", 1e-7, after)]).culprits.is_empty();
        assert!(named(&[110.0, 105.0, 120.0]));
        assert!(!named(&[110.0, 102.0, 110.0]) && !named(&[150.0, 150.0]) && !named(&[90.0; 3]));
    }

    #[test]
    fn where_none_alone_is_guilty_a_sentence_says_so() {
        let right = || vec![ran("a", 1e-7, &[90.0; 3]), ran("b", 1e-7, &[90.0; 3])];
        let together = Diagnosis::new(Some("patched, result 0: off by 1".into()), right());
        assert!(
            together.text().ends_with("no single kernel is to blame, but all together: patched, result 0: off by 1")
        );
        assert!(!together.is_right());
        let fine = Diagnosis::new(None, right());
        assert!(fine.text().contains("no culprit: outputs agree") && fine.is_right());
    }
}
