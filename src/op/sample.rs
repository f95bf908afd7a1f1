//! A few elements of each output, and what an oracle must compute to know them.
//!
//! What an element needs follows from how passes are laid out. An items pass with n items writes and reads of every array its
//! n-th part: item i the i-th (a pass that is `elementwise` reads of an array of its output's size the same element alone).
//! An element of a product needs a row of one factor and a column of the other. An output that a later pass reads is taken as
//! the candidate wrote it, because it is looked at itself. A file for which this does not hold is found out at its first case
//! (`harness::check`), where the same elements are computed both ways.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Matrices, OpError, Operation, Pass, ProductLayout, Role, Shape};
use crate::rng::Stream;

/// Elements of an output that are looked at together.
const PLACES: u64 = 16;

/// What asking an oracle that knows only whole outputs costs, in multiply-adds of one that knows parts: to begin with, and for each
/// element of all tensors.
const WHOLE_BEGIN: u64 = 1 << 25;
const WHOLE_EACH: u64 = 16;

/// Elements of each output, and what makes them known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Flat indices into each output, in the operation's order; none of an output that would cost too much.
    pub elements: Vec<Vec<usize>>,
    /// What is computed, in order.
    pub steps: Vec<SampleStep>,
    /// Outputs that later passes read, by name: they hold what the candidate wrote.
    pub given: Vec<String>,
}

/// A part of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleStep {
    /// Index into [`Operation::passes`].
    pub pass: usize,
    /// Which items; of a product, which elements of it as they lie in memory (the items of its checker). In order, apart.
    pub items: Vec<Range<usize>>,
}

impl SampleStep {
    /// How many items there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.items.iter().map(ExactSizeIterator::len).sum()
    }
}

impl Sample {
    /// Whether anything is looked at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elements.iter().all(Vec::is_empty)
    }
}

/// Parts of arrays, by name.
#[derive(Debug, Default)]
struct Needs(BTreeMap<String, Vec<Range<usize>>>);

impl Needs {
    fn add(&mut self, array: &str, part: Range<usize>) {
        if !part.is_empty() {
            self.0.entry(array.to_owned()).or_default().push(part);
        }
    }

    /// What is needed of an array, in order and apart.
    fn of(&self, array: &str) -> Vec<Range<usize>> {
        let mut parts = self.0.get(array).cloned().unwrap_or_default();
        parts.sort_by_key(|part| part.start);
        let mut apart: Vec<Range<usize>> = Vec::with_capacity(parts.len());
        for part in parts {
            match apart.last_mut() {
                Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
                _ => apart.push(part),
            }
        }
        apart
    }
}

impl Operation {
    /// Elements of each output that `seed` chooses, at a (complete) shape: of each some of one row, because they share most of
    /// what they need. An output whose elements take more than `most` multiply-adds to know is left out.
    ///
    /// # Errors
    /// An expression that fails at this shape.
    pub fn sample(&self, shape: &Shape, seed: u64, most: u64) -> Result<Sample, OpError> {
        if self.knows_only_wholes() {
            return self.whole_sample(shape, most);
        }
        let row = self.size("tolerance row", &self.tolerance()?.row, shape)?.max(1);
        let outputs: Vec<_> = self.tensors.iter().filter(|tensor| tensor.role == Role::Output).collect();
        let mut all = Vec::with_capacity(outputs.len());
        for (number, tensor) in (0u64..).zip(&outputs) {
            let elements = self.elements(tensor, shape)?;
            let stream = Stream::new(seed.wrapping_add(number), "places");
            // An output that has no such rows is one row.
            let row = if elements.is_multiple_of(row) { row } else { elements };
            let first = stream.below(0, (elements / row) as u64) as usize * row;
            let places = (1..=PLACES.min(row as u64)).map(|place| first + stream.below(place, row as u64) as usize);
            all.push(places.collect::<Vec<_>>());
        }
        let mut sample = Sample { elements: vec![Vec::new(); all.len()], steps: Vec::new(), given: Vec::new() };
        for (index, places) in all.into_iter().enumerate() {
            sample.elements[index] = places;
            if self.plan_sample(shape, &mut sample)?.is_none_or(|cost| cost > most) {
                sample.elements[index].clear();
            }
        }
        self.plan_sample(shape, &mut sample)?;
        Ok(sample)
    }

    /// All of every output, in no steps: of an oracle that knows only wholes the first element stands for all. Asking such an oracle
    /// takes as long as this many multiply-adds of the other kind, whatever the shape, and more for each element.
    fn whole_sample(&self, shape: &Shape, most: u64) -> Result<Sample, OpError> {
        let elements = self.all_elements(shape)?.saturating_mul(WHOLE_EACH);
        let cost = WHOLE_BEGIN.saturating_add(self.macs(shape)?).saturating_add(elements);
        let outputs = self.tensors.iter().filter(|tensor| tensor.role == Role::Output);
        let one = || if cost <= most { vec![0] } else { Vec::new() };
        Ok(Sample { elements: outputs.map(|_| one()).collect(), steps: Vec::new(), given: Vec::new() })
    }

    /// Fills in the steps that the elements need; how many multiply-adds they take, about, or `None` where it does not follow
    /// from the passes' layout.
    fn plan_sample(&self, shape: &Shape, sample: &mut Sample) -> Result<Option<u64>, OpError> {
        let outputs: Vec<&str> =
            self.tensors.iter().filter(|it| it.role == Role::Output).map(|it| it.name.as_str()).collect();
        let mut needs = Needs::default();
        for (name, places) in outputs.iter().zip(&sample.elements) {
            places.iter().for_each(|place| needs.add(name, *place..place + 1));
        }
        (sample.steps, sample.given) = (Vec::new(), Vec::new());
        let checkers: Vec<&str> = self.checkers().collect();
        let mut cost = 0u64;
        for (index, pass) in self.passes.iter().enumerate().rev() {
            let items = match pass {
                Pass::Items(items) if checkers.contains(&items.name.as_str()) => continue,
                Pass::Items(items) => {
                    let count = self.size(&items.name, &items.items, shape)?;
                    let mut wanted = Needs::default();
                    let mut elements = 0;
                    for out in &items.out {
                        let size = self.size(&out.name, &out.size, shape)?;
                        elements += size;
                        let (true, Some(part)) = (size.is_multiple_of(count), size.checked_div(count)) else {
                            return Ok(None);
                        };
                        for need in needs.of(&out.name) {
                            wanted.add("", need.start / part..need.end.div_ceil(part));
                        }
                    }
                    let wanted = wanted.of("");
                    if wanted.is_empty() {
                        continue;
                    }
                    for read in self.reads(&items.name) {
                        if outputs.contains(&read) {
                            sample.given.push(read.to_owned());
                            continue;
                        }
                        let Some(size) = self.array_size(read, shape)? else { return Ok(None) };
                        match &items.out[..] {
                            [out] if items.elementwise && size == self.size(&out.name, &out.size, shape)? => {
                                needs.of(&out.name).into_iter().for_each(|part| needs.add(read, part));
                            }
                            _ if size.is_multiple_of(count) => {
                                let part = size / count;
                                wanted.iter().for_each(|it| needs.add(read, it.start * part..it.end * part));
                            }
                            _ => return Ok(None),
                        }
                    }
                    let inputs = self.all_elements(shape)? as usize;
                    let items = wanted.iter().map(ExactSizeIterator::len).sum::<usize>();
                    cost = cost.saturating_add((items * (inputs.max(elements) / count)) as u64);
                    wanted
                }
                Pass::Product(product) => {
                    let wanted = needs.of(&product.out);
                    if wanted.is_empty() {
                        continue;
                    }
                    let layout = self.product_layout(product, shape)?;
                    for part in &wanted {
                        cost = cost.saturating_add((part.len() * layout.k) as u64);
                        let arrays =
                            [&product.a, &product.b].map(|name| Some(name.as_str()).filter(|it| self.is_array(it)));
                        factors(&layout, part, arrays, &mut needs);
                    }
                    wanted
                }
            };
            sample.steps.push(SampleStep { pass: index, items });
        }
        sample.steps.reverse();
        Ok(Some(cost))
    }

    /// Whether a pass writes an array of this name.
    fn is_array(&self, name: &str) -> bool {
        self.passes.iter().any(|pass| match pass {
            Pass::Items(items) => items.out.iter().any(|out| out.name == name),
            Pass::Product(product) => product.out == name,
        })
    }

    /// Elements of an array that a pass writes; `None` where none does.
    ///
    /// # Errors
    /// An expression that fails at this shape.
    pub fn array_size(&self, name: &str, shape: &Shape) -> Result<Option<usize>, OpError> {
        for pass in &self.passes {
            match pass {
                Pass::Items(items) => {
                    if let Some(out) = items.out.iter().find(|out| out.name == name) {
                        return self.size(name, &out.size, shape).map(Some);
                    }
                }
                Pass::Product(product) if product.out == name => {
                    return self.product_elements(product, shape).map(Some);
                }
                Pass::Product(_) => {}
            }
        }
        Ok(None)
    }

    /// The arrays that a pass of the header reads.
    fn reads(&self, pass: &str) -> Vec<&str> {
        let text: String = self.header.split_whitespace().collect();
        let own = text.split("WS_PASS(").find(|part| part.strip_prefix(pass).is_some_and(|rest| rest.starts_with(')')));
        let Some(own) = own.map(str::to_owned) else { return Vec::new() };
        let arrays = self.passes.iter().flat_map(|pass| match pass {
            Pass::Items(items) => items.out.iter().map(|out| out.name.as_str()).collect(),
            Pass::Product(product) => vec![product.out.as_str()],
        });
        let read = |name: &&str| ["ws_get(", "ws_get_abs("].iter().any(|get| own.contains(&format!("{get}{name},")));
        arrays.filter(read).collect()
    }
}

/// Adds what a part of a product needs of the factors that are arrays (`None` for an input, of which all is there).
fn factors(layout: &ProductLayout, part: &Range<usize>, [a, b]: [Option<&str>; 2], needs: &mut Needs) {
    if a.is_none() && b.is_none() {
        return;
    }
    let mut last = None;
    for element in part.clone() {
        let Some((matrix, row, column)) = place_of(&layout.out, element) else { continue };
        let line = |side: &Matrices, row: usize| {
            let start = side.starts[matrix] + row * side.step;
            start..start + side.columns
        };
        if let Some(a) = a.filter(|_| last != Some((matrix, row))) {
            needs.add(a, line(&layout.a, row));
        }
        last = Some((matrix, row));
        match b {
            Some(b) if layout.trans_b => needs.add(b, line(&layout.b, column)),
            Some(b) => (0..layout.k).for_each(|term| {
                let at = layout.b.starts[matrix] + term * layout.b.step + column;
                needs.add(b, at..at + 1);
            }),
            None => {}
        }
    }
}

/// Matrix, row and column of an element.
fn place_of(side: &Matrices, element: usize) -> Option<(usize, usize, usize)> {
    let inside = |matrix: usize| {
        let at = element.checked_sub(side.starts[matrix])?;
        let (row, column) = (at / side.step, at % side.step);
        (row < side.rows && column < side.columns).then_some((matrix, row, column))
    };
    if side.contiguous() {
        return inside(element / (side.rows * side.columns));
    }
    (0..side.starts.len()).find_map(inside)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shipped(name: &str) -> Operation {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        Operation::load(&|path| std::fs::read_to_string(root.join(path)).ok(), name).unwrap()
    }

    fn sample(name: &str, shape: &[(&str, i64)], most: u64) -> (Operation, Sample) {
        let op = shipped(name);
        let shape = Shape(shape.iter().map(|(symbol, value)| ((*symbol).to_owned(), *value)).collect());
        let sample = op.sample(&op.complete(&shape).unwrap(), 7, most).unwrap();
        (op, sample)
    }

    #[test]
    fn a_row_of_a_norm_needs_one_item() {
        let (_, sample) = sample("rmsnorm", &[("rows", 100), ("cols", 33)], u64::MAX);
        assert_eq!(sample.elements[0].len(), 16);
        assert_eq!(sample.steps.len(), 1);
        let row = sample.elements[0][0] / 33;
        assert!(matches!(&sample.steps[0].items[..], [items] if *items == (row..row + 1)));
    }

    #[test]
    fn an_element_of_a_product_needs_that_element_and_its_row_of_the_sum_of_products() {
        let (op, sample) = sample("matmul", &[("M", 64), ("N", 48), ("K", 32)], u64::MAX);
        let [product, add] = &sample.steps[..] else { panic!("{:?}", sample.steps) };
        assert!(matches!(&op.passes[product.pass], Pass::Product(_)));
        assert!(product.count() <= 16 && add.count() == 1);
    }

    #[test]
    fn an_mlp_needs_a_row_of_hidden_values() {
        let (_, sample) = sample("fused_mlp", &[("B", 8), ("D", 24), ("H", 40)], u64::MAX);
        let counts: Vec<usize> = sample.steps.iter().map(SampleStep::count).collect();
        assert_eq!(counts[..3], [40, 40, 1]);
        assert!((1..=16).contains(&counts[3]));
    }

    #[test]
    fn attention_needs_the_scores_of_one_query() {
        for bshd in [0, 1] {
            let shape = [("B", 2), ("H", 4), ("H_kv", 2), ("S_q", 10), ("S_kv", 12), ("D", 16), ("bshd", bshd)];
            let (_, sample) = sample("flash_attention", &shape, u64::MAX);
            let counts: Vec<usize> = sample.steps.iter().map(SampleStep::count).collect();
            assert_eq!(counts[..2], [12, 1], "bshd {bshd}");
        }
    }

    #[test]
    fn a_mean_of_losses_is_that_of_the_candidates_own() {
        let (_, sample) = sample("cross_entropy", &[("batch", 50), ("vocab", 1000)], u64::MAX);
        assert_eq!(sample.given, ["losses"]);
        assert_eq!(sample.elements[1], [0]);
    }

    #[test]
    fn what_costs_too_much_is_left_out() {
        let (_, sample) = sample("fused_mlp", &[("B", 8), ("D", 24), ("H", 40)], 100);
        assert!(sample.is_empty() && sample.steps.is_empty());
    }
}
