//! Modules freshly loaded, their launches, and the time these take.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::super::driver::{
    Arguments, CudaError, Event, Function, Geometry, Gpu, Graph, MapElement, MapSpec, MapSwizzle,
};
use super::super::judge::{Arena, Desk, Ground, Library};
use super::{Image, KernelImage, glue};
use crate::backend::{Call, CaseMemory, Conditions, Fault, Span, StartError, Step};
use crate::kernel::{Argument, MapSource, PlannedLaunch, PlannedMap, Swizzle};
use crate::op::{Dtype, ElementType};

/// Graphs kept: a timing session comes back to the same rotated buffers again and again.
const MOST_GRAPHS: usize = 512;

/// Images loaded on a device, and nothing of what was loaded before.
#[derive(Debug)]
pub struct Host {
    desk: Rc<Desk>,
    loaded: Vec<Loaded>,
    /// What its arena stands on.
    ground: Rc<Ground>,
    /// What a call of an image at some sizes comes to.
    plans: HashMap<(usize, Vec<i64>), Rc<[PlannedLaunch]>>,
    graphs: HashMap<Vec<(usize, Vec<u64>)>, Graph>,
    marks: [Event; 2],
    conditions: Conditions,
    /// What rubbish is drawn from.
    rubbish: u64,
}

/// One image, loaded.
#[derive(Debug)]
enum Loaded {
    Kernel { image: Rc<KernelImage>, functions: HashMap<String, Function> },
    Library(Library),
    Glue(Step, Function),
}

impl Host {
    /// Loads `images`, whose calls will refer to `arena`.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(images: &[&Image], arena: &Arena, conditions: &Conditions) -> Result<Self, StartError> {
        let desk = arena.desk();
        let gpu = desk.gpu();
        let loaded = images.iter().map(|image| Loaded::new(gpu, image)).collect::<Result<_, _>>().map_err(refused)?;
        let marks = [gpu.event().map_err(refused)?, gpu.event().map_err(refused)?];
        Ok(Self {
            desk: Rc::clone(desk),
            loaded,
            ground: Rc::clone(arena.ground()),
            plans: HashMap::new(),
            graphs: HashMap::new(),
            marks,
            conditions: *conditions,
            rubbish: crate::rng::secret_seed(),
        })
    }

    /// Each kernel that a call of `image` with these values of the symbols launches, the blocks of it that a multiprocessor
    /// holds at once, and what share of the threads it could hold these are.
    ///
    /// # Errors
    /// The plan or the driver refuses.
    pub fn occupancy(&mut self, image: usize, ints: &[i64]) -> Result<Vec<(String, u32, f64)>, CudaError> {
        let plan = self.plan(image, ints)?;
        let Some(Loaded::Kernel { functions, .. }) = self.loaded.get(image) else { return Ok(Vec::new()) };
        let gpu = self.desk.gpu();
        let most = f64::from(gpu.facts().threads_per_multiprocessor.max(1));
        let occupancy = |launch: &PlannedLaunch| {
            let function = functions.get(&launch.kernel).ok_or_else(|| not_compiled(&launch.kernel))?;
            let blocks = gpu.occupancy(function, &geometry(launch))?;
            let threads: u32 = launch.block.iter().product();
            Ok((launch.kernel.clone(), blocks, f64::from(blocks) * f64::from(threads) / most))
        };
        plan.iter().map(occupancy).collect()
    }

    /// The launches of a kernel's image for these values of the symbols; none for what is no kernel.
    fn plan(&mut self, image: usize, ints: &[i64]) -> Result<Rc<[PlannedLaunch]>, CudaError> {
        if let Some(plan) = self.plans.get(&(image, ints.to_vec())) {
            return Ok(Rc::clone(plan));
        }
        let Some(Loaded::Kernel { image: kernel, .. }) = self.loaded.get(image) else { return Ok([].into()) };
        let planned = kernel.launches(ints).map_err(|error| CudaError::Launch(error.to_string()))?;
        let plan: Rc<[PlannedLaunch]> = planned.into();
        self.plans.insert((image, ints.to_vec()), Rc::clone(&plan));
        Ok(plan)
    }

    /// Times what `work` puts on the stream, with the judge's memory out of reach.
    fn timed(
        &mut self,
        limit: Duration,
        work: impl FnOnce(&mut Self) -> Result<(), CudaError>,
    ) -> Result<Duration, Fault> {
        let gpu = self.desk.gpu().clone();
        let began = Instant::now();
        let enqueued = self.marks[0].record().and_then(|()| work(self)).and_then(|()| self.marks[1].record());
        enqueued.map_err(CudaError::fault)?;
        gpu.synchronize(limit)?;
        let waited = began.elapsed();
        let took = gpu.elapsed_us(&self.marks[0], &self.marks[1]).map_err(CudaError::fault)?;
        let took = Duration::from_secs_f64(took.max(0.0) / 1e6);
        // The device's clock and the judge's must agree: what ends after the second mark was not waited for.
        Ok(took.min(waited))
    }

    /// Puts one call on the stream: what must be zero first, then its launches. Where it `follows` another one in a recording, its first
    /// launch begins early if it may.
    fn put(&mut self, call: &Call, follows: bool) -> Result<(), CudaError> {
        let gpu = self.desk.gpu().clone();
        for span in &call.zeroed {
            gpu.memset(self.address(span), 0, span.bytes)?;
        }
        let pointers: Vec<Option<u64>> =
            call.pointers.iter().map(|pointer| pointer.as_ref().map(|span| self.address(span))).collect();
        let plan = self.plan(call.image, &call.ints)?;
        match self.loaded.get(call.image) {
            Some(Loaded::Library(library)) => library.launch(&pointers, &call.ints),
            Some(Loaded::Glue(step, function)) => glue::launch(&gpu, function, *step, &pointers, &call.ints, follows),
            Some(Loaded::Kernel { image, functions }) => {
                let early = follows && call.zeroed.is_empty() && image.may_begin_early(&plan, call);
                for (number, launch) in plan.iter().enumerate() {
                    if self.conditions.rubbish_between && number > 0 {
                        self.desk.litter(self.rubbish ^ number as u64)?;
                    }
                    let arguments = arguments(&gpu, image, launch, call, &pointers)?;
                    let function = functions.get(&launch.kernel).ok_or_else(|| not_compiled(&launch.kernel))?;
                    let pdl = launch.pdl || early && number == 0;
                    gpu.launch(function, &Geometry { pdl, ..geometry(launch) }, &arguments)?;
                }
                Ok(())
            }
            None => Err(CudaError::Launch("a call of an image that is not loaded".into())),
        }
    }

    /// Whether a call has ended when its last launch has, which is what one that begins early waits for.
    fn ends_with_its_last(&mut self, call: &Call) -> Result<bool, CudaError> {
        let plan = self.plan(call.image, &call.ints)?;
        Ok(match self.loaded.get(call.image) {
            Some(Loaded::Kernel { image, .. }) => image.ends_with_its_last(&plan),
            _ => true,
        })
    }

    fn address(&self, span: &Span) -> u64 {
        self.ground.begin(span.region) + span.offset as u64
    }

    /// The recording of these calls, made when they are first asked for.
    fn graph(&mut self, calls: &[Call]) -> Result<&Graph, CudaError> {
        let key: Vec<(usize, Vec<u64>)> = calls
            .iter()
            .map(|call| {
                let places = call.pointers.iter().map(|p| p.as_ref().map_or(u64::MAX, |span| self.address(span)));
                let floats = call.floats.iter().map(|float| u64::from(float.to_bits()));
                (call.image, places.chain(call.ints.iter().map(|int| *int as u64)).chain(floats).collect())
            })
            .collect();
        if !self.graphs.contains_key(&key) {
            if self.graphs.len() >= MOST_GRAPHS {
                self.graphs.clear();
            }
            // Plans first: within a recording nothing may be asked of the driver that waits.
            let gpu = self.desk.gpu().clone();
            let put_all = || {
                let mut follows = false;
                calls.iter().try_for_each(|call| {
                    self.put(call, follows)?;
                    follows = self.conditions.overlapped && self.ends_with_its_last(call)?;
                    Ok(())
                })
            };
            let graph = gpu.capture(put_all)?;
            self.graphs.insert(key.clone(), graph);
        }
        self.graphs.get(&key).ok_or_else(|| CudaError::Launch("a recording is gone".into()))
    }

    /// Takes the judge's memory out of reach, and gives libraries theirs.
    fn seal(&self, calls: &[Call]) -> Result<(), CudaError> {
        self.desk.seal(&self.ground)?;
        let images: BTreeSet<usize> = calls.iter().map(|call| call.image).collect();
        images.into_iter().filter_map(|image| self.loaded.get(image)).try_for_each(|loaded| match loaded {
            Loaded::Library(library) => library.open(),
            Loaded::Kernel { .. } | Loaded::Glue(..) => Ok(()),
        })
    }

    /// What the next rubbish is drawn from.
    fn next_rubbish(&mut self) -> u64 {
        self.rubbish = crate::rng::mix(self.rubbish);
        self.rubbish
    }
}

impl crate::backend::Host for Host {
    type Arena = Arena;
    /// A digest of each output: a kernel that has ended has no reach.
    type Taken = Vec<[u64; 2]>;

    fn launch(&mut self, call: &Call, limit: Duration) -> Result<Duration, Fault> {
        let key = self.next_rubbish();
        let dirty = if self.conditions.rubbish_between {
            self.desk.litter(key)
        } else if self.conditions.dirty {
            self.desk.dirty(key)
        } else {
            Ok(())
        };
        dirty.and_then(|()| self.seal(std::slice::from_ref(call))).map_err(CudaError::fault)?;
        self.timed(limit, |host| host.put(call, false))
    }

    fn run(&mut self, calls: &[Call], limit: Duration) -> Result<Duration, Fault> {
        self.seal(calls).map_err(CudaError::fault)?;
        if calls.len() > 1 {
            self.graph(calls).map_err(CudaError::fault)?;
        }
        let key = self.next_rubbish();
        let ready = self.desk.gpu().reset_persisting_l2();
        // The sweep keeps the device busy while the work is enqueued behind it, so that no gap is timed.
        ready.and_then(|()| self.desk.flush(key)).map_err(CudaError::fault)?;
        self.timed(limit, |host| match calls {
            [one] => host.put(one, false),
            many => host.graph(many)?.launch(),
        })
    }

    fn idle_check(&self) -> Result<(), Fault> {
        // Work ends before `synchronize` does, and nothing on a device starts by itself.
        Ok(())
    }

    fn occupancy(&mut self, call: &Call) -> Vec<String> {
        let words = |(kernel, blocks, share)| {
            format!("{kernel}: {blocks} blocks a multiprocessor, occupancy {:.0} %", 100.0 * share)
        };
        // It is only told: where the driver does not say, nothing is.
        Self::occupancy(self, call.image, &call.ints).unwrap_or_default().into_iter().map(words).collect()
    }

    fn stands(taken: &Vec<[u64; 2]>, memory: &CaseMemory, arena: &mut Arena, copy: usize) -> bool {
        arena.digests(&memory.outputs(copy)).is_ok_and(|digests| digests == *taken)
    }

    fn take(&self, memory: &CaseMemory, arena: &mut Arena, copy: usize) -> Vec<[u64; 2]> {
        // Where the device is lost there is no digest, and the comparison that follows says so.
        arena.digests(&memory.outputs(copy)).unwrap_or_default()
    }
}

impl Loaded {
    fn new(gpu: &Gpu, image: &Image) -> Result<Self, CudaError> {
        Ok(match image {
            Image::Library(library) => Self::Library(library.clone()),
            Image::Glue(step, cubin) => Self::Glue(*step, gpu.module(cubin)?.function(step.function())?),
            Image::Kernel(image) => {
                let compiled = &image.compiled;
                let of_text = || -> Result<HashMap<String, Function>, CudaError> {
                    let module = gpu.module(&compiled.cubin)?;
                    let names = compiled.names.iter();
                    names.map(|(name, lowered)| Ok((name.clone(), module.function(lowered)?))).collect()
                };
                let of_launches = || -> Result<HashMap<String, Function>, CudaError> {
                    let all = compiled.jit.iter();
                    all.map(|(name, code)| Ok((name.clone(), gpu.module(&code.cubin)?.function(&code.lowered)?)))
                        .collect()
                };
                let functions = if compiled.jit.is_empty() { of_text()? } else { of_launches()? };
                Self::Kernel { image: Rc::clone(image), functions }
            }
        })
    }
}

fn not_compiled(kernel: &str) -> CudaError {
    CudaError::Launch(format!("`{kernel}` was not compiled"))
}

const fn geometry(launch: &PlannedLaunch) -> Geometry {
    let PlannedLaunch { grid, block, shared, cluster, cooperative, pdl, .. } = launch;
    Geometry { grid: *grid, block: *block, shared: *shared, cluster: *cluster, cooperative: *cooperative, pdl: *pdl }
}

fn arguments(
    gpu: &Gpu,
    image: &KernelImage,
    launch: &PlannedLaunch,
    call: &Call,
    pointers: &[Option<u64>],
) -> Result<Arguments, CudaError> {
    let missing = || CudaError::Launch("a call with fewer arguments than its plan".into());
    let tensors = image.op.tensors.len();
    let at = |index: usize| pointers.get(index).copied().ok_or_else(missing);
    launch.args.iter().try_fold(Arguments::new(), |all, argument| {
        Ok(match argument {
            Argument::Tensor(index) => all.pointer(at(*index)?.unwrap_or(0)),
            Argument::Scratch(index) => all.pointer(at(tensors + index)?.unwrap_or(0)),
            Argument::Symbol(index) => all.long(*call.ints.get(*index).ok_or_else(missing)?),
            Argument::Scalar(index) => all.float(*call.floats.get(*index).ok_or_else(missing)?),
            Argument::Constant(value) => all.long(*value),
            Argument::Float(bits) => all.float(f32::from_bits(*bits)),
            Argument::TensorMap(map) => {
                let index = match map.source {
                    MapSource::Tensor(index) => index,
                    MapSource::Scratch(index) => tensors + index,
                };
                let address = at(index)?.ok_or_else(|| CudaError::Launch("a tensor map of an absent tensor".into()))?;
                all.map(&gpu.tensor_map(&map_spec(map, address, image.resolution.dtype))?)
            }
        })
    })
}

/// What the driver is told of a map over what begins at `address`, in a kernel for tensors of `dtype`.
#[must_use]
pub fn map_spec(map: &PlannedMap, address: u64, dtype: Dtype) -> MapSpec {
    let element = match (map.dtype, dtype) {
        (ElementType::I64, _) => MapElement::I64,
        (ElementType::I32, _) => MapElement::I32,
        (ElementType::U8 | ElementType::I8, _) => MapElement::U8,
        (ElementType::F32, _) | (ElementType::Case, Dtype::F32) => MapElement::F32,
        (ElementType::Case, Dtype::F16) => MapElement::F16,
        (ElementType::Case, Dtype::Bf16) => MapElement::Bf16,
    };
    let swizzle = match map.swizzle {
        Swizzle::None => MapSwizzle::None,
        Swizzle::Bytes32 => MapSwizzle::B32,
        Swizzle::Bytes64 => MapSwizzle::B64,
        Swizzle::Bytes128 => MapSwizzle::B128,
    };
    MapSpec {
        address,
        element,
        dims: map.dims.clone(),
        strides: map.strides_bytes.clone(),
        extent: map.extent.clone(),
        steps: map.elem_strides.clone(),
        swizzle,
    }
}

/// What loading met: code that cannot be loaded is the kernel's fault, a lost device the machine's.
fn refused(error: CudaError) -> StartError {
    match error {
        CudaError::Lost(_) | CudaError::NoDriver(_) | CudaError::NoDevice { .. } => {
            StartError::Machine(error.to_string())
        }
        error if error.is_out_of_memory() => StartError::Machine(error.to_string()),
        error => StartError::Kernel(error.to_string()),
    }
}
