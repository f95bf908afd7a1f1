//! Warpsmith: a ratchet for kernels. It profiles a model, ranks its kernels by Amdahl's law, and for each of them judges what an agent
//! proposes; what is right and measurably faster becomes a commit, anything else is discarded.
//!
//! # A night over the library
//!
//! The command line parses, calls what is here, and prints. A program of one's own does the same in four steps; `examples/night.rs` is one,
//! ready to run.
//!
//! 1. A [`workspace::Workspace`] says where files are, a [`worker::Client`] is a process that judges on one device.
//! 2. [`profile::measure`] times the model's pass, [`engine::plan()`] makes the [`engine::RunState`] that a run starts from.
//! 3. [`history::History::begin`] opens the run's journal and branch; [`agent::Agent`] is who proposes, [`agent::Tuner`] one that needs nothing.
//! 4. [`engine::Run::go`] works through the targets until a rule of [`engine::stop`] ends the run. It prints nothing: an
//!    [`engine::Watcher`] hears what happens.
//!
//! What came of it is read from [`engine::RunState`] (`summary`, `report`), and, by any other program, from git: [`history::Archive`].
//!
//! # Where things are
//!
//! Rooms stand on floors and import only from those below; `docs/architecture.md` has the list and a paragraph on each. The rooms that
//! judge (compilers, memory, timing, the sandbox) are public for the project's own tests alone and not shown here: nothing outside of a
//! worker's process may depend on them.

pub mod agent;
#[doc(hidden)]
pub mod backend;
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod defence;
pub mod device;
pub mod engine;
pub mod evaluation;
#[doc(hidden)]
pub mod export;
#[doc(hidden)]
pub mod expr;
#[doc(hidden)]
pub mod forward;
#[doc(hidden)]
pub mod harness;
pub mod history;
pub mod kernel;
mod mcp;
pub mod model;
pub mod op;
pub mod profile;
pub mod report;
#[doc(hidden)]
pub mod rng;
#[doc(hidden)]
pub mod sandbox;
mod stats;
#[doc(hidden)]
pub mod torch;
pub mod verify;
mod watch;
pub mod worker;
pub mod workspace;
