//! The oracle: `reference/<op>.h` compiled as CUDA, and trusted products, in the judge's own memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use super::super::driver::{Arguments, CudaError, Function, Geometry};
use super::desk::{Build, Desk, THREADS, place};
use super::oracle_source::{WIDE, array_names, context_words, entry, items_passes, source};
use super::words::{Words, number};
use crate::op::{Case, Dtype, ElementType, ItemsPass, Operation, Pass, ProductPass, Role, Shape};
use crate::rng::Stream;

/// Elements of a product that are checked against its items pass, each time (`SAMPLE`).
const SAMPLE: usize = 64;
/// Bytes of a `Disagreement`.
const DISAGREEMENT: u64 = 24;
/// Products of one operation: as many disagreements have a place.
const MOST_PRODUCTS: usize = ((place::READ_END - place::DISAGREE) / DISAGREEMENT) as usize;

/// What a checker does: a sample of items, each to a slot of its own; those that are not finite, in place; ranges of them, in
/// place (`WS_CHECK`).
const TO_SLOTS: i32 = 0;
const MEND: i32 = 1;
pub(super) const IN_PLACE: i32 = 2;
/// Ranges of items of one launch (`struct ws_places`).
pub(super) const RANGES: usize = SAMPLE / 2;

/// An operation's oracle, compiled for a device.
#[derive(Debug)]
pub struct Oracle {
    desk: Rc<Desk>,
    op: Operation,
    /// Entry points by pass.
    passes: BTreeMap<String, Function>,
}

/// What every output must be, in the judge's memory until the next evaluation.
#[derive(Debug)]
pub(super) struct Expected {
    /// In the order of the operation's output tensors.
    pub outputs: Vec<ExpectedTensor>,
    /// Free memory behind them, at least [`Oracle::spare`] bytes.
    pub free: u64,
    /// What was checked of products: their names, checkers and samples.
    checked: Vec<(String, String, Vec<u64>)>,
}

/// What one output must be.
#[derive(Debug)]
pub(super) struct ExpectedTensor {
    /// Its name.
    pub name: String,
    /// Address of the double-precision values, r.
    pub values: u64,
    /// Address of the sums of the absolute terms that made them, C.
    pub terms: u64,
    /// How many.
    pub elements: usize,
}

/// An array of doubles and of their terms, as addresses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub values: u64,
    pub terms: u64,
    pub elements: usize,
}

impl Pair {
    fn moved(self, base: u64) -> Self {
        let moved = |at: u64| if at == 0 { 0 } else { at + base - FIRST };
        Self { values: moved(self.values), terms: moved(self.terms), ..self }
    }
}

/// Where the first array would lie, before the memory is there: not zero, which means that there is none.
const FIRST: u64 = 256;

/// Where everything lies.
#[derive(Debug)]
struct Plan {
    /// Arrays of passes, by name.
    arrays: BTreeMap<String, Pair>,
    /// Inputs as doubles, for products, by name.
    decoded: BTreeMap<String, Pair>,
    end: u64,
}

impl Plan {
    fn take(&mut self, elements: usize) -> u64 {
        let at = self.end;
        self.end += (elements as u64 * 8).next_multiple_of(256);
        at
    }
}

impl Oracle {
    /// Compiles the operation's header through `build`.
    ///
    /// # Errors
    /// A sentence: the compiler's or the driver's.
    pub fn compile(desk: &Rc<Desk>, op: &Operation, build: Build<'_>) -> Result<Self, String> {
        let fail = |what: String| format!("the oracle of `{}` cannot be built: {what}", op.name);
        if op.passes.iter().filter(|pass| matches!(pass, Pass::Product(_))).count() > MOST_PRODUCTS {
            return Err(fail("it has too many products".into()));
        }
        let cubin = build(&format!("oracle_{}", op.name), &source(op).map_err(fail)?).map_err(fail)?;
        let module = desk.gpu().module(&cubin).map_err(|error| fail(error.to_string()))?;
        let mut passes = BTreeMap::new();
        for pass in items_passes(op) {
            let function = module.function(&entry(&pass.name)).map_err(|error| fail(error.to_string()))?;
            passes.insert(pass.name.clone(), function);
        }
        Ok(Self { desk: Rc::clone(desk), op: op.clone(), passes })
    }

    /// The operation it is the oracle of.
    #[must_use]
    pub const fn operation(&self) -> &Operation {
        &self.op
    }

    /// The judge's place on the device.
    pub(super) const fn desk(&self) -> &Rc<Desk> {
        &self.desk
    }

    /// Computes what every output must be at a (complete) shape. `inputs` has the address of each input in the operation's
    /// order, `None` where it is absent; `seed` chooses what is checked of products; `spare` bytes are left free behind.
    ///
    /// The work is on the stream when this returns, not done.
    ///
    /// # Errors
    /// A sentence: an expression, a lack of memory, the driver.
    pub(super) fn expected(
        &self,
        case: &Case,
        inputs: &[Option<u64>],
        seed: u64,
        spare: usize,
    ) -> Result<Expected, String> {
        let (shape, dtype) = (&case.shape, case.dtype);
        let plan = self.plan(shape)?;
        let text = |error: CudaError| {
            if error.is_out_of_memory() {
                format!("the oracle of `{}` needs {} MB beside the tensors: {error}", self.op.name, plan.end >> 20)
            } else {
                error.to_string()
            }
        };
        let base = self.desk.store((plan.end - FIRST) as usize + spare).map_err(text)?;
        let mut state = State {
            shape,
            dtype,
            ints: self.op.ints(shape).map_err(|error| error.to_string())?,
            scalars: self.op.scalars_of(case).map_err(|error| error.to_string())?,
            inputs,
            arrays: plan.arrays.iter().map(|(name, pair)| (name.clone(), pair.moved(base))).collect(),
            decoded: plan.decoded.iter().map(|(name, pair)| (name.clone(), pair.moved(base))).collect(),
            seed,
            checked: Vec::new(),
        };
        self.evaluate(&mut state)?;
        let outputs = self.op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
        let outputs = outputs
            .filter_map(|tensor| {
                let Pair { values, terms, elements } = *state.arrays.get(&tensor.name)?;
                Some(ExpectedTensor { name: tensor.name.clone(), values, terms, elements })
            })
            .collect();
        Ok(Expected { outputs, free: base + plan.end - FIRST, checked: state.checked })
    }

    fn plan(&self, shape: &Shape) -> Result<Plan, String> {
        let op = &self.op;
        let text = |error: crate::op::OpError| error.to_string();
        let mut plan = Plan { arrays: BTreeMap::new(), decoded: BTreeMap::new(), end: FIRST };
        let checkers: Vec<&str> = op.checkers().collect();
        for pass in &op.passes {
            match pass {
                Pass::Items(items) if checkers.contains(&items.name.as_str()) => {}
                Pass::Items(items) => {
                    for out in &items.out {
                        let elements = op.size(&out.name, &out.size, shape).map_err(text)?;
                        let pair = Pair { values: plan.take(elements), terms: plan.take(elements), elements };
                        plan.arrays.insert(out.name.clone(), pair);
                    }
                }
                Pass::Product(pass) => {
                    let terms = op.wants_terms(pass);
                    for factor in [&pass.a, &pass.b] {
                        let Some(tensor) = op.tensor(factor).filter(|tensor| tensor.role == Role::Input) else {
                            continue;
                        };
                        let elements = op.elements(tensor, shape).map_err(text)?;
                        let mut pair =
                            plan.decoded.get(factor).copied().unwrap_or(Pair { values: 0, terms: 0, elements });
                        if pair.values == 0 {
                            pair.values = plan.take(elements);
                        }
                        if terms && pair.terms == 0 {
                            pair.terms = plan.take(elements);
                        }
                        plan.decoded.insert(factor.clone(), pair);
                    }
                    let elements = op.product_elements(pass, shape).map_err(text)?;
                    let values = plan.take(elements);
                    let terms = if terms { plan.take(elements) } else { 0 };
                    plan.arrays.insert(pass.out.clone(), Pair { values, terms, elements });
                }
            }
        }
        Ok(plan)
    }

    fn evaluate(&self, state: &mut State<'_>) -> Result<(), String> {
        let text = |error: CudaError| error.to_string();
        let gpu = self.desk.gpu();
        let from = self.desk.paper(place::DISAGREE).map_err(text)?;
        gpu.memset(from, 0, (place::READ_END - place::DISAGREE) as usize).map_err(text)?;
        for (name, pair) in state.decoded.clone() {
            self.decode(&name, pair, state)?;
        }
        let checkers: Vec<&str> = self.op.checkers().collect();
        for pass in &self.op.passes {
            match pass {
                Pass::Items(items) if checkers.contains(&items.name.as_str()) => {}
                Pass::Items(items) => {
                    let count = self.op.size(&items.name, &items.items, state.shape).map_err(|e| e.to_string())?;
                    let arguments = Arguments::new()
                        .bytes(&self.context(state, &[]))
                        .bytes(&ranges(std::slice::from_ref(&(0..count))))
                        .long(count as i64);
                    self.run(items, count as u64, &arguments).map_err(text)?;
                }
                Pass::Product(pass) => self.multiply(pass, state)?,
            }
        }
        Ok(())
    }

    /// An input as doubles.
    fn decode(&self, name: &str, pair: Pair, state: &State<'_>) -> Result<(), String> {
        let inputs = self.op.tensors.iter().filter(|tensor| tensor.role == Role::Input);
        let found = inputs.zip(state.inputs).find(|(tensor, _)| tensor.name == name);
        let Some((tensor, Some(address))) = found else {
            return Err(format!("a pass of `{}` multiplies `{name}`, which is absent", self.op.name));
        };
        let arguments = Arguments::new()
            .pointer(*address)
            .int(number(tensor.dtype.stored(state.dtype)) as i32)
            .long(pair.elements as i64)
            .pointer(pair.values)
            .pointer(pair.terms);
        let blocks = self.desk.blocks(pair.elements as u64);
        self.desk.launch("ws_decode", blocks, &arguments).map_err(|error| error.to_string())
    }

    fn multiply(&self, pass: &ProductPass, state: &mut State<'_>) -> Result<(), String> {
        let op = &self.op;
        let layout = op.product_layout(pass, state.shape).map_err(|error| error.to_string())?;
        let lost = || format!("a product of `{}` has no factors", op.name);
        let (a, b) = (state.factor(&pass.a).ok_or_else(lost)?, state.factor(&pass.b).ok_or_else(lost)?);
        let out = *state.arrays.get(&pass.out).ok_or_else(lost)?;
        let text = |error: CudaError| error.to_string();
        self.desk.product(&layout, a.values, b.values, out.values).map_err(text)?;
        if out.terms != 0 {
            self.desk.product(&layout, a.terms, b.terms, out.terms).map_err(text)?;
        }
        let Some(items) = items_passes(op).find(|items| items.name == pass.checked_by) else { return Ok(()) };
        self.check(pass, items, layout.k, out, state).map_err(text)
    }

    /// Takes from the checker what is not finite, and compares a sample with it.
    fn check(
        &self,
        pass: &ProductPass,
        items: &ItemsPass,
        k: usize,
        out: Pair,
        state: &mut State<'_>,
    ) -> Result<(), CudaError> {
        let checked = items.out[0].name.as_str();
        let count = out.elements as u64;
        let none = vec![0; SAMPLE * 8];
        let mend = Arguments::new()
            .bytes(&self.context(state, &[(checked, out)]))
            .bytes(&none)
            .int(MEND)
            .pointer(out.values)
            .long(count as i64);
        self.run(items, count.div_ceil(32), &mend)?;
        let stream = Stream::new(state.seed, &pass.out);
        let corners = [0, count.saturating_sub(1)];
        let sample: Vec<u64> = if out.elements <= SAMPLE {
            (0..count).collect()
        } else {
            corners.into_iter().chain((0..SAMPLE as u64 - 2).map(|i| stream.below(i, count))).collect()
        };
        let slots = self.desk.paper(place::SLOTS)?;
        let plain = Pair { values: slots, terms: slots + 8 * SAMPLE as u64, elements: SAMPLE };
        let places = Words::default().many(sample.iter().copied()).padded(SAMPLE * 8);
        let arguments = Arguments::new()
            .bytes(&self.context(state, &[(checked, plain)]))
            .bytes(&places)
            .int(TO_SLOTS)
            .pointer(0)
            .long(sample.len() as i64);
        self.run(items, sample.len() as u64, &arguments)?;
        let result = self.desk.paper(place::DISAGREE + DISAGREEMENT * state.checked.len() as u64)?;
        let arguments = Arguments::new()
            .pointer(out.values)
            .pointer(out.terms)
            .pointer(plain.values)
            .pointer(plain.terms)
            .bytes(&places)
            .int(sample.len() as i32)
            .double(2.0 * (k + 8) as f64 * f64::EPSILON)
            .pointer(result);
        state.checked.push((pass.out.clone(), items.name.clone(), sample));
        self.desk.launch_as("ws_agree", &Geometry::linear(1, SAMPLE as u32), &arguments)
    }

    /// Launches a pass with a warp for each of `pieces` of work, or as many as fill the device; with a block for each, where warps would leave
    /// most of the device idle and the pass is no checker.
    pub(super) fn run(&self, pass: &ItemsPass, pieces: u64, arguments: &Arguments) -> Result<(), CudaError> {
        let Some(function) = self.passes.get(&pass.name) else {
            return Err(CudaError::Launch(format!("there is no pass `{}`", pass.name)));
        };
        let few = pieces <= u64::from(self.desk.gpu().facts().multiprocessors);
        let geometry = if few && !self.op.checkers().any(|checker| checker == pass.name) {
            Geometry::linear(pieces.max(1) as u32, WIDE)
        } else {
            Geometry { block: [32, THREADS / 32, 1], ..Geometry::linear(self.desk.blocks(pieces * 32), 32) }
        };
        self.desk.gpu().launch(function, &geometry, arguments)
    }

    /// `struct ws_all`; `instead` replaces arrays by name.
    pub(super) fn context(&self, state: &State<'_>, instead: &[(&str, Pair)]) -> Vec<u8> {
        let names = array_names(&self.op);
        let pairs: Vec<Pair> = names
            .iter()
            .map(|name| {
                let other = instead.iter().find(|(array, _)| array == name).map(|(_, pair)| *pair);
                let own = state.arrays.get(*name).copied();
                other.or(own).unwrap_or(Pair { values: 0, terms: 0, elements: 0 })
            })
            .collect();
        // An array of the structure has at least one entry.
        let filled = |values: Vec<u64>| if values.is_empty() { vec![0] } else { values };
        let bytes = Words::default()
            .many(filled(state.inputs.iter().map(|address| address.unwrap_or(0)).collect()))
            .many(filled(pairs.iter().map(|pair| pair.values).collect()))
            .many(filled(pairs.iter().map(|pair| pair.terms).collect()))
            .many(filled(state.ints.iter().map(|value| *value as u64).collect()))
            .many(filled(state.scalars.iter().map(|value| f64::from(*value).to_bits()).collect()))
            .u64(number(ElementType::Case.stored(state.dtype)).into())
            .done();
        assert_eq!(bytes.len(), context_words(&self.op) * 8);
        bytes
    }
}

impl Expected {
    /// What the disagreements that were read back say (`bytes` from `place::DISAGREE` on).
    ///
    /// # Errors
    /// A sentence: product and header contradict each other.
    pub(super) fn agreed(&self, op: &Operation, bytes: &[u8]) -> Result<(), String> {
        for ((out, pass, sample), words) in self.checked.iter().zip(super::arena::words(bytes).chunks_exact(3)) {
            let Some(number) = words[0].checked_sub(1) else { continue };
            let element = sample.get(number as usize).copied().unwrap_or_default();
            let [product, plain] = [words[1], words[2]].map(f64::from_bits);
            return Err(format!(
                "the oracle of `{}` contradicts itself: element {element} of `{out}` is {product} as a product, {plain} by pass `{pass}`",
                op.name
            ));
        }
        Ok(())
    }
}

/// `struct ws_places` as ranges: where each begins, and how many items are before it; at most [`RANGES`].
pub(super) fn ranges(all: &[Range<usize>]) -> Vec<u8> {
    let mut before = 0;
    let mut words = Words::default();
    for range in all {
        words = words.many([range.start as u64, before]);
        before += range.len() as u64;
    }
    // No item is behind a range that does not exist.
    words.many((all.len()..RANGES).flat_map(|_| [0, u64::MAX])).done()
}

/// What the passes have to work on.
pub(super) struct State<'a> {
    pub shape: &'a Shape,
    pub dtype: Dtype,
    pub ints: Vec<i64>,
    pub scalars: Vec<f32>,
    pub inputs: &'a [Option<u64>],
    pub arrays: BTreeMap<String, Pair>,
    pub decoded: BTreeMap<String, Pair>,
    pub seed: u64,
    pub checked: Vec<(String, String, Vec<u64>)>,
}

impl State<'_> {
    fn factor(&self, name: &str) -> Option<Pair> {
        self.arrays.get(name).or_else(|| self.decoded.get(name)).copied()
    }
}
