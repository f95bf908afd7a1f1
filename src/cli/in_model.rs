//! The shapes that a kernel's operation has in a model.

use std::path::PathBuf;

use anyhow::bail;

use super::bench::Wanted;
use super::options::PassArgs;
use crate::model::{Graph, ModelConfig, Phase};
use crate::op::{Dtype, TargetShape};
use crate::workspace::{RunSettings, Workspace};

/// A model in which a kernel is timed, and the pass through it.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct InModelArgs {
    /// Time at the shapes that the operation has in this model, each as often as it is called there
    #[arg(long, value_name = "MODEL_DIR", conflicts_with = "shape")]
    model: Option<PathBuf>,
    /// Sequences in a batch, with --model [default: 1, or `batch` in warpsmith.toml]
    #[arg(long, value_name = "N", requires = "model", value_parser = clap::value_parser!(u64).range(1..))]
    batch: Option<u64>,
    /// Tokens in a sequence, with --model [default: 128, or `seq` in warpsmith.toml]
    #[arg(long, value_name = "N", requires = "model", value_parser = clap::value_parser!(u64).range(1..))]
    seq: Option<u64>,
    /// What is run of each sequence, with --model
    #[arg(long, value_enum, requires = "model")]
    phase: Option<Phase>,
}

impl InModelArgs {
    /// Where the kernel is timed in the model, at `dtype` or what is usual there; `None` where no model is named.
    pub(super) fn target(&self, kernel: &Wanted, dtype: Option<Dtype>) -> anyhow::Result<Option<Vec<TargetShape>>> {
        let Some(dir) = &self.model else { return Ok(None) };
        let config = ModelConfig::load(dir)?;
        let settings = Workspace::find(dir)?.map_or_else(RunSettings::default, |found| found.settings().run.clone());
        let pass = PassArgs::of(self.batch, self.seq, self.phase, dtype);
        let pass = pass.resolve(&settings, kernel.backend(), config.dtype);
        let (op, targets) = (&kernel.source.name, Graph::build(&config, pass)?.targets());
        let Some(target) = targets.iter().find(|target| target.op == *op) else {
            let there: Vec<&str> = targets.iter().map(|target| target.op.as_str()).collect();
            bail!("{} has no {op}; it has {}", dir.display(), there.join(", "));
        };
        Ok(Some(target.shapes.clone()))
    }
}
