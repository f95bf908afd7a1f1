//! The judge's side of the child process that runs candidates: it starts it, tells it what to launch, stamps the time,
//! and is never held up by it.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSlice, PipeReader, PipeWriter, Write};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};
use rustix::process::{Pid, Signal, kill_process_group};

use super::arena::{Area, Arena};
use super::child::{PASSED, Setup};
use super::compile::Image;
use super::control::{self, Header, note, wake};
use super::fault::crash;
use super::heap::Growth;
use super::outside::Account;
use super::rest::{SLICE, Threads, counted};
use crate::backend::{Call, Fault, Outside, Region};
use crate::defence::Defence;
#[cfg(feature = "weakened")]
use crate::defence::WITHOUT;
use crate::rng::secret_seed;

/// How long the child may take to start or to get ready: it only loads images and maps memory.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many times as long as it may take the child may take where its threads wait for cores.
const LONGER: u32 = 10;

/// What the child may have.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The program to start with the argument `host`; this very program, by its inode, where none is given.
    pub executable: Option<PathBuf>,
    /// Threads a kernel runs on; 0 means one a core.
    pub threads: usize,
    /// Bytes it may have beside the arena.
    pub memory: u64,
    /// CPU time over its whole life, all threads.
    pub cpu_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { executable: None, threads: 0, memory: 2 << 30, cpu_time: Duration::from_secs(3600) }
    }
}

/// Why there is no host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The process or what it needs could not be had.
    #[error("starting the process that runs kernels: {0}")]
    System(#[from] io::Error),
    /// It started and failed at something.
    #[error("the process that runs kernels: {0}")]
    Child(String),
    /// An image ended it while being loaded.
    #[error("loading the kernel: {0}")]
    Fault(#[from] Fault),
}

/// A supervised child process with images loaded and an arena mapped.
///
/// It stays with the thread that started it: when that ends, the system ends the child.
#[derive(Debug)]
pub struct Host {
    child: Child,
    commands: PipeWriter,
    answers: PipeReader,
    _leash: PipeWriter,
    page: MmapRaw,
    clock: libc::clockid_t,
    threads: u32,
    /// Inputs and outputs.
    areas: [Arc<Area>; 2],
    all_threads: Threads,
    account: RefCell<Account>,
    growth: Growth,
    alive: bool,
    of_this_thread: PhantomData<*const ()>,
}

/// Opens this program's own file now, so that hosts started later run the same program even if it is rebuilt meanwhile.
///
/// # Errors
/// A system without `/proc`.
pub fn remember_executable() -> io::Result<&'static File> {
    static OWN: OnceLock<File> = OnceLock::new();
    if let Some(own) = OWN.get() {
        return Ok(own);
    }
    let file = File::open("/proc/self/exe")?;
    Ok(OWN.get_or_init(|| file))
}

impl Host {
    /// Starts a fresh child with `images` loaded in order and `arena` mapped; buffers may be placed later.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn start(images: &[&Image], arena: &Arena, limits: &Limits) -> Result<Self, HostError> {
        let page_file = memfd_create("warpsmith-control", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
        let page_file = File::from(page_file);
        page_file.set_len(control::BYTES as u64)?;
        let page = MmapOptions::new().len(control::BYTES).map_raw(&page_file)?;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = if limits.threads == 0 { cores } else { limits.threads };
        let areas = [Region::Inputs, Region::Outputs].map(|region| Arc::clone(arena.area(region)));
        write_setup(
            &page,
            &Setup {
                images: images.iter().map(|image| image.path.clone()).collect(),
                regions: areas.each_ref().map(|area| area.capacity()),
                visible: areas.each_ref().map(|area| area.visible()),
                threads,
                memory: limits.memory,
                cpu_s: limits.cpu_time.as_secs().max(1),
            },
        )?;
        let (child_commands, commands) = io::pipe()?;
        let (answers, child_answers) = io::pipe()?;
        let (child_leash, leash) = io::pipe()?;
        let passed = [
            child_commands.as_fd(),
            child_answers.as_fd(),
            child_leash.as_fd(),
            page_file.as_fd(),
            areas[0].file(),
            areas[1].file(),
        ];
        let child = spawn(limits.executable.as_ref(), &passed)?;
        drop((child_commands, child_answers, child_leash));
        let mut host = Self {
            clock: cpu_clock(&child)?,
            all_threads: Threads::of(child.id()),
            child,
            commands,
            answers,
            _leash: leash,
            page,
            threads: threads as u32,
            areas,
            account: RefCell::default(),
            growth: Growth::default(),
            alive: true,
            of_this_thread: PhantomData,
        };
        const HELLO: u64 = wake::word(wake::HELLO, 0);
        const FAILED: u64 = wake::word(wake::FAILED, 0);
        match host.hear(PATIENCE)?.0 {
            HELLO => {
                host.all_threads = Threads::of(host.child.id());
                host.account = RefCell::new(Account::new(host.all_threads.ran()));
                Ok(host)
            }
            FAILED => {
                let words = host.message();
                host.end();
                Err(HostError::Child(words))
            }
            other => Err(HostError::Child(format!("it said {other} where a greeting was due"))),
        }
    }

    /// Launches one call and returns the time from telling the child to go to hearing that it is done, stamped here.
    ///
    /// # Errors
    /// [`Fault`]; the host is gone then.
    pub fn launch(&mut self, call: &Call, timeout: Duration) -> Result<Duration, Fault> {
        self.run(std::slice::from_ref(call), timeout)
    }

    /// Launches all calls back to back with nothing between them, and returns the time of them all.
    ///
    /// # Errors
    /// [`Fault`]; the host is gone then. Too many calls for one batch (tens of thousands) are a [`Fault::Host`], and
    /// leave it as it was.
    pub fn run(&mut self, calls: &[Call], timeout: Duration) -> Result<Duration, Fault> {
        if !self.alive {
            return Err(Fault::Host(io::Error::other("it has ended; start a new one")));
        }
        if self.heard(Duration::ZERO)?.is_some() {
            return Err(self.escaped("it spoke when nothing was asked"));
        }
        let words = control::encode(calls, &self.areas.each_ref().map(|area| area.visible())).ok_or_else(|| {
            Fault::Host(io::Error::other(format!("{} calls are too many for one batch", calls.len())))
        })?;
        self.areas[1].wipe_slack();
        self.write_words(&words);
        self.header().go.store(0, Ordering::SeqCst);
        self.header().note.store(note::NONE, Ordering::SeqCst);
        self.header().registers.store(0, Ordering::SeqCst);
        let token = token();
        if let Err(error) = self.commands.write_all(&control::RUN.to_ne_bytes()) {
            return Err(if error.kind() == io::ErrorKind::BrokenPipe { self.died() } else { error.into() });
        }
        self.expect(wake::word(wake::READY, 0), PATIENCE)?;
        if let Some(bytes) = self.growth.take(calls, self.header().in_use.load(Ordering::SeqCst))
            && Defence::Leaks.stands()
        {
            return Err(self.escaped(&format!(
                "it keeps memory that it never gives back, {bytes} bytes a launch; what a launch takes it gives back, and [[scratch]] needs neither"
            )));
        }
        // They are decoded: nothing more is to be read there.
        self.write_words(&vec![0; words.len()]);
        let start = Instant::now();
        self.go(token);
        let end = self.expect(wake::word(wake::DONE, token), timeout)?;
        let taken = end.duration_since(start);
        self.account.get_mut().take(taken);
        if Defence::Tails.stands() && !self.areas[1].slack_is_clean() {
            return Err(self.escaped("it wrote behind the last of its outputs"));
        }
        match self.header().registers.load(Ordering::SeqCst) {
            0 => Ok(taken),
            call => Err(self.escaped(&format!(
                "it left the floating-point environment changed (rounding, subnormals, the x87 stack after MMX), a segment or a memory key; launch {call} of {}",
                calls.len()
            ))),
        }
    }

    /// CPU time of the child, all threads, over its whole life; exact only while it sleeps, else as of the last tick.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes one timespec. Where the child is gone it says so and the time stays zero.
        unsafe { libc::clock_gettime(self.clock, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// Whether it can be told to launch something.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        self.alive
    }

    /// Threads a kernel runs on.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        self.threads
    }

    /// It must be asleep when it has said it is done, all threads of it, and must have worked only while the time was taken.
    /// Call it right after a launch; on a quiet machine it takes some tens of microseconds.
    ///
    /// # Errors
    /// [`Fault::RanOn`], [`Fault::RanOutside`]; the host should not be used further.
    pub fn idle_check(&self) -> Result<(), Fault> {
        self.all_threads.rest().map_err(|time| Fault::RanOn { time })?;
        self.account.borrow_mut().look(self.all_threads.ran()).map_err(|time| Fault::RanOutside { time })
    }

    /// What its threads ran while no time was taken, as far as [`Self::idle_check`] was called after launches; `None` before the
    /// first time.
    #[must_use]
    pub fn outside(&self) -> Option<Outside> {
        self.account.borrow().summary()
    }

    /// What the thread that ran longest beside the time taken for the latest launches ran there, as [`Self::idle_check`] found it.
    #[must_use]
    pub fn beside(&self) -> Duration {
        self.account.borrow().longest()
    }

    /// What `read` returns while every thread of the child stands still: results that a kernel delivers after it has
    /// said it is done come too late. Where the system does not stop it, `read` is called all the same.
    pub fn while_stopped<R>(&self, read: impl FnOnce() -> R) -> R {
        // The child has not been waited for while it is alive, so its number is still its own.
        let group = Pid::from_raw(self.child.id() as i32).filter(|_| self.alive);
        let stopped = group.filter(|group| kill_process_group(*group, Signal::STOP).is_ok());
        if stopped.is_some() {
            self.all_threads.stand_still();
            // What it says is said again by the look that follows.
            let _ = self.account.borrow_mut().look_while_stopped(self.all_threads.ran());
        }
        let result = read();
        if let Some(group) = stopped {
            let _ = kill_process_group(group, Signal::CONT);
        }
        result
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a header, lives as long as `self`, and all its fields are atomics.
        unsafe { &*self.page.as_ptr().cast() }
    }

    fn go(&self, token: u32) {
        let go = &self.header().go;
        go.store(token, Ordering::SeqCst);
        // SAFETY: the word outlives the call.
        unsafe { libc::syscall(libc::SYS_futex, go.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    fn write_words(&self, words: &[u64]) {
        let words = &words[..words.len().min(control::WORDS)];
        // SAFETY: behind the head there is room for `WORDS` words; the child reads them only when it is woken.
        unsafe {
            let to = self.page.as_mut_ptr().add(control::HEAD).cast::<u64>();
            std::ptr::copy_nonoverlapping(words.as_ptr(), to, words.len());
        }
        self.header().words.store(words.len() as u64, Ordering::Release);
    }

    fn message(&self) -> String {
        let n = (self.header().message.load(Ordering::SeqCst) as usize).min(control::MESSAGE);
        // SAFETY: inside the mapping; the child has ended or waits.
        let bytes = unsafe { std::slice::from_raw_parts(self.page.as_ptr().add(size_of::<Header>()), n) };
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// The next word and when it came; `None` where none comes in time. What its threads wait for a core is not of that time, up to
    /// [`LONGER`] times as long.
    fn heard(&mut self, timeout: Duration) -> Result<Option<(u64, Instant)>, Fault> {
        let (mut left, mut looks, mut waited) = (timeout, 0, None);
        loop {
            let wait = left.min(SLICE);
            let before = Instant::now();
            let time = Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos() as _ };
            let polled = poll(&mut [PollFd::new(&self.answers, PollFlags::IN)], Some(&time));
            let now = Instant::now();
            match polled {
                Ok(0) => {
                    looks += 1;
                    let later = self.all_threads.waited();
                    left = left.saturating_sub(counted(
                        now.saturating_duration_since(before),
                        waited.as_deref().unwrap_or(&later),
                        &later,
                    ));
                    waited = Some(later);
                    if left.is_zero() || SLICE * looks > timeout * LONGER {
                        return Ok(None);
                    }
                    continue;
                }
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(io::Error::from(error).into()),
            }
            // Words arrive whole: a write of this size is not divided (pipe(7)).
            let mut word = [0; size_of::<u64>()];
            match rustix::io::read(&self.answers, &mut word) {
                Ok(0) => return Err(self.died()),
                Ok(8) => return Ok(Some((u64::from_ne_bytes(word), now))),
                Ok(_) => return Err(self.escaped("it spoke out of turn")),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    fn hear(&mut self, timeout: Duration) -> Result<(u64, Instant), Fault> {
        match self.heard(timeout)? {
            Some(heard) => Ok(heard),
            None => {
                self.end();
                Err(Fault::Timeout { limit: timeout })
            }
        }
    }

    fn expect(&mut self, word: u64, timeout: Duration) -> Result<Instant, Fault> {
        match self.hear(timeout)? {
            (heard, when) if heard == word => Ok(when),
            _ => Err(self.escaped("it spoke out of turn")),
        }
    }

    fn escaped(&mut self, what: &str) -> Fault {
        self.end();
        Fault::Escaped { what: what.to_owned() }
    }

    /// The child has closed its end, which it only does by dying.
    fn died(&mut self) -> Fault {
        self.alive = false;
        match self.child.wait() {
            Ok(status) => {
                let header = self.header();
                let (noted, detail) = (header.note.load(Ordering::SeqCst), header.detail.load(Ordering::SeqCst));
                crash(status, noted, detail, |region, offset| self.areas[region].beyond(offset))
            }
            Err(error) => error.into(),
        }
    }

    fn end(&mut self) {
        if std::mem::replace(&mut self.alive, false) {
            // The child has not been waited for, so its number is still its own.
            if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let _ = self.child.wait();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end();
    }
}

fn write_setup(page: &MmapRaw, setup: &Setup) -> Result<(), HostError> {
    let text = serde_json::to_vec(setup).map_err(io::Error::other)?;
    if text.len() > control::BYTES - control::HEAD {
        return Err(HostError::Child(format!("{} images are too many", setup.images.len())));
    }
    // SAFETY: the text fits behind the head; the child does not exist yet.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), page.as_mut_ptr().add(control::HEAD), text.len());
        (*page.as_ptr().cast::<Header>()).words.store(text.len() as u64, Ordering::SeqCst);
    }
    Ok(())
}

/// A go word: any number but zero that nobody can foresee.
fn token() -> u32 {
    (secret_seed() as u32) | 1
}

/// Starts the child, which finds `passed` in its standard input. Nothing is done between fork and exec, so that there need be no fork: a copy of
/// the tables of all that the judge's memory has in use takes ten milliseconds, and as much again where it is written to next.
fn spawn(executable: Option<&PathBuf>, passed: &[BorrowedFd<'_>; PASSED]) -> io::Result<Child> {
    let program = match executable {
        Some(path) => path.clone(),
        None => PathBuf::from(format!("/proc/self/fd/{}", remember_executable()?.as_raw_fd())),
    };
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    rights.push(SendAncillaryMessage::ScmRights(passed));
    sendmsg(&ours, &[IoSlice::new(&[0])], &mut rights, SendFlags::empty())?;
    let mut command = Command::new(program);
    command.arg0("warpsmith").arg("host").env_clear().process_group(0).current_dir("/");
    #[cfg(feature = "weakened")]
    command.envs(std::env::var(WITHOUT).map(|names| (WITHOUT, names)));
    command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

fn cpu_clock(child: &Child) -> io::Result<libc::clockid_t> {
    let mut clock = 0;
    // SAFETY: the function writes one clock id.
    match unsafe { libc::clock_getcpuclockid(child.id() as i32, &raw mut clock) } {
        0 => Ok(clock),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
