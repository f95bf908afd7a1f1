//! What compiles, what is refused, and in which words.

#![allow(clippy::unwrap_used)]
use std::path::Path;

use super::compile::{CompileError, Compiler, Image, Unit, redact};
use crate::device::detect_cpu;
use crate::kernel::KernelFile;

const ENTRY: &str = "\n#line 1 \"entry\"\n__attribute__((visibility(\"default\"))) void ws_entry(void *const *p, const int64_t *i, const float *f) \
    { (void)p; (void)i; (void)f; k(p); }\n";

fn build(text: &str) -> Result<Image, CompileError> {
    let folder = tempfile::tempdir().unwrap();
    let source = format!("#include <stdint.h>\n#include <math.h>\n#line 1 \"k.c\"\n{text}\n{ENTRY}");
    Compiler::new(folder.path())?.compile_candidate("k", text, &source, &[])
}

#[test]
fn an_honest_kernel_compiles_and_comes_from_the_cache_the_second_time() {
    let folder = tempfile::tempdir().unwrap();
    let compiler = Compiler::new(folder.path()).unwrap();
    let text = "void k(void *const *p) { float *y = p[0]; y[0] = expf(y[0]) + sqrtf(y[1]); int unused; }";
    let source = format!("#include <stdint.h>\n#include <math.h>\n#line 1 \"k.c\"\n{text}\n{ENTRY}");
    let first = compiler.compile_candidate("k", text, &source, &[]).unwrap();
    assert!(first.log.contains("unused") && !first.log.contains(&*folder.path().to_string_lossy()), "{}", first.log);
    let time = |image: &Image| std::fs::metadata(&image.path).unwrap().modified().unwrap();
    let made = time(&first);
    let second = compiler.compile_candidate("k", text, &source, &[]).unwrap();
    assert_eq!((&first, made), (&second, time(&second)));
    let other = compiler.compile_candidate("k", text, &source, &["-funroll-loops".into()]).unwrap();
    assert_ne!(first.key, other.key);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn what_a_distribution_hardens_by_default_is_a_plain_call_here() {
    let folder = tempfile::tempdir().unwrap();
    // What Ubuntu's compiler does unasked.
    let compiler = Compiler::named("cc -D_FORTIFY_SOURCE=2 -fstack-protector-strong", folder.path()).unwrap();
    let text = "void k(void *const *p) { float b[64]; const int64_t *n = p[1]; float *y = p[0]; \
        memcpy(b, y + 1, n[0]); y[0] = b[n[1]]; }";
    let source = format!("#include <stdint.h>\n#include <string.h>\n#line 1 \"k.c\"\n{text}\n{ENTRY}");
    compiler.compile_candidate("k", text, &source, &[]).unwrap();
    // Asked for in the text itself it is refused, as it always was.
    let asked = format!("#define _FORTIFY_SOURCE 2\n{source}");
    let refused = compiler.compile_candidate("k", text, &asked, &[]).unwrap_err();
    assert!(refused.to_string().contains("__memcpy_chk"), "{refused}");
}

#[test]
fn a_kernel_file_compiles_for_every_dtype_and_its_messages_point_into_it() {
    let op = crate::op::samples::rmsnorm();
    let text = "/*---\nop = \"rmsnorm\"\ndtypes = [\"f16\", \"bf16\", \"f32\"]\noptions = [\"fp-contract=off\"]\n---*/\n\
        void rmsnorm(const T *x, const T *weight, T *y, int64_t rows, int64_t cols, float eps) {\n\
        #pragma omp simd\n\
        for (int64_t i = 0; i < rows * cols; i++) y[i] = ws_store(ws_load(x[i]) * ws_load(weight[i % cols]) + eps);\n}\n";
    let folder = tempfile::tempdir().unwrap();
    let compiler = Compiler::new(folder.path()).unwrap();
    let shape = crate::op::Shape::from([("rows", 2), ("cols", 3)]);
    let mut keys = std::collections::BTreeSet::new();
    for dtype in crate::op::Dtype::ALL {
        let kernel = KernelFile::parse(text).unwrap();
        let resolution = kernel.resolve(&shape, dtype, &detect_cpu().facts).unwrap();
        let image = compiler.compile(&Unit { op: &op, kernel: &kernel, resolution: &resolution }).unwrap();
        assert_eq!(image.log, "");
        keys.insert(image.key);
        let kernel = KernelFile::parse(&text.replace("i++", "j++")).unwrap();
        let error = compiler.compile(&Unit { op: &op, kernel: &kernel, resolution: &resolution }).unwrap_err();
        assert!(error.to_string().contains("rmsnorm.c:8:") && error.to_string().contains("j++"), "{error}");
    }
    assert_eq!(keys.len(), 3);
}

#[test]
fn a_mistake_is_told_in_the_compilers_words_without_paths() {
    let error = build("void k(void *const *p) { undeclared = 1; }").unwrap_err();
    let CompileError::Compiler { log } = error else { panic!("{error}") };
    assert!(log.contains("k.c:1") && log.contains("undeclared") && !log.contains("/usr"), "{log}");
    assert!(matches!(build("void k(void *const *p) { printf(\"\"); }"), Err(CompileError::Compiler { .. })));
    assert!(matches!(build("void k(void *const *p) {} /*"), Err(CompileError::Compiler { .. })));
}

#[test]
fn options_outside_the_list_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let compiler = Compiler::new(folder.path()).unwrap();
    let error = compiler.compile_candidate("k", "", "", &["-ffast-math".into()]).unwrap_err();
    assert!(matches!(error, CompileError::Option { .. }), "{error}");
}

#[test]
fn state_load_time_code_and_foreign_calls_are_refused_in_the_image() {
    // Each gets past the reading of the text or could; some are found in what the preprocessor makes of it.
    for (text, word) in [
        ("static int n; void k(void *const *p) { n++; *(int *)p[0] = n; }", "state"),
        ("static int n = 5; void k(void *const *p) { n++; *(int *)p[0] = n; }", "state"),
        ("void k(void *const *p) { static float memo[9]; memo[8] += 1; *(float *)p[0] = memo[8]; }", "state"),
        (
            "#define S(x) x##ction\nint n __attribute__((S(se)(\"mine\"))) = 1; void k(void *const *p) { *(int *)p[0] = n++; }",
            "bind symbols",
        ),
        (
            "#define C(x) con##x\n__attribute__((C(structor))) static void c(void) { __asm__ volatile(\"\"); } void k(void *const *p) {}",
            "loaded",
        ),
        ("void *dlopen(const char *, int); void k(void *const *p) { dlopen(\"x\", 1); }", "dlopen"),
        ("int system(const char *); void k(void *const *p) { system(\"x\"); }", "system"),
        ("long clock(void); void k(void *const *p) { *(long *)p[0] = clock(); }", "clock"),
        (
            "#define V(x) visi##x\n__attribute__((V(bility)(\"default\"))) void malloc_(void) {} void k(void *const *p) {}",
            "bind symbols",
        ),
    ] {
        let Err(error) = build(text) else { panic!("accepted: {text}") };
        assert!(
            matches!(error, CompileError::Image { .. } | CompileError::Source(_)) && error.to_string().contains(word),
            "{text}: {error}"
        );
    }
}

#[test]
fn constant_tables_are_allowed() {
    build("static const float t[4] = {1, 2, 3, 4}; void k(void *const *p) { *(float *)p[0] = t[*(int *)p[1] & 3]; }")
        .unwrap();
    build("static float one(void) { return 1; } static float two(void) { return 2; }\n\
        static float (*const t[2])(void) = {one, two}; void k(void *const *p) { *(float *)p[0] = t[*(volatile int *)p[1] & 1](); }").unwrap();
}

#[test]
fn a_file_that_a_text_reaches_for_in_spite_of_all_is_not_read() {
    if !crate::sandbox::protections()[0].available {
        return;
    }
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "SECRET\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let compiler = Compiler::new(folder.path()).unwrap();
    let source = format!("#include \"{}\"\n", secret.path().display());
    let error = compiler.compile_candidate("k", "", &source, &[]).unwrap_err();
    assert!(!error.to_string().contains("SECRET") && error.to_string().contains("ermission"), "{error}");
}

#[test]
fn of_an_absolute_path_only_the_last_name_stays() {
    let log = redact("/usr/bin/ld: a/b.c: x / y // z /* w */ '/home/me/k.c'\n", Path::new("/tmp/s"));
    assert_eq!(log, "ld: a/b.c: x / y // z /* w */ 'k.c'\n");
}
