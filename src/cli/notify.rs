//! A command of the user's that hears how a run ended.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::engine::RunState;
use crate::engine::one_line;
use crate::report::counted;
use crate::workspace::Workspace;

/// How long the command may take: enough for a mail or a web hook, and nobody waits for it in the morning.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// The command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notify {
    /// For `sh -c`.
    pub(super) command: String,
    /// Where it runs; none is where the program does.
    folder: Option<PathBuf>,
}

/// How a run came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending<'a> {
    /// By one of its rules.
    Ended,
    /// By the user; it can be resumed.
    Interrupted,
    /// By an error; it can be resumed once that is mended.
    Failed(&'a str),
}

impl Notify {
    /// The command line's, else that of the settings, which runs in the workspace.
    pub(super) fn choose(given: Option<&str>, workspace: &Workspace) -> Option<Self> {
        let set = || {
            let command = workspace.settings().run.notify.clone()?;
            Some(Self { command, folder: Some(workspace.root().to_owned()) })
        };
        let given = given.map(|command| Self { command: command.to_owned(), folder: None });
        given.or_else(set).filter(|notify| !notify.command.trim().is_empty())
    }

    /// Runs the command with the news in its environment and on its standard input; it may take as long as `limit`.
    /// Returns what went wrong, in a sentence: it is no reason for the run to fail.
    pub(super) async fn send(
        &self,
        news: &[(&'static str, String)],
        text: &str,
        limit: Duration,
    ) -> Result<(), String> {
        let failed = |why: String| format!("the command of --notify {why}");
        // What it says must not get between what the run itself prints for a script.
        let out = std::io::stderr().as_fd().try_clone_to_owned().map_or_else(|_| Stdio::null(), Stdio::from);
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.command).envs(news.iter().map(|(name, value)| (*name, value.as_str())));
        // A group of its own: Ctrl-C is not for it, and what it starts can be ended with it.
        command.stdin(Stdio::piped()).stdout(out).process_group(0);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let mut child = command.spawn().map_err(|error| failed(format!("could not be started: {error}")))?;
        let group = child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
        let input = child.stdin.take();
        let feed = async {
            if let Some(mut input) = input {
                // It need not read what it does not want to know.
                let _ = input.write_all(text.as_bytes()).await;
            }
        };
        let both = async { tokio::join!(feed, child.wait()).1 };
        match tokio::time::timeout(limit, both).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(failed(format!("failed: {status}"))),
            Ok(Err(error)) => Err(failed(format!("was lost: {error}"))),
            Err(_) => {
                if let Some(group) = group {
                    // It may have ended this very moment.
                    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                }
                let _ = child.wait().await;
                Err(failed(format!("took longer than {} s and was ended", limit.as_secs_f64())))
            }
        }
    }
}

/// What the command is told, as environment variables. `whole` is what a PyTorch model gained by what is exported.
pub(super) fn news(
    state: &RunState,
    workspace: &Workspace,
    ending: Ending<'_>,
    whole: Option<f64>,
) -> Vec<(&'static str, String)> {
    let (status, reason) = match ending {
        Ending::Ended => ("ended", state.ended.as_ref().map_or_else(|| "it has ended".to_owned(), ToString::to_string)),
        Ending::Interrupted => ("interrupted", "it was interrupted".to_owned()),
        Ending::Failed(why) => ("failed", one_line(why)),
    };
    let of_model = || state.verified.as_ref().map(|report| report.measured.median);
    // A kernel alone was measured against what the user has as it was kept.
    let measured = whole.or_else(|| state.single().map_or_else(of_model, |kernel| Some(kernel.vs_user())));
    let speedup = measured.or(state.predicted().map(|(_, ratio)| ratio)).unwrap_or(1.0);
    let kept: u32 = state.targets.iter().map(|target| target.kept).sum();
    let how = if measured.is_some() { "measured" } else { "predicted" };
    let summary = format!(
        "run {} of {} on {}: {speedup:.2}x {how}, {kept} of {} kept; {status}: {reason}",
        state.run,
        state.model,
        state.device,
        counted((state.next_experiment - 1) as usize, "experiment", "experiments")
    );
    vec![
        ("WARPSMITH_RUN", state.run.clone()),
        ("WARPSMITH_STATUS", status.to_owned()),
        ("WARPSMITH_REASON", reason),
        ("WARPSMITH_SPEEDUP", format!("{speedup:.4}")),
        ("WARPSMITH_SPEEDUP_IS", how.to_owned()),
        ("WARPSMITH_KEPT", kept.to_string()),
        ("WARPSMITH_EXPERIMENTS", (state.next_experiment - 1).to_string()),
        ("WARPSMITH_SUMMARY", one_line(&summary)),
        ("WARPSMITH_MODEL", one_line(&state.model)),
        ("WARPSMITH_WORKSPACE", workspace.root().to_string_lossy().into_owned()),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Instant;

    fn send(command: &str, folder: Option<PathBuf>, limit: Duration) -> Result<(), String> {
        let notify = Notify { command: command.to_owned(), folder };
        let news = [("WARPSMITH_RUN", "261120a".to_owned())];
        super::super::session::block_on(async { Ok(notify.send(&news, "the summary\n", limit).await) }).unwrap()
    }

    #[test]
    fn the_command_has_the_news_in_its_environment_and_on_its_input() {
        let folder = tempfile::tempdir().unwrap();
        let command = "echo \"$WARPSMITH_RUN\" > note; cat >> note";
        assert_eq!(send(command, Some(folder.path().to_owned()), LIMIT), Ok(()));
        assert_eq!(std::fs::read_to_string(folder.path().join("note")).unwrap(), "261120a\nthe summary\n");
    }

    #[test]
    fn what_goes_wrong_is_a_sentence() {
        assert_eq!(send("exit 3", None, LIMIT), Err("the command of --notify failed: exit status: 3".into()));
        let lost = send("true", Some(PathBuf::from("/no/such/folder")), LIMIT).unwrap_err();
        assert!(lost.contains("could not be started"), "{lost}");
        // One that reads nothing is no failure.
        assert_eq!(send("true", None, LIMIT), Ok(()));
    }

    #[test]
    fn one_that_does_not_end_is_ended_with_all_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let began = Instant::now();
        let limit = Duration::from_millis(300);
        let said = send("sleep 1000 & echo $! > child; sleep 1000", Some(folder.path().to_owned()), limit);
        assert_eq!(said, Err("the command of --notify took longer than 0.3 s and was ended".into()));
        assert!(began.elapsed() < Duration::from_secs(500));
        // It had time enough to write down its child, on any machine but a very busy one.
        let child = std::fs::read_to_string(folder.path().join("child")).unwrap_or_default();
        if let Ok(child) = child.trim().parse::<u32>() {
            let gone = || {
                let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
                stat.is_empty() || stat.contains(") Z ")
            };
            let patience = Instant::now() + Duration::from_secs(60);
            while !gone() {
                assert!(Instant::now() < patience, "process {child} still runs");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
