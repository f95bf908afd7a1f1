//! To which side elements of 16 bits are off, run by run and column by column: results that are cut off in some places and rounded in
//! others, as a few rows in sixteen, are few enough to hide in a count over the whole tensor.

/// Elements of a run: short, so that whatever a kernel goes by (rows, tiles, positions) holds whole runs.
pub(super) const RUN: usize = 16;

/// The share of runs, or columns, that may be off to one side altogether. Of results that are rounded to the nearest number none are
/// but by chance; where weights of 16 bits shift a whole row a little, as in attention over a few keys, some lean.
const LEANING: f64 = 0.25;

/// How far the counts of both sides are apart, over many groups of elements.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Dispersion {
    /// Squares of the distances beyond what chance gives them.
    excess: f64,
    /// What the same would be were each group off to one side.
    squares: f64,
}

impl Dispersion {
    /// Counts a group with so many elements to either side.
    pub(super) fn add(&mut self, [nearer, further]: [u32; 2]) {
        let (nearer, further) = (f64::from(nearer), f64::from(further));
        let all = nearer + further;
        self.excess += (nearer - further).powi(2) - all;
        self.squares += all * all;
    }

    /// Adds another part.
    pub(super) fn merge(&mut self, other: &Self) {
        self.excess += other.excess;
        self.squares += other.squares;
    }

    /// The excess over what it may be: the share, and what chance adds to it where there are few.
    pub(super) fn ratio(&self) -> f64 {
        (self.excess / (LEANING * self.squares + 8.0 * (2.0 * self.squares).sqrt() + 64.0)).max(0.0)
    }
}

/// The sides of a part of an output's rows.
#[derive(Debug, Default)]
pub(super) struct Sides {
    /// Runs within rows.
    pub(super) runs: Dispersion,
    /// Elements of each column to either side; empty where it is not looked at.
    pub(super) columns: Vec<[u32; 2]>,
}

impl Sides {
    /// Of rows of so many columns.
    pub(super) fn new(columns: usize) -> Self {
        Self { columns: vec![[0; 2]; columns], ..Self::default() }
    }

    /// Adds another part of the same output.
    pub(super) fn merge(&mut self, other: &Self) {
        self.runs.merge(&other.runs);
        if self.columns.is_empty() {
            self.columns.clone_from(&other.columns);
            return;
        }
        for (mine, theirs) in self.columns.iter_mut().zip(&other.columns) {
            (0..2).for_each(|side| mine[side] += theirs[side]);
        }
    }

    /// The worse of runs and columns, over what they may be.
    pub(super) fn ratio(&self) -> f64 {
        let mut columns = Dispersion::default();
        self.columns.iter().for_each(|counts| columns.add(*counts));
        self.runs.ratio().max(columns.ratio())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    /// Rows of 64 columns whose elements are off to a side at random, but where `cut` says that they are cut off.
    fn sides(rows: usize, seed: u64, cut: impl Fn(usize, usize) -> bool) -> f64 {
        let stream = Stream::new(seed, "sides");
        let mut all = Sides::new(64);
        for row in 0..rows {
            for run in 0..4 {
                let mut counts = [0; 2];
                for column in run * RUN..(run + 1) * RUN {
                    let side = (stream.bits((row * 64 + column) as u64) >> 63) as usize;
                    let side = if cut(row, column) { 0 } else { side };
                    counts[side] += 1;
                    all.columns[column][side] += 1;
                }
                all.runs.add(counts);
            }
        }
        all.ratio()
    }

    #[test]
    fn chance_is_never_taken_for_cutting_off() {
        for seed in 0..300 {
            for rows in [1, 2, 5, 40] {
                let ratio = sides(rows, seed, |_, _| false);
                assert!(ratio < 0.8, "{rows} rows, {seed}: {ratio}");
            }
        }
    }

    #[test]
    fn a_part_that_is_cut_off_shows_wherever_it_is() {
        for seed in 0..20 {
            assert!(sides(128, seed, |row, _| row % 16 < 7) > 1.0);
            assert!(sides(128, seed, |row, _| row % 3 == 0) > 1.0);
            assert!(sides(128, seed, |_, column| column % 3 == 0) > 1.0);
            assert!(sides(128, seed, |row, column| (row + column / 16) % 2 == 0) > 1.0);
        }
    }
}
