//! The child's side: it loads images, gives up everything it does not need, and launches what it is told to.

use std::ffi::{OsString, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use memmap2::{MmapOptions, MmapRaw};
use serde::{Deserialize, Serialize};

use super::control::{self, Header, Prepared, note, wake};
use super::{fenv, pool, signals};
use crate::sandbox;

/// How an image is entered: tensors and scratch, symbols, scalars.
type Entry = unsafe extern "C" fn(*const usize, *const i64, *const f32);

/// Turns of watching for the go before sleeping.
const WATCH: u32 = 4000;

/// What the judge tells the child at its start, as JSON behind the page's header.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// Shared objects, loaded in this order.
    pub(super) images: Vec<std::path::PathBuf>,
    /// Bytes of both regions.
    pub(super) regions: [usize; 2],
    /// Bytes of both regions that hold buffers already.
    pub(super) used: [usize; 2],
    /// Threads of a kernel, the launching one included.
    pub(super) threads: usize,
    /// Bytes it may have beside the regions.
    pub(super) memory: u64,
    /// Seconds of CPU time.
    pub(super) cpu_s: u64,
    /// Whether heap and stack hold rubbish.
    pub(super) dirty: bool,
}

/// Runs the hidden subcommand `host`: `arguments` are those after it. It prints nothing and returns its exit status.
pub fn main(arguments: impl Iterator<Item = OsString>) -> i32 {
    let fds: Option<Vec<RawFd>> = arguments.map(|a| a.to_str()?.parse().ok()).collect();
    let Some(Ok(fds)) = fds.map(<[RawFd; 6]>::try_from) else { return 2 };
    close_all_but(&fds);
    let Ok([commands, answers, leash, page, inputs, outputs]) = renumber(fds) else { return 2 };
    // SAFETY: the judge passes these descriptors to this process alone, and each is taken once.
    let [page_file, inputs, outputs] = [page, inputs, outputs].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let Ok(page) = MmapOptions::new().len(control::BYTES).map_raw(page_file.as_raw_fd()) else { return 2 };
    drop(page_file);
    let header: &'static Header = {
        signals::note_in(page.as_mut_ptr().cast());
        // SAFETY: the mapping begins with a header, is never unmapped, and all its fields are atomics.
        unsafe { &*page.as_ptr().cast() }
    };
    match start(&page, header, inputs, outputs, [commands, answers, leash]) {
        Ok(child) => {
            child.say(wake::HELLO);
            child.serve()
        }
        Err(reason) => {
            let n = reason.len().min(MESSAGE_BYTES);
            // SAFETY: behind the header there is room for this much; the judge reads it after the byte that follows.
            unsafe {
                let to = page.as_mut_ptr().add(size_of::<Header>());
                std::ptr::copy_nonoverlapping(reason.as_ptr(), to, n);
            }
            header.message.store(n as u32, Ordering::SeqCst);
            write_byte(answers, wake::FAILED);
            2
        }
    }
}

/// Bytes behind the header.
const MESSAGE_BYTES: usize = control::BYTES - size_of::<Header>();

struct Child {
    header: &'static Header,
    words: *const u64,
    entries: Vec<Entry>,
    bases: [usize; 2],
    commands: RawFd,
    answers: RawFd,
    dirty: bool,
}

fn start(
    page: &MmapRaw,
    header: &'static Header,
    inputs: OwnedFd,
    outputs: OwnedFd,
    [commands, answers, leash]: [RawFd; 3],
) -> Result<Child, String> {
    let length = (header.message.load(Ordering::SeqCst) as usize).min(MESSAGE_BYTES);
    // SAFETY: inside the mapping; the judge wrote it before this process began, and waits.
    let text = unsafe { std::slice::from_raw_parts(page.as_ptr().add(size_of::<Header>()), length) };
    let setup: Setup = serde_json::from_slice(text).map_err(|error| format!("the start-up message: {error}"))?;
    let base = |fd: OwnedFd, which: usize, writable: bool| {
        map_guarded(&fd, setup.regions[which], setup.used[which], writable)
            .map_err(|error| format!("mapping {} bytes of tensors: {error}", setup.regions[which]))
    };
    let bases = [base(inputs, 0, false)?, base(outputs, 1, true)?];
    let entries = setup.images.iter().map(|path| load(path)).collect::<Result<_, _>>()?;
    let words = page.as_ptr().wrapping_add(size_of::<Header>()).cast();
    confine(&setup).map_err(|error| format!("limits: {error}"))?;
    signals::install(bases[0], setup.regions[0]);
    start_threads(setup.threads, leash)?;
    if setup.dirty {
        dirty_heap();
    }
    // A machine without seccomp or with an architecture unknown to it is reported by `protections`.
    if let Ok(filter) = sandbox::kernel_filter(&[commands, leash], &[answers, 2]) {
        let _ = sandbox::install_on_all_threads(&filter);
    }
    Ok(Child { header, words, entries, bases, commands, answers, dirty: setup.dirty })
}

fn confine(setup: &Setup) -> std::io::Result<()> {
    /// Address space of the program itself; a thread's stack and heap are reserved far larger than used.
    const OWN: u64 = 1 << 30;
    const THREAD: u64 = 160 << 20;
    let regions = setup.regions.iter().sum::<usize>() as u64;
    let space = OWN + regions + setup.memory + THREAD * setup.threads as u64;
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
            while read_byte(leash).is_some() {}
            // SAFETY: ends the process; nothing is left to clean up.
            unsafe { libc::_exit(3) }
        })
        .map_err(failed)?;
    starts.recv().map_err(|_| "the leash did not start".into())
}

/// From now on memory from the heap holds 0x7f at first, a huge value or NaN in every type, and its opposite once it
/// is given back: nothing is zero by luck, and nothing is left to find in it at the next launch (mallopt(3)).
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

/// Maps a region between two inaccessible pages, with the pages that hold buffers present already.
fn map_guarded(fd: &OwnedFd, bytes: usize, used: usize, writable: bool) -> std::io::Result<usize> {
    const GUARD: usize = 1 << 16;
    let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice; nothing else is touched.
    let all = unsafe { libc::mmap(std::ptr::null_mut(), bytes + 2 * GUARD, libc::PROT_NONE, private, -1, 0) };
    if all == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    let start = all.wrapping_byte_add(GUARD);
    // SAFETY: replaces the middle of the mapping just made.
    let map = unsafe { libc::mmap(start, bytes, protection, libc::MAP_SHARED | libc::MAP_FIXED, fd.as_raw_fd(), 0) };
    if map == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: advice about the mapping just made. Failing is no harm: pages then come at their first use.
    unsafe {
        libc::madvise(map, bytes, libc::MADV_HUGEPAGE);
        libc::madvise(map, bytes, libc::MADV_DONTDUMP);
        let populate = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        libc::madvise(map, used.next_multiple_of(4096).min(bytes), populate);
    }
    Ok(map as usize)
}

impl Child {
    fn say(&self, byte: u8) {
        write_byte(self.answers, byte);
    }

    fn serve(&self) -> i32 {
        let environment = fenv::get();
        let mut batch = 0;
        loop {
            if read_byte(self.commands).is_none() {
                return 0;
            }
            batch += 1;
            let words = (self.header.words.load(Ordering::Acquire) as usize).min(control::WORDS);
            // SAFETY: `words` begin behind the header, fit the mapping and are aligned with it; the judge wrote them
            // before it woke this thread.
            let words = unsafe { std::slice::from_raw_parts(self.words, words) };
            let calls = control::decode(words, self.bases).and_then(|calls| self.bind(calls));
            let Some(calls) = calls else {
                self.header.note.store(note::CALLS, Ordering::SeqCst);
                return 4;
            };
            pool::begin();
            if self.dirty {
                pool::dirty_stacks();
            }
            pool::warm();

            self.say(wake::READY);
            self.wait_for_go(batch);
            self.launch(&calls, environment);
            pool::end();
            self.say(wake::DONE);
        }
    }

    fn bind(&self, calls: Vec<Prepared>) -> Option<Vec<(Entry, Prepared)>> {
        calls.into_iter().map(|call| Some((*self.entries.get(call.image)?, call))).collect()
    }

    fn wait_for_go(&self, batch: u32) {
        let mut turns = 0;
        loop {
            let now = self.header.go.load(Ordering::Acquire);
            if now == batch {
                return;
            }
            turns += 1;
            if turns < WATCH {
                std::hint::spin_loop();
            } else {
                // SAFETY: the word is never unmapped; without a time limit no other pointer is read.
                unsafe {
                    let none = std::ptr::null::<libc::timespec>();
                    libc::syscall(libc::SYS_futex, self.header.go.as_ptr(), libc::FUTEX_WAIT, now, none)
                };
            }
        }
    }

    fn launch(&self, calls: &[(Entry, Prepared)], environment: fenv::Environment) {
        for (index, (entry, call)) in calls.iter().enumerate() {
            for [address, bytes] in &call.zeroed {
                // SAFETY: a buffer in the outputs' mapping, at the offset that the judge gave.
                unsafe { std::ptr::write_bytes(*address as *mut u8, 0, *bytes) };
            }
            // SAFETY: hostile code in a process made for it. The arrays live through the call and hold what the
            // trampoline reads; what else it does is seen by the judge.
            unsafe { entry(call.pointers.as_ptr(), call.ints.as_ptr(), call.floats.as_ptr()) };
            pool::settle();
            let changed = fenv::get() != environment;
            if changed {
                fenv::set(environment);
            }
            if changed | pool::environment_changed() {
                self.header.environment.store(index as u32 + 1, Ordering::SeqCst);
            }
        }
    }
}

fn read_byte(fd: RawFd) -> Option<u8> {
    let mut byte = 0u8;
    loop {
        // SAFETY: reads at most one byte into `byte`.
        match unsafe { libc::read(fd, (&raw mut byte).cast::<c_void>(), 1) } {
            1 => return Some(byte),
            -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
}

fn write_byte(fd: RawFd, byte: u8) {
    // SAFETY: writes one byte from `byte`. Where the judge is gone, the leash ends this process.
    unsafe { libc::write(fd, (&raw const byte).cast::<c_void>(), 1) };
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
