//! Mutation testing of the judge: starters with one mistake each, made by rules (`table`), must not be taken.
//!
//! By default one of each starter in C, in the full suite (`--ignored`) some more; with `WARPSMITH_ALL_MUTANTS=1` that judges all of them. Where a GPU opens, starters in CUDA are
//! judged when `WARPSMITH_CUDA_MUTANTS` says how many of each. `docs/mutation-testing.md` has the results.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod code;
mod equivalent;
mod generate;
mod judged;
mod pattern;
mod same;
#[path = "../common/slot.rs"]
mod slot;
#[path = "../common/small.rs"]
mod small;
mod starters;
mod table;
mod tally;
