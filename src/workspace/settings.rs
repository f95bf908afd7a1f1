//! `warpsmith.toml`.

use std::time::Duration;

use serde::Deserialize;

use super::duration;
use crate::op::Dtype;

/// The settings of a workspace. Every key is optional; an unknown one is an error, so that a typing mistake is seen.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What a run does and when it stops.
    pub run: RunSettings,
    /// The machine.
    pub device: DeviceSettings,
    /// The built-in tuner.
    pub tuner: TunerSettings,
    /// What tokens cost; these rows come before the program's own.
    pub prices: Vec<PriceSettings>,
}

/// `[run]`: the stop rules, and what the model is profiled with.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunSettings {
    /// A target ends after so many experiments in a row that were not kept.
    pub max_reverts: u32,
    /// A target ends at this share of its roofline (0.9 is 90 %).
    pub roofline: f64,
    /// A target ends at this speedup over what the user has.
    pub speedup: f64,
    /// A target ends after this time (as in `"2h"`).
    #[serde(deserialize_with = "duration::required")]
    pub per_kernel: Duration,
    /// What the second tier may take of each keep; without it 20 seconds, less where the budget is short.
    #[serde(deserialize_with = "duration::optional")]
    pub examination: Option<Duration>,
    /// The run ends after this time; without it, when its targets do.
    #[serde(deserialize_with = "duration::optional")]
    pub budget: Option<Duration>,
    /// What is run of each sequence; without it, the prefill.
    pub phase: Option<PhaseName>,
    /// The dtype to run the model in; without it, what suits the device.
    pub dtype: Option<Dtype>,
    /// Sequences in a batch.
    pub batch: Option<u64>,
    /// Tokens in a sequence.
    pub seq: Option<u64>,
    /// A command for `sh -c`, run when a run ends or is interrupted.
    pub notify: Option<String>,
    /// The commands that start the workers; without any, this program does.
    pub worker: Commands,
}

/// Commands: one, or a list of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "OneOrSeveral")]
pub struct Commands(pub Vec<String>);

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrSeveral {
    One(String),
    Several(Vec<String>),
}

impl From<OneOrSeveral> for Commands {
    fn from(written: OneOrSeveral) -> Self {
        Self(match written {
            OneOrSeveral::One(one) => vec![one],
            OneOrSeveral::Several(several) => several,
        })
    }
}

impl Default for RunSettings {
    fn default() -> Self {
        Self {
            max_reverts: 5,
            roofline: 0.9,
            speedup: 2.0,
            per_kernel: Duration::from_secs(2 * 3600),
            examination: None,
            budget: None,
            phase: None,
            dtype: None,
            batch: None,
            seq: None,
            notify: None,
            worker: Commands::default(),
        }
    }
}

/// What is run of each sequence, as settings name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PhaseName {
    /// All its tokens at once.
    Prefill,
    /// Its last token alone.
    Decode,
}

/// `[device]`: what the kernels run on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceSettings {
    /// The kind; without it, a GPU where there is one.
    pub backend: Option<BackendName>,
    /// Which GPU, as the driver counts them.
    pub index: Option<u32>,
}

/// A kind of device, as settings and the command line name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BackendName {
    /// This machine's processor; kernels in C
    Cpu,
    /// An NVIDIA GPU; kernels in CUDA C++
    Cuda,
}

impl BackendName {
    /// As in `kernels/<backend>/` and the ledger.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// A row of `[[prices]]`: what a language model's tokens cost.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceSettings {
    /// The model's name at the endpoint.
    pub name: String,
    /// US dollars for a million tokens read.
    pub input: f64,
    /// US dollars for a million tokens written.
    pub output: f64,
    /// Tokens that fit into its context.
    #[serde(default)]
    pub context: Option<usize>,
}

/// `[tuner]`: has no keys so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunerSettings {}

impl Settings {
    /// Reads the text of a `warpsmith.toml`.
    ///
    /// # Errors
    /// The TOML reader's sentence with line and column: bad syntax, an unknown key, a value of the wrong kind,
    /// or a rule that could never hold.
    pub fn parse(text: &str) -> Result<Self, String> {
        let settings: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let run = &settings.run;
        for (key, value) in [("roofline", run.roofline), ("speedup", run.speedup)] {
            if !(value.is_finite() && value > 0.0) {
                return Err(format!("[run] {key} = {value}: must be a number above zero"));
            }
        }
        if run.max_reverts == 0 {
            return Err("[run] max_reverts = 0: must be at least 1".to_owned());
        }
        for PriceSettings { name, input, output, .. } in &settings.prices {
            if !(input.is_finite() && *input >= 0.0 && output.is_finite() && *output >= 0.0) {
                return Err(format!("[[prices]] {name}: prices are US dollars for a million tokens, zero or more"));
            }
        }
        for (key, value) in [("batch", run.batch), ("seq", run.seq)] {
            if value == Some(0) {
                return Err(format!("[run] {key} = 0: must be at least 1"));
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_price_is_a_name_and_two_numbers() {
        let row = |numbers: &str| format!("[[prices]]\nname = \"local\"\n{numbers}");
        let settings = Settings::parse(&row("input = 0\noutput = 0.5\ncontext = 8192")).unwrap();
        assert_eq!(settings.prices.len(), 1);
        assert!(Settings::parse(&row("input = -1\noutput = 1")).unwrap_err().contains("local"));
        assert!(Settings::parse(&row("input = nan\noutput = 1")).is_err());
        assert!(Settings::parse(&row("input = 1")).is_err());
    }

    #[test]
    fn an_empty_file_gives_the_defaults() {
        let settings = Settings::parse("").unwrap();
        assert_eq!(settings, Settings::default());
        assert_eq!(settings.run.per_kernel, Duration::from_secs(7200));
        assert_eq!((settings.run.max_reverts, settings.run.budget), (5, None));
    }

    #[test]
    fn every_key_can_be_set() {
        let text = "[run]\nmax_reverts = 3\nroofline = 0.8\nspeedup = 4\nper_kernel = \"8m\"\nbudget = \"90s\"\n\
                    phase = \"decode\"\ndtype = \"bf16\"\nbatch = 2\nseq = 512\nnotify = \"true\"\nworker = \"ssh gpu7 warpsmith worker\"\n[device]\nbackend = \"cuda\"\nindex = 1\n[tuner]\n";
        let Settings { run, device, .. } = Settings::parse(text).unwrap();
        assert_eq!(device, DeviceSettings { backend: Some(BackendName::Cuda), index: Some(1) });
        assert_eq!((run.max_reverts, run.roofline, run.speedup), (3, 0.8, 4.0));
        assert_eq!((run.per_kernel, run.budget), (Duration::from_secs(480), Some(Duration::from_secs(90))));
        assert_eq!(run.notify.as_deref(), Some("true"));
        assert_eq!(run.worker.0, ["ssh gpu7 warpsmith worker"]);
        let several = Settings::parse("[run]\nworker = [\"ssh a w\", \"ssh b w\"]\n").unwrap();
        assert_eq!(several.run.worker.0, ["ssh a w", "ssh b w"]);
        assert_eq!((run.dtype, run.batch, run.seq), (Some(Dtype::Bf16), Some(2), Some(512)));
        assert_eq!(run.phase, Some(PhaseName::Decode));
    }

    #[test]
    fn a_mistake_is_named() {
        for (text, word) in [
            ("[run]\nmax_revert = 3\n", "max_revert"),
            ("[runs]\n", "runs"),
            ("[run]\nbudget = \"soon\"\n", "`soon` is not a length of time"),
            ("[run]\nper_kernel = 7\n", "line 2"),
            ("[run]\nroofline = -1.0\n", "roofline"),
            ("[run]\nspeedup = nan\n", "speedup"),
            ("[run]\nmax_reverts = 0\n", "max_reverts"),
            ("[run]\nseq = 0\n", "seq"),
            ("[run]\nphase = \"train\"\n", "`prefill` or `decode`"),
            ("[device]\nname = 1\n", "name"),
            ("[device]\nbackend = \"gpu\"\n", "gpu"),
            ("[device]\nindex = -1\n", "index"),
        ] {
            let error = Settings::parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
