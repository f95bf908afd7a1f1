//! `reference/<op>.toml` as types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Dtype, ElementType, Shape};
use crate::expr::Expr;

/// What must be computed, by name, with everything the judge needs to know about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// Name: of the files, of the C function, in the ledger.
    pub name: String,
    /// One sentence for `warpsmith ops`.
    pub summary: String,
    /// Shape symbols in the order of the kernel's arguments; each is a 64-bit integer.
    pub symbols: Vec<String>,
    /// Symbols a shape may leave out, with their values (flags, batch = 1).
    #[serde(default)]
    pub defaults: BTreeMap<String, Expr>,
    /// Floating-point arguments, after the symbols.
    #[serde(default)]
    pub scalars: Vec<Scalar>,
    /// Tensors in the order of the kernel's arguments.
    pub tensors: Vec<TensorSpec>,
    /// Useful floating-point operations of one call.
    pub flops: Expr,
    /// Who says what is right.
    #[serde(default)]
    pub oracle: OracleKind,
    /// What a kernel must beat, where PyTorch is the oracle.
    #[serde(default)]
    pub bar: Bar,
    /// Oracle passes, in order; none where PyTorch is the oracle.
    #[serde(default)]
    pub passes: Vec<Pass>,
    /// How exact a result must be; where PyTorch is the oracle its own error says so.
    #[serde(default)]
    pub tolerance: Option<Tolerance>,
    /// What every shape must satisfy (`D % 2 == 0`); drawn shapes are drawn again until it holds.
    #[serde(default)]
    pub requires: Option<Expr>,
    /// Symbols that the CPU's shape-shrinking rule halves, largest first, never below 16.
    pub shrink: Vec<String>,
    /// Stage 1: the smallest case.
    pub smoke: Shape,
    /// Stage 2 shapes.
    pub sweep: Vec<Shape>,
    /// Which of the sweep is the primary shape (index).
    pub primary: usize,
    /// Stage 5 shapes.
    pub edges: Vec<Shape>,
    /// Shapes of incremental decoding, judged with the sweep.
    #[serde(default)]
    pub decode: Vec<Shape>,
    /// Inclusive ranges for the shape drawn at random in stage 5, by symbol; others take their default.
    pub random: BTreeMap<String, (i64, i64)>,
    /// Stage 3 inputs; where PyTorch is the oracle and none are written, those of [`super::hostile`].
    #[serde(default)]
    pub adversarial: Vec<Adversarial>,
    /// What [`Operation::draw_of`] knows beside them: their values among ordinary ones.
    #[serde(skip)]
    pub mixed: Vec<Adversarial>,
    /// Text of `reference/<op>.h`, the oracle; empty where PyTorch is.
    #[serde(skip)]
    pub header: String,
    /// Text of `reference/<op>.py`, where PyTorch is the oracle.
    #[serde(skip)]
    pub python: String,
}

/// Who says what is right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OracleKind {
    /// Passes in `reference/<op>.h`, compiled for the device.
    #[default]
    Header,
    /// `reference/<op>.py` in double precision, in a process that candidates never enter.
    Torch,
}

/// Which of PyTorch's ways a kernel must beat to be kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bar {
    /// The fastest of eager, torch.compile and max-autotune.
    #[default]
    Fastest,
    /// torch.compile as it comes: what runs there now, in a model that is used so.
    Compiled,
}

impl Bar {
    /// It in words.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Fastest => "the fastest of eager, torch.compile and max-autotune",
            Self::Compiled => "torch.compile, which runs there now",
        }
    }
}

/// A floating-point argument (`float` in C).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scalar {
    /// Name of the argument.
    pub name: String,
    /// Its value, in doubles, from the symbols; rounded to `float` once.
    pub value: Expr,
    /// Other values that models use, for which a kernel must be right as well.
    #[serde(default)]
    pub others: Vec<Expr>,
    /// Values between these two, both above zero, are drawn as well, evenly on a scale of factors: a kernel can know those that are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<[Expr; 2]>,
}

/// One tensor argument.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// Name of the argument.
    pub name: String,
    /// Read or written.
    pub role: Role,
    /// Dimensions; row-major and contiguous unless the operation's documentation says otherwise.
    pub shape: Vec<Expr>,
    /// Element type.
    pub dtype: ElementType,
    /// When this is given and zero, the tensor is absent and the kernel receives NULL.
    #[serde(default)]
    pub present: Option<Expr>,
    /// How values are drawn (inputs only).
    #[serde(default)]
    pub draw: Option<Draw>,
    /// A model's weight, the same for every call of one site (cold in memory), rather than an activation.
    #[serde(default)]
    pub weight: bool,
}

/// Whether a kernel reads or writes a tensor; never both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read only: mapped read-only into the candidate.
    Input,
    /// Written in full: poisoned before each launch.
    Output,
}

/// How a tensor's values are drawn: `(distribution * scale * row scale + shift)`, then the specials;
/// a row is the last dimension.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draw {
    /// Shape of the distribution.
    pub dist: Distribution,
    /// Factor, in doubles, from the symbols.
    #[serde(default)]
    pub scale: Option<Expr>,
    /// Added after scaling.
    #[serde(default)]
    pub shift: Option<Expr>,
    /// A factor for each row of the last dimension.
    #[serde(default)]
    pub rows: RowScale,
    /// Elements replaced after all else.
    #[serde(default)]
    pub specials: Vec<Special>,
    /// Of values of a file: how others that are like them are drawn, from which hostile ones are made. None where they have a structure,
    /// such as zeros below a diagonal, which nothing may disturb.
    #[serde(default)]
    pub like: Option<Box<Self>>,
}

impl Draw {
    /// Whether single elements may have other values.
    #[must_use]
    pub fn is_free(&self) -> bool {
        match self.dist {
            Distribution::File => self.like.is_some(),
            // They stand in order.
            Distribution::Ends => false,
            _ => true,
        }
    }
}

/// The distribution before scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Mean 0, variance 1 (`rng::Stream::normal`).
    Normal,
    /// Normal values, scaled and shifted, of which those below zero are zero: as behind a ReLU.
    Rectified,
    /// Uniform in [0, 1).
    Uniform,
    /// All ones.
    Constant,
    /// +1 and -1 by turns along the last dimension; the sign changes after 1, 2, 4 or 8 columns, drawn for each row.
    Alternating,
    /// +1 or -1 at random for each run of columns; a run is a power of two long, up to half a row, drawn for each row.
    Runs,
    /// One of 0, 1, … 7 at random: values some steps apart.
    Steps,
    /// Integers in `0..scale` (index tensors).
    Index,
    /// Where groups end that lie one behind another in `scale` rows, as many groups as a row of the tensor has elements: integers in order, of which the
    /// last is `scale`. Groups are alike on average, or most are small and the last ones large, drawn for each row.
    Ends,
    /// What `get_inputs` of the operation's problem file draws; scaled and shifted where that says so.
    File,
}

impl Distribution {
    /// Whether it gives integers.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        matches!(self, Self::Index | Self::Ends)
    }
}

/// How rows differ in magnitude.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowScale {
    /// All rows alike.
    #[default]
    None,
    /// A factor in [1/2, 2) for each row, uniform.
    Mild,
    /// A power of two in [2^-6, 2^6] for each row.
    Wide,
    /// Every row has the values of the first, times 1, 1/2 or 1/4.
    Repeated,
}

/// Elements replaced by a value, in each row of the last dimension: `count` of them at random places (which may coincide), or a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Special {
    /// The value, in doubles (`inf`, `-inf`, `nan` as TOML floats).
    pub value: f64,
    /// How many in a row, at random places; `None` replaces all of it.
    #[serde(default)]
    pub count: Option<u64>,
    /// Only each `every`-th row, from a row on that is drawn.
    #[serde(default = "one")]
    pub every: u64,
    /// They stand together: a run, from the row's beginning or from anywhere, whose length is a power of two up to `count`. Both
    /// are drawn for each row.
    #[serde(default)]
    pub run: bool,
}

impl Special {
    /// `count` elements at random places of each `every`-th row, or all of it.
    #[must_use]
    pub const fn scattered(value: f64, count: Option<u64>, every: u64) -> Self {
        Self { value, count, every, run: false }
    }

    /// A run of at most `longest` elements in each `every`-th row.
    #[must_use]
    pub const fn run(value: f64, longest: u64, every: u64) -> Self {
        Self { value, count: Some(longest), every, run: true }
    }
}

const fn one() -> u64 {
    1
}

/// One oracle pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Pass {
    /// `WS_PASS(name)` of the header, once for each item.
    Items(ItemsPass),
    /// A trusted matrix product.
    Product(Box<ProductPass>),
}

/// A pass written in the header.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ItemsPass {
    /// Name in the header.
    pub name: String,
    /// Number of items, from the symbols.
    pub items: Expr,
    /// Whether each element of its output needs of an earlier array as large only the same element; else an item of n needs
    /// the n-th part of each.
    #[serde(default)]
    pub elementwise: bool,
    /// What it writes.
    pub out: Vec<Output>,
}

/// The trusted double-precision product `out[batch,m,n] = a[batch,m,k] * b`; `b` is `[batch,k,n]`, or `[batch,n,k]` where `trans_b` holds.
///
/// Where matrices do not lie one after the other, `*_at` says where matrix `z` begins and `*_step` how far apart its rows are
/// (in elements; rows as they are stored, so of `b` its columns where `trans_b` holds).
///
/// Beside each value it gives the product of the factors' absolute terms: `|x|` for an input, what
/// `ws_put` was told for an earlier pass's output. Values that are not finite are computed again by `checked_by`, so that
/// terms which the header leaves out reach nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductPass {
    /// Left factor: an input or an earlier pass's output.
    pub a: String,
    /// Right factor.
    pub b: String,
    /// Number of products.
    pub batch: Expr,
    /// Rows of `a`.
    pub m: Expr,
    /// Columns of the product.
    pub n: Expr,
    /// Length of the sums.
    pub k: Expr,
    /// Whether `b` is stored transposed.
    pub trans_b: Expr,
    /// First element of matrix `z` of `a`.
    #[serde(default)]
    pub a_at: Option<Expr>,
    /// Elements from one row of `a` to the next.
    #[serde(default)]
    pub a_step: Option<Expr>,
    /// The same of `b`.
    #[serde(default)]
    pub b_at: Option<Expr>,
    /// The same of `b`.
    #[serde(default)]
    pub b_step: Option<Expr>,
    /// The same of the product.
    #[serde(default)]
    pub out_at: Option<Expr>,
    /// The same of the product.
    #[serde(default)]
    pub out_step: Option<Expr>,
    /// Name of the product.
    pub out: String,
    /// An items pass computing the same, against which a sample of elements is checked each time (its items are the elements
    /// of `out` as they lie in memory). It runs for that sample, and for what is not finite, never in full.
    pub checked_by: String,
}

/// What an items pass writes: an output tensor of the operation, or an intermediate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Name: an output tensor's, or a new one.
    pub name: String,
    /// Number of elements.
    pub size: Expr,
}

/// The tolerance, in two parts (docs/judging.md, "Tolerances").
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// L for fp16: bound of the relative rms error.
    pub f16: Expr,
    /// L for bf16.
    pub bf16: Expr,
    /// L for fp32.
    pub f32: Expr,
    /// K, the length of the sums.
    pub sum_length: Expr,
    /// Elements of a row of the output, for the test of each row.
    pub row: Expr,
    /// Whether a 16-bit result is rounded only once, from single precision: nearly all elements of an ordinary output are then
    /// the 16-bit number nearest to the oracle's.
    #[serde(default)]
    pub rounds_once: bool,
    /// Whether the terms of a sum have either sign in ordinary inputs: L of fp32, which then follows the length of the sums,
    /// holds without what C adds.
    #[serde(default)]
    pub signed_terms: bool,
    /// How many sums all elements of a row are made of, where that may be fewer than its elements: what cancels in one of a few is lost in
    /// the whole row, and L, which is for many, does not hold without C.
    #[serde(default)]
    pub shared_sums: Option<Expr>,
    /// Adds 6u times the row's rms to the element bound for 16-bit types (attention, mlp, rotary).
    #[serde(default)]
    pub row_term: bool,
}

/// A hostile input of stage 3.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adversarial {
    /// Name, for verdicts.
    pub name: String,
    /// Why it is there: the mistake it finds.
    pub why: String,
    /// Its shape.
    pub shape: Shape,
    /// Draws that differ from the ordinary ones, by tensor.
    pub draw: BTreeMap<String, Draw>,
    /// Only for these dtypes (all where empty).
    #[serde(default)]
    pub dtypes: Vec<Dtype>,
    /// At which shapes and flags the result is defined, where that is not all of them.
    #[serde(default)]
    pub requires: Option<Expr>,
    /// Where only a few terms of each sum are not zero, whatever its length: the bounds that hold then.
    #[serde(default)]
    pub few_terms: Option<FewTerms>,
    /// Only with floating-point arguments that are listed: at drawn ones its result depends on the algorithm.
    #[serde(default)]
    pub listed_arguments: bool,
}

/// Bounds for sums of which only a few terms are not zero.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FewTerms {
    /// K: how many.
    pub sum_length: Expr,
    /// L for fp32.
    pub f32: Expr,
}
