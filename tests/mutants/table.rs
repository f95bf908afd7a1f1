//! The mutation operators: one row each, applied at every site where it matches.

/// Which kind of mistake an operator makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Barrier,
    Fence,
    Bound,
    Identity,
    Index,
    Scalar,
    Condition,
    Arithmetic,
    Constant,
    Statement,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier dropped",
            Self::Fence => "fence dropped",
            Self::Bound => "bound shifted",
            Self::Identity => "identity swapped",
            Self::Index => "index narrowed",
            Self::Scalar => "scalar frozen",
            Self::Condition => "condition changed",
            Self::Arithmetic => "operator swapped",
            Self::Constant => "constant changed",
            Self::Statement => "statement dropped",
        }
    }
}

/// The languages of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Language {
    C,
    Cuda,
}

/// What an operator looks for.
pub enum Find {
    /// A pattern (`pattern::sites`).
    Text(&'static str),
    /// The same where the matched text, with its strings, has one of these parts.
    With(&'static str, &'static [&'static str]),
    /// The same where the second pattern does not match: it begins with the first.
    Unless(&'static str, &'static str),
    /// A statement that computes, stores or calls something.
    Statement,
}

/// A mutation operator.
pub struct Operator {
    pub kind: Kind,
    pub find: Find,
    pub to: &'static str,
    /// Where it makes sense; both where there is none.
    pub only: Option<Language>,
}

const fn text(kind: Kind, from: &'static str, to: &'static str) -> Operator {
    Operator { kind, find: Find::Text(from), to, only: None }
}

const fn with(kind: Kind, from: &'static str, parts: &'static [&'static str]) -> Operator {
    Operator { kind, find: Find::With(from, parts), to: "(void)0", only: Some(Cuda) }
}

const fn only(language: Language, kind: Kind, from: &'static str, to: &'static str) -> Operator {
    Operator { kind, find: Find::Text(from), to, only: Some(language) }
}

use Language::{C, Cuda};

/// What stands in the initial value of an index that may be large.
const PRODUCTS: &[&str] = &["begin", " * ", " / ", " % "];

/// Every operator. Indices are narrowed to 8 bits, because many are those of a tile; offsets to 32 in CUDA, and to 16 in C,
/// where no test has tensors that 32 bits do not reach.
pub const OPERATORS: &[Operator] = &[
    only(Cuda, Kind::Barrier, "__syncthreads()", "(void)0"),
    only(Cuda, Kind::Barrier, "__syncwarp($a)", "(void)0"),
    with(Kind::Barrier, "asm volatile($a)", &["bar.sync", "barrier", "mbar", "wait"]),
    only(Cuda, Kind::Fence, "__threadfence()", "(void)0"),
    only(Cuda, Kind::Fence, "__threadfence_block()", "(void)0"),
    with(Kind::Fence, "asm volatile($a)", &["fence", "membar"]),
    // A loop that goes by a step ends a step early: with one element less or more it mostly does the same.
    Operator { kind: Kind::Bound, find: Find::Unless(" < ", " < $x; $o += "), to: " <= ", only: None },
    text(Kind::Bound, " <= ", " < "),
    // Of two equal values either is the larger one.
    text(Kind::Bound, " > ", " < "),
    text(Kind::Bound, " >= ", " > "),
    Operator { kind: Kind::Bound, find: Find::Unless(" < $x;", " < $x; $o += "), to: " < $x - 1;", only: None },
    text(Kind::Bound, " < $x; $o += $y)", " < $x - $y; $o += $y)"),
    text(Kind::Bound, "smaller($o, $x)", "smaller($o, $x - 1)"),
    text(Kind::Bound, "smaller($o, $x)", "smaller($o, $x + 1)"),
    text(Kind::Identity, "-INFINITY", "0"),
    text(Kind::Identity, "- INFINITY", "- 0"),
    text(Kind::Identity, "MINUS_INFINITY", "0.0f"),
    text(Kind::Identity, "float $i = 0;", "float $i = 1e-3f;"),
    text(Kind::Identity, ", $i = 0;", ", $i = 1e-3f;"),
    text(Kind::Identity, " = {0};", " = {1e-3f};"),
    text(Kind::Identity, "sum = 0;", "sum = 1e-3f;"),
    text(Kind::Identity, " : 0.0f", " : 1e-3f"),
    text(Kind::Identity, "1 / ", "0 / "),
    text(Kind::Identity, "1.0f / ", "0.0f / "),
    Operator { kind: Kind::Index, find: Find::With("int64_t $i = $a;", PRODUCTS), to: "int8_t $i = $a;", only: None },
    only(C, Kind::Index, " + $o * $o", " + (int16_t)($o * $o)"),
    Operator { kind: Kind::Index, find: Find::With("int $i = $a;", PRODUCTS), to: "int8_t $i = $a;", only: Some(Cuda) },
    only(Cuda, Kind::Index, " + $o * $o", " + (int)($o * $o)"),
    only(Cuda, Kind::Index, " += $x * $o", " += (int)($x * $o)"),
    only(Cuda, Kind::Index, "(int64_t)blockIdx.x", "(short)blockIdx.x"),
    text(Kind::Index, "(size_t)", "(unsigned char)"),
    text(Kind::Scalar, "+ p->eps", "+ 1e-5f"),
    text(Kind::Scalar, "+ eps", "+ 1e-5f"),
    text(Kind::Scalar, "p->scale", "(1 / sqrtf((float)p->d))"),
    text(Kind::Scalar, "scale * 1.44269504f", "1 / sqrtf((float)D) * 1.44269504f"),
    text(Kind::Condition, "if ($x)", "if (!($x))"),
    text(Kind::Condition, " ? ", " == 0 ? "),
    text(Kind::Condition, " && ", " || "),
    text(Kind::Condition, " || ", " && "),
    text(Kind::Condition, " == ", " != "),
    text(Kind::Condition, " != ", " == "),
    text(Kind::Arithmetic, " + ", " - "),
    text(Kind::Arithmetic, " - ", " + "),
    text(Kind::Arithmetic, " * ", " + "),
    text(Kind::Arithmetic, " / ", " * "),
    text(Kind::Arithmetic, " % ", " / "),
    text(Kind::Arithmetic, " += ", " = "),
    text(Kind::Arithmetic, " += ", " -= "),
    text(Kind::Arithmetic, " -= ", " += "),
    text(Kind::Arithmetic, " *= ", " = "),
    text(Kind::Arithmetic, " /= ", " -= "),
    text(Kind::Arithmetic, " & ", " | "),
    text(Kind::Arithmetic, " | ", " & "),
    text(Kind::Arithmetic, " << ", " >> "),
    text(Kind::Arithmetic, " >> ", " << "),
    text(Kind::Arithmetic, "fmaxf(", "fminf("),
    text(Kind::Arithmetic, "min(", "max("),
    text(Kind::Arithmetic, "max(", "min("),
    text(Kind::Constant, "$n", "($n + 1)"),
    text(Kind::Constant, "$f", "(2.0f * $f)"),
    text(Kind::Statement, "continue;", ";"),
    text(Kind::Statement, "break;", ";"),
    text(Kind::Statement, "return;", ";"),
    Operator { kind: Kind::Statement, find: Find::Statement, to: "", only: None },
];
