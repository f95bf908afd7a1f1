//! Who knows what is right.

use super::{CaseMemory, Device, Host};
use crate::evaluation::ErrorStats;
use crate::op::{Operation, Sample};

/// The oracles of operations that have a header, which compare where the memory is.
pub trait Oracles: Device {
    /// An operation's oracle, compiled.
    type Oracle;

    /// Compiles the oracle of `op`.
    ///
    /// # Errors
    /// A sentence: the operation's files or the machine are at fault.
    fn oracle(&self, op: &Operation) -> Result<Self::Oracle, String>;

    /// Evaluates the oracle on the inputs of `copy` and compares with what was `taken` of that copy's outputs. `seed` chooses
    /// the elements of trusted products that are checked against plain sums.
    ///
    /// # Errors
    /// A sentence: the machine or the operation's files are at fault.
    fn compare(
        &self,
        oracle: &Self::Oracle,
        memory: &CaseMemory,
        arena: &mut Self::Arena,
        copy: usize,
        taken: &<Self::Host as Host>::Taken,
        seed: u64,
    ) -> Result<ErrorStats, String>;

    /// Compares the elements of `sample` as they stand in the outputs of `copy` now with the oracle, which is evaluated for
    /// these alone on the inputs of `copy`. Errors of elements only: an rms needs all of them.
    ///
    /// # Errors
    /// As [`Oracles::compare`].
    fn compare_some(
        &self,
        oracle: &Self::Oracle,
        memory: &CaseMemory,
        arena: &mut Self::Arena,
        copy: usize,
        sample: &Sample,
    ) -> Result<ErrorStats, String>;
}
