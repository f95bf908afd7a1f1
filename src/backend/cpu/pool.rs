//! The threads a kernel borrows through `ws_parallel`.
//!
//! Between launches they sleep. Within one they watch for work for a short while before they sleep, because a kernel's
//! next phase usually comes within microseconds and waking a thread takes longer than that. The watch is counted in
//! turns: no clock can be read here.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, Ordering};

use super::gate;
use super::registers::Registers;

/// Turns of the watch before a thread sleeps: some 30 to 60 µs, by the processor's `pause`.
const WATCH: u32 = 1200;
/// A turn in so many gives the core away, in case somebody else needs it.
const YIELD_EVERY: u32 = 64;

/// A borrowed thread's stack, bytes: what a kernel is promised, and as much again for the harness's own frames and the compiler's. Elsewhere a kernel may run
/// on threads that have no more.
const STACK: usize = 2 * USED;

/// What of a stack a kernel may use (`docs/kernel-file.md`), bytes: so much is touched once, and holds rubbish then. Filling
/// all of it before every launch would take longer than small kernels do.
const USED: usize = 512 << 10;

/// A loop's body: `begin..end` and what the kernel passes along.
pub(super) type Body = unsafe extern "C" fn(i64, i64, *mut c_void);

/// A word alone on its cache line, so that watching it disturbs nobody.
#[repr(align(128))]
struct Line<T>(T);

struct Pool {
    threads: u32,
    /// Counts jobs; a new one is a new number (futex).
    job: Line<AtomicU32>,
    /// Threads that sleep on `job`.
    sleeping: Line<AtomicU32>,
    /// Threads that have not finished the job (futex).
    left: Line<AtomicU32>,
    /// A launch is under way: idle threads may watch for a while.
    active: AtomicBool,
    /// The launching thread sleeps on `left`.
    waiting: AtomicBool,
    /// A thread returned with other [`Registers`].
    changed: AtomicBool,
    length: AtomicI64,
    body: AtomicPtr<c_void>,
    context: AtomicPtr<c_void>,
}

static POOL: OnceLock<Pool> = OnceLock::new();

thread_local! {
    /// Whether this thread is inside a body, where further loops run inline.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Starts `threads - 1` threads beside the calling one; once a process.
pub(super) fn start(threads: usize) -> std::io::Result<()> {
    let pool = POOL.get_or_init(|| Pool {
        threads: threads.max(1) as u32,
        job: Line(AtomicU32::new(0)),
        sleeping: Line(AtomicU32::new(0)),
        left: Line(AtomicU32::new(0)),
        active: AtomicBool::new(false),
        waiting: AtomicBool::new(false),
        changed: AtomicBool::new(false),
        length: AtomicI64::new(0),
        body: AtomicPtr::new(std::ptr::null_mut()),
        context: AtomicPtr::new(std::ptr::null_mut()),
    });
    let cores = cores_to_pin(pool.threads);
    pin(cores.first());
    for index in 1..pool.threads {
        let core = cores.get(index as usize).copied();
        std::thread::Builder::new().name(format!("kernel {index}")).stack_size(STACK).spawn(move || {
            pin(core.as_ref());
            work(pool, index);
        })?;
    }
    // Each thread has its own heap and stack touched before the launch that would otherwise pay for it.
    begin();
    // SAFETY: the body ignores its arguments.
    unsafe { ws_parallel(i64::from(pool.threads), touch, std::ptr::null_mut()) };
    end();
    Ok(())
}

/// A core for each thread where there are as many. Else two threads are woken on one core and wait for each other: 24 µs
/// instead of 1 for a loop that does nothing, measured on two cores.
fn cores_to_pin(threads: u32) -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    let cores: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
    // With cores to spare the system's own choice avoids those that others use.
    if cores.len() == threads as usize { cores } else { Vec::new() }
}

fn pin(core: Option<&usize>) {
    if let Some(core) = core {
        let mut set = rustix::thread::CpuSet::new();
        set.set(*core);
        // Where this is not allowed, threads run where the system puts them.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

unsafe extern "C" fn touch(_: i64, _: i64, _: *mut c_void) {
    let mut stack = [0x7fu8; USED];
    std::hint::black_box(&mut stack);
    drop(std::hint::black_box(vec![0u8; 64]));
}

/// Fills the part of each thread's stack that a kernel is likely to use with 0x7f, a huge value or NaN in every type.
pub(super) fn dirty_stacks() {
    if let Some(pool) = POOL.get() {
        // SAFETY: the body ignores its arguments.
        unsafe { ws_parallel(i64::from(pool.threads), dirty, std::ptr::null_mut()) };
    }
}

#[inline(never)]
unsafe extern "C" fn dirty(_: i64, _: i64, _: *mut c_void) {
    let mut stack = [0x7fu8; 64 << 10];
    std::hint::black_box(&mut stack);
}

/// A launch begins: threads may watch for work from now on.
pub(super) fn begin() {
    if let Some(pool) = POOL.get() {
        pool.active.store(true, Ordering::SeqCst);
    }
}

/// Wakes the threads ahead of a launch.
pub(super) fn warm() {
    if let Some(pool) = POOL.get()
        && pool.sleeping.0.load(Ordering::SeqCst) > 0
    {
        gate::wake(&pool.job.0);
    }
}

/// Waits until no thread is at work any more. `ws_parallel` has done so already, unless a kernel left it by a way of its own.
pub(super) fn settle() {
    if let Some(pool) = POOL.get() {
        pool.wait();
        INSIDE.set(false);
    }
}

/// A launch is over: threads go to sleep at once.
pub(super) fn end() {
    if let Some(pool) = POOL.get() {
        pool.active.store(false, Ordering::SeqCst);
    }
}

/// Whether a thread came back with other [`Registers`] since the last question.
pub(super) fn registers_changed() -> bool {
    POOL.get().is_some_and(|pool| pool.changed.swap(false, Ordering::SeqCst))
}

fn work(pool: &'static Pool, index: u32) {
    INSIDE.set(true);
    let registers = Registers::read();
    let mut seen = 0;
    loop {
        let mut turns = 0;
        loop {
            let now = pool.job.0.load(Ordering::Acquire);
            if now != seen {
                seen = now;
                break;
            }
            turns += 1;
            if turns < WATCH && pool.active.load(Ordering::Relaxed) {
                if turns % YIELD_EVERY == 0 {
                    gate::give_way();
                } else {
                    std::hint::spin_loop();
                }
                continue;
            }
            turns = 0;
            pool.sleeping.0.fetch_add(1, Ordering::SeqCst);
            gate::sleep(&pool.job.0, seen, false);
            pool.sleeping.0.fetch_sub(1, Ordering::SeqCst);
        }
        share(pool, index);
        if Registers::read() != registers {
            registers.restore();
            pool.changed.store(true, Ordering::SeqCst);
        }
        if pool.left.0.fetch_sub(1, Ordering::SeqCst) == 1 && pool.waiting.load(Ordering::SeqCst) {
            gate::wake(&pool.left.0);
        }
        // Nobody waits for that.
        registers.clear();
    }
}

/// This thread's part of the job: part `index` of `threads` nearly equal ones.
fn share(pool: &Pool, index: u32) {
    let length = pool.length.load(Ordering::Relaxed);
    let body = pool.body.load(Ordering::Relaxed);
    let context = pool.context.load(Ordering::Relaxed);
    let [begin, end] = part(length, i64::from(index), i64::from(pool.threads));
    if begin < end {
        // SAFETY: `ws_parallel` stored this pointer from a `Body` before it published the job.
        let body = unsafe { std::mem::transmute::<*mut c_void, Body>(body) };
        // SAFETY: what the kernel passes to `ws_parallel` is its own business; a fault is caught by the judge.
        unsafe { body(begin, end, context) };
    }
}

fn part(length: i64, index: i64, parts: i64) -> [i64; 2] {
    let (each, more) = (length / parts, length % parts);
    let begin = index * each + index.min(more);
    [begin, begin + each + i64::from(index < more)]
}

/// Runs `body` over `0..n`, split into contiguous ranges over the harness's threads; returns when all have returned.
/// Inside a body it runs inline.
///
/// # Safety
/// `body` is called from several threads at once with ranges that do not overlap, and with `context` as it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ws_parallel(n: i64, body: Body, context: *mut c_void) {
    if n <= 0 {
        return;
    }
    let pool = POOL.get().filter(|pool| pool.threads > 1 && n > 1 && !INSIDE.get());
    let Some(pool) = pool else {
        // SAFETY: the caller's promise.
        unsafe { body(0, n, context) };
        return;
    };
    pool.length.store(n, Ordering::Relaxed);
    pool.body.store(body as *mut c_void, Ordering::Relaxed);
    pool.context.store(context, Ordering::Relaxed);
    pool.left.0.store(pool.threads - 1, Ordering::Relaxed);
    pool.job.0.fetch_add(1, Ordering::SeqCst);
    if pool.sleeping.0.load(Ordering::SeqCst) > 0 {
        gate::wake(&pool.job.0);
    }
    INSIDE.set(true);
    share(pool, 0);
    INSIDE.set(false);
    pool.wait();
}

impl Pool {
    /// Waits until no thread is at work: watches for a short while, then sleeps.
    fn wait(&self) {
        let mut turns = 0;
        loop {
            let left = self.left.0.load(Ordering::SeqCst);
            if left == 0 {
                return;
            }
            turns += 1;
            if turns < WATCH {
                std::hint::spin_loop();
                continue;
            }
            self.waiting.store(true, Ordering::SeqCst);
            gate::sleep(&self.left.0, left, false);
            self.waiting.store(false, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_whole_without_overlap_and_differ_by_at_most_one() {
        for length in [1, 2, 7, 64, 1023] {
            for parts in [1, 2, 3, 16, 64] {
                let mut next = 0;
                for index in 0..parts {
                    let [begin, end] = part(length, index, parts);
                    assert_eq!(begin, next);
                    assert!((end - begin - length / parts) <= 1);
                    next = end;
                }
                assert_eq!(next, length);
            }
        }
    }
}
