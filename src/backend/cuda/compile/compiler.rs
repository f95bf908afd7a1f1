//! Texts to cubins: checked, compiled in warm processes, cached.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::admit::{Job, Rank, admit, all_wait, share, weight};
use super::cache::{Cache, Record};
use super::find::{Search, Toolkit};
use super::frame::{Request, Response};
use super::key::key;
use super::messages::{Resources, clean, read};
use super::process::{Pool, ProcessError};
use super::triton::{JitCode, JitUnit, Triton};
use super::{cubin, ptx};
use crate::backend::{BuildError, Source};
use crate::kernel::{Facts, KernelFile, Resolution, headers_named};
use crate::op::Operation;

/// Raised whenever a check or the prelude changes, so that nothing is taken that an older program let pass.
const GENERATION: u32 = 2;

/// Processes at most; each takes some hundred megabytes and is started when there is work for it.
const PROCESSES: usize = 16;

/// What everything is compiled with. `--minimal` leaves out what kernels here do not have anyway (textures, kernels that launch
/// kernels, the heap) and halves the time of a small compilation. Functions need no `__device__`.
const ALWAYS: [&str; 4] = ["--std=c++17", "--minimal", "-default-device", "--ptxas-options=-v"];

/// From this NVRTC on the kernels of a text are optimised at the same time: two take 0.6 instead of 1.0 s.
const SPLITS: (u32, u32) = (13, 0);

/// A source to compile.
#[derive(Debug, Clone)]
pub struct Unit {
    /// The file's name in messages.
    pub name: String,
    /// The whole text.
    pub source: String,
    /// `sm_90a`.
    pub arch: String,
    /// Options beside the usual ones.
    pub options: Vec<String>,
    /// Name expressions of the kernels that will be launched: `gemm<128>`.
    pub names: Vec<String>,
    /// Places of arguments that are numbers, by name expression, where they are known.
    pub numbers: BTreeMap<String, BTreeSet<usize>>,
}

/// Code for a device.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Compiled {
    /// What it was compiled from and by: BLAKE3, in hex.
    pub key: String,
    /// The cubin.
    pub cubin: Arc<[u8]>,
    /// Lowered names by name expression.
    pub names: BTreeMap<String, String>,
    /// What each kernel needs.
    pub resources: Vec<Resources>,
    /// Kernels, by name expression, that wait for the launch before them, and the places of parameters that they use before.
    pub waits: BTreeMap<String, BTreeSet<usize>>,
    /// Resources, then the compiler's warnings: data, cut and without paths of the machine.
    pub log: String,
    /// Code of each launch by its name in the plan, where launches are compiled one by one: in Triton. There is no other code then.
    pub jit: BTreeMap<String, JitCode>,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { key, cubin, names, resources, waits, log, jit } = self;
        let mut text = f.debug_struct("Compiled");
        text.field("key", key).field("cubin", &cubin.len()).field("names", names);
        text.field("resources", resources).field("waits", waits).field("log", log).field("jit", jit).finish()
    }
}

/// Who is told how compiling goes.
pub struct Told<'a> {
    /// Told once that as much is being compiled as can be at the same time.
    pub begun: &'a (dyn Fn() + Sync),
    /// Told of a file and a resolution, by index, that are compiled.
    pub arrived: &'a (dyn Fn(usize, usize, &Compiled) + Sync),
}

impl Told<'_> {
    /// Nobody.
    const NOBODY: Self = Self { begun: &|| (), arrived: &|_, _, _| () };
}

/// NVRTC in processes of its own, with a cache of what they made. It may be used from several threads at once.
#[derive(Debug)]
pub struct Compiler {
    pool: Pool,
    cache: Cache,
    includes: Vec<PathBuf>,
    identity: String,
    archs: Vec<u32>,
    version: (u32, u32),
    triton: Triton,
}

impl Compiler {
    /// The same with the Python whose Triton compiles files in that language; the user's where none is named.
    #[must_use]
    pub fn with_python(self, named: Option<PathBuf>) -> Self {
        Self { triton: Triton::new(named), ..self }
    }

    /// Finds NVRTC on this machine and keeps what it makes under `cache_dir`. `driver` is the newest CUDA that the driver serves
    /// (as 12080), where there is one. `executable` is started for the processes; this very program where none is given.
    ///
    /// # Errors
    /// [`BuildError::Machine`]: there is no NVRTC, or it cannot be started.
    pub fn new(cache_dir: &Path, driver: Option<u32>, executable: Option<PathBuf>) -> Result<Self, BuildError> {
        let toolkit = Search::of_this_machine().find(driver.map(|v| v / 1000)).map_err(BuildError::Machine)?;
        Self::with(toolkit, cache_dir, executable)
    }

    /// The same with all of its processes started at once, for whoever will need them.
    ///
    /// # Errors
    /// As [`Compiler::new`].
    pub fn warm(cache_dir: &Path, driver: Option<u32>) -> Result<Self, BuildError> {
        let toolkit = Search::of_this_machine().find(driver.map(|v| v / 1000)).map_err(BuildError::Machine)?;
        Self::open(toolkit, cache_dir, None, PROCESSES)
    }

    /// The same with a toolkit that is known.
    ///
    /// # Errors
    /// As [`Compiler::new`].
    pub fn with(toolkit: Toolkit, cache_dir: &Path, executable: Option<PathBuf>) -> Result<Self, BuildError> {
        Self::open(toolkit, cache_dir, executable, 1)
    }

    fn open(
        toolkit: Toolkit,
        cache_dir: &Path,
        executable: Option<PathBuf>,
        at_once: usize,
    ) -> Result<Self, BuildError> {
        let machine = |error: &dyn std::fmt::Display| BuildError::Machine(error.to_string());
        let folder = cache_dir.join("cuda");
        let cache = Cache::new(&folder)
            .map_err(|error| BuildError::Machine(format!("the cache in {}: {error}", folder.display())))?;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let includes = toolkit.includes.clone();
        let library = toolkit.library.clone();
        let size = cores.min(PROCESSES);
        let pool = Pool::new(toolkit, executable, size, at_once.min(size)).map_err(|error| machine(&error))?;
        let hello = pool.hello().map_err(|error| machine(&error))?;
        let bytes = std::fs::metadata(&library).map_or(0, |metadata| metadata.len());
        let identity = format!("{GENERATION} {:?} {} {bytes} {includes:?}", hello.version, library.display());
        Ok(Self {
            pool,
            cache,
            includes,
            identity,
            archs: hello.archs,
            version: hello.version,
            triton: Triton::new(None),
        })
    }

    /// NVRTC's version: major, minor.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Folders of headers that a kernel may include from.
    #[must_use]
    pub fn includes(&self) -> &[PathBuf] {
        &self.includes
    }

    /// Compiles `kernel` at each of `resolutions`, as [`Compiler::candidates`] does.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn candidate(
        &self,
        op: &Operation,
        kernel: &KernelFile,
        resolutions: &[Resolution],
        capability: u32,
        facts: &Facts,
        cancelled: &AtomicBool,
    ) -> Result<Vec<Compiled>, BuildError> {
        self.candidates(op, &[Source::new(kernel, resolutions)], capability, facts, cancelled, &Told::NOBODY)
    }

    /// Compiles kernel files, each at each of its resolutions, for a device of compute capability `capability` (90 for 9.0), as
    /// many at once as there are processes; the answer has them all in order. Ends with the first that fails, or soon after
    /// `cancelled` is set.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn candidates(
        &self,
        op: &Operation,
        files: &[Source<'_>],
        capability: u32,
        facts: &Facts,
        cancelled: &AtomicBool,
        told: &Told<'_>,
    ) -> Result<Vec<Compiled>, BuildError> {
        let mut units: Vec<(Rank, Job)> = Vec::new();
        // For each resolution of each file, in order, where it is and the unit that is compiled for it.
        let mut wanted: Vec<((usize, usize), usize)> = Vec::new();
        for (file, &Source { kernel, resolutions, urgent }) in files.iter().enumerate() {
            let options = admit(op, kernel, capability)?;
            for (at, resolution) in resolutions.iter().enumerate() {
                let job = Job::of(op, kernel, resolution, capability, facts, &options)?;
                wanted.push(((file, at), share(&mut units, (at >= urgent, Reverse(weight(resolution))), job)));
            }
        }
        // There may be more than processes: what is waited for is begun first, then what takes longest.
        let mut order: Vec<usize> = (0..units.len()).collect();
        order.sort_by_key(|index| units[*index].0);
        let sorted: Vec<Job> = order.iter().map(|index| units[*index].1.clone()).collect();
        let done = |sorted: usize, compiled: &Compiled| {
            for ((file, at), _) in wanted.iter().filter(|(_, unit)| *unit == order[sorted]) {
                (told.arrived)(*file, *at, compiled);
            }
        };
        let all = self.all(&sorted, true, cancelled, told.begun, &done)?;
        let compiled: BTreeMap<usize, Compiled> = order.into_iter().zip(all).collect();
        for ((file, at), unit) in &wanted {
            let Source { kernel, resolutions, .. } = files[*file];
            let Some(unit) = compiled.get(unit) else { continue };
            all_wait(op, kernel, &resolutions[*at], capability, unit).map_err(BuildError::Kernel)?;
        }
        Ok(wanted.iter().filter_map(|(_, unit)| compiled.get(unit).cloned()).collect())
    }

    /// Compiles texts of the program's own (the judge's, oracles), with nothing before them and nothing refused.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn trusted(&self, units: &[Unit]) -> Result<Vec<Compiled>, BuildError> {
        let jobs: Vec<Job> = units.iter().cloned().map(Job::Text).collect();
        self.all(&jobs, false, &AtomicBool::new(false), &|| (), &|_, _| ())
    }

    fn all(
        &self,
        jobs: &[Job],
        checked: bool,
        cancelled: &AtomicBool,
        begun: &(dyn Fn() + Sync),
        arrived: &(dyn Fn(usize, &Compiled) + Sync),
    ) -> Result<Vec<Compiled>, BuildError> {
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let done = Mutex::new(Vec::new());
        let work = || {
            while !failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = jobs.get(index) else { break };
                let result = match job {
                    Job::Text(unit) => self.one(unit, checked, cancelled),
                    Job::Jit(units) => self.launches(units, cancelled),
                };
                match &result {
                    Ok(compiled) => arrived(index, compiled),
                    Err(_) => failed.store(true, Ordering::Relaxed),
                }
                done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.pool.size.min(jobs.len()) {
                scope.spawn(work);
            }
            begun();
            work();
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(index, _)| *index);
        done.into_iter().map(|(_, result)| result).collect()
    }

    /// The launches of a Triton file at one resolution.
    fn launches(&self, units: &[JitUnit], cancelled: &AtomicBool) -> Result<Compiled, BuildError> {
        let mut all = Compiled::default();
        for unit in units {
            if cancelled.load(Ordering::Relaxed) {
                return Err(BuildError::Cancelled);
            }
            let (record, code) = self.triton.code(unit, &self.cache, cancelled)?;
            all.key.push_str(&record.hash);
            all.log.extend(record.resources.iter().map(|resources| resources.line() + "\n"));
            all.log.push_str(&record.log);
            all.resources.extend(record.resources);
            all.jit.insert(unit.jit.name.clone(), code);
        }
        all.key = blake3::hash(all.key.as_bytes()).to_hex().to_string();
        all.log.truncate(all.log.trim_end().len());
        Ok(all)
    }

    fn one(&self, unit: &Unit, checked: bool, cancelled: &AtomicBool) -> Result<Compiled, BuildError> {
        if cancelled.load(Ordering::Relaxed) {
            return Err(BuildError::Cancelled);
        }
        let options = self.options(unit);
        let headers = headers_named(&unit.source);
        let key = key(&self.identity, unit, &options, &headers, checked);
        if let Some((record, cubin)) = self.cache.get(&key) {
            return Ok(compiled(unit, key, record, cubin));
        }
        if let Err(unsupported) = self.supports(&unit.arch) {
            return Err(BuildError::Machine(unsupported));
        }
        let headers = headers.iter().map(|header| (header.name.to_owned(), header.text.to_owned())).collect();
        let request = Request { name: unit.name.clone(), options, names: unit.names.clone(), headers };
        let (response, bytes) = self.pool.ask(&request, &unit.source, cancelled).map_err(|error| match error {
            ProcessError::Cancelled => BuildError::Cancelled,
            ProcessError::Start(_) => BuildError::Machine(error.to_string()),
            ProcessError::Time | ProcessError::Died(_) => BuildError::Kernel(error.to_string()),
        })?;
        let record = self.accept(unit, checked, &response, &bytes)?;
        let cubin = bytes[..response.cubin].to_vec();
        // Without a cache everything works, only slower.
        let _ = self.cache.put(&key, &record, &cubin);
        Ok(compiled(unit, key, record, cubin))
    }

    fn accept(&self, unit: &Unit, checked: bool, response: &Response, bytes: &[u8]) -> Result<Record, BuildError> {
        if let Some(error) = &response.error {
            return Err(BuildError::Kernel(format!("the compiler failed: {}", clean(error, &self.includes))));
        }
        if !response.accepted {
            return Err(BuildError::Kernel(format!(
                "the compiler refuses it:\n{}",
                clean(&without_resources(&response.log), &self.includes)
            )));
        }
        if response.cubin == 0 || response.cubin > bytes.len() || response.names.len() != unit.names.len() {
            return Err(BuildError::Machine("the process that compiles gave no cubin".into()));
        }
        let (cubin, ptx) = bytes.split_at(response.cubin);
        let mut waits = BTreeMap::new();
        if checked {
            let refused = |what: String| BuildError::Kernel(format!("the compiled kernel is refused: {what}"));
            let text = String::from_utf8_lossy(ptx);
            if text.trim_end_matches('\0').is_empty() {
                return Err(BuildError::Machine(
                    "this NVRTC gives no PTX beside a cubin; use version 12 or newer".into(),
                ));
            }
            let lowered = unit.names.iter().zip(&response.names);
            let numbers =
                lowered.filter_map(|(name, lowered)| Some((lowered.clone(), unit.numbers.get(name)?.clone())));
            let reading = ptx::read(&text, &numbers.collect()).map_err(refused)?;
            cubin::check(cubin, &reading.tables).map_err(refused)?;
            waits = reading.waiting;
        }
        let (mut resources, words) = read(&response.log);
        for resources in &mut resources {
            if let Some(at) = response.names.iter().position(|name| *name == resources.kernel) {
                resources.kernel.clone_from(&unit.names[at]);
            }
        }
        Ok(Record {
            names: response.names.clone(),
            resources,
            waits: waits.into_iter().filter(|(name, _)| response.names.contains(name)).collect(),
            log: clean(&words, &self.includes),
            hash: blake3::hash(cubin).to_hex().to_string(),
            jit: None,
        })
    }

    fn supports(&self, arch: &str) -> Result<(), String> {
        let number = arch.trim_start_matches("sm_").trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>();
        match number {
            Ok(number) if self.archs.is_empty() || self.archs.contains(&number) => Ok(()),
            _ => {
                let (major, minor) = self.version;
                Err(format!("NVRTC {major}.{minor} does not compile for {arch}; install another version"))
            }
        }
    }

    fn options(&self, unit: &Unit) -> Vec<String> {
        let mut options: Vec<String> = vec![format!("--gpu-architecture={}", unit.arch)];
        options.extend(ALWAYS.map(str::to_owned));
        if unit.names.len() > 1 && self.version >= SPLITS {
            options.push(format!("--split-compile={}", unit.names.len()));
        }
        options.extend(unit.options.iter().cloned());
        options.extend(self.includes.iter().map(|folder| format!("--include-path={}", folder.display())));
        options
    }
}

fn without_resources(log: &str) -> String {
    read(log).1
}

fn compiled(unit: &Unit, key: String, record: Record, cubin: Vec<u8>) -> Compiled {
    let mut log: String = record.resources.iter().map(|resources| resources.line() + "\n").collect();
    log.push_str(&record.log);
    let pairs = || unit.names.iter().cloned().zip(&record.names);
    let waits = pairs().filter_map(|(name, lowered)| Some((name, record.waits.get(lowered)?.clone()))).collect();
    Compiled {
        key,
        cubin: cubin.into(),
        names: pairs().map(|(name, lowered)| (name, lowered.clone())).collect(),
        waits,
        resources: record.resources,
        log: log.trim_end().to_owned(),
        jit: BTreeMap::new(),
    }
}
