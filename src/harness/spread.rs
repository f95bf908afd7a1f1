//! What the machine shows when nothing differs: a kernel timed against a copy of itself.

use std::time::Duration;

use crate::backend::Backend;
use crate::evaluation::Stage;
use crate::kernel::{self, KernelFile};
use crate::op::TargetShape;
use crate::rng::Stream;

use super::Failure;
use super::bench::Bench;
use super::build::Build;
use super::decision::{Decision, Margin};
use super::fresh::{blocks_of, sessions};
use super::session::{Block, CONFIRM_BLOCKS, LOOK_SESSIONS, SPREAD_AWAY, rounds_for};
use super::task::JudgeError;
use super::timing::{MatchUp, Rig};

/// A block takes about this long at the most, however noisy the machine: eighty of them are a verdict's worst case.
const BLOCK_TIME: Duration = Duration::from_millis(60);

/// Copies of a kernel that it is timed against, for a margin.
pub(super) const COPIES: u64 = 2;

/// What the machine shows when nothing differs.
pub(super) struct Spread {
    pub(super) decision: Decision,
    /// Rounds that a block should have.
    pub(super) rounds: usize,
    pub(super) sessions: Vec<Vec<Block>>,
}

/// So many (`count`) same-against-same sessions in fresh processes: the kernel against its `twins`, copies of itself with
/// other addresses.
///
/// The first one, of single rounds, settles how many rounds a block has; the others give the margin.
pub(super) fn spread<B: Backend>(
    bench: &Bench<'_, B>,
    target: &[TargetShape],
    build: &Build<B>,
    twins: &[Build<B>],
    calls: &[u32],
    seed: u64,
    count: usize,
) -> Result<Spread, Failure> {
    let decision = Decision::new(Margin::default(), calls);
    let here = bench.here();
    let new_rig = || Rig::new(&here, target, [build, &twins[0]], seed);
    let mut rig = Some(new_rig()?);
    let told = (Stage::Timing, "the machine's own spread");
    let matches = |numbers: std::ops::RangeInclusive<usize>, rounds| -> Vec<_> {
        let twin = |number: usize| &twins[number % twins.len()];
        numbers.map(|number| (number, MatchUp { incumbent: build, candidate: twin(number), rounds })).collect()
    };
    let first = sessions(&here, rig.as_mut(), target, seed, &matches(0..=0, 1), told)?;
    let took_s = first.iter().map(|session| session.took_s).sum::<f64>();
    let affordable = BLOCK_TIME.as_secs_f64() / (took_s / CONFIRM_BLOCKS as f64);
    let scatter = decision.scatter(&blocks_of(first).concat());
    let rounds = rounds_for(scatter).min(affordable as usize).max(1);
    let mut measured = Vec::new();
    let away = if bench.elsewhere.is_some() { SPREAD_AWAY } else { 0 };
    if away > 0 {
        // Processes elsewhere have buffers of their own, and of tensors of several GB a device does not hold both.
        rig = None;
        measured = blocks_of(sessions(bench, None, target, seed, &matches(1..=away, rounds), told)?);
    }
    let rest = matches(away + 1..=count, rounds);
    if !rest.is_empty() {
        let mut rig = match rig {
            Some(rig) => rig,
            None => {
                let mut rig = new_rig()?;
                rig.skip_to(away as u32 + 1);
                rig
            }
        };
        if count <= LOOK_SESSIONS {
            // Nothing is decided by the others.
            rig.warmed_up();
        }
        measured.extend(blocks_of(sessions(&here, Some(&mut rig), target, seed, &rest, told)?));
    }
    let margin = Margin::from_sessions(&decision, &measured);
    Ok(Spread { decision: Decision::new(margin, calls), rounds, sessions: measured })
}

/// The copies that [`spread`] wants, to be compiled for the timed shapes.
pub(super) fn copies(text: &str, seed: u64, count: u64) -> Result<Vec<KernelFile>, JudgeError> {
    (0..count).map(|number| twin(text, Stream::new(seed, "padding").below(number, 4096))).collect()
}

/// The same kernel at other addresses: what a candidate that changes nothing looks like.
pub(super) fn twin(text: &str, padding: u64) -> Result<KernelFile, JudgeError> {
    let text = kernel::pad(text, padding as usize + 1);
    KernelFile::parse(&text).map_err(|error| JudgeError::machine("padding", error))
}
