//! Counts of what became of mutants, by file.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::equivalent::reason;
use crate::generate::Mutant;
use crate::judged::Fate;
use crate::table::Kind;

/// How many mutants there are of a file and a kind, judged or not.
pub type Population = BTreeMap<(String, Kind), usize>;

/// What became of mutants: each counts for as many as were not drawn of its file and kind, and itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Drawn.
    pub drawn: usize,
    /// Without a verdict.
    pub not_judged: usize,
    /// Taken, and not known to be none.
    pub alive: usize,
    found: f64,
    taken: f64,
    equivalent: f64,
}

impl Tally {
    fn add(&mut self, mutant: &Mutant, fate: &Fate, weight: f64) {
        self.drawn += 1;
        match fate {
            Fate::NoKernel | Fate::SameCode => {}
            Fate::Found { .. } => self.found += weight,
            Fate::Alive if reason(mutant).is_some() => self.equivalent += weight,
            Fate::Alive => {
                self.alive += 1;
                self.taken += weight;
            }
            Fate::NotJudged(_) => self.not_judged += 1,
        }
    }

    fn join(self, other: Self) -> Self {
        Self {
            drawn: self.drawn + other.drawn,
            not_judged: self.not_judged + other.not_judged,
            alive: self.alive + other.alive,
            found: self.found + other.found,
            taken: self.taken + other.taken,
            equivalent: self.equivalent + other.equivalent,
        }
    }

    /// The share of those that are mistakes which the judge found.
    pub fn kill_rate(self) -> f64 {
        self.found / (self.found + self.taken)
    }

    /// The share of those that are other code which are none.
    pub fn equivalent(self) -> f64 {
        self.equivalent / (self.found + self.taken + self.equivalent)
    }

    fn row(self) -> String {
        let (found, none) = (100.0 * self.kill_rate(), 100.0 * self.equivalent());
        format!("{:>6} {:>6} {:>10} {none:>11.1} % {found:>8.1} %", self.drawn, self.alive, self.not_judged)
    }
}

/// The table by file, and the sum of its rows; `population` is what they were drawn from.
pub fn table(fates: &[(Mutant, Fate)], population: &Population) -> (String, Tally) {
    let mut drawn = Population::new();
    for (mutant, _) in fates {
        *drawn.entry((mutant.file.clone(), mutant.kind)).or_default() += 1;
    }
    let mut by_file: BTreeMap<&str, Tally> = BTreeMap::new();
    for (mutant, fate) in fates {
        let stratum = (mutant.file.clone(), mutant.kind);
        let weight = population[&stratum] as f64 / drawn[&stratum] as f64;
        by_file.entry(&mutant.file).or_default().add(mutant, fate, weight);
    }
    let mut text = format!("{:<34}  drawn  taken not judged  equivalent     found\n", "");
    for (file, tally) in &by_file {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{file:<34} {}", tally.row());
    }
    let all = by_file.into_values().fold(Tally::default(), Tally::join);
    let _ = writeln!(text, "{:<34} {}", "all", all.row());
    (text, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_counts_for_those_of_its_kind_that_were_not_drawn() {
        let mutant = |kind| {
            let text = String::new;
            Mutant { file: "x.c".into(), kind, line: 1, before: text(), after: text(), text: text() }
        };
        let found = Fate::Found { status: "reject", stage: warpsmith::evaluation::Stage::Smoke, why: String::new() };
        let fates = [(mutant(Kind::Bound), found), (mutant(Kind::Barrier), Fate::Alive)];
        let population =
            [(("x.c".to_owned(), Kind::Bound), 97), (("x.c".to_owned(), Kind::Barrier), 3)].into_iter().collect();
        let (_, tally) = table(&fates, &population);
        assert_eq!((tally.drawn, tally.alive), (2, 1));
        assert!((tally.kill_rate() - 0.97).abs() < 1e-9, "{tally:?}");
    }
}
