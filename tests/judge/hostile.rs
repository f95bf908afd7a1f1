//! Kernels that never end, end badly, or reach for what is not theirs.

use crate::bench::{Edits, Row, correct, evaluate, few, judge};
use crate::honest::small;
use warpsmith::evaluation::Stage::{self, Smoke};
use warpsmith::sandbox::protections;

const fn row(
    status: &'static str,
    name: &'static str,
    edits: Edits,
    stages: &'static [Stage],
    part: &'static str,
) -> Row {
    Row { name, op: "rmsnorm", edits, status, stages, part }
}

/// A system call of any number that no reader of text finds: the instruction stands in a number.
macro_rules! syscall {
    ($number:literal, $first:literal, $second:literal) => {
        concat!(
            "float eps) {\n    long result;\n    __asm__ volatile(\"call 1f + 2\\n jmp 2f\\n1: mov $0xc3050f, %%r10d\\n2:\"\n\
             : \"=a\"(result) : \"0\"((long)",
            $number,
            "), \"D\"((long)",
            $first,
            "), \"S\"(",
            $second,
            "), \"d\"(8L) : \"rcx\", \"r10\", \"r11\", \"memory\");"
        )
    };
}

const RUNNING: &[Row] = &[
    row(
        "timeout",
        "never ends (46)",
        &[("float eps) {", "float eps) {\n    for (;;) __asm__ volatile(\"\");")],
        &[Smoke],
        "did not return",
    ),
    row(
        "timeout",
        "threads that wait for each other (46)",
        &[
            (
                "\nvoid rmsnorm",
                "\nstatic void wait(int64_t begin, int64_t end, void *flag) { while (!*(volatile int *)flag) {} }\nvoid rmsnorm",
            ),
            ("float eps) {", "float eps) {\n    int flag = 0;\n    ws_parallel(8, wait, &flag);"),
        ],
        &[Smoke],
        "did not return",
    ),
    row(
        "crash",
        "writes to null",
        &[("float eps) {", "float eps) {\n    *(volatile int *)8 = 1;")],
        &[Smoke],
        "SIGSEGV at a null pointer",
    ),
    row(
        "crash",
        "writes far outside",
        &[("float eps) {", "float eps) {\n    ((volatile T *)y)[1 << 28] = 1;")],
        &[Smoke],
        "outside its tensors",
    ),
    row(
        "crash",
        "recurses without end",
        &[
            (
                "\nvoid rmsnorm",
                "\n__attribute__((noinline)) static int down(volatile int *n) { volatile int m = *n + 1; return down(&m) + m; }\nvoid rmsnorm",
            ),
            ("float eps) {", "float eps) {\n    volatile int n = 0; eps += down(&n);"),
        ],
        &[Smoke],
        "it needs more stack than the 512 KiB",
    ),
    row(
        "reject",
        "subnormals left switched off (39)",
        &[("float eps) {", "float eps) {\n    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);")],
        &[Smoke],
        "floating-point environment",
    ),
];

const WALLS: &[Row] = &[
    row(
        "crash",
        "opens a file (31)",
        &[("float eps) {", syscall!("257", "-100", "\"/proc/self/maps\""))],
        &[Smoke],
        "forbidden system call (openat)",
    ),
    row(
        "crash",
        "starts a thread by itself (26)",
        &[("float eps) {", syscall!("56", "0x3d0f00", "0L"))],
        &[Smoke],
        "forbidden system call (clone)",
    ),
    row(
        "crash",
        "writes to the judge's output (29)",
        &[("float eps) {", syscall!("1", "1", "\"{}\""))],
        &[Smoke],
        "forbidden system call (write)",
    ),
    row(
        "crash",
        "asks for the time (7)",
        &[("float eps) {", syscall!("228", "1", "y"))],
        &[Smoke],
        "forbidden system call (clock_gettime)",
    ),
    row(
        "crash",
        "catches its own signals (60)",
        &[("float eps) {", syscall!("13", "11", "y"))],
        &[Smoke],
        "forbidden system call (rt_sigaction)",
    ),
    row(
        "crash",
        "makes code at run time",
        &[("float eps) {", syscall!("329", "1", "y"))],
        &[Smoke],
        "forbidden system call",
    ),
    row(
        "crash",
        "says that it is done before it begins, and returns (29)",
        &[("float eps) {", syscall!("1", "4", "\"DDDDDDDD\""))],
        &[Smoke],
        "forbidden system call (write)",
    ),
    row(
        "crash",
        "says that it is done and takes its time (26)",
        &[
            ("float eps) {", syscall!("1", "4", "\"DDDDDDDD\"")),
            ("        }\n    }\n}", "        }\n    }\n    for (;;) __asm__ volatile(\"\");\n}"),
        ],
        &[Smoke],
        "forbidden system call (write)",
    ),
];

#[test]
fn some_ways_to_end_badly_have_their_status_and_the_worker_goes_on() {
    judge(few(RUNNING));
    assert!(correct(&evaluate("rmsnorm", small("rmsnorm"), small("rmsnorm")).verdict));
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn each_way_to_end_badly_has_its_status_and_the_worker_goes_on() {
    judge(RUNNING);
    assert!(correct(&evaluate("rmsnorm", small("rmsnorm"), small("rmsnorm")).verdict));
}

#[test]
fn some_of_what_is_walled_off_ends_a_kernel() {
    if cfg!(target_arch = "x86_64") && protections().iter().any(|p| p.name == "seccomp" && p.available) {
        judge(few(WALLS));
    }
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn what_is_walled_off_ends_a_kernel_and_the_worker_goes_on() {
    let there = |name| protections().iter().any(|p| p.name == name && p.available);
    if cfg!(target_arch = "x86_64") && there("seccomp") {
        judge(WALLS);
    }
    if cfg!(target_arch = "x86_64") && there("clock") {
        judge(&[row(
            "crash",
            "reads the clock (7)",
            &[("float eps) {", "float eps) {\n    if (__builtin_ia32_rdtsc() == 0) return;")],
            &[Smoke],
            "it read the processor's clock",
        )]);
    }
    assert!(correct(&evaluate("rmsnorm", small("rmsnorm"), small("rmsnorm")).verdict));
}
