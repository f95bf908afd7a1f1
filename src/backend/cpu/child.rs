//! The child's side: it loads images, gives up everything it does not need, and launches what it is told to.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use memmap2::MmapOptions;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::{Deserialize, Serialize};

use super::control::{self, Header, Prepared, Visible, note, wake};
use super::regions::Regions;
use super::registers::Registers;
use super::{gate, heap, pool, signals};
use crate::defence::Defence;
use crate::sandbox::{self, Maps, Origins};

/// How an image is entered: tensors and scratch, symbols, scalars.
type Entry = unsafe extern "C" fn(*const usize, *const i64, *const f32);

/// Turns of watching for the go before sleeping.
const WATCH: u32 = 4000;

/// What the judge tells the child at its start, as JSON behind the page's head.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// Shared objects, loaded in this order.
    pub(super) images: Vec<std::path::PathBuf>,
    /// Bytes of both regions.
    pub(super) regions: [usize; 2],
    /// What of both regions holds buffers already.
    pub(super) visible: [Visible; 2],
    /// Threads of a kernel, the launching one included.
    pub(super) threads: usize,
    /// Bytes it may have beside the regions.
    pub(super) memory: u64,
    /// Seconds of CPU time.
    pub(super) cpu_s: u64,
}

/// Descriptors that the judge gives it: commands, answers, leash, page, and the files of both regions.
pub(super) const PASSED: usize = 6;

/// Runs the hidden subcommand `host`. It prints nothing and returns its exit status.
pub fn main() -> i32 {
    // Its leash ends it as well, but not while it is stopped, and the judge may be killed just then.
    if rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).is_err() {
        return 2;
    }
    let Ok(fds) = passed() else { return 2 };
    close_all_but(&fds);
    let Ok([commands, answers, leash, page, inputs, outputs]) = renumber(fds) else { return 2 };
    // SAFETY: the judge passes these descriptors to this process alone, and each is taken once.
    let [page, inputs, outputs] = [page, inputs, outputs].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let Ok(head) = MmapOptions::new().len(control::HEAD).map_raw(page.as_raw_fd()) else { return 2 };
    let header: &'static Header = {
        signals::note_in(head.as_mut_ptr().cast());
        // SAFETY: the mapping begins with a header, is never unmapped, and all its fields are atomics.
        unsafe { &*head.as_ptr().cast() }
    };
    match start(header, [page, inputs, outputs], [commands, answers, leash]) {
        Ok(mut child) => {
            child.say(wake::HELLO, 0);
            child.serve()
        }
        Err(reason) => {
            let n = reason.len().min(control::MESSAGE);
            // SAFETY: behind the header there is room for this much; the judge reads it after the word that follows.
            unsafe {
                let to = head.as_mut_ptr().add(size_of::<Header>());
                std::ptr::copy_nonoverlapping(reason.as_ptr(), to, n);
            }
            header.message.store(n as u32, Ordering::SeqCst);
            gate::write_word(answers, wake::word(wake::FAILED, 0));
            2
        }
    }
}

struct Child {
    header: &'static Header,
    words: *const u64,
    entries: Vec<Entry>,
    regions: Regions,
    commands: RawFd,
    answers: RawFd,
}

fn start(
    header: &'static Header,
    [page, inputs, outputs]: [OwnedFd; 3],
    [commands, answers, leash]: [RawFd; 3],
) -> Result<Child, String> {
    let setup = read_setup(header, &page)?;
    let regions = Regions::map([&inputs, &outputs], &page, &setup)
        .map_err(|error| format!("mapping {} bytes of tensors: {error}", setup.regions.iter().sum::<usize>()))?;
    drop((page, inputs, outputs));
    let entries = setup.images.iter().map(|path| load(path)).collect::<Result<_, _>>()?;
    let maps = Maps::read();
    confine(&setup, regions.reserved()).map_err(|error| format!("limits: {error}"))?;
    signals::install(regions.bases(), setup.regions);
    start_threads(setup.threads, leash)?;
    dirty_heap();
    let library = libc::malloc as *const () as usize;
    let mut code = None;
    if let Ok(maps) = &maps {
        maps.seal_files();
        if Defence::Clocks.stands() {
            // SAFETY: what follows asks for no time, and no thread of this process does.
            let _ = unsafe { maps.unmap_clocks() };
        }
        code = maps.code_around(library);
    }
    // A system that does not tell where its library is gets a wider filter.
    let code = code.unwrap_or(library >> 32 << 32..((library >> 32) + 1) << 32);
    let origins = Origins {
        gate: gate::address(),
        library: code.start as u64..code.end as u64,
        guarded: regions.guarded(),
        reserve: regions.reserve() as u64,
        read: vec![commands, leash],
        answers,
    };
    // A machine without seccomp or with an architecture unknown to it is reported by `protections`.
    if Defence::SystemCalls.stands()
        && let Ok(filter) = sandbox::kernel_filter(&origins)
    {
        let _ = sandbox::install_on_all_threads(&filter);
    }
    let words = regions.words();
    Ok(Child { header, words, entries, regions, commands, answers })
}

/// How to start, as the judge wrote it behind the head.
fn read_setup(header: &Header, page: &OwnedFd) -> Result<Setup, String> {
    let length = (header.words.load(Ordering::SeqCst) as usize).min(control::BYTES - control::HEAD);
    let map = MmapOptions::new().offset(control::HEAD as u64).len(length.max(1)).map_raw_read_only(page.as_raw_fd());
    let map = map.map_err(|error| format!("the start-up message: {error}"))?;
    // SAFETY: inside the mapping; the judge wrote it before this process began, and waits.
    let text = unsafe { std::slice::from_raw_parts(map.as_ptr(), length) };
    serde_json::from_slice(text).map_err(|error| format!("the start-up message: {error}"))
}

fn confine(setup: &Setup, reserved: usize) -> std::io::Result<()> {
    /// Address space of the program itself; a thread's stack and heap are reserved far larger than used.
    const OWN: u64 = 1 << 30;
    const THREAD: u64 = 160 << 20;
    let space = OWN + reserved as u64 + setup.memory + THREAD * setup.threads as u64;
    sandbox::no_new_privileges()?;
    sandbox::no_dumps()?;
    sandbox::set_limit(libc::RLIMIT_AS as _, space)?;
    sandbox::set_limit(libc::RLIMIT_CPU as _, setup.cpu_s)?;
    sandbox::set_limit(libc::RLIMIT_FSIZE as _, 0)?;
    // What a machine lacks is reported by `protections`; the rest holds without it.
    let _ = sandbox::deny_clock();
    let _ = sandbox::confine_to_nothing();
    Ok(())
}

fn start_threads(threads: usize, leash: RawFd) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("starting {threads} threads: {error}");
    pool::start(threads).map_err(failed)?;
    // A thread that is still starting makes calls that are not allowed any more once the filter is in place.
    let (started, starts) = std::sync::mpsc::channel();
    // Whatever the main thread is busy with: when the judge is gone, so is this process.
    std::thread::Builder::new()
        .name("leash".into())
        .stack_size(64 << 10)
        .spawn(move || {
            let _ = started.send(());
            while gate::read_word(leash).is_some() {}
            // SAFETY: ends the process; nothing is left to clean up.
            unsafe { libc::_exit(3) }
        })
        .map_err(failed)?;
    starts.recv().map_err(|_| "the leash did not start".into())
}

/// From now on memory from the heap holds 0x7f at first, a huge value or NaN in every type, and its opposite once it
/// is given back: nothing is zero by luck, and nothing is left to find in it at the next launch (mallopt(3)). So it is wherever a
/// kernel runs, or it could tell by its heap whether it is timed.
fn dirty_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const FREED: libc::c_int = 0x80;
        // SAFETY: sets a number of the allocator's.
        unsafe { libc::mallopt(libc::M_PERTURB, FREED) };
    }
}

/// Loads an image for good.
fn load(path: &std::path::Path) -> Result<Entry, String> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let failed = |error: libloading::Error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("loading {name}: {error}{cause}")
    };
    // SAFETY: the image was checked to run nothing when it is loaded; this process is its own cage.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(failed)?;
    // SAFETY: the image exports this function with this type, by its trampoline.
    let entry: Entry = unsafe { *library.get(b"ws_entry\0").map_err(failed)? };
    std::mem::forget(library);
    Ok(entry)
}

impl Child {
    fn say(&self, what: u32, token: u32) {
        gate::write_word(self.answers, wake::word(what, token));
    }

    fn serve(&mut self) -> i32 {
        let registers = Registers::read();
        loop {
            if gate::read_word(self.commands).is_none() {
                return 0;
            }
            self.header.in_use.store(heap::in_use(), Ordering::SeqCst);
            let words = (self.header.words.load(Ordering::Acquire) as usize).min(control::WORDS);
            // SAFETY: `words` are mapped for good, fit the mapping and are aligned with it; the judge wrote them before it
            // woke this thread.
            let words = unsafe { std::slice::from_raw_parts(self.words, words) };
            let calls = control::decode(words, self.regions.bases())
                .filter(|(visible, _)| self.regions.show(visible))
                .and_then(|(_, calls)| self.bind(calls));
            let Some(calls) = calls else {
                self.header.note.store(note::CALLS, Ordering::SeqCst);
                return 4;
            };
            pool::begin();
            pool::dirty_stacks();
            pool::warm();

            self.say(wake::READY, 0);
            let token = self.wait_for_go();
            self.launch(&calls, registers);
            pool::end();
            self.say(wake::DONE, token);
        }
    }

    fn bind(&self, calls: Vec<Prepared>) -> Option<Vec<(Entry, Prepared)>> {
        calls.into_iter().map(|call| Some((*self.entries.get(call.image)?, call))).collect()
    }

    /// The go word, once there is one.
    fn wait_for_go(&self) -> u32 {
        let mut turns = 0;
        loop {
            let now = self.header.go.load(Ordering::Acquire);
            if now != 0 {
                return now;
            }
            turns += 1;
            if turns < WATCH {
                std::hint::spin_loop();
            } else {
                gate::sleep(&self.header.go, 0, true);
            }
        }
    }

    fn launch(&self, calls: &[(Entry, Prepared)], registers: Registers) {
        for (index, (entry, call)) in calls.iter().enumerate() {
            for [address, bytes] in &call.zeroed {
                // SAFETY: a buffer in the outputs' mapping, at the offset that the judge gave.
                unsafe { std::ptr::write_bytes(*address as *mut u8, 0, *bytes) };
            }
            // SAFETY: hostile code in a process made for it. The arrays live through the call and hold what the
            // trampoline reads; what else it does is seen by the judge.
            unsafe { entry(call.pointers.as_ptr(), call.ints.as_ptr(), call.floats.as_ptr()) };
            pool::settle();
            let changed = Registers::read() != registers;
            if changed {
                registers.restore();
            } else {
                registers.clear();
            }
            if changed | pool::registers_changed() {
                self.header.registers.store(index as u32 + 1, Ordering::SeqCst);
            }
        }
    }
}

/// What the judge has sent to standard input, which is as empty as standard output afterwards.
fn passed() -> std::io::Result<[RawFd; PASSED]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(rustix::stdio::stdin(), &mut [IoSliceMut::new(&mut byte)], &mut rights, RecvFlags::empty())?;
    let mut all = Vec::with_capacity(PASSED);
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            all.extend(fds.map(IntoRawFd::into_raw_fd));
        }
    }
    rustix::stdio::dup2_stdin(rustix::stdio::stdout())?;
    all.try_into().map_err(|_| std::io::Error::other("not all descriptors came"))
}

/// Closes everything beyond standard error that is not in `keep`.
fn close_all_but(keep: &[RawFd]) {
    let mut keep = keep.to_vec();
    keep.sort_unstable();
    let mut from = 3;
    for fd in keep.into_iter().chain([RawFd::MAX]) {
        if fd > from {
            // SAFETY: closes descriptors nobody in this fresh process has taken.
            unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) };
        }
        from = fd.saturating_add(1);
    }
}

/// Moves descriptors to 3, 4, 5, … whatever the judge had open: candidates meet the same process every time.
fn renumber<const N: usize>(fds: [RawFd; N]) -> std::io::Result<[RawFd; N]> {
    let checked = |fd: RawFd| if fd < 0 { Err(std::io::Error::last_os_error()) } else { Ok(fd) };
    let mut new = fds;
    for fd in &mut new {
        // SAFETY: makes a new descriptor beyond those that are given away below.
        *fd = checked(unsafe { libc::fcntl(*fd, libc::F_DUPFD, 3 + 2 * N as RawFd) })?;
    }
    for (fd, to) in new.iter_mut().zip(3..) {
        // SAFETY: what was open at `to` is either one of `fds`, which have copies, or nobody's.
        *fd = checked(unsafe { libc::dup2(*fd, to) })?;
    }
    close_all_but(&new);
    Ok(new)
}
