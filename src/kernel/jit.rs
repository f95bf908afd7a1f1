//! Launches of a Triton file at a shape: what each kernel is compiled for.

use std::collections::{BTreeMap, BTreeSet};

use super::file::Given;
use super::names::{Named, named};
use super::{Facts, KernelError, KernelFile, Resolution};
use crate::expr::Expr;
use crate::op::{Operation, Shape, Stored};

/// What integers are told to be multiples of: 16 elements, so that a row of any type begins where a vector load may.
const DIVISOR: i64 = 16;

/// What Triton itself takes where nobody says otherwise.
const USUAL_WARPS: i64 = 4;
const USUAL_STAGES: i64 = 3;

/// Warps that a block may have: powers of two, 1024 threads at most.
const MOST_WARPS: i64 = 32;
/// Stages beyond which no shared memory is large enough for anything.
const MOST_STAGES: i64 = 16;
/// Blocks of a cluster that run everywhere.
const MOST_CTAS: i64 = 8;

/// A launch of a Triton file as its kernel is compiled.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JitLaunch {
    /// Its index in the file.
    pub launch: usize,
    /// What the plan calls it: its kernel, and the launch's number where the file launches that kernel more than once.
    pub name: String,
    /// The `@triton.jit` function.
    pub kernel: String,
    /// Warps of a block.
    pub num_warps: u32,
    /// Loads that its loops have under way at once.
    pub num_stages: u32,
    /// Blocks of a cluster.
    pub num_ctas: u32,
    /// Values of its `tl.constexpr` parameters.
    pub constexprs: BTreeMap<String, i64>,
    /// Those of its arguments that are multiples of 16 here, of those that the file asks about.
    pub divisible: BTreeSet<String>,
}

/// What the compiler is told of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JitArgument {
    /// An address that is a multiple of 16, or NULL.
    Pointer(Stored),
    /// A 64-bit integer, and whether it is a multiple of 16.
    Integer {
        /// Whether it is.
        divisible: bool,
    },
    /// A single-precision number.
    Float,
}

impl KernelFile {
    /// The launches that are for `shape`, as they are compiled; `known` has every name with a value there. None where the file is
    /// not in Triton.
    pub(super) fn jit_launches(
        &self,
        shape: &Shape,
        known: &BTreeMap<String, i64>,
    ) -> Result<Vec<JitLaunch>, KernelError> {
        let front = &self.front;
        if self.language != super::Language::Triton {
            return Ok(Vec::new());
        }
        let is_divisible = |symbol: &String| shape.get(symbol).is_some_and(|value| value % DIVISOR == 0);
        let divisible: BTreeSet<&String> = front.divisible.iter().filter(|symbol| is_divisible(symbol)).collect();
        let mut launches = Vec::new();
        for (index, launch) in front.launches.iter().enumerate() {
            let place = format!("launch {} ({})", index + 1, launch.kernel);
            let value = |key: &str, expr: &Expr| {
                expr.int(&|name| known.get(name).copied())
                    .map_err(|source| KernelError::Expression { place: format!("{place}, {key}"), source })
            };
            if let Some(when) = &launch.when
                && value("when", when)? == 0
            {
                continue;
            }
            let within = |key: &str, expr: &Option<Expr>, usual: i64, most: i64, powers: bool| {
                let number = expr.as_ref().map_or(Ok(usual), |expr| value(key, expr))?;
                let fits = (1..=most).contains(&number) && (!powers || (number as u64).is_power_of_two());
                let what = if powers { "a power of two from 1" } else { "between 1" };
                let to = if powers { "to" } else { "and" };
                fits.then_some(number as u32).ok_or_else(|| KernelError::Launch {
                    place: place.clone(),
                    what: format!("{key} is {number}; it must be {what} {to} {most}"),
                })
            };
            let constexprs = launch.constexprs.iter().map(|(name, expr)| Ok((name.clone(), value(name, expr)?)));
            let often = front.launches.iter().filter(|other| other.kernel == launch.kernel).count() > 1;
            launches.push(JitLaunch {
                launch: index,
                name: if often { format!("{}#{}", launch.kernel, index + 1) } else { launch.kernel.clone() },
                kernel: launch.kernel.clone(),
                num_warps: within("num_warps", &launch.num_warps, USUAL_WARPS, MOST_WARPS, true)?,
                num_stages: within("num_stages", &launch.num_stages, USUAL_STAGES, MOST_STAGES, false)?,
                num_ctas: within("num_ctas", &launch.num_ctas, 1, MOST_CTAS, true)?,
                constexprs: constexprs.collect::<Result<_, KernelError>>()?,
                divisible: launch.args.iter().filter(|name| divisible.contains(name)).cloned().collect(),
            });
        }
        Ok(launches)
    }

    /// What the compiler is told of the arguments of a launch, in order.
    ///
    /// # Errors
    /// A name that nobody has, or something that a Triton kernel does not take.
    pub fn jit_arguments(
        &self,
        op: &Operation,
        resolution: &Resolution,
        jit: &JitLaunch,
    ) -> Result<Vec<JitArgument>, KernelError> {
        let names = self.front.launches.get(jit.launch).map_or(&[][..], |launch| &launch.args);
        let told = |name: &String| match named(&self.front, op, name) {
            Some(Named::Tensor(index)) => Ok(JitArgument::Pointer(op.tensors[index].dtype.stored(resolution.dtype))),
            Some(Named::Scratch(index)) => {
                Ok(JitArgument::Pointer(self.front.scratch[index].dtype.stored(resolution.dtype)))
            }
            Some(Named::Symbol(_) | Named::Given(Given::Int(_))) => {
                Ok(JitArgument::Integer { divisible: jit.divisible.contains(name) })
            }
            // Its value may differ between shapes that share a compilation.
            Some(Named::Constant) => Ok(JitArgument::Integer { divisible: false }),
            Some(Named::Scalar(_) | Named::Given(Given::Float(_))) => Ok(JitArgument::Float),
            Some(Named::Map) | None => Err(KernelError::Launch {
                place: format!("launch {} ({})", jit.launch + 1, jit.kernel),
                what: format!("`{name}` is nothing that a Triton kernel takes"),
            }),
        };
        names.iter().map(told).collect()
    }
}

impl Resolution {
    /// How the launch of this index is compiled; `None` where it is not for the shape, or the file not in Triton.
    #[must_use]
    pub fn jit(&self, launch: usize) -> Option<&JitLaunch> {
        self.jit.iter().find(|jit| jit.launch == launch)
    }
}

/// Facts of a device and a shape together, as expressions of launches see them.
pub(super) fn known_at(shape: &Shape, resolution: &Resolution, facts: &Facts) -> BTreeMap<String, i64> {
    let mut known = facts.clone();
    known.extend(shape.0.clone());
    known.insert("dtype_bytes".into(), resolution.dtype.bytes() as i64);
    known.extend(resolution.macros.clone());
    known
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kernel::PlannedLaunch;
    use crate::op::{Dtype, samples};

    const NORM: &str = r#""""
---
op = "rmsnorm"
dtypes = ["f16", "f32"]
divisible = ["cols"]
[tune]
WARPS = { value = 4, choices = [4, 8] }
[[scratch]]
name = "sums"
dtype = "f32"
shape = ["rows"]
[[launch]]
kernel = "part"
when = "cols > 100"
grid = ["rows"]
num_warps = "WARPS"
num_ctas = 2
constexprs = { BLOCK = "next_power_of_2(cols)", SECOND = 0 }
args = ["x", "sums", "rows", "cols"]
[[launch]]
kernel = "part"
grid = ["rows"]
num_stages = 2
constexprs = { BLOCK = 64, SECOND = 1 }
args = ["x", "weight", "y", "rows", "cols", "eps"]
---
"""
import triton
"#;

    fn facts() -> Facts {
        [("SMS", 132), ("SMEM_MAX", 232_448), ("CC", 90), ("L2", 50 << 20)].map(|(k, v)| (k.to_owned(), v)).into()
    }

    fn at(text: &str, cols: i64) -> Result<(KernelFile, Resolution, Vec<PlannedLaunch>), KernelError> {
        let op = samples::rmsnorm();
        let file = KernelFile::parse(text)?;
        file.check_against(&op)?;
        let shape = op.complete(&Shape::from([("rows", 33), ("cols", cols)])).unwrap();
        let resolution = file.resolve(&shape, Dtype::F16, &facts())?;
        let planned = file.launches(&op, &op.ints(&shape).unwrap(), &resolution, &facts())?;
        Ok((file, resolution, planned))
    }

    #[test]
    fn a_triton_file_is_compiled_for_the_constants_of_its_launches_at_a_shape() {
        let (file, resolution, planned) = at(NORM, 112).unwrap();
        assert_eq!(file.language, super::super::Language::Triton);
        let [first, second] = &resolution.jit[..] else { panic!("{resolution:?}") };
        assert_eq!((first.name.as_str(), first.num_warps, first.num_stages, first.num_ctas), ("part#1", 4, 3, 2));
        assert_eq!(first.constexprs, [("BLOCK".to_owned(), 128), ("SECOND".to_owned(), 0)].into());
        assert_eq!((second.name.as_str(), second.num_warps, second.num_stages), ("part#2", 4, 2));
        assert_eq!((planned[0].grid, planned[0].block), ([66, 1, 1], [128, 1, 1]));
        assert_eq!(planned[0].cluster, Some([2, 1, 1]));
        let told = file.jit_arguments(&samples::rmsnorm(), &resolution, first).unwrap();
        let [x, sums, rows, cols] = told[..] else { panic!("{told:?}") };
        assert_eq!((x, sums), (JitArgument::Pointer(Stored::F16), JitArgument::Pointer(Stored::F32)));
        assert_eq!(rows, JitArgument::Integer { divisible: false });
        assert_eq!(cols, JitArgument::Integer { divisible: true });
        let (_, odd, planned) = at(NORM, 99).unwrap();
        assert!(odd.jit.len() == 1 && odd.jit[0].divisible.is_empty() && planned.len() == 1);
    }

    #[test]
    fn a_plan_for_another_shape_than_it_was_compiled_for_is_refused() {
        let op = samples::rmsnorm();
        let (file, resolution, _) = at(NORM, 112).unwrap();
        for cols in [113, 300] {
            let shape = op.complete(&Shape::from([("rows", 33), ("cols", cols)])).unwrap();
            let error = file.launches(&op, &op.ints(&shape).unwrap(), &resolution, &facts()).unwrap_err().to_string();
            assert!(error.contains("was not compiled for shape"), "{error}");
        }
    }

    #[test]
    fn keys_of_another_language_are_refused() {
        for (from, to, part) in [
            ("num_warps = \"WARPS\"", "block = [\"32\"]", "`block` is not for Triton: its threads are 32 * num_warps"),
            ("num_warps = \"WARPS\"", "shared = \"32\"", "`shared` is not for Triton"),
            ("num_warps = \"WARPS\"", "num_warps = 3", "num_warps is 3; it must be a power of two from 1 to 32"),
            ("num_stages = 2", "num_stages = 0", "num_stages is 0; it must be between 1 and 16"),
            ("num_stages = 2", "pdl = true", "`pdl` is not for Triton"),
            ("num_stages = 2", "num_stages = 1.5", "an expression in quotes, or a whole number"),
            ("\"part\"", "\"part<BLOCK>\"", "no template arguments"),
            ("divisible = [\"cols\"]", "divisible = [\"depth\"]", "divisible: `depth` is not a symbol"),
            ("BLOCK = 64", "BLOCK = \"depth\"", "uses `depth`"),
        ] {
            let error = at(&NORM.replacen(from, to, 1), 112).unwrap_err().to_string();
            assert!(error.contains(part), "{to}: {error}");
        }
        let cuda = "/*---\nop = \"x\"\ndtypes = [\"f32\"]\n[[launch]]\nkernel = \"x\"\ngrid = [\"1\"]\nblock = [\"1\"]\nargs = []\nnum_warps = 4\n---*/";
        assert!(KernelFile::parse(cuda).unwrap_err().to_string().contains("`num_warps` is for Triton files"));
        let none = "\"\"\"\n---\nop = \"x\"\ndtypes = [\"f32\"]\n---\n\"\"\"";
        assert!(KernelFile::parse(none).unwrap_err().to_string().contains("no [[launch]]"));
    }

    #[test]
    fn a_triton_file_is_edited_and_padded_as_others_are() {
        let changed = crate::kernel::set_tunables(NORM, &BTreeMap::from([("WARPS".to_owned(), 8)])).unwrap();
        assert_eq!(changed, NORM.replace("value = 4", "value = 8"));
        assert!(crate::kernel::pad(NORM, 7).ends_with("\nWARPSMITH_PADDING = 7\n"));
    }
}
