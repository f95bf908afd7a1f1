//! A GPU as a [`Backend`](crate::backend::Backend).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::compile::{CompileKeys, Compiled, Compiler, Search, Told, Unit, all_wait};
use super::driver::{GpuFacts, device_count, device_facts, driver_version, installed_driver};
use super::judge::{self, Arena, Desk, LIBRARY_NAME, Library, Oracle};
use super::launch::{self, Host, Image};
use super::nvml::Gauge;
use super::opening::{Place, Starting};
use crate::backend::{
    BuildError, CaseLimits, CaseMemory, Conditions, Device, MemoryError, Oracles, Placing, Ready, Source, StartError,
    Step, Toolchain, calls_per_sample,
};
use crate::device::{DeviceCard, Opening, cached_card};
use crate::evaluation::ErrorStats;
use crate::kernel::{FrontMatter, KernelFile, Resolution};
use crate::op::{Dtype, Operation, Pass, Sample, Shape};

/// While nothing is compiled, whoever waits for it is told so as often.
const IDLE: Duration = Duration::from_millis(2);

/// Below this a launch is measured with others of a recording over rotated buffers, because a pair of events costs 4 µs and
/// resolves half of one; above it alone, after a sweep of the cache (docs/how-timing-decides.md, "What is measured").
const ALONE_US: f64 = 50.0;
/// How long such a recording should take, so that what starting it costs is below a percent.
const RECORDING_US: f64 = 400.0;

/// From here on a device that should be idle is not: displays and monitors stay below.
const BUSY_PERCENT: u32 = 20;
/// Bytes that a context takes of a device's memory, and somewhat more.
const OF_A_CONTEXT: u64 = 1 << 30;
/// How far back the driver looks for that share.
const REMEMBERED: Duration = Duration::from_millis(1200);

/// A GPU that this process has opened, or is about to.
#[derive(Debug)]
pub struct Cuda {
    place: Place,
    facts: GpuFacts,
    compiler: Compiler,
    card: DeviceCard,
    limits: CaseLimits,
    gauge: Option<Gauge>,
    compile_keys: RefCell<CompileKeys>,
}

/// Whether a driver and a compiler are installed that serve each other; whether there is a GPU, only opening one tells.
///
/// # Errors
/// A sentence: what is missing.
pub fn installed() -> Result<(), String> {
    let driver = installed_driver().map_err(|error| error.to_string())?;
    Search::of_this_machine().find(Some(driver / 1000)).map(drop)
}

/// How many GPUs the driver counts.
///
/// # Errors
/// A sentence: there is no driver that can be used, or a GPU and no compiler for it.
pub fn gpus() -> Result<u32, String> {
    let count = device_count().map_err(|error| error.to_string())?;
    if count > 0 {
        let driver = driver_version().map_err(|error| error.to_string())?;
        Search::of_this_machine().find(Some(driver / 1000)).map_err(|why| format!("there is a GPU, but {why}"))?;
    }
    Ok(count)
}

/// What identifies device `ordinal` for caches and locks, without opening it.
///
/// # Errors
/// A sentence: there is no such device.
pub fn key_of(ordinal: u32) -> Result<String, String> {
    device_facts(ordinal).map(|facts| judge::key(&facts)).map_err(|error| error.to_string())
}

/// The UUID of device `ordinal`, by which other programs know it, without opening it.
///
/// # Errors
/// A sentence: there is no such device.
pub fn uuid_of(ordinal: u32) -> Result<String, String> {
    device_facts(ordinal).map(|facts| facts.uuid).map_err(|error| error.to_string())
}

/// Bytes of memory that device `ordinal` has, without opening it.
///
/// # Errors
/// A sentence: there is no such device.
pub fn memory_of(ordinal: u32) -> Result<u64, String> {
    device_facts(ordinal).map(|facts| facts.memory_bytes).map_err(|error| error.to_string())
}

/// Who else uses device `ordinal` now, in a sentence; `None` where nobody does or nobody can tell.
#[must_use]
pub fn company(ordinal: u32) -> Option<String> {
    let facts = device_facts(ordinal).ok()?;
    let gauge = Gauge::open(&facts.uuid)?;
    let look = || {
        let gauged = gauge.read();
        (gauged.others.map_or(0, |others| others.len()), gauged.busy_percent.unwrap_or(0))
    };
    let (mut others, mut busy) = look();
    if others == 0 && busy >= BUSY_PERCENT {
        // It may have been our own command, which ended a moment ago.
        std::thread::sleep(REMEMBERED);
        (others, busy) = look();
    }
    let by = match others {
        0 if busy < BUSY_PERCENT => return None,
        // Processes of other containers are seen by their work only.
        0 => "by something else".to_owned(),
        1 => "by 1 other process".to_owned(),
        _ => format!("by {others} other processes"),
    };
    Some(format!("{} is used {by} ({busy} % busy): times will be less certain", facts.name))
}

impl Cuda {
    /// Device `ordinal`, opened when `opening` says, with the compiler that was begun. What it makes and the device's ceilings are
    /// kept in the compiler's folder.
    ///
    /// # Errors
    /// A sentence: there is no driver, device or compiler, or no memory to judge with.
    pub fn open(ordinal: u32, starting: Starting, opening: Opening) -> Result<Self, String> {
        let facts = device_facts(ordinal).map_err(|error| error.to_string())?;
        let place = Place::begin(ordinal);
        let gauge = Gauge::open(&facts.uuid);
        let known = match opening {
            Opening::Meanwhile => cached_card(&starting.folder, &judge::key(&facts))
                .zip(gauge.as_ref().and_then(Gauge::free_memory))
                .map(|(card, free)| (card, free.saturating_sub(OF_A_CONTEXT))),
            Opening::Now | Opening::Recalibrating => None,
        };
        let folder = starting.folder.clone();
        let compiler = starting.end()?;
        let (card, free) = match known {
            Some(known) => known,
            None => {
                let build = |name: &str, text: &str| trusted(&compiler, name, text, facts.capability);
                let desk = place.desk(&build)?;
                let card = judge::device_card(&folder, desk, &build, opening == Opening::Recalibrating)?;
                (card, desk.free_memory().map_err(|error| error.to_string())?)
            }
        };
        let limits = judge::case_limits(&card, facts.memory_bytes, free);
        Ok(Self { place, facts, compiler, card, limits, gauge, compile_keys: RefCell::default() })
    }

    /// The judge's place on the device, which is opened now if it was not.
    fn desk(&self) -> Result<&Rc<Desk>, String> {
        self.place.desk(&|name, text| self.build(name, text))
    }

    fn build(&self, name: &str, text: &str) -> Result<Vec<u8>, String> {
        trusted(&self.compiler, name, text, self.facts.capability)
    }
}

/// Compiles a text of the program's own.
fn trusted(compiler: &Compiler, name: &str, text: &str, capability: u32) -> Result<Vec<u8>, String> {
    let unit = Unit {
        name: format!("{name}.cu"),
        source: text.to_owned(),
        arch: format!("sm_{capability}"),
        options: Vec::new(),
        names: Vec::new(),
        numbers: BTreeMap::new(),
    };
    let compiled = compiler.trusted(&[unit]).map_err(|error| error.to_string())?;
    compiled.first().map(|one| one.cubin.to_vec()).ok_or_else(|| "nothing was compiled".to_owned())
}

impl Device for Cuda {
    type Image = Image;
    type Arena = Arena;
    type Host = Host;

    fn card(&self) -> &DeviceCard {
        &self.card
    }

    fn case_limits(&self) -> CaseLimits {
        self.limits
    }

    fn free_memory(&self) -> Option<u64> {
        self.desk().ok()?.free_memory().ok()
    }

    fn give_back_memory(&self) {
        // A device that is lost has nothing to give.
        let _ = self.desk().map(|desk| desk.give_back_memory());
    }

    fn is_slowed(&self) -> bool {
        self.gauge.as_ref().is_some_and(Gauge::is_slowed)
    }

    fn condition(&self) -> Option<String> {
        self.gauge.as_ref().and_then(|gauge| gauge.read().line())
    }

    fn arena(&self, inputs: usize, outputs: usize, placing: Placing) -> Result<Arena, MemoryError> {
        Arena::new(self.desk().map_err(MemoryError::Unavailable)?, inputs, outputs, placing)
    }

    fn host(&self, images: &[&Image], arena: &Arena, conditions: &Conditions) -> Result<Host, StartError> {
        Host::start(images, arena, conditions)
    }

    fn calls_per_sample(&self, incumbent_us: f64, copies: usize) -> usize {
        if incumbent_us >= ALONE_US {
            return 1;
        }
        // The other half is for the other side of the pair.
        calls_per_sample(incumbent_us, RECORDING_US, (copies / 2) as u32) as usize
    }

    fn device_name(&self) -> Option<String> {
        Some(self.facts.uuid.clone())
    }

    fn hosts_are_processes(&self) -> bool {
        false
    }

    fn times_in_rows(&self) -> bool {
        true
    }

    fn is_lost(&self) -> bool {
        self.place.opened().is_some_and(|desk| desk.gpu().is_lost())
    }
}

impl Toolchain for Cuda {
    fn accepts(&self, front: &FrontMatter) -> Result<(), String> {
        front.check_backend("cuda").map_err(|error| error.to_string())?;
        front.check_arch(self.facts.capability).map_err(|error| format!("{error}; this device is {}", self.card.name))
    }

    fn compile(
        &self,
        op: &Operation,
        files: &[Source<'_>],
        cancelled: &AtomicBool,
    ) -> Result<Vec<Vec<Image>>, BuildError> {
        self.compile_in_turn(op, files, cancelled, &mut |_| ())
    }

    fn compile_in_turn(
        &self,
        op: &Operation,
        files: &[Source<'_>],
        cancelled: &AtomicBool,
        ready: &mut dyn FnMut(Vec<Ready<Image>>),
    ) -> Result<Vec<Vec<Image>>, BuildError> {
        let capability = self.facts.capability;
        let facts = &self.card.facts;
        let compiler = &self.compiler;
        let (sender, arrivals) = channel();
        let mut images: Vec<Vec<Option<Image>>> = files.iter().map(|file| vec![None; file.resolutions.len()]).collect();
        std::thread::scope(|scope| {
            let arrived = move |file, resolution, compiled: &Compiled| {
                // Nobody listens any more only where this has ended.
                let _ = sender.send((file, resolution, compiled.clone()));
            };
            let (begun, all_begun) = channel();
            let compiling = scope.spawn(move || {
                let begun = || {
                    // This end is heard or nobody waits any more.
                    let _ = begun.send(());
                };
                let told = Told { begun: &begun, arrived: &arrived };
                compiler.candidates(op, files, capability, facts, cancelled, &told)
            });
            // A thread does not start while a library is being loaded.
            let _ = all_begun.recv();
            let desk = self.desk().map_err(BuildError::Machine)?;
            if op.passes.iter().any(|pass| matches!(pass, Pass::Product(_))) {
                // Needed as soon as this is done, and a tenth of a second to load.
                let _ = desk.cublas();
            }
            loop {
                let first = match arrivals.recv_timeout(IDLE) {
                    Ok(first) => Some(first),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                // What came while the one before was looked at is shown at once.
                let image = |(file, resolution, compiled): Ready<Compiled>| {
                    let Source { kernel, resolutions, .. } = files[file];
                    let image = Image::of_kernel(op, kernel, &resolutions[resolution], facts, compiled);
                    images[file][resolution] = Some(image.clone());
                    (file, resolution, image)
                };
                ready(first.into_iter().chain(arrivals.try_iter()).map(image).collect());
            }
            compiling.join().unwrap_or_else(|_| Err(BuildError::Machine("the compiler's thread ended".into())))
        })?;
        let missing = || BuildError::Machine("the compiler left something out".into());
        let all = |file: Vec<Option<Image>>| file.into_iter().collect::<Option<Vec<_>>>();
        images.into_iter().map(all).collect::<Option<_>>().ok_or_else(missing)
    }

    fn compile_key(&self, op: &Operation, kernel: &KernelFile, resolution: &Resolution) -> Option<String> {
        self.compile_keys.borrow_mut().of(op, kernel, resolution, self.facts.capability, &self.card.facts)
    }

    fn relaunched(&self, op: &Operation, kernel: &KernelFile, resolution: &Resolution, code: &Image) -> Option<Image> {
        let Image::Kernel(code) = code else { return None };
        all_wait(op, kernel, resolution, self.facts.capability, &code.compiled).ok()?;
        Some(Image::of_kernel(op, kernel, resolution, &self.card.facts, code.compiled.clone()))
    }

    fn glue(&self, step: Step, dtype: Dtype) -> Result<Image, BuildError> {
        launch::glue(&self.compiler, step, dtype, self.facts.capability)
    }

    fn library(&self, op: &Operation, shape: &Shape, dtype: Dtype) -> Option<(Image, &'static str)> {
        let build = |name: &str, text: &str| self.build(name, text);
        // A library that is not installed is none that the user has.
        let library = Library::find(self.desk().ok()?, op, shape, dtype, &build).ok().flatten()?;
        Some((Image::Library(library), LIBRARY_NAME))
    }
}

impl Oracles for Cuda {
    type Oracle = Oracle;

    fn oracle(&self, op: &Operation) -> Result<Oracle, String> {
        let build = |name: &str, text: &str| self.build(name, text);
        Oracle::compile(self.desk()?, op, &build)
    }

    fn compare(
        &self,
        oracle: &Oracle,
        memory: &CaseMemory,
        arena: &mut Arena,
        copy: usize,
        taken: &Vec<[u64; 2]>,
        seed: u64,
    ) -> Result<ErrorStats, String> {
        let stats = judge::compare(oracle, memory, arena, copy, taken, seed)?;
        match self.desk()?.failure() {
            Some(failure) => Err(failure.to_string()),
            None => Ok(stats),
        }
    }

    fn compare_some(
        &self,
        oracle: &Oracle,
        memory: &CaseMemory,
        arena: &mut Arena,
        copy: usize,
        sample: &Sample,
    ) -> Result<ErrorStats, String> {
        let stats = judge::compare_some(oracle, memory, arena, copy, sample)?;
        match self.desk()?.failure() {
            Some(failure) => Err(failure.to_string()),
            None => Ok(stats),
        }
    }
}
