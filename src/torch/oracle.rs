//! PyTorch as the oracle of an operation, and as what there is to beat.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

use super::TorchError;
use super::bound::{Floors, Form, Measured, Parts, few_terms, row_length};
use super::counts::{Allowed, Counts};
use super::files::Files;
use super::inputs::{Inputs, Outputs, numbers, outs, words};
use super::service::{Service, Unit};
use super::wire::{Ask, Compared, Evaluated, Far, Guessed, Out, Reached, Region};
use crate::backend::{CaseMemory, Device, Lent, merge_outputs, told_apart};
use crate::evaluation::ErrorStats;
use crate::op::{Case, Dtype, Operation, Role, Shape};
use crate::rng::Stream;

/// Draws of one kind whose worst eager error is the yardstick: of small outputs more, because chance has more to say there, of
/// large ones fewer, because they take time and differ little.
const DRAWS: [(usize, u64); 3] = [(1 << 12, 16), (1 << 20, 4), (usize::MAX, 2)];

/// Inputs of which an element is changed to see what it reaches: the largest.
const CHANGED: usize = 4;

/// Drawn from this, always: a yardstick does not depend on a candidate's inputs.
const SEED: u64 = 0x746f_7263;

/// An operation's function or problem.
#[derive(Debug)]
pub struct Oracle {
    pub(super) service: Arc<Service>,
    pub(super) unit: Unit,
    files: Files,
    yards: RefCell<HashMap<Case, Rc<Yard>>>,
    reached: RefCell<HashMap<Shape, Rc<Reached>>>,
    /// Types in which it was found to depend on its inputs.
    admitted: RefCell<Vec<Dtype>>,
}

/// PyTorch's own error on inputs of one kind.
#[derive(Debug, Clone)]
struct Yard {
    /// The worst of each output over the draws.
    eager: Vec<Parts>,
    counts: Vec<Counts>,
    /// What an element of each output is made of.
    reached: Rc<Reached>,
    /// Whether inputs are ordinary.
    ordinary: bool,
    /// What inputs in two parts of bfloat16 make of each output, where that bounds it.
    split: Vec<Option<Parts>>,
    /// Elements of the largest input, and of a row of it.
    inputs: usize,
    columns: usize,
    /// Why there is none.
    useless: Option<String>,
}

/// A candidate's outputs.
#[derive(Debug, Clone, Copy)]
pub enum Produced<'a> {
    /// As they were taken out of its reach.
    Taken(&'a [Vec<u8>]),
    /// As they stand in the judge's memory.
    There,
}

impl Oracle {
    /// The oracle of `op`, asked through `service`.
    #[must_use]
    pub fn new(service: Arc<Service>, op: &Operation) -> Self {
        let unit = Unit::new(format!("{}.py", op.name), &op.python);
        let files = Files { service: service.clone(), unit: unit.clone() };
        Self {
            service,
            unit,
            files,
            yards: RefCell::default(),
            reached: RefCell::default(),
            admitted: RefCell::default(),
        }
    }

    /// The name of the socket at which processes that this one starts find the PyTorch that it asks.
    #[must_use]
    pub fn socket(&self) -> Option<String> {
        self.service.socket()
    }

    /// What draws inputs as the operation's file does.
    #[must_use]
    pub const fn files(&self) -> &Files {
        &self.files
    }

    /// How far the outputs of `copy` are from what its inputs give in double precision, in ratios of what PyTorch's own error allows. Every element is compared. Where PyTorch's own result is no yardstick for a
    /// hostile input, nothing is, and [`ErrorStats::untested`] says why.
    ///
    /// # Errors
    /// PyTorch's or the file's; an operation whose ordinary inputs test nothing.
    pub fn compare<B: Device>(
        &self,
        backend: &B,
        memory: &CaseMemory,
        arena: &mut B::Arena,
        copy: usize,
        given: Produced<'_>,
    ) -> Result<ErrorStats, TorchError> {
        let (op, case) = (memory.operation(), memory.case());
        self.admit(backend, op, case.dtype)?;
        let yard = self.yard(backend, op, case)?;
        let untested = |why: &str| ErrorStats { untested: Some(why.to_owned()), ..ErrorStats::default() };
        if let Some(why) = &yard.useless {
            return Ok(untested(why));
        }
        let outs = outs(op, case)?;
        let answer = self.evaluate(op, case, &Inputs::of(memory, arena, copy)?, &outs, false)?;
        let forms = forms(op, case)?;
        let eager: Vec<Measured> = answer.eager.iter().map(Far::measured).collect();
        if let Some(why) = forms.iter().zip(&eager).find_map(|(form, eager)| form.useless(eager)) {
            return Ok(untested(&why));
        }
        let limits: Vec<Parts> = forms
            .iter()
            .zip(&outs)
            .zip(&eager)
            .enumerate()
            .map(|(index, ((form, out), eager))| {
                yard.limits(index, form, out.elements, eager.parts.worst(yard.eager[index]))
            })
            .collect();
        let each = forms.iter().zip(&outs).zip(&eager).zip(&limits).enumerate();
        let allowed: Vec<Allowed> = each
            .map(|(index, (((form, out), eager), limits))| {
                yard.allowed(index, form, out.elements, eager.counts, limits.tensor)
            })
            .collect();
        let outputs = match given {
            Produced::Taken(bytes) => Outputs::copied(bytes)?,
            Produced::There => Outputs::of(memory, arena, copy)?,
        };
        let ask = Ask::Compare {
            file: &self.unit.file,
            given: Region::of(&outputs.lent),
            places: outputs.places,
            outputs: &outs,
            limits: limits.iter().map(|limits| limits.element.to_bits()).collect(),
        };
        let compared: Compared = self.service.ask(Some(&self.unit), &ask, &files(&[&outputs.lent]))?;
        let mut total = ErrorStats::default();
        let specs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
        let found = compared.given.iter().zip(&limits).zip(allowed);
        for ((spec, out), ((found, limits), allowed)) in specs.zip(&outs).zip(found) {
            let stats = found.measured().judge(out.elements, found.outside, limits, allowed);
            merge_outputs(&mut total, &stats, told_apart(op, spec));
        }
        Ok(total)
    }

    /// Refuses an operation of which an answer passes that has nothing to do with its inputs, at a shape that stands for all. What passes
    /// on ordinary inputs and not on some hostile one is found wrong there, as a copy of what is never negative for a ReLU.
    fn admit<B: Device>(&self, backend: &B, op: &Operation, dtype: Dtype) -> Result<(), TorchError> {
        if self.admitted.borrow().contains(&dtype) {
            return Ok(());
        }
        let shape = op.complete(&op.ordinary_shape()).map_err(words)?;
        let case = Case { shape, dtype, input: None, setting: 0 };
        let mut passing = self.passing(backend, op, &case)?;
        for hostile in op.adversarial.iter().filter(|it| it.dtypes.is_empty() || it.dtypes.contains(&dtype)) {
            if passing.is_empty() {
                break;
            }
            let shape = op.complete(&hostile.shape).map_err(words)?;
            let case = Case { shape, input: Some(hostile.name.clone()), ..case.clone() };
            if self.yard(backend, op, &case)?.useless.is_some() {
                continue;
            }
            let here = self.passing(backend, op, &case)?;
            passing.retain(|guess| here.contains(guess));
        }
        if let Some(index) = passing.first() {
            let why = TRIVIAL[(*index).min(TRIVIAL.len() - 1)];
            return Err(TorchError::Target(format!(
                "in {dtype} {why}; leave {dtype} out of what the kernel serves, if that is not all"
            )));
        }
        self.admitted.borrow_mut().push(dtype);
        Ok(())
    }

    /// Answers that have nothing to do with a case's inputs and pass, by their numbers in [`Guessed`].
    fn passing<B: Device>(&self, backend: &B, op: &Operation, case: &Case) -> Result<Vec<usize>, TorchError> {
        let (forms, yard, outs) = (forms(op, case)?, self.yard(backend, op, case)?, outs(op, case)?);
        let draw = |number| Inputs::drawn(backend, op, case, Stream::new(SEED, "admission").bits(number), &self.files);
        let (first, second) = (draw(0)?, draw(1)?);
        let (inputs, others) = (&first.inputs, &second.inputs);
        let ask = Ask::Trivial {
            id: &self.unit.id,
            file: &self.unit.file,
            inputs: Region::of(&inputs.lent),
            others: Region::of(&others.lent),
            tensors: inputs.tensors(op, case)?,
            numbers: &numbers(op, case)?,
            outputs: &outs,
        };
        let guessed: Guessed = self.service.ask(Some(&self.unit), &ask, &files(&[&inputs.lent, &others.lent]))?;
        let passes = |guess: &Vec<Far>| {
            guess.iter().zip(&forms).zip(&outs).enumerate().all(|(index, ((far, form), out))| {
                let limits = yard.limits(index, form, out.elements, yard.eager[index]);
                far.measured().judge(out.elements, 0, &limits, Allowed::default()).within(1.0)
            })
        };
        let passing = guessed.guesses.iter().enumerate().filter(|(_, guess)| passes(guess));
        Ok(passing.map(|(index, _)| index).collect())
    }

    /// How far eager PyTorch is off on these inputs; what is right stays there for the question that follows.
    fn evaluate(
        &self,
        op: &Operation,
        case: &Case,
        inputs: &Inputs,
        outputs: &[Out],
        split: bool,
    ) -> Result<Evaluated, TorchError> {
        let (tensors, numbers) = (inputs.tensors(op, case)?, numbers(op, case)?);
        let (id, file) = (&self.unit.id, &self.unit.file);
        let region = Region::of(&inputs.lent);
        let ask = Ask::Evaluate { id, file, inputs: region, tensors, numbers: &numbers, outputs, split };
        let answer: Evaluated = self.service.ask(Some(&self.unit), &ask, &files(&[&inputs.lent]))?;
        match answer.eager.len() == outputs.len() {
            true => Ok(answer),
            false => Err(TorchError::Talk("an answer of another operation".into())),
        }
    }

    /// What reaches an output's elements, at a case's shape.
    fn reached<B: Device>(&self, backend: &B, op: &Operation, case: &Case) -> Result<Rc<Reached>, TorchError> {
        if let Some(known) = self.reached.borrow().get(&case.shape) {
            return Ok(known.clone());
        }
        let case = &Case { input: None, setting: 0, ..case.clone() };
        let outs = outs(op, case)?;
        let drawn = Inputs::drawn(backend, op, case, Stream::new(SEED, "reached").bits(0), &self.files)?;
        let inputs = &drawn.inputs;
        let mut sized = Vec::new();
        let tensors = op.tensors.iter().filter(|tensor| tensor.role == Role::Input);
        for (place, tensor) in tensors.enumerate().filter(|(_, tensor)| !tensor.weight && !tensor.dtype.is_whole()) {
            let elements = op.elements(tensor, &case.shape).map_err(words)?;
            if elements > 0 && op.present(tensor, &case.shape).map_err(words)? {
                sized.push((std::cmp::Reverse(elements), place));
            }
        }
        sized.sort_unstable();
        let ask = Ask::Reach {
            id: &self.unit.id,
            file: &self.unit.file,
            inputs: Region::of(&inputs.lent),
            tensors: inputs.tensors(op, case)?,
            numbers: &numbers(op, case)?,
            outputs: &outs,
            changed: sized.into_iter().take(CHANGED).map(|(_, place)| place).collect(),
        };
        let reached: Reached = self.service.ask(Some(&self.unit), &ask, &files(&[&inputs.lent]))?;
        let reached = Rc::new(reached);
        self.reached.borrow_mut().insert(case.shape.clone(), reached.clone());
        Ok(reached)
    }

    /// PyTorch's own error on inputs of this kind.
    fn yard<B: Device>(&self, backend: &B, op: &Operation, case: &Case) -> Result<Rc<Yard>, TorchError> {
        if let Some(known) = self.yards.borrow().get(case) {
            return Ok(known.clone());
        }
        let (forms, outs) = (forms(op, case)?, outs(op, case)?);
        let reached = self.reached(backend, op, case)?;
        let ordinary = case.input.is_none();
        // Where nothing is added up, all inputs are as few terms are.
        let few: Vec<bool> = (0..forms.len())
            .map(|index| op.few_terms(case).is_some() || ordinary && reached.is_elementwise(index))
            .map(|few| few && case.dtype == Dtype::F32)
            .collect();
        let (eager, split) = (vec![Parts::default(); forms.len()], vec![None; forms.len()]);
        let counts = vec![Counts::default(); forms.len()];
        let (mut inputs, mut columns) = (0, 1);
        for tensor in op.tensors.iter().filter(|tensor| tensor.role == Role::Input && !tensor.weight) {
            let elements = op.elements(tensor, &case.shape).map_err(words)?;
            if elements > inputs {
                let row = op.dimensions(tensor, &case.shape).map_err(words)?.last().copied();
                (inputs, columns) = (elements, row.unwrap_or(1).max(1));
            }
        }
        let mut yard = Yard { eager, counts, reached, ordinary, split, inputs, columns, useless: None };
        let elements = op.all_elements(&case.shape).map_err(words)? as usize;
        let draws = DRAWS.iter().find(|(most, _)| elements <= *most).map_or(2, |(_, draws)| *draws);
        let stream = Stream::new(SEED, "yardstick");
        for draw in 0..draws {
            let drawn = Inputs::drawn(backend, op, case, stream.bits(draw), &self.files)?;
            let answer = self.evaluate(op, case, &drawn.inputs, &outs, few.contains(&true))?;
            for (index, (form, far)) in forms.iter().zip(&answer.eager).enumerate() {
                let measured = far.measured();
                yard.eager[index] = yard.eager[index].worst(measured.parts);
                yard.counts[index] = yard.counts[index].worst(measured.counts);
                let split = answer.split.as_ref().filter(|_| few[index]).and_then(|split| split.get(index));
                let split = split.map(|far| far.measured().parts);
                yard.split[index] = split.map(|split| yard.split[index].map_or(split, |known| known.worst(split)));
                yard.useless = yard.useless.take().or_else(|| form.useless(&measured));
            }
            yard.useless = yard.useless.take().or_else(|| answer.tells_nothing(ordinary).map(str::to_owned));
            if yard.useless.is_some() {
                break;
            }
        }
        if let Some(why) = yard.useless.as_ref().filter(|_| case.input.is_none()) {
            return Err(TorchError::Target(format!("ordinary inputs test nothing: {why}")));
        }
        let yard = Rc::new(yard);
        self.yards.borrow_mut().insert(case.clone(), yard.clone());
        Ok(yard)
    }
}

impl Yard {
    /// What an output of so many elements may be off by where PyTorch is off by `eager`.
    fn limits(&self, index: usize, form: &Form, elements: usize, eager: Parts) -> Parts {
        let rows = form.rows(elements).max(1);
        let usual = Floors::of(form.dtype, rows, self.terms(index, rows)).limits(eager);
        match self.split[index] {
            Some(split) if form.dtype == Dtype::F32 => few_terms(eager, split, usual, self.equal_terms(index, rows)),
            _ => usual,
        }
    }

    /// Rows of the largest activation whose results are added up, as in a loss: where few terms of each are not zero, they are alike.
    fn equal_terms(&self, index: usize, rows: usize) -> usize {
        if self.terms(index, rows) < self.inputs { 0 } else { self.inputs / self.columns }
    }

    /// Terms that a sum may have: of the largest activation no more for each of so many rows than there are, nor than an element depends on.
    fn terms(&self, index: usize, rows: usize) -> usize {
        self.reached.terms(index).map_or(self.inputs / rows, |terms| terms.min(self.inputs / rows))
    }

    /// How many elements may be what is counted, where PyTorch has `eager` here and all together may be off by so many units.
    fn allowed(&self, index: usize, form: &Form, elements: usize, eager: Counts, tensor: f64) -> Allowed {
        if !self.ordinary || form.whole {
            return Allowed::default();
        }
        let (known, rows) = (self.counts[index], form.rows(elements).max(1));
        let eager = known.worst(eager);
        // What cancels in a product is small, and rounding its sums moves much of it.
        let once = known.rounds_once(form.dtype, elements) && !self.reached.products;
        let strayed = || Allowed::strayed(eager, form.dtype, elements, self.terms(index, rows));
        Allowed {
            lost: Some(Allowed::lost(eager, elements, tensor * form.dtype.roundoff())),
            strayed: once.then(strayed),
        }
    }
}

/// An element that is made of so few of an input is no sum.
const NO_SUM: f64 = 4.0;

impl Reached {
    /// Elements of one input of which an element of an output is made, where that is known.
    fn terms(&self, index: usize) -> Option<usize> {
        self.reach.get(index).filter(|reach| **reach > 0.0).map(|reach| reach.ceil() as usize)
    }

    /// Whether an element of an output is made of one or a few of each input.
    fn is_elementwise(&self, index: usize) -> bool {
        self.reach.get(index).is_some_and(|reach| *reach > 0.0 && *reach <= NO_SUM)
    }
}

/// What is said of an operation of which a guess passes, in the order of [`Guessed`].
const TRIVIAL: [&str; 4] = [
    "a tensor of zeros passes for its result",
    "a tensor that has the mean everywhere passes for its result",
    "its result hardly depends on its inputs: that of other inputs passes for it",
    "a copy of one of its inputs passes for its result",
];

/// The files of what is lent, in order.
pub(super) fn files<'a>(lent: &[&'a Lent]) -> Vec<BorrowedFd<'a>> {
    lent.iter().flat_map(|lent| &lent.pieces).map(|piece| piece.file.as_fd()).collect()
}

/// The type and the rows of each output.
fn forms(op: &Operation, case: &Case) -> Result<Vec<Form>, TorchError> {
    let outputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
    let form = |tensor| {
        let row = row_length(&op.dimensions(tensor, &case.shape)?);
        let stored = tensor.dtype.stored(case.dtype);
        Ok(Form { dtype: stored.dtype().unwrap_or(case.dtype), whole: stored.dtype().is_none(), row })
    };
    outputs.map(form).collect::<Result<_, _>>().map_err(words)
}
