//! The trusted matrix product, in doubles.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::share::{cores, share};

/// Sizes of `out[batch,m,n] = a[batch,m,k] * b[batch,k,n]`, all row-major; `b` is `[batch,n,k]` where transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProductSizes {
    /// Number of products.
    pub batch: usize,
    /// Rows of `a` and of the product.
    pub m: usize,
    /// Columns of the product.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Whether `b` is stored as `[n,k]`.
    pub trans_b: bool,
}

/// The product over all cores; NaN and infinities go where IEEE arithmetic sends them.
///
/// # Panics
/// Where a slice does not have the size that `sizes` says.
#[must_use]
pub fn product(a: &[f64], b: &[f64], sizes: ProductSizes) -> Vec<f64> {
    let ProductSizes { batch, m, n, k, trans_b } = sizes;
    assert_eq!(a.len(), batch * m * k, "the left factor has its size");
    assert_eq!(b.len(), batch * k * n, "the right factor has its size");
    let mut out = vec![0.0; batch * m * n];
    if out.is_empty() || k == 0 {
        return out;
    }
    if m <= THIN {
        thin(a, b, sizes, &mut out);
        return out;
    }
    // The longer side is cut, so that a single row is shared by columns.
    let by_rows = m >= n;
    let pieces = cores().div_ceil(batch.min(cores())).min(m.max(n));
    let length = m.max(n).div_ceil(pieces);
    let (row_b, column_b) = if trans_b { (1, k as isize) } else { (n as isize, 1) };
    let target = Target(out.as_mut_ptr());
    share(batch * pieces, 1, &|range| {
        for task in range {
            let (image, begin) = (task / pieces, (task % pieces) * length);
            let end = (begin + length).min(m.max(n));
            if begin >= end {
                continue;
            }
            let (rows, columns) = if by_rows { (begin..end, 0..n) } else { (0..m, begin..end) };
            let (a, b) = (&a[image * m * k..], &b[image * k * n..]);
            let first_b = if trans_b { columns.start * k } else { columns.start };
            let first_c = image * m * n + rows.start * n + columns.start;
            // SAFETY: rows and columns lie within m and n, so with the lengths asserted above every
            // element that dgemm reads of a and b, and writes of the output, lies within them. Tasks
            // have disjoint rows, columns or images, so no two write the same element; the output
            // outlives the scope in which they run.
            unsafe {
                matrixmultiply::dgemm(
                    rows.len(),
                    k,
                    columns.len(),
                    1.0,
                    a.as_ptr().add(rows.start * k),
                    k as isize,
                    1,
                    b.as_ptr().add(first_b),
                    row_b,
                    column_b,
                    0.0,
                    target.at(first_c),
                    n as isize,
                    1,
                );
            }
        }
    });
    out
}

/// Up to this many rows the product is a stream through `b`, and blocking it only costs.
const THIN: usize = 8;

/// Columns of a part of the product: a few rows of it stay in the first cache.
const COLUMNS: usize = 256;

fn thin(a: &[f64], b: &[f64], sizes: ProductSizes, out: &mut [f64]) {
    let ProductSizes { batch, m, n, k, trans_b } = sizes;
    let parts = n.div_ceil(COLUMNS);
    let results: Vec<Mutex<Vec<f64>>> = (0..batch * parts).map(|_| Mutex::default()).collect();
    share(batch * parts, 1, &|range| {
        for task in range {
            let (image, part) = (task / parts, task % parts);
            let columns = part * COLUMNS..n.min((part + 1) * COLUMNS);
            let a = &a[image * m * k..(image + 1) * m * k];
            let b = &b[image * k * n..(image + 1) * k * n];
            let sums = if trans_b { by_dots(a, b, m, k, columns) } else { by_rows_of_b(a, b, m, n, columns) };
            *results[task].lock().unwrap_or_else(PoisonError::into_inner) = sums;
        }
    });
    for (task, sums) in results.into_iter().enumerate() {
        let (image, first) = (task / parts, task % parts * COLUMNS);
        let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
        let width = sums.len() / m;
        for (row, sums) in sums.chunks(width).enumerate() {
            out[(image * m + row) * n + first..][..width].copy_from_slice(sums);
        }
    }
}

fn by_rows_of_b(a: &[f64], b: &[f64], m: usize, n: usize, columns: Range<usize>) -> Vec<f64> {
    let k = a.len() / m;
    let width = columns.len();
    let mut sums = vec![0.0; m * width];
    for l in 0..k {
        let right = &b[l * n + columns.start..l * n + columns.end];
        for (row, sums) in sums.chunks_mut(width).enumerate() {
            let left = a[row * k + l];
            sums.iter_mut().zip(right).for_each(|(sum, right)| *sum += left * right);
        }
    }
    sums
}

fn by_dots(a: &[f64], b: &[f64], m: usize, k: usize, columns: Range<usize>) -> Vec<f64> {
    const LANES: usize = 8;
    let width = columns.len();
    let mut sums = vec![0.0; m * width];
    for (at, column) in columns.enumerate() {
        let right = &b[column * k..(column + 1) * k];
        for row in 0..m {
            let left = &a[row * k..(row + 1) * k];
            let mut lanes = [0.0; LANES];
            let (left_parts, right_parts) = (left.chunks_exact(LANES), right.chunks_exact(LANES));
            let rest: f64 = left_parts.remainder().iter().zip(right_parts.remainder()).map(|(a, b)| a * b).sum();
            for (a, b) in left_parts.zip(right_parts) {
                (0..LANES).for_each(|lane| lanes[lane] += a[lane] * b[lane]);
            }
            sums[row * width + at] = lanes.iter().sum::<f64>() + rest;
        }
    }
    sums
}

/// The output, for tasks that write disjoint parts of it.
struct Target(*mut f64);

impl Target {
    /// # Safety
    /// The caller must stay within the output.
    unsafe fn at(&self, index: usize) -> *mut f64 {
        // SAFETY: as the caller promises.
        unsafe { self.0.add(index) }
    }
}

// SAFETY: the pointer is only used for disjoint elements, as `product` explains.
unsafe impl Sync for Target {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    fn factors(sizes: ProductSizes) -> (Vec<f64>, Vec<f64>) {
        let draw = |name, n| (0..n).map(|i| Stream::new(1, name).normal(i as u64)).collect();
        (draw("a", sizes.batch * sizes.m * sizes.k), draw("b", sizes.batch * sizes.k * sizes.n))
    }

    fn plainly(a: &[f64], b: &[f64], s: ProductSizes) -> Vec<f64> {
        let mut out = Vec::new();
        for (image, i, j) in (0..s.batch).flat_map(|x| (0..s.m).flat_map(move |i| (0..s.n).map(move |j| (x, i, j)))) {
            let right = |l: usize| if s.trans_b { j * s.k + l } else { l * s.n + j };
            out.push((0..s.k).map(|l| a[(image * s.m + i) * s.k + l] * b[image * s.k * s.n + right(l)]).sum());
        }
        out
    }

    #[test]
    fn every_form_agrees_with_the_plain_sum() {
        for (batch, m, n, k) in [
            (1, 1, 1, 1),
            (1, 1, 300, 17),
            (1, 300, 1, 5),
            (3, 7, 9, 11),
            (2, 8, 513, 40),
            (1, 9, 513, 40),
            (5, 64, 33, 80),
        ] {
            for trans_b in [false, true] {
                let sizes = ProductSizes { batch, m, n, k, trans_b };
                let (a, b) = factors(sizes);
                for (got, want) in product(&a, &b, sizes).iter().zip(plainly(&a, &b, sizes)) {
                    assert!((got - want).abs() <= 1e-12 * (k as f64), "{sizes:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_reaches_its_own_row_and_column_only() {
        for m in [6, 13] {
            let sizes = ProductSizes { batch: 1, m, n: 29, k: 31, trans_b: false };
            let (mut a, mut b) = factors(sizes);
            a[4 * 31 + 30] = f64::NAN;
            b[28] = f64::INFINITY;
            let out = product(&a, &b, sizes);
            for (index, value) in out.iter().enumerate() {
                let (row, column) = (index / 29, index % 29);
                assert_eq!(value.is_nan(), row == 4, "{row},{column}");
                assert_eq!(value.is_infinite(), row != 4 && column == 28);
            }
        }
    }
}
