//! A package's files.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::code::Making;
use super::{Buffer, ExportError, File, Maker, PLANS, Plan, Plans, Receipt, Unjudged, card, is_package};
use crate::evaluation::Evaluation;
use crate::kernel::{Facts, KernelFile, Language, ScratchInit, headers_named};
use crate::op::{OpSource, Shape, TargetShape};
use crate::profile::Compiled;
use crate::torch::model::{REGIONS, Region};

/// The Python of every package.
const PYTHON: [(&str, &str); 9] = [
    ("__init__.py", include_str!("package/__init__.py")),
    ("cpu.py", include_str!("package/cpu.py")),
    ("cuda.py", include_str!("package/cuda.py")),
    ("direct.py", include_str!("package/direct.py")),
    ("launch.py", include_str!("package/launch.py")),
    ("operators.py", include_str!("package/operators.py")),
    ("place.py", include_str!("package/place.py")),
    ("plans.py", include_str!("package/plans.py")),
    ("regions.py", REGIONS),
];
const FRONT: &str = include_str!("package/front.py");

/// A kernel that is to go into a package.
#[derive(Debug, Clone)]
pub struct Chosen<'a> {
    /// The region that it is for.
    pub region: &'a Region,
    /// What it must compute.
    pub operation: OpSource,
    /// The kernel file's text.
    pub text: String,
    /// What was timed.
    pub target: Vec<TargetShape>,
    /// The judge's verdict on this very text.
    pub evaluation: Evaluation,
    /// What the user has over it.
    pub speedup: f64,
    /// The commit that holds it.
    pub commit: Option<String>,
}

/// A package as it is wanted.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// The package's folder, whose name becomes its own.
    pub folder: &'a Path,
    /// The run.
    pub run: &'a str,
    /// The model, and what was measured of it.
    pub compiled: &'a Compiled,
    /// What identifies the device of the run.
    pub device_key: &'a str,
    /// Hash of the judging program.
    pub judge: &'a str,
    /// What front matter may use of the device.
    pub facts: &'a Facts,
    /// What takes part.
    pub kernels: Vec<Chosen<'a>>,
}

/// Writes a package; an earlier one in its place is replaced.
///
/// # Errors
/// A name that Python cannot import, a folder that holds something else, or a kernel that cannot be compiled as it was judged.
pub fn package(wanted: &Wanted<'_>, maker: &Maker<'_>) -> Result<Plans, ExportError> {
    let place = |why: &str| ExportError::Place { place: wanted.folder.to_owned(), why: why.to_owned() };
    let name = wanted.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !is_importable(name) {
        return Err(place("a package's folder has a name that Python can import: small letters, digits and `_`"));
    }
    if wanted.kernels.is_empty() {
        return Err(ExportError::Nothing("there is no kernel to export".into()));
    }
    let occupied = wanted.folder.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    if occupied && !is_package(wanted.folder) {
        return Err(place("there is something else; name a new folder, or that of an earlier export"));
    }
    // Made beside it, so that whoever imports it meanwhile has the old one or the new one.
    let parent = wanted.folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(ExportError::io(parent))?;
    let made = tempfile::Builder::new().prefix(".export-").tempdir_in(parent).map_err(ExportError::io(parent))?;
    let plans = fill(&made.path().join(name), name, wanted, maker)?;
    if occupied {
        std::fs::rename(wanted.folder, made.path().join("before")).map_err(ExportError::io(wanted.folder))?;
    } else if wanted.folder.exists() {
        std::fs::remove_dir(wanted.folder).map_err(ExportError::io(wanted.folder))?;
    }
    std::fs::rename(made.path().join(name), wanted.folder).map_err(ExportError::io(wanted.folder))?;
    Ok(plans)
}

/// Files by their paths below a folder, with their digests.
pub(super) struct Files<'a> {
    root: &'a Path,
    digests: BTreeMap<String, String>,
}

impl Files<'_> {
    pub(super) fn write(&mut self, path: &str, bytes: &[u8]) -> Result<File, ExportError> {
        let full = self.root.join(path);
        let folder = full.parent().unwrap_or(self.root);
        std::fs::create_dir_all(folder).map_err(ExportError::io(folder))?;
        std::fs::write(&full, bytes).map_err(ExportError::io(&full))?;
        let sha256 = sha256(bytes);
        self.digests.insert(path.to_owned(), sha256.clone());
        Ok(File { path: path.to_owned(), sha256 })
    }

    fn json(&mut self, path: &str, value: &impl serde::Serialize) -> Result<File, ExportError> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| ExportError::Place { place: self.root.join(path), why: error.to_string() })?;
        self.write(path, format!("{text}\n").as_bytes())
    }
}

fn fill(folder: &Path, name: &str, wanted: &Wanted<'_>, maker: &Maker<'_>) -> Result<Plans, ExportError> {
    // Where its files are is known by the kind of compiler, before anything is written.
    let root = folder.join(maker.variant());
    let mut files = Files { root: &root, digests: BTreeMap::new() };
    let platform = maker.platform(&mut files)?;
    let mut kernels = Vec::new();
    for chosen in &wanted.kernels {
        kernels.push(kernel(chosen, wanted, maker, &mut files)?);
    }
    let mut version = Sha256::new();
    for plan in &kernels {
        version.update(plan.key.as_bytes());
        version.update(plan.code.digest().as_bytes());
        for digest in plan.unjudged.iter().filter_map(Unjudged::digest) {
            version.update(digest.as_bytes());
        }
    }
    for (_, text) in PYTHON {
        version.update(text.as_bytes());
    }
    let without_lowerings = wanted.compiled.is_slower_with_lowerings();
    version.update([u8::from(without_lowerings)]);
    let plans = Plans {
        name: name.to_owned(),
        version: hex(&version.finalize())[..12].to_owned(),
        torch: wanted.compiled.captured.torch.clone(),
        device: wanted.compiled.device.clone(),
        load: wanted.compiled.load.clone(),
        dtype: wanted.compiled.dtype.clone(),
        platform,
        without_lowerings,
        kernels,
    };
    for (path, text) in PYTHON {
        files.write(path, text.as_bytes())?;
    }
    files.json(PLANS, &plans)?;
    let digests = files.digests.clone();
    files.json(
        "metadata.json",
        &json!({
            "name": name, "version": plans.version, "python-depends": ["torch"], "license": "the kernels are yours",
            "provenance": {
                "made_by": format!("warpsmith {}", env!("CARGO_PKG_VERSION")), "run": wanted.run, "model": wanted.compiled.model,
                "device": wanted.compiled.device, "torch": plans.torch, "judge": wanted.judge,
            },
            "sha256": digests,
        }),
    )?;
    let mut outer = Files { root: folder, digests: BTreeMap::new() };
    outer.write("__init__.py", FRONT.as_bytes())?;
    outer.write("build.toml", format!("[general]\nname = \"{name}\"\nversion = 1\n").as_bytes())?;
    outer.write("CARD.md", card::card(&plans, wanted).as_bytes())?;
    Ok(plans)
}

/// Compiles a kernel as it was judged, and writes what belongs to it.
fn kernel(
    chosen: &Chosen<'_>,
    wanted: &Wanted<'_>,
    maker: &Maker<'_>,
    files: &mut Files<'_>,
) -> Result<Plan, ExportError> {
    let name = &chosen.region.name;
    let read = |source| ExportError::Kernel { name: name.clone(), source };
    let op = chosen.operation.operation()?;
    let file = KernelFile::parse(&chosen.text).map_err(read)?;
    let dtype = chosen.target.first().map(|target| target.dtype);
    let dtype = dtype.ok_or_else(|| ExportError::Nothing(format!("{name} was not timed at any shape")))?;
    let shape = op.complete(&Shape::default())?;
    let resolution = file.resolve(&shape, dtype, wanted.facts).map_err(read)?;
    let made = Making { name, op: &op, file: &file, shape: &shape, resolution: &resolution, facts: wanted.facts };
    let (code, own_scratch) = maker.code(&made, files)?;
    let unjudged = maker.unjudged(&made, &own_scratch, files);
    let source = source(name, &chosen.text, file.language, files)?;
    files.write(&format!("source/{name}.py"), chosen.operation.python.as_bytes())?;
    files.write(&format!("source/{name}.toml"), chosen.operation.toml.as_bytes())?;
    files.json(
        &format!("receipts/{name}.json"),
        &Receipt {
            operation: chosen.operation.clone(),
            region: chosen.region.key.clone(),
            kernel: chosen.text.clone(),
            source_sha256: source.sha256.clone(),
            image_sha256: code.digest(),
            unjudged: unjudged.iter().filter_map(|it| Some((it.arch.clone(), it.digest()?))).collect(),
            target: chosen.target.clone(),
            evaluation: chosen.evaluation.clone(),
            device_key: wanted.device_key.to_owned(),
            device: wanted.compiled.device.clone(),
            compiler: maker.version(&file),
            judge: wanted.judge.to_owned(),
            torch: wanted.compiled.captured.torch.clone(),
            run: wanted.run.to_owned(),
            commit: chosen.commit.clone(),
        },
    )?;
    let scratch = file.front.scratch.iter().zip(&resolution.scratch_elements);
    let (inputs, outputs) = (chosen.region.inputs.clone(), chosen.region.outputs.clone());
    let nothing = || ExportError::Nothing(format!("{name}: its tensors are not known"));
    Ok(Plan {
        name: name.clone(),
        key: chosen.region.key.clone(),
        plain: chosen.region.plain.clone(),
        family: chosen.region.family.clone(),
        kind: chosen.region.kind,
        inputs: inputs.ok_or_else(nothing)?,
        outputs: outputs.ok_or_else(nothing)?,
        scratch: scratch
            .map(|(scratch, elements)| Buffer {
                bytes: elements * scratch.dtype.stored(dtype).bytes(),
                zero: scratch.init != ScratchInit::Poison,
                kept: scratch.init == ScratchInit::ZeroKept,
            })
            .chain(own_scratch.into_iter().map(|bytes| Buffer { bytes, zero: false, kept: false }))
            .collect(),
        code,
        unjudged,
        source,
        speedup: chosen.speedup,
        against: chosen.evaluation.against.clone(),
    })
}

/// Writes a kernel's text, and beside it the headers of ours that it includes.
fn source(name: &str, text: &str, language: Language, files: &mut Files<'_>) -> Result<File, ExportError> {
    if language == Language::Cuda {
        for header in headers_named(text) {
            files.write(&format!("source/{}", header.name), header.text.as_bytes())?;
        }
    }
    // What it must compute is Python as well, under the same name.
    let extension = match language {
        Language::Triton => "triton.py",
        language => language.extension(),
    };
    files.write(&format!("source/{name}.{extension}"), text.as_bytes())
}

/// Whether Python can import something of this name.
fn is_importable(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(plain)
}

/// SHA-256 in hex.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_kernels_text_has_the_headers_that_it_includes_beside_it_and_each_has_its_digest() {
        let root = tempfile::tempdir().unwrap();
        let mut files = Files { root: root.path(), digests: BTreeMap::new() };
        let text = "#include \"ws/ampere.cuh\"\n";
        let written = source("up", text, Language::Cuda, &mut files).unwrap();
        assert_eq!((written.path.as_str(), written.sha256), ("source/up.cu", sha256(text.as_bytes())));
        assert_eq!(files.digests.keys().collect::<Vec<_>>(), ["source/up.cu", "source/ws/ampere.cuh"]);
        let header = std::fs::read_to_string(root.path().join("source/ws/ampere.cuh")).unwrap();
        assert_eq!(header, headers_named(text)[0].text);
    }

    #[test]
    fn a_name_is_one_that_python_can_import() {
        assert!(is_importable("my_kernels2"));
        for name in ["", "2x", "my-kernels", "My", "a.b", "_x"] {
            assert!(!is_importable(name), "{name}");
        }
    }

    #[test]
    fn digests_are_those_that_everybody_computes() {
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
