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
/// Launches that are not worth a look for others that do as much.
const FEW_LAUNCHES: usize = 8;
/// Matrices after which their places may repeat: heads that lie side by side in a row.
const LONGEST_PERIOD: usize = 1024;
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
    let runs = runs(layout);
    if runs.len() <= FEW_LAUNCHES {
        return runs;
    }
    let longest = LONGEST_PERIOD.min(runs.len() / 2);
    (2..=longest).find(|period| is_periodic(layout, *period)).map_or(runs, |period| by_period(layout, period))
}

/// Whether each matrix lies as far from the one that many before it as that one does from its own.
fn is_periodic(layout: &ProductLayout, period: usize) -> bool {
    [&layout.a, &layout.b, &layout.out].into_iter().all(|side| {
        let at = |z: usize| side.starts[z] as i64;
        (2 * period..layout.batch).all(|z| at(z) - at(z - period) == at(z - period) - at(z - 2 * period))
    })
}

/// Every matrix of that number in a period, for each number.
fn by_period(layout: &ProductLayout, period: usize) -> Vec<Group> {
    let sides = [&layout.a, &layout.b, &layout.out];
    let mut all = Vec::new();
    for number in 0..period.min(layout.batch) {
        let count = (layout.batch - number).div_ceil(period);
        for begin in (0..count).step_by(MOST_MATRICES) {
            let first = number + begin * period;
            let next = sides.map(|side| {
                let second = side.starts.get(first + period).copied();
                second.map_or(0, |second| second as i64 - side.starts[first] as i64)
            });
            all.push(Group { first, count: (count - begin).min(MOST_MATRICES), next });
        }
    }
    all
}

/// Neighbours, as many as lie at equal distances.
fn runs(layout: &ProductLayout) -> Vec<Group> {
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

    fn side(starts: Vec<usize>) -> Matrices {
        Matrices { starts, step: 4, rows: 2, columns: 4 }
    }

    #[test]
    fn heads_that_lie_side_by_side_are_a_launch_for_each() {
        // 3 heads in each of 100000 batches, two of which share keys.
        let (heads, batches) = (3, 100_000);
        let all = || (0..heads * batches).map(|z| (z / heads, z % heads));
        let a: Vec<usize> = all().map(|(batch, head)| batch * 24 + head * 4).collect();
        let b: Vec<usize> = all().map(|(batch, head)| batch * 16 + head / 2 * 4).collect();
        let sides = [side(a.clone()), side(b), side(a)];
        let [a, b, out] = sides;
        let layout = ProductLayout { batch: heads * batches, m: 2, n: 4, k: 4, trans_b: false, a, b, out };
        let found = groups(&layout);
        assert_eq!(found.len(), 6);
        let mut seen = vec![0; layout.batch];
        for group in &found {
            for place in 0..group.count {
                let at = |side: &Matrices, next: i64| side.starts[group.first] as i64 + place as i64 * next;
                // Which matrix it is, by its place among the products.
                let found = layout.out.starts.binary_search(&(at(&layout.out, group.next[2]) as usize));
                let Ok(z) = found else { panic!("no matrix begins there") };
                seen[z] += 1;
                assert_eq!(at(&layout.a, group.next[0]), layout.a.starts[z] as i64);
                assert_eq!(at(&layout.b, group.next[1]), layout.b.starts[z] as i64);
            }
        }
        assert!(seen.into_iter().all(|times| times == 1));
    }

    #[test]
    fn matrices_at_equal_distances_are_one_launch() {
        let side = |starts: &[usize]| side(starts.to_vec());
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
