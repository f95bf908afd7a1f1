//! Candidate against oracle, where both are: every element, by the rules of `backend::bounds`.

use super::super::driver::{Access, Arguments, CudaError};
use super::arena::{Arena, words};
use super::desk::{Desk, THREADS, place};
use super::oracle::{ExpectedTensor, Oracle};
use super::words::{Words, number};
use crate::backend::bounds::{Bounds, MANY, Sums, finite, merge_outputs, misrounded_allowed, told_apart};
use crate::backend::{CaseMemory, Region, Span};
use crate::evaluation::{ErrorStats, WorstOutputs};
use crate::op::{Role, Stored};

/// Elements that a warp compares: 64 a lane, enough to make adding up what warps found cheap.
const EACH: usize = 2048;
/// Bytes of a `Found`.
const FOUND: usize = 112;

/// How the elements of an output are shared among warps (`struct Layout`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    rows: usize,
    row: usize,
    /// Rows a warp takes, where a row is one part.
    rows_each: usize,
    /// Parts of a row.
    parts: usize,
}

impl Layout {
    fn new(elements: usize, row: usize) -> Self {
        let rows = elements / row;
        if row > 2 * EACH {
            Self { rows, row, rows_each: 1, parts: row.div_ceil(EACH) }
        } else {
            Self { rows, row, rows_each: (EACH / row).max(1), parts: 1 }
        }
    }

    fn warps(&self) -> usize {
        if self.parts > 1 { self.rows * self.parts } else { self.rows.div_ceil(self.rows_each) }
    }

    /// Bytes of what the warps find: results, and squares of rows in parts.
    fn scratch(&self) -> usize {
        self.warps() * (FOUND + 16)
    }

    fn bytes(&self) -> Vec<u8> {
        let part = if self.parts > 1 { EACH } else { self.row };
        let words = [self.rows, self.row, self.rows_each, self.parts, part];
        Words::default().many(words.map(|word| word as u64)).done()
    }
}

/// Evaluates the oracle on the inputs of `copy` and compares with that copy's outputs, which must still be those of `taken`
/// ([`Arena::digests`]). `seed` chooses the elements of products that are checked against plain sums.
///
/// # Errors
/// A sentence: the machine or the operation's files are at fault.
pub fn compare(
    oracle: &Oracle,
    memory: &CaseMemory,
    arena: &Arena,
    copy: usize,
    taken: &[[u64; 2]],
    seed: u64,
) -> Result<ErrorStats, String> {
    let text = |error: CudaError| error.to_string();
    let (op, case) = (memory.operation(), memory.case());
    let desk = oracle.desk();
    let outputs = memory.outputs(copy);
    if arena.digests(&outputs).map_err(text)? != taken {
        return Err("outputs changed between the launch and the comparison".into());
    }
    let specs: Vec<_> = op.tensors.iter().filter(|tensor| tensor.role == Role::Output).collect();
    let mut judged = Vec::new();
    for (spec, span) in specs.iter().zip(&outputs) {
        let stored = spec.dtype.stored(case.dtype);
        let elements = span.bytes / stored.bytes();
        let (bounds, row) = Bounds::of(op, case, spec, elements).map_err(|error| error.to_string())?;
        let bounds = bounds.with_sums(memory.sums());
        let (layout, name) = (Layout::new(elements, row), told_apart(op, spec));
        judged.push(Judged { name, span: *span, stored, elements, bounds, layout });
    }
    let scratch = judged.iter().map(|one| one.layout.scratch()).max().unwrap_or(0);
    [Region::Inputs, Region::Outputs]
        .into_iter()
        .try_for_each(|region| arena.ground().reach(region, Access::Read))
        .map_err(text)?;
    let inputs: Vec<Option<u64>> =
        memory.inputs(copy).iter().map(|span| span.as_ref().map(|span| arena.address(span))).collect();
    let expected = oracle.expected(case, &inputs, seed, scratch)?;
    for (index, (one, right)) in judged.iter().zip(&expected.outputs).enumerate() {
        if one.elements != right.elements {
            return Err(format!("the oracle gives `{}` {} elements, not {}", right.name, right.elements, one.elements));
        }
        one.launch(desk, arena, right, expected.free, index).map_err(text)?;
    }
    let mut results = vec![0; (place::READ_END - place::STATS) as usize];
    let from = desk.paper(place::STATS).map_err(text)?;
    desk.gpu().copy_out(&mut results, from).map_err(text)?;
    expected.agreed(op, &results[(place::DISAGREE - place::STATS) as usize..])?;
    Ok(total(&judged, &results))
}

/// An output to compare.
struct Judged<'a> {
    /// Its name, where there are others.
    name: Option<&'a str>,
    span: Span,
    stored: Stored,
    elements: usize,
    bounds: Bounds,
    layout: Layout,
}

impl Judged<'_> {
    fn launch(
        &self,
        desk: &Desk,
        arena: &Arena,
        expected: &ExpectedTensor,
        scratch: u64,
        index: usize,
    ) -> Result<(), CudaError> {
        let Bounds { u, s, largest, sums, row_term, rms_bound, signed_terms, misrounded, sides } = self.bounds;
        let many = if signed_terms { MANY } else { f64::INFINITY };
        let (rounds, sides) = (f64::from(u8::from(misrounded.is_some())), f64::from(sides as u8));
        let rules = [u, s, largest, sums, row_term, 2.0 * rms_bound, many, rounds, sides];
        let rules = Words::default().many(rules.map(f64::to_bits)).done();
        let layout = self.layout.bytes();
        let warps = self.layout.warps();
        let blocks = u32::try_from((warps * 32).div_ceil(THREADS as usize))
            .map_err(|_| CudaError::Launch("an output is too large to compare".into()))?;
        let (parts, squares) = (scratch, scratch + (warps * FOUND) as u64);
        if self.layout.parts > 1 && row_term > 0.0 {
            let arguments = Arguments::new().bytes(&layout).pointer(expected.values).pointer(squares);
            desk.launch("ws_row_squares", blocks, &arguments)?;
        }
        let arguments = Arguments::new()
            .bytes(&rules)
            .bytes(&layout)
            .int(number(self.stored) as i32)
            .pointer(arena.address(&self.span))
            .pointer(expected.values)
            .pointer(expected.terms)
            .pointer(squares)
            .pointer(parts);
        desk.launch("ws_compare", blocks, &arguments)?;
        let result = desk.paper(place::STATS + (index * FOUND) as u64)?;
        let arguments = Arguments::new().bytes(&rules).bytes(&layout).pointer(parts).pointer(result);
        desk.launch("ws_compare_all", 1, &arguments)
    }

    fn stats(&self, words: &[u64]) -> ErrorStats {
        let double = |index: usize| f64::from_bits(words[index]);
        let sums = Sums { count: double(6), error: double(7), value: double(8), terms: double(9) };
        ErrorStats {
            elements: self.elements as u64,
            outside: words[0],
            worst: double(2),
            worst_at: words[1],
            outputs: WorstOutputs::default(),
            got: double(3),
            want: double(4),
            relative_rms: if sums.error == 0.0 { 0.0 } else { finite((sums.error / sums.value).sqrt()) },
            tensor_ratio: self.bounds.rms_ratio(&sums, self.bounds.rms_bound),
            row_ratio: double(5),
            misrounded: words[10],
            misrounded_ratio: self
                .bounds
                .misrounded
                .map_or(0.0, |share| words[10] as f64 / misrounded_allowed(share, self.elements as f64)),
            sides: [words[11], words[12]],
            side_ratio: self.bounds.sides.ratio([words[11], words[12]], self.elements as f64),
            ..ErrorStats::default()
        }
    }
}

fn total(judged: &[Judged<'_>], results: &[u8]) -> ErrorStats {
    let mut total = ErrorStats::default();
    for (one, words) in judged.iter().zip(words(results).chunks_exact(FOUND / 8)) {
        merge_outputs(&mut total, &one.stats(words), one.name);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_belongs_to_one_warp() {
        for (elements, row) in [(1, 1), (7 * 64, 64), (3 * 5000, 5000), (100_000, 100_000), (9000, 1), (4096, 4096)] {
            let layout = Layout::new(elements, row);
            let taken = if layout.parts > 1 {
                assert!(layout.parts * EACH >= row && (layout.parts - 1) * EACH < row);
                layout.rows * row
            } else {
                assert!(layout.warps() * layout.rows_each >= layout.rows);
                layout.rows * row
            };
            assert_eq!(taken, elements);
            assert!(layout.scratch() <= elements * (FOUND + 16), "{elements} {row}");
        }
    }
}
