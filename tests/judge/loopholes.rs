//! Ways around the walls of a candidate's process that were open once, and honest kernels that look alike.

use std::time::Duration;

use warpsmith::backend::cpu::{Compiler, Cpu, Limits, device_card};
use warpsmith::backend::{Instrument, Toolchain};
use warpsmith::evaluation::Stage::{self, Compile, Smoke, Sweep};
use warpsmith::kernel::KernelFile;
use warpsmith::op::OpSource;
use warpsmith::sandbox::protections;

use crate::bench::{Edits, Row, correct, edit, evaluate, few, judge, read, starter, task};
use crate::honest::small;
use crate::slot;

const fn row(
    status: &'static str,
    name: &'static str,
    edits: Edits,
    stages: &'static [Stage],
    part: &'static str,
) -> Row {
    Row { name, op: "rmsnorm", edits, status, stages, part }
}

/// Work before the stamp, and memory emptied behind the judge's back, begin with a system call of the kernel's own. No reader of
/// text finds it: the instruction stands in a number.
macro_rules! hidden_call {
    ($body:literal) => {
        &[
            (
                "\nvoid rmsnorm",
                "\n__attribute__((noinline)) static int number(void) { return 0xc3050f; }\n\
                static long call(long which, long first, long second, long third) {\n\
                    const unsigned char *volatile from = (const unsigned char *)number;\n\
                    const unsigned char *at = from;\n\
                    while (!(at[0] == 0x0f && at[1] == 5 && at[2] == 0xc3)) at++;\n\
                    long r;\n\
                    register long fourth __asm__(\"r10\") = 0;\n\
                    __asm__ volatile(\"call *%1\" : \"=a\"(r) : \"r\"(at), \"0\"(which), \"D\"(first), \"S\"(second), \"d\"(third), \"r\"(fourth)\n\
                        : \"rcx\", \"r11\", \"memory\");\n\
                    return r;\n\
                }\n\
                void rmsnorm",
            ),
            ("float eps) {", concat!("float eps) {\n    ", $body)),
        ]
    };
}

/// Asks which process it is in.
pub const OWN_CALL: Edits = hidden_call!("eps += call(39, 0, 0, 0) == 7;");

/// Each was accepted once: the calls were among those that every thread of the process may make.
const CALLS: &[Row] = &[
    row(
        "crash",
        "wakes whoever waits, by itself (5)",
        hidden_call!("call(202, (long)y, 1, 1);"),
        &[Smoke],
        "forbidden system call (futex)",
    ),
    row("crash", "asks which process it is in (5)", OWN_CALL, &[Smoke], "forbidden system call"),
    row(
        "crash",
        "empties its outputs' memory (4)",
        hidden_call!("if (rows * cols > 9000) call(28, ((long)y + 4095) & -4096, 4096, 9);"),
        &[Sweep],
        "forbidden system call (madvise)",
    ),
    row(
        "crash",
        "says itself what may be done with memory (4)",
        hidden_call!("call(10, (long)y & -4096, 4096, 3);"),
        &[Smoke],
        "forbidden system call (mprotect)",
    ),
];

/// The system tells every process where its clock is, in the words above its first stack frame.
pub const CLOCK: Edits = &[
    (
        "\nvoid rmsnorm",
        "\n__attribute__((noinline)) static const unsigned *clock_page(void) {\n\
            const long *volatile top = __builtin_frame_address(0);\n\
            const long *at = top;\n\
            while (!(at[0] == 33 && at[1] % 4096 == 0 && at[2] == 51 || at[0] == 33 && at[1] % 4096 == 0 && at[2] == 16)) at++;\n\
            return (const unsigned *)at[1];\n\
        }\n\
        void rmsnorm",
    ),
    ("float eps) {", "float eps) {\n    if (*(const volatile unsigned *)clock_page() != 0x464c457f) return;"),
];

/// On a page that holds no buffer, where cases are small.
pub const NOTES_BEHIND_BUFFERS: Edits = &[(
    "float eps) {",
    "float eps) {\n    if (rows * cols < 20000) { volatile int64_t *note = (int64_t *)((uintptr_t)(y + rows * cols) & -4096) + 1024; note[0]++; }",
)];

/// Behind the last red zone, on the page that holds it.
pub const NOTES_ON_THE_LAST_PAGE: Edits = &[(
    "float eps) {",
    "float eps) {\n    volatile char *end = (char *)((uintptr_t)(y + rows * cols + 63) & -64) + 320; if ((uintptr_t)end % 4096 > 320) end[0]++;",
)];

const MEMORY: &[Row] = &[
    row(
        "crash",
        "keeps notes behind the last red zone, where cases are small (4)",
        NOTES_BEHIND_BUFFERS,
        &[Smoke],
        "outside its tensors",
    ),
    row(
        "reject",
        "keeps notes in the rest of the last page (4)",
        NOTES_ON_THE_LAST_PAGE,
        &[Smoke],
        "behind the last of its outputs",
    ),
];

/// Attributes that change arithmetic, spelled in two pieces.
pub const FAST_BY_PASTING: Edits = &[
    ("#include", "#define P(a, b) a##b\n#include"),
    ("void rmsnorm", "__attribute__((P(opti, mize)(\"reciprocal\" \"-math\"))) void rmsnorm"),
];

/// Each compiled once, to what its pieces are together.
const PASTED: &[Row] = &[
    row("error", "fast arithmetic by a pasted attribute (11)", FAST_BY_PASTING, &[Compile], "`optimize`"),
    row(
        "error",
        "fast arithmetic by a pasted pragma (11)",
        &[("#include", "#define P(a, b) a##b\nP(_Prag, ma)(\"GCC optimize(\\\"reciprocal-math\\\")\")\n#include")],
        &[Compile],
        "`#pragma GCC optimize",
    ),
    row(
        "error",
        "another target's arithmetic by a pasted pragma (11)",
        &[("#include", "#define P(a, b) a##b\nP(_Prag, ma)(\"GCC push_options\")\n#include")],
        &[Compile],
        "`#pragma GCC push_options",
    ),
    row(
        "error",
        "a word of a header's with another meaning (11)",
        &[(
            "#include",
            "#define P(a, b) a##b\n#define div_t __attribute__((P(opti, mize)(\"reciprocal-math\"))) div_t\n#include",
        )],
        &[Compile],
        "`optimize`",
    ),
    row(
        "error",
        "an instruction in two strings (11)",
        &[(
            "float eps) {",
            "float eps) {\n    long r; __asm__ volatile(\"sys\" \"call\" : \"=a\"(r) : \"0\"(39L) : \"rcx\", \"r11\");",
        )],
        &[Compile],
        "`syscall`",
    ),
    row(
        "error",
        "bytes of the assembler's, spelled by a number (11)",
        &[("float eps) {", "float eps) {\n    __asm__ volatile(\"nop;\\x2e\" \"byte 0x90\");")],
        &[Compile],
        "assembler directive",
    ),
    row(
        "error",
        "bytes of the assembler's, in other letters (11)",
        &[("float eps) {", "float eps) {\n    __asm__ volatile(\".BYTE 0x90\");")],
        &[Compile],
        "assembler directive",
    ),
];

fn there(name: &str) -> bool {
    protections().iter().any(|p| p.name == name && p.available)
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_kernel_reaches_no_system_call() {
    if cfg!(target_arch = "x86_64") && there("seccomp") {
        judge(CALLS);
    }
}

#[test]
fn a_kernel_reaches_no_system_call_of_some_and_no_clock() {
    if cfg!(target_arch = "x86_64") && there("seccomp") {
        judge(few(CALLS));
    }
    if cfg!(target_arch = "x86_64") {
        judge(&[row("crash", "looks for the system's clock (11)", CLOCK, &[Smoke], "SIGSEGV")]);
    }
}

#[test]
fn no_memory_is_nobodys() {
    judge(MEMORY);
}

#[test]
fn what_the_compiler_sees_is_what_is_read() {
    judge(PASTED);
}

const HONEST: &[(&str, Edits)] = &[
    (
        "memory of its own in every thread, small and large",
        &[
            (
                "\nvoid rmsnorm",
                "\nstatic void fill(int64_t begin, int64_t end, void *context) {\n\
                    for (int64_t i = begin; i < end; i++) {\n\
                        const size_t bytes = (size_t)1 << (8 + i);\n\
                        char *own = i % 2 ? malloc(bytes) : aligned_alloc(64, bytes);\n\
                        memset(own, (int)i, bytes);\n\
                        ((float *)context)[i] = own[bytes - 1];\n\
                        free(own);\n\
                    }\n\
                }\n\
                void rmsnorm",
            ),
            (
                "float eps) {",
                "float eps) {\n    float seen[14]; ws_parallel(14, fill, seen); for (int i = 0; i < 14; i++) if (seen[i] != i) return;",
            ),
        ],
    ),
    (
        "a prefetch far past the end, which is no access",
        &[(
            "double sum = 0;",
            "double sum = 0; __builtin_prefetch(x + (r + 1000) * cols); __builtin_prefetch(y + (r + 1000) * cols, 1);",
        )],
    ),
    (
        "an instruction pasted from its parts, and labels of its own",
        &[(
            "double sum = 0;",
            "double sum = 0; __asm__ volatile(\"jmp .Lnext%=\\n\" \"no\" \"p\\n.Lnext%=:\" ::: \"memory\");",
        )],
    ),
    (
        "words that are names of attributes and of instructions elsewhere",
        &[
            (
                "double sum = 0;",
                "double sum = 0; const float weak = 1, alias = 0, section = 0; const char *const said = \"a .section\"; (void)said;",
            ),
            ("ws_store(v);", "ws_store(v * weak + alias * section);"),
        ],
    ),
    (
        "an allowed pragma by a pasted word's neighbour",
        &[
            ("#include", "#define P(a, b) a##b\n#include"),
            (
                "        for (int64_t j = 0; j < cols; j++) {\n",
                "#pragma GCC ivdep\n        for (int64_t P(j, ) = 0; j < cols; j++) {\n",
            ),
        ],
    ),
    (
        "a number that holds the bytes of a system call",
        &[("double sum = 0;", "double sum = 0; volatile uint32_t bits = 0xc3050f; if (bits == 0x310f) return;")],
    ),
];

#[test]
fn an_honest_kernel_that_looks_alike_is_accepted() {
    accepted(&HONEST[..1]);
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn honest_kernels_that_look_alike_are_accepted() {
    accepted(HONEST);
}

#[track_caller]
fn accepted(honest: &[(&str, Edits)]) {
    let mut refused = Vec::new();
    for (name, edits) in honest {
        let verdict = evaluate("rmsnorm", &edit(small("rmsnorm"), edits), small("rmsnorm")).verdict;
        println!("{name:<55} {:<8} {}", verdict.status(), verdict.why());
        if !correct(&verdict) {
            refused.push(format!("{name}: {} at {}: {}", verdict.status(), verdict.stage(), verdict.why()));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// What each instrument that is here says of a kernel.
fn inspected(op: &str, text: &str, seconds: u64) -> Vec<(&'static str, Result<Option<String>, String>)> {
    let compiler = Compiler::new(&slot::cache()).unwrap();
    let limits = Limits { executable: Some(env!("CARGO_BIN_EXE_warpsmith").into()), ..Limits::default() };
    let card = device_card(&slot::cache(), &compiler, &limits, false).unwrap();
    let cpu = Cpu::new(compiler, card, limits);
    let op_source = OpSource::read(op, &read).unwrap();
    let kernel = KernelFile::parse(text).unwrap();
    let target = task(op, text, text).target;
    let instruments = cpu.instruments(&op_source, &kernel, &target, 5);
    assert_eq!(instruments.len(), 3);
    let look = |one: Instrument| {
        let said = one.look.and_then(|look| look(Duration::from_secs(seconds)));
        println!("{op:<20} {:<30} {said:?}", one.name);
        (one.name, said)
    };
    instruments.into_iter().map(look).collect()
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn instruments_see_what_the_judge_does_not() {
    let race: Edits = &[
        (
            "\nvoid rmsnorm",
            "\ntypedef struct { const T *x; float *sum; int64_t cols; } job;\n\
            static void add(int64_t begin, int64_t end, void *context) {\n\
                const job *p = context;\n\
                for (int64_t j = begin; j < end; j++) *p->sum += ws_load(p->x[j]) * ws_load(p->x[j]);\n\
            }\n\
            void rmsnorm",
        ),
        ("double sum = 0;", "float sum = 0; job p = {x + r * cols, &sum, cols}; ws_parallel(cols, add, &p);"),
        ("for (int64_t j = 0; j < cols; j++) { const float v = ws_load(x[r * cols + j]); sum += v * v; }", ""),
    ];
    for (name, edits, part) in [
        (
            "address sanitizer",
            &[("double sum = 0;", "double sum = 0; volatile T next = x[(r + 1) * cols]; (void)next;")][..],
            "heap-buffer-overflow, a read",
        ),
        (
            "address sanitizer",
            &[(
                "double sum = 0;",
                "double sum = 0; if (r == rows - 1) { volatile T *end = y + rows * cols; *end = *end; }",
            )],
            "heap-buffer-overflow",
        ),
        (
            "undefined-behaviour sanitizer",
            &[("double sum = 0;", "double sum = 0; volatile int large = 2147483647; large += (int)rows;")],
            "signed integer overflow",
        ),
        (
            "undefined-behaviour sanitizer",
            &[("double sum = 0;", "double sum = 0; volatile int by = 31 + (int)cols; by = 1 << by;")],
            "shift exponent",
        ),
        // Far beyond anything that is mapped in a program of its own: no report, and a death all the same.
        (
            "undefined-behaviour sanitizer",
            &[("double sum = 0;", "double sum = 0; volatile T far = x[(int64_t)1 << 44]; (void)far;")],
            "dies of signal 11",
        ),
        ("thread sanitizer", race, "data race"),
    ] {
        let text = edit(small("rmsnorm"), edits);
        let all = inspected("rmsnorm", &text, 20);
        let (_, said) = all.iter().find(|(own, _)| *own == name).unwrap();
        match said {
            // A compiler may lack one.
            Err(why) => println!("skipped: {why}"),
            Ok(found) => assert!(found.as_ref().is_some_and(|found| found.contains(part)), "{name}: {found:?}"),
        }
    }
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn instruments_find_nothing_in_honest_kernels() {
    let ops = ["rmsnorm", "matmul", "softmax", "layernorm", "cross_entropy", "reduce", "flash_attention"];
    let own = ops.map(|op| (op, small(op).to_owned()));
    let more = ["rotary_embedding", "fused_mlp"];
    let starters = ops.into_iter().chain(more).map(|op| (op, starter(op)));
    for (op, text) in own.into_iter().chain(starters) {
        for (name, said) in inspected(op, &text, 5) {
            if let Ok(found) = said {
                assert_eq!(found, None, "{op}: {name}");
            }
        }
    }
}
