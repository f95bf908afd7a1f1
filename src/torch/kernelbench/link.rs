//! A process of Python that is asked in lines of JSON, and stopped while nothing is asked where it is not to be trusted.

use std::fs::File;
use std::io::{self, IoSlice, Read, Seek, SeekFrom, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An answer that is longer is none: a candidate can say what it likes.
const LONGEST: usize = 4 << 20;

/// Importing PyTorch takes two seconds, from a cold disk six; a busy machine takes longer.
const START: Duration = Duration::from_secs(120);

/// A process that is told to stop does so in microseconds, unless the system holds it.
const STOP: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Silence {
    /// The process says so: of what kind, and in its words.
    Refused { kind: String, what: String },
    /// The time is over.
    Time(Duration),
    /// It has ended, of this.
    Died(String),
    /// Anything else.
    Talk(String),
}

impl Silence {
    /// Whether what was asked for raised an error, and the process goes on.
    pub(super) fn raised(&self) -> bool {
        matches!(self, Self::Refused { kind, .. } if kind == "raised")
    }

    /// In words, for a sentence about `who`.
    pub(super) fn words(&self, who: &str) -> String {
        match self {
            Self::Refused { what, .. } => plain(what),
            Self::Time(limit) => format!("{who} did not end within {} s", limit.as_secs()),
            Self::Died(how) => format!("{who} died: {how}"),
            Self::Talk(what) => format!("{who}: {}", plain(what)),
        }
    }
}

impl From<io::Error> for Silence {
    fn from(error: io::Error) -> Self {
        Self::Talk(error.to_string())
    }
}

/// One line that a terminal and a page can show, of text that anybody may have written.
pub(super) fn plain(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(300).collect()
}

/// A running process, ended when this is dropped.
#[derive(Debug)]
pub(super) struct Link {
    child: Child,
    line: UnixStream,
    rest: Vec<u8>,
    /// What it writes to standard error.
    said: File,
    /// Reaped, so that its number may be another's.
    ended: bool,
}

impl Link {
    /// Starts `command` and sends it `setup`; what it answers to that is [`Link::hello`]'s.
    pub(super) fn start(mut command: Command, setup: &Value) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let said = tempfile::tempfile()?;
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(said.try_clone()?);
        let child = command.spawn()?;
        // It has our end of its socket, which must close when it ends.
        drop(command);
        let mut link = Self { child, line: ours, rest: Vec::new(), said, ended: false };
        link.send(setup, &[]).map_err(|silence| io::Error::other(silence.words("Python")))?;
        Ok(link)
    }

    /// Its number.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The first thing it says.
    pub(super) fn hello<T: DeserializeOwned>(&mut self) -> Result<T, Silence> {
        self.receive(START)
    }

    /// Asks, and waits so long for the answer.
    pub(super) fn ask<T: DeserializeOwned>(
        &mut self,
        question: &Value,
        files: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<T, Silence> {
        self.send(question, files)?;
        self.receive(limit)
    }

    /// Asks a process that stands still: wakes it, hears its answer, and stops it again. The time is from before it could know the
    /// question to when all of its threads stood still.
    pub(super) fn ask_stopped(&mut self, question: &Value, limit: Duration) -> Result<Duration, Silence> {
        self.send(question, &[])?;
        let began = Instant::now();
        self.signal(Signal::CONT)?;
        let answer = self.receive::<Value>(limit);
        self.stop()?;
        let took = began.elapsed();
        answer.map(|_| took)
    }

    /// Stops it, all threads: when this returns nothing of it runs on the processor.
    pub(super) fn stop(&mut self) -> Result<(), Silence> {
        self.signal(Signal::STOP)?;
        let deadline = Instant::now() + STOP;
        loop {
            let options =
                WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            match waitid(WaitId::Pid(self.pid()?), options).map_err(io::Error::from)? {
                Some(status) if status.stopped() => return Ok(()),
                Some(_) => return Err(self.silence(&io::ErrorKind::UnexpectedEof.into())),
                None if Instant::now() > deadline => return Err(Silence::Talk("it cannot be stopped".into())),
                None => std::hint::spin_loop(),
            }
        }
    }

    /// Lets it run again.
    pub(super) fn go_on(&self) -> Result<(), Silence> {
        self.signal(Signal::CONT)
    }

    fn pid(&self) -> Result<Pid, Silence> {
        let gone = || Silence::Talk("it has ended".into());
        if self.ended { Err(gone()) } else { Pid::from_raw(self.child.id().cast_signed()).ok_or_else(gone) }
    }

    fn signal(&self, signal: Signal) -> Result<(), Silence> {
        kill_process(self.pid()?, signal).map_err(|error| io::Error::from(error).into())
    }

    fn send(&mut self, question: &Value, files: &[BorrowedFd<'_>]) -> Result<(), Silence> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(Silence::Talk("too many files".into()));
        }
        let line = format!("{question}\n");
        // A candidate that does not read must not hold the judge up.
        self.line.set_write_timeout(Some(START))?;
        let sent = sendmsg(&self.line, &[IoSlice::new(line.as_bytes())], &mut beside, SendFlags::NOSIGNAL);
        let all = sent.map_err(io::Error::from).and_then(|sent| self.line.write_all(&line.as_bytes()[sent..]));
        all.map_err(|error| self.silence(&error))
    }

    fn receive<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T, Silence> {
        let deadline = Instant::now() + limit;
        let mut part = vec![0; 1 << 16];
        let line = loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                break self.rest.drain(..=end).collect::<Vec<u8>>();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Silence::Time(limit));
            }
            if self.rest.len() > LONGEST {
                return Err(Silence::Talk("it answers without end".into()));
            }
            match self.line.set_read_timeout(Some(left)).and_then(|()| self.line.read(&mut part)) {
                Ok(0) => return Err(self.silence(&io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.rest.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(Silence::Time(limit)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.silence(&error)),
            }
        };
        let talk = |error: serde_json::Error| Silence::Talk(error.to_string());
        let mut answer: Value = serde_json::from_slice(&line).map_err(talk)?;
        match answer.get_mut("error").map(Value::take) {
            Some(error) => {
                let text = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
                Err(Silence::Refused { kind: text("kind"), what: text("what") })
            }
            None => serde_json::from_value(answer).map_err(talk),
        }
    }

    /// What ended it, as far as it is known.
    fn silence(&mut self, error: &io::Error) -> Silence {
        for _ in 0..200 {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.ended = true;
                let how = match status.signal() {
                    Some(libc::SIGSEGV) => "a segmentation fault".to_owned(),
                    Some(libc::SIGILL) => "an illegal instruction".to_owned(),
                    Some(libc::SIGKILL) => "it was killed, as the system does where memory runs out".to_owned(),
                    Some(signal) => format!("signal {signal}"),
                    None => format!("exit code {}", status.code().unwrap_or(-1)),
                };
                return Silence::Died(how + &self.last_words());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Silence::Talk(error.to_string())
    }

    fn last_words(&mut self) -> String {
        let mut end = Vec::new();
        let length = self.said.seek(SeekFrom::End(0)).unwrap_or(0);
        let read = self.said.seek(SeekFrom::Start(length.saturating_sub(4096)));
        let _ = read.and_then(|_| (&mut self.said).take(4096).read_to_end(&mut end));
        let said = String::from_utf8_lossy(&end);
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        last.map_or(String::new(), |last| format!("; it said: {}", plain(last)))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Ok(pid) = self.pid() {
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn shell(script: &str) -> Link {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Link::start(command, &json!({})).unwrap()
    }

    const ECHO: &str = "read line <&0; echo '{}' >&0; while read line <&0; do echo '{\"x\": 1}' >&0; done";

    #[test]
    fn a_process_that_stands_still_answers_only_while_it_is_asked() {
        let mut link = shell(ECHO);
        let _: Value = link.hello().unwrap();
        link.stop().unwrap();
        link.send(&json!({"ask": "x"}), &[]).unwrap();
        assert_eq!(link.receive::<Value>(Duration::from_millis(200)), Err(Silence::Time(Duration::from_millis(200))));
        link.go_on().unwrap();
        assert_eq!(link.receive::<Value>(Duration::from_secs(20)).unwrap(), json!({"x": 1}));
        link.stop().unwrap();
        assert!(link.ask_stopped(&json!({"ask": "x"}), Duration::from_secs(20)).unwrap() > Duration::ZERO);
    }

    #[test]
    fn what_it_refuses_and_what_ends_it_are_told_apart() {
        let mut link = shell(
            "read a; echo '{}' >&0; read a; echo '{\"error\": {\"kind\": \"raised\", \"what\": \"no\"}}' >&0; read a; echo last >&2; exit 7",
        );
        let _: Value = link.hello().unwrap();
        let ask = |link: &mut Link| link.ask::<Value>(&json!({}), &[], Duration::from_secs(20)).unwrap_err();
        assert_eq!(ask(&mut link), Silence::Refused { kind: "raised".into(), what: "no".into() });
        assert_eq!(ask(&mut link), Silence::Died("exit code 7; it said: last".into()));
        assert!(matches!(ask(&mut link), Silence::Died(_) | Silence::Talk(_)));
    }

    #[test]
    fn words_of_a_candidate_are_one_line_without_escapes() {
        assert_eq!(plain("\n  \u{1b}[31mred\u{7}  \nmore"), "[31mred");
        assert_eq!(plain(&"x".repeat(1000)).len(), 300);
    }
}
