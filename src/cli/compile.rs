//! `warpsmith bench --compile`: whether a CUDA file compiles, where there is no GPU to judge it on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};

use crate::backend::BuildError;
use crate::backend::cuda::judge::oracle_source;
use crate::backend::cuda::{Compiled, Compiler, Unit};
use crate::engine::files;
use crate::kernel::{Facts, KernelError, KernelFile, Language, Resolution, fits_arch, target_arch};
use crate::op::{Dtype, OpSource, Operation, Shape};
use crate::workspace::{Workspace, cache_dir};

/// A GPU that a file can be compiled for without having it.
struct Gpu {
    /// Compute capability, 90 for 9.0.
    capability: u32,
    sms: i64,
    /// KiB of shared memory that a block can have.
    shared_kib: i64,
    l2_mib: i64,
}

/// One usual GPU of each capability: A100, RTX A6000, RTX 4090, H100, B200, RTX 5090. Shared memory is from the table of
/// compute capabilities in NVIDIA's CUDA C++ Programming Guide, the rest from the products' data sheets.
const GPUS: [Gpu; 6] = [
    Gpu { capability: 80, sms: 108, shared_kib: 163, l2_mib: 40 },
    Gpu { capability: 86, sms: 84, shared_kib: 99, l2_mib: 6 },
    Gpu { capability: 89, sms: 128, shared_kib: 99, l2_mib: 72 },
    Gpu { capability: 90, sms: 132, shared_kib: 227, l2_mib: 50 },
    Gpu { capability: 100, sms: 148, shared_kib: 227, l2_mib: 126 },
    Gpu { capability: 120, sms: 170, shared_kib: 99, l2_mib: 96 },
];

/// What is taken where the file is for it and nobody said.
const USUAL: u32 = 90;

impl Gpu {
    fn name(&self) -> String {
        format!("sm_{}", self.capability)
    }

    fn facts(&self) -> Facts {
        let facts = [
            ("SMS", self.sms),
            ("SMEM_MAX", self.shared_kib << 10),
            ("CC", i64::from(self.capability)),
            ("L2", self.l2_mib << 20),
        ];
        facts.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// The one that is named, as `sm_90` or `sm_90a`; else one that the file is for.
    fn choose(named: &str, arch: &[String]) -> anyhow::Result<&'static Self> {
        let fits = |gpu: &&Self| fits_arch(arch, gpu.capability);
        let known = || GPUS.iter().map(Self::name).collect::<Vec<_>>().join(", ");
        if named.is_empty() {
            let usual = GPUS.iter().find(|gpu| gpu.capability == USUAL).filter(fits);
            return usual
                .or_else(|| GPUS.iter().find(fits))
                .with_context(|| format!("it is for {}, and --compile knows {}", arch.join(", "), known()));
        }
        let bare = named.strip_suffix('a').unwrap_or(named);
        GPUS.iter()
            .find(|gpu| gpu.name() == bare)
            .with_context(|| format!("--compile knows {}, not `{named}`", known()))
    }
}

/// Compiles the file at `path`, and its operation's oracle, for the GPU that is named; runs nothing.
/// `python` is the one whose Triton compiles, where one is named.
pub(super) fn main(path: &Path, named: &str, python: Option<&Path>) -> anyhow::Result<ExitCode> {
    let text = super::bench::read(path)?;
    let kernel = KernelFile::parse(&text).with_context(|| path.display().to_string())?;
    if !kernel.front.is_cuda() {
        bail!("{} is for a processor; --smoke compiles it, and runs it at the smallest shape", path.display());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let workspace = Workspace::find(folder)?;
    let op = OpSource::read(&kernel.front.op, &files::reader(workspace.as_ref()))?.operation()?;
    let gpu = Gpu::choose(named, &kernel.front.arch).with_context(|| path.display().to_string())?;
    let arch = target_arch(&kernel.front.arch, gpu.capability);
    let resolutions = match resolutions(&op, &kernel, gpu) {
        Ok(resolutions) => resolutions,
        Err(why) => return Ok(refused(&op, &why)),
    };
    let compiler = Compiler::new(&cache_dir(), None, None)?.with_python(python.map(Path::to_owned));
    let all: Vec<Resolution> = resolutions.keys().cloned().collect();
    let never = AtomicBool::new(false);
    let compiled = match compiler.candidate(&op, &kernel, &all, gpu.capability, &gpu.facts(), &never) {
        Ok(compiled) => compiled,
        Err(BuildError::Kernel(why)) => return Ok(refused(&op, &why)),
        Err(error) => return Err(error.into()),
    };
    let oracle = Unit {
        name: format!("{}.h", op.name),
        source: oracle_source(&op).map_err(anyhow::Error::msg)?,
        arch: format!("sm_{}", gpu.capability),
        options: Vec::new(),
        names: Vec::new(),
        numbers: BTreeMap::new(),
    };
    compiler.trusted(&[oracle]).with_context(|| format!("reference/{}.h does not compile as CUDA", op.name))?;
    let (major, minor) = compiler.version();
    let with = match kernel.language {
        Language::Triton => "with Triton".to_owned(),
        Language::C | Language::Cuda => format!("with NVRTC {major}.{minor}"),
    };
    super::say(&format!("{}: compiles for {arch} {with}; nothing was run\n{}", op.name, told(&resolutions, &compiled)));
    Ok(ExitCode::SUCCESS)
}

fn refused(op: &Operation, why: &str) -> ExitCode {
    super::say(&format!("{}: error at compile: {why}", op.name));
    ExitCode::FAILURE
}

/// Each set of constants that a shape of the operation asks for, with the first shape that does. Launches are planned at
/// every shape.
fn resolutions(op: &Operation, kernel: &KernelFile, gpu: &Gpu) -> Result<BTreeMap<Resolution, Shape>, String> {
    let sentence = |error: KernelError| error.to_string();
    kernel.front.check_arch(gpu.capability).map_err(sentence)?;
    kernel.check_against(op).map_err(sentence)?;
    let facts = gpu.facts();
    let hostile = op.adversarial.iter().map(|input| &input.shape);
    let listed = [&op.smoke].into_iter().chain(&op.sweep).chain(&op.edges).chain(&op.decode).chain(hostile);
    let mut found = BTreeMap::new();
    for shape in listed {
        let shape = op.complete(shape).map_err(|error| error.to_string())?;
        for dtype in Dtype::ALL {
            if !kernel.front.dtypes.contains(&dtype) {
                continue;
            }
            let at = |error: KernelError| format!("{} {dtype}: {error}", op.label(&shape));
            let resolution = kernel.resolve(&shape, dtype, &facts).map_err(at)?;
            let ints = op.ints(&shape).map_err(|error| error.to_string())?;
            kernel.launches(op, &ints, &resolution, &facts).map_err(at)?;
            found.entry(resolution).or_insert_with(|| shape.clone());
        }
    }
    Ok(found)
}

/// What each compilation needs on the device.
fn told(resolutions: &BTreeMap<Resolution, Shape>, compiled: &[Compiled]) -> String {
    let mut text = String::new();
    for ((resolution, shape), compiled) in resolutions.iter().zip(compiled) {
        let macros: Vec<String> = resolution.macros.iter().map(|(name, value)| format!("{name}={value}")).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {} {}, as at {shape}", resolution.dtype, macros.join(" "));
        compiled.log.lines().filter(|line| !line.trim().is_empty()).for_each(|line| {
            let _ = writeln!(text, "    {line}");
        });
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn arch(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn without_a_name_a_gpu_is_taken_that_the_file_is_for() {
        let chosen = |list: &[&str]| Gpu::choose("", &arch(list)).unwrap().capability;
        assert_eq!(chosen(&[]), 90);
        assert_eq!(chosen(&["sm_80+"]), 90);
        assert_eq!(chosen(&["sm_90a"]), 90);
        assert_eq!(chosen(&["sm_80"]), 80);
        assert_eq!(chosen(&["sm_100a"]), 100);
        assert!(Gpu::choose("", &arch(&["sm_75"])).is_err());
    }

    #[test]
    fn a_gpu_is_named_with_or_without_its_a() {
        assert_eq!(Gpu::choose("sm_90a", &[]).unwrap().capability, 90);
        assert_eq!(Gpu::choose("sm_80", &[]).unwrap().capability, 80);
        let unknown = Gpu::choose("h200", &[]).err().unwrap().to_string();
        assert!(unknown.contains("sm_80, sm_86") && unknown.contains("`h200`"), "{unknown}");
    }
}
