//! One compilation for each set of constants that the cases need.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;

use crate::backend::{BuildError, Image, Ready, ScratchBuffer, Source, Toolchain};
use crate::evaluation::{Stage, Verdict};
use crate::kernel::{KernelError, KernelFile, Resolution};
use crate::op::{Dtype, Operation, Shape};

use super::Failure;
use super::task::JudgeError;

/// The most compilations one kernel file may ask for: variants and specialisations multiply. Every operation that ships
/// has fewer cases than this, so that every symbol may be specialised.
pub const MAX_IMAGES: usize = 128;

/// Bytes of scratch for one shape, all buffers together, at the most: it is poisoned before every launch.
pub(super) const MAX_SCRATCH: usize = 1 << 29;

/// For each shape its image and the scratch it wants.
type ByShape = BTreeMap<(Shape, Dtype), (usize, Vec<ScratchBuffer>)>;

/// What computes an operation at some shapes: a kernel file compiled for them, or a library.
pub struct Build<B: Toolchain> {
    kernel: Option<KernelFile>,
    images: Vec<B::Image>,
    /// The constants that each image is compiled for; a library has none.
    codes: Vec<Resolution>,
    /// Places of images by their compile keys, and how many of the first are among them: an examination alone asks for these.
    by_key: (HashMap<String, usize>, usize),
    by_shape: ByShape,
}

/// A kernel file before it is compiled.
struct Plan {
    kernel: KernelFile,
    distinct: Vec<Resolution>,
    /// How many of these, the first, are wanted before the others.
    urgent: usize,
    by_shape: ByShape,
    as_fits: bool,
}

/// A kernel file and what it is wanted for.
pub struct Wanted<'a> {
    /// The file.
    pub kernel: KernelFile,
    /// The shapes and dtypes.
    pub shapes: &'a BTreeSet<(Shape, Dtype)>,
    /// Those of them that are wanted before the others.
    pub first: BTreeSet<(Shape, Dtype)>,
    /// Whether those shapes are left out at which the compiler asks for too much memory, rather than the kernel refused.
    pub as_fits: bool,
}

impl<'a> Wanted<'a> {
    /// Nothing is wanted before the rest.
    #[must_use]
    pub const fn new(kernel: KernelFile, shapes: &'a BTreeSet<(Shape, Dtype)>) -> Self {
        Self { kernel, shapes, first: BTreeSet::new(), as_fits: false }
    }
}

/// A kernel file while it is being compiled.
pub struct Making<'a, B: Toolchain> {
    plan: &'a Plan,
    images: Vec<Option<B::Image>>,
    /// The plan's, with what is known by now of what compilers ask for.
    by_shape: ByShape,
}

impl<'a, B: Toolchain> Making<'a, B> {
    fn new(plan: &'a Plan) -> Self {
        Self { plan, images: vec![None; plan.distinct.len()], by_shape: plan.by_shape.clone() }
    }

    /// Takes an image in.
    fn take(&mut self, op: &Operation, resolution: usize, image: B::Image) -> Result<(), Failure> {
        add_own_scratch(op, &mut self.by_shape, resolution, &image);
        self.images[resolution] = Some(image);
        too_large(&self.by_shape).map_or(Ok(()), |(shape, dtype)| Err(too_much(shape, *dtype)))
    }

    /// How many of its sets of constants are compiled.
    pub(super) fn compiled(&self) -> usize {
        self.images.iter().flatten().count()
    }

    /// What is compiled of it by now, for the shapes that this serves.
    #[must_use]
    pub fn ready(&self) -> Build<B> {
        let (mut images, mut codes) = (Vec::new(), Vec::new());
        let places: Vec<Option<usize>> = self
            .images
            .iter()
            .zip(&self.plan.distinct)
            .map(|(image, code)| {
                images.push(image.clone()?);
                codes.push(code.clone());
                Some(images.len() - 1)
            })
            .collect();
        let served = |(key, (index, scratch)): (&(Shape, Dtype), &(usize, Vec<ScratchBuffer>))| {
            places[*index].map(|place| (key.clone(), (place, scratch.clone())))
        };
        let by_shape = self.by_shape.iter().filter_map(served).collect();
        Build { kernel: Some(self.plan.kernel.clone()), images, codes, by_key: Default::default(), by_shape }
    }

    /// The scratch that a shape and dtype want, compiled or not.
    ///
    /// # Errors
    /// As [`Build::image`].
    pub fn scratch(&self, shape: &Shape, dtype: Dtype) -> Result<&[ScratchBuffer], JudgeError> {
        look_up(&self.by_shape, shape, dtype).map(|(_, scratch)| scratch)
    }
}

fn look_up<'a>(by_shape: &'a ByShape, shape: &Shape, dtype: Dtype) -> Result<(usize, &'a [ScratchBuffer]), JudgeError> {
    by_shape
        .get(&(shape.clone(), dtype))
        .map(|(index, scratch)| (*index, scratch.as_slice()))
        .ok_or_else(|| JudgeError::machine("build", format!("no image for {shape} {dtype}")))
}

impl Plan {
    /// The sets of constants that a kernel needs for what it is wanted for.
    fn new<B: Toolchain>(backend: &B, wanted: Wanted<'_>) -> Result<Self, Failure> {
        let Wanted { kernel, shapes, first, as_fits } = wanted;
        let mut distinct: Vec<Resolution> = Vec::new();
        let (mut by_shape, mut urgent) = (BTreeMap::new(), 0);
        for (shape, dtype) in first.iter().chain(shapes.difference(&first)) {
            let resolution = kernel.resolve(shape, *dtype, &backend.card().facts).map_err(refuse)?;
            if scratch_bytes(&kernel, &resolution).is_none_or(|bytes| bytes > MAX_SCRATCH) {
                return Err(too_much(shape, *dtype));
            }
            let scratch = ScratchBuffer::of(&kernel, &resolution);
            let code = code(resolution);
            let index = distinct.iter().position(|known| *known == code).unwrap_or_else(|| {
                distinct.push(code);
                distinct.len() - 1
            });
            by_shape.insert((shape.clone(), *dtype), (index, scratch));
            if by_shape.len() <= first.len() {
                urgent = distinct.len();
            }
        }
        if distinct.len() > MAX_IMAGES {
            let why = format!(
                "its variants and specialised symbols ask for {} compilations; at most {MAX_IMAGES} are made",
                distinct.len()
            );
            return Err(Failure::Verdict(Verdict::Error { stage: Stage::Compile, why }));
        }
        Ok(Self { kernel, distinct, urgent, by_shape, as_fits })
    }

    fn source(&self) -> Source<'_> {
        Source { kernel: &self.kernel, resolutions: &self.distinct, urgent: self.urgent }
    }
}

impl<B: Toolchain> Build<B> {
    /// Compiles each kernel for every shape and dtype that it is wanted for, each distinct set of constants once, all at the
    /// same time. Where the backend compiles without being in the way of anything else, `early` is shown what is ready of the
    /// first kernel whenever there is more, and every few milliseconds besides. It ends with the first that fails, or when `cancelled` is
    /// set.
    ///
    /// # Errors
    /// A verdict where a kernel is at fault, else the machine's failure.
    pub fn all(
        backend: &B,
        op: &Operation,
        wanted: Vec<Wanted<'_>>,
        cancelled: &AtomicBool,
        early: &mut dyn FnMut(&Making<'_, B>),
    ) -> Result<Vec<Self>, Failure> {
        let planned = wanted.into_iter().map(|wanted| Plan::new(backend, wanted)).collect::<Result<Vec<_>, _>>()?;
        let files: Vec<Source<'_>> = planned.iter().map(Plan::source).collect();
        let mut first = planned.first().map(Making::new);
        let mut ready = |images: Vec<Ready<B::Image>>| {
            let Some(making) = &mut first else { return };
            for (_, resolution, image) in images.into_iter().filter(|(file, ..)| *file == 0) {
                if making.take(op, resolution, image).is_err() {
                    // It is told when everything is compiled, as whatever else does not compile.
                    first = None;
                    return;
                }
            }
            early(making);
        };
        let images = backend.compile_in_turn(op, &files, cancelled, &mut ready)?;
        let build = |(Plan { kernel, distinct, mut by_shape, as_fits, .. }, images): (Plan, Vec<B::Image>)| {
            for (resolution, image) in images.iter().enumerate() {
                add_own_scratch(op, &mut by_shape, resolution, image);
            }
            while let Some((shape, dtype)) = too_large(&by_shape).cloned() {
                if !as_fits {
                    return Err(too_much(&shape, dtype));
                }
                by_shape.remove(&(shape, dtype));
            }
            Ok(Self { kernel: Some(kernel), images, codes: distinct, by_key: Default::default(), by_shape })
        };
        planned.into_iter().zip(images).map(build).collect()
    }

    /// What the user has today for these shapes where that is a library, with its name.
    pub fn library(backend: &B, op: &Operation, wanted: &BTreeSet<(Shape, Dtype)>) -> Option<(Self, &'static str)> {
        let mut build = Self {
            kernel: None,
            images: Vec::new(),
            codes: Vec::new(),
            by_key: Default::default(),
            by_shape: BTreeMap::new(),
        };
        let mut named = None;
        for (shape, dtype) in wanted {
            let (image, name) = backend.library(op, shape, *dtype)?;
            build.by_shape.insert((shape.clone(), *dtype), (build.images.len(), Vec::new()));
            build.images.push(image);
            named = Some(name);
        }
        named.map(|name| (build, name))
    }

    /// Takes in what else is compiled of the same kernel file.
    pub(super) fn take_in(&mut self, other: Self) {
        let begin = self.images.len();
        self.images.extend(other.images);
        self.codes.extend(other.codes);
        self.by_shape.extend(other.by_shape.into_iter().map(|(key, (place, scratch))| (key, (begin + place, scratch))));
    }

    /// Has it serve a shape more where nothing has to be compiled for that; tells whether it does.
    pub(super) fn serve(&mut self, backend: &B, op: &Operation, shape: &Shape, dtype: Dtype) -> bool {
        self.lacks(backend, op, shape, dtype).is_none()
    }

    /// Has it serve a shape more where nothing has to be compiled for that; else the compile key of what has to be, or what else tells it from
    /// others.
    pub(super) fn lacks(&mut self, backend: &B, op: &Operation, shape: &Shape, dtype: Dtype) -> Option<String> {
        let key = (shape.clone(), dtype);
        if self.by_shape.contains_key(&key) {
            return None;
        }
        let resolved = self.kernel.as_ref().and_then(|kernel| {
            let resolution = kernel.resolve(shape, dtype, &backend.card().facts).ok()?;
            scratch_bytes(kernel, &resolution)?;
            Some((ScratchBuffer::of(kernel, &resolution), code(resolution)))
        });
        let Some((scratch, code)) = resolved else { return Some(format!("{shape} {dtype}")) };
        let known = self.codes.iter().position(|known| *known == code);
        let place = match known.map_or_else(|| self.relaunched(backend, op, code), Ok) {
            Ok(place) => place,
            Err(key) => return Some(key),
        };
        let mut added = BTreeMap::from([(key, (place, scratch))]);
        add_own_scratch(op, &mut added, place, &self.images[place]);
        if too_large(&added).is_some() {
            return Some(format!("{shape} {dtype}"));
        }
        self.by_shape.extend(added);
        None
    }

    /// The place of an image for constants that differ from a compiled one's in nothing that the compiler is given; else their compile key.
    fn relaunched(&mut self, backend: &B, op: &Operation, code: Resolution) -> Result<usize, String> {
        let by_itself = || format!("{code:?}");
        let kernel = self.kernel.as_ref().ok_or_else(by_itself)?;
        let key = backend.compile_key(op, kernel, &code).ok_or_else(by_itself)?;
        let (by_key, keyed) = &mut self.by_key;
        for (place, code) in self.codes.iter().enumerate().skip(*keyed) {
            by_key.entry(backend.compile_key(op, kernel, code).ok_or_else(by_itself)?).or_insert(place);
        }
        *keyed = self.codes.len();
        let same = by_key.get(&key).and_then(|same| backend.relaunched(op, kernel, &code, &self.images[*same]));
        self.images.push(same.ok_or(key)?);
        self.codes.push(code);
        *keyed = self.codes.len();
        Ok(self.images.len() - 1)
    }

    /// What of it computes one shape: whatever runs it loads no more than that.
    pub(super) fn only(&self, shape: &Shape, dtype: Dtype) -> Result<Self, JudgeError> {
        let (place, scratch) = self.image(shape, dtype)?;
        Ok(Self {
            kernel: self.kernel.clone(),
            images: vec![self.images[place].clone()],
            codes: self.codes.get(place).cloned().into_iter().collect(),
            by_key: Default::default(),
            by_shape: BTreeMap::from([((shape.clone(), dtype), (0, scratch.to_vec()))]),
        })
    }

    /// The kernel file; a library has none.
    #[must_use]
    pub const fn kernel(&self) -> Option<&KernelFile> {
        self.kernel.as_ref()
    }

    /// Whether its sums may be taken in an order that differs between runs.
    #[must_use]
    pub fn order_free(&self) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.front.order_free)
    }

    /// All images, in the order that [`Build::image`] counts.
    #[must_use]
    pub fn images(&self) -> Vec<&B::Image> {
        self.images.iter().collect()
    }

    /// The image for a shape and dtype, and the scratch it wants.
    ///
    /// # Errors
    /// A shape that was not asked for in [`Build::new`]: the harness's own mistake.
    pub fn image(&self, shape: &Shape, dtype: Dtype) -> Result<(usize, &[ScratchBuffer]), JudgeError> {
        look_up(&self.by_shape, shape, dtype)
    }

    /// Whether there is an image for a shape and dtype.
    #[must_use]
    pub fn serves(&self, shape: &Shape, dtype: Dtype) -> bool {
        look_up(&self.by_shape, shape, dtype).is_ok()
    }

    /// What the compiler said, each remark once.
    #[must_use]
    pub fn log(&self) -> String {
        let mut lines: Vec<&str> = Vec::new();
        for line in self.images.iter().flat_map(|image| image.log().lines()) {
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines.join("\n")
    }
}

/// What a kernel is compiled for: scratch sizes differ by shape without changing the code.
fn code(resolution: Resolution) -> Resolution {
    Resolution { scratch_elements: Vec::new(), ..resolution }
}

/// Adds what the compiler asks for at each shape that `image` serves, which is known only now.
fn add_own_scratch(op: &Operation, by_shape: &mut ByShape, resolution: usize, image: &impl Image) {
    for ((shape, _), (_, scratch)) in by_shape.iter_mut().filter(|(_, (index, _))| *index == resolution) {
        // A shape without numbers has no plan, which its launch says.
        let own = op.ints(shape).map(|ints| image.own_scratch(&ints)).unwrap_or_default();
        scratch.extend(own.into_iter().map(ScratchBuffer::own));
    }
}

/// The first of the shapes at which there is more scratch than there may be.
fn too_large(by_shape: &ByShape) -> Option<&(Shape, Dtype)> {
    let fits = |dtype, scratch: &[ScratchBuffer]| {
        ScratchBuffer::bytes(scratch, dtype).is_some_and(|bytes| bytes <= MAX_SCRATCH)
    };
    by_shape.iter().find(|((_, dtype), (_, scratch))| !fits(*dtype, scratch)).map(|(key, _)| key)
}

fn too_much(shape: &Shape, dtype: Dtype) -> Failure {
    let why = format!("at {shape} {dtype} its scratch is larger than {} MiB", MAX_SCRATCH >> 20);
    Failure::Verdict(Verdict::Error { stage: Stage::Compile, why })
}

/// Bytes of all scratch buffers; `None` beyond all numbers.
pub(super) fn scratch_bytes(kernel: &KernelFile, resolution: &Resolution) -> Option<usize> {
    kernel.front.scratch.iter().zip(&resolution.scratch_elements).try_fold(0usize, |sum, (scratch, elements)| {
        sum.checked_add(elements.checked_mul(scratch.dtype.bytes(resolution.dtype))?)
    })
}

/// A kernel that cannot serve a shape it is asked for is rejected; one that contradicts itself is no kernel.
fn refuse(error: KernelError) -> Failure {
    let why = error.to_string();
    Failure::Verdict(match error {
        KernelError::OutsideDomain { .. } => Verdict::Reject { stage: Stage::Compile, why },
        _ => Verdict::Error { stage: Stage::Compile, why },
    })
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Kernel(why) => Self::Verdict(Verdict::Error { stage: Stage::Compile, why }),
            BuildError::Machine(what) => JudgeError::machine("compiler", what).into(),
            BuildError::Cancelled => JudgeError::Cancelled.into(),
        }
    }
}
