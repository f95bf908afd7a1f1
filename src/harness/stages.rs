//! The five stages of one candidate, which may begin while some of its code is still being compiled.

use std::collections::BTreeMap;

use crate::backend::{Backend, CaseMemory, Conditions, Placing, ScratchBuffer};
use crate::evaluation::{CaseResult, Stage};
use crate::op::{Case, TargetShape};
use crate::rng::Stream;

use super::Failure;
use super::bench::{Bench, Trial};
use super::build::{Build, Making};
use super::cases::{PlannedCase, most_work};
use super::check::{check, describe};
use super::determinism::{PLACES, determinism};
use super::task::JudgeError;
use super::timed_shape::timed_case;

/// Nothing is zero by luck in the stages.
const DIRTY: Conditions = Conditions { dirty: true, threads: None, rubbish_between: false, overlapped: false };

const IN_ORDER: [Stage; 5] = [Stage::Smoke, Stage::Sweep, Stage::Stability, Stage::Determinism, Stage::Edges];

/// How far a candidate has come.
pub(super) struct Stages<'a, B: Backend> {
    bench: &'a Bench<'a, B>,
    planned: &'a [PlannedCase],
    /// What is launched again and again on the same input.
    largest: Option<Case>,
    seed: u64,
    arena: Option<B::Arena>,
    /// Bytes of inputs and outputs that the arena is for.
    reserved: (usize, usize),
    /// What was found, by stage and place in the plan.
    results: BTreeMap<(Stage, usize), CaseResult>,
    failure: Option<Failure>,
    occupancy: Vec<String>,
    /// How much was compiled when it was last looked at.
    compiled: usize,
}

impl<'a, B: Backend> Stages<'a, B> {
    /// Nothing of `planned` is done yet.
    pub(super) fn new(
        bench: &'a Bench<'a, B>,
        planned: &'a [PlannedCase],
        target: &[TargetShape],
        seed: u64,
    ) -> Result<Self, Failure> {
        let largest = most_work(bench.op(), target).map_err(JudgeError::from)?.map(timed_case);
        let (results, occupancy) = (BTreeMap::new(), Vec::new());
        let (arena, reserved, failure, compiled) = (None, (0, 0), None, 0);
        Ok(Self { bench, planned, largest, seed, arena, reserved, results, failure, occupancy, compiled })
    }

    /// Judges what there is code for, in the order of the stages: one begins when all cases of those before have passed. A
    /// failure is told by [`Stages::finish`], because what does not compile comes before it.
    pub(super) fn early(&mut self, making: &Making<'_, B>) {
        if self.failure.is_some() || making.compiled() == self.compiled {
            return;
        }
        self.compiled = making.compiled();
        let reserved = self.reserve(&|case| making.scratch(&case.shape, case.dtype));
        self.failure = reserved.and_then(|()| self.proceed(&making.ready())).err();
        self.bench.at(Stage::Compile, "compiling");
    }

    /// Judges what is left, with everything compiled: the first failure is the verdict.
    pub(super) fn finish(&mut self, build: &Build<B>) -> Result<(), Failure> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.reserve(&|case| build.image(&case.shape, case.dtype).map(|(_, scratch)| scratch))?;
        self.proceed(build)?;
        let left = |stage: &Stage| self.open(*stage).next().is_some();
        match IN_ORDER.iter().find(|stage| left(stage)) {
            Some(stage) => Err(JudgeError::machine("build", format!("no image for a case of {}", stage.name())).into()),
            None => Ok(()),
        }
    }

    /// Everything that was found, in the order of the plan, and how much of the device the kernels occupy.
    pub(super) fn found(self) -> (Vec<CaseResult>, Vec<String>) {
        (self.results.into_values().collect(), self.occupancy)
    }

    /// Memory for the largest of all cases, `scratch` being what each wants: more than before, where a compiler has asked for some.
    fn reserve<'b>(
        &mut self,
        scratch: &dyn Fn(&Case) -> Result<&'b [ScratchBuffer], JudgeError>,
    ) -> Result<(), Failure> {
        let cases = self.planned.iter().map(|planned| (&planned.case, 1));
        let sizes = cases
            .chain(self.largest.iter().map(|case| (case, PLACES)))
            .map(|(case, copies)| {
                CaseMemory::footprint::<B::Arena>(self.bench.op(), case, scratch(case)?, copies, Placing::Packed)
                    .map_err(JudgeError::from)
            })
            .collect::<Result<Vec<_>, JudgeError>>()?;
        let (inputs, outputs) = sizes.into_iter().fold((0, 0), |(i, o), (a, b)| (i.max(a), o.max(b)));
        if self.arena.is_none() || inputs > self.reserved.0 || outputs > self.reserved.1 {
            // Both at once may be more than there is.
            self.arena = None;
            self.arena = Some(self.bench.arena([(inputs, outputs)], Placing::Packed)?);
            self.reserved = (inputs, outputs);
        }
        Ok(())
    }

    /// Goes through the stages as far as `build` has code.
    fn proceed(&mut self, build: &Build<B>) -> Result<(), Failure> {
        for stage in IN_ORDER {
            let serves = |(_, case): &(usize, &Case)| build.serves(&case.shape, case.dtype);
            let (ready, missing): (Vec<_>, Vec<_>) = self.open(stage).partition(serves);
            let (ready, complete) = (ready.iter().map(|(place, _)| *place).collect::<Vec<_>>(), missing.is_empty());
            if !ready.is_empty() {
                self.run(stage, build, &ready)?;
            }
            if !complete {
                break;
            }
        }
        Ok(())
    }

    /// The cases of a stage that have no result yet.
    fn open(&self, stage: Stage) -> impl Iterator<Item = (usize, &Case)> {
        let planned = self.planned.iter().filter(move |planned| planned.stage == stage).map(|planned| &planned.case);
        let again = self.largest.iter().filter(move |_| stage == Stage::Determinism);
        planned.chain(again).enumerate().filter(move |(place, _)| !self.results.contains_key(&(stage, *place)))
    }

    /// Judges the cases of a stage at these places.
    fn run(&mut self, stage: Stage, build: &Build<B>, places: &[usize]) -> Result<(), Failure> {
        let Some(arena) = self.arena.take() else { return Ok(()) };
        let mut cases = Vec::new();
        let mut trial =
            Trial { bench: self.bench, build, arena, conditions: DIRTY, cases: &mut cases, occupancy: Vec::new() };
        let outcome = match &self.largest {
            Some(case) if stage == Stage::Determinism => {
                self.bench.at(stage, "same input again");
                determinism(&mut trial, case, Stream::new(self.seed, "determinism").bits(0))
            }
            _ => self.each(stage, &mut trial, places),
        };
        self.occupancy.append(&mut trial.occupancy);
        self.arena = Some(trial.arena);
        self.results.extend(places.iter().map(|place| (stage, *place)).zip(cases));
        outcome
    }

    fn each(&self, stage: Stage, trial: &mut Trial<'_, B>, places: &[usize]) -> Result<(), Failure> {
        let of_stage: Vec<&PlannedCase> = self.planned.iter().filter(|planned| planned.stage == stage).collect();
        // A fresh process for each stage: nothing computed in one can help in the next.
        let mut host = trial.host()?;
        for place in places {
            self.bench.check_cancelled()?;
            let planned = of_stage[*place];
            self.bench.at(stage, describe(self.bench.op(), &planned.case));
            check(trial, &mut host, planned, Stream::new(self.seed, stage.name()).bits(*place as u64))?;
        }
        Ok(())
    }
}
