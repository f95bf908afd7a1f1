//! The trusted product in double precision: cuBLAS's where it is installed, else our own.

use super::super::driver::{Arguments, CudaError, Geometry};
use super::cublas::{Gemms, Precision, Side};
use super::desk::Desk;
use super::words::Words;
use crate::op::ProductLayout;

/// Elements of a block's tile in each direction (`TILE`).
const TILE: usize = 64;
/// Matrices of one launch: the third dimension of a grid.
const MOST_MATRICES: usize = 65_535;
/// Up to so many multiply-adds our own kernel takes milliseconds, and every odd shape has cuBLAS load another kernel of its
/// own, which takes longer.
const SMALL: usize = 1 << 33;

impl Desk {
    /// `out = a b` as `layout` says; addresses of doubles.
    pub(super) fn product(&self, layout: &ProductLayout, a: u64, b: u64, out: u64) -> Result<(), CudaError> {
        if layout.m == 0 || layout.n == 0 {
            return Ok(());
        }
        for group in groups(layout) {
            let side = |at: u64, first: usize, step: usize, next: i64| Side {
                at: at + 8 * first as u64,
                step: step as i64,
                next,
            };
            let gemms = Gemms {
                batch: group.count,
                m: layout.m,
                n: layout.n,
                k: layout.k,
                trans_b: layout.trans_b,
                a: side(a, layout.a.starts[group.first], layout.a.step, group.next[0]),
                b: side(b, layout.b.starts[group.first], layout.b.step, group.next[1]),
                out: side(out, layout.out.starts[group.first], layout.out.step, group.next[2]),
            };
            let small = layout.m * layout.n * layout.k * group.count <= SMALL;
            let library = if small || layout.k == 0 { None } else { self.cublas() };
            match library.map(|cublas| cublas.multiply(&gemms, Precision::Double, false)) {
                Some(Ok(())) => {}
                Some(Err(error @ CudaError::Lost(_))) => return Err(error),
                // What cuBLAS does not take, our own kernel does.
                Some(Err(_)) | None => self.own_product(&gemms)?,
            }
        }
        Ok(())
    }

    fn own_product(&self, gemms: &Gemms) -> Result<(), CudaError> {
        let tiles = gemms.m.div_ceil(TILE) * gemms.n.div_ceil(TILE);
        let blocks = u32::try_from(tiles).map_err(|_| CudaError::Launch("a product is too large".into()))?;
        let sides = [gemms.a, gemms.b, gemms.out];
        let bytes = Words::default()
            .many(sides.map(|side| side.at))
            .many([gemms.m, gemms.n, gemms.k].map(|size| size as u64))
            .many(sides.map(|side| side.step as u64))
            .many(sides.map(|side| side.next as u64))
            .u32(gemms.trans_b.into())
            .u32(0)
            .done();
        let geometry = Geometry { grid: [blocks, 1, gemms.batch as u32], ..Geometry::linear(1, 256) };
        self.launch_as("ws_product", &geometry, &Arguments::new().bytes(&bytes))
    }
}

/// Matrices that lie at equal distances.
struct Group {
    first: usize,
    count: usize,
    /// Elements to the next matrix of a, b and the product.
    next: [i64; 3],
}

fn groups(layout: &ProductLayout) -> Vec<Group> {
    let sides = [&layout.a, &layout.b, &layout.out];
    let step = |z: usize| sides.map(|side| side.starts[z + 1] as i64 - side.starts[z] as i64);
    let mut all = Vec::new();
    let mut first = 0;
    while first < layout.batch {
        let mut group = Group { first, count: 1, next: [0; 3] };
        if first + 1 < layout.batch {
            group.next = step(first);
        }
        while first + group.count < layout.batch
            && group.count < MOST_MATRICES
            && step(first + group.count - 1) == group.next
        {
            group.count += 1;
        }
        first += group.count;
        all.push(group);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Matrices;

    #[test]
    fn matrices_at_equal_distances_are_one_launch() {
        let side = |starts: &[usize]| Matrices { starts: starts.to_vec(), step: 4, rows: 2, columns: 4 };
        let layout = ProductLayout {
            batch: 6,
            m: 2,
            n: 4,
            k: 4,
            trans_b: false,
            a: side(&[0, 8, 16, 24, 32, 40]),
            b: side(&[0, 0, 0, 8, 8, 8]),
            out: side(&[0, 8, 16, 24, 32, 40]),
        };
        let found: Vec<(usize, usize, [i64; 3])> =
            groups(&layout).iter().map(|group| (group.first, group.count, group.next)).collect();
        assert_eq!(found, [(0, 3, [8, 0, 8]), (3, 3, [8, 0, 8])]);
    }
}
