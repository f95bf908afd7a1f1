//! A run's history: journal, branch, ledger, and recovery from a kill at any instant.
//!
//! A run uses no index, no checkout, and never the user's HEAD. `refs/warpsmith/<run>/journal` is its journal,
//! `refs/heads/warpsmith/<run>` the branch that a user merges, `results.tsv` a projection of the journals.

mod apply;
mod archive;
mod bundle;
mod error;
mod failpoint;
mod journal;
mod ledger;
mod names;
mod pack;
mod pending;
mod place;
mod project;
mod prune;
mod record;
mod recover;
mod refs;
mod snapshot;
mod store;
#[cfg(test)]
mod tests;
mod tree;

pub use apply::{Applied, ApplyError, Winner};
pub use archive::{Archive, Entries, Order};
pub use bundle::unbundle;
pub use error::HistoryError;
pub use failpoint::{APPLY_STEPS as APPLY_FAILPOINTS, STEPS as FAILPOINTS};
pub use journal::JournalEntry;
pub use ledger::{Row, RowError, header as ledger_header, parse_ledger};
pub use names::{is_run_id, next_run_id};
pub use pending::Pending;
pub use prune::{BranchFate, Prune, Pruned, Pruner};
pub use record::{Entry, History, Recorded};
