//! The judge's own process of PyTorch: what is asked of it, and the memory that it shares with those it judges.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use serde::Deserialize;
use serde_json::{Value, json};

use super::confine::trusted;
use super::link::{Link, Silence};
use super::verdict::{Measure, Output};
use crate::op::Dtype;

/// What it runs. `describe.py` finds structure in what a file draws, `measure.py` says how far results are off.
const SOURCE: &str = concat!(
    include_str!("../describe.py"),
    include_str!("../fused.py"),
    include_str!("../measure.py"),
    include_str!("channel.py"),
    "
",
    include_str!("grader.py")
);

/// For anything in double precision.
const PATIENCE: Duration = Duration::from_secs(300);

/// What it says of itself.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Hello {
    /// PyTorch's version.
    pub torch: String,
    /// Where Python, PyTorch and what they need lie.
    pub paths: Vec<PathBuf>,
    /// The GPU's name, or `cpu`.
    pub hardware: String,
}

/// A tensor in a slot.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Place {
    pub dtype: String,
    pub shape: Vec<usize>,
}

/// A problem as the judge sees it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Layout {
    /// Inputs, outputs and other arguments, as they are sent on.
    inputs: Value,
    outputs: Value,
    pattern: Value,
    /// Of a slot.
    pub bytes: usize,
    /// Hostile inputs that mean something here.
    pub kinds: Vec<String>,
    /// Elements of the largest input.
    terms: usize,
    /// Whether it has products of matrices or convolutions.
    products: bool,
}

impl Layout {
    /// Its outputs, with what their bounds depend on.
    pub(super) fn results(&self) -> Vec<Output> {
        let places: Vec<Place> = serde_json::from_value(self.outputs.clone()).unwrap_or_default();
        let several = places.len() > 1;
        let numbered = places.iter().enumerate();
        numbered.map(|(n, it)| Output::new(it, (self.terms, self.products), several.then_some(n))).collect()
    }

    /// For the measuring: rows and what there is to know of each type.
    fn forms(&self) -> Value {
        let of = |output: &Output| {
            let dtype = output.dtype.unwrap_or(Dtype::F32);
            json!({"row": output.row, "u": dtype.roundoff(), "largest": dtype.largest(), "underflow": dtype.underflow()})
        };
        self.results().iter().map(of).collect()
    }

    /// What a process is told that gets `memory`.
    pub(super) fn told(&self, memory: &Memory) -> Value {
        json!({
            "ask": "arena", "inputs": self.inputs, "outputs": self.outputs, "pattern": self.pattern,
            "bytes": memory.bytes, "handle": memory.handle,
        })
    }
}

/// Memory that the judge shares with one other process.
#[derive(Debug)]
pub(super) struct Memory {
    /// Which, to the judge.
    pub name: &'static str,
    pub bytes: usize,
    /// On a processor.
    file: Option<File>,
    /// On a GPU, an IPC handle.
    handle: String,
}

impl Memory {
    pub(super) fn files(&self) -> Vec<BorrowedFd<'_>> {
        self.file.iter().map(AsFd::as_fd).collect()
    }
}

/// A result against what is right.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Compared {
    pub made: Measure,
    /// PyTorch's own.
    pub eager: Measure,
    /// NaN of inputs that hold none.
    pub undefined: bool,
}

/// What was found of a call.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Checked {
    /// Inputs that are no longer what they were.
    pub changed: Vec<usize>,
    pub outputs: Vec<Compared>,
}

/// PyTorch's own error on an input.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Yardstick {
    pub eager: Measure,
    pub split: Option<Measure>,
    pub undefined: bool,
}

/// An answer that has nothing to do with the inputs.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Guess {
    pub what: String,
    pub outputs: Vec<Compared>,
}

/// The process.
#[derive(Debug)]
pub(super) struct Judge {
    link: Link,
    pub hello: Hello,
    on_gpu: bool,
}

impl Judge {
    /// Starts it.
    pub(super) fn start(python: &Path, setup: &Value) -> Result<Self, Silence> {
        let mut command = trusted(python, SOURCE);
        // Its threads must not go on waiting busily while a sample is timed.
        command.env("OMP_WAIT_POLICY", "PASSIVE");
        let mut link = Link::start(command, setup)?;
        let hello = link.hello()?;
        Ok(Self { link, hello, on_gpu: setup["device"] != "cpu" })
    }

    pub(super) fn id(&self) -> u32 {
        self.link.id()
    }

    /// Whether tensors are on a GPU.
    pub(super) const fn on_gpu(&self) -> bool {
        self.on_gpu
    }

    fn ask<T: serde::de::DeserializeOwned>(&mut self, question: &Value) -> Result<T, Silence> {
        self.link.ask(question, &[], PATIENCE)
    }

    /// Takes up a problem; what was shared for the last one is gone.
    pub(super) fn problem(&mut self, file: &str, source: &str, seed: u64) -> Result<Layout, Silence> {
        let _: Value = self.ask(&json!({"ask": "forget"}))?;
        self.ask(&json!({"ask": "problem", "file": file, "source": source, "seed": seed}))
    }

    /// Makes the problem's model anew, with other weights.
    pub(super) fn weights(&mut self, seed: u64) -> Result<(), Silence> {
        self.ask::<Value>(&json!({"ask": "weights", "seed": seed})).map(|_| ())
    }

    /// Memory for so many slots.
    pub(super) fn memory(&mut self, name: &'static str, layout: &Layout, slots: usize) -> Result<Memory, Silence> {
        let bytes = layout.bytes.max(1) * slots;
        let question = json!({"ask": "arena", "arena": name, "bytes": bytes});
        if self.on_gpu {
            let answer: Value = self.ask(&question)?;
            let handle = answer["handle"].as_str().unwrap_or_default().to_owned();
            return Ok(Memory { name, bytes, file: None, handle });
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("warpsmith-slots", flags).map_err(std::io::Error::from)?);
        file.set_len(bytes as u64)?;
        // What is cut short would end the judge when it looks there.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(std::io::Error::from)?;
        let _: Value = self.link.ask(&question, &[file.as_fd()], PATIENCE)?;
        Ok(Memory { name, bytes, file: Some(file), handle: String::new() })
    }

    /// Fresh inputs of a kind in a slot; without a seed the last ones again.
    pub(super) fn fill(&mut self, memory: &Memory, slot: usize, kind: &str, seed: Option<u64>) -> Result<(), Silence> {
        let question = json!({"ask": "fill", "arena": memory.name, "slot": slot, "kind": kind, "seed": seed});
        self.ask::<Value>(&question).map(|_| ())
    }

    /// Copies the outputs out.
    pub(super) fn take(&mut self, memory: &Memory, slot: usize) -> Result<(), Silence> {
        self.ask::<Value>(&json!({"ask": "take", "arena": memory.name, "slot": slot})).map(|_| ())
    }

    /// Compares what was taken.
    pub(super) fn check(&mut self, layout: &Layout, memory: &Memory, slot: usize) -> Result<Checked, Silence> {
        self.ask(&json!({"ask": "check", "arena": memory.name, "slot": slot, "forms": layout.forms()}))
    }

    /// PyTorch's own error, for each seed and output.
    pub(super) fn yard(&mut self, layout: &Layout, kind: &str, seeds: &[u64]) -> Result<Vec<Vec<Yardstick>>, Silence> {
        #[derive(Deserialize)]
        struct Answer {
            draws: Vec<Vec<Yardstick>>,
        }
        let question = json!({"ask": "yard", "kind": kind, "seeds": seeds, "forms": layout.forms()});
        self.ask::<Answer>(&question).map(|answer| answer.draws)
    }

    /// Answers that should not pass.
    pub(super) fn guesses(&mut self, layout: &Layout, seeds: [u64; 2]) -> Result<Vec<Guess>, Silence> {
        #[derive(Deserialize)]
        struct Answer {
            guesses: Vec<Guess>,
        }
        let question = json!({"ask": "guesses", "seeds": seeds, "forms": layout.forms()});
        self.ask::<Answer>(&question).map(|answer| answer.guesses)
    }

    /// The least of a few [`Judge::idle`]: what is usual while nobody else works.
    pub(super) fn quiet(&mut self) -> Result<f64, Silence> {
        (0..4).try_fold(f64::MAX, |least, _| Ok(least.min(self.idle()?)))
    }

    /// Milliseconds of work on the device that is always the same; zero without a GPU.
    pub(super) fn idle(&mut self) -> Result<f64, Silence> {
        self.ask::<Value>(&json!({"ask": "idle"})).map(|answer| answer["ms"].as_f64().unwrap_or(f64::MAX))
    }
}
