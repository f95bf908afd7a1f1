//! A run that a coding agent drives as tools, over the Model Context Protocol.
//!
//! The client hands in texts; the run judges them, and keeps or discards. What a client sends is compared with names
//! that are known here, judged, or written down as words: it reaches no path, no shell and no decision.

mod answers;
mod program;
mod server;
mod work;

pub use server::{Job, Server, View};
pub use work::{Feed, work};
