//! A CUDA file at a shape: what is started, how large, with what.

use std::collections::BTreeMap;

use super::file::Given;
use super::jit::known_at;
use super::names::{Named, instance, named};
use super::resolve::scratch_elements;
use super::tensor_map::{Ground, plan_map};
use super::{
    Facts, FrontMatter, JitLaunch, KernelError, KernelFile, Language, Launch, MapSource, PlannedMap, Resolution,
};
use crate::expr::Expr;
use crate::op::{Operation, Shape};

/// What CUDA allows of a grid: blocks in x, y, z.
const MAX_GRID: [i64; 3] = [i32::MAX as i64, 65535, 65535];

/// What it allows of a block: threads in x, y, z, and of all three together.
const MAX_BLOCK: [i64; 3] = [1024, 1024, 64];
const MAX_THREADS: i64 = 1024;

/// Threads of a warp.
const WARP: u32 = 32;

/// Blocks of a cluster: 8 run everywhere, 16 where the launcher asks for a size that is not portable.
const MAX_CLUSTER: i64 = 16;

/// Shared memory of a block that every GPU has, in bytes: what is assumed where the device does not say.
const LEAST_SMEM_MAX: i64 = 48 << 10;

/// Bytes of arguments that every GPU takes.
const MAX_ARGUMENT_BYTES: usize = 4096;

/// The first compute capability with clusters, programmatic dependent launches and tensor maps.
const HOPPER: i64 = 90;

/// One kernel to start.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlannedLaunch {
    /// The kernel, its template arguments in numbers: `gemm<128, 64>`.
    pub kernel: String,
    /// Blocks in x, y, z; none is 0.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, bytes.
    pub shared: u32,
    /// Blocks of a cluster in x, y, z.
    pub cluster: Option<[u32; 3]>,
    /// Whether all blocks must be resident at once.
    pub cooperative: bool,
    /// Whether it may begin before the launch in front of it has ended; never where the device cannot do that, nor of the first.
    pub pdl: bool,
    /// What the kernel is given, in order.
    pub args: Vec<Argument>,
}

/// What a kernel is given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Argument {
    /// Address of the operation's tensor of this index; NULL where it is absent.
    Tensor(usize),
    /// Address of the file's scratch buffer of this index.
    Scratch(usize),
    /// Value of the operation's symbol of this index, as `long long`.
    Symbol(usize),
    /// Value of the operation's scalar of this index, as `float`.
    Scalar(usize),
    /// A `CUtensorMap`, by value.
    TensorMap(PlannedMap),
    /// Value of a tunable or let, as `long long`.
    Constant(i64),
    /// Bits of a `float` that the file is given.
    Float(u32),
}

impl Argument {
    /// Bytes among the kernel's arguments.
    const fn bytes(&self) -> usize {
        match self {
            Self::Tensor(_) | Self::Scratch(_) | Self::Symbol(_) | Self::Constant(_) => 8,
            Self::Scalar(_) | Self::Float(_) => 4,
            Self::TensorMap(_) => 128,
        }
    }
}

impl KernelFile {
    /// What to start for the shape whose symbols have the values `ints`, in the operation's order. A launch without blocks
    /// is left out: it has nothing to do.
    ///
    /// # Errors
    /// An expression that fails, a name nobody knows, a size that CUDA or the device does not take, or a shape that no
    /// launch is for.
    pub fn launches(
        &self,
        op: &Operation,
        ints: &[i64],
        resolution: &Resolution,
        facts: &Facts,
    ) -> Result<Vec<PlannedLaunch>, KernelError> {
        if ints.len() != op.symbols.len() {
            let what = format!("{} values for the {} symbols of {}", ints.len(), op.symbols.len(), op.name);
            return Err(KernelError::Inconsistent(what));
        }
        let shape = Shape(op.symbols.iter().cloned().zip(ints.iter().copied()).collect());
        let shape = self.with_given(&shape);
        let known = known_at(&shape, resolution, facts);
        if self.language == Language::Triton && self.jit_launches(&shape, &known)? != resolution.jit {
            let what = format!("it was not compiled for shape {shape}");
            return Err(KernelError::Inconsistent(what));
        }
        let planner = Planner { front: &self.front, op, shape, known, resolution };
        let mut planned = Vec::new();
        let mut meant = 0;
        for (index, launch) in self.front.launches.iter().enumerate() {
            let place = format!("launch {} ({})", index + 1, launch.kernel);
            if planner.holds(&place, launch.when.as_ref())? {
                meant += 1;
                planned.extend(planner.plan(&place, launch, resolution.jit(index))?);
            }
        }
        // Where the launches in front of it are not for this shape, there is nothing of its own to overtake.
        if let Some(first) = planned.first_mut() {
            first.pdl = false;
        }
        if meant == 0 {
            let what = format!("no launch is for shape {} in {}", planner.shape, resolution.dtype);
            return Err(KernelError::Inconsistent(what));
        }
        Ok(planned)
    }
}

struct Planner<'a> {
    front: &'a FrontMatter,
    op: &'a Operation,
    shape: Shape,
    known: BTreeMap<String, i64>,
    resolution: &'a Resolution,
}

impl Planner<'_> {
    fn value(&self, place: &str, expr: &Expr) -> Result<i64, KernelError> {
        expr.int(&|name| self.known.get(name).copied())
            .map_err(|source| KernelError::Expression { place: place.to_owned(), source })
    }

    fn holds(&self, place: &str, when: Option<&Expr>) -> Result<bool, KernelError> {
        when.map_or(Ok(true), |when| Ok(self.value(&format!("{place}, when"), when)? != 0))
    }

    /// Three sizes, those left out 1; each at least `least` and at most what `most` says.
    fn sizes(
        &self,
        place: &str,
        key: &str,
        exprs: &[Expr],
        least: i64,
        most: [i64; 3],
    ) -> Result<[u32; 3], KernelError> {
        let mut sizes = [1u32; 3];
        for (axis, expr) in exprs.iter().enumerate().take(3) {
            let size = self.value(&format!("{place}, {key}"), expr)?;
            if !(least..=most[axis]).contains(&size) {
                let axis_name = ["x", "y", "z"][axis];
                let what =
                    format!("{key}.{axis_name} `{expr}` is {size}; it must be between {least} and {}", most[axis]);
                return Err(refuse(place, what));
            }
            sizes[axis] = size as u32;
        }
        Ok(sizes)
    }

    /// One launch; `jit` says how its kernel is compiled, where the file is in Triton.
    fn plan(
        &self,
        place: &str,
        launch: &Launch,
        jit: Option<&JitLaunch>,
    ) -> Result<Option<PlannedLaunch>, KernelError> {
        let mut grid = self.sizes(place, "grid", &launch.grid, 0, MAX_GRID)?;
        let block = match jit {
            Some(jit) => [jit.num_warps * WARP, 1, 1],
            None => self.sizes(place, "block", &launch.block, 1, MAX_BLOCK)?,
        };
        let threads = product(block);
        if threads > MAX_THREADS {
            return Err(refuse(place, format!("a block has {threads} threads; it has at most {MAX_THREADS}")));
        }
        let cluster = match launch.cluster.as_slice() {
            [] => None,
            sizes => Some(self.cluster(place, sizes, grid)?),
        };
        let cluster = match jit {
            // A program is then done by as many blocks.
            Some(jit) if jit.num_ctas > 1 => {
                let blocks = i64::from(grid[0]) * i64::from(jit.num_ctas);
                grid[0] = u32::try_from(blocks).ok().filter(|_| blocks <= MAX_GRID[0]).ok_or_else(|| {
                    refuse(place, format!("grid.x times num_ctas is {blocks}; it is at most {}", MAX_GRID[0]))
                })?;
                let expr = Expr::from(i64::from(jit.num_ctas));
                Some(self.cluster(place, std::slice::from_ref(&expr), grid)?)
            }
            _ => cluster,
        };
        let shared = self.shared(place, launch)?;
        if grid.contains(&0) {
            return Ok(None);
        }
        let args = launch
            .args
            .iter()
            .map(|name| self.argument(place, name))
            .collect::<Result<Vec<Argument>, KernelError>>()?;
        let bytes: usize = args.iter().map(Argument::bytes).sum();
        if bytes > MAX_ARGUMENT_BYTES {
            let what = format!("its arguments have {bytes} bytes; there is room for {MAX_ARGUMENT_BYTES}");
            return Err(refuse(place, what));
        }
        Ok(Some(PlannedLaunch {
            kernel: jit.map_or_else(|| instance(&launch.kernel, &self.resolution.macros), |jit| jit.name.clone()),
            grid,
            block,
            shared,
            cluster,
            cooperative: launch.cooperative,
            // It only permits an overlap, so that a device without it loses nothing but time.
            pdl: launch.pdl && self.cc() >= HOPPER,
            args,
        }))
    }

    fn shared(&self, place: &str, launch: &Launch) -> Result<u32, KernelError> {
        let Some(expr) = &launch.shared else { return Ok(0) };
        let most = self.known.get("SMEM_MAX").copied().unwrap_or(LEAST_SMEM_MAX);
        let bytes = self.value(&format!("{place}, shared"), expr)?;
        u32::try_from(bytes).ok().filter(|_| bytes <= most).ok_or_else(|| {
            refuse(place, format!("shared memory is {bytes} bytes; a block has at most {most} on this device"))
        })
    }

    fn cluster(&self, place: &str, exprs: &[Expr], grid: [u32; 3]) -> Result<[u32; 3], KernelError> {
        if self.cc() < HOPPER {
            return Err(refuse(place, format!("clusters need an sm_90; this device is sm_{}", self.cc())));
        }
        let cluster = self.sizes(place, "cluster", exprs, 1, [MAX_CLUSTER; 3])?;
        let blocks = product(cluster);
        if blocks > MAX_CLUSTER {
            return Err(refuse(place, format!("a cluster has {blocks} blocks; it has at most {MAX_CLUSTER}")));
        }
        for (axis, name) in ["x", "y", "z"].into_iter().enumerate() {
            if !grid[axis].is_multiple_of(cluster[axis]) {
                let (grid, cluster) = (grid[axis], cluster[axis]);
                let what = format!("grid.{name} is {grid}; it must be a multiple of the cluster's {cluster}");
                return Err(refuse(place, what));
            }
        }
        Ok(cluster)
    }

    /// The device's compute capability; 0 where it has none.
    fn cc(&self) -> i64 {
        self.known.get("CC").copied().unwrap_or(0)
    }

    fn argument(&self, place: &str, name: &str) -> Result<Argument, KernelError> {
        Ok(match named(self.front, self.op, name) {
            Some(Named::Tensor(index)) => Argument::Tensor(index),
            Some(Named::Scratch(index)) => Argument::Scratch(index),
            Some(Named::Symbol(index)) => Argument::Symbol(index),
            Some(Named::Scalar(index)) => Argument::Scalar(index),
            Some(Named::Map) => Argument::TensorMap(self.map(place, name)?),
            Some(Named::Given(Given::Int(value))) => Argument::Constant(value),
            Some(Named::Given(Given::Float(value))) => Argument::Float((value as f32).to_bits()),
            Some(Named::Constant) => match self.resolution.macros.get(name) {
                Some(value) => Argument::Constant(*value),
                None => return Err(refuse(place, format!("`{name}` has no value"))),
            },
            None => return Err(refuse(place, format!("nothing is called `{name}`"))),
        })
    }

    /// The first tensor map of this name whose `when` holds.
    fn map(&self, place: &str, name: &str) -> Result<PlannedMap, KernelError> {
        let own = format!("tensor map `{name}`");
        if self.cc() < HOPPER {
            return Err(refuse(&own, format!("tensor maps need an sm_90; this device is sm_{}", self.cc())));
        }
        for map in self.front.tensor_maps.iter().filter(|map| map.name == name) {
            if self.holds(&own, map.when.as_ref())? {
                let ground = self.ground(&own, &map.tensor)?;
                return plan_map(map, &ground, &|place, expr| self.value(place, expr));
            }
        }
        Err(refuse(place, format!("it takes the tensor map `{name}`, which is not made for shape {}", self.shape)))
    }

    /// What a tensor map is laid over.
    fn ground(&self, place: &str, name: &str) -> Result<Ground, KernelError> {
        let dtype = self.resolution.dtype;
        let of_operation = |error: crate::op::OpError| refuse(place, error.to_string());
        match named(self.front, self.op, name) {
            Some(Named::Tensor(index)) => {
                let tensor = &self.op.tensors[index];
                if !self.op.present(tensor, &self.shape).map_err(of_operation)? {
                    let what = format!("`{name}` is absent at shape {}; give the map a `when`", self.shape);
                    return Err(refuse(place, what));
                }
                let elements = self.op.elements(tensor, &self.shape).map_err(of_operation)? as u64;
                let size = tensor.dtype.bytes(dtype) as u64;
                Ok(Ground { source: MapSource::Tensor(index), dtype: tensor.dtype, size, elements })
            }
            Some(Named::Scratch(index)) => {
                let scratch = &self.front.scratch[index];
                // Not the resolution's: that of a compilation belongs to all shapes that share it.
                let elements = scratch_elements(scratch, &self.known)? as u64;
                let size = scratch.dtype.bytes(dtype) as u64;
                Ok(Ground { source: MapSource::Scratch(index), dtype: scratch.dtype, size, elements })
            }
            _ => Err(refuse(place, format!("`{name}` is neither a tensor nor a scratch buffer"))),
        }
    }
}

fn refuse(place: &str, what: String) -> KernelError {
    KernelError::Launch { place: place.to_owned(), what }
}

fn product(sizes: [u32; 3]) -> i64 {
    sizes.into_iter().map(i64::from).product()
}
