//! How a worker is started: by this very program, or by a command of the user's.

use std::path::PathBuf;

use anyhow::{Context, bail};

use super::device::Device;
use super::diary;
use super::options::PythonArgs;
use crate::device::Opening;
use crate::worker::{Client, judge_hash};

/// Starts workers.
#[derive(Debug, Clone)]
pub(super) struct Starter {
    program: PathBuf,
    arguments: Vec<String>,
    /// The user's words, where it is not this program.
    command: Option<String>,
    /// The Python that they are told to ask.
    python: Option<PathBuf>,
}

impl Starter {
    /// By this very program, named by its inode, so that a rebuild during the night changes nothing.
    pub(super) fn own() -> Self {
        let program = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
        let arguments = std::iter::once("worker".to_owned()).chain(diary::passed_on()).collect();
        Self { program, arguments, command: None, python: None }
    }

    /// By a command, split as a shell would.
    ///
    /// # Errors
    /// A command without a program, or with a quotation mark that is not closed.
    pub(super) fn command(command: &str) -> anyhow::Result<Self> {
        let words = shlex::split(command)
            .with_context(|| format!("--worker `{command}`: a quotation mark is not closed, or a backslash ends it"))?;
        let Some((program, arguments)) = words.split_first() else {
            bail!("--worker names no program; write for example --worker 'ssh gpu7 warpsmith worker'");
        };
        let command = Some(command.to_owned());
        Ok(Self { program: program.into(), arguments: arguments.to_vec(), command, python: None })
    }

    /// The same, with workers that ask this Python.
    pub(super) fn with_python(self, python: &PythonArgs) -> Self {
        Self { python: python.python.clone(), ..self }
    }

    /// What a worker on this device is called.
    pub(super) fn name(&self, device: Device) -> String {
        let by = self.command.as_deref().unwrap_or("this machine");
        match device {
            Device::Cuda(number) => format!("{by} --device {number}"),
            Device::Cpu | Device::Theirs => by.to_owned(),
        }
    }

    /// Whether workers are this program, on this machine.
    pub(super) const fn is_own(&self) -> bool {
        self.command.is_none()
    }

    /// Starts a worker for a device, which it opens as `opening` says.
    ///
    /// # Errors
    /// A worker that does not start, or is another build than this program.
    pub(super) async fn start(&self, device: Device, opening: Opening) -> anyhow::Result<Client> {
        let mut arguments = self.arguments.clone();
        arguments.extend(device.arguments());
        arguments.extend(match opening {
            Opening::Now => None,
            Opening::Recalibrating => Some("--recalibrate".to_owned()),
            Opening::Meanwhile => Some("--at-once".to_owned()),
        });
        if let Some(python) = &self.python {
            arguments.extend(["--python".to_owned(), python.display().to_string()]);
        }
        let worker = Client::start(&self.program, &arguments).await?;
        if let Some(command) = &self.command
            && worker.judge() != judge_hash()?
        {
            bail!(
                "the worker that `{command}` starts is another build of Warpsmith than this program, so their verdicts cannot be \
                 compared; install the same executable in both places"
            );
        }
        Ok(worker)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_command_is_split_as_a_shell_would_and_nothing_is_no_command() {
        let starter = Starter::command("ssh -o 'User = me' gpu7 warpsmith worker").unwrap();
        assert_eq!(starter.program, PathBuf::from("ssh"));
        assert_eq!(starter.arguments, ["-o", "User = me", "gpu7", "warpsmith", "worker"]);
        assert!(!starter.is_own() && Starter::own().is_own());
        assert!(Starter::command(" ").unwrap_err().to_string().contains("names no program"));
        assert!(Starter::command("ssh 'gpu7").unwrap_err().to_string().contains("quotation mark"));
    }
}
