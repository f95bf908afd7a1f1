//! What Inductor has written as a kernel file: front matter with its launches, and tunables around its own configurations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Deserialize;

use crate::kernel::KernelFile;
use crate::op::{Dtype, ElementType, Operation};

/// The most bytes of scratch that a kernel file may have at a shape.
const MOST_SCRATCH: u64 = 512 << 20;

/// Warps that a block may have.
const MOST_WARPS: i64 = 32;

/// Slices of its operands that a loop may have on their way, of those worth trying.
const STAGES: [i64; 3] = [1, 2, 3];

/// The same of a template, whose loads are the operands of products.
const TILED_STAGES: [i64; 4] = [2, 3, 4, 5];

/// Blocks of the grid in y, at most: beyond it they go on in z.
const MOST_Y: u32 = 65535;

/// Kernels, and how they are started.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Written {
    /// PyTorch's version.
    torch: String,
    /// The code behind the front matter.
    code: String,
    launches: Vec<Launched>,
    scratch: Vec<Between>,
    /// Whether sums are added in an order that differs between runs.
    order_free: bool,
}

/// The start of one kernel.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Launched {
    kernel: String,
    /// Tensors and scratch by name.
    args: Vec<String>,
    grid: Grid,
    /// Of a template.
    #[serde(default)]
    tiled: Option<Tiled>,
    /// How many there are in each direction: `xnumel`, `r0_numel`.
    sizes: BTreeMap<String, i64>,
    /// Constants that are no block sizes.
    constants: BTreeMap<String, i64>,
    /// Block sizes, in the order of its parameters.
    blocks: Vec<String>,
    /// Whether it has a loop, whose loads may run ahead.
    loops: bool,
    /// Whether its last loop, over what it has read before, can begin at the end.
    #[serde(default)]
    turns: bool,
    /// What Inductor would try.
    configs: Vec<Config>,
    /// What its timing on this device has chosen.
    chosen: Option<Config>,
    /// What a block may not exceed.
    most: BTreeMap<String, i64>,
}

/// How blocks are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Grid {
    #[serde(rename = "Grid1D")]
    X,
    #[serde(rename = "Grid2D")]
    Xy,
    #[serde(rename = "Grid3D")]
    Xyz,
    /// As many in y as there can be, the rest of them in z.
    #[serde(rename = "Grid2DWithYZOverflow")]
    Overflowing,
    /// A template's own.
    #[serde(rename = "FixedGrid")]
    Tiled,
}

/// What a template says of its launch, with its block sizes, `WARPS` and `STAGES` in expressions by their names.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Tiled {
    grid: Vec<String>,
    /// What each block size may be.
    choices: BTreeMap<String, Vec<i64>>,
    /// What settings must be to be worth trying.
    tried: Vec<String>,
}

impl Tiled {
    /// An expression with names that end in `suffix`.
    fn named(&self, expression: &str, suffix: &str) -> String {
        let names = self.choices.keys().map(String::as_str).chain(["WARPS", "STAGES"]);
        names.fold(expression.to_owned(), |text, name| text.replace(name, &format!("{name}{suffix}")))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Config {
    blocks: BTreeMap<String, i64>,
    num_warps: i64,
    num_stages: i64,
}

/// A buffer between kernels.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Between {
    name: String,
    dtype: ElementType,
    elements: u64,
}

/// Elements of a block that a thread has, at the most, where a kernel does not begin with more. Inductor's own are 1 to 64 (softmax of
/// 393216 columns: 4); with 128 x 8192 elements for one warp, 32768 a thread, Triton takes more than its minute.
const MOST_A_THREAD: i64 = 64;

/// A constant of the front matter's `[tune]`.
struct Tuned {
    name: String,
    value: i64,
    choices: Vec<i64>,
}

/// The kernel file; why there is none, in a sentence, where it would not fit its operation.
pub(super) fn kernel_file_of(op: &Operation, dtype: Dtype, written: &Written) -> Result<String, String> {
    let bytes: u64 = written.scratch.iter().map(|it| it.elements * it.dtype.bytes(dtype) as u64).sum();
    if bytes > MOST_SCRATCH {
        return Err(format!(
            "Inductor keeps {} MiB between its kernels, and a kernel file has {} MiB at most",
            bytes >> 20,
            MOST_SCRATCH >> 20
        ));
    }
    let mut launches = String::new();
    let (mut tuned, mut tried) = (Vec::new(), Vec::new());
    for (number, launch) in written.launches.iter().enumerate() {
        let suffix = if written.launches.len() > 1 { format!("_{}", number + 1) } else { String::new() };
        launches += &launch.text(&suffix, &mut tuned)?;
        tried.extend(launch.worth_trying(&suffix));
    }
    let mut front = format!("op = \"{}\"\ndtypes = [\"{dtype}\"]\narch = [\"sm_80+\"]\n", op.name);
    if written.order_free {
        front += "order_free = true\n";
    }
    // Writing to a String cannot fail.
    if !tried.is_empty() {
        let _ = writeln!(front, "tune_where = \"{}\"", tried.join(" && "));
    }
    front += "[tune]\n";
    for Tuned { name, value, choices } in &tuned {
        let _ = writeln!(front, "{name} = {{ value = {value}, choices = {choices:?} }}");
    }
    for Between { name, dtype, elements } in &written.scratch {
        let dtype = serde_json::to_string(dtype).map_err(|error| error.to_string())?;
        let _ = writeln!(front, "[[scratch]]\nname = \"{name}\"\ndtype = {dtype}\nshape = [\"{elements}\"]");
    }
    let timed = written.launches.iter().any(|launch| launch.chosen.is_some());
    let begun = match timed {
        true => "Block sizes, warps and stages are those that its own timing chose on the GPU where this was written",
        false => "Block sizes, warps and stages are the first that it would try",
    };
    let text = format!(
        "\"\"\"\n---\n{front}{launches}---\n\nThe Triton that Inductor writes for reference/{}.py (PyTorch {}, BSD-3-Clause), taken out of its surroundings. \
         {begun}.\n\"\"\"\n\n{}",
        op.name, written.torch, written.code
    );
    let kernel = KernelFile::parse(&text).map_err(|error| error.to_string())?;
    kernel.check_against(op).map_err(|error| error.to_string())?;
    Ok(text)
}

impl Launched {
    /// It as a table of the front matter, and its tunables, whose names end in `suffix`.
    fn text(&self, suffix: &str, tuned: &mut Vec<Tuned>) -> Result<String, String> {
        let begin = self.chosen.as_ref().or(self.configs.first());
        let Some(begin) = begin else { return Err(format!("Inductor has no configuration for `{}`", self.kernel)) };
        let all = || self.configs.iter().chain(&self.chosen);
        let mut constexprs: Vec<String> = Vec::new();
        for block in &self.blocks {
            let name = format!("{block}{suffix}");
            let of = |config: &Config| config.blocks.get(block).copied();
            let value = of(begin).ok_or_else(|| format!("Inductor has no {block} for `{}`", self.kernel))?;
            if let Some(choices) = self.tiled.as_ref().and_then(|tiled| tiled.choices.get(block)) {
                constexprs.push(format!("{block} = \"{name}\""));
                tuned.push(Tuned { name, value, choices: choices.clone() });
                continue;
            }
            let numel = self.numel(block).unwrap_or(1);
            let most = self.most.get(block).copied().unwrap_or(1024).min(whole(numel));
            constexprs.push(format!("{block} = \"{name}\""));
            let further =
                if self.loops && block.starts_with('R') { self.larger_slices(value, most) } else { Vec::new() };
            tuned.push(Tuned { name, value, choices: around(all().filter_map(of).chain(further), value, 1, most) });
        }
        if self.turns {
            let name = format!("BACKWARDS{suffix}");
            constexprs.push(format!("BACKWARDS = \"{name}\""));
            tuned.push(Tuned { name, value: 0, choices: vec![0, 1] });
        }
        constexprs.extend(self.constants.iter().map(|(name, value)| format!("{name} = {value}")));
        let warps = format!("WARPS{suffix}");
        let choices = around(all().map(|config| config.num_warps), begin.num_warps, 1, MOST_WARPS);
        tuned.push(Tuned { name: warps.clone(), value: begin.num_warps, choices });
        let stages = match self.loops {
            false => begin.num_stages.to_string(),
            true => {
                let name = format!("STAGES{suffix}");
                let further: &[i64] = if self.tiled.is_some() { &TILED_STAGES } else { &STAGES };
                let choices: BTreeSet<i64> =
                    all().map(|config| config.num_stages).chain(further.iter().copied()).collect();
                tuned.push(Tuned {
                    name: name.clone(),
                    value: begin.num_stages,
                    choices: choices.into_iter().collect(),
                });
                format!("\"{name}\"")
            }
        };
        let quoted = |all: &[String]| all.iter().map(|it| format!("\"{it}\"")).collect::<Vec<_>>().join(", ");
        Ok(format!(
            "[[launch]]\nkernel = \"{}\"\ngrid = [{}]\nnum_warps = \"{warps}\"\nnum_stages = {stages}\nconstexprs = {{ {} }}\nargs = [{}]\n",
            self.kernel,
            quoted(&self.grid(suffix)?),
            constexprs.join(", "),
            quoted(&self.args)
        ))
    }

    /// `value` and the slices of a reduction that are larger, as far as a block's threads can hold one. Inductor tries 2048 to 8192 at a time;
    /// where what was summed is read once more, few large slices leave fewer rows between the two readings than the L2 holds
    /// (KernelBench's L2 norm of 65535 columns on an H200: 7.6 ms as Inductor's timing chooses, 5.8 in slices of 16384 with 32 warps).
    fn larger_slices(&self, value: i64, most: i64) -> Vec<i64> {
        let held = most.min(MOST_A_THREAD * 32 * MOST_WARPS);
        std::iter::successors(Some(value), |size| size.checked_mul(2)).take_while(|size| *size <= held).collect()
    }

    /// Which of its settings are worth trying: a thread has one element of a block at the least, and not so many that the compiler takes
    /// minutes to unroll what it does with them.
    fn worth_trying(&self, suffix: &str) -> Vec<String> {
        if let Some(tiled) = &self.tiled {
            return tiled.tried.iter().map(|it| tiled.named(it, suffix)).collect();
        }
        let Some(begin) = self.chosen.as_ref().or(self.configs.first()) else { return Vec::new() };
        // A reduction that has no loop holds all that it reduces.
        let held = ["R0_BLOCK", "R1_BLOCK"].into_iter().filter(|block| !self.blocks.iter().any(|it| it == block));
        let held: i64 = held.filter_map(|block| self.numel(block)).map(whole).product();
        let sizes = self.blocks.iter().filter_map(|block| begin.blocks.get(block));
        let elements = sizes.fold(held, |product, size| product.saturating_mul(*size));
        let threads = 32 * begin.num_warps;
        let names = self.blocks.iter().map(|block| format!("{block}{suffix}"));
        // A kernel may have no block sizes of its own.
        let alone = self.blocks.is_empty();
        let names = names.chain((held > 1 || alone).then(|| held.to_string())).collect::<Vec<_>>().join(" * ");
        let most = MOST_A_THREAD.max(elements / threads.max(1));
        let fewest = (elements >= threads).then(|| format!("{names} >= 32 * WARPS{suffix}"));
        fewest.into_iter().chain([format!("{names} <= {} * WARPS{suffix}", 32 * most)]).collect()
    }

    /// How many there are in a block's direction.
    fn numel(&self, block: &str) -> Option<i64> {
        let direction = block.strip_suffix("BLOCK")?.to_ascii_lowercase();
        self.sizes.get(&format!("{direction}numel")).copied()
    }

    fn grid(&self, suffix: &str) -> Result<Vec<String>, String> {
        let in_direction = |block: &str| -> Result<String, String> {
            let numel =
                self.numel(block).ok_or_else(|| format!("Inductor does not say how large `{}` is", self.kernel))?;
            let divided = self.blocks.iter().any(|it| it == block);
            Ok(if divided { format!("ceil_div({numel}, {block}{suffix})") } else { numel.to_string() })
        };
        match self.grid {
            Grid::Tiled => {
                let tiled = self.tiled.as_ref().ok_or_else(|| format!("Inductor has no grid for `{}`", self.kernel))?;
                Ok(tiled.grid.iter().map(|it| tiled.named(it, suffix)).collect())
            }
            Grid::X => Ok(vec![in_direction("XBLOCK")?]),
            Grid::Xy => Ok(vec![in_direction("XBLOCK")?, in_direction("YBLOCK")?]),
            Grid::Xyz => Ok(vec![in_direction("XBLOCK")?, in_direction("YBLOCK")?, in_direction("ZBLOCK")?]),
            Grid::Overflowing => {
                let y = in_direction("YBLOCK")?;
                let z = format!("ceil_div({y}, {MOST_Y})");
                Ok(vec![in_direction("XBLOCK")?, format!("ceil_div({y}, {z})"), z])
            }
        }
    }
}

/// The smallest power of two that a size fits into.
fn whole(size: i64) -> i64 {
    u64::try_from(size).ok().and_then(u64::checked_next_power_of_two).map_or(1, |it| it as i64)
}

/// Powers of two worth trying: those that are known, and half and twice of the outermost and of where it begins, from `least` to `most`.
fn around(known: impl Iterator<Item = i64>, begin: i64, least: i64, most: i64) -> Vec<i64> {
    let known: BTreeSet<i64> = known.chain([begin]).collect();
    let outermost = known.iter().next().into_iter().chain(known.iter().next_back()).copied();
    let further = outermost.chain([begin]).flat_map(|value| [value / 2, value * 2]);
    let near = further.filter(|value| (least..=most).contains(value)).collect::<Vec<_>>();
    known.into_iter().chain(near).collect::<BTreeSet<i64>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kernel::Facts;
    use crate::op::Shape;

    const CODE: &str = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef first(in_ptr0, out_ptr0, XBLOCK: tl.constexpr, \
                        R0_BLOCK: tl.constexpr):\n    pass\n\n\n@triton.jit\ndef second(in_ptr0, out_ptr0, XBLOCK: tl.constexpr, YBLOCK: \
                        tl.constexpr, IN_PTR0_AT: tl.constexpr):\n    pass\n";

    fn op() -> Operation {
        let toml = "name = \"means\"\nsummary = \"s\"\noracle = \"torch\"\nsymbols = []\nflops = \"1\"\nshrink = []\nprimary = 0\nsmoke = {}\n\
                    sweep = [{}]\nedges = []\nrandom = {}\n[[tensors]]\nname = \"x\"\nrole = \"input\"\nshape = [\"1000\", \"4096\"]\ndtype = \"T\"\n\
                    draw = { dist = \"normal\" }\n[[tensors]]\nname = \"out\"\nrole = \"output\"\nshape = [\"1000\"]\ndtype = \"T\"\n";
        Operation::parse(toml, "def reference(x):\n    return x.mean(1)\n", "means").unwrap()
    }

    fn written() -> Written {
        serde_json::from_value(serde_json::json!({
            "torch": "2.11.0", "code": CODE, "order_free": false,
            "scratch": [{"name": "buf0", "dtype": "f32", "elements": 2000}],
            "launches": [
                {"kernel": "first", "args": ["x", "buf0"], "grid": "Grid1D", "sizes": {"xnumel": 1000, "r0_numel": 4096}, "constants": {},
                 "blocks": ["XBLOCK", "R0_BLOCK"], "loops": true, "chosen": null, "most": {"XBLOCK": 4096, "R0_BLOCK": 65536},
                 "configs": [{"blocks": {"XBLOCK": 1, "R0_BLOCK": 2048}, "num_warps": 16, "num_stages": 1},
                             {"blocks": {"XBLOCK": 1, "R0_BLOCK": 4096}, "num_warps": 8, "num_stages": 1}]},
                {"kernel": "second", "args": ["buf0", "out"], "grid": "Grid2DWithYZOverflow", "sizes": {"xnumel": 10, "ynumel": 600000},
                 "constants": {"IN_PTR0_AT": 1000}, "blocks": ["XBLOCK", "YBLOCK"], "loops": false, "most": {"XBLOCK": 4096, "YBLOCK": 1024},
                 "chosen": {"blocks": {"XBLOCK": 16, "YBLOCK": 4}, "num_warps": 4, "num_stages": 1},
                 "configs": [{"blocks": {"XBLOCK": 32, "YBLOCK": 4}, "num_warps": 4, "num_stages": 1}]}
            ]
        }))
        .unwrap()
    }

    fn facts() -> Facts {
        [("SMS", 132), ("SMEM_MAX", 232_448), ("CC", 90), ("L2", 50 << 20)].map(|(k, v)| (k.to_owned(), v)).into()
    }

    #[test]
    fn kernels_with_buffers_between_them_are_a_launch_plan_with_tunables_of_each() {
        let text = kernel_file_of(&op(), Dtype::Bf16, &written()).unwrap();
        let kernel = KernelFile::parse(&text).unwrap();
        let values: Vec<(String, i64)> = kernel.values().into_iter().collect();
        let expected = [
            ("R0_BLOCK_1", 2048),
            ("STAGES_1", 1),
            ("WARPS_1", 16),
            ("WARPS_2", 4),
            ("XBLOCK_1", 1),
            ("XBLOCK_2", 16),
            ("YBLOCK_2", 4),
        ];
        assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(kernel.front.tune["XBLOCK_2"].choices, [8, 16, 32]);
        assert_eq!(kernel.front.tune["R0_BLOCK_1"].choices, [1024, 2048, 4096], "up to all that is reduced");
        let tried = "XBLOCK_1 * R0_BLOCK_1 >= 32 * WARPS_1 && XBLOCK_1 * R0_BLOCK_1 <= 2048 * WARPS_1 && XBLOCK_2 * YBLOCK_2 <= 2048 * WARPS_2";
        assert_eq!(kernel.front.tune_where.as_ref().unwrap().to_string(), tried);
        assert!(kernel.is_worth_trying(&Shape::default(), Dtype::Bf16, &facts()), "where it begins");
        let resolution = kernel.resolve(&Shape::default(), Dtype::Bf16, &facts()).unwrap();
        let launches = kernel.launches(&op(), &[], &resolution, &facts()).unwrap();
        assert_eq!((launches[0].grid, launches[0].block), ([1000, 1, 1], [512, 1, 1]));
        // 150000 blocks in y, of which three times 50000 are started.
        assert_eq!(launches[1].grid, [1, 50000, 3]);
        assert_eq!(resolution.jit[1].constexprs["IN_PTR0_AT"], 1000);
        assert!(text.contains("its own timing chose"), "{text}");
    }

    #[test]
    fn what_a_reduction_without_a_loop_holds_counts_among_the_elements_of_a_thread() {
        let mut held = written().launches.swap_remove(0);
        held.blocks = vec!["XBLOCK".into()];
        held.configs[0] = Config { blocks: [("XBLOCK".to_owned(), 8)].into(), num_warps: 4, num_stages: 1 };
        // 256 elements a thread, since it begins with as many.
        assert_eq!(held.worth_trying(""), ["XBLOCK * 4096 >= 32 * WARPS", "XBLOCK * 4096 <= 8192 * WARPS"]);
        held.blocks.clear();
        assert_eq!(held.worth_trying(""), ["4096 >= 32 * WARPS", "4096 <= 2048 * WARPS"]);
        held.sizes.clear();
        assert_eq!(held.worth_trying(""), ["1 <= 2048 * WARPS"]);
    }

    #[test]
    fn a_long_reduction_may_be_taken_in_slices_as_large_as_a_block_can_hold() {
        let mut long = written();
        long.launches[0].sizes.insert("r0_numel".into(), 393_216);
        let kernel = KernelFile::parse(&kernel_file_of(&op(), Dtype::F32, &long).unwrap()).unwrap();
        assert_eq!(kernel.front.tune["R0_BLOCK_1"].choices, [1024, 2048, 4096, 8192, 16384, 32768, 65536]);
        long.launches[0].loops = false;
        let kernel = KernelFile::parse(&kernel_file_of(&op(), Dtype::F32, &long).unwrap()).unwrap();
        assert_eq!(kernel.front.tune["R0_BLOCK_1"].choices, [1024, 2048, 4096, 8192]);
    }

    #[test]
    fn a_last_loop_that_can_begin_at_its_end_has_a_tunable_for_it_and_begins_as_inductor_has_it() {
        let mut turning = written();
        turning.launches[0].turns = true;
        turning.code = CODE.replacen("R0_BLOCK: tl.constexpr", "R0_BLOCK: tl.constexpr, BACKWARDS: tl.constexpr", 1);
        let kernel = KernelFile::parse(&kernel_file_of(&op(), Dtype::Bf16, &turning).unwrap()).unwrap();
        let tuned = &kernel.front.tune["BACKWARDS_1"];
        assert_eq!((tuned.value, &tuned.choices[..]), (0, &[0, 1][..]));
        let resolution = kernel.resolve(&Shape::default(), Dtype::Bf16, &facts()).unwrap();
        assert_eq!(resolution.jit[0].constexprs["BACKWARDS"], 0);
        assert!(!kernel.front.tune.contains_key("BACKWARDS_2"));
    }

    #[test]
    fn what_would_not_fit_its_operation_is_said_and_not_written() {
        let mut large = written();
        large.scratch[0].elements = 1 << 40;
        assert!(kernel_file_of(&op(), Dtype::F32, &large).unwrap_err().contains("MiB between its kernels"));
        let mut strange = written();
        strange.launches[1].args = vec!["buf0".into(), "nothing".into()];
        assert!(kernel_file_of(&op(), Dtype::F32, &strange).unwrap_err().contains("nothing is called `nothing`"));
        let mut bare = written();
        bare.launches[0].configs.clear();
        assert!(kernel_file_of(&op(), Dtype::F32, &bare).unwrap_err().contains("no configuration for `first`"));
    }

    #[test]
    fn choices_are_what_is_known_and_its_neighbours_within_what_is_allowed() {
        assert_eq!(around([512, 1024].into_iter(), 1024, 1, 4096), [256, 512, 1024, 2048]);
        assert_eq!(around([1].into_iter(), 1, 1, 1), [1]);
        assert_eq!(around([16].into_iter(), 16, 1, 32), [8, 16, 32]);
        assert_eq!(around([64].into_iter(), 64, 1, 32), [32, 64], "what is known stays");
        assert_eq!((whole(1), whole(1000), whole(1024), whole(-3)), (1, 1024, 1024, 1));
    }
}
