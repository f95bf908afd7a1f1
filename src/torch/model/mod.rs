//! A whole PyTorch model taken apart: its post-grad graphs, as torch.compile makes them, cut into regions, with what each takes.
//!
//! A process of the user's Python reads `model.py`, runs and times it, and answers once ([`capture`]). It is another process than the
//! one that judges: what the user's model does there cannot reach a verdict. The Python that cuts graphs (`regions.py`) is part of every
//! exported package too, so that both find the same regions.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::wire::Described;
use super::{Problem, Python, TorchError};
use crate::kernel::Call;
use crate::op::{Bar, Dtype, OpSource};

/// Files of Python, one behind the other.
macro_rules! python {
    ($first:literal $(, $other:literal)*) => { concat!(include_str!($first) $(, "\n\n", include_str!($other))*) };
}

/// What finds regions, in Python; it needs torch alone.
pub const REGIONS: &str = python!("partition.py", "lowerings.py", "masks.py", "regions.py");

/// What reads a user's `model.py` and times calls.
pub const LOAD: &str = include_str!("load.py");

/// The program that takes a model apart; as a module it does nothing by itself.
pub const CAPTURE: &str = python!(
    "partition.py",
    "lowerings.py",
    "masks.py",
    "regions.py",
    "source.py",
    "load.py",
    "shipped.py",
    "attention.py",
    "parts.py",
    "trace.py",
    "capture.py"
);

/// The file that makes a directory a PyTorch model.
pub const MODEL_FILE: &str = "model.py";

/// So much is kept of what the process says before it dies.
const LAST_WORDS: usize = 400;

/// What is asked of a model.
#[derive(Debug, Clone, Serialize)]
pub struct Request<'a> {
    /// The model's directory, in full; Python finds modules there.
    pub folder: &'a Path,
    /// `package.module:function`, which gives the module and its inputs, or `transformers`, for a `config.json`; else `model.py` does, or `config.json`.
    pub load: Option<&'a str>,
    /// `cpu`, `cuda:0`.
    pub device: &'a str,
    /// PyTorch's name of the type that weights and floating inputs are made; their own where none is given.
    pub dtype: Option<&'static str>,
    /// Seed of weights and inputs.
    pub seed: u64,
    /// Seconds that the whole pass is timed in each way; each region takes half a second at most.
    pub seconds: f64,
    /// Threads that PyTorch may compute with at most.
    pub threads: usize,
    /// Whether `torch.compile(mode="max-autotune")` is timed as well, which may take minutes.
    pub max_autotune: bool,
}

/// A tensor where a region reads or writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Sizes.
    pub shape: Vec<i64>,
    /// Steps between elements of each dimension, in elements.
    pub stride: Vec<i64>,
    /// PyTorch's name of the type.
    pub dtype: String,
    /// PyTorch's name of the kind of device.
    pub device: String,
}

/// What a region is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// What Inductor writes kernels of its own for.
    Fusible,
    /// One call of a library: a product, a convolution, attention.
    Library,
    /// Such calls with the fusible region that takes all they give, and perhaps the call that takes all of that: both halves of an MLP.
    /// Its time is that of its parts.
    Joined,
}

impl Kind {
    /// For a table.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fusible => "fused",
            Self::Library => "library",
            Self::Joined => "joined",
        }
    }
}

/// A part of a model's graphs that computes something by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// Its name as an operation: a few of its operators, and the beginning of its key.
    pub name: String,
    /// What it is made of.
    pub kind: Kind,
    /// Hash of operators, wiring, constants, sizes, strides and types.
    pub key: String,
    /// The same by the strides that the graph has by itself, where Inductor gives tensors others: convolutions run channels-last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain: Option<String>,
    /// The same without sizes.
    pub family: String,
    /// Its operators in order, views left out.
    pub operators: Vec<String>,
    /// Paths of the modules that it comes from.
    pub modules: Vec<String>,
    /// Lines of the user's source that it comes from.
    pub lines: Vec<String>,
    /// Why no kernel can be judged for it; none where one can.
    pub why_not: Option<String>,
    /// Its text in PyTorch.
    pub source: Option<String>,
    /// The same as the judge needs to know it: tensors in row-major order.
    pub described: Option<Described>,
    /// What it reads, in order.
    pub inputs: Option<Vec<Place>>,
    /// What it gives, in order.
    pub outputs: Option<Vec<Place>>,
    /// PyTorch's name of its floating-point type.
    #[serde(default)]
    pub dtype: Option<String>,
    /// How it is computed by an operation that ships, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shipped: Option<Call>,
    /// Times that it is in a pass.
    pub calls: u32,
    /// Keys of what a joined one is made of, each as often as it is in it.
    #[serde(default)]
    pub parts: Vec<String>,
    /// Keys of joined regions of which each call of this one is inside one.
    #[serde(default)]
    pub within: Vec<String>,
    /// µs of one call, timed by itself as torch.compile runs it; none where that failed, and for a joined one.
    pub us: Option<f64>,
    /// Kernels and copies of one call, where the device tells.
    #[serde(default)]
    pub kernels: Option<f64>,
    /// µs that its kernels run in one call, each by its own time; none where the device does not tell.
    #[serde(default)]
    pub busy_us: Option<f64>,
    /// Its kernels in the pass, all calls together, the longest first; none where nobody can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran: Option<Vec<Ran>>,
}

/// A kernel that the device ran in a pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ran {
    /// Its name, as the device's trace has it.
    pub name: String,
    /// Times that a pass runs it.
    pub count: u32,
    /// µs of all of these.
    pub us: f64,
}

impl Region {
    /// It as an operation.
    ///
    /// # Errors
    /// Why no kernel can be judged for it, in a sentence.
    pub fn operation(&self, bar: Bar) -> Result<OpSource, String> {
        if let Some(why) = &self.why_not {
            return Err(why.clone());
        }
        let (Some(text), Some(described)) = (&self.source, &self.described) else {
            return Err("nothing is known of its text".into());
        };
        let problem = Problem::region(&format!("{}.py", self.name), text, described.clone(), bar);
        problem.map(|problem| problem.source).map_err(|error| match error {
            // It stands in a table of what is no target, behind the region's name.
            TorchError::Target(why) => why.strip_prefix(&format!("{}.py: ", self.name)).unwrap_or(&why).to_owned(),
            error => error.to_string(),
        })
    }

    /// Why no kernel can be judged for it, whatever there is to beat.
    fn refusal(&self) -> Option<String> {
        match (&self.why_not, self.element()) {
            (Some(why), _) => Some(why.clone()),
            (None, Some(_)) => self.operation(Bar::Compiled).err(),
            (None, None) => {
                let kind = self.dtype.as_deref().unwrap_or("no floating-point type");
                Some(format!("its tensors are of {kind}; kernels are for float32, float16 and bfloat16"))
            }
        }
    }

    /// The type in which a kernel is timed.
    #[must_use]
    pub fn element(&self) -> Option<Dtype> {
        match self.dtype.as_deref() {
            Some("float32") => Some(Dtype::F32),
            Some("float16") => Some(Dtype::F16),
            Some("bfloat16") => Some(Dtype::Bf16),
            _ => None,
        }
    }
}

/// PyTorch's name of a type.
#[must_use]
pub const fn torch_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
        Dtype::F32 => "float32",
    }
}

/// A model as torch.compile runs it. Times are µs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Captured {
    /// A whole pass, eagerly.
    pub eager_us: f64,
    /// The same as a CUDA graph, where it can be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eager_graph_us: Option<f64>,
    /// A whole pass, by torch.compile in its default mode.
    pub compiled_us: f64,
    /// The same in max-autotune, with CUDA graphs as that has them by itself, where that was asked for and works.
    pub autotune_us: Option<f64>,
    /// The compiled pass as a CUDA graph, where it can be one: what the device takes, without what starting kernels costs.
    #[serde(default)]
    pub graph_us: Option<f64>,
    /// The compiled pass with those patterns of Inductor's that everything else here is without, where it has any: as a CUDA graph, where it can be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowerings_us: Option<f64>,
    /// Kernels and copies of that graph.
    #[serde(default)]
    pub kernels: Option<f64>,
    /// What these run, each by its own time, without what lies between them.
    #[serde(default)]
    pub busy_us: Option<f64>,
    /// Kernels of that graph that are of no region, where it is known of which each one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<Vec<Ran>>,
    /// What calling something compiled costs by itself; it has been taken off fused regions that no CUDA graph replayed.
    pub call_us: f64,
    /// Seconds to capture the graphs.
    pub capture_s: f64,
    /// Seconds of the first compiled pass.
    pub compile_s: f64,
    /// Passes that were timed, compiled.
    pub rounds: usize,
    /// Graphs that dynamo makes of it.
    pub graphs: usize,
    /// Elements of all parameters.
    pub parameters: u64,
    /// PyTorch's name of the type of most of them.
    pub dtype: String,
    /// What the model takes.
    pub inputs: Vec<Place>,
    /// What it gives.
    pub outputs: Vec<Place>,
    /// PyTorch's version.
    pub torch: String,
    /// Python's version.
    pub python: String,
    /// Threads that PyTorch computed with.
    pub threads: usize,
    /// The GPU's name; empty on a processor.
    #[serde(default)]
    pub device_name: String,
    /// What a reader should know, a sentence each.
    pub notes: Vec<String>,
    /// Its regions, each kind of computation at one set of sizes once.
    pub regions: Vec<Region>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Refused { error: String },
    Captured(Box<Captured>),
}

/// Whether a directory holds a PyTorch model.
#[must_use]
pub fn is_model(folder: &Path) -> bool {
    folder.join(MODEL_FILE).is_file()
}

/// Takes a model apart, in a process of `python`; `tell` hears what it is doing.
///
/// # Errors
/// No Python, no PyTorch in it, or what is wrong with the model, with its line.
pub fn capture(python: &Python, request: &Request<'_>, tell: &mut dyn FnMut(&str)) -> Result<Captured, TorchError> {
    let text = serde_json::to_value(request).map_err(|error| TorchError::Talk(error.to_string()))?;
    let answer = ask(python, CAPTURE, text, tell)?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Captured(mut captured)) => {
            for region in &mut captured.regions {
                region.why_not = region.refusal();
            }
            Ok(*captured)
        }
        Ok(Answer::Refused { error }) => Err(TorchError::Code(error)),
        Err(error) => Err(TorchError::Talk(error.to_string())),
    }
}

/// Runs a program in a process of `python` that reads `request` from its standard input and writes its answer to the file that the
/// request names as `answer`. Lines that it says to standard error behind an `@` are told.
///
/// # Errors
/// No Python; or the process ended without an answer, with its last words.
pub fn ask(
    python: &Python,
    program: &str,
    request: serde_json::Value,
    tell: &mut dyn FnMut(&str),
) -> Result<String, TorchError> {
    ask_about(python, program, request, About { file: MODEL_FILE, doing: "running the model", limit: None }, tell)
}

/// What a process is asked about, for messages, and how long it may take.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    /// The user's file.
    pub file: &'a str,
    /// What is done with it.
    pub doing: &'static str,
    /// What it may take; as long as it takes where nothing is said.
    pub limit: Option<Duration>,
}

/// The same, about anything.
///
/// # Errors
/// The same, and that it did not end in time.
pub fn ask_about(
    python: &Python,
    program: &str,
    mut request: serde_json::Value,
    about: About<'_>,
    tell: &mut dyn FnMut(&str),
) -> Result<String, TorchError> {
    let talk = |error: std::io::Error| TorchError::Talk(error.to_string());
    let folder = tempfile::tempdir().map_err(talk)?;
    let (code, answer) = (folder.path().join("program.py"), folder.path().join("answer.json"));
    std::fs::write(&code, program).map_err(talk)?;
    request["answer"] = serde_json::Value::from(answer.to_string_lossy().into_owned());
    let mut command = Command::new(python.program());
    command.arg("-u").arg(&code).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    if std::env::var_os("ONEDNN_MAX_CPU_ISA").is_none() {
        // On some virtual machines the processor lists AMX, and its instructions are illegal.
        command.env("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16");
    }
    let name = || python.program().display().to_string();
    let mut child = command
        .spawn()
        .map_err(|error| TorchError::Start { python: name(), why: format!("cannot be started: {error}") })?;
    if let Some(mut input) = child.stdin.take() {
        // One that has ended already says why by its last words.
        let _ = input.write_all(request.to_string().as_bytes());
    }
    let mut last = String::new();
    let errors = child.stderr.take();
    let late = ended_within(about.limit, &child, || {
        for line in errors.into_iter().flat_map(|errors| BufReader::new(errors).lines()).map_while(Result::ok) {
            match line.strip_prefix('@') {
                Some(doing) => tell(doing),
                None if line.trim().is_empty() => {}
                None => last = line.trim().chars().take(LAST_WORDS).collect(),
            }
        }
    });
    let status = child.wait().map_err(talk)?;
    if let (true, Some(limit)) = (late, about.limit) {
        return Err(TorchError::Time { file: about.file.into(), doing: about.doing, seconds: limit.as_secs() });
    }
    match std::fs::read_to_string(&answer) {
        Ok(text) => Ok(text),
        Err(_) if last.contains("No module named 'torch'") => {
            Err(TorchError::NoTorch(format!("{} has no PyTorch", name())))
        }
        Err(_) => {
            let said = if last.is_empty() { String::new() } else { format!("; it said: {last}") };
            Err(TorchError::Died { file: about.file.into(), doing: about.doing, how: format!("{status}{said}") })
        }
    }
}

/// Does `work`, which goes on until a process has ended, and ends the process where that takes longer than `limit`; whether it did.
fn ended_within(limit: Option<Duration>, child: &Child, work: impl FnOnce()) -> bool {
    let Some(limit) = limit else {
        work();
        return false;
    };
    let (done, waited) = channel::<()>();
    // Nobody has waited for it yet, so that the number is still its own.
    let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let late = matches!(waited.recv_timeout(limit), Err(RecvTimeoutError::Timeout));
            if let (true, Some(process)) = (late, process) {
                let _ = kill_process(process, Signal::KILL);
            }
            late
        });
        work();
        drop(done);
        watch.join().unwrap_or(false)
    })
}

#[cfg(test)]
mod tests;
