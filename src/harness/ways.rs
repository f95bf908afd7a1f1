//! Questions that a kernel's own plan suggests: whatever shapes an operation lists, a way that a kernel takes at few of them is asked as much as
//! the others, and a launch has more blocks than a number of 16 bits counts.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::kernel::{Facts, FrontMatter, KernelFile};
use crate::op::{Adversarial, Case, Dtype, OpError, Operation, Shape};
use crate::rng::Stream;

use super::cases::sizes;
use super::questions::{Plan, Question};
use super::topic::Topic;
use super::unlisted::{FAR_LEEWAY, FAR_SUMS};

/// Blocks that no number of 16 bits with a sign counts, and none without: a grid has at most 65535 in y and z.
const BLOCKS: [u32; 2] = [(1 << 15) + 1, (1 << 16) + 1];

/// Elements of a case with so many blocks, at the most.
const BLOCKS_ELEMENTS: u64 = 1 << 30;

/// Multiply-adds of it: a product of so many tiles takes a second.
const BLOCKS_MACS: u64 = 1 << 36;

/// What a kernel does at a shape, as its front matter says.
#[derive(Debug)]
pub(super) struct Way {
    /// Its tunables there, which variants choose.
    pub(super) tunables: BTreeMap<String, i64>,
    /// Its derived constants there.
    pub(super) lets: BTreeMap<String, i64>,
    /// What is launched, with blocks in x, y and z; none on a processor.
    pub(super) launches: Vec<(String, [u32; 3])>,
}

/// Says what a kernel does at a shape; `None` where it does not serve it.
pub(super) type Ways<'a> = &'a dyn Fn(&Shape, Dtype) -> Option<Way>;

/// What distinguishes one way from another: kernels, tunables, and derived constants that say yes or no.
type Name = (Vec<String>, Vec<i64>);

/// What a kernel does at a shape, on a device with these facts; `None` where it does not serve it.
pub(super) fn way_at(op: &Operation, kernel: &KernelFile, facts: &Facts, shape: &Shape, dtype: Dtype) -> Option<Way> {
    let front = &kernel.front;
    let resolution = kernel.resolve(shape, dtype, facts).ok()?;
    let planned = match front.launches.is_empty() {
        true => Vec::new(),
        false => kernel.launches(op, &op.ints(shape).ok()?, &resolution, facts).ok()?,
    };
    let launches = planned.into_iter().map(|launch| (launch.kernel, launch.grid)).collect();
    let chosen = |known: fn(&FrontMatter, &String) -> bool| {
        let macros = resolution.macros.iter().filter(move |(name, _)| known(front, name));
        macros.map(|(name, value)| (name.clone(), *value)).collect()
    };
    let tunables = chosen(|front, name| front.tune.contains_key(name));
    Some(Way { tunables, lets: chosen(|front, name| front.lets.contains_key(name)), launches })
}

/// A way, and the smallest case that takes it.
pub(super) struct Smallest {
    shape: Shape,
    dtype: Dtype,
    way: Way,
    elements: u64,
}

impl Plan<'_> {
    /// Every hostile input on every way that listed shapes take through the kernel, at the smallest shape that takes it, in a drawn order.
    pub(super) fn each_way(&self, all_ways: &[Smallest]) -> Result<Vec<Question>, OpError> {
        let topic = Topic::EachWay;
        let stream = Stream::new(self.seed, topic.name());
        let inputs: Vec<&Adversarial> = self.op.hostile_inputs().collect();
        let mut all = Vec::new();
        for (way, smallest) in (0u64..).zip(all_ways) {
            for (input, hostile) in (0u64..).zip(&inputs) {
                let pick =
                    |what: u64, count: usize| stream.below(way << 32 | input << 16 | what, count as u64) as usize;
                // Other flags than these would make it another way.
                let (_, setting) = self.manner(&smallest.shape, hostile, pick)?;
                if self.fits(&smallest.shape, smallest.dtype)? {
                    all.extend(self.hostile(topic, &smallest.shape, smallest.dtype, hostile, setting)?);
                }
            }
        }
        Ok(self.shuffled(all, topic))
    }

    /// For each launch, one size grown until it has more blocks than 16 bits count, where that is possible: the one with the fewest elements.
    pub(super) fn many_blocks(&self, all_ways: &[Smallest], ways: Ways<'_>) -> Result<Vec<Question>, OpError> {
        // Of a kernel and an axis: blocks and elements of the best case, and the case.
        let mut found: BTreeMap<(&str, usize), (u32, Reverse<u64>, Case)> = BTreeMap::new();
        for Smallest { shape, dtype, way, .. } in all_ways {
            let kernels = way.launches.iter().map(|(kernel, _)| base_name(kernel));
            let axes = kernels.flat_map(|kernel| (0..3).map(move |axis| (kernel, axis)));
            for ((kernel, axis), symbol) in axes.flat_map(|axis| sizes(self.op).map(move |symbol| (axis, symbol))) {
                let blocks = |shape: &Shape| blocks_of(ways, shape, *dtype, kernel, axis);
                for wanted in BLOCKS {
                    let Some(shape) = self.grown_until(shape, symbol, wanted, &blocks)? else { break };
                    let elements = Reverse(self.op.all_elements(&shape)?);
                    if found.get(&(kernel, axis)).is_none_or(|known| (wanted, elements) > (known.0, known.1)) {
                        let case = Case { shape, dtype: *dtype, input: None, setting: 0 };
                        found.insert((kernel, axis), (wanted, elements, case));
                    }
                }
            }
        }
        let questions = found.into_values().map(|(_, _, case)| Question {
            leeway: FAR_LEEWAY,
            sums: FAR_SUMS / FAR_LEEWAY,
            ..self.plain(Topic::ManyBlocks, case)
        });
        Ok(self.shuffled(questions.collect(), Topic::ManyBlocks))
    }

    /// The ways of listed shapes and the target's, each at its smallest.
    pub(super) fn smallest_ways(&self, ways: Ways<'_>) -> Result<Vec<Smallest>, OpError> {
        let op = self.op;
        let files = [&op.smoke].into_iter().chain(&op.sweep).chain(&op.edges).chain(&op.decode);
        let files = files.chain(op.adversarial.iter().map(|hostile| &hostile.shape));
        let mut taken = Vec::new();
        for shape in files.chain(self.target.iter().map(|wanted| &wanted.shape)) {
            let shape = op.complete(shape)?;
            for dtype in self.dtypes.iter().copied() {
                let elements = op.all_elements(&shape)?;
                taken.extend(ways(&shape, dtype).map(|way| Smallest { shape: shape.clone(), dtype, way, elements }));
            }
        }
        let switches: Vec<String> = taken
            .first()
            .map(|first| first.way.lets.keys())
            .into_iter()
            .flatten()
            .filter(|name| taken.iter().all(|one| matches!(one.way.lets.get(*name), Some(0 | 1))))
            .cloned()
            .collect();
        let mut smallest: BTreeMap<Name, Smallest> = BTreeMap::new();
        for one in taken {
            let name = named(&one.way, &switches);
            if smallest.get(&name).is_none_or(|known| one.elements < known.elements) {
                smallest.insert(name, one);
            }
        }
        smallest.into_iter().map(|(name, one)| self.shrunk_within(one, &name, &switches, ways)).collect()
    }

    /// The same way with each size halved as long as it stays the same.
    fn shrunk_within(
        &self,
        mut one: Smallest,
        name: &Name,
        switches: &[String],
        ways: Ways<'_>,
    ) -> Result<Smallest, OpError> {
        for symbol in &self.op.shrink {
            while let Some(size) = one.shape.get(symbol).filter(|size| *size > 1) {
                let Ok(shape) = self.op.complete(&one.shape.clone().with(symbol, size / 2)) else { break };
                let Some(way) = ways(&shape, one.dtype).filter(|way| named(way, switches) == *name) else { break };
                one = Smallest { elements: self.op.all_elements(&shape)?, shape, way, ..one };
            }
        }
        Ok(one)
    }

    /// A shape with one size grown as little as there are `wanted` blocks, if it is not too large for that.
    fn grown_until(
        &self,
        base: &Shape,
        symbol: &str,
        wanted: u32,
        blocks: &dyn Fn(&Shape) -> Option<u32>,
    ) -> Result<Option<Shape>, OpError> {
        let op = self.op;
        let Some(least) = base.get(symbol).filter(|size| *size > 0) else { return Ok(None) };
        let at = |size: i64| op.complete(&base.clone().with(symbol, size)).ok();
        // As many as asked for, or more than any grid has.
        let beyond = |size: i64| at(size).and_then(|shape| blocks(&shape)).is_none_or(|have| have >= wanted);
        let (mut few, mut many) = (least, least);
        while !beyond(many) {
            // Given up where the case is too large, or its elements have no number: some sizes do not change the blocks.
            let elements = at(many).and_then(|shape| op.all_elements(&shape).ok());
            let larger = many.checked_mul(2).filter(|_| elements.is_some_and(|all| all <= 2 * BLOCKS_ELEMENTS));
            let Some(larger) = larger else { return Ok(None) };
            (few, many) = (many, larger);
        }
        while many - few > 1 {
            let middle = few + (many - few) / 2;
            if beyond(middle) { many = middle } else { few = middle }
        }
        let Some(shape) = at(many).filter(|shape| blocks(shape).is_some_and(|have| have >= wanted)) else {
            return Ok(None);
        };
        let is_small = op.all_elements(&shape)? <= BLOCKS_ELEMENTS && op.macs(&shape)? <= BLOCKS_MACS;
        // Whichever type it is asked in: none is wider.
        Ok((is_small && self.fits(&shape, Dtype::F32)?).then_some(shape))
    }
}

/// The name without template arguments, which sizes may choose.
fn base_name(kernel: &str) -> &str {
    kernel.split('<').next().unwrap_or(kernel)
}

/// Blocks of a kernel along an axis; 0 where it is not launched.
fn blocks_of(ways: Ways<'_>, shape: &Shape, dtype: Dtype, kernel: &str, axis: usize) -> Option<u32> {
    let way = ways(shape, dtype)?;
    let launched = way.launches.iter().filter(|(name, _)| base_name(name) == kernel);
    Some(launched.map(|(_, grid)| grid[axis]).max().unwrap_or(0))
}

fn named(way: &Way, switches: &[String]) -> Name {
    let kernels = way.launches.iter().map(|(kernel, _)| kernel.clone()).collect();
    let switched = switches.iter().filter_map(|name| way.lets.get(name));
    (kernels, way.tunables.values().chain(switched).copied().collect())
}
