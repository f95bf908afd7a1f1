//! `[[launch]]` and `[[tensormap]]`: what a CUDA file wants started, as it says so.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::file::is_identifier;
use super::{FrontMatter, KernelError, Language};
use crate::expr::Expr;

/// Launches in a file: a step of a model is a handful of kernels, and each costs microseconds.
pub(super) const MAX_LAUNCHES: usize = 64;

/// The longest name of a kernel with its template arguments, in bytes.
const MAX_NAME: usize = 256;

/// The start of one kernel, for the shapes where `when` holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// A `__global__` function, or an instance of a template, whose arguments may be tunables and lets: `gemm<BM, BN>`.
    pub kernel: String,
    /// Blocks in x, y, z; what is left out is 1.
    pub grid: Vec<Expr>,
    /// Threads of a block in x, y, z; what is left out is 1. A Triton file has none: its compiler chooses.
    #[serde(default)]
    pub block: Vec<Expr>,
    /// Dynamic shared memory of a block in bytes (0 where left out).
    #[serde(default)]
    pub shared: Option<Expr>,
    /// The arguments by name: tensors, scratch, symbols, scalars, tensor maps, tunables and lets.
    pub args: Vec<String>,
    /// Where it runs (everywhere where left out).
    #[serde(default)]
    pub when: Option<Expr>,
    /// Blocks of a cluster in x, y, z (none where empty).
    #[serde(default)]
    pub cluster: Vec<Expr>,
    /// Whether all its blocks must be resident at once, so that they may wait for each other.
    #[serde(default)]
    pub cooperative: bool,
    /// Whether it may begin before the launch in front of it has ended (programmatic dependent launch).
    #[serde(default)]
    pub pdl: bool,
    /// Warps of a block (Triton; 4 where left out).
    #[serde(default, deserialize_with = "expr_or_number")]
    pub num_warps: Option<Expr>,
    /// Loads that its loops have under way at once (Triton; 3 where left out).
    #[serde(default, deserialize_with = "expr_or_number")]
    pub num_stages: Option<Expr>,
    /// Blocks of a cluster that work on one program together (Triton; 1 where left out).
    #[serde(default, deserialize_with = "expr_or_number")]
    pub num_ctas: Option<Expr>,
    /// Values of the kernel's `tl.constexpr` parameters by name (Triton).
    #[serde(default, deserialize_with = "exprs_or_numbers")]
    pub constexprs: BTreeMap<String, Expr>,
}

/// A whole number may stand for itself where an expression is wanted.
#[derive(Deserialize)]
#[serde(untagged, expecting = "an expression in quotes, or a whole number")]
enum ExprOrNumber {
    Number(i64),
    Expr(Expr),
}

impl From<ExprOrNumber> for Expr {
    fn from(either: ExprOrNumber) -> Self {
        match either {
            ExprOrNumber::Number(number) => Self::from(number),
            ExprOrNumber::Expr(expr) => expr,
        }
    }
}

fn expr_or_number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Expr>, D::Error> {
    Option::<ExprOrNumber>::deserialize(from).map(|either| either.map(Into::into))
}

fn exprs_or_numbers<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Expr>, D::Error> {
    let read = BTreeMap::<String, ExprOrNumber>::deserialize(from)?;
    Ok(read.into_iter().map(|(name, either)| (name, either.into())).collect())
}

/// A description of a tensor for the copy engine (TMA), handed to a kernel by value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorMap {
    /// Name of the argument. Where several have it, the first whose `when` holds is taken.
    pub name: String,
    /// The tensor or scratch buffer it describes.
    pub tensor: String,
    /// Sizes in elements, the contiguous dimension first (as the driver has it).
    pub dims: Vec<Expr>,
    /// Distances in elements between neighbours of every dimension but the first (packed where left out).
    #[serde(default)]
    pub strides: Vec<Expr>,
    /// Elements of the box that one copy moves, in the order of `dims`.
    #[serde(rename = "box")]
    pub extent: Vec<Expr>,
    /// Steps within the box (1 where left out).
    #[serde(default)]
    pub elem_strides: Vec<Expr>,
    /// How the box lies in shared memory.
    #[serde(default)]
    pub swizzle: Swizzle,
    /// Where it is made (everywhere where left out).
    #[serde(default)]
    pub when: Option<Expr>,
}

/// The pattern in which 16-byte pieces of a box lie in shared memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Swizzle {
    /// In order.
    #[default]
    #[serde(rename = "none")]
    None,
    /// Shuffled within 32 bytes.
    #[serde(rename = "32B")]
    Bytes32,
    /// Shuffled within 64 bytes.
    #[serde(rename = "64B")]
    Bytes64,
    /// Shuffled within 128 bytes.
    #[serde(rename = "128B")]
    Bytes128,
}

impl Swizzle {
    /// Bytes within which it shuffles: the widest box it can take. `None` where there is no such limit.
    #[must_use]
    pub const fn span(self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Bytes32 => Some(32),
            Self::Bytes64 => Some(64),
            Self::Bytes128 => Some(128),
        }
    }
}

impl FrontMatter {
    /// Whether the file is for a GPU: it has launches.
    #[must_use]
    pub const fn is_cuda(&self) -> bool {
        !self.launches.is_empty()
    }

    /// Whether the file is written for `backend`, `cpu` or `cuda`.
    ///
    /// # Errors
    /// A file of the other kind, in a sentence that says how they differ.
    pub fn check_backend(&self, backend: &str) -> Result<(), KernelError> {
        let what = match (backend, self.is_cuda()) {
            ("cuda", false) => "it has no [[launch]], so it is a kernel for the CPU; a CUDA file says what to launch",
            ("cpu", true) => {
                "it has [[launch]], so it is a kernel for CUDA; a CPU file has none, and exports a function"
            }
            _ => return Ok(()),
        };
        Err(KernelError::Inconsistent(what.to_owned()))
    }

    /// What can be seen wrong in launches and tensor maps without knowing the operation.
    pub(super) fn check_launches(&self, language: Language) -> Result<(), KernelError> {
        let fail = |what: String| Err(KernelError::Inconsistent(what));
        if self.launches.len() > MAX_LAUNCHES {
            return fail(format!("{} launches; there may be {MAX_LAUNCHES}", self.launches.len()));
        }
        if language == Language::Triton && !self.is_cuda() {
            return fail("it has no [[launch]]; a Triton file says what to launch".into());
        }
        if let (Language::Triton, Some(map)) = (language, self.tensor_maps.first()) {
            return fail(format!("tensor map `{}`: a Triton kernel takes none", map.name));
        }
        if let (true, Some(symbol)) = (language != Language::Triton, self.divisible.first()) {
            return fail(format!("divisible: `{symbol}`: only Triton's compiler is told of divisibility"));
        }
        if let (false, Some(map)) = (self.is_cuda(), self.tensor_maps.first()) {
            return fail(format!("tensor map `{}` without a [[launch]] that could take it", map.name));
        }
        let taken = |name: &String| self.tune.contains_key(name) || self.lets.contains_key(name);
        if let Some(name) = self.given.keys().find(|name| !is_identifier(name) || taken(name)) {
            return fail(format!("given: `{name}` is no name, or a tunable's or let's"));
        }
        for (index, launch) in self.launches.iter().enumerate() {
            let place = format!("launch {}", index + 1);
            if let Err(what) = check_name(&launch.kernel) {
                return fail(format!("{place}: kernel `{}` {what}", launch.kernel));
            }
            launch.check_keys(language).or_else(|what| fail(format!("{place} ({}): {what}", launch.kernel)))?;
            let least_block = usize::from(language != Language::Triton);
            for (key, sizes, least) in
                [("grid", &launch.grid, 1), ("block", &launch.block, least_block), ("cluster", &launch.cluster, 0)]
            {
                if !(least..=3).contains(&sizes.len()) {
                    return fail(format!("{place}: {key} has {} sizes; it has one to three (x, y, z)", sizes.len()));
                }
            }
        }
        if let Some(first) = self.launches.first().filter(|first| first.pdl) {
            return fail(format!(
                "launch 1 ({}): pdl = true lets a launch begin before the one in front of it has ended, and none is in front of it",
                first.kernel
            ));
        }
        let mut always = BTreeSet::new();
        for map in &self.tensor_maps {
            let place = format!("tensor map `{}`", map.name);
            if !is_identifier(&map.name) {
                return fail(format!("{place} is not an identifier"));
            }
            if self.scratch.iter().any(|scratch| scratch.name == map.name) {
                return fail(format!("{place} has the name of a scratch buffer"));
            }
            if always.contains(map.name.as_str()) {
                return fail(format!("{place} stands again after one that is always taken"));
            }
            if map.when.is_none() {
                always.insert(map.name.as_str());
            }
            let rank = map.dims.len();
            if !(1..=5).contains(&rank) {
                return fail(format!("{place} has {rank} dims; it has one to five"));
            }
            for (key, found, wanted, optional) in [
                ("box", map.extent.len(), rank, false),
                ("strides", map.strides.len(), rank - 1, true),
                ("elem_strides", map.elem_strides.len(), rank, true),
            ] {
                if found != wanted && !(optional && found == 0) {
                    return fail(format!("{place}: {found} {key} for {rank} dims; there must be {wanted}"));
                }
            }
        }
        Ok(())
    }
}

impl Launch {
    /// Refuses keys of another language.
    fn check_keys(&self, language: Language) -> Result<(), String> {
        let triton = [
            ("num_warps", self.num_warps.is_some()),
            ("num_stages", self.num_stages.is_some()),
            ("num_ctas", self.num_ctas.is_some()),
            ("constexprs", !self.constexprs.is_empty()),
        ];
        let cuda = [
            ("block", !self.block.is_empty(), "its threads are 32 * num_warps"),
            ("shared", self.shared.is_some(), "the compiler says how much shared memory it takes"),
            ("cluster", !self.cluster.is_empty(), "num_ctas says how many blocks make a cluster"),
            ("pdl", self.pdl, "dependent launches are for CUDA files"),
        ];
        let given = |list: &[(&'static str, bool)]| list.iter().find(|(_, given)| *given).map(|(key, _)| *key);
        match language {
            Language::Triton => match cuda.into_iter().find(|(_, given, _)| *given) {
                Some((key, _, instead)) => Err(format!("`{key}` is not for Triton: {instead}")),
                None if self.kernel.contains('<') => {
                    Err("a Triton kernel has no template arguments, but constexprs".into())
                }
                None => Ok(()),
            },
            Language::C | Language::Cuda => match given(&triton) {
                Some(key) => Err(format!("`{key}` is for Triton files")),
                None => Ok(()),
            },
        }
    }
}

/// Whether a text is a kernel's name, perhaps with template arguments.
fn check_name(name: &str) -> Result<(), &'static str> {
    let (function, arguments) = name.split_at(name.find('<').unwrap_or(name.len()));
    if !function.trim_end().split("::").all(is_name) {
        return Err("is not a function's name, such as gemm or gemm<BM>");
    }
    if name.len() > MAX_NAME {
        return Err("is too long");
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_:<>(), +-*/%".contains(c);
    if !arguments.chars().all(allowed) {
        return Err("has characters that template arguments do not have");
    }
    let closed = arguments.is_empty() || (arguments.ends_with('>') && balanced(arguments));
    if closed { Ok(()) } else { Err("has template arguments that do not close") }
}

/// A name of C++, which unlike ours may begin with `_`.
fn is_name(name: &str) -> bool {
    is_identifier(name.trim_start_matches('_'))
}

/// Whether every bracket closes what was opened last; in parentheses `<` and `>` compare.
fn balanced(text: &str) -> bool {
    let mut open = Vec::new();
    text.chars().all(|c| match c {
        '<' | '>' if open.last() == Some(&'(') => true,
        '<' | '(' => {
            open.push(c);
            true
        }
        '>' => open.pop() == Some('<'),
        ')' => open.pop() == Some('('),
        _ => true,
    }) && open.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::KernelFile;

    const FILE: &str = "/*---\nop = \"rmsnorm\"\ndtypes = [\"f16\"]\n[[tensormap]]\nname = \"map_x\"\ntensor = \"x\"\n\
                        dims = [\"cols\", \"rows\"]\nstrides = [\"cols\"]\nbox = [\"64\", \"8\"]\nswizzle = \"128B\"\n\
                        [[launch]]\nkernel = \"norm\"\ngrid = [\"rows\"]\nblock = [\"128\"]\nargs = [\"x\", \"y\"]\n---*/\n";

    #[test]
    fn a_file_with_launches_is_for_cuda_and_one_without_is_not() {
        let cuda = KernelFile::parse(FILE).expect("parses").front;
        let cpu = KernelFile::parse("/*---\nop = \"x\"\ndtypes = [\"f32\"]\n---*/").expect("parses").front;
        assert!(cuda.is_cuda() && !cpu.is_cuda());
        assert!(cuda.check_backend("cuda").is_ok() && cpu.check_backend("cpu").is_ok());
        let error = |front: &FrontMatter, backend| front.check_backend(backend).expect_err(backend).to_string();
        assert!(error(&cuda, "cpu").contains("a kernel for CUDA"));
        assert!(error(&cpu, "cuda").contains("a kernel for the CPU"));
    }

    #[test]
    fn what_is_left_out_of_a_launch_is_nothing_special() {
        let front = KernelFile::parse(FILE).expect("parses").front;
        let launch = &front.launches[0];
        assert!(launch.shared.is_none() && launch.when.is_none() && launch.cluster.is_empty());
        assert!(!launch.cooperative && !launch.pdl);
        assert_eq!(front.tensor_maps[0].swizzle, Swizzle::Bytes128);
        assert!(front.tensor_maps[0].elem_strides.is_empty());
    }

    #[test]
    fn mistakes_in_launches_and_tensor_maps_are_named() {
        let again = "[[tensormap]]\nname = \"map_x\"\ntensor = \"x\"\ndims = [\"1\"]\nbox = [\"1\"]\n[[launch]]";
        for (from, to, part) in [
            ("\"norm\"", "\"norm<\"", "do not close"),
            ("\"norm\"", "\"norm<(>)\"", "do not close"),
            ("\"norm\"", "\"norm<8>x\"", "do not close"),
            ("\"norm\"", "\"norm<\\\"8\\\">\"", "characters"),
            ("\"norm\"", "\"norm;x\"", "not a function's name"),
            ("\"norm\"", "\"\"", "not a function's name"),
            ("\"norm\"", "\"8norm\"", "not a function's name"),
            ("grid = [\"rows\"]", "grid = []", "grid has 0 sizes"),
            ("[\"128\"]", "[\"1\", \"1\", \"1\", \"1\"]", "block has 4 sizes"),
            ("[\"128\"]", "[128]", "expected a string"),
            ("args =", "cluster = [\"1\", \"1\", \"1\", \"2\"]\nargs =", "cluster has 4 sizes"),
            ("args =", "arguments = [\"x\"]\nargs =", "arguments"),
            ("grid = [\"rows\"]\n", "", "missing field `grid`"),
            ("\"map_x\"", "\"map-x\"", "not an identifier"),
            ("[\"cols\", \"rows\"]", "[]", "has 0 dims"),
            ("[\"64\", \"8\"]", "[\"64\"]", "1 box for 2 dims; there must be 2"),
            ("strides = [\"cols\"]", "strides = [\"1\", \"cols\"]", "2 strides for 2 dims; there must be 1"),
            ("strides = [\"cols\"]", "elem_strides = [\"1\"]", "1 elem_strides for 2 dims"),
            ("128B", "96B", "96B"),
            ("args =", "pdl = true\nargs =", "launch 1 (norm): pdl = true lets a launch begin before"),
            ("[[launch]]", again, "stands again"),
            ("dtypes", "scratch = [{ name = \"map_x\", dtype = \"f32\", shape = [] }]\ndtypes", "scratch buffer"),
        ] {
            let error = KernelFile::parse(&FILE.replace(from, to)).expect_err(to).to_string();
            assert!(error.contains(part), "{to}: {error}");
        }
        let end = FILE.find("[[launch]]").expect("is there");
        let error = KernelFile::parse(&format!("{}---*/", &FILE[..end])).expect_err("no launch").to_string();
        assert!(error.contains("without a [[launch]]"), "{error}");
        let launch = &FILE[end..FILE.len() - "---*/\n".len()];
        let many = format!("{}---*/", FILE.replace("---*/\n", "") + &launch.repeat(MAX_LAUNCHES));
        let error = KernelFile::parse(&many).expect_err("too many").to_string();
        assert!(error.contains("65 launches"), "{error}");
    }

    #[test]
    fn names_of_kernels_are_functions_and_instances_of_templates() {
        for name in ["norm", "_norm2", "ns::norm", "norm<BM>", "norm<BM / 2, T, pair<int, 4>>", "norm<(A > 1)>"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        assert!(check_name(&format!("norm<{}>", "8".repeat(MAX_NAME))).is_err());
    }
}
