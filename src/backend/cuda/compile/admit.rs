//! Before and after compiling: what a file is held to, what is compiled once for several, and what a kernel that begins early waits for.

use std::cmp::Reverse;

use super::prelude::Named;
use super::triton::JitUnit;
use super::{Compiled, Unit, candidate_source};
use crate::backend::BuildError;
use crate::defence::Defence;
use crate::kernel::{Facts, KernelFile, Language, MustWait, Resolution, nvrtc_options, target_arch};
use crate::op::Operation;
use crate::sandbox::check_cuda;

/// The first compute capability that starts dependent launches early.
pub(in crate::backend::cuda) const EARLY_STARTS: u32 = 90;

/// What is compiled at once.
#[derive(Debug, Clone)]
pub(super) enum Job {
    /// A text for NVRTC, with all of its kernels.
    Text(Unit),
    /// The launches of a Triton file at one resolution.
    Jit(Vec<JitUnit>),
}

impl Job {
    /// What is compiled of `kernel` at `resolution` for a device of compute capability `capability`, with options as NVRTC takes them.
    ///
    /// # Errors
    /// A launch in Triton that contradicts the file's plan.
    pub(super) fn of(
        op: &Operation,
        kernel: &KernelFile,
        resolution: &Resolution,
        capability: u32,
        facts: &Facts,
        options: &[String],
    ) -> Result<Self, BuildError> {
        Ok(match kernel.language {
            Language::Triton => Self::Jit(JitUnit::of(op, kernel, resolution, capability)?),
            Language::C | Language::Cuda => Self::Text(Unit {
                name: format!("{}.cu", op.name),
                source: candidate_source(op, kernel, resolution, capability),
                arch: target_arch(&kernel.front.arch, capability),
                options: options.to_vec(),
                names: kernel.kernel_names(resolution, facts),
                numbers: kernel.numbers(op, resolution),
            }),
        })
    }
}

/// Digests of what the compiler is given of one file at its resolutions. The cache's key is of the whole text, which takes milliseconds to
/// write down; an examination asks for thousands of these, and keeps what was found of the file that it asked about last.
#[derive(Debug, Default)]
pub struct CompileKeys {
    text: String,
    named: Named,
}

impl CompileKeys {
    /// The key of a resolution, beside what all of a file's have in common; `None` where it cannot be compiled.
    #[must_use]
    pub fn of(
        &mut self,
        op: &Operation,
        kernel: &KernelFile,
        resolution: &Resolution,
        capability: u32,
        facts: &Facts,
    ) -> Option<String> {
        let given = if kernel.language == Language::Triton {
            format!("{:?}", JitUnit::of(op, kernel, resolution, capability).ok()?)
        } else {
            if self.text != kernel.text {
                *self = Self { text: kernel.text.clone(), named: Named::of(kernel.code()) };
            }
            let constants = (resolution.dtype, self.named.among(&resolution.macros));
            format!("{:?}", (constants, kernel.kernel_names(resolution, facts), kernel.numbers(op, resolution)))
        };
        Some(blake3::hash(given.as_bytes()).to_hex().to_string())
    }
}

/// What is begun first ranks lowest: not urgent, how long it takes.
pub(super) type Rank = (bool, Reverse<i64>);

/// How long compiling takes beside other constants: large tiles unroll into many instructions.
pub(super) fn weight(resolution: &Resolution) -> i64 {
    resolution.macros.values().fold(0, |sum, value| sum.saturating_add(value.saturating_abs()))
}

/// The index of `job` among `jobs`, which it joins unless one has the same text: that one then has the kernels of both.
pub(super) fn share(jobs: &mut Vec<(Rank, Job)>, rank: Rank, job: Job) -> usize {
    let same = |(_, known): &(Rank, Job)| match (known, &job) {
        (Job::Text(known), Job::Text(unit)) => {
            (&known.source, &known.arch, &known.options) == (&unit.source, &unit.arch, &unit.options)
        }
        (Job::Jit(known), Job::Jit(units)) => known == units,
        _ => false,
    };
    let Some(index) = jobs.iter().position(same) else {
        jobs.push((rank, job));
        return jobs.len() - 1;
    };
    let (known, kept) = &mut jobs[index];
    *known = rank.min(*known);
    if let (Job::Text(Unit { names, numbers, .. }), Job::Text(unit)) = (kept, job) {
        names.extend(unit.names.into_iter().filter(|name| !names.contains(name)).collect::<Vec<_>>());
        numbers.extend(unit.numbers);
    }
    index
}

/// Holds a candidate to what can be said before it is compiled; its options as NVRTC takes them.
pub(super) fn admit(op: &Operation, kernel: &KernelFile, capability: u32) -> Result<Vec<String>, BuildError> {
    let refused = |error: &dyn std::fmt::Display| BuildError::Kernel(error.to_string());
    kernel.front.check_backend("cuda").map_err(|error| refused(&error))?;
    kernel.front.check_arch(capability).map_err(|error| refused(&error))?;
    kernel.check_against(op).map_err(|error| refused(&error))?;
    if kernel.language == Language::Triton {
        // Its text is read where it is compiled, by Python's own reader.
        return Ok(Vec::new());
    }
    check_cuda(&kernel.text).map_err(|error| refused(&error))?;
    nvrtc_options(&kernel.front.options).map_err(|error| refused(&error))
}

/// Whether all kernels of a file wait, at one resolution, that must.
///
/// # Errors
/// A sentence for the verdict.
pub fn all_wait(
    op: &Operation,
    kernel: &KernelFile,
    resolution: &Resolution,
    capability: u32,
    unit: &Compiled,
) -> Result<(), String> {
    // Where a GPU starts no launch early, launches follow each other, and there is nothing to wait for.
    if capability < EARLY_STARTS || !Defence::Waits.stands() {
        return Ok(());
    }
    // A kernel that cannot be launched at this resolution is not compiled.
    let launched = |must: &MustWait| unit.names.contains_key(&must.kernel);
    kernel.must_wait(op, resolution).iter().filter(|must| launched(must)).try_for_each(|must| waits(unit, must))
}

/// Whether a kernel waits before it uses what the launches in front of it write.
fn waits(unit: &Compiled, must: &MustWait) -> Result<(), String> {
    let name = &must.kernel;
    let begins = "the compiled kernel is refused: with pdl = true";
    let wait = "asm volatile(\"griddepcontrol.wait;\" ::: \"memory\")";
    let Some(early) = unit.waits.get(name) else {
        return Err(format!(
            "{begins} `{name}` may begin before the launch in front of it has ended, and it uses what that writes; it must say \
             {wait} before it does, under no condition but on a thread's number"
        ));
    };
    match must.arguments.iter().find(|(place, _)| early.contains(place)) {
        Some((_, buffer)) => Err(format!(
            "{begins} `{name}` may begin before the launch in front of it has ended, and one way through it uses `{buffer}` without \
             having met {wait}, or loads it by a way that no wait orders (ld.global.nc, __ldg, or `const` with `__restrict__`): wait \
             before, on every way, or in some threads by their number alone and let the others follow a barrier, and load it as any \
             other memory"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kernel::samples::NORM;
    use crate::op::{Dtype, Shape, samples};

    #[test]
    fn what_changes_in_launches_alone_is_given_to_the_compiler_alike() {
        let op = samples::rmsnorm();
        let kernel = KernelFile::parse(&NORM.replace("(ROWS > 1)", "true")).unwrap();
        let facts: Facts = [("SMS".to_owned(), 132), ("CC".to_owned(), 90)].into();
        let shape = op.complete(&Shape::from([("rows", 8), ("cols", 5000)])).unwrap();
        let mut keys = CompileKeys::default();
        let mut key = |dtype, name: &str, value: i64| {
            let mut resolution = kernel.resolve(&shape, dtype, &facts).unwrap();
            assert!(resolution.macros.insert(name.to_owned(), value).is_some(), "{name}");
            keys.of(&op, &kernel, &resolution, 90, &facts).unwrap()
        };
        let usual = key(Dtype::F16, "THREADS", 256);
        // Threads of a block, and bytes of shared memory.
        assert_eq!(usual, key(Dtype::F16, "THREADS", 128));
        // A type, and what a kernel is instantiated with.
        assert_ne!(usual, key(Dtype::Bf16, "THREADS", 256));
        assert_ne!(usual, key(Dtype::F16, "VEC", 1));
    }
}
