//! The oracle at a few elements of each output: what `op::Sample` says, on the device, and nothing else.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::driver::{Access, Arguments, CudaError};
use super::arena::Arena;
use super::oracle::{IN_PLACE, Oracle, Pair, RANGES, State, ranges};
use super::oracle_source::{array_names, items_passes};
use super::words::number;
use crate::backend::bounds::{Place, compare_places};
use crate::backend::{CaseMemory, Region, Span};
use crate::evaluation::ErrorStats;
use crate::op::{Case, OpError, Operation, Pass, Role, Sample, SampleStep, Stored};

/// Compares the elements of `sample` as they stand in the outputs of `copy` with the oracle, which is evaluated for these alone.
///
/// # Errors
/// A sentence: the machine or the operation's files are at fault.
pub fn compare_some(
    oracle: &Oracle,
    memory: &CaseMemory,
    arena: &Arena,
    copy: usize,
    sample: &Sample,
) -> Result<ErrorStats, String> {
    if sample.is_empty() {
        return Ok(ErrorStats::default());
    }
    let text = |error: CudaError| error.to_string();
    let (op, case) = (oracle.operation(), memory.case());
    for region in [Region::Inputs, Region::Outputs] {
        arena.ground().reach(region, Access::Read).map_err(text)?;
    }
    let inputs: Vec<Option<u64>> =
        memory.inputs(copy).iter().map(|span| span.as_ref().map(|span| arena.address(span))).collect();
    let outputs: Vec<(Stored, Span)> = memory.outputs_of(copy).collect();
    let windows = windows(op, case, sample).map_err(|error| error.to_string())?;
    let arrays = oracle.lay_out(&windows).map_err(text)?;
    let mut state = State {
        shape: &case.shape,
        dtype: case.dtype,
        ints: op.ints(&case.shape).map_err(|error| error.to_string())?,
        scalars: op.scalars_of(case).map_err(|error| error.to_string())?,
        inputs: &inputs,
        arrays: BTreeMap::new(),
        decoded: BTreeMap::new(),
        seed: 0,
        checked: Vec::new(),
    };
    let given = oracle.given(arena, &outputs, sample, &arrays)?;
    let own = |name: &str| arrays.get(&(name.to_owned(), Whose::Oracle)).copied();
    for name in array_names(op) {
        if let Some(pair) = own(name) {
            state.arrays.insert(name.to_owned(), pair);
        }
    }
    for step in &sample.steps {
        oracle.run_step(&state, step, &given)?;
    }
    // Three words of each element: what the candidate wrote, r, C.
    let specs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
    let (mut addresses, mut known) = (Vec::new(), Vec::new());
    for ((spec, (stored, span)), elements) in specs.zip(&outputs).zip(&sample.elements) {
        let Some(pair) = own(&spec.name).filter(|_| !elements.is_empty()) else {
            known.push(&[][..]);
            continue;
        };
        for index in elements {
            let at = |base: u64, size: usize| (base.wrapping_add((index * size) as u64), size);
            addresses.extend([at(arena.address(span), stored.bytes()), at(pair.values, 8), at(pair.terms, 8)]);
        }
        known.push(&elements[..]);
    }
    let words = oracle.desk().words_at(&addresses).map_err(text)?;
    let mut words = words.chunks_exact(3);
    let (mut expected, mut got) = (Vec::new(), Vec::new());
    for elements in known {
        let three = elements.iter().zip(words.by_ref());
        let (places, bits): (Vec<Place>, Vec<u64>) = three
            .map(|(index, word)| {
                let [value, terms] = [word[1], word[2]].map(f64::from_bits);
                (Place { index: *index, value, terms }, word[0])
            })
            .unzip();
        expected.push(places);
        got.push(bits);
    }
    let mut read = |output: usize, stored: Stored, _: &[usize]| {
        got[output].iter().flat_map(|word| word.to_ne_bytes().into_iter().take(stored.bytes())).collect()
    };
    compare_places(op, (case, memory.sums()), &expected, &mut read).map_err(|error| error.to_string())
}

/// Whose values an array holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    Oracle,
    /// An output that a later pass reads, as the candidate wrote it.
    Candidate,
}

/// What there must be room for, of each array: from the first element that a step may touch to the last.
type Windows = BTreeMap<(String, Whose), Range<usize>>;

fn windows(op: &Operation, case: &Case, sample: &Sample) -> Result<Windows, OpError> {
    let shape = &case.shape;
    let mut all = Windows::new();
    let widen = |all: &mut Windows, name: &str, part: Range<usize>| {
        let window = all.entry((name.to_owned(), Whose::Oracle)).or_insert_with(|| part.clone());
        *window = window.start.min(part.start)..window.end.max(part.end);
    };
    for tensor in op.tensors.iter().filter(|tensor| sample.given.contains(&tensor.name)) {
        all.insert((tensor.name.clone(), Whose::Candidate), 0..op.elements(tensor, shape)?);
    }
    for step in &sample.steps {
        let (Some(first), Some(last)) = (step.items.first(), step.items.last()) else { continue };
        match &op.passes[step.pass] {
            Pass::Product(pass) => widen(&mut all, &pass.out, first.start..last.end),
            Pass::Items(pass) => {
                let count = op.size(&pass.name, &pass.items, shape)?;
                let written = pass.out.iter().map(|out| out.name.clone());
                // It reads of what is there already the same part, computed or not.
                let there = all.keys().filter(|(_, whose)| *whose == Whose::Oracle).map(|(name, _)| name.clone());
                for name in written.chain(there).collect::<Vec<_>>() {
                    let Some(size) = op.array_size(&name, shape)? else { continue };
                    let part = if size.is_multiple_of(count) { size / count } else { 0 };
                    let window = if part == 0 { 0..size } else { first.start * part..last.end * part };
                    widen(&mut all, &name, window);
                }
            }
        }
    }
    Ok(all)
}

impl Oracle {
    /// Memory for windows of arrays. An address is that of an array's element 0, which need not be there.
    fn lay_out(&self, windows: &Windows) -> Result<BTreeMap<(String, Whose), Pair>, CudaError> {
        let bytes = |window: &Range<usize>| (window.len() * 8).next_multiple_of(256) as u64;
        let end: u64 = windows.values().map(|window| 2 * bytes(window)).sum();
        let mut next = self.desk().store(end as usize)?;
        let mut take = |window: &Range<usize>| {
            let at = next;
            next += bytes(window);
            at.wrapping_sub(window.start as u64 * 8)
        };
        let pair = |window: &Range<usize>| Pair { values: take(window), terms: take(window), elements: window.end };
        Ok(windows.keys().cloned().zip(windows.values().map(pair)).collect())
    }

    /// The outputs that later passes read, as doubles.
    fn given(
        &self,
        arena: &Arena,
        outputs: &[(Stored, Span)],
        sample: &Sample,
        arrays: &BTreeMap<(String, Whose), Pair>,
    ) -> Result<BTreeMap<String, Pair>, String> {
        let mut given = BTreeMap::new();
        let specs = self.operation().tensors.iter().filter(|tensor| tensor.role == Role::Output);
        for (spec, (stored, span)) in specs.zip(outputs).filter(|(spec, _)| sample.given.contains(&spec.name)) {
            let Some(pair) = arrays.get(&(spec.name.clone(), Whose::Candidate)) else { continue };
            let arguments = Arguments::new()
                .pointer(arena.address(span))
                .int(number(*stored) as i32)
                .long(pair.elements as i64)
                .pointer(pair.values)
                .pointer(pair.terms);
            let blocks = self.desk().blocks(pair.elements as u64);
            self.desk().launch("ws_decode", blocks, &arguments).map_err(|error| error.to_string())?;
            given.insert(spec.name.clone(), *pair);
        }
        Ok(given)
    }

    /// Runs a part of a pass.
    fn run_step(&self, state: &State<'_>, step: &SampleStep, given: &BTreeMap<String, Pair>) -> Result<(), String> {
        let op = self.operation();
        let text = |error: CudaError| error.to_string();
        let (pass, instead, checks) = match &op.passes[step.pass] {
            Pass::Items(pass) => {
                // It reads what was given, unless it writes it.
                let read = given.iter().filter(|(name, _)| !pass.out.iter().any(|out| out.name == **name));
                (pass, read.map(|(name, pair)| (name.as_str(), *pair)).collect::<Vec<_>>(), false)
            }
            Pass::Product(product) => {
                let checker = items_passes(op).find(|items| items.name == product.checked_by);
                let found = checker.zip(state.arrays.get(&product.out));
                let Some((checker, out)) = found.filter(|(checker, _)| !checker.out.is_empty()) else {
                    return Err(format!("`{}` has no checker", product.out));
                };
                (checker, vec![(checker.out[0].name.as_str(), *out)], true)
            }
        };
        let context = self.context(state, &instead);
        for items in step.items.chunks(RANGES) {
            let count: usize = items.iter().map(ExactSizeIterator::len).sum();
            let mut arguments = Arguments::new().bytes(&context).bytes(&ranges(items));
            if checks {
                arguments = arguments.int(IN_PLACE).pointer(0);
            }
            self.run(pass, count as u64, &arguments.long(count as i64)).map_err(text)?;
        }
        Ok(())
    }
}
