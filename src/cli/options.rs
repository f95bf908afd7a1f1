//! Options that several subcommands share.

use std::path::PathBuf;

use clap::Args;

use crate::model::Pass;
use crate::op::Dtype;

/// A model directory and the pass through it.
#[derive(Debug, Clone, Args)]
pub(super) struct ModelArgs {
    /// Directory with a Hugging Face `config.json` (Llama, Mistral and Qwen2 kinds)
    #[arg(value_name = "MODEL_DIR")]
    pub(super) model: PathBuf,
    #[command(flatten)]
    pub(super) pass: PassArgs,
}

/// The pass that is profiled.
#[derive(Debug, Clone, Args)]
pub(super) struct PassArgs {
    /// Sequences in a batch [default: 1, or `batch` in warpsmith.toml]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch: Option<u64>,
    /// Tokens in a sequence [default: 128, or `seq` in warpsmith.toml]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seq: Option<u64>,
    /// Type of weights and activations [default: f32 on a CPU, or `dtype` in warpsmith.toml]
    #[arg(long, value_enum)]
    dtype: Option<Dtype>,
    /// Run only the first N layers (for models larger than this machine)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    layers: Option<u64>,
}

impl PassArgs {
    /// Whether anything of the pass was given.
    pub(super) const fn is_given(&self) -> bool {
        self.batch.is_some() || self.seq.is_some() || self.dtype.is_some() || self.layers.is_some()
    }

    /// The pass: the command line first, then the settings, then what suits a CPU.
    pub(super) fn resolve(&self, settings: &crate::workspace::RunSettings) -> Pass {
        Pass {
            batch: self.batch.or(settings.batch).unwrap_or(1),
            seq: self.seq.or(settings.seq).unwrap_or(128),
            dtype: self.dtype.or(settings.dtype).unwrap_or(Dtype::F32),
            layers: self.layers,
        }
    }
}
