//! Kernels that Inductor writes, as where a search begins that has no kernel yet.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail};

use super::device::Device;
use super::options::PythonArgs;
use super::problem::told;
use crate::kernel::{KernelFile, Language, kernel_file};
use crate::op::{Bar, Dtype, OpSource};
use crate::profile::{Compiled, RankedTarget};
use crate::torch::Python;
use crate::torch::inductor::{Gpu, Start, UNCHOSEN, start};
use crate::torch::model::{Kind, Region};
use crate::workspace::Workspace;

/// The GPU that `--from-inductor` is for: the one at hand, or one that is named, as `sm_90`, and need not be here.
pub(super) fn gpu_named(text: &str, device: Device) -> anyhow::Result<Gpu> {
    if text.is_empty() {
        return match device {
            Device::Cuda(number) => Ok(Gpu::Here(number)),
            Device::Cpu | Device::Theirs => bail!(
                "--from-inductor has Inductor write Triton for this machine's GPU, and there is none; --from-inductor=sm_90 has it write for \
                 one that is elsewhere"
            ),
        };
    }
    let number = text.strip_prefix("sm_").and_then(|number| number.parse().ok());
    let number = number.filter(|number| (75..1000).contains(number));
    number.map(Gpu::Pretended).with_context(|| format!("--from-inductor={text}: a GPU is named as sm_80 or sm_90"))
}

/// Has Inductor write kernel files for operations, each for a type, and puts them into the workspace, where there are none; for each the
/// file, or why there is none.
pub(super) fn write(
    wanted: &[(&OpSource, Dtype)],
    workspace: &Workspace,
    python: &PythonArgs,
    gpu: Gpu,
    tell: &dyn Fn(&str),
) -> anyhow::Result<Vec<Result<PathBuf, String>>> {
    let path = |source: &OpSource| workspace.root().join(kernel_file(&source.name, Language::Triton.folder()));
    let asked: Vec<_> = wanted.iter().copied().filter(|(source, _)| !path(source).exists()).collect();
    let mut starts = Vec::new();
    if !asked.is_empty() {
        let python = Python::chosen(python.python.as_deref());
        starts = start(&python, &asked, gpu, &mut |line| tell(line)).map_err(told)?;
    }
    let mut starts = asked.iter().map(|(source, _)| source.name.as_str()).zip(starts).collect::<BTreeMap<_, _>>();
    let one = |(source, _): &(&OpSource, Dtype)| match starts.remove(source.name.as_str()) {
        Some(Start::Kernel(text)) => super::problem::write(&path(source), &text).map(|()| Ok(path(source))),
        Some(Start::Nothing(why)) => Ok(Err(why)),
        None if path(source).exists() => Ok(Ok(path(source))),
        None => Ok(Err("Inductor was not asked".into())),
    };
    wanted.iter().map(one).collect()
}

/// Regions that are worth asking Inductor about: those that will be worked on, of which `has_kernel` says that there is none yet. Of joined ones
/// those with one step behind their products: what is larger falls apart into these. What is in one of them has its kernel there.
pub(super) fn worth_asking<'a>(
    compiled: &'a Compiled,
    (only, skip): (&[String], &[String]),
    has_kernel: &dyn Fn(&Region) -> bool,
) -> Vec<&'a Region> {
    let named = |op: &String| only.contains(op);
    let wanted = |target: &RankedTarget| {
        (only.is_empty() || named(&target.op)) && !skip.contains(&target.op) && (!target.skipped || named(&target.op))
    };
    let targets = compiled.ranked_targets(&BTreeMap::new());
    let wanted = targets.iter().filter(|target| wanted(target)).filter_map(|target| compiled.region(&target.op));
    let regions: Vec<&Region> = wanted.filter(|region| !has_kernel(region)).collect();
    let all = &compiled.captured.regions;
    let whole = |region: &Region| region.kind == Kind::Joined && is_one_step(region, all);
    let in_a_whole = |part: &Region| regions.iter().any(|it| whole(it) && it.parts.contains(&part.key));
    let apart = |region: &Region| match region.kind {
        Kind::Joined => whole(region),
        Kind::Library => !in_a_whole(region),
        Kind::Fusible => true,
    };
    regions.iter().copied().filter(|region| named(&region.name) || apart(region)).collect()
}

/// Whether a joined region is products or convolutions with what follows them, and not a chain of such.
fn is_one_step(whole: &Region, all: &[Region]) -> bool {
    let has_step =
        |it: &Region| it.parts.iter().any(|key| all.iter().any(|part| part.key == *key && part.kind == Kind::Fusible));
    let is_smaller = |it: &Region| {
        it.kind == Kind::Joined
            && it.parts.len() < whole.parts.len()
            && it.parts.iter().all(|key| whole.parts.contains(key))
            && has_step(it)
    };
    has_step(whole) && !all.iter().any(is_smaller)
}

/// Whether Inductor's kernel for a joined region is more than those of its parts after one another: what follows a product is in its kernel.
fn is_joined(region: &Region, text: &str) -> bool {
    let Ok(kernel) = KernelFile::parse(text) else { return false };
    let launches = &kernel.front.launches;
    let ends_with_a_product = launches.last().is_some_and(|it| it.constexprs.contains_key("BLOCK_M"));
    // What turns weights is a launch of its own, in PyTorch too.
    region.kind != Kind::Joined || launches.len() < region.parts.len() + usize::from(ends_with_a_product)
}

/// Inductor's kernel files for regions, by name. What it has none for, and why, is told; a Python that fails is told as well, and the
/// regions begin without.
pub(super) fn for_regions(
    (regions, only, bar): (&[&Region], &[String], Bar),
    python: &PythonArgs,
    gpu: Gpu,
    tell: &dyn Fn(&str),
) -> BTreeMap<String, String> {
    let asked: Vec<(&Region, OpSource, Dtype)> =
        regions.iter().filter_map(|region| Some((*region, region.operation(bar).ok()?, region.element()?))).collect();
    if asked.is_empty() {
        return BTreeMap::new();
    }
    let wanted: Vec<(&OpSource, Dtype)> = asked.iter().map(|(_, source, dtype)| (source, *dtype)).collect();
    let mut said = |line: &str| {
        if line.contains(UNCHOSEN) {
            tell(&format!("note: {line}"));
        }
    };
    let starts = match start(&Python::chosen(python.python.as_deref()), &wanted, gpu, &mut said) {
        Ok(starts) => starts,
        Err(error) => {
            tell(&format!("note: regions begin without Inductor's kernels: {error}; {}", error.hint()));
            return BTreeMap::new();
        }
    };
    let mut found = BTreeMap::new();
    for ((region, source, _), start) in asked.iter().zip(starts) {
        match start {
            Start::Kernel(text) if only.contains(&region.name) || is_joined(region, &text) => {
                found.insert(source.name.clone(), text);
            }
            // Its parts are worked on by themselves.
            _ if region.kind == Kind::Joined && !only.contains(&region.name) => {}
            Start::Kernel(_) => {}
            Start::Nothing(why) => {
                tell(&format!("note: {} has no kernel of Inductor's to begin with: {why}", source.name))
            }
        }
    }
    tell(&format!("{} of {} regions without a kernel begin with Inductor's", found.len(), asked.len()));
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_gpu_is_the_one_at_hand_or_one_that_is_named() {
        assert_eq!(gpu_named("", Device::Cuda(1)).unwrap(), Gpu::Here(1));
        assert_eq!(gpu_named("sm_90", Device::Cpu).unwrap(), Gpu::Pretended(90));
        assert!(gpu_named("", Device::Cpu).unwrap_err().to_string().contains("there is none"));
        for name in ["h200", "sm_", "sm_5", "90"] {
            assert!(gpu_named(name, Device::Cpu).is_err(), "{name}");
        }
    }

    #[test]
    fn a_product_is_asked_about_together_with_what_follows_it() {
        let compiled = crate::profile::compiled_sample();
        let asked = |only: &[&str], known: &str| -> Vec<String> {
            let only: Vec<String> = only.iter().map(|&name| name.to_owned()).collect();
            let regions = worth_asking(&compiled, (&only, &[]), &|region| region.name == known);
            regions.into_iter().map(|region| region.name.clone()).collect()
        };
        assert_eq!(asked(&[], ""), ["mm_norm", "norm"]);
        assert_eq!(asked(&[], "mm_norm"), ["mm", "norm"], "the whole has a kernel, perhaps one that is not faster");
        assert_eq!(asked(&["mm"], ""), ["mm"]);
        assert_eq!(asked(&["mm", "mm_norm"], ""), ["mm_norm", "mm"]);
    }

    #[test]
    fn a_whole_begins_with_a_kernel_in_which_something_is_fused() {
        let compiled = crate::profile::compiled_sample();
        let launch = |name: &str, tiled: bool| {
            let block = if tiled { "BLOCK_M = 64" } else { "XBLOCK = 64" };
            format!(
                "[[launch]]\nkernel = \"{name}\"\ngrid = [\"1\"]\nnum_warps = 4\nconstexprs = {{ {block} }}\nargs = [\"x\"]\n"
            )
        };
        let text = |launches: &[bool]| {
            let launches: String = launches.iter().map(|tiled| launch("f", *tiled)).collect();
            let code = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef f(x, XBLOCK: tl.constexpr):\n    pass\n";
            format!(
                "\"\"\"\n---\nop = \"mm_norm\"\ndtypes = [\"f32\"]\narch = [\"sm_80+\"]\n{launches}---\n\"\"\"\n\n{code}"
            )
        };
        KernelFile::parse(&text(&[true])).unwrap();
        let begins = |op: &str, launches: &[bool]| is_joined(compiled.region(op).unwrap(), &text(launches));
        assert!(begins("mm_norm", &[false]) && begins("mm_norm", &[true]) && begins("mm_norm", &[false, true]));
        assert!(!begins("mm_norm", &[true, false]), "a norm behind a product, as PyTorch runs them");
        assert!(!begins("mm_norm", &[false, false, true]));
        assert!(begins("norm", &[false, false, false]), "no whole");
    }
}
