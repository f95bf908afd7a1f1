//! Problem files: PyTorch with `Model` and `get_inputs`.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};

use super::alone;
use super::begin::RunArgs;
use super::device::Device;
use super::options::{DeviceArgs, PythonArgs};
use crate::kernel::{KernelFile, kernel_file};
use crate::op::{Dtype, ElementType, OpSource, Operation, Role, TensorSpec};
use crate::torch::{Problem, Python, Service, TorchError};
use crate::workspace::Workspace;

/// Whether a path names a problem file rather than a model, a kernel or an operation.
pub(super) fn is_problem(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "py")
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

/// The problem in a file, with the values that it draws looked at; drawn on a GPU where one is named.
pub(super) fn read(path: &Path, python: &PythonArgs, gpu: Option<String>) -> anyhow::Result<Problem> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let service = Service::new(Python::chosen(python.python.as_deref())).on(gpu);
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let described = service.describe(&file, &text, true).map_err(told)?;
    Problem::new(&file, &text, described).map_err(told)
}

/// What PyTorch cannot do, and what to do about it.
pub(super) fn told(error: TorchError) -> anyhow::Error {
    anyhow!("{error}; {}", error.hint())
}

/// Where a run is to improve a kernel for a problem file, makes the problem an operation of the kernel's workspace and has the run
/// work on the kernel.
pub(super) fn begin(args: &mut RunArgs, kernel: Option<&Path>) -> anyhow::Result<()> {
    match (is_problem(&args.model), kernel) {
        (false, None) => Ok(()),
        (false, Some(_)) => bail!("--kernel is for a problem file, and {} is none", args.model.display()),
        (true, None) => bail!(
            "{0} says what to compute, and --kernel FILE where to start; `warpsmith init --problem {0}` writes a file to begin with",
            args.model.display()
        ),
        (true, Some(kernel)) => {
            let gpu = gpu_for(kernel, args.crew.device_of_lead(args.device));
            let problem = read(&args.model, &args.crew.python, gpu)?;
            let (workspace, made) = alone::workspace_of(kernel)?;
            let said = install(&problem.source, &workspace)?;
            made.iter().chain(&said).for_each(|line| super::say(line));
            kernel.clone_into(&mut args.model);
            Ok(())
        }
    }
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
pub(super) fn skeleton_file(source: &OpSource, workspace: &Workspace, device: Device) -> anyhow::Result<Skeleton> {
    let cuda = matches!(device, Device::Cuda(_));
    let path = workspace.root().join(kernel_file(&source.name, if cuda { "cuda" } else { "cpu" }));
    if path.exists() {
        return Ok(Skeleton { path, said: Vec::new() });
    }
    let op = source.operation()?;
    write(&path, &if cuda { cuda_skeleton(&op) } else { skeleton(&op) })?;
    let said = vec![format!("wrote        {} (an empty body: it is to be written by you)", path.display())];
    Ok(Skeleton { path, said })
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, text))
        .with_context(|| format!("{} cannot be written", path.display()))
}

/// A line for each tensor, with its sizes.
fn tensors(op: &Operation) -> String {
    let line = |tensor: &TensorSpec| {
        let role = if tensor.role == Role::Input { "in " } else { "out" };
        let sizes: Vec<&str> = tensor.shape.iter().map(|size| size.text()).collect();
        format!("     {role} {:<16} {}[{}]\n", tensor.name, tensor.dtype.c_name(), sizes.join("]["))
    };
    op.tensors.iter().map(line).collect()
}

/// A type's name where there are no headers.
const fn cuda_name(element: ElementType) -> &'static str {
    match element {
        ElementType::I64 => "long long",
        ElementType::I32 => "int",
        ElementType::U8 => "unsigned char",
        ElementType::Case | ElementType::F32 => element.c_name(),
    }
}

/// A kernel for a GPU that computes nothing yet: a thread for each element of the first output.
fn cuda_skeleton(op: &Operation) -> String {
    let parameters = op.tensors.iter().map(|tensor| {
        let constant = if tensor.role == Role::Input { "const " } else { "" };
        format!("{constant}{} *{}", cuda_name(tensor.dtype), tensor.name)
    });
    let parameters: Vec<String> =
        parameters.chain(op.scalars.iter().map(|scalar| format!("float {}", scalar.name))).collect();
    let names = op.tensors.iter().map(|it| &it.name).chain(op.scalars.iter().map(|it| &it.name));
    let names: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
    let output = op.tensors.iter().find(|tensor| tensor.role == Role::Output);
    let sizes: Vec<&str> = output.iter().flat_map(|tensor| &tensor.shape).map(|size| size.text()).collect();
    let elements = if sizes.is_empty() { "1".to_owned() } else { sizes.join(" * ") };
    format!(
        "/*---\nop = \"{0}\"\ndtypes = [\"f32\"]\narch = [\"sm_80+\"]\n[tune]\nTHREADS = {{ value = 256, choices = [128, 256, 512] }}\n\
         [let]\nELEMENTS = \"{elements}\"\n[[launch]]\nkernel = \"{0}\"\ngrid   = [\"ceil_div(ELEMENTS, THREADS)\"]\n\
         block  = [\"THREADS\"]\nargs   = [{1}]\n---*/\n\n\
         /* What to compute: reference/{0}.py. Tensors are row-major; ws_load(x[i]) reads an element as a float, ws_store(v) makes\n   \
         one of it. Everything of every output is to be written.\n\n{2}*/\n\
         extern \"C\" __global__ void {0}({3}) {{\n    /* To be written. */\n}}\n",
        op.name,
        names.join(", "),
        tensors(op),
        parameters.join(", ")
    )
}

/// A kernel in C that computes nothing yet.
fn skeleton(op: &Operation) -> String {
    skeleton_in(op, Dtype::F32)
}

/// The same for a type.
pub(super) fn skeleton_in(op: &Operation, dtype: Dtype) -> String {
    let function = op.c_function();
    let function = function.trim_end_matches(';');
    format!(
        "/*---\nop = \"{0}\"\ndtypes = [\"{dtype}\"]\narch = [\"native\"]\n---*/\n\n\
         /* What to compute: reference/{0}.py. Tensors are row-major; ws_load(x[i]) reads an element as a float, ws_store(v) makes\n   \
         one of it. Everything of every output is to be written.\n\n{1}*/\n{function} {{\n    /* To be written. */\n}}\n",
        op.name,
        tensors(op)
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_files_to_begin_with_are_kernels_of_their_operation_that_launch_something() {
        let toml = "name = \"scaled\"\nsummary = \"s\"\noracle = \"torch\"\nsymbols = []\nflops = \"1\"\nshrink = []\nprimary = 0\nsmoke = {}\n\
                    sweep = [{}]\nedges = []\nrandom = {}\n[[scalars]]\nname = \"s\"\nvalue = \"2\"\nothers = [\"1\"]\n[[tensors]]\nname = \"x\"\n\
                    role = \"input\"\nshape = [\"16\", \"64\"]\ndtype = \"T\"\ndraw = { dist = \"normal\", scale = \"1\", shift = \"0\" }\n[[tensors]]\n\
                    name = \"at\"\nrole = \"input\"\nshape = [\"16\"]\ndtype = \"i64\"\ndraw = { dist = \"index\", scale = \"9\", shift = \"0\" }\n\
                    [[tensors]]\nname = \"out\"\nrole = \"output\"\nshape = [\"16\"]\ndtype = \"T\"\n";
        let source = OpSource {
            name: "scaled".into(),
            toml: toml.into(),
            header: String::new(),
            python: "def reference(x, at, *, s):\n    return x.sum(1) * s + at\n".into(),
        };
        let op = source.operation().unwrap();
        let cuda = KernelFile::parse(&cuda_skeleton(&op)).unwrap();
        assert!(cuda.front.is_cuda() && !KernelFile::parse(&skeleton(&op)).unwrap().front.is_cuda());
        cuda.check_against(&op).unwrap();
        assert!(cuda.text.contains("void scaled(const T *x, const long long *at, T *out, float s) {"), "{}", cuda.text);
        assert!(cuda.text.contains("ELEMENTS = \"16\"") && cuda.text.contains("at               int64_t[16]"));
    }
}
