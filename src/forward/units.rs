//! From a graph's nodes to compiled images: one for each kernel at each set of constants.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use super::ForwardError;
use crate::backend::{BuildError, Device, Image, ScratchBuffer, Source, Toolchain};
use crate::kernel::{KernelFile, Resolution, ScratchInit};
use crate::model::{Graph, Node, Work};
use crate::op::{ElementType, Operation, Shape};

/// Which kernels a model runs on.
#[derive(Debug, Clone, Copy)]
pub struct KernelSet<'a> {
    /// Kernel files by operation that the user has today. An operation for which the backend has a library runs on that.
    pub today: &'a BTreeMap<String, KernelFile>,
    /// Kernel files by operation that take the place of both.
    pub instead: Option<&'a BTreeMap<String, KernelFile>>,
}

impl<'a> KernelSet<'a> {
    /// What the user has today.
    #[must_use]
    pub const fn today(today: &'a BTreeMap<String, KernelFile>) -> Self {
        Self { today, instead: None }
    }
}

/// What computes an operation at one shape, and what its calls share.
pub(super) struct Unit<'a, B: Device> {
    pub op: &'a Operation,
    pub code: Code<'a, B>,
    /// The first site that calls it, for errors.
    pub site: &'a str,
    /// Bytes of each buffer that its compiler asks for, at the most that one of its calls wants.
    pub own_scratch: Vec<usize>,
}

/// What a unit is made of.
pub(super) enum Code<'a, B: Device> {
    /// A kernel at one set of constants.
    Kernel { kernel: &'a KernelFile, resolution: Resolution },
    /// A library, at one shape.
    Library { image: B::Image, shape: &'a Shape },
}

impl<B: Device> Unit<'_, B> {
    /// How its scratch buffers begin, and their sizes in bytes.
    pub fn scratch(&self) -> Vec<(ScratchInit, usize)> {
        match &self.code {
            Code::Library { .. } => Vec::new(),
            Code::Kernel { kernel, resolution } => ScratchBuffer::of(kernel, resolution)
                .into_iter()
                .map(|buffer| (buffer.init, buffer.elements * buffer.dtype.bytes(resolution.dtype)))
                .chain(self.own_scratch.iter().map(|bytes| (ScratchInit::Poison, *bytes)))
                .collect(),
        }
    }
}

/// A node that calls a unit.
pub(super) struct UnitCall {
    /// Index of the unit.
    pub unit: usize,
    /// Tensors of the graph in the operation's order; `None` is absent.
    pub tensors: Vec<Option<usize>>,
    pub ints: Vec<i64>,
    pub floats: Vec<f32>,
}

/// The units of one set of kernels, and for each node its call (`None` is glue).
pub(super) struct Resolved<'a, B: Device> {
    pub units: Vec<Unit<'a, B>>,
    pub calls: Vec<Option<UnitCall>>,
}

/// What serves each node of a graph.
pub(super) fn resolve<'a, B: Toolchain>(
    backend: &B,
    graph: &'a Graph,
    ops: &'a BTreeMap<String, Operation>,
    set: KernelSet<'a>,
) -> Result<Resolved<'a, B>, ForwardError> {
    let mut units: Vec<Unit<'a, B>> = Vec::new();
    let mut calls = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let Work::Op { op: name, shape, scalars } = &node.work else {
            calls.push(None);
            continue;
        };
        let site = || node.site.clone();
        let op = ops.get(*name).ok_or_else(|| ForwardError::NoOperation { site: site(), op: (*name).to_owned() })?;
        let instead = set.instead.and_then(|kernels| kernels.get(*name));
        let known = units.iter().position(
            |unit| matches!(&unit.code, Code::Library { shape: at, .. } if unit.op.name == op.name && *at == shape),
        );
        let unit = match known {
            Some(known) => known,
            None => {
                let library = || backend.library(op, shape, graph.pass.dtype);
                let code = match instead.is_none().then(library).flatten() {
                    Some((image, _)) => Code::Library { image, shape },
                    None => {
                        let kernel = instead.or_else(|| set.today.get(*name));
                        let kernel =
                            kernel.ok_or_else(|| ForwardError::NoKernel { site: site(), op: (*name).to_owned() })?;
                        let resolution = kernel
                            .resolve(shape, graph.pass.dtype, &backend.card().facts)
                            .map_err(|source| ForwardError::Kernel { site: site(), source: Box::new(source) })?;
                        Code::Kernel { kernel, resolution }
                    }
                };
                place_of(&mut units, Unit { op, code, site: &node.site, own_scratch: Vec::new() })
            }
        };
        calls.push(Some(bind(graph, node, op, shape, scalars, unit)?));
    }
    Ok(Resolved { units, calls })
}

impl<B: Device> Resolved<'_, B> {
    /// Notes what the compilers of the units ask for at the sizes of their calls; `images` has one for each unit.
    pub fn note_own_scratch(&mut self, images: &[B::Image]) {
        for call in self.calls.iter().flatten() {
            let known = &mut self.units[call.unit].own_scratch;
            for (at, bytes) in images[call.unit].own_scratch(&call.ints).into_iter().enumerate() {
                match known.get_mut(at) {
                    Some(known) => *known = bytes.max(*known),
                    None => known.push(bytes),
                }
            }
        }
    }
}

/// The index of a unit among `units`, where it is added unless its like is there.
fn place_of<'a, B: Device>(units: &mut Vec<Unit<'a, B>>, unit: Unit<'a, B>) -> usize {
    let same = |known: &Unit<'a, B>| match (&known.code, &unit.code) {
        (Code::Kernel { resolution: a, .. }, Code::Kernel { resolution: b, .. }) => {
            known.op.name == unit.op.name && a == b
        }
        _ => false,
    };
    units.iter().position(same).unwrap_or_else(|| {
        units.push(unit);
        units.len() - 1
    })
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
) -> Result<UnitCall, ForwardError> {
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
    Ok(UnitCall { unit, tensors, ints: op.ints(&complete).map_err(failed)?, floats })
}

/// An image for each unit, in order; each operation's kernels are compiled together.
pub(super) fn compile<B: Toolchain>(
    backend: &B,
    units: &[Unit<'_, B>],
    cancelled: &AtomicBool,
) -> Result<Vec<B::Image>, ForwardError> {
    let mut images: Vec<Option<B::Image>> = units.iter().map(|_| None).collect();
    for (first, unit) in units.iter().enumerate() {
        let Code::Kernel { kernel, .. } = &unit.code else { continue };
        if images[first].is_some() {
            continue;
        }
        let of_op = units.iter().enumerate().filter_map(|(at, other)| match &other.code {
            Code::Kernel { resolution, .. } if other.op.name == unit.op.name => Some((at, resolution.clone())),
            _ => None,
        });
        let (places, resolutions): (Vec<usize>, Vec<Resolution>) = of_op.unzip();
        let made = backend
            .compile(unit.op, &[Source::new(kernel, &resolutions)], cancelled)
            .map_err(|source| ForwardError::build(unit.site, source))?;
        for (at, image) in places.into_iter().zip(made.into_iter().flatten()) {
            images[at] = Some(image);
        }
    }
    let all = units.iter().zip(images).map(|(unit, image)| match &unit.code {
        Code::Library { image, .. } => Ok(image.clone()),
        Code::Kernel { .. } => image.ok_or_else(|| {
            ForwardError::build(unit.site, BuildError::Machine("the compiler gave no image".to_owned()))
        }),
    });
    all.collect()
}
