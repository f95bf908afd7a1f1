//! Timing sessions in fresh processes: here, where a host is one, else elsewhere.

use std::time::Instant;

use crate::backend::Backend;
use crate::evaluation::Stage;
use crate::op::TargetShape;
use crate::rng::Stream;

use super::Failure;
use super::bench::{Bench, StageClock, Watch};
use super::build::Build;
use super::elsewhere::{SessionAnswer, SessionTask};
use super::judge::Judge;
use super::session::{Block, CONFIRM_BLOCKS, Session};
use super::task::JudgeError;
use super::timing::{MatchUp, Rig};

/// Measures a session of [`CONFIRM_BLOCKS`] blocks in two fresh processes for each of `matches`, which have their numbers
/// with them. Here they use `rig`, or one of their own. `told` is what whoever waits is told.
pub(super) fn sessions<B: Backend>(
    bench: &Bench<'_, B>,
    rig: Option<&mut Rig<B>>,
    target: &[TargetShape],
    seed: u64,
    matches: &[(usize, MatchUp<'_, B>)],
    (stage, told): (Stage, &str),
) -> Result<Vec<Session>, Failure> {
    if let Some(elsewhere) = bench.elsewhere {
        bench.at(stage, told);
        let asks = stage == Stage::Confirmation;
        let task = |(number, match_up): &(usize, _)| task(bench, target, *match_up, (seed, *number), asks);
        let tasks = matches.iter().map(task).collect::<Result<Vec<_>, _>>()?;
        bench.backend.give_back_memory();
        return elsewhere.sessions(&tasks, bench.torch_socket().as_deref(), bench.watch);
    }
    let Some((_, any)) = matches.first() else { return Ok(Vec::new()) };
    let mut own;
    let rig = match rig {
        Some(rig) => rig,
        None => {
            own = Rig::new(bench, target, [any.incumbent, any.candidate], seed)?;
            &mut own
        }
    };
    rig.asks = stage == Stage::Confirmation;
    let here = |(at, (_, match_up)): (usize, &(usize, MatchUp<'_, B>))| {
        bench.at(stage, format!("{told}, fresh process {} of {}", at + 1, matches.len()));
        session(bench, rig, *match_up)
    };
    matches.iter().enumerate().map(here).collect()
}

/// The blocks of each session.
pub(super) fn blocks_of(sessions: Vec<Session>) -> Vec<Vec<Block>> {
    sessions.into_iter().map(|session| session.blocks).collect()
}

/// One session in two fresh processes of this machine.
fn session<B: Backend>(bench: &Bench<'_, B>, rig: &mut Rig<B>, match_up: MatchUp<'_, B>) -> Result<Session, Failure> {
    let began = Instant::now();
    let mut pair = rig.start(bench, match_up)?;
    // One at least, and which one cannot be foreseen.
    let surely = Stream::new(rig.seed, "surely compared").below(rig.rounds(), CONFIRM_BLOCKS as u64) as usize;
    let block = |number: usize| {
        let verify = number == surely || rig.is_compared(CONFIRM_BLOCKS as u64);
        rig.block(bench, &mut pair, match_up.rounds, verify)
    };
    let blocks: Vec<Block> = (0..CONFIRM_BLOCKS).map(block).collect::<Result<_, _>>()?;
    let hidden_us = pair.hidden_us(&rig.shapes, &blocks);
    let taken_again = pair.taken_again();
    Ok(Session { blocks, took_s: began.elapsed().as_secs_f64(), hidden_us, taken_again })
}

/// A session by value.
fn task<B: Backend>(
    bench: &Bench<'_, B>,
    target: &[TargetShape],
    match_up: MatchUp<'_, B>,
    (seed, number): (u64, usize),
    asks: bool,
) -> Result<SessionTask, JudgeError> {
    let text = |build: &Build<B>| build.kernel().map(|kernel| kernel.text.clone());
    Ok(SessionTask {
        op: bench.known.source.clone(),
        incumbent: text(match_up.incumbent),
        candidate: text(match_up.candidate)
            .ok_or_else(|| JudgeError::machine("timing", "a library is no candidate"))?,
        target: target.to_vec(),
        rounds: match_up.rounds as u32,
        seed,
        number: number as u32,
        asks,
    })
}

impl<B: Backend> Judge<B> {
    /// Measures one session in this process, for another judge: compiles both, draws, warms up, times.
    ///
    /// # Errors
    /// Only where the machine or the incumbent is at fault.
    pub fn session(&mut self, task: &SessionTask, watch: Watch<'_>) -> Result<SessionAnswer, JudgeError> {
        let known = self.know(&task.op)?;
        let clock = StageClock::default();
        let bench = Bench { elsewhere: None, ..self.bench(&known, watch, task.seed, &clock) };
        match measure(&bench, task) {
            Ok(session) => Ok(SessionAnswer::Measured(session)),
            Err(Failure::Verdict(verdict)) => Ok(SessionAnswer::Failed(verdict)),
            Err(Failure::Judge(error)) => Err(error),
        }
    }
}

fn measure<B: Backend>(bench: &Bench<'_, B>, task: &SessionTask) -> Result<Session, Failure> {
    let target = bench.complete(&task.target)?;
    let incumbent = match &task.incumbent {
        Some(text) => bench.trusted(text, &target)?,
        None => bench.library(&target).ok_or_else(|| JudgeError::machine("session", "there is no library here"))?.0,
    };
    let candidate = bench.build_text(&task.candidate, &target)?;
    let mut rig = Rig::new(bench, &target, [&incumbent, &candidate], task.seed)?;
    rig.skip_to(task.number);
    rig.asks = task.asks;
    let match_up = MatchUp { incumbent: &incumbent, candidate: &candidate, rounds: task.rounds as usize };
    session(bench, &mut rig, match_up)
}
