//! The oracle at a few elements of each output, in doubles: what `op::Sample` says, and nothing else.

use std::collections::BTreeMap;

use super::oracle::{Context, Oracle, OracleError};
use super::oracle_source::array_names;
use super::share::share;
use crate::backend::bounds::Place;
use crate::backend::values::decode_into;
use crate::op::{Case, Operation, Pass, Role, Sample};

/// Multiply-adds below which handing work to other cores takes longer than doing it.
const ALONE: usize = 1 << 16;

/// An array: values and the sums of their absolute terms. Only what a sample needs is ever touched.
struct Pair {
    values: Vec<f64>,
    terms: Vec<f64>,
}

impl Pair {
    fn zeroed(elements: usize) -> Self {
        Self { values: vec![0.0; elements], terms: vec![0.0; elements] }
    }
}

impl Oracle {
    /// What the elements of `sample` must be, output by output. `inputs` and `outputs` hold the bytes of each tensor of that
    /// role in the operation's order; of the outputs, those are read that later passes read (`Sample::given`).
    ///
    /// # Errors
    /// An expression that fails at this shape.
    pub fn expected_some(
        &self,
        case: &Case,
        inputs: &[Option<&[u8]>],
        outputs: &[&[u8]],
        sample: &Sample,
    ) -> Result<Vec<Vec<Place>>, OracleError> {
        let op = self.operation();
        let mut arrays: BTreeMap<&str, Pair> = BTreeMap::new();
        let given = self.given(case, outputs, sample)?;
        for step in &sample.steps {
            match &op.passes[step.pass] {
                Pass::Items(pass) => {
                    for out in &pass.out {
                        let elements = op.size(&out.name, &out.size, &case.shape)?;
                        arrays.entry(out.name.as_str()).or_insert_with(|| Pair::zeroed(elements));
                    }
                    let written: Vec<&str> = pass.out.iter().map(|out| out.name.as_str()).collect();
                    self.run_some(case, inputs, &pass.name, step, (&mut arrays, &given, &written))?;
                }
                Pass::Product(pass) => {
                    // The checker writes to an array of its own name, of which a product's place is what is wanted.
                    let Some(elements) = op.array_size(&pass.out, &case.shape)? else { continue };
                    arrays.insert(pass.checked_by_array(op), Pair::zeroed(elements));
                    let written = [pass.checked_by_array(op)];
                    self.run_some(case, inputs, &pass.checked_by, step, (&mut arrays, &given, &written))?;
                    if let Some(pair) = arrays.remove(written[0]) {
                        arrays.insert(pass.out.as_str(), pair);
                    }
                }
            }
        }
        let outputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
        let place = |pair: &Pair, index: usize| Place { index, value: pair.values[index], terms: pair.terms[index] };
        Ok(outputs
            .zip(&sample.elements)
            .map(|(tensor, elements)| {
                let pair = arrays.get(tensor.name.as_str());
                pair.map_or(Vec::new(), |pair| elements.iter().map(|index| place(pair, *index)).collect())
            })
            .collect())
    }

    /// The outputs that later passes read, as the candidate wrote them.
    fn given(&self, case: &Case, outputs: &[&[u8]], sample: &Sample) -> Result<BTreeMap<&str, Pair>, OracleError> {
        let op = self.operation();
        let mut given = BTreeMap::new();
        let tensors = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
        for (tensor, bytes) in tensors.zip(outputs).filter(|(tensor, _)| sample.given.contains(&tensor.name)) {
            let mut values = vec![0.0; op.elements(tensor, &case.shape)?];
            decode_into(bytes, tensor.dtype.stored(case.dtype), &mut values);
            let terms = values.iter().map(|value| value.abs()).collect();
            given.insert(tensor.name.as_str(), Pair { values, terms });
        }
        Ok(given)
    }

    /// Runs items of a pass of the header. It reads `given` rather than `arrays` where both have an array, but for those it writes.
    fn run_some(
        &self,
        case: &Case,
        inputs: &[Option<&[u8]>],
        pass: &str,
        step: &crate::op::SampleStep,
        (arrays, given, written): (&mut BTreeMap<&str, Pair>, &BTreeMap<&str, Pair>, &[&str]),
    ) -> Result<(), OracleError> {
        let op = self.operation();
        let symbols = op.ints(&case.shape)?;
        let scalars: Vec<f64> = op.scalars_of(case)?.into_iter().map(f64::from).collect();
        let stored: Vec<*const u8> =
            inputs.iter().map(|bytes| bytes.map_or(std::ptr::null(), <[u8]>::as_ptr)).collect();
        let tensors = op.tensors.iter().filter(|tensor| tensor.role == Role::Input);
        let types: Vec<u8> = tensors.map(|tensor| tensor.dtype.stored(case.dtype) as u8).collect();
        let (values, terms): (Vec<*mut f64>, Vec<*mut f64>) = array_names(op)
            .into_iter()
            .map(|name| match (given.get(name).filter(|_| !written.contains(&name)), arrays.get_mut(name)) {
                // Only read: the header's macros for reading and writing share one table of pointers.
                (Some(pair), _) => (pair.values.as_ptr().cast_mut(), pair.terms.as_ptr().cast_mut()),
                (None, Some(pair)) => (pair.values.as_mut_ptr(), pair.terms.as_mut_ptr()),
                (None, None) => (std::ptr::null_mut(), std::ptr::null_mut()),
            })
            .unzip();
        let context = Shared(Context {
            inputs: std::ptr::null(),
            values: values.as_ptr(),
            terms: terms.as_ptr(),
            symbols: symbols.as_ptr(),
            scalars: scalars.as_ptr(),
            underflow: case.dtype.underflow(),
            stored: stored.as_ptr(),
            types: types.as_ptr(),
        });
        let function = self.some.of_pass(pass);
        let run = |begin: usize, end: usize| {
            // SAFETY: the context points to arrays of the sizes the operation states, alive and not otherwise used until the
            // call returns. The header is trusted to keep its indices within them and to write different elements for
            // different items; `op::Sample` names items that read nothing outside what is there.
            unsafe { function(context.get(), begin as i64, end as i64) }
        };
        let each = (op.macs(&case.shape)? as usize / op.all_elements(&case.shape)?.max(1) as usize).max(1);
        for items in &step.items {
            share(items.len(), (ALONE / each).max(1), &|part| run(items.start + part.start, items.start + part.end));
        }
        Ok(())
    }
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

impl crate::op::ProductPass {
    /// The array that its checker writes.
    fn checked_by_array<'a>(&self, op: &'a Operation) -> &'a str {
        let found = op.passes.iter().find_map(|pass| match pass {
            Pass::Items(items) if items.name == self.checked_by => items.out.first(),
            _ => None,
        });
        found.map_or("", |out| out.name.as_str())
    }
}
