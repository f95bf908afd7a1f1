//! From a Triton file's text to cubins, one for each launch, through the user's Python.
//!
//! Python only compiles: the text is read before anything of it runs (`reader.py`), by a process that sees no GPU, no network and no
//! files but Python's own; what comes out goes through the same readers as NVRTC's. Where there is no Triton, one sentence says so,
//! and nothing else needs it.

mod find;
mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

pub use find::Found;
use process::Pool;
pub use process::READER;

use super::cache::{Cache, JitRecord, Record};
use super::messages::{clean, read};
use super::process::ProcessError;
use super::{cubin, ptx};
use crate::backend::BuildError;
use crate::defence::readers;
use crate::kernel::{JitArgument, JitLaunch, KernelFile, Resolution, TritonOptions, triton_options};
use crate::op::{Operation, Stored};
use crate::workspace::python;

/// Raised whenever a check changes, so that nothing is taken that an older program let pass.
const GENERATION: u32 = 2;

/// Pointers that Triton appends to a kernel's parameters: memory for itself, and for its profiler.
const MOST_HIDDEN: usize = 2;

/// What every scratch buffer is aligned to, bytes.
const ALIGNMENT: u64 = 256;

/// What one block may ask for in device memory, bytes: some hundred tensor descriptors.
const MOST_SCRATCH: u64 = 16 << 10;

/// A launch to compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JitUnit {
    /// The file's name in messages.
    pub file: String,
    /// The text without its front matter, every line where it was.
    pub source: String,
    pub capability: u32,
    pub jit: JitLaunch,
    pub arguments: Vec<JitArgument>,
    pub options: TritonOptions,
}

/// Code of one launch.
#[derive(Clone, PartialEq, Eq)]
pub struct JitCode {
    /// The cubin.
    pub cubin: Arc<[u8]>,
    /// The kernel's name in it.
    pub lowered: String,
    /// Bytes of dynamic shared memory that it takes.
    pub shared: u32,
    /// Warps of a block, those included that the compiler has added.
    pub num_warps: u32,
    /// Parameters behind those of the plan: the address of its memory where it asks for some, all others NULL.
    pub hidden: usize,
    /// Bytes of device memory that each of its blocks asks for, as tensor descriptors made in a kernel do.
    pub scratch: usize,
}

impl std::fmt::Debug for JitCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cubin, lowered, shared, num_warps, hidden, scratch } = self;
        let mut text = f.debug_struct("JitCode");
        text.field("cubin", &cubin.len()).field("lowered", lowered).field("shared", shared);
        text.field("num_warps", num_warps).field("hidden", hidden).field("scratch", scratch).finish()
    }
}

/// What Python is asked.
#[derive(Debug, Serialize)]
pub(super) struct Question<'a> {
    file: &'a str,
    kernel: &'a str,
    capability: u32,
    constexprs: &'a BTreeMap<String, i64>,
    arguments: Vec<(&'static str, bool)>,
    options: BTreeMap<&'static str, i64>,
}

/// What it answers; the bytes are the cubin, then the PTX.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Answer {
    /// Why there is no code.
    #[serde(default)]
    refused: Option<String>,
    #[serde(default)]
    log: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    shared: u32,
    #[serde(default)]
    num_warps: u32,
    #[serde(default)]
    global_scratch: u64,
    #[serde(default)]
    global_scratch_align: u64,
    #[serde(default)]
    profile_scratch: u64,
    #[serde(default)]
    cubin: usize,
}

/// Triton, looked for when the first file comes that is written in it.
#[derive(Debug)]
pub(super) struct Triton {
    python: PathBuf,
    found: Mutex<Option<Result<Found, String>>>,
    pool: Pool,
    /// Those for which the compiler took too long, by their keys, until they are asked about once more: where several files are compiled
    /// together, the first that fails ends them all, and each is then asked for by itself.
    endless: Mutex<BTreeSet<String>>,
}

impl Triton {
    /// That of the Python that is named, or of the user's.
    pub(super) fn new(named: Option<PathBuf>) -> Self {
        Self {
            python: python(named.as_deref()),
            found: Mutex::new(None),
            pool: Pool::default(),
            endless: Mutex::default(),
        }
    }

    fn found(&self) -> Result<Found, BuildError> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.get_or_insert_with(|| Found::of(&self.python)).clone().map_err(|why| {
            BuildError::Machine(format!(
                "a kernel in Triton needs a Python with triton, and {why}; --python or $WARPSMITH_PYTHON names another"
            ))
        })
    }

    /// Compiles one launch, or takes what was made of it before.
    pub(super) fn code(
        &self,
        unit: &JitUnit,
        cache: &Cache,
        cancelled: &AtomicBool,
    ) -> Result<(Record, JitCode), BuildError> {
        let found = self.found()?;
        let question = unit.question();
        let key = key(unit, &question, &found);
        if let Some((record, cubin)) = cache.get(&key)
            && let Some(jit) = record.jit.clone()
        {
            return Ok((record, code(jit, cubin)));
        }
        let endless = || self.endless.lock().unwrap_or_else(PoisonError::into_inner);
        if endless().remove(&key) {
            return Err(BuildError::Kernel(ProcessError::Time.to_string()));
        }
        let answered = self.pool.ask(&found, &question, &unit.source, cancelled);
        if matches!(answered, Err(ProcessError::Time)) {
            endless().insert(key.clone());
        }
        let (answer, bytes) = answered.map_err(|error| match error {
            ProcessError::Cancelled => BuildError::Cancelled,
            ProcessError::Start(_) => BuildError::Machine(error.to_string()),
            ProcessError::Time | ProcessError::Died(_) => BuildError::Kernel(error.to_string()),
        })?;
        let (record, jit) = accept(unit, &found, &answer, &bytes)?;
        let cubin = bytes[..answer.cubin].to_vec();
        // Without a cache everything works, only slower.
        let _ = cache.put(&key, &record, &cubin);
        Ok((record, code(jit, cubin)))
    }
}

impl JitUnit {
    /// The launches of a file at one resolution, as they are compiled.
    pub(super) fn of(
        op: &Operation,
        kernel: &KernelFile,
        resolution: &Resolution,
        capability: u32,
    ) -> Result<Vec<Self>, BuildError> {
        let refused = |error: crate::kernel::KernelError| BuildError::Kernel(error.to_string());
        let options = triton_options(&kernel.front.options).map_err(refused)?;
        let code = kernel.code();
        let before = kernel.text[..kernel.text.len() - code.len()].matches('\n').count();
        let source = "\n".repeat(before) + code;
        let unit = |jit: &JitLaunch| {
            Ok(Self {
                file: format!("{}.py", op.name),
                source: source.clone(),
                capability,
                jit: jit.clone(),
                arguments: kernel.jit_arguments(op, resolution, jit).map_err(refused)?,
                options,
            })
        };
        resolution.jit.iter().map(unit).collect()
    }

    fn question(&self) -> Question<'_> {
        let told = |argument: &JitArgument| match argument {
            JitArgument::Pointer(Stored::F16) => ("*fp16", true),
            JitArgument::Pointer(Stored::Bf16) => ("*bf16", true),
            JitArgument::Pointer(Stored::F32) => ("*fp32", true),
            JitArgument::Pointer(Stored::I64) => ("*i64", true),
            JitArgument::Pointer(Stored::I32) => ("*i32", true),
            JitArgument::Pointer(Stored::U8) => ("*u8", true),
            JitArgument::Pointer(Stored::I8) => ("*i8", true),
            JitArgument::Integer { divisible } => ("i64", *divisible),
            JitArgument::Float => ("fp32", false),
        };
        let JitLaunch { kernel, num_warps, num_stages, num_ctas, constexprs, .. } = &self.jit;
        let mut options = BTreeMap::from([
            ("num_warps", i64::from(*num_warps)),
            ("num_stages", i64::from(*num_stages)),
            ("num_ctas", i64::from(*num_ctas)),
            ("enable_fp_fusion", i64::from(self.options.fp_fusion)),
        ]);
        options.extend(self.options.maxnreg.map(|most| ("maxnreg", i64::from(most))));
        Question {
            file: &self.file,
            kernel,
            capability: self.capability,
            constexprs,
            arguments: self.arguments.iter().map(told).collect(),
            options,
        }
    }
}

fn code(jit: JitRecord, cubin: Vec<u8>) -> JitCode {
    let JitRecord { lowered, shared, num_warps, hidden, scratch } = jit;
    JitCode { cubin: cubin.into(), lowered, shared, num_warps, hidden, scratch }
}

fn key(unit: &JitUnit, question: &Question<'_>, found: &Found) -> String {
    let question = serde_json::to_string(question).unwrap_or_default();
    let version = format!("triton {GENERATION} {} {} {}", found.version, found.python, found.folder.display());
    let mut hasher = blake3::Hasher::new();
    for part in [version.as_str(), process::SOURCE, &question, &unit.jit.name, &unit.source, &readers()] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// What the assembler says, its name before each line as newer ones write it: of a kernel's stack and spills an older one writes
/// numbers alone.
fn with_names(log: &str) -> String {
    let line = |line: &str| match line.starts_with(' ') && line.contains("bytes stack frame") {
        true => format!("ptxas . {}\n", line.trim()),
        false => format!("{line}\n"),
    };
    log.lines().map(line).collect()
}

/// Holds what was made to what is asked of any candidate's code.
fn accept(unit: &JitUnit, found: &Found, answer: &Answer, bytes: &[u8]) -> Result<(Record, JitRecord), BuildError> {
    let folders = [&found.folder];
    let name = &unit.jit.name;
    let (resources, words) = read(&with_names(&answer.log));
    if let Some(why) = &answer.refused {
        return Err(BuildError::Kernel(clean(&format!("{}: {why}", unit.file), &folders)));
    }
    if answer.cubin == 0 || answer.cubin > bytes.len() {
        return Err(BuildError::Machine("the Python that compiles gave no cubin".into()));
    }
    let refused = |what: String| BuildError::Kernel(format!("`{name}`: the compiled kernel is refused: {what}"));
    if answer.profile_scratch > 0 {
        return Err(refused("it writes down what a profiler wants to know, and none listens".into()));
    }
    let (scratch, align) = (answer.global_scratch, answer.global_scratch_align);
    if scratch > MOST_SCRATCH || (scratch > 0 && (align == 0 || !ALIGNMENT.is_multiple_of(align))) {
        return Err(refused(format!(
            "each of its blocks asks for {scratch} bytes of device memory, aligned to {align}; there are at most {MOST_SCRATCH}, \
             aligned to {ALIGNMENT}"
        )));
    }
    let (cubin, ptx) = bytes.split_at(answer.cubin);
    let text = String::from_utf8_lossy(ptx);
    let places = unit.arguments.iter().enumerate();
    let numbers = places.filter(|(_, told)| !matches!(told, JitArgument::Pointer(_))).map(|(place, _)| place);
    // What Triton appends is NULL wherever it is launched, and no address of the judge's, but the first where it asks for memory.
    let first = unit.arguments.len() + usize::from(scratch > 0);
    let hidden = first..unit.arguments.len() + MOST_HIDDEN;
    let numbers: BTreeSet<usize> = numbers.chain(hidden).collect();
    let reading = ptx::read(&text, &BTreeMap::from([(answer.name.clone(), numbers)])).map_err(refused)?;
    cubin::check(cubin, &reading.tables).map_err(refused)?;
    let declared = ptx::parameters_of(&text, &answer.name);
    let hidden = declared.checked_sub(unit.arguments.len()).filter(|hidden| *hidden <= MOST_HIDDEN).ok_or_else(|| {
        BuildError::Machine(format!(
            "this Triton gives a kernel {declared} parameters where the launch gives {}; it passes them in a way that is not known here",
            unit.arguments.len()
        ))
    })?;
    if scratch > 0 && hidden == 0 {
        return Err(BuildError::Machine("this Triton asks for device memory and takes no address of it".into()));
    }
    let mut resources = resources;
    for resources in &mut resources {
        if resources.kernel == answer.name {
            resources.kernel.clone_from(name);
        }
    }
    let jit = JitRecord {
        lowered: answer.name.clone(),
        shared: answer.shared,
        num_warps: answer.num_warps,
        hidden,
        scratch: scratch as usize,
    };
    let told = |bytes: u64, of: &str| match bytes {
        0 => String::new(),
        bytes => format!("{name}: {bytes} bytes of {of}\n"),
    };
    let memory = told(answer.shared.into(), "shared memory") + &told(scratch, "device memory for each block");
    let record = Record {
        names: vec![answer.name.clone()],
        resources,
        waits: BTreeMap::new(),
        log: memory + &clean(&words, &folders),
        hash: blake3::hash(cubin).to_hex().to_string(),
        jit: Some(jit.clone()),
    };
    Ok((record, jit))
}
