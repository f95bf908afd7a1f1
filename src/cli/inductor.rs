//! Kernels that Inductor writes, as where a search begins that has no kernel yet.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail};

use super::device::Device;
use super::options::PythonArgs;
use super::problem::told;
use crate::kernel::{Language, kernel_file};
use crate::op::{Bar, Dtype, OpSource};
use crate::profile::{Compiled, RankedTarget};
use crate::torch::Python;
use crate::torch::inductor::{Gpu, Start, start};
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

/// Regions that are worth asking Inductor about: those that will be worked on, of which `has_kernel` says that there is none yet.
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
    let regions = targets.iter().filter(|target| wanted(target)).filter_map(|target| compiled.region(&target.op));
    regions.filter(|region| (region.kind != Kind::Joined || named(&region.name)) && !has_kernel(region)).collect()
}

/// Inductor's kernel files for regions, by name. What it has none for, and why, is told; a Python that fails is told as well, and the
/// regions begin without.
pub(super) fn for_regions(
    (regions, bar): (&[&Region], Bar),
    python: &PythonArgs,
    gpu: Gpu,
    tell: &dyn Fn(&str),
) -> BTreeMap<String, String> {
    let sources: Vec<(OpSource, Dtype)> =
        regions.iter().filter_map(|region| Some((region.operation(bar).ok()?, region.element()?))).collect();
    if sources.is_empty() {
        return BTreeMap::new();
    }
    let wanted: Vec<(&OpSource, Dtype)> = sources.iter().map(|(source, dtype)| (source, *dtype)).collect();
    let starts = match start(&Python::chosen(python.python.as_deref()), &wanted, gpu, &mut |_| {}) {
        Ok(starts) => starts,
        Err(error) => {
            tell(&format!("note: regions begin without Inductor's kernels: {error}; {}", error.hint()));
            return BTreeMap::new();
        }
    };
    let mut found = BTreeMap::new();
    for ((source, _), start) in sources.iter().zip(starts) {
        match start {
            Start::Kernel(text) => {
                found.insert(source.name.clone(), text);
            }
            Start::Nothing(why) => {
                tell(&format!("note: {} has no kernel of Inductor's to begin with: {why}", source.name))
            }
        }
    }
    tell(&format!("{} of {} regions without a kernel begin with Inductor's", found.len(), sources.len()));
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
}
