//! Processes that tests start and end: by their own ids only.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A command in a session of its own: everything it starts can be found again.
pub struct Session {
    child: Child,
    output: tempfile::NamedTempFile,
}

impl Session {
    pub fn start(command: Command) -> Self {
        let mut own = Command::new("setsid");
        own.arg(command.get_program()).args(command.get_args());
        own.current_dir(command.get_current_dir().unwrap());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => own.env(name, value),
                None => own.env_remove(name),
            };
        }
        let output = tempfile::NamedTempFile::new().unwrap();
        let append = || std::fs::OpenOptions::new().append(true).open(output.path()).unwrap();
        let (out, err) = (append(), append());
        Self { child: own.stdout(out).stderr(err).spawn().unwrap(), output }
    }

    /// Its id, which is that of its session and of its process group.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the whole process group, as a terminal does.
    pub fn signal(&mut self, name: &str) {
        // The id of one that has ended and was waited for may be another's by now.
        if self.child.try_wait().unwrap().is_some() {
            return;
        }
        // One that has ended just now cannot be signalled, which is as good.
        let _ = Command::new("kill")
            .args([&format!("-{name}"), "--", &format!("-{}", self.id())])
            .stderr(Stdio::null())
            .status();
    }

    /// Waits so long for its end: the exit code, or `None` where a signal ended it; `Err` where it still runs.
    pub fn ends_within(&mut self, time: Duration) -> Result<Option<i32>, ()> {
        let until = Instant::now() + time;
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return Ok(status.code()),
                None if Instant::now() > until => return Err(()),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// What it has said so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(self.output.path()).unwrap()
    }

    /// Waits until it has said `text`; `false` where it ends without, or takes longer.
    pub fn says(&mut self, text: &str, time: Duration) -> bool {
        let until = Instant::now() + time;
        while !self.output().contains(text) {
            if Instant::now() > until || self.child.try_wait().unwrap().is_some() {
                return self.output().contains(text);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// Processes of the session that still run.
    pub fn left(&self) -> Vec<String> {
        let of_session = |stat: String| {
            // The name in brackets may hold anything; what follows it is fixed: state, parent, group, session.
            let (name, rest) = stat.rsplit_once(')')?;
            let mut fields = rest.split_whitespace();
            let state = fields.next()?;
            let session: u32 = fields.nth(2)?.parse().ok()?;
            (session == self.id() && state != "Z").then(|| format!("{name}) {state}"))
        };
        std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok())
            .filter_map(of_session)
            .collect()
    }

    /// The ids of those with this name (its first 15 characters) that the session's own process has started.
    pub fn processes(&self, name: &str) -> Vec<u32> {
        let child = |entry: std::fs::DirEntry| {
            let id: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let (before, rest) = stat.rsplit_once(')')?;
            let parent: u32 = rest.split_whitespace().nth(1)?.parse().ok()?;
            (before.ends_with(&format!("({name}")) && parent == self.id()).then_some(id)
        };
        let mut found: Vec<u32> = std::fs::read_dir("/proc").unwrap().filter_map(|entry| child(entry.ok()?)).collect();
        found.sort_unstable();
        found
    }

    /// Waits until nothing of the session is left.
    #[track_caller]
    pub fn nothing_left(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        while !self.left().is_empty() {
            assert!(Instant::now() < until, "still running: {:?}", self.left());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.signal("KILL");
        let _ = self.child.wait();
    }
}
