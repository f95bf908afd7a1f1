//! The log: what happened to processes, devices, requests and git, in a file of the run's folder, so that a night that failed can be
//! explained from a bug report; with `-v` also on standard error. Keys, prompts and sources are never logged.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{MakeWriter, layer};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::workspace::LOG_FILE;

/// So much is kept until the run's folder is known.
const MOST_EARLY_BYTES: usize = 64 << 10;

/// Where the log goes.
enum Sink {
    /// The run has no folder yet.
    Early(Vec<u8>),
    File(File),
}

static SINK: Mutex<Sink> = Mutex::new(Sink::Early(Vec::new()));

fn sink() -> MutexGuard<'static, Sink> {
    SINK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes lines to the sink.
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match &mut *sink() {
            Sink::Early(early) if early.len() + line.len() > MOST_EARLY_BYTES => {}
            Sink::Early(early) => early.extend_from_slice(line),
            Sink::File(file) => file.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        Self
    }
}

/// How often `-v` was said.
static VERBOSE: AtomicU8 = AtomicU8::new(0);

/// The same for a process that this one starts, whose standard error is this one's.
pub(super) fn passed_on() -> Option<String> {
    let times = usize::from(VERBOSE.load(Ordering::Relaxed));
    (times > 0).then(|| format!("-{}", "v".repeat(times)))
}

/// Begins to log: to the run's file, and with one `-v` what is worth knowing, with two everything, to standard error.
pub(super) fn begin(verbose: u8) {
    VERBOSE.store(verbose, Ordering::Relaxed);
    let ours = |level: Level| Targets::new().with_target("warpsmith", level);
    let shown = match verbose {
        0 => None,
        1 => Some(Level::INFO),
        _ => Some(Level::DEBUG),
    };
    let stderr = shown.map(|level| layer().with_writer(io::stderr).with_target(false).with_filter(ours(level)));
    let file = layer().with_writer(Lines).with_ansi(false).with_target(false).with_filter(ours(Level::DEBUG));
    // It fails only where something logs already, as in a test.
    drop(tracing_subscriber::registry().with(stderr).with(file).try_init());
    tracing::info!(version = env!("CARGO_PKG_VERSION"), process = std::process::id(), "begin");
}

/// From now on the log goes to this run's folder, with what was logged before. Without a file there is no log, and the run is as good.
pub(super) fn keep_in(folder: &Path) {
    let path = folder.join(LOG_FILE);
    let file = std::fs::create_dir_all(folder).and_then(|()| OpenOptions::new().append(true).create(true).open(&path));
    match file {
        Ok(mut file) => {
            let mut sink = sink();
            if let Sink::Early(early) = &*sink {
                drop(file.write_all(early));
            }
            *sink = Sink::File(file);
        }
        Err(error) => tracing::warn!(path = %path.display(), %error, "the log cannot be written"),
    }
}

/// Where the log of a run is.
pub(super) fn path(folder: &Path) -> PathBuf {
    folder.join(LOG_FILE)
}
