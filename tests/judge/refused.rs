//! Texts that are no kernels: what the reader, the compiler or the image's check refuses.

use std::collections::BTreeSet;

use crate::bench::{Edits, Row, correct, edit, evaluate, few, judge};
use crate::honest::small;
use warpsmith::evaluation::Stage::Compile;
use warpsmith::op::Dtype;

const fn refused(name: &'static str, edits: Edits, part: &'static str) -> Row {
    Row { name, op: "rmsnorm", edits, status: "error", stages: &[Compile], part }
}

const REFUSED: &[Row] = &[
    refused(
        "a memo in static memory (3)",
        &[
            ("\nvoid rmsnorm", "\nstatic float memo[64];\nvoid rmsnorm"),
            ("ws_store(v);", "ws_store(memo[j % 64] += v);"),
        ],
        "mutable static state",
    ),
    refused(
        "a memo in a function's static (3)",
        &[
            ("float eps) {", "float eps) {\n    static int64_t count = 1; count++;"),
            ("ws_store(v);", "ws_store(v * (count & 1));"),
        ],
        "mutable static state",
    ),
    refused(
        "a size of the operation's that it gives itself",
        &[("\"f32\"]\n---", "\"f32\"]\ndomain = \"rows == 4\"\n[given]\nrows = 4\n---")],
        "`rows` is the name of the operation rmsnorm already",
    ),
    refused(
        "a fact of the device that it gives itself",
        &[("\"f32\"]\n---", "\"f32\"]\n[given]\nCORES = 64\n---")],
        "`CORES` is the name of a fact of the device already",
    ),
    refused(
        "a clock of the library (7)",
        &[
            ("float eps) {", "float eps) {\n    long t[2]; clock_gettime(1, t); eps += t[0] == 3;"),
            ("#include", "int clock_gettime(int, long *);\n#include"),
        ],
        "clock_gettime",
    ),
    refused(
        "a thread of its own (26)",
        &[
            ("float eps) {", "float eps) {\n    long id; pthread_create(&id, 0, (void *)rmsnorm, 0);"),
            ("#include", "int pthread_create(long *, void *, void *, void *);\n#include"),
        ],
        "pthread_create",
    ),
    refused(
        "words to its output (29)",
        &[
            ("float eps) {", "float eps) {\n    printf(\"{}\");"),
            ("#include", "int printf(const char *, ...);\n#include"),
        ],
        "printf",
    ),
    refused(
        "a timer (60)",
        &[
            ("float eps) {", "float eps) {\n    setitimer(0, 0, 0);"),
            ("#include", "int setitimer(int, void *, void *);\n#include"),
        ],
        "setitimer",
    ),
    refused("a file of the machine (58)", &[("#include", "#include \"/etc/passwd\"\n#include")], "passwd"),
    refused(
        "a file by way of a macro (58)",
        &[("#include", "#define F \"/etc/passwd\"\n#include F\n#include")],
        "literally",
    ),
    refused("a file by a digraph (58)", &[("#include", "%:include \"/etc/passwd\"\n#include")], "`%:`"),
    refused("a file by a splice (58)", &[("#include", "#inc\\\nlude \"/etc/passwd\"\n#include")], "passwd"),
    refused(
        "a question about files (58)",
        &[("#include", "#if __has_include(\"/etc/passwd\")\n#endif\n#include")],
        "__has_include",
    ),
    refused(
        "a file embedded (58)",
        &[("#include", "const char f[] = {\n#embed \"/etc/passwd\"\n};\n#include")],
        "embed",
    ),
    refused(
        "a file by the assembler (58)",
        &[("#include", "__asm__(\".incbin \\\"/etc/passwd\\\"\");\n#include")],
        "assembler directive",
    ),
    refused(
        "a file by the assembler, in pieces (58)",
        &[("#include", "__asm__(\".\" \"incbin \\\"/etc/passwd\\\"\");\n#include")],
        "",
    ),
    refused(
        "a file by the assembler, in octal (58)",
        &[("#include", "__asm__(\"\\56incbin \\\"/etc/passwd\\\"\");\n#include")],
        "",
    ),
    refused(
        "code that runs when it is loaded (59)",
        &[("#include", "__attribute__((constructor)) static void f(void) {}\n#include")],
        "constructor",
    ),
    refused(
        "code that runs when it is loaded, by a pasted word (59)",
        &[(
            "#include",
            "#define P(a, b) a##b\n__attribute__((P(constr, uctor))) void f(void) { __asm__ volatile(\"\"); }\n#include",
        )],
        "code may not run when a kernel is loaded",
    ),
    refused(
        "an indirect function (59)",
        &[("#include", "void *r(void);\nvoid g(void) __attribute__((ifunc(\"r\")));\n#include")],
        "ifunc",
    ),
    refused(
        "a section of its own (59)",
        &[("#include", "__attribute__((section(\".init_array\"))) void *f = 0;\n#include")],
        "",
    ),
    refused(
        "fast arithmetic by an attribute",
        &[("void rmsnorm", "__attribute__((optimize(\"fast-math\"))) void rmsnorm")],
        "optimize",
    ),
    refused(
        "fast arithmetic by an option",
        &[("dtypes = [", "options = [\"-ffast-math\"]\ndtypes = [")],
        "not allowed",
    ),
    refused(
        "an option that reads a file",
        &[("dtypes = [", "options = [\"-include/etc/passwd\"]\ndtypes = [")],
        "not allowed",
    ),
    refused("no C", &[("float eps) {", "float eps) { this is no C")], "refuses"),
    refused(
        "an array larger than any file (61)",
        &[
            ("#include", "extern const char a[]; const char a[1L << 40] = {1};\n#include"),
            ("ws_store(v);", "ws_store(v + a[j]);"),
        ],
        "",
    ),
    refused(
        "a flood of warnings (61)",
        &[(
            "#include",
            "#define A(x) x x x x x x x x x x\n#define B(x) A(A(A(x)))\nvoid f(void) { B(int y = \"\";) }\n#include",
        )],
        "",
    ),
    refused(
        "scratch beyond all memory",
        &[
            ("---*/", "[[scratch]]\nname = \"kept\"\ndtype = \"f32\"\nshape = [\"1000000000 * 1000000\"]\n---*/"),
            ("T *y, int64_t", "T *y, float *kept, int64_t"),
        ],
        "scratch",
    ),
    refused("a kernel for something else", &[("op = \"rmsnorm\"", "op = \"softmax\"")], "it is a kernel for softmax"),
    refused("a kernel for another machine", &[("dtypes = [", "arch = [\"sm_90a\"]\ndtypes = [")], "it is for sm_90a"),
    refused("no front matter", &[("/*---", "/*")], "no front matter"),
];

#[test]
fn some_texts_that_are_no_kernels_are_errors() {
    judge(few(REFUSED));
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn texts_that_are_no_kernels_are_errors() {
    judge(REFUSED);
}

#[test]
fn a_kernel_is_judged_in_the_types_that_it_serves_and_serves_those_of_what_it_replaces() {
    let single = edit(small("rmsnorm"), &[("dtypes = [\"f16\", \"bf16\", \"f32\"]", "dtypes = [\"f32\"]")]);
    let alone = evaluate("rmsnorm", &single, &single);
    assert!(correct(&alone.verdict), "{:?}", alone.verdict);
    assert!(
        alone.cases.len() > 10 && alone.cases.iter().all(|case| case.case.dtype == Dtype::F32),
        "{:?}",
        alone.cases
    );
    // One that serves more is asked about all of it.
    let wider = evaluate("rmsnorm", small("rmsnorm"), &single);
    assert!(correct(&wider.verdict), "{:?}", wider.verdict);
    assert_eq!(wider.cases.iter().map(|case| case.case.dtype).collect::<BTreeSet<_>>().len(), 3);
    let narrower = evaluate("rmsnorm", &single, small("rmsnorm")).verdict;
    assert!(
        narrower.status() == "reject" && narrower.why().contains("it does not serve f16, as the kernel"),
        "{narrower:?}"
    );
    let other = edit(&single, &[("\"f32\"", "\"f16\"")]);
    let untimed = evaluate("rmsnorm", &other, &other).verdict;
    assert!(untimed.why().contains("it does not serve f32, in which it is timed"), "{untimed:?}");
}
