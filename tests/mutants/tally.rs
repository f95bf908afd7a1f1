//! Counts of what became of mutants, by file.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::equivalent::reason;
use crate::generate::Mutant;
use crate::judged::Fate;

/// What became of the mutants of a file.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub no_kernel: usize,
    pub same_code: usize,
    pub found: usize,
    pub equivalent: usize,
    pub alive: usize,
    pub not_judged: usize,
}

impl Tally {
    fn add(&mut self, mutant: &Mutant, fate: &Fate) {
        let place = match fate {
            Fate::NoKernel => &mut self.no_kernel,
            Fate::SameCode => &mut self.same_code,
            Fate::Found { .. } => &mut self.found,
            Fate::Alive if reason(mutant).is_some() => &mut self.equivalent,
            Fate::Alive => &mut self.alive,
            Fate::NotJudged(_) => &mut self.not_judged,
        };
        *place += 1;
    }

    fn join(self, other: Self) -> Self {
        Self {
            no_kernel: self.no_kernel + other.no_kernel,
            same_code: self.same_code + other.same_code,
            found: self.found + other.found,
            equivalent: self.equivalent + other.equivalent,
            alive: self.alive + other.alive,
            not_judged: self.not_judged + other.not_judged,
        }
    }

    /// Mutants that are other code than their starter.
    pub const fn judged(self) -> usize {
        self.found + self.equivalent + self.alive
    }

    /// The share of those that are mistakes which the judge found.
    pub fn kill_rate(self) -> f64 {
        self.found as f64 / (self.found + self.alive).max(1) as f64
    }

    fn row(self) -> String {
        let Self { no_kernel, same_code, found, equivalent, alive, not_judged } = self;
        let rate = 100.0 * self.kill_rate();
        format!("{no_kernel:>9} {same_code:>9} {found:>6} {equivalent:>10} {alive:>5} {not_judged:>10} {rate:>8.1} %")
    }
}

/// The table by file, and the sum of its rows.
pub fn table(fates: &[(Mutant, Fate)]) -> (String, Tally) {
    let mut by_file: BTreeMap<&str, Tally> = BTreeMap::new();
    for (mutant, fate) in fates {
        by_file.entry(&mutant.file).or_default().add(mutant, fate);
    }
    let columns = "no kernel same code  found equivalent alive not judged kill rate";
    let mut text = format!("{:<34} {columns}\n", "");
    for (file, tally) in &by_file {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{file:<34} {}", tally.row());
    }
    let all = by_file.into_values().fold(Tally::default(), Tally::join);
    let _ = writeln!(text, "{:<34} {}", "all", all.row());
    (text, all)
}
