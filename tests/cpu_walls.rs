//! The walls around a candidate in its process: no system calls, no clock, no memory that is nobody's.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

#[path = "common/host.rs"]
mod host;

use std::time::Duration;

use warpsmith::backend::cpu::{Arena, Compiler};
use warpsmith::backend::{Fault, Placing, Region};

use host::{Bench, EMPTY, LIMIT, SCALE, available};

/// A system call of the kernel's own.
const CALL: &str = "
    static long call(long number, long first, const void *second, long third) {
        long r;
        __asm__ volatile(\"syscall\" : \"=a\"(r) : \"0\"(number), \"D\"(first), \"S\"(second), \"d\"(third) : \"rcx\", \"r11\", \"memory\");
        return r;
    }
";

#[test]
fn a_kernel_that_speaks_for_itself_ends() {
    let bench = Bench::new(16);
    if !cfg!(target_arch = "x86_64") || !available("seccomp") {
        return;
    }
    for (body, words) in [
        // Answers the judge, takes its orders, waits for its go, looks for the time.
        ("call(1, 4, \"DDDDDDDD\", 8);", "forbidden system call (write)"),
        ("char order[8]; call(0, 3, order, 8);", "forbidden system call (read)"),
        ("call(202, (long)y, 0, 1);", "forbidden system call (futex)"),
        ("call(228, 1, y, 0);", "forbidden system call (clock_gettime)"),
        // Memory that outlives a launch, or that is emptied behind the judge's back.
        ("call(28, (long)y & -4096, (void *)4096, 9);", "forbidden system call (madvise)"),
        ("call(10, (long)y & -4096, (void *)4096, 3);", "forbidden system call (mprotect)"),
        ("call(9, 0, (void *)4096, 3);", "forbidden system call (mmap)"),
    ] {
        let text = format!("{CALL} static void kernel(const float *x, float *y, int64_t n, float s) {{ {body} }}");
        assert_eq!(bench.fault(&text).to_string(), words, "{body}");
    }
}

/// `reach(n)` is an instruction that makes a system call, `n` counted from a function of the C library on, and `through(it, …)`
/// makes one with it; the registers are those that the system reads.
const LIBRARY: &str = "
    static const unsigned char *reach(const void *from) {
        const unsigned char *at = from;
        while (!(at[0] == 0x0f && at[1] == 5 && at[2] == 0x48 && at[3] == 0x3d)) at++;
        return at;
    }
    static long through(const void *from, long number, long first, long second, long third, long fourth) {
        /* Behind the instruction an error is looked for, and the function returns. */
        long r;
        register long r10 __asm__(\"r10\") = fourth;
        __asm__ volatile(\"call *%1\" : \"=a\"(r) : \"r\"(reach(from)), \"0\"(number), \"D\"(first), \"S\"(second), \"d\"(third), \"r\"(r10)
            : \"rcx\", \"r8\", \"r9\", \"r11\", \"memory\");
        return r;
    }
";

#[test]
fn the_librarys_own_calls_reach_neither_the_judge_nor_shared_memory() {
    let bench = Bench::new(1 << 16);
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) || !available("seccomp") {
        return;
    }
    let kernel =
        |body: &str| format!("{LIBRARY} static void kernel(const float *x, float *y, int64_t n, float s) {{ {body} }}");
    for (body, words) in [
        ("through(malloc, 1, 4, (long)\"DDDDDDDD\", 8, 0);", "forbidden system call (write)"),
        ("through(malloc, 28, ((long)y + 4096) & -4096, 4096, 9, 0);", "forbidden system call (madvise)"),
        ("through(malloc, 28, ((long)y + 4096) & -4096, 4096, 4, 0);", "forbidden system call (madvise)"),
        ("through(malloc, 10, ((long)y & -4096) + (1 << 19), 4096, 3, 0);", "forbidden system call (mprotect)"),
        ("through(malloc, 11, (long)x & -4096, 4096, 0, 0);", "forbidden system call (munmap)"),
        ("through(malloc, 228, 1, (long)y, 0, 0);", "forbidden system call (clock_gettime)"),
        ("through(malloc, 234, 0, 0, 19, 0);", "forbidden system call (number 234)"),
    ] {
        assert_eq!(bench.fault(&kernel(body)).to_string(), words, "{body}");
    }
    // What an allocator asks for.
    let mut host = bench.host(&[&kernel(
        "char *own = malloc(1 << 20); y[0] = through(malloc, 28, ((long)own + 4096) & -4096, 4096, 4, 0); free(own);",
    )]);
    host.launch(&bench.call(0), LIMIT).unwrap();
    assert_eq!(bench.output()[0], 0.0);
}

#[test]
fn constants_stay_constant() {
    let bench = Bench::new(16);
    let sealed = std::fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|release| {
        let mut parts = release.split('.').map_while(|part| part.parse::<u32>().ok());
        (parts.next(), parts.next()) >= (Some(6), Some(10))
    });
    if cfg!(all(target_arch = "x86_64", target_env = "gnu")) && sealed {
        // The loader writes the address into it, so that its page was writable once.
        let text = format!(
            "{LIBRARY} static void kernel(const float *x, float *y, int64_t n, float s);
            static void *const table[512] __attribute__((aligned(4096))) = {{(void *)kernel}};
            static void kernel(const float *x, float *y, int64_t n, float s) {{
                y[0] = through(malloc, 10, (long)table & -4096, 4096, 3, 0);
            }}"
        );
        let mut host = bench.host(&[&text]);
        host.launch(&bench.call(0), LIMIT).unwrap();
        assert_eq!(bench.output()[0], -1.0);
    }
}

#[test]
fn one_that_goes_through_the_harness_own_gate_does_not_know_the_word() {
    let bench = Bench::new(16);
    // The gate is the only place with this sequence: mov rax, rdi ... mov r10, r8; syscall.
    let text = "
        static void kernel(const float *x, float *y, int64_t n, float s) {
            static const unsigned char gate[] = {0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca, 0x4d, 0x89, 0xc2, 0x0f, 0x05, 0xc3};
            const volatile uintptr_t from = (uintptr_t)ws_parallel;
            for (long step = 1;; step++)
                for (int back = 0; back < 2; back++) {
                    const unsigned char *at = (const unsigned char *)(back ? from - step : from + step);
                    if (at[0] == gate[0] && !memcmp(at, gate, sizeof gate)) {
                        ((long (*)(long, long, const void *, long))at)(1, 4, \"D\\0\\0\\0\\1\\0\\0\", 8);
                        return;
                    }
                }
        }";
    if cfg!(target_arch = "x86_64") {
        // It ends out of turn, or outside of the program's code where the search leaves it.
        assert!(matches!(bench.fault(text), Fault::Escaped { .. } | Fault::Crash { .. }));
    }
}

#[test]
fn there_is_no_clock_to_be_found() {
    let bench = Bench::new(16);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains("[vdso]"));
    let host = bench.host(&[EMPTY]);
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    let Some(child) = children.split_whitespace().last() else { return eprintln!("skipped: children are not listed") };
    // Not dumpable: only root may look.
    if let Ok(maps) = std::fs::read_to_string(format!("/proc/{child}/maps")) {
        assert!(!maps.contains("[vdso]") && !maps.contains("[vvar"), "{maps}");
    }
    assert!(host.is_alive());
}

#[test]
fn memory_that_is_nobodys_is_not_there() {
    let cache = tempfile::tempdir().unwrap();
    let compiler = Compiler::new(cache.path()).unwrap();
    let mut arena = Arena::new(1 << 20, 1 << 20).unwrap();
    let [x, y] = [Region::Inputs, Region::Outputs].map(|region| arena.place(region, 64).unwrap());
    let bench = Bench { cache, compiler, arena, x, y };
    let kernel = |body: &str| format!("static void kernel(const float *x, float *y, int64_t n, float s) {{ {body} }}");
    // Behind the last page that holds a buffer, in either region.
    for body in ["((volatile char *)y)[8192] = 1;", "s += ((volatile char *)y)[8192]; y[0] = s;", "y[0] = x[2048];"] {
        assert_eq!(bench.fault(&kernel(body)).to_string(), "SIGSEGV at an address outside its tensors", "{body}");
    }
    // In the last page, behind the red zone.
    let fault = bench.fault(&kernel("((volatile char *)y)[1000] = 1;"));
    assert!(matches!(fault, Fault::Escaped { .. }) && fault.to_string().contains("behind the last"), "{fault}");
}

#[test]
fn what_is_placed_later_can_be_touched_and_what_is_gone_can_not() {
    for placing in [Placing::Packed, Placing::Fenced] {
        let arena = Arena::placed(1 << 20, 1 << 20, placing).unwrap();
        let mut bench = Bench { arena, ..Bench::new(1) };
        let reader = "static void kernel(const float *x, float *y, int64_t n, float s) { y[0] = ((volatile const float *)x)[20000]; }";
        let mut host = bench.host(&[SCALE, reader]);
        for n in [10, 100_000, 1000] {
            bench.arena.reset();
            bench.x = bench.arena.place(Region::Inputs, n * 4).unwrap();
            bench.y = bench.arena.place(Region::Outputs, n * 4).unwrap();
            let x = bench.x;
            bench.arena.bytes_mut(&x).chunks_exact_mut(4).for_each(|four| four.copy_from_slice(&3f32.to_le_bytes()));
            host.launch(&bench.call(0), LIMIT).unwrap();
            assert!(bench.output().iter().all(|y| *y == 6.0));
        }
        assert!(matches!(host.launch(&bench.call(1), LIMIT), Err(Fault::Crash { .. })), "{placing:?}");
    }
}

#[test]
fn a_fenced_buffer_ends_where_a_kernel_ends() {
    let cache = tempfile::tempdir().unwrap();
    let compiler = Compiler::new(cache.path()).unwrap();
    let mut arena = Arena::placed(1 << 20, 1 << 20, Placing::Fenced).unwrap();
    // A multiple of the alignment: nothing is between its end and the fence.
    let [x, y] = [Region::Inputs, Region::Outputs].map(|region| arena.place(region, 448).unwrap());
    let bench = Bench { cache, compiler, arena, x, y };
    for (body, words) in [
        ("y[0] = x[n];", "it read memory beyond the end of an input, 1 bytes after the last one it may touch"),
        (
            "y[n] = 1;",
            "it wrote to memory beyond the end of an output or scratch, 1 bytes after the last one it may touch",
        ),
        // A row that is fetched ahead of its turn, and a tail that is stored as a whole, with what stood there before.
        (
            "y[0] = ((volatile const float *)x)[n + 999];",
            "it read memory beyond the end of an input, 3997 bytes after the last one it may touch",
        ),
        (
            "typedef float v __attribute__((vector_size(32), aligned(4))); v t = *(volatile v *)(y + n - 3); t[0] = 1; *(volatile v *)(y + n - 3) = t;",
            "it read memory beyond the end of an output or scratch, 1 bytes after the last one it may touch",
        ),
    ] {
        let text = format!("static void kernel(const float *x, float *y, int64_t n, float s) {{ {body} }}");
        assert_eq!(bench.fault(&text).to_string(), words, "{body}");
    }
    // A prefetch is no access: it does not fault wherever it points.
    let text = "static void kernel(const float *x, float *y, int64_t n, float s) {
        __builtin_prefetch(x + n + 100); __builtin_prefetch(x + (1 << 28));
        for (int64_t i = 0; i < n; i++) y[i] = x[i];
    }";
    bench.host(&[text]).launch(&bench.call(0), LIMIT).unwrap();
}

#[test]
fn work_beside_the_time_that_is_taken_has_an_account() {
    let mut bench = Bench::new(16);
    let mut host = bench.host(&[EMPTY]);
    assert_eq!(host.outside(), None);
    for _ in 0..30 {
        bench.arena.bytes_mut(&bench.y.clone()).fill(1);
        host.launch(&bench.call(0), LIMIT).unwrap();
        host.idle_check().unwrap();
    }
    if std::fs::read_to_string("/proc/self/schedstat").is_ok() {
        let outside = host.outside().unwrap();
        assert!(outside.batches == 30 && outside.median > Duration::ZERO, "{outside:?}");
    }
}
