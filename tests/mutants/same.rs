//! Whether a change changes nothing: the same code comes out of the compiler, for every set of constants that shapes ask for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};
use warpsmith::backend::{cpu, cuda};
use warpsmith::kernel::{Facts, KernelFile, Resolution};
use warpsmith::op::{Dtype, OpSource};

/// Sections that hold what runs, and what it refers to.
const CODE: [&str; 9] =
    [".text", ".rodata", ".data", ".bss", ".nv.constant", ".nv.shared", ".nv.info", ".nv.global", ".nv.callgraph"];

/// A compiler, and what it made of the last starter.
pub struct Same {
    compiler: Compiler,
    facts: Facts,
    capability: u32,
    known: BTreeMap<String, Vec<Sections>>,
}

enum Compiler {
    C(cpu::Compiler),
    Cuda(Box<cuda::Compiler>),
}

type Sections = BTreeMap<String, Vec<u8>>;

impl Same {
    /// A compiler that keeps what it makes in `cache`, for a device with `facts`; `program` compiles CUDA for it.
    pub fn new(cache: &Path, program: PathBuf, facts: Facts, cuda: bool) -> Result<Self, String> {
        let compiler = if cuda {
            let compiler = cuda::Compiler::new(cache, None, Some(program)).map_err(|error| error.to_string())?;
            Compiler::Cuda(Box::new(compiler))
        } else {
            Compiler::C(cpu::Compiler::new(cache).map_err(|error| error.to_string())?)
        };
        let capability = facts.get("CC").map_or(0, |capability| *capability as u32);
        Ok(Self { compiler, facts, capability, known: BTreeMap::new() })
    }

    /// Whether both texts, which compile, become the same code.
    pub fn is_same(&mut self, op: &OpSource, starter: &str, mutant: &str) -> bool {
        if !self.known.contains_key(starter) {
            let code = self.code(op, starter, None);
            self.known.insert(starter.to_owned(), code.unwrap());
        }
        let code = self.code(op, mutant, Some(&self.known[starter]));
        code.is_some_and(|code| code == self.known[starter])
    }

    /// The code of a text at each of its resolutions; none as soon as it is other than `like`.
    fn code(&self, source: &OpSource, text: &str, like: Option<&[Sections]>) -> Option<Vec<Sections>> {
        let (op, kernel) = (source.operation().unwrap(), KernelFile::parse(text).ok()?);
        let hostile = op.adversarial.iter().map(|input| &input.shape);
        let listed = [&op.smoke].into_iter().chain(&op.sweep).chain(&op.edges).chain(&op.decode).chain(hostile);
        let mut resolutions: Vec<Resolution> = Vec::new();
        for shape in listed {
            let shape = op.complete(shape).unwrap();
            for dtype in Dtype::ALL {
                let Ok(resolution) = kernel.resolve(&shape, dtype, &self.facts) else { continue };
                let code = Resolution { scratch_elements: Vec::new(), ..resolution };
                if !resolutions.contains(&code) {
                    resolutions.push(code);
                }
            }
        }
        let mut all = Vec::new();
        for (at, resolution) in resolutions.iter().enumerate() {
            let image = match &self.compiler {
                Compiler::C(compiler) => {
                    let image = compiler.compile(&cpu::Unit { op: &op, kernel: &kernel, resolution }).ok()?;
                    std::fs::read(image.path).unwrap()
                }
                Compiler::Cuda(compiler) => {
                    let never = AtomicBool::new(false);
                    let one = std::slice::from_ref(resolution);
                    let all = compiler.candidate(&op, &kernel, one, self.capability, &self.facts, &never).ok()?;
                    all[0].cubin.to_vec()
                }
            };
            let sections = sections(&image);
            if like.is_some_and(|like| like.get(at) != Some(&sections)) {
                return None;
            }
            all.push(sections);
        }
        Some(all)
    }
}

fn sections(image: &[u8]) -> Sections {
    let elf: ElfFile64<'_> = ElfFile64::parse(image).unwrap();
    let named = elf.sections().map(|section| (section.name().unwrap_or_default().to_owned(), section));
    named
        .filter(|(name, _)| CODE.iter().any(|code| name.starts_with(code)))
        .map(|(name, section)| (name, section.data().unwrap_or_default().to_vec()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_told_from_others(mut same: Same, op: &str, file: &str, from: &str, to: &str) {
        let op = OpSource::read(op, &crate::small::read).unwrap();
        let text = crate::small::read(file).unwrap();
        assert!(text.contains(from), "{from}");
        assert!(same.is_same(&op, &text, &text.replace(from, &format!("(0, {from})"))), "{file}");
        assert!(!same.is_same(&op, &text, &text.replace(from, to)), "{file}");
    }

    #[test]
    fn c_that_is_only_written_in_another_way_is_the_same_code() {
        let cache = tempfile::tempdir().unwrap();
        let same = Same::new(cache.path(), PathBuf::new(), Facts::new(), false).unwrap();
        is_told_from_others(same, "reduce", "kernels/cpu/reduce.c", "row * p->cols", "row + p->cols");
    }

    #[test]
    fn cuda_that_is_only_written_in_another_way_is_the_same_code() {
        let cache = tempfile::tempdir().unwrap();
        let facts = [("SMS", 132), ("SMEM_MAX", 227 << 10), ("CC", 90), ("L2", 50 << 20)];
        let facts = facts.map(|(name, value)| (name.to_owned(), value)).into();
        match Same::new(cache.path(), env!("CARGO_BIN_EXE_warpsmith").into(), facts, true) {
            Ok(same) => is_told_from_others(same, "reduce", "kernels/cuda/reduce.cu", "row * cols", "row + cols"),
            Err(why) => println!("skipped: {why}"),
        }
    }
}
