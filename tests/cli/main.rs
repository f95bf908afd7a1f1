//! The program as a user meets it: run in temporary repositories, judged by what a user can look at.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod consistency;
mod crashes;
mod families;
mod documents;
mod garbage;
mod kills;
mod looking;
mod places;
mod refusals;
mod run;
mod signals;
mod stops;
