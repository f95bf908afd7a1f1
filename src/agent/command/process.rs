//! Running the program: a group of its own, a limit of time, no way to the repository around it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// What is kept of the program's output, bytes: its last words matter.
const OUTPUT: usize = 64 << 10;

/// What Git would take as the repository in spite of where it stands.
const GIT_PLACES: [&str; 5] = ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"];

/// One run of the program.
#[derive(Debug)]
pub(super) struct Task<'a> {
    pub(super) argv: &'a [String],
    pub(super) folder: &'a Path,
    pub(super) prompt: &'a str,
    pub(super) prompt_file: PathBuf,
    pub(super) candidate: &'a Path,
    pub(super) limit: Duration,
}

/// How it ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// The end of what it printed, errors included.
    pub(super) output: String,
    /// Why nothing of it is taken.
    pub(super) failure: Option<String>,
}

impl Ended {
    /// The last line it printed, to stand behind a reason.
    pub(super) fn last_words(&self) -> String {
        let last = self.output.lines().rev().find(|line| !line.trim().is_empty());
        last.map_or(String::new(), |line| {
            format!(" (its last words: {})", line.trim().chars().take(200).collect::<String>())
        })
    }
}

/// Ends the program's whole group when it is dropped: at its end, because what it left running holds the pipes open and
/// could still change the file, or when nobody waits for the proposal any more.
struct Group {
    child: Child,
    id: Option<rustix::process::Pid>,
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.id {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

impl Task<'_> {
    /// Runs it to its end or its limit. The error says why it cannot be started.
    pub(super) async fn run(&self) -> Result<Ended, String> {
        let Some((program, arguments)) = self.argv.split_first() else {
            return Err("there is no command; write it behind `--`".to_owned());
        };
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.folder).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for place in GIT_PLACES {
            command.env_remove(place);
        }
        // Looking for a repository ends in this folder: what the program commits is not the user's.
        command.env("GIT_CEILING_DIRECTORIES", self.folder.parent().unwrap_or(self.folder));
        command.env("WARPSMITH_PROMPT", &self.prompt_file).env("WARPSMITH_KERNEL", self.candidate);
        if let Ok(own) = std::env::current_exe() {
            command.env("WARPSMITH", own);
        }
        let child = command.spawn().map_err(|error| format!("{program} cannot be started: {error}"))?;
        tracing::info!(program, process = child.id(), "the agent's program starts");
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
        let mut group = Group { child, id };
        let child = &mut group.child;
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let prompt = self.prompt.as_bytes().to_vec();
        // A program need not read its input.
        let feed = tokio::spawn(async move {
            if let Some(mut input) = input {
                let _ = input.write_all(&prompt).await;
            }
        });
        let said = tokio::spawn(tail(output));
        let complained = tokio::spawn(tail(errors));
        let status = tokio::time::timeout(self.limit, group.child.wait()).await;
        let failure = match &status {
            Err(_) => Some(format!("it did not end within {} s", self.limit.as_secs_f64())),
            Ok(Err(error)) => Some(format!("its end was not seen: {error}")),
            Ok(Ok(status)) if !status.success() => Some(format!("it failed ({status})")),
            Ok(Ok(_)) => None,
        };
        drop(group);
        feed.abort();
        let mut output = complained.await.unwrap_or_default();
        output.push_str(&said.await.unwrap_or_default());
        Ok(Ended { output, failure })
    }
}

/// The end of a stream.
async fn tail(stream: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let (mut kept, mut buffer) = (Vec::new(), vec![0u8; 8192]);
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..count]);
        if kept.len() > 2 * OUTPUT {
            kept.drain(..kept.len() - OUTPUT);
        }
    }
    String::from_utf8_lossy(&kept[kept.len().saturating_sub(OUTPUT)..]).into_owned()
}
