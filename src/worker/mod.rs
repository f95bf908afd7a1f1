//! The evaluation process: `warpsmith worker`, spoken to in JSON lines.

mod client;
mod elsewhere;
mod identity;
mod judging;
pub mod protocol;
pub mod server;

pub use client::{Client, WorkerError};
pub use elsewhere::Workers;
pub use identity::{judge_hash, judge_hash_of};
pub use judging::Judging;
