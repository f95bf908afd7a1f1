//! The evaluation process: `warpsmith worker`, spoken to in JSON lines.

mod client;
pub mod protocol;
pub mod server;

pub use client::{Client, WorkerError};
