//! Options that several subcommands share.

use std::path::PathBuf;

use clap::Args;

use super::starter::Starter;
use crate::model::{Pass, Phase};
use crate::op::Dtype;
use crate::workspace::{BackendName, PhaseName, RunSettings};

/// What the kernels run on.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(super) struct DeviceArgs {
    /// What runs the kernels [default: cuda where there is a GPU, else cpu; or `backend` in warpsmith.toml]
    #[arg(long, value_enum, env = "WARPSMITH_BACKEND", hide_env_values = true)]
    pub(super) backend: Option<BackendName>,
    /// Which GPU, as the driver counts them [default: 0, or `index` in warpsmith.toml]
    #[arg(long, value_name = "N")]
    pub(super) device: Option<u32>,
}

impl DeviceArgs {
    /// The same, with a backend where the command line leaves it open: a run's, or a kernel file's.
    pub(super) const fn or(self, backend: BackendName) -> Self {
        match self.backend {
            Some(_) => self,
            None => Self { backend: Some(backend), ..self },
        }
    }
}

/// Who judges and times.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct WorkerArgs {
    /// Judge and time in a worker that this command starts, instead of on this machine: `ssh gpu7 warpsmith worker`. It is split
    /// as a shell would, and not run by one; `--backend` and `--device` are appended where they are known [default: this
    /// program, or `worker` in warpsmith.toml]
    #[arg(long, value_name = "COMMAND", env = "WARPSMITH_WORKER", hide_env_values = true)]
    worker: Option<String>,
    #[command(flatten)]
    pub(super) python: PythonArgs,
}

impl WorkerArgs {
    /// By a command that was given elsewhere.
    pub(super) const fn by(worker: Option<String>, python: PythonArgs) -> Self {
        Self { worker, python }
    }

    /// How a worker is started: as the command line says, else as the settings do (the first, where there are several), else by this
    /// very program.
    pub(super) fn starter(&self, settings: &RunSettings) -> anyhow::Result<Starter> {
        let starter = match self.worker.as_ref().or(settings.worker.0.first()) {
            Some(command) => Starter::command(command)?,
            None => Starter::own(),
        };
        Ok(starter.with_python(&self.python))
    }
}

/// Whose PyTorch is asked, where an operation is written in it.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct PythonArgs {
    /// The Python whose PyTorch evaluates operations that are written in it, and whose Triton compiles kernels [default: $WARPSMITH_PYTHON, else the active
    /// environment's python3]
    #[arg(long, value_name = "PYTHON")]
    pub(super) python: Option<PathBuf>,
}

/// A model directory and the pass through it.
#[derive(Debug, Clone, Args)]
pub(super) struct ModelArgs {
    /// Directory with a Hugging Face `config.json` (Llama, Mistral, Qwen2, GPT-2 and BERT kinds; others by `transformers`), and its weights
    /// where it has any; or with a `model.py` in PyTorch
    #[arg(value_name = "MODEL_DIR")]
    pub(super) model: PathBuf,
    #[command(flatten)]
    pub(super) load: LoadArgs,
    #[command(flatten)]
    pub(super) pass: PassArgs,
}

/// A PyTorch model that a function gives.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct LoadArgs {
    /// A function that returns a PyTorch model and its inputs, `(module, inputs)`; its package is in the model's directory, or where Python
    /// finds all others. Or `transformers`: the directory is a Hugging Face checkpoint, which PyTorch is to run though Warpsmith knows its graph
    #[arg(long = "load", value_name = "PACKAGE.MODULE:FUNCTION")]
    pub(super) function: Option<String>,
}

/// The pass that is profiled.
#[derive(Debug, Clone, Args)]
pub(super) struct PassArgs {
    /// Sequences in a batch [default: 1, or `batch` in warpsmith.toml]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch: Option<u64>,
    /// Tokens in a sequence, earlier ones included where it decodes [default: 128, or `seq` in warpsmith.toml]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seq: Option<u64>,
    /// What is run of each sequence [default: prefill, or `phase` in warpsmith.toml; for verify, the run's]
    #[arg(long, value_enum)]
    phase: Option<Phase>,
    /// Type of weights and activations [default: f32 on a CPU, the model's own on a GPU, or `dtype` in warpsmith.toml]
    #[arg(long, value_enum)]
    dtype: Option<Dtype>,
    /// Run only the first N layers (for models larger than this machine)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    layers: Option<u64>,
}

impl PassArgs {
    /// These, whole and through all layers.
    pub(super) const fn of(batch: Option<u64>, seq: Option<u64>, phase: Option<Phase>, dtype: Option<Dtype>) -> Self {
        Self { batch, seq, phase, dtype, layers: None }
    }

    /// Whether anything of the pass was given.
    pub(super) const fn is_given(&self) -> bool {
        self.phase.is_some()
            || self.batch.is_some()
            || self.seq.is_some()
            || self.dtype.is_some()
            || self.layers.is_some()
    }

    /// The first option given that says nothing about a kernel alone.
    pub(super) fn of_a_model(&self) -> Option<&'static str> {
        let given = [
            ("--batch", self.batch.is_some()),
            ("--seq", self.seq.is_some()),
            ("--phase", self.phase.is_some()),
            ("--layers", self.layers.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }

    /// The dtype, where the command line names one.
    pub(super) const fn dtype(&self) -> Option<Dtype> {
        self.dtype
    }

    /// The same, in the phase `usual` where the command line leaves it open.
    pub(super) fn in_phase(&self, usual: Option<Phase>) -> Self {
        Self { phase: self.phase.or(usual), ..self.clone() }
    }

    /// The pass: the command line first, then the settings, then what suits the device; `own` is the model's dtype.
    pub(super) fn resolve(&self, settings: &RunSettings, backend: BackendName, own: Option<Dtype>) -> Pass {
        let usual = match backend {
            BackendName::Cpu => Dtype::F32,
            BackendName::Cuda => own.unwrap_or(Dtype::F16),
        };
        Pass {
            phase: self.phase.or(settings.phase.map(phase)).unwrap_or_default(),
            batch: self.batch.or(settings.batch).unwrap_or(1),
            seq: self.seq.or(settings.seq).unwrap_or(128),
            dtype: self.dtype.or(settings.dtype).unwrap_or(usual),
            layers: self.layers,
        }
    }
}

const fn phase(name: PhaseName) -> Phase {
    match name {
        PhaseName::Prefill => Phase::Prefill,
        PhaseName::Decode => Phase::Decode,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        pass: PassArgs,
    }

    #[test]
    fn the_phase_is_the_command_lines_else_the_settings_else_the_prefill() {
        let settings = |phase| RunSettings { phase, ..RunSettings::default() };
        let chosen = |arguments: &[&str], settings: &RunSettings| {
            let line = Line::try_parse_from([&["x"], arguments].concat()).unwrap();
            line.pass.resolve(settings, BackendName::Cpu, None).phase
        };
        let decode = settings(Some(PhaseName::Decode));
        assert_eq!(chosen(&[], &decode), Phase::Decode);
        assert_eq!(chosen(&["--phase", "prefill"], &decode), Phase::Prefill);
        assert_eq!(chosen(&["--phase", "decode"], &settings(Some(PhaseName::Prefill))), Phase::Decode);
        assert_eq!(chosen(&[], &settings(None)), Phase::Prefill);
    }
}
