//! The program as a user meets it: run in temporary repositories, judged by what a user can look at.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod agents;
mod apply;
mod begun_empty;
mod bench;
mod bundles;
mod consistency;
mod crashes;
mod diagnose;
mod documents;
mod elsewhere;
mod families;
mod garbage;
mod init;
mod kernel_alone;
mod kills;
mod languages;
mod last_word;
mod looking;
mod made;
mod mcp;
mod notify;
mod places;
mod prompt;
mod prune;
mod refusals;
mod report;
mod run;
mod signals;
mod stops;
mod watch;
mod workers;
