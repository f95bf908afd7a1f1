//! From a graph's nodes to compiled images: one for each kernel at each set of constants.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::ForwardError;
use crate::backend::cpu::{self, Compiler, Image};
use crate::kernel::{Facts, KernelFile, Resolution, Scratch};
use crate::model::{Graph, Node, Work};
use crate::op::{ElementType, Operation, Shape};

/// A kernel at one set of constants, and what its calls share.
pub(super) struct Unit<'a> {
    pub op: &'a Operation,
    pub kernel: &'a KernelFile,
    pub resolution: Resolution,
    /// The first site that calls it, for errors.
    pub site: &'a str,
}

impl Unit<'_> {
    /// Its scratch buffers with their sizes in bytes.
    pub fn scratch(&self) -> impl Iterator<Item = (&Scratch, usize)> {
        let sizes = &self.resolution.scratch_elements;
        let dtype = self.resolution.dtype;
        self.kernel.front.scratch.iter().zip(sizes).map(move |(s, n)| (s, n * s.dtype.bytes(dtype)))
    }
}

/// A node that calls a kernel.
pub(super) struct KernelCall {
    /// Index of the unit.
    pub unit: usize,
    /// Tensors of the graph in the operation's order; `None` is absent.
    pub tensors: Vec<Option<usize>>,
    pub ints: Vec<i64>,
    pub floats: Vec<f32>,
}

/// The units of a graph served by `kernels`, and for each node its call (`None` is glue).
pub(super) fn resolve<'a>(
    graph: &'a Graph,
    ops: &'a BTreeMap<String, Operation>,
    kernels: &'a BTreeMap<String, KernelFile>,
    facts: &Facts,
) -> Result<(Vec<Unit<'a>>, Vec<Option<KernelCall>>), ForwardError> {
    let mut units: Vec<Unit<'a>> = Vec::new();
    let mut calls = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let Work::Op { op: name, shape, scalars } = &node.work else {
            calls.push(None);
            continue;
        };
        let site = || node.site.clone();
        let op = ops.get(*name).ok_or_else(|| ForwardError::NoOperation { site: site(), op: (*name).to_owned() })?;
        let kernel =
            kernels.get(*name).ok_or_else(|| ForwardError::NoKernel { site: site(), op: (*name).to_owned() })?;
        let resolution = kernel
            .resolve(shape, graph.pass.dtype, facts)
            .map_err(|source| ForwardError::Kernel { site: site(), source: Box::new(source) })?;
        let unit = match units.iter().position(|unit| unit.op.name == op.name && unit.resolution == resolution) {
            Some(known) => known,
            None => {
                units.push(Unit { op, kernel, resolution, site: &node.site });
                units.len() - 1
            }
        };
        calls.push(Some(bind(graph, node, op, shape, scalars, unit)?));
    }
    Ok((units, calls))
}

/// Matches the model's tensors with the operation's, and refuses what does not fit: a kernel must never be handed less
/// memory than its shape says.
fn bind(
    graph: &Graph,
    node: &Node,
    op: &Operation,
    shape: &Shape,
    scalars: &BTreeMap<String, f32>,
    unit: usize,
) -> Result<KernelCall, ForwardError> {
    let failed = |source| ForwardError::Operation { site: node.site.clone(), source: Box::new(source) };
    let differs = |what: String| ForwardError::Signature { site: node.site.clone(), op: op.name.clone(), what };
    let complete = op.complete(shape).map_err(failed)?;
    let mut tensors = Vec::new();
    for spec in &op.tensors {
        if !op.present(spec, &complete).map_err(failed)? {
            tensors.push(None);
            continue;
        }
        let tensor =
            node.tensor(&spec.name).ok_or_else(|| differs(format!("the model has no tensor `{}`", spec.name)))?;
        let (needs, has) = (op.elements(spec, &complete).map_err(failed)? as u64, graph.tensors[tensor].elements());
        if needs != has || spec.dtype != ElementType::Case {
            return Err(differs(format!("`{}` has {has} elements of the pass's dtype, not {needs}", spec.name)));
        }
        tensors.push(Some(tensor));
    }
    if let Some(extra) = node.tensors.iter().find(|binding| op.tensor(binding.name).is_none()) {
        return Err(differs(format!("the operation has no tensor `{}`", extra.name)));
    }
    let mut floats = op.scalars(&complete).map_err(failed)?;
    for (name, value) in scalars {
        let known = op.scalars.iter().position(|scalar| scalar.name == *name);
        floats[known.ok_or_else(|| differs(format!("the operation has no scalar `{name}`")))?] = *value;
    }
    Ok(KernelCall { unit, tensors, ints: op.ints(&complete).map_err(failed)?, floats })
}

/// Compiles the units, several at a time; compilers wait for files as much as they compute.
pub(super) fn compile(compiler: &Compiler, units: &[Unit<'_>]) -> Result<Vec<Image>, ForwardError> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = units.get(at) else { return };
            let image = compiler
                .compile(&cpu::Unit { op: unit.op, kernel: unit.kernel, resolution: &unit.resolution })
                .map_err(|source| ForwardError::Compile { site: unit.site.to_owned(), source: Box::new(source) });
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, image));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(units.len());
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, image)| image).collect()
}
