//! The oracle: `reference/<op>.h` compiled as C, evaluated in doubles over all cores.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::compare::{Expected, ExpectedTensor};
use super::oracle_source::{Inputs, array_names, items_passes, source};
use super::product::{ProductSizes, product};
use super::share::{cores, share, share_slice};
use super::values::decode;
use crate::op::{Case, ItemsPass, Matrices, OpError, Operation, Pass, ProductPass, Role, Shape};
use crate::rng::Stream;

/// Flags for oracles: sums may be reordered so that they vectorise, but NaN and infinity stay honest. A misspelt name is
/// the compiler's to refuse: left to the loader, it would end the process.
pub const ORACLE_FLAGS: [&str; 7] = [
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fassociative-math",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-Werror=implicit-function-declaration",
];

/// Elements of a product that are checked against its items pass, each time.
const SAMPLE: usize = 256;

/// Arrays kept from one call to the next.
const SPARE: usize = 4;

/// What can go wrong in the judge's own computation. None of it is the candidate's fault.
#[derive(Debug, thiserror::Error)]
pub enum OracleError {
    /// The header does not compile, or its library does not load.
    #[error("the oracle of `{op}` cannot be built: {what}")]
    Build {
        /// The operation.
        op: String,
        /// The compiler's or loader's words.
        what: String,
    },
    /// The trusted product and the header disagree.
    #[error(
        "the oracle of `{op}` contradicts itself: element {element} of `{out}` is {product} as a product, {plain} by pass `{pass}`"
    )]
    Disagreement {
        /// The operation.
        op: String,
        /// The product's name.
        out: String,
        /// The pass it was checked by.
        pass: String,
        /// Flat index.
        element: usize,
        /// The product's value.
        product: f64,
        /// The pass's value.
        plain: f64,
    },
    /// An input that a pass reads was not given.
    #[error("the oracle of `{op}` needs the input `{tensor}`, which is absent")]
    Absent {
        /// The operation.
        op: String,
        /// The tensor.
        tensor: String,
    },
    /// A shape for which an expression fails.
    #[error(transparent)]
    Op(#[from] OpError),
}

/// Compiles `source` under `name` with `flags` into a shared library and gives its path.
pub type Build<'a> = &'a dyn Fn(&str, &str, &[&str]) -> Result<PathBuf, String>;

/// What `ws_context` is in the generated C.
#[repr(C)]
pub(super) struct Context {
    pub(super) inputs: *const *const f64,
    pub(super) values: *const *mut f64,
    pub(super) terms: *const *mut f64,
    pub(super) symbols: *const i64,
    pub(super) scalars: *const f64,
    pub(super) underflow: f64,
    /// Input tensors as they lie in memory, and the numbers of their types.
    pub(super) stored: *const *const u8,
    pub(super) types: *const u8,
}

pub(super) type RunItems = unsafe extern "C" fn(*const Context, i64, i64);

/// Entry points by pass name; they stay valid as long as the library beside them is loaded.
pub(super) struct Entries {
    passes: BTreeMap<String, RunItems>,
    _library: libloading::Library,
}

impl Entries {
    fn of(build: Build<'_>, op: &Operation, inputs: Inputs) -> Result<Self, String> {
        let name = match inputs {
            Inputs::Decoded => format!("oracle_{}", op.name),
            Inputs::Stored => format!("oracle_some_{}", op.name),
        };
        let path = build(&name, &source(op, inputs), &ORACLE_FLAGS)?;
        // SAFETY: the library is our own header between generated lines; it has no constructors, and
        // what the header says is trusted as the rest of the judge is.
        let library = unsafe { libloading::Library::new(&path) }.map_err(|error| error.to_string())?;
        let mut passes = BTreeMap::new();
        for pass in items_passes(op) {
            // SAFETY: `source` defines this symbol with exactly this type.
            let run: libloading::Symbol<'_, RunItems> =
                unsafe { library.get(format!("ws_run_{}\0", pass.name)) }.map_err(|error| error.to_string())?;
            passes.insert(pass.name.clone(), *run);
        }
        Ok(Self { passes, _library: library })
    }

    /// The entry point of a pass.
    pub(super) fn of_pass(&self, pass: &str) -> RunItems {
        self.passes[pass]
    }
}

/// An operation's oracle, compiled.
pub struct Oracle {
    op: Operation,
    all: Entries,
    /// For a few items.
    pub(super) some: Entries,
    /// Arrays of earlier calls: touching fresh memory would take longer than all else on large inputs.
    spare: Mutex<Vec<Vec<f64>>>,
}

impl std::fmt::Debug for Oracle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Oracle").field("op", &self.op.name).finish_non_exhaustive()
    }
}

/// An array of a pass's outputs: values and the sums of their absolute terms.
struct Pair {
    values: Vec<f64>,
    terms: Vec<f64>,
}

impl Oracle {
    /// Compiles the operation's header through `build`, with [`ORACLE_FLAGS`].
    ///
    /// # Errors
    /// [`OracleError::Build`].
    pub fn compile(build: Build<'_>, op: &Operation) -> Result<Self, OracleError> {
        let entries =
            |inputs| Entries::of(build, op, inputs).map_err(|what| OracleError::Build { op: op.name.clone(), what });
        let (all, some) = (entries(Inputs::Decoded)?, entries(Inputs::Stored)?);
        Ok(Self { op: op.clone(), all, some, spare: Mutex::default() })
    }

    /// The operation it is the oracle of.
    #[must_use]
    pub const fn operation(&self) -> &Operation {
        &self.op
    }

    /// What every output must be in a case, whose shape is complete. `inputs` holds the bytes of each input tensor
    /// in the operation's order, `None` where it is absent. `seed` chooses the elements of each product
    /// that are checked against the header.
    ///
    /// # Errors
    /// [`OracleError`]; a disagreement between product and header among them.
    pub fn expected(&self, case: &Case, inputs: &[Option<&[u8]>], seed: u64) -> Result<Expected, OracleError> {
        let (op, shape, dtype) = (&self.op, &case.shape, case.dtype);
        let mut state = State {
            symbols: op.ints(shape)?,
            scalars: op.scalars_of(case)?.into_iter().map(f64::from).collect(),
            underflow: dtype.underflow(),
            inputs: Vec::new(),
            outputs: BTreeMap::new(),
        };
        let specs = op.tensors.iter().filter(|tensor| tensor.role == Role::Input);
        for (spec, bytes) in specs.zip(inputs) {
            state
                .inputs
                .push((spec.name.clone(), bytes.map(|bytes| decode(bytes, spec.dtype.stored(dtype), self.spare()))));
        }
        let checkers: Vec<&str> = op.checkers().collect();
        for pass in &op.passes {
            match pass {
                Pass::Items(items) if checkers.contains(&items.name.as_str()) => {}
                Pass::Items(items) => {
                    let count = op.size(&items.name, &items.items, shape)?;
                    self.allocate(items, shape, &mut state)?;
                    // Enough parts for an even share, few enough that handing them over costs nothing.
                    let grain = count.div_ceil(cores() * 16);
                    self.run(items, &mut state, |run| share(count, grain, run));
                }
                Pass::Product(pass) => self.multiply(pass, shape, seed, &mut state)?,
            }
        }
        let outputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
        let tensors = outputs
            .filter_map(|tensor| {
                let pair = state.outputs.remove(&tensor.name)?;
                Some(ExpectedTensor { name: tensor.name.clone(), values: pair.values, terms: pair.terms })
            })
            .collect();
        self.give_back(state.inputs.into_iter().filter_map(|(_, values)| values));
        Ok(Expected { tensors })
    }

    fn spare(&self) -> Vec<f64> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give_back(&self, arrays: impl Iterator<Item = Vec<f64>>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.extend(arrays);
        // The largest are worth keeping, and are taken first.
        spare.sort_by_key(Vec::capacity);
        let excess = spare.len().saturating_sub(SPARE);
        spare.drain(..excess);
    }

    fn allocate(&self, pass: &ItemsPass, shape: &Shape, state: &mut State) -> Result<(), OracleError> {
        for out in &pass.out {
            let elements = self.op.size(&out.name, &out.size, shape)?;
            // Zeroed pages are not touched before an item writes them, which keeps sampled passes cheap.
            let pair = Pair { values: vec![0.0; elements], terms: vec![0.0; elements] };
            state.outputs.insert(out.name.clone(), pair);
        }
        Ok(())
    }

    /// Lets `drive` call the pass on ranges of its items.
    fn run(&self, pass: &ItemsPass, state: &mut State, drive: impl FnOnce(&(dyn Fn(std::ops::Range<usize>) + Sync))) {
        let inputs: Vec<*const f64> = state
            .inputs
            .iter()
            .map(|(_, values)| values.as_ref().map_or(std::ptr::null(), |values| values.as_ptr()))
            .collect();
        let (values, terms): (Vec<*mut f64>, Vec<*mut f64>) = array_names(&self.op)
            .iter()
            .map(|name| match state.outputs.get_mut(*name) {
                Some(pair) => (pair.values.as_mut_ptr(), pair.terms.as_mut_ptr()),
                None => (std::ptr::null_mut(), std::ptr::null_mut()),
            })
            .unzip();
        let context = Shared(Context {
            inputs: inputs.as_ptr(),
            values: values.as_ptr(),
            terms: terms.as_ptr(),
            symbols: state.symbols.as_ptr(),
            scalars: state.scalars.as_ptr(),
            underflow: state.underflow,
            stored: std::ptr::null(),
            types: std::ptr::null(),
        });
        let function = self.all.of_pass(&pass.name);
        drive(&|range| {
            // SAFETY: the context points to arrays of the sizes the operation states, alive and not
            // otherwise used until `drive` returns. The header is trusted to keep its indices within
            // them and to write different elements for different items.
            unsafe { function(context.get(), range.start as i64, range.end as i64) }
        });
    }

    fn multiply(&self, pass: &ProductPass, shape: &Shape, seed: u64, state: &mut State) -> Result<(), OracleError> {
        let op = &self.op;
        let layout = op.product_layout(pass, shape)?;
        let sizes =
            ProductSizes { batch: layout.batch, m: layout.m, n: layout.n, k: layout.k, trans_b: layout.trans_b };
        let (a, a_terms) = state.factor(op, &pass.a)?;
        let (b, b_terms) = state.factor(op, &pass.b)?;
        let (a, b) = (gathered(a, &layout.a), gathered(b, &layout.b));
        let values = scattered(product(&a, &b, sizes), &layout.out);
        let terms = if op.wants_terms(pass) {
            let terms_of = |values: &[f64], terms: Option<&[f64]>, matrices: &Matrices| match terms {
                Some(terms) => gathered(terms, matrices).into_owned(),
                None => magnitudes(values, self.spare()),
            };
            let a_terms = terms_of(&a, a_terms, &layout.a);
            let b_terms = terms_of(&b, b_terms, &layout.b);
            let terms = scattered(product(&a_terms, &b_terms, sizes), &layout.out);
            self.give_back([a_terms, b_terms].into_iter());
            terms
        } else {
            Vec::new()
        };
        state.outputs.insert(pass.out.clone(), Pair { values, terms });
        self.check(pass, layout.k, shape, seed, state)
    }

    /// Compares a sample of a product with the pass that computes the same element by element, and takes from there whatever
    /// is not finite: 0 times infinity is not a number, but a term left out is nothing.
    fn check(
        &self,
        pass: &ProductPass,
        k: usize,
        shape: &Shape,
        seed: u64,
        state: &mut State,
    ) -> Result<(), OracleError> {
        let Some(items) = items_passes(&self.op).find(|items| items.name == pass.checked_by) else {
            return Ok(());
        };
        self.allocate(items, shape, state)?;
        let (product, checked) = (&pass.out, &items.out[0].name);
        let values = &state.outputs[product].values;
        let count = values.len();
        let stream = Stream::new(seed, &pass.out);
        let corners = [0, count.saturating_sub(1)].into_iter();
        let sample: Vec<usize> = if count <= SAMPLE {
            (0..count).collect()
        } else {
            corners.chain((0..SAMPLE as u64 - 2).map(|i| stream.below(i, count as u64) as usize)).collect()
        };
        let mended: Vec<usize> = (0..count).filter(|&element| !values[element].is_finite()).collect();
        for elements in [&sample, &mended] {
            self.run(items, state, |run| {
                share(elements.len(), 1, &|range| range.for_each(|i| run(elements[i]..elements[i] + 1)));
            });
        }
        let Some(plain) = state.outputs.remove(checked) else { return Ok(()) };
        let Some(fast) = state.outputs.get_mut(product) else { return Ok(()) };
        let with_terms = !fast.terms.is_empty();
        for &element in &mended {
            fast.values[element] = plain.values[element];
            if with_terms {
                fast.terms[element] = plain.terms[element];
            }
        }
        // Two sums of k products in different orders differ by at most 2 k roundings of their terms.
        let slack = 2.0 * (k + 8) as f64 * f64::EPSILON;
        for &element in &sample {
            let terms = if with_terms { fast.terms[element] } else { plain.terms[element] };
            for (a, b) in [(fast.values[element], plain.values[element]), (terms, plain.terms[element])] {
                let same = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= slack * plain.terms[element];
                if !same {
                    return Err(OracleError::Disagreement {
                        op: self.op.name.clone(),
                        out: pass.out.clone(),
                        pass: items.name.clone(),
                        element,
                        product: a,
                        plain: b,
                    });
                }
            }
        }
        Ok(())
    }
}

/// The matrices one after the other, without gaps.
fn gathered<'a>(values: &'a [f64], matrices: &Matrices) -> Cow<'a, [f64]> {
    if matrices.contiguous() {
        return Cow::Borrowed(values);
    }
    let mut out = Vec::with_capacity(matrices.elements());
    for start in &matrices.starts {
        for row in 0..matrices.rows {
            out.extend_from_slice(&values[start + row * matrices.step..][..matrices.columns]);
        }
    }
    Cow::Owned(out)
}

/// The reverse: each row where it belongs.
fn scattered(values: Vec<f64>, matrices: &Matrices) -> Vec<f64> {
    if matrices.contiguous() {
        return values;
    }
    let mut out = vec![0.0; values.len()];
    let mut rows = values.chunks_exact(matrices.columns.max(1));
    for start in &matrices.starts {
        for (row, values) in (0..matrices.rows).zip(&mut rows) {
            out[start + row * matrices.step..][..matrices.columns].copy_from_slice(values);
        }
    }
    out
}

/// What the passes have to work on.
struct State {
    symbols: Vec<i64>,
    scalars: Vec<f64>,
    underflow: f64,
    inputs: Vec<(String, Option<Vec<f64>>)>,
    outputs: BTreeMap<String, Pair>,
}

impl State {
    /// A product's factor, with its absolute terms where a pass made it.
    fn factor(&self, op: &Operation, name: &str) -> Result<(&[f64], Option<&[f64]>), OracleError> {
        if let Some(pair) = self.outputs.get(name) {
            return Ok((&pair.values, Some(&pair.terms)));
        }
        let values = self.inputs.iter().find(|(input, _)| input == name).and_then(|(_, values)| values.as_ref());
        match values {
            Some(values) => Ok((values, None)),
            None => Err(OracleError::Absent { op: op.name.clone(), tensor: name.to_owned() }),
        }
    }
}

/// Absolute values, in `out`.
fn magnitudes(values: &[f64], mut out: Vec<f64>) -> Vec<f64> {
    out.resize(values.len(), 0.0);
    share_slice(&mut out, 1 << 16, &|offset, part| {
        part.iter_mut().zip(&values[offset..]).for_each(|(term, value)| *term = value.abs());
    });
    out
}

/// A context that several threads read.
struct Shared(Context);

impl Shared {
    const fn get(&self) -> *const Context {
        &raw const self.0
    }
}

// SAFETY: the threads only read the context; of the arrays behind it they write different elements.
unsafe impl Sync for Shared {}
