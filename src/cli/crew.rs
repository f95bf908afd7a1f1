//! The workers of a run: one by each command, on each GPU that was named.

use anyhow::anyhow;
use futures_util::future::try_join_all;

use super::device::Device;
use super::options::{DeviceArgs, PythonArgs, WorkerArgs};
use super::starter::Starter;
use crate::device::Opening;
use crate::engine::Pool;
use crate::worker::Client;
use crate::workspace::RunSettings;

/// Who judges and times, where several may.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct CrewArgs {
    /// Judge and time in a worker that this command starts, instead of on this machine: `ssh gpu7 warpsmith worker` (may be
    /// repeated: the workers share the run). It is split as a shell would, and not run by one; `--backend` and `--device` are
    /// appended where they are known [default: this program, or `worker` in warpsmith.toml]
    #[arg(long, value_name = "COMMAND", env = "WARPSMITH_WORKER", hide_env_values = true)]
    worker: Vec<String>,
    /// Judge on each of these GPUs, such as 0,1,2,3; they must be of one kind
    #[arg(long, value_name = "N,...", value_delimiter = ',', conflicts_with = "device")]
    devices: Vec<u32>,
    #[command(flatten)]
    pub(super) python: PythonArgs,
}

impl CrewArgs {
    /// How the first worker is started, which is asked whatever is asked once.
    pub(super) fn lead(&self) -> WorkerArgs {
        WorkerArgs::by(self.worker.first().cloned(), self.python.clone())
    }

    /// The device of the first worker.
    pub(super) fn device_of_lead(&self, device: DeviceArgs) -> DeviceArgs {
        DeviceArgs { device: self.devices.first().copied().or(device.device), ..device }
    }

    /// Whether workers are started by commands, so that what is on this machine says nothing of theirs.
    pub(super) fn is_elsewhere(&self, settings: &RunSettings) -> bool {
        !self.worker.is_empty() || !settings.worker.0.is_empty()
    }

    /// The commands: the command line's, else the settings', else this program.
    fn starters(&self, settings: &RunSettings) -> anyhow::Result<Vec<Starter>> {
        let commands = if self.worker.is_empty() { &settings.worker.0 } else { &self.worker };
        let starters = match commands.is_empty() {
            true => vec![Starter::own()],
            false => commands.iter().map(|command| Starter::command(command)).collect::<Result<_, _>>()?,
        };
        Ok(starters.into_iter().map(|starter| starter.with_python(&self.python)).collect())
    }

    /// The workers beside the first, each with its name; that one is told to use `lead`.
    fn others(&self, settings: &RunSettings, lead: Device) -> anyhow::Result<Vec<(String, Starter, Device)>> {
        let mut all = Vec::new();
        for starter in self.starters(settings)? {
            let named = self.devices.iter().map(|number| Device::Cuda(*number));
            let devices: Vec<Device> = if self.devices.is_empty() { vec![lead] } else { named.collect() };
            all.extend(devices.into_iter().map(|device| (starter.name(device), starter.clone(), device)));
        }
        Ok(all)
    }

    /// All workers, the first of them started already on the device `on`.
    ///
    /// # Errors
    /// One that does not start, or judges on another kind of device than the first.
    pub(super) async fn pool(&self, settings: &RunSettings, lead: Client, on: Device) -> anyhow::Result<Pool> {
        let mut all = self.others(settings, on)?.into_iter();
        let name = all.next().map_or_else(String::new, |(name, ..)| name);
        let started = all.map(|(name, starter, device)| async move {
            let worker = starter.start(device, Opening::Now).await.map_err(|error| error.context(name.clone()))?;
            anyhow::Ok((name, worker))
        });
        let mut workers = vec![(name, lead)];
        workers.extend(try_join_all(started).await?);
        Pool::new(workers).map_err(|why| anyhow!(why))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::workspace::Commands;

    fn names(worker: &[&str], devices: &[u32], settings: &[&str], lead: Device) -> Vec<String> {
        let strings = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let args = CrewArgs { worker: strings(worker), devices: devices.to_vec(), python: PythonArgs::default() };
        let settings = RunSettings { worker: Commands(strings(settings)), ..RunSettings::default() };
        args.others(&settings, lead).unwrap().into_iter().map(|(name, ..)| name).collect()
    }

    #[test]
    fn there_is_a_worker_for_each_command_on_each_gpu() {
        assert_eq!(names(&[], &[], &[], Device::Cpu), ["this machine"]);
        assert_eq!(names(&[], &[0, 2], &[], Device::Cuda(0)), ["this machine --device 0", "this machine --device 2"]);
        assert_eq!(names(&["ssh a w", "ssh b w"], &[], &["ssh c w"], Device::Theirs), ["ssh a w", "ssh b w"]);
        assert_eq!(names(&[], &[], &["ssh c w"], Device::Theirs), ["ssh c w"]);
        assert_eq!(
            names(&["ssh a w", "ssh b w"], &[0, 1], &[], Device::Cuda(0)),
            ["ssh a w --device 0", "ssh a w --device 1", "ssh b w --device 0", "ssh b w --device 1"]
        );
    }
}
