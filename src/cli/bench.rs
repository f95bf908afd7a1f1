//! `warpsmith bench`: the judge for one kernel file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use super::session;
use crate::evaluation::{Evaluation, Verdict};
use crate::harness::{EvaluationTask, Progress, SelfTest};
use crate::kernel::KernelFile;
use crate::op::{Dtype, OpSource, Shape, TargetShape};
use crate::worker::protocol::Ask;
use crate::workspace::Workspace;

/// Judge one kernel file: five stages of correctness, then time, on this machine.
///
/// The exit code is 0 where it is correct (and, with --against, whatever the speed), 1 where it is rejected,
/// 2 where it could not be judged.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith bench kernels/cpu/rmsnorm.c                         correct? how fast, against the roofline?\n  warpsmith bench mine.c --against kernels/cpu/rmsnorm.c        and against another, in pairs, by the keep rule\n  warpsmith bench mine.c --shape rows=512,cols=4096 --dtype f16 at a shape of your own\n  warpsmith bench --self-test 100 kernels/cpu/rmsnorm.c         how often is a change that changes nothing kept?"
)]
pub(super) struct Args {
    /// The kernel file
    kernel: PathBuf,
    /// Compare with another kernel file in pairs, by the keep rule
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Time at this shape instead of the primary one, such as rows=512,cols=4096 (may be repeated)
    #[arg(long, value_name = "SYMBOL=N,...", value_parser = parse_shape)]
    shape: Vec<Shape>,
    /// Time at this type
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
    /// Judge N copies of the kernel that differ in nothing but their addresses: the keeps are mistakes
    #[arg(long, value_name = "N", conflicts_with = "against", value_parser = clap::value_parser!(u32).range(1..))]
    self_test: Option<u32>,
    /// Seed of inputs and orders, to repeat a verdict (drawn where not given)
    #[arg(long)]
    seed: Option<u64>,
    /// Print the whole evaluation as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    session::block_on(bench(args))
}

async fn bench(args: Args) -> anyhow::Result<ExitCode> {
    let candidate = read(&args.kernel)?;
    let folder = args.kernel.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let workspace = Workspace::find(folder)?;
    let op = op_of(&candidate).with_context(|| format!("{}", args.kernel.display()))?;
    let source = OpSource::read(&op, &session::reader(workspace.as_ref()))?;
    let task = EvaluationTask {
        target: target(&args, &source)?,
        op: source,
        candidate,
        incumbent: args.against.as_deref().map(read).transpose()?,
        baseline: None,
        seed: args.seed.unwrap_or_else(crate::rng::secret_seed),
        precision: None,
        branch_over_best: None,
    };
    let cancel = session::interruptible();
    let mut worker = session::worker(false).await?;
    let watch = super::spinner::Spinner::new(args.json);
    if let Some(pairs) = args.self_test {
        let ask = Ask::SelfTest { task: Box::new(task), pairs };
        let result: SelfTest = worker.ask(ask, &mut |progress| watch.show(&progress), &cancel).await?;
        drop(watch);
        return print_self_test(&result, args.json);
    }
    let ask = Ask::Evaluate(Box::new(task));
    let evaluation: Evaluation = worker.ask(ask, &mut |progress: Progress| watch.show(&progress), &cancel).await?;
    drop(watch);
    if args.json {
        super::say(&serde_json::to_string_pretty(&evaluation)?);
    } else {
        super::say(&super::verdict::full(&evaluation));
    }
    let correct = matches!(evaluation.verdict, Verdict::Base | Verdict::Keep { .. } | Verdict::Revert { .. });
    Ok(ExitCode::from(u8::from(!correct)))
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

/// The operation a text says it computes. A text that says nothing cannot even be looked up.
fn op_of(text: &str) -> anyhow::Result<String> {
    Ok(KernelFile::parse(text)?.front.op)
}

fn target(args: &Args, source: &OpSource) -> anyhow::Result<Vec<TargetShape>> {
    if args.shape.is_empty() {
        return Ok(session::primary_target(source, args.dtype)?);
    }
    let op = source.operation()?;
    args.shape.iter().map(|shape| Ok(TargetShape { shape: op.complete(shape)?, dtype: args.dtype, calls: 1 })).collect()
}

fn parse_shape(text: &str) -> Result<Shape, String> {
    text.split(',').try_fold(Shape::default(), |shape, pair| {
        let (symbol, value) = pair.split_once('=').ok_or_else(|| format!("`{pair}` is not SYMBOL=N"))?;
        let value = value.trim().parse().map_err(|_| format!("`{value}` is not a whole number"))?;
        Ok(shape.with(symbol.trim(), value))
    })
}

fn print_self_test(result: &SelfTest, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        super::say(&serde_json::to_string_pretty(result)?);
    } else {
        let spread = result.ratios.iter().fold((f64::INFINITY, 0.0f64), |(low, high), r| (low.min(*r), high.max(*r)));
        super::say(&format!(
            "{} pairs that differ in nothing: {} kept by the keep rule (margin {:.1} %), {} by one sample and 1 %\n\
             apparent speedups from {:.3}x to {:.3}x",
            result.pairs,
            result.false_keeps,
            100.0 * result.margin,
            result.naive_keeps,
            spread.0,
            spread.1
        ));
    }
    Ok(ExitCode::from(u8::from(result.false_keeps > 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_on_the_command_line_is_symbols_and_numbers() {
        assert_eq!(parse_shape("rows=3, cols=4"), Ok(Shape::from([("rows", 3), ("cols", 4)])));
        assert!(parse_shape("rows").is_err() && parse_shape("rows=x").is_err());
    }
}
