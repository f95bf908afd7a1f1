//! Questions between timed samples, in the very process, at the very places and at the age of those that are timed: hostile
//! inputs, other arguments, and samples that end early.
//!
//! A candidate that told stages from timing, by its heap, by the addresses of its buffers or by counting launches, could be right
//! in the stages alone. So where a gain is confirmed some copies get hostile inputs some samples before their turn, and the sample
//! that would meet one is put to the candidate beside those that are timed. One that does in a launch what later launches are
//! asked for, which no model could give it yet, is met by samples that end after a few launches: what the others would have
//! written must be as it was.

use crate::backend::{Backend, CaseMemory};
use crate::defence::Defence;
use crate::evaluation::Stage;
use crate::op::{Case, Dtype, OpError, Operation};
use crate::rng::Stream;

use super::Failure;
use super::bench::{Bench, draw_inputs};
use super::cases::{LEEWAY, can_be_drawn};
use super::check::{compare_with_oracle, describe};
use super::pair::Pair;
use super::questions::whole;
use super::session::Side;
use super::spots::Spots;
use super::task::JudgeError;
use super::timing::{Rig, SAMPLE_LEEWAY, Take};

/// Of so many samples one leads to a question.
const ONE_IN: usize = 3;

/// Before so many samples of the candidate one ends early.
const SHORT_ONE_IN: u64 = 6;

/// Samples ahead of its turn that a copy gets other inputs, at the most.
const AHEAD: usize = 6;

/// Rows of each output that are compared with the oracle.
const ROWS: u64 = 6;

/// Of so many copies one is compared in full, where that is no more than a case of the stages or the oracle knows nothing less: hostile rows
/// among thousands of ordinary ones are seldom among a few that are drawn.
const ALL_ONE_IN: u64 = 3;

impl<B: Backend> Rig<B> {
    /// Gives a copy whose turn comes in a few samples inputs that are not ordinary, now and then.
    pub(super) fn prepare_question(&mut self, index: usize) -> Result<(), Failure> {
        if !self.asks || !Defence::Beside.stands() {
            return Ok(());
        }
        self.asked += 1;
        let stream = Stream::new(self.seed, "beside");
        let pick = |what: u64, count: usize| stream.below(self.asked << 4 | what, count as u64) as usize;
        if pick(0, ONE_IN) > 0 {
            return Ok(());
        }
        let shape = &mut self.shapes[index];
        let op = shape.memory.operation();
        let all = unusual(op, &shape.case).map_err(JudgeError::from)?;
        let Some(case) = all.get(pick(1, all.len().max(1))) else { return Ok(()) };
        let memory = shape.memory.with_case(case).map_err(JudgeError::from)?;
        // Never in the very next sample, where its inputs would be warm, unless there is no other.
        let batch = shape.batch;
        let ahead = (batch * (1 + pick(2, AHEAD)) + pick(3, batch)).min(shape.turns.distinct() - 1);
        let copy = shape.turns.ahead(ahead);
        if shape.is_hostile(copy) {
            return Ok(());
        }
        let seed = stream.bits(self.asked << 4 | 4);
        draw_inputs(self.files.as_ref(), &memory, &mut self.arena, copy, seed)?;
        shape.hostile.push((copy, memory));
        Ok(())
    }

    /// Puts the next sample to the candidate, in which a copy is not ordinary, and compares what came of that.
    pub(super) fn ask(&mut self, bench: &Bench<'_, B>, pair: &mut Pair<'_, B>, index: usize) -> Result<(), Failure> {
        let batch = self.shapes[index].batch;
        self.sample(bench, pair, index, (Side::Candidate, batch), Take::Nothing)?;
        let shape = &mut self.shapes[index];
        let used = shape.used(batch);
        // A sample that had to be repeated in a fresh process is without any.
        let asked: Vec<_> = shape.hostile.iter().filter(|(copy, _)| used.contains(copy)).cloned().collect();
        let (stream, limits) = (Stream::new(self.seed, "all beside"), bench.backend.case_limits());
        for (copy, memory) in asked {
            let only_wholes = bench.op().knows_only_wholes();
            let all = stream.below(self.asked, ALL_ONE_IN) == 0
                && (only_wholes || whole(bench.op(), memory.case(), &limits).map_err(JudgeError::from)?);
            let wrong = if all {
                let outputs = pair.take(&memory, &mut self.arena, copy);
                let (errors, why) = compare_with_oracle(bench, &memory, &mut self.arena, copy, &outputs)?;
                why.filter(|_| !errors.within(leeway(bench.op(), memory.case())))
            } else if only_wholes {
                None
            } else {
                self.compare_rows(bench, &memory, copy)?
            };
            if let Some(why) = wrong {
                let label = describe(bench.op(), memory.case());
                return Err(Failure::reject(Stage::Confirmation, format!("{label}, between timed launches: {why}")));
            }
        }
        self.refresh(index, batch)
    }

    /// Puts a sample of fewer launches to the candidate, now and then, and looks for results of those that were left out.
    pub(super) fn ask_for_less(
        &mut self,
        bench: &Bench<'_, B>,
        pair: &mut Pair<'_, B>,
        index: usize,
    ) -> Result<(), Failure> {
        let shape = &self.shapes[index];
        let most = shape.batch.min(shape.copies - 1) as u64;
        let stream = Stream::new(self.seed, "less");
        let idle = !self.asks || !Defence::ShortSamples.stands() || shape.hostile_is_next();
        if idle || stream.below(self.asked << 1, SHORT_ONE_IN) > 0 {
            return Ok(());
        }
        let launches = 1 + stream.below(self.asked << 1 | 1, most) as usize;
        self.sample(bench, pair, index, (Side::Candidate, launches), Take::Nothing)?;
        let shape = &self.shapes[index];
        let used = shape.used(launches);
        let others = shape.spots.iter().enumerate().filter(|(copy, _)| !used.contains(copy));
        let others: Vec<&Spots> = others.filter_map(|(_, spots)| spots.as_ref()).collect();
        if Spots::written(&others, &mut self.arena) {
            let label = describe(bench.op(), &shape.case);
            let why = format!("{label}: a launch wrote the output of another one, which had not begun");
            return Err(Failure::reject(Stage::Confirmation, why));
        }
        self.look(bench, index, launches)?;
        self.refresh(index, launches)
    }

    /// What is wrong with drawn rows of a copy's outputs.
    fn compare_rows(
        &mut self,
        bench: &Bench<'_, B>,
        memory: &CaseMemory,
        copy: usize,
    ) -> Result<Option<String>, Failure> {
        let (op, case) = (bench.op(), memory.case());
        let leeway = leeway(op, case);
        let stream = Stream::new(self.seed, "rows beside");
        let most = bench.backend.case_limits().sample_macs;
        for row in 0..ROWS {
            let seed = stream.bits(self.asked << 4 | row);
            let sample = op.sample(&case.shape, seed, most).map_err(JudgeError::from)?;
            if sample.is_empty() {
                break;
            }
            let errors = bench.compare_some(memory, &mut self.arena, copy, &sample)?;
            if let Some(why) = errors.failure().filter(|_| !errors.within(leeway)) {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }
}

/// How many times its bounds an error may be.
fn leeway(op: &Operation, case: &Case) -> f64 {
    if op.knows_only_wholes() {
        return 1.0;
    }
    let few = op.few_terms(case).is_some();
    if case.input.is_some() && !few { LEEWAY } else { SAMPLE_LEEWAY }
}

/// Every case at the shape and with the flags of `timed` that is not ordinary: hostile inputs, mixed in or throughout, other
/// arguments, and both at once.
fn unusual(op: &Operation, timed: &Case) -> Result<Vec<Case>, OpError> {
    let mut all = Vec::new();
    let fits = |dtypes: &[Dtype]| dtypes.is_empty() || dtypes.contains(&timed.dtype);
    let others = if Defence::OtherArguments.stands() { op.other_settings() } else { 0 };
    for hostile in op.hostile_inputs().filter(|hostile| fits(&hostile.dtypes)) {
        let case = Case { input: Some(hostile.name.clone()), ..timed.clone() };
        if op.is_defined(hostile, &timed.shape)? && can_be_drawn(op, &case)? {
            all.extend((0..=others).map(|setting| Case { setting, ..case.clone() }));
        }
    }
    all.extend((1..=others).map(|setting| Case { setting, ..timed.clone() }));
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::workspace::{embedded, embedded_names};

    #[test]
    fn every_operation_has_something_unusual_to_ask_at_its_timed_shape() {
        let names =
            embedded_names("reference/").filter_map(|name| name.strip_prefix("reference/")?.strip_suffix(".toml"));
        for name in names {
            let op = Operation::load(&|path| embedded(path).map(str::to_owned), name).unwrap();
            for dtype in Dtype::ALL {
                let timed = Case { shape: op.primary_shape().unwrap(), dtype, input: None, setting: 0 };
                let all = unusual(&op, &timed).unwrap();
                assert!(all.len() > 1 && !all.contains(&timed), "{name}: {all:?}");
            }
        }
    }
}
