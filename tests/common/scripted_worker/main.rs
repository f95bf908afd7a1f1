//! A worker for tests: it speaks the worker's protocol, and answers from a script instead of compiling and timing anything.
//!
//! `scripted_worker PROGRAM SCRIPT ...` stands for the judge of `PROGRAM`, the executable that starts it. `SCRIPT` is a TOML
//! file ([`script::Script`]) that says which kernel text is how fast, wrong, or the worker's death. What a worker is told on its
//! command line beyond that (`--backend`, `--device`) changes nothing. There is no clock and no noise: the same question has the same
//! answer. What is kept is decided by the rule that the judge has, from samples as the script has them.
#![allow(clippy::print_stderr)]

mod judge;
mod model;
mod script;

use std::path::Path;

use warpsmith::worker::{judge_hash_of, server};

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(program), Some(script)) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("scripted_worker PROGRAM SCRIPT");
    };
    let script = script::Script::read(Path::new(&script))?;
    let hash = judge_hash_of(Path::new(&program))?;
    server::serve(hash, false, || Ok(Box::new(judge::ScriptedJudge::new(script))))
}
