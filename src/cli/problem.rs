//! Problem files: PyTorch with `Model` and `get_inputs`.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};

use super::alone;
use super::begin::RunArgs;
use super::options::PythonArgs;
use crate::kernel::kernel_file;
use crate::op::{Dtype, ElementType, OpSource, Operation, Role};
use crate::torch::{Problem, Python, Service, TorchError};
use crate::workspace::Workspace;

/// Whether a path names a problem file rather than a model, a kernel or an operation.
pub(super) fn is_problem(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "py")
}

/// The problem in a file, with the values that it draws looked at.
pub(super) fn read(path: &Path, python: &PythonArgs) -> anyhow::Result<Problem> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let service = Service::new(Python::chosen(python.python.as_deref()));
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
            let problem = read(&args.model, &args.crew.python)?;
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

/// Writes the file in which a kernel for an operation is to be written, where there is none.
pub(super) fn skeleton_file(source: &OpSource, workspace: &Workspace) -> anyhow::Result<Skeleton> {
    let path = workspace.root().join(kernel_file(&source.name, "cpu"));
    if path.exists() {
        return Ok(Skeleton { path, said: Vec::new() });
    }
    write(&path, &skeleton(&source.operation()?))?;
    let said = vec![format!("wrote        {} (an empty body: it is to be written by you)", path.display())];
    Ok(Skeleton { path, said })
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, text))
        .with_context(|| format!("{} cannot be written", path.display()))
}

/// A kernel in C that computes nothing yet.
fn skeleton(op: &Operation) -> String {
    skeleton_in(op, Dtype::F32)
}

/// The same for a type.
pub(super) fn skeleton_in(op: &Operation, dtype: Dtype) -> String {
    let tensors: Vec<String> = op
        .tensors
        .iter()
        .map(|tensor| {
            let role = if tensor.role == Role::Input { "in " } else { "out" };
            let sizes: Vec<&str> = tensor.shape.iter().map(|size| size.text()).collect();
            let element = match tensor.dtype {
                ElementType::Case => "T",
                ElementType::F32 => "float",
                ElementType::I64 => "int64_t",
            };
            format!("     {role} {:<16} {element}[{}]\n", tensor.name, sizes.join("]["))
        })
        .collect();
    let function = op.c_function();
    let function = function.trim_end_matches(';');
    format!(
        "/*---\nop = \"{0}\"\ndtypes = [\"{dtype}\"]\narch = [\"native\"]\n---*/\n\n\
         /* What to compute: reference/{0}.py. Tensors are row-major; ws_load(x[i]) reads an element as a float, ws_store(v) makes\n   \
         one of it. Everything of every output is to be written.\n\n{1}*/\n{function} {{\n    /* To be written. */\n}}\n",
        op.name,
        tensors.concat()
    )
}
