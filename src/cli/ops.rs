//! `warpsmith ops`: the operations that are known here.

use std::path::Path;
use std::process::ExitCode;

use super::options::PythonArgs;
use super::problem::{self, WorkloadArgs};

use crate::engine::files;
use crate::op::Operation;
use crate::workspace::Workspace;

/// List the operations Warpsmith can judge here, with their shapes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith ops              all of them, a line each\n  warpsmith ops matmul       one with its tensors, shapes, tolerances and hostile inputs\n  warpsmith ops problem.py   the operation that a PyTorch file is, with the signature of its kernels\n  warpsmith ops rmsnorm_h4096.json   ... or a definition of FlashInfer-Bench"
)]
pub(super) struct Args {
    /// Show one operation in full, or the one that a problem file is: PyTorch with `Model` and `get_inputs`, or a definition in JSON
    #[arg(value_name = "OP|PROBLEM_FILE")]
    op: Option<String>,
    #[command(flatten)]
    workloads: WorkloadArgs,
    #[command(flatten)]
    python: PythonArgs,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::find(&std::env::current_dir()?)?;
    let read = files::reader(workspace.as_ref());
    if let Some(path) = args.op.as_ref().map(Path::new).filter(|path| problem::is_problem(path)) {
        super::say(&full(&problem::read(path, &args.workloads, &args.python, None)?.source.operation()?));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = args.op {
        super::say(&full(&Operation::load(&read, &name)?));
        return Ok(ExitCode::SUCCESS);
    }
    for name in files::operation_names(workspace.as_ref())? {
        let summary =
            Operation::load(&read, &name).map_or_else(|why| format!("cannot be used: {why}"), |op| op.summary);
        super::say(&format!("{name:<18} {summary}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn full(op: &Operation) -> String {
    let mut lines = vec![format!("{}: {}", op.name, op.summary), String::new()];
    lines.push(format!("symbols   {}", op.symbols.join(", ")));
    for tensor in &op.tensors {
        let shape: Vec<&str> = tensor.shape.iter().map(|size| size.text()).collect();
        let role = format!("{:?}", tensor.role).to_lowercase();
        lines.push(format!("{role:<9} {}[{}]", tensor.name, shape.join(", ")));
    }
    for scalar in &op.scalars {
        lines.push(format!("scalar    {} = {}", scalar.name, scalar.value));
    }
    lines.push(format!("in C      {}", op.c_function()));
    lines.push(format!("flops     {}", op.flops));
    lines.push(match &op.tolerance {
        Some(it) => format!("tolerance L = {} (f16), {} (bf16), {} (f32)", it.f16, it.bf16, it.f32),
        None => "tolerance PyTorch's own error in the kernel's type (docs/pytorch-operations.md)".to_owned(),
    });
    for (name, shapes) in [("sweep", &op.sweep), ("decode", &op.decode), ("edges", &op.edges)] {
        for (index, shape) in shapes.iter().enumerate() {
            let primary = if name == "sweep" && index == op.primary { "  (primary)" } else { "" };
            let heading = if index == 0 { name } else { "" };
            lines.push(format!("{heading:<9} {}{primary}", op.label(shape)));
        }
    }
    for hostile in &op.adversarial {
        lines.push(format!("hostile   {}: {}", hostile.name, hostile.why));
    }
    lines.join("\n")
}
