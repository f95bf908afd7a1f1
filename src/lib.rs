//! Warpsmith: a ratchet for kernels. See `docs/architecture.md` for the floors these rooms stand on.

pub mod agent;
pub mod backend;
pub mod cli;
pub mod defence;
pub mod device;
pub mod engine;
pub mod evaluation;
pub mod expr;
pub mod forward;
pub mod harness;
pub mod history;
pub mod kernel;
pub mod mcp;
pub mod model;
pub mod op;
pub mod profile;
pub mod report;
pub mod rng;
pub mod sandbox;
pub mod stats;
pub mod torch;
pub mod verify;
pub mod watch;
pub mod worker;
pub mod workspace;
