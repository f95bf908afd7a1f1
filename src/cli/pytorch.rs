//! PyTorch models: directories with a `model.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::options::{LoadArgs, PythonArgs};
use super::problem::told;
use crate::device::{DeviceCard, detect_cpu};
use crate::engine::{RunState, files};
use crate::kernel::{KernelError, KernelFile, Language, adopted, kernel_file, skeleton};
use crate::model::{ModelConfig, ModelError};
use crate::op::{Bar, Dtype, OpSource};
use crate::profile::Compiled;
use crate::torch::Python;
use crate::torch::model::{Captured, MODEL_FILE, Region, Request, capture, is_model as has_model, torch_name};
use crate::workspace::{BackendName, Workspace};

use super::device::Device;

/// Whether a directory is a PyTorch model: a function of it is named, or it has a `model.py`. Where it has a `config.json` as well, that is
/// the model; where that is of a kind without a graph here, `transformers` runs it.
pub(super) fn is_model(path: &Path, load: &LoadArgs) -> bool {
    match path.join("config.json").is_file() {
        _ if load.function.is_some() => path.is_dir(),
        false => has_model(path),
        true => {
            !has_model(path) && matches!(ModelConfig::load(path), Err(ModelError::Architecture { stated: true, .. }))
        }
    }
}

/// How a PyTorch model is looked at.
#[derive(Debug, Clone)]
pub(super) struct Look<'a> {
    pub(super) folder: &'a Path,
    pub(super) load: &'a LoadArgs,
    /// As it is shown.
    pub(super) name: String,
    pub(super) python: &'a PythonArgs,
    pub(super) device: Device,
    pub(super) dtype: Option<Dtype>,
    pub(super) seed: u64,
    pub(super) max_autotune: bool,
    /// Seconds that each way of running the whole is timed.
    pub(super) seconds: f64,
}

/// PyTorch's name of a device.
pub(super) fn torch_device(device: Device) -> anyhow::Result<String> {
    match device {
        Device::Cpu => Ok("cpu".into()),
        Device::Cuda(number) => Ok(format!("cuda:{number}")),
        Device::Theirs => {
            bail!("a PyTorch model is taken apart on this machine; leave --worker out, or name --backend")
        }
    }
}

/// Takes the model apart; `tell` hears what is being done.
pub(super) fn look(wanted: &Look<'_>, tell: &mut dyn FnMut(&str)) -> anyhow::Result<Compiled> {
    let folder = wanted.folder.canonicalize().with_context(|| wanted.folder.display().to_string())?;
    let torch_device = torch_device(wanted.device)?;
    let request = Request {
        folder: &folder,
        load: wanted.load.function.as_deref(),
        device: &torch_device,
        dtype: wanted.dtype.map(torch_name),
        seed: wanted.seed % (1 << 31),
        seconds: wanted.seconds,
        threads: threads(),
        max_autotune: wanted.max_autotune,
    };
    let python = Python::chosen(wanted.python.python.as_deref());
    let captured: Captured =
        capture(&python, &request, tell).map_err(told).map_err(|error| match ModelConfig::load(&folder) {
            Err(unknown @ ModelError::Architecture { stated: true, .. })
                if wanted.load.function.is_none() && !has_model(&folder) =>
            {
                error.context(format!("{unknown}; others are run by `transformers`"))
            }
            _ => error,
        })?;
    let device = match wanted.device {
        Device::Cuda(_) => captured.device_name.clone(),
        Device::Cpu | Device::Theirs => detect_cpu().name,
    };
    Ok(Compiled {
        model: wanted.name.clone(),
        load: wanted.load.function.clone(),
        dtype: wanted.dtype.map(|dtype| torch_name(dtype).to_owned()),
        device,
        torch_device,
        captured,
    })
}

/// Threads that PyTorch may have at most: one for each core that this process may use.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Kernel files that the user has for a device: by operation, each file's text.
///
/// # Errors
/// As [`kernel_files`].
pub(super) fn kernels_in(folder: &Path, backend: BackendName) -> anyhow::Result<BTreeMap<String, String>> {
    let extensions: &[&str] = match backend {
        BackendName::Cpu => &["c"],
        BackendName::Cuda => &["cu", "py"],
    };
    Ok(kernel_files(folder, extensions)?.into_iter().map(|(op, (_, text))| (op, text)).collect())
}

/// Kernel files of a folder by what they compute, each with its text. Python without a kernel file's front matter is something else, such as
/// a region's reference.
///
/// # Errors
/// A folder that cannot be read, a file that is no kernel file, or two for one operation.
pub(super) fn kernel_files(folder: &Path, extensions: &[&str]) -> anyhow::Result<BTreeMap<String, (PathBuf, String)>> {
    let mut found: BTreeMap<String, (PathBuf, String)> = BTreeMap::new();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .with_context(|| format!("{} cannot be read", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().and_then(|it| it.to_str()).is_some_and(|it| extensions.contains(&it)))
        .collect();
    files.sort();
    for path in files {
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        if path.extension().is_some_and(|it| it == "py")
            && matches!(KernelFile::parse(&text), Err(KernelError::NoFrontMatter))
        {
            continue;
        }
        let op = KernelFile::parse(&text).with_context(|| path.display().to_string())?.front.op;
        if let Some((other, _)) = found.get(&op) {
            bail!("{} and {} are both for {op}; one of them is to go", other.display(), path.display());
        }
        found.insert(op, (path, text));
    }
    Ok(found)
}

/// Says which of the user's kernels are for no region of the model: most likely it was changed, or PyTorch was.
pub(super) fn strangers(kernels: &BTreeMap<String, String>, compiled: &Compiled) -> Vec<String> {
    let strange = kernels.keys().filter(|op| compiled.region(op).is_none());
    strange.map(|op| format!("note: no region of this model is called {op}; its kernel is left alone")).collect()
}

/// Writes each region that can be a target into a folder of its own: its operation, its text in PyTorch, and an empty kernel.
///
/// How many were written.
pub(super) fn write_regions(folder: &Path, compiled: &Compiled) -> anyhow::Result<usize> {
    let mut written = 0;
    for region in &compiled.captured.regions {
        let Ok(source) = region.operation(compiled.bar()) else { continue };
        let place = folder.join(&region.name);
        std::fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
        for (name, text) in files_of(&source, region.element(), compiled.torch_device == "cpu")? {
            let path = place.join(name);
            // A kernel that is being written there is not touched.
            if path.extension().is_some_and(|it| it == "c" || it == "cu") && path.exists() {
                continue;
            }
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
        let occurrences = serde_json::json!({
            "key": region.key, "family": region.family, "kind": region.kind, "calls": region.calls, "modules": region.modules,
            "lines": region.lines, "inputs": region.inputs, "outputs": region.outputs, "us": region.us,
        });
        let path = place.join("region.json");
        std::fs::write(&path, format!("{:#}\n", occurrences)).with_context(|| path.display().to_string())?;
        written += 1;
    }
    Ok(written)
}

fn files_of(source: &OpSource, dtype: Option<Dtype>, processor: bool) -> anyhow::Result<Vec<(String, String)>> {
    let name = &source.name;
    let mut files = vec![(format!("{name}.toml"), source.toml.clone()), (format!("{name}.py"), source.python.clone())];
    let language = if processor { Language::C } else { Language::Cuda };
    let text = skeleton(&source.operation()?, language, dtype.unwrap_or(Dtype::F32));
    files.push((format!("{name}.{}", language.extension()), text));
    Ok(files)
}

/// The kernel of a region: the user's own, else the workspace's, in the first of these languages that has one.
pub(super) fn kernel(
    own: &BTreeMap<String, String>,
    workspace: &Workspace,
    languages: &[Language],
    op: &str,
) -> Option<(String, String)> {
    if let Some(text) = own.get(op) {
        let language = KernelFile::parse(text).ok()?.language;
        return Some((kernel_file(op, language.folder()), text.clone()));
    }
    languages.iter().find_map(|language| {
        let file = kernel_file(op, language.folder());
        let text = workspace.file(&file).ok()?.text;
        Some((file, text))
    })
}

/// The kernel of a region that is an operation which ships, or a product of groups or of patches, for which a kernel ships alone: the workspace's own for it, or the one
/// inside this program, called with what the region has. None where it is no such operation, or its kernel cannot be used so.
pub(super) fn shipped(workspace: &Workspace, card: &DeviceCard, region: &Region) -> Option<(String, String)> {
    let (call, dtype) = (region.shipped.as_ref()?, region.element()?);
    let theirs = OpSource::read(&call.op, &files::reader(Some(workspace))).and_then(|source| source.operation()).ok();
    let own = region.operation(Bar::Compiled).ok()?.operation().ok()?;
    let language = Language::of_folder(&card.backend)?;
    let (_, text) = files::kernel_in(Some(workspace), card, language, &call.op, dtype)?;
    let text = adopted(&text, (theirs.as_ref(), &own), call, dtype, &card.facts).ok()?;
    Some((kernel_file(&region.name, &card.backend), text))
}

/// Refuses what says something about models with a `config.json` alone.
pub(super) fn check_pass(option: Option<&str>, folder: &Path) -> anyhow::Result<()> {
    match option {
        Some(option) => bail!(
            "{option} is for the kinds of model whose graph Warpsmith knows; what {} runs is said by its inputs (get_inputs() in a {MODEL_FILE})",
            folder.display()
        ),
        None => Ok(()),
    }
}

/// The PyTorch model that a run was on.
pub(super) fn of_run(state: &RunState) -> anyhow::Result<&Compiled> {
    state.workload.compiled().with_context(|| {
        format!(
            "run {} was on {}, and only runs on PyTorch models (directories with a model.py; a Hugging Face checkpoint of any kind with \
             --load transformers) can be exported; `warpsmith apply` brings its kernels into your branch",
            state.run, state.model
        )
    })
}
