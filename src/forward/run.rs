//! A model ready to run, with one or more sets of kernels on the same weights.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::checkpoint::Checkpoint;
use super::glue;
use super::place::{Memory, place};
use super::units::{self, KernelSet, Resolved, Unit, UnitCall};
use super::{Contest, ForwardError, Side, Stretch, Timed, weights};
use crate::backend::{Arena, Call, Conditions, Device, Fault, Host, Span, Step, Toolchain};
use crate::kernel::ScratchInit;
use crate::model::{Graph, Kind, Node, Work};
use crate::op::{Dtype, Operation};

/// The longest a pass may take: kernels that come here have passed the judge, but a hang must still end.
const PATIENCE: Duration = Duration::from_secs(600);

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Recipe<'a> {
    /// The model's pass.
    pub graph: &'a Graph,
    /// The operations it calls, by name.
    pub ops: &'a BTreeMap<String, Operation>,
    /// Where the weights are read from; drawn where it is none.
    pub weights: Option<(&'a Path, &'a Kind)>,
    /// Seed of what is drawn.
    pub seed: u64,
}

/// A model in memory, and for each set of kernels a host that can run it.
pub struct Forward<'b, B: Toolchain> {
    backend: &'b B,
    memory: Memory<B::Arena>,
    sets: Vec<Set<B>>,
    nothing: Call,
    sites: Vec<String>,
    output: usize,
    /// Tensors of integers.
    indices: Vec<usize>,
    dtype: Dtype,
    notes: Vec<String>,
}

/// One set of kernels.
struct Set<B: Device> {
    images: Vec<B::Image>,
    /// Each node's call.
    calls: Vec<Call>,
    /// The nodes that are timed together.
    stretches: Vec<Vec<usize>>,
    host: B::Host,
}

impl<'b, B: Toolchain> Forward<'b, B> {
    /// Compiles each set of kernels, lays the model out in memory once, reads or draws its weights and starts a host for each set.
    ///
    /// # Errors
    /// A model too large for the machine, files of weights that are not the model's, an operation or kernel that is missing or does not fit, and everything that
    /// compiling, allocating and starting can fail with; each names the site in the model.
    pub fn prepare(
        backend: &'b B,
        recipe: &Recipe<'_>,
        kernels: &[KernelSet<'_>],
        cancelled: &AtomicBool,
    ) -> Result<Self, ForwardError> {
        let &Recipe { graph, ops, weights: files, seed } = recipe;
        let checkpoint = files.map(|(dir, kind)| Checkpoint::open(dir, kind)).transpose()?;
        let notes = checkpoint.as_ref().map_or(Ok(Vec::new()), |checkpoint| checkpoint.check(graph))?;
        if let Some(available) = backend.free_memory() {
            graph.memory().check(graph, available)?;
        }
        let mut resolved: Vec<Resolved<'_, B>> = Vec::new();
        for set in kernels {
            resolved.push(units::resolve(backend, graph, ops, *set)?);
        }
        let glue = glue::images(backend, graph)
            .map_err(|source| ForwardError::build("the forward pass's own code", source))?;
        let mut images = Vec::new();
        for set in &mut resolved {
            let made = units::compile(backend, &set.units, cancelled)?;
            set.note_own_scratch(&made);
            images.push(made);
        }
        let unit_sets: Vec<&[Unit<'_, B>]> = resolved.iter().map(|set| set.units.as_slice()).collect();
        let mut memory = place(backend, graph, &unit_sets)?;
        for (tensor, span) in graph.tensors.iter().zip(&memory.tensors) {
            let found = match &checkpoint {
                Some(checkpoint) if tensor.kind.is_weight() => checkpoint.find(tensor)?,
                _ => None,
            };
            match found {
                Some(found) => memory.arena.fill(span, &mut |bytes| found.convert(graph.pass.dtype, bytes)),
                None => weights::draw(&mut memory.arena, span, tensor, graph.pass.dtype, seed),
            }
        }
        let mut sets = Vec::new();
        for (at, (own, Resolved { units, calls })) in images.into_iter().zip(&resolved).enumerate() {
            let builder = Builder { memory: &memory, set: at, units, first: glue.len(), glue: &glue };
            let nodes = graph.nodes.iter().zip(calls);
            let calls: Option<Vec<Call>> = nodes.map(|(node, call)| builder.node(node, call.as_ref())).collect();
            let calls = calls.expect("`resolve` gives a call to every operation");
            let images: Vec<B::Image> = glue.iter().map(|(_, image)| image.clone()).chain(own).collect();
            let host = start(backend, &images, &memory.arena)?;
            let stretches = match backend.times_in_rows() {
                true => alike(&calls, glue.len()),
                false => (0..calls.len()).map(|node| vec![node]).collect(),
            };
            sets.push(Set { images, calls, stretches, host });
        }
        let nothing = glue_call(index(&glue, Step::Nothing), vec![], vec![]);
        Ok(Self {
            backend,
            memory,
            sets,
            nothing,
            sites: graph.nodes.iter().map(|node| node.site.clone()).collect(),
            output: graph.output,
            indices: (0..graph.tensors.len()).filter(|at| graph.tensors[*at].kind.is_index()).collect(),
            dtype: graph.pass.dtype,
            notes,
        })
    }

    /// Where the weights come from, a sentence each; none where all are drawn.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// One pass with the set of kernels at `set`, all calls back to back; the time of it all.
    ///
    /// # Errors
    /// A call that did not end well.
    ///
    /// # Panics
    /// Where there is no such set; the same for the methods below.
    pub fn run(&mut self, set: usize) -> Result<Duration, ForwardError> {
        let Set { host, calls, .. } = &mut self.sets[set];
        host.run(calls, PATIENCE).map_err(|fault| ForwardError::Call { site: "the whole pass".to_owned(), fault })
    }

    /// One pass, call by call; where the backend times in rows ([`Device::times_in_rows`]), the calls of one kind one
    /// after the other, which leaves other values in the activations than a pass does.
    ///
    /// # Errors
    /// A call that did not end well, by its site (the first of a row).
    pub fn run_timed(&mut self, set: usize) -> Result<Vec<Stretch>, ForwardError> {
        let Set { host, calls, stretches, .. } = &mut self.sets[set];
        let in_rows = self.backend.times_in_rows();
        let mut timed = |nodes: &Vec<usize>| {
            let took = match nodes.as_slice() {
                &[node] if !in_rows => host.launch(&calls[node], PATIENCE),
                row => host.run(&row.iter().map(|node| calls[*node].clone()).collect::<Vec<_>>(), PATIENCE),
            };
            let site = || nodes.first().map_or_else(String::new, |node| self.sites[*node].clone());
            let took = took.map_err(|fault: Fault| ForwardError::Call { site: site(), fault })?;
            Ok(Stretch { nodes: nodes.clone(), took })
        };
        stretches.iter().map(&mut timed).collect()
    }

    /// A call that does nothing, timed as the parts of a pass are.
    ///
    /// # Errors
    /// A process that is gone.
    pub fn run_nothing(&mut self, set: usize) -> Result<Duration, ForwardError> {
        let host = &mut self.sets[set].host;
        let took = match self.backend.times_in_rows() {
            true => host.run(std::slice::from_ref(&self.nothing), PATIENCE),
            false => host.launch(&self.nothing, PATIENCE),
        };
        took.map_err(|fault| ForwardError::Call { site: "an empty call".to_owned(), fault })
    }

    /// What the model said in the last pass.
    pub fn output(&mut self) -> Vec<f64> {
        self.values(self.output)
    }

    /// The values of a tensor, by its index in the graph: what was drawn, or what stands in an activation's memory,
    /// which others use as well.
    pub fn values(&mut self, tensor: usize) -> Vec<f64> {
        let bytes = self.memory.arena.read(&self.memory.tensors[tensor]);
        if self.indices.contains(&tensor) { weights::decode_ids(&bytes) } else { weights::decode(&bytes, self.dtype) }
    }

    /// Fills activations and scratch with NaN, so that nothing of an earlier pass is left.
    pub fn poison(&mut self) {
        for span in &self.memory.transient {
            self.memory.arena.fill(span, &mut |bytes| bytes.fill(0xff));
        }
    }

    /// Fresh hosts for every set; weights stay.
    ///
    /// # Errors
    /// A host that does not start.
    pub fn restart(&mut self) -> Result<(), ForwardError> {
        for set in &mut self.sets {
            set.host = start(self.backend, &set.images, &self.memory.arena)?;
        }
        Ok(())
    }
}

fn start<B: Device>(backend: &B, images: &[B::Image], arena: &B::Arena) -> Result<B::Host, ForwardError> {
    let images: Vec<&B::Image> = images.iter().collect();
    Ok(backend.host(&images, arena, &Conditions { overlapped: true, ..Conditions::default() })?)
}

/// The nodes whose calls do the same at the same sizes, in order of first appearance, those of the first `glue` images
/// last: adding to the residual stream again and again makes it grow, and operations should not be timed on that.
fn alike(calls: &[Call], glue: usize) -> Vec<Vec<usize>> {
    let mut rows: Vec<Vec<usize>> = Vec::new();
    for (node, call) in calls.iter().enumerate() {
        let same = |row: &&mut Vec<usize>| {
            let first = &calls[row[0]];
            first.image == call.image && first.ints == call.ints
        };
        match rows.iter_mut().find(same) {
            Some(row) => row.push(node),
            None => rows.push(vec![node]),
        }
    }
    rows.sort_by_key(|row| calls[row[0]].image < glue);
    rows
}

/// Where a step's image stands: the glue's come first.
fn index<I>(glue: &[(Step, I)], step: Step) -> usize {
    glue.iter().position(|(known, _)| *known == step).expect("every step of the graph has an image")
}

/// Builds the calls of one set.
struct Builder<'a, B: Device> {
    memory: &'a Memory<B::Arena>,
    set: usize,
    units: &'a [Unit<'a, B>],
    /// Index of the first unit's image.
    first: usize,
    glue: &'a [(Step, B::Image)],
}

impl<B: Device> Builder<'_, B> {
    /// The node's call; none for an operation without a kernel.
    fn node(&self, node: &Node, call: Option<&UnitCall>) -> Option<Call> {
        let span = |tensor: Option<usize>| tensor.map(|tensor| self.memory.tensors[tensor]);
        match (&node.work, call) {
            (Work::Glue(glue), _) => {
                let pointers = glue.arguments().iter().map(|name| span(node.tensor(name))).collect();
                let (step, sizes) = glue::step(*glue);
                let sizes = sizes.into_iter().map(|size| size as i64).collect();
                Some(glue_call(index(self.glue, step), pointers, sizes))
            }
            (Work::Op { .. }, Some(call)) => {
                let scratch = &self.memory.scratch[self.set][call.unit];
                let kinds = self.units[call.unit].scratch().into_iter().map(|(init, _)| init);
                let zeroed = kinds.zip(scratch).filter(|(init, _)| *init == ScratchInit::Zero);
                let zeroed = zeroed.map(|(_, span)| *span).collect();
                let pointers =
                    call.tensors.iter().copied().map(span).chain(scratch.iter().copied().map(Some)).collect();
                let (ints, floats) = (call.ints.clone(), call.floats.clone());
                Some(Call { image: self.first + call.unit, pointers, ints, floats, zeroed })
            }
            (Work::Op { .. }, None) => None,
        }
    }
}

/// A call of the forward pass's own code.
const fn glue_call(image: usize, pointers: Vec<Option<Span>>, ints: Vec<i64>) -> Call {
    Call { image, pointers, ints, floats: Vec::new(), zeroed: Vec::new() }
}

impl<B: Toolchain> Timed for Forward<'_, B> {
    fn whole(&mut self) -> Result<Duration, ForwardError> {
        self.run(0)
    }

    fn parts(&mut self) -> Result<Vec<Stretch>, ForwardError> {
        self.run_timed(0)
    }

    fn nothing(&mut self) -> Result<Duration, ForwardError> {
        self.run_nothing(0)
    }
}

/// Set 0 is the model before, set 1 the model after.
impl<B: Toolchain> Contest for Forward<'_, B> {
    fn restart(&mut self) -> Result<(), ForwardError> {
        Self::restart(self)
    }

    fn whole(&mut self, side: Side) -> Result<Duration, ForwardError> {
        self.run(side as usize)
    }

    fn parts(&mut self, side: Side) -> Result<Vec<Stretch>, ForwardError> {
        self.run_timed(side as usize)
    }

    fn nothing(&mut self, side: Side) -> Result<Duration, ForwardError> {
        self.run_nothing(side as usize)
    }

    fn output(&mut self, side: Side) -> Result<Vec<f64>, ForwardError> {
        self.poison();
        self.run(side as usize)?;
        Ok(Self::output(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_of_one_image_at_one_size_and_the_glue_comes_last() {
        let call = |image, sizes: &[i64]| glue_call(image, Vec::new(), sizes.to_vec());
        let calls = [call(0, &[1]), call(3, &[8]), call(2, &[8]), call(0, &[1]), call(3, &[8]), call(3, &[9])];
        assert_eq!(alike(&calls, 2), [vec![1, 4], vec![2], vec![5], vec![0, 3]]);
        assert!(alike(&[], 2).is_empty());
    }
}
