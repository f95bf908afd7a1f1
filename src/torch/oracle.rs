//! PyTorch as the oracle of an operation, and as what there is to beat.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;

use super::bound::{Floors, Form, Parts, few_terms, row_length};
use super::inputs::{Answer, Drawn, Inputs, Results};
use super::service::{Service, Unit};
use super::wire::{Ask, Timed};
use super::{Hello, TorchError};
use crate::backend::{Arena, CaseMemory, decode_into, merge_outputs, told_apart};
use crate::evaluation::{Baseline, ErrorStats};
use crate::op::{Case, Dtype, OpError, Operation, Role};
use crate::rng::Stream;

/// Draws of one kind whose worst eager error is the yardstick: of small outputs more, because chance has more to say there, of
/// large ones fewer, because they take time and differ little.
const DRAWS: [(usize, u64); 3] = [(1 << 12, 16), (1 << 20, 4), (usize::MAX, 2)];

/// Drawn from this, always: a yardstick does not depend on a candidate's inputs.
const SEED: u64 = 0x746f_7263;

/// Seconds that each of PyTorch's ways is timed.
const SECONDS: f64 = 0.4;

/// An operation's function or problem.
#[derive(Debug)]
pub struct Oracle {
    service: Arc<Service>,
    unit: Unit,
    yards: RefCell<HashMap<Case, Rc<Yard>>>,
    /// Types in which it was found to depend on its inputs.
    admitted: RefCell<Vec<Dtype>>,
    timed: RefCell<HashMap<(Case, Mode), Result<f64, String>>>,
}

/// Of `torch.compile`; `None` is eager.
type Mode = Option<&'static str>;

/// PyTorch's own error on inputs of one kind.
#[derive(Debug, Clone)]
struct Yard {
    /// The worst of each output over the draws.
    eager: Vec<Parts>,
    /// What inputs in two parts of bfloat16 make of each output, where that bounds it.
    split: Vec<Option<Parts>>,
    /// Elements of the largest input.
    inputs: usize,
    /// Why there is none.
    useless: Option<String>,
}

impl Oracle {
    /// The oracle of `op`, asked through `service`.
    #[must_use]
    pub fn new(service: Arc<Service>, op: &Operation) -> Self {
        let unit = Unit::new(format!("{}.py", op.name), &op.python);
        Self { service, unit, yards: RefCell::default(), admitted: RefCell::default(), timed: RefCell::default() }
    }

    /// How far `outputs` (the bytes of each, in the operation's order) are from what the inputs of `copy` give in double precision,
    /// in ratios of what PyTorch's own error allows. Every element is compared. Where PyTorch's own result is no yardstick for a
    /// hostile input, nothing is, and [`ErrorStats::untested`] says why.
    ///
    /// # Errors
    /// PyTorch's or the file's; an operation whose ordinary inputs test nothing.
    pub fn compare<A: Arena>(
        &self,
        memory: &CaseMemory,
        arena: &A,
        copy: usize,
        outputs: &[&[u8]],
    ) -> Result<ErrorStats, TorchError> {
        let (op, case) = (memory.operation(), memory.case());
        self.admit(op, case.dtype)?;
        let yard = self.yard(op, case)?;
        if let Some(why) = &yard.useless {
            return Ok(ErrorStats { untested: Some(why.clone()), ..ErrorStats::default() });
        }
        let file = arena.inputs_file().ok_or_else(TorchError::elsewhere)?;
        let answers = self.evaluate(op, case, &Inputs::of(memory, copy, file), false)?;
        let forms = forms(op, case)?;
        let useless =
            forms.iter().zip(&answers).find_map(|(form, it)| form.useless(&form.measure(&it.eager, &it.right)));
        if let Some(why) = useless {
            return Ok(ErrorStats { untested: Some(why), ..ErrorStats::default() });
        }
        let mut total = ErrorStats::default();
        let specs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
        for (index, (((spec, form), answer), bytes)) in specs.zip(&forms).zip(&answers).zip(outputs).enumerate() {
            let mut got = vec![0.0; answer.right.len()];
            decode_into(bytes, spec.dtype.stored(case.dtype), &mut got);
            let eager = form.measure(&answer.eager, &answer.right).parts.worst(yard.eager[index]);
            let limits = yard.limits(index, form, answer.right.len(), eager);
            let stats = form.judge(&got, &answer.right, &limits);
            merge_outputs(&mut total, &stats, told_apart(op, spec));
        }
        Ok(total)
    }

    /// What PyTorch takes for `case` on the inputs of `copy`, each way that it can be run: eagerly, and compiled where `compiled` asks
    /// for that and it works. Timed in PyTorch's process by itself, not in pairs.
    ///
    /// # Errors
    /// PyTorch's.
    pub fn baselines<A: Arena>(
        &self,
        memory: &CaseMemory,
        arena: &A,
        copy: usize,
        compiled: bool,
    ) -> Result<Vec<Baseline>, TorchError> {
        let hello = self.service.hello()?;
        let Some(file) = arena.inputs_file() else { return Ok(Vec::new()) };
        let (op, case) = (memory.operation(), memory.case());
        let inputs = Inputs::of(memory, copy, file);
        let modes: &[Mode] = if compiled { &[None, Some("default"), Some("max-autotune")] } else { &[None] };
        let mut all = Vec::new();
        for mode in modes {
            let known = self.timed.borrow().get(&(case.clone(), *mode)).cloned();
            let us = match known {
                Some(known) => known,
                None => {
                    let us = self.time(op, case, &inputs, *mode).map_err(|error| error.to_string());
                    self.timed.borrow_mut().insert((case.clone(), *mode), us.clone());
                    us
                }
            };
            all.push(baseline(&hello, case, *mode, us));
        }
        Ok(all)
    }

    /// Refuses an operation of which an answer passes that has nothing to do with its inputs, at a shape that stands for all.
    fn admit(&self, op: &Operation, dtype: Dtype) -> Result<(), TorchError> {
        if self.admitted.borrow().contains(&dtype) {
            return Ok(());
        }
        let shape = op.complete(&op.ordinary_shape()).map_err(words)?;
        let case = Case { shape, dtype, input: None, setting: 0 };
        let (forms, yard) = (forms(op, &case)?, self.yard(op, &case)?);
        let [first, second] = [0, 1].map(|draw| Drawn::new(op, &case, Stream::new(SEED, "admission").bits(draw)));
        let (first, second) = (first?, second?);
        let known = self.evaluate(op, &case, &first.inputs(), false)?;
        let answers = self.evaluate(op, &case, &second.inputs(), false)?;
        if let Some(why) = trivial(&forms, &yard, (&known, &answers), &second) {
            return Err(TorchError::Target(format!(
                "in {dtype} {why}; leave {dtype} out of what the kernel serves, if that is not all"
            )));
        }
        self.admitted.borrow_mut().push(dtype);
        Ok(())
    }

    fn time(&self, op: &Operation, case: &Case, inputs: &Inputs<'_>, mode: Option<&str>) -> Result<f64, TorchError> {
        let (tensors, numbers) = (inputs.tensors(op, case).map_err(words)?, numbers(op, case).map_err(words)?);
        let (id, file) = (&self.unit.id, &self.unit.file);
        let ask = Ask::Time { id, file, tensors, numbers: &numbers, mode, seconds: SECONDS };
        let timed: Timed = self.service.ask(Some(&self.unit), &ask, &[inputs.file])?;
        tracing::info!(us = timed.us, calls = timed.calls, mode, "PyTorch was timed");
        Ok(timed.us)
    }

    /// Every output on these inputs.
    fn evaluate(
        &self,
        op: &Operation,
        case: &Case,
        inputs: &Inputs<'_>,
        split: bool,
    ) -> Result<Vec<Answer>, TorchError> {
        let results = Results::new(op, case, split)?;
        let (tensors, numbers) = (inputs.tensors(op, case).map_err(words)?, numbers(op, case).map_err(words)?);
        let (id, file) = (&self.unit.id, &self.unit.file);
        let ask = Ask::Evaluate { id, file, tensors, numbers: &numbers, outputs: results.outs.clone() };
        let _: Value = self.service.ask(Some(&self.unit), &ask, &[inputs.file, results.file()])?;
        results.read()
    }

    /// PyTorch's own error on inputs of this kind.
    fn yard(&self, op: &Operation, case: &Case) -> Result<Rc<Yard>, TorchError> {
        if let Some(known) = self.yards.borrow().get(case) {
            return Ok(known.clone());
        }
        let forms = forms(op, case)?;
        let few = op.few_terms(case).is_some() && case.dtype == Dtype::F32;
        let (eager, split) = (vec![Parts::default(); forms.len()], vec![None; forms.len()]);
        let sizes = op.tensors.iter().filter(|tensor| tensor.role == Role::Input && !tensor.weight);
        let sizes =
            sizes.map(|tensor| op.elements(tensor, &case.shape)).collect::<Result<Vec<_>, _>>().map_err(words)?;
        let mut yard = Yard { eager, split, inputs: sizes.into_iter().max().unwrap_or(0), useless: None };
        let elements = op.all_elements(&case.shape).map_err(words)? as usize;
        let draws = DRAWS.iter().find(|(most, _)| elements <= *most).map_or(2, |(_, draws)| *draws);
        let stream = Stream::new(SEED, "yardstick");
        for draw in 0..draws {
            let drawn = Drawn::new(op, case, stream.bits(draw))?;
            let answers = self.evaluate(op, case, &drawn.inputs(), few)?;
            for (index, (form, answer)) in forms.iter().zip(&answers).enumerate() {
                let measured = form.measure(&answer.eager, &answer.right);
                yard.eager[index] = yard.eager[index].worst(measured.parts);
                let split = answer.split.as_ref().map(|split| form.measure(split, &answer.right).parts);
                yard.split[index] = split.map(|split| yard.split[index].map_or(split, |known| known.worst(split)));
                yard.useless = yard.useless.take().or_else(|| form.useless(&measured));
            }
            // A NaN that no input holds: the function is not defined there.
            let undefined = |answer: &Answer| drawn.is_finite() && answer.right.iter().any(|value| value.is_nan());
            if yard.useless.is_none() && answers.iter().any(undefined) {
                yard.useless = Some("it is not defined there: the result is NaN in double precision".into());
            }
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
        let usual = Floors::of(form.dtype, rows, self.inputs / rows).limits(eager);
        match self.split[index] {
            Some(split) if form.dtype == Dtype::F32 => few_terms(eager, split, usual),
            _ => usual,
        }
    }
}

fn baseline(hello: &Hello, case: &Case, mode: Option<&str>, us: Result<f64, String>) -> Baseline {
    let name = mode.map_or("eager".to_owned(), |mode| match mode {
        "default" => "torch.compile".to_owned(),
        mode => format!("torch.compile {mode}"),
    });
    let how = format!(
        "PyTorch {}, {} threads; the median of calls in a row in its own process, caches warm, not in pairs with the kernel",
        hello.torch, hello.threads
    );
    let (us, why) = match us {
        Ok(us) => (Some(us), None),
        Err(why) => (None, Some(why)),
    };
    Baseline { name, shape: case.shape.clone(), dtype: case.dtype, us, why, how }
}

/// Why an answer that has nothing to do with the inputs, or is one of them, would pass.
fn trivial(forms: &[Form], yard: &Yard, (first, answers): (&[Answer], &[Answer]), drawn: &Drawn) -> Option<String> {
    let passes = |guess: &dyn Fn(usize, &Answer) -> Option<Vec<f64>>| {
        forms.iter().zip(answers).zip(&yard.eager).enumerate().all(|(index, ((form, answer), eager))| {
            let limits = yard.limits(index, form, answer.right.len(), *eager);
            guess(index, answer).is_some_and(|guess| form.judge(&guess, &answer.right, &limits).within(1.0))
        })
    };
    let of_type = |index: usize, value: f64| forms[index].nearest(value);
    if passes(&|_, answer| Some(vec![0.0; answer.right.len()])) {
        return Some("a tensor of zeros passes for its result".into());
    }
    let mean = |values: &[f64]| values.iter().filter(|v| v.is_finite()).sum::<f64>() / values.len().max(1) as f64;
    // The mean of other results: of an output of one element its own would be the result.
    let guess = |index: usize| of_type(index, mean(&first[index].right));
    if passes(&|index, answer| Some(vec![guess(index); answer.right.len()])) {
        return Some("a tensor that has the mean everywhere passes for its result".into());
    }
    if passes(&|index, _| Some(first[index].right.iter().map(|value| of_type(index, *value)).collect())) {
        return Some("its result hardly depends on its inputs: that of other inputs passes for it".into());
    }
    drawn.contents.iter().find_map(|(stored, bytes)| {
        let mut values = vec![0.0; bytes.len() / stored.bytes()];
        decode_into(bytes, *stored, &mut values);
        let copied = passes(&|_, answer| (answer.right.len() == values.len()).then(|| values.clone()));
        copied.then(|| "a copy of one of its inputs passes for its result".into())
    })
}

/// The type and the rows of each output.
fn forms(op: &Operation, case: &Case) -> Result<Vec<Form>, TorchError> {
    let outputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
    let form = |tensor| {
        let row = row_length(&op.dimensions(tensor, &case.shape)?);
        Ok(Form { dtype: tensor.dtype.stored(case.dtype).dtype().unwrap_or(case.dtype), row })
    };
    outputs.map(form).collect::<Result<_, _>>().map_err(words)
}

/// Symbols and floating-point arguments, in order.
fn numbers(op: &Operation, case: &Case) -> Result<Vec<(String, Value)>, OpError> {
    let symbols = op.symbols.iter().cloned().zip(op.ints(&case.shape)?.into_iter().map(Value::from));
    let scalars = op.scalars.iter().map(|scalar| scalar.name.clone());
    Ok(symbols
        .chain(scalars.zip(op.scalars_of(case)?.into_iter().map(|value| Value::from(f64::from(value)))))
        .collect())
}

fn words(error: OpError) -> TorchError {
    TorchError::Code(error.to_string())
}
