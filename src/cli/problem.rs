//! Problem files: PyTorch with `Model` and `get_inputs`.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};

use super::alone;
use super::begin::RunArgs;
use super::device::{self, Device};
use super::inductor;
use super::options::{DeviceArgs, PythonArgs};
use crate::kernel::{KernelFile, Language, is_unwritten, kernel_file, skeleton};
use crate::op::{Dtype, OpSource};
use crate::torch::inductor::Gpu;
use crate::torch::{Problem, Python, Service, TorchError, definition};
use crate::workspace::{Settings, Workspace};

/// Whether a path names a problem file or a definition rather than a model, a kernel (of Triton's too) or an operation.
pub(super) fn is_problem(path: &Path) -> bool {
    let is_kernel = || std::fs::read_to_string(path).is_ok_and(|text| Language::has_front_matter(&text));
    is_definition(path) || (path.extension().is_some_and(|extension| extension == "py") && !is_kernel())
}

/// Whether a path names a definition in JSON.
fn is_definition(path: &Path) -> bool {
    // A `config.json` is a model's.
    path.extension().is_some_and(|extension| extension == "json") && !path.ends_with("config.json")
}

/// At which sizes a definition is called.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct WorkloadArgs {
    /// Time the kernels of a FlashInfer-Bench definition at the sizes of these workloads: a file with one in JSON on each line
    #[arg(long, value_name = "FILE")]
    pub(super) workloads: Option<PathBuf>,
}

/// The GPU, by its name, that a kernel file is for: values are then drawn there.
pub(super) fn gpu_for(kernel: &Path, device: DeviceArgs) -> Option<String> {
    let front = KernelFile::parse(&std::fs::read_to_string(kernel).ok()?).ok()?.front;
    if front.is_cuda() { gpu_of(Device::Cuda(device.device.unwrap_or(0))) } else { None }
}

/// The name of a device where it is a GPU of this machine.
pub(super) fn gpu_of(device: Device) -> Option<String> {
    match device {
        // What is wrong with it whoever judges there says.
        Device::Cuda(number) => crate::backend::cuda::uuid_of(number).ok(),
        Device::Cpu | Device::Theirs => None,
    }
}

/// The problem in a file, with the values that it draws looked at; drawn on a GPU where one is named. A definition in JSON needs no PyTorch to
/// be read.
pub(super) fn read(
    path: &Path,
    workloads: &WorkloadArgs,
    python: &PythonArgs,
    gpu: Option<String>,
) -> anyhow::Result<Problem> {
    let open =
        |path: &Path| std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()));
    let base = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (text, file) = (open(path)?, base(path));
    if is_definition(path) {
        let workloads = workloads.workloads.as_ref().map(|path| Ok::<_, anyhow::Error>((base(path), open(path)?)));
        let workloads = workloads.transpose()?;
        return definition(&file, &text, workloads.as_ref().map(|(file, text)| (&**file, &**text))).map_err(told);
    }
    if workloads.workloads.is_some() {
        bail!("--workloads is for a definition in JSON, and {file} is none");
    }
    let service = Service::new(Python::chosen(python.python.as_deref())).on(gpu);
    by(&service, &file, &text).map_err(told)
}

/// The problem of a file of this name and text, as a process of PyTorch's that is there sees it.
pub(super) fn by(service: &Service, file: &str, text: &str) -> Result<Problem, TorchError> {
    Problem::new(file, text, service.describe(file, text, true)?)
}

/// What PyTorch cannot do, and what to do about it.
pub(super) fn told(error: TorchError) -> anyhow::Error {
    anyhow!("{error}; {}", error.hint())
}

/// Where a run is to improve a kernel for a problem file, makes the problem an operation of the kernel's workspace and has the run
/// work on the kernel: the one that is named, else the workspace's own, which is written with an empty body where there is none.
pub(super) fn begin(args: &mut RunArgs, kernel: Option<&Path>, tell: &dyn Fn(&str)) -> anyhow::Result<()> {
    match (is_problem(&args.model), kernel) {
        (false, None) if args.workloads.workloads.is_some() => {
            bail!("--workloads is for a definition in JSON, and {} is none", args.model.display())
        }
        (false, None) => {}
        (false, Some(_)) => bail!("--kernel is for a problem file, and {} is none", args.model.display()),
        (true, Some(kernel)) => {
            let gpu = gpu_for(kernel, args.crew.device_of_lead(args.device));
            let problem = read(&args.model, &args.workloads, &args.crew.python, gpu)?;
            args.sizes.clone_from(&problem.shapes);
            let (workspace, made) = alone::workspace_of(kernel)?;
            let said = install(&problem.source, &workspace)?;
            made.iter().chain(&said).for_each(|line| tell(line));
            kernel.clone_into(&mut args.model);
        }
        (true, None) => {
            let file = args.model.canonicalize().with_context(|| args.model.display().to_string())?;
            let folder = file.parent().unwrap_or(Path::new("/"));
            let found = Workspace::find(folder)?;
            let settings = found.as_ref().map_or_else(Settings::default, |it| it.settings().clone());
            let starter = args.crew.lead().starter(&settings.run)?;
            let device = device::choose(args.crew.device_of_lead(args.device), settings.device, &starter)?.device;
            let problem = read(&args.model, &args.workloads, &args.crew.python, gpu_of(device))?;
            args.sizes.clone_from(&problem.shapes);
            let (workspace, made) = match found {
                Some(workspace) => (workspace, Vec::new()),
                None => Workspace::make(folder).map(|(workspace, made)| (workspace, made.sentences()))?,
            };
            let said = install(&problem.source, &workspace)?;
            made.iter().chain(&said).for_each(|line| tell(line));
            let kernels = first_kernels(args, &[&problem], &workspace, device, tell)?;
            args.model = match kernels.into_iter().next().flatten() {
                Some(path) => path,
                None => empty_file(&problem, &workspace, device, tell)?,
            };
        }
    }
    Ok(())
}

/// The languages in which a run on a device may begin.
fn languages_on(args: &RunArgs, device: Device) -> anyhow::Result<Vec<Language>> {
    args.languages_of(if matches!(device, Device::Cuda(_)) { "cuda" } else { "cpu" })
}

/// The workspace's own kernel for an operation, where somebody has written one.
fn own_kernel(name: &str, languages: &[Language], workspace: &Workspace) -> Option<PathBuf> {
    let mut paths = languages.iter().map(|it| workspace.root().join(kernel_file(name, it.folder())));
    paths.find(|path| std::fs::read_to_string(path).is_ok_and(|text| !is_unwritten(&text)))
}

/// Whether [`first_kernels`] may have one for an operation: its problem need not be read where it has none.
pub(super) fn may_have_a_kernel(
    args: &RunArgs,
    name: &str,
    workspace: &Workspace,
    device: Device,
) -> anyhow::Result<bool> {
    let languages = languages_on(args, device)?;
    let asks = matches!(device, Device::Cuda(_)) && languages.contains(&Language::Triton);
    Ok(asks || own_kernel(name, &languages, workspace).is_some())
}

/// Where a run on problems begins, each: the workspace's own kernel; else, on a GPU, what Inductor writes; `None` where there is neither.
pub(super) fn first_kernels(
    args: &RunArgs,
    problems: &[&Problem],
    workspace: &Workspace,
    device: Device,
    tell: &dyn Fn(&str),
) -> anyhow::Result<Vec<Option<PathBuf>>> {
    let languages = languages_on(args, device)?;
    let own = |problem: &&Problem| own_kernel(&problem.source.name, &languages, workspace);
    let mut kernels: Vec<Option<PathBuf>> = problems.iter().map(own).collect();
    let Device::Cuda(number) = device else { return Ok(kernels) };
    let lacking: Vec<usize> = (0..kernels.len()).filter(|place| kernels[*place].is_none()).collect();
    if lacking.is_empty() || !languages.contains(&Language::Triton) {
        return Ok(kernels);
    }
    let wanted = |place: &usize| (&problems[*place].source, args.dtype().unwrap_or(problems[*place].dtype));
    let wanted: Vec<(&OpSource, Dtype)> = lacking.iter().map(wanted).collect();
    match inductor::write(&wanted, workspace, &args.crew.python, Gpu::Here(number), tell) {
        Ok(written) => {
            for ((place, (source, _)), start) in lacking.iter().zip(&wanted).zip(written) {
                match start {
                    Ok(path) => {
                        tell(&format!("wrote        {} (what torch.compile would run)", path.display()));
                        kernels[*place] = Some(path);
                    }
                    Err(why) => tell(&format!("note: {} begins without a kernel of Inductor's: {why}", source.name)),
                }
            }
        }
        Err(error) => tell(&format!("note: a run begins without kernels of Inductor's: {error:#}")),
    }
    Ok(kernels)
}

/// A file with an empty body, told of where it was written now.
pub(super) fn empty_file(
    problem: &Problem,
    workspace: &Workspace,
    device: Device,
    tell: &dyn Fn(&str),
) -> anyhow::Result<PathBuf> {
    let kernel = skeleton_file(problem, workspace, device)?;
    kernel.said.iter().for_each(|line| tell(line));
    Ok(kernel.path)
}

/// Writes the operation of a problem into a workspace, so that every later command, on any machine, finds it there.
///
/// What was written, in sentences; an operation that is there already and another one is left alone.
pub(super) fn install(source: &OpSource, workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let name = &source.name;
    let files = [(format!("reference/{name}.toml"), &source.toml), (format!("reference/{name}.py"), &source.python)];
    let mut said = Vec::new();
    for (file, text) in &files {
        let path = workspace.root().join(file);
        match workspace.file(file).map(|there| there.text) {
            Ok(there) if there == **text => {}
            Ok(_) => bail!(
                "this workspace has another operation `{name}` already, in {file}; rename the problem file, or remove that"
            ),
            Err(_) => {
                write(&path, text)?;
                said.push(format!("wrote        {}", path.display()));
            }
        }
    }
    Ok(said)
}

/// A kernel file to write in.
pub(super) struct Skeleton {
    pub(super) path: PathBuf,
    pub(super) said: Vec<String>,
}

/// Writes the file in which a kernel for an operation is to be written, where there is none: for a GPU, or in C.
pub(super) fn skeleton_file(problem: &Problem, workspace: &Workspace, device: Device) -> anyhow::Result<Skeleton> {
    let (source, cuda) = (&problem.source, matches!(device, Device::Cuda(_)));
    let path = workspace.root().join(kernel_file(&source.name, if cuda { "cuda" } else { "cpu" }));
    if path.exists() {
        return Ok(Skeleton { path, said: Vec::new() });
    }
    let op = source.operation()?;
    let language = if cuda { Language::Cuda } else { Language::C };
    write(&path, &skeleton(&op, language, problem.dtype))?;
    let said =
        vec![format!("wrote        {} (an empty body: it is to be written by you, or by an agent)", path.display())];
    Ok(Skeleton { path, said })
}

/// Writes a file, and its folder where there is none.
pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, text))
        .with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_kernel_in_triton_is_no_problem_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("softmax.py");
        std::fs::write(&path, crate::workspace::embedded("kernels/triton/softmax.py").unwrap()).unwrap();
        assert!(!is_problem(&path) && is_problem(&folder.path().join("rmsnorm_h4096.json")));
        std::fs::write(&path, "\"\"\"A model.\"\"\"\nimport torch\nclass Model(torch.nn.Module): ...\n").unwrap();
        assert!(is_problem(&path) && is_problem(&folder.path().join("missing.py")) && !is_problem(folder.path()));
    }
}
