//! Which device runs the kernels: the one place that decides.

use anyhow::{anyhow, bail};

use super::options::DeviceArgs;
use super::starter::Starter;
use crate::worker::Client;
use crate::workspace::{BackendName, DeviceSettings};

/// What runs the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Device {
    /// This machine's processor.
    Cpu,
    /// The GPU of this number, as the driver counts them.
    Cuda(u32),
    /// Whatever a worker elsewhere finds there.
    Theirs,
}

impl Device {
    /// What a worker for it is told on its command line.
    pub(super) fn arguments(self) -> Vec<String> {
        match self {
            Self::Cpu => ["--backend", "cpu"].map(str::to_owned).to_vec(),
            Self::Cuda(number) => ["--backend", "cuda", "--device", &number.to_string()].map(str::to_owned).to_vec(),
            Self::Theirs => Vec::new(),
        }
    }

    /// Its kind, where it is known before the worker has said it.
    pub(super) const fn backend(self) -> Option<BackendName> {
        match self {
            Self::Cpu => Some(BackendName::Cpu),
            Self::Cuda(_) => Some(BackendName::Cuda),
            Self::Theirs => None,
        }
    }
}

/// A device, and what the user should hear about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) device: Device,
    /// Why it is none of the GPUs, where nobody asked for the processor.
    pub(super) note: Option<String>,
    /// Who else used the device when it was chosen: later, our own worker is one of those who do.
    company: Option<String>,
}

impl Choice {
    /// What the user should hear before anything is measured: why no GPU is used, or who else uses it.
    pub(super) fn notes(&self) -> Vec<String> {
        self.note.iter().chain(&self.company).cloned().collect()
    }
}

/// The device that is asked for by name, without a look at it: opening a GPU takes a sixth of a second, and whoever works on it
/// does so anyway and says what is wrong. Only where no driver is installed this is said at once, unless the worker is elsewhere.
pub(super) fn named(
    backend: BackendName,
    args: DeviceArgs,
    settings: DeviceSettings,
    starter: &Starter,
) -> anyhow::Result<Device> {
    let asked = DeviceArgs { backend: args.backend.or(Some(backend)), ..args };
    if !starter.is_own() {
        return elsewhere(asked, settings);
    }
    let any = || crate::backend::cuda::installed().map(|()| u32::MAX);
    Ok(decide(asked, settings, &any)?.device)
}

/// The device that command line and settings ask for; where they leave it open, a GPU if there is one, or what a worker elsewhere
/// finds.
pub(super) fn choose(args: DeviceArgs, settings: DeviceSettings, starter: &Starter) -> anyhow::Result<Choice> {
    if !starter.is_own() {
        return Ok(Choice { device: elsewhere(args, settings)?, note: None, company: None });
    }
    let choice = decide(args, settings, &gpus)?;
    let company = match choice.device {
        Device::Cuda(number) => crate::backend::cuda::company(number),
        Device::Cpu | Device::Theirs => None,
    };
    Ok(Choice { company, ..choice })
}

/// The backend of this name, as a run's state has it.
pub(super) fn backend_of(name: &str) -> anyhow::Result<BackendName> {
    let known = [BackendName::Cpu, BackendName::Cuda].into_iter().find(|backend| backend.name() == name);
    known.ok_or_else(|| anyhow!("this build of Warpsmith has no backend `{name}`"))
}

/// The backend of the device that a worker has.
pub(super) fn of(worker: &Client) -> anyhow::Result<BackendName> {
    backend_of(&worker.device().backend)
}

/// How many GPUs the driver counts, or why there are none.
fn gpus() -> Result<u32, String> {
    crate::backend::cuda::gpus()
}

/// What a worker elsewhere is asked for: nobody here can look.
fn elsewhere(args: DeviceArgs, settings: DeviceSettings) -> anyhow::Result<Device> {
    let any = args.backend.or(args.device.map(|_| BackendName::Cuda)).or(settings.backend);
    match any {
        None => Ok(Device::Theirs),
        Some(_) => Ok(decide(args, settings, &|| Ok(u32::MAX))?.device),
    }
}

fn decide(
    args: DeviceArgs,
    settings: DeviceSettings,
    gpus: &dyn Fn() -> Result<u32, String>,
) -> anyhow::Result<Choice> {
    if let (Some(BackendName::Cpu), Some(number)) = (args.backend, args.device) {
        bail!("--device {number} names a GPU, and --backend cpu uses none; leave one of them out");
    }
    let by_number = args.device.map(|_| BackendName::Cuda);
    let index = args.device.or(settings.index);
    match args.backend.or(by_number).or(settings.backend) {
        Some(BackendName::Cpu) => Ok(Choice { device: Device::Cpu, note: None, company: None }),
        Some(BackendName::Cuda) => {
            let number = index.unwrap_or(0);
            match gpus().map_err(anyhow::Error::msg)? {
                0 => bail!("the CUDA driver is here, but there is no GPU"),
                count if number >= count => bail!("there is no GPU {number}: the driver counts {count}, from 0"),
                _ => Ok(Choice { device: Device::Cuda(number), note: None, company: None }),
            }
        }
        None => match gpus() {
            Ok(count) if count > index.unwrap_or(0) => {
                Ok(Choice { device: Device::Cuda(index.unwrap_or(0)), note: None, company: None })
            }
            Ok(0) => Ok(on_cpu("the CUDA driver is here, but there is no GPU")),
            Ok(count) => {
                Ok(on_cpu(&format!("warpsmith.toml names GPU {}, and the driver counts {count}", index.unwrap_or(0))))
            }
            Err(why) => Ok(on_cpu(&why)),
        },
    }
}

fn on_cpu(why: &str) -> Choice {
    Choice { device: Device::Cpu, note: Some(format!("{why}; everything runs on the CPU")), company: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: Option<BackendName> = Some(BackendName::Cpu);
    const CUDA: Option<BackendName> = Some(BackendName::Cuda);

    fn decided(
        args: (Option<BackendName>, Option<u32>),
        settings: (Option<BackendName>, Option<u32>),
        gpus: Result<u32, &str>,
    ) -> Result<Device, String> {
        let args = DeviceArgs { backend: args.0, device: args.1 };
        let settings = DeviceSettings { backend: settings.0, index: settings.1 };
        let count = gpus.map_err(str::to_owned);
        decide(args, settings, &|| count.clone()).map(|choice| choice.device).map_err(|error| error.to_string())
    }

    #[test]
    fn a_gpu_is_taken_where_there_is_one_and_nobody_says_otherwise() {
        let open = (None, None);
        assert_eq!(decided(open, open, Ok(2)), Ok(Device::Cuda(0)));
        assert_eq!(decided(open, open, Ok(0)), Ok(Device::Cpu));
        assert_eq!(decided(open, open, Err("no driver")), Ok(Device::Cpu));
        assert_eq!(decided((CPU, None), open, Ok(2)), Ok(Device::Cpu));
        assert_eq!(decided((None, Some(1)), open, Ok(2)), Ok(Device::Cuda(1)));
    }

    #[test]
    fn the_command_line_comes_before_the_settings() {
        assert_eq!(decided((None, None), (CPU, Some(1)), Ok(2)), Ok(Device::Cpu));
        assert_eq!(decided((None, None), (None, Some(1)), Ok(2)), Ok(Device::Cuda(1)));
        assert_eq!(decided((CUDA, None), (CPU, Some(1)), Ok(2)), Ok(Device::Cuda(1)));
        assert_eq!(decided((None, Some(0)), (CPU, Some(1)), Ok(2)), Ok(Device::Cuda(0)));
        assert_eq!(decided((CPU, None), (CUDA, Some(1)), Ok(2)), Ok(Device::Cpu));
    }

    #[test]
    fn a_gpu_that_was_asked_for_and_is_not_there_is_an_error() {
        let open = (None, None);
        assert_eq!(decided((CUDA, None), open, Err("no driver")), Err("no driver".into()));
        assert!(decided((CUDA, None), open, Ok(0)).is_err_and(|error| error.contains("there is no GPU")));
        assert!(decided((CUDA, Some(2)), open, Ok(2)).is_err_and(|error| error.contains("no GPU 2")));
        assert!(decided((CPU, Some(0)), open, Ok(2)).is_err_and(|error| error.contains("--backend cpu")));
    }

    #[test]
    fn a_worker_elsewhere_is_told_what_was_asked_for_and_nobody_looks_here() {
        let asked = |backend, device, settings| {
            let args = DeviceArgs { backend, device };
            elsewhere(args, DeviceSettings { backend: settings, index: None }).map(Device::arguments).ok()
        };
        let words = |words: &str| Some(words.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(asked(None, None, None), words(""));
        assert_eq!(asked(None, None, CUDA), words("--backend cuda --device 0"));
        assert_eq!(asked(None, Some(3), None), words("--backend cuda --device 3"));
        assert_eq!(asked(CPU, None, CUDA), words("--backend cpu"));
        assert_eq!(asked(CPU, Some(3), None), None);
    }

    #[test]
    fn falling_back_to_the_processor_is_said() {
        let choice = decide(DeviceArgs::default(), DeviceSettings::default(), &|| Err("no driver".into()));
        let note = choice.ok().and_then(|choice| choice.note);
        assert_eq!(note.as_deref(), Some("no driver; everything runs on the CPU"));
        assert_eq!(Device::Cuda(3).arguments(), ["--backend", "cuda", "--device", "3"]);
        assert!(backend_of("cpu").is_ok() && backend_of("abacus").is_err());
    }
}
