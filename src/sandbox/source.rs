//! Reading a candidate's C text for what it may not contain.
//!
//! A determined text gets around textual checks, so this is the first of three walls: the compiler sees no files but
//! its own headers, and what it produces is checked against an allow-list. Here the aim is a clear sentence, early; what the
//! preprocessor makes of the text is read again ([`super::check_preprocessed_c`]).

use super::dialect::{Dialect, SourceError, refuse};
use super::lines::Line;

/// Headers a C kernel may include.
pub const C_HEADERS: [&str; 9] =
    ["stdint.h", "stddef.h", "math.h", "string.h", "stdlib.h", "float.h", "limits.h", "immintrin.h", "arm_neon.h"];

const PRAGMAS: [&str; 7] = [
    "GCC unroll",
    "GCC ivdep",
    "GCC diagnostic",
    "omp simd",
    "omp declare simd",
    "omp ordered simd",
    "STDC FP_CONTRACT",
];

/// What C adds to the words with no honest use.
const WORDS: [(&str, &str); 6] = [
    ("optimize", "optimisation options stand in the front matter, and fast-math is never among them"),
    ("constructor", "code may not run when a kernel is loaded"),
    ("destructor", "code may not run when a kernel is unloaded"),
    ("ifunc", "code may not run when a kernel is loaded"),
    ("_Thread_local", "mutable static state is forbidden"),
    ("__thread", "mutable static state is forbidden"),
];

pub(super) const C: Dialect = Dialect {
    separates_digits: false,
    words: &WORDS,
    header: |header| C_HEADERS.contains(&header),
    headers: || C_HEADERS.join(", "),
    pragmas: &PRAGMAS,
    pragma_operator: false,
};

/// Attributes that place or bind symbols.
pub(super) const ATTRIBUTES: [&str; 9] =
    ["section", "alias", "weak", "weakref", "visibility", "tls_model", "init_priority", "symver", "copy"];

/// Instructions that end a kernel at once, so that the text may as well be refused.
pub(super) const INSTRUCTIONS: [&str; 8] =
    ["syscall", "sysenter", "rdtsc", "rdpmc", "int $0x80", "cntvct", "svc #", "svc 0"];

pub(super) fn attribute_refused<T>(line: usize, word: &str) -> Result<T, SourceError> {
    refuse(line, &format!("attribute `{word}`: a kernel may not place or bind symbols"))
}

pub(super) fn instruction_refused<T>(line: usize, word: &str) -> Result<T, SourceError> {
    refuse(line, &format!("`{word}`: a kernel makes no system calls and reads no clock"))
}

pub(super) fn directive_refused<T>(line: usize) -> Result<T, SourceError> {
    refuse(line, "an assembler directive in a string: only instructions are allowed")
}

pub(super) fn pragma_refused<T>(line: usize, pragma: &str) -> Result<T, SourceError> {
    C.refuse_pragma(line, pragma)
}

/// Checks a C kernel's text.
///
/// # Errors
/// The first thing a kernel may not contain: an include outside [`C_HEADERS`], a directive or pragma outside the
/// allowed ones, spellings that hide either, assembler directives, attributes that run or place code.
pub fn check_c(text: &str) -> Result<(), SourceError> {
    let lines = C.check(text)?;
    lines.iter().try_for_each(check_strings)?;
    check_attributes(&lines)
}

fn check_strings(line: &Line) -> Result<(), SourceError> {
    for literal in &line.strings {
        if assembler_directive(literal) {
            return directive_refused(line.number);
        }
        let lower = literal.to_ascii_lowercase();
        if let Some(word) = INSTRUCTIONS.iter().find(|word| lower.contains(**word)) {
            return instruction_refused(line.number, word);
        }
    }
    Ok(())
}

/// `.name` where an assembler statement starts.
fn assembler_directive(literal: &str) -> bool {
    literal.replace("\\n", "\n").replace("\\t", "\t").split(['\n', ';']).any(|statement| {
        let mut rest = statement.trim_start_matches(|c: char| c.is_whitespace() || c == '%');
        if let Some((label, after)) = rest.split_once(':')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '=' | '%'))
        {
            rest = after.trim_start();
        }
        rest.starts_with('.') && rest[1..].starts_with(|c: char| c.is_ascii_lowercase())
    })
}

/// Attributes may span lines, so they are looked for in the whole code.
fn check_attributes(lines: &[Line]) -> Result<(), SourceError> {
    let mut depth = None;
    for line in lines {
        let mut rest = line.code.as_str();
        while !rest.is_empty() {
            match depth {
                None => {
                    let Some(at) = rest.find("__attribute") else { break };
                    rest = rest[at..].trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
                    depth = Some(0usize);
                }
                Some(open) => {
                    let word: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                    if ATTRIBUTES.contains(&word.trim_matches('_')) {
                        return attribute_refused(line.number, &word);
                    }
                    let step = if word.is_empty() { rest.chars().next().map_or(1, char::len_utf8) } else { word.len() };
                    depth = match rest.as_bytes()[0] {
                        b'(' => Some(open + 1),
                        b')' if open <= 1 => None,
                        b')' => Some(open - 1),
                        _ if open == 0 && !word.is_empty() => None,
                        _ => depth,
                    };
                    rest = &rest[step..];
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_honest_kernel_passes() {
        let text = "/*---\nop = \"x\"\n---*/\n#include <immintrin.h>\n  #  include \"math.h\"\n#define A \\\n 1\n#pragma omp simd reduction(+:s)\n\
            #pragma GCC unroll 4\nstatic inline __attribute__((always_inline)) float f(float section) { return section; }\n\
            void k(void) { __asm__ volatile(\"vaddps %0, %1, %2\\n\\tprefetcht0 (%3)\" ::: \"memory\"); } // #include \"/etc/passwd\"\n\
            char c = '\\''; const char *s = \"#include\";\n";
        check_c(text).unwrap();
    }

    #[test]
    fn spellings_that_reach_for_files_are_refused() {
        for text in [
            "#include \"/etc/passwd\"",
            "#include <stdio.h>",
            "#include </proc/self/environ>",
            "#include \"../math.h\"",
            "#define H \"/etc/passwd\"\n#include H",
            "%:include \"/etc/passwd\"",
            "??=include \"/etc/passwd\"",
            "#inc\\\nlude \"/etc/passwd\"",
            "#inc\\  \nlude \"/etc/passwd\"",
            "/* x */ # /* y */ include /**/ \"/etc/passwd\"",
            "#include_next <math.h>",
            "#import \"/etc/passwd\"",
            "#embed \"/etc/passwd\"",
            "#if __has_include(\"/etc/passwd\")\n#endif",
            "#if __has_\\\ninclude(\"/etc/passwd\")\n#endif",
            "#line 3 \"/etc/passwd\"",
            "# 3 \"/etc/passwd\"",
            "asm(\".incbin \\\"/etc/passwd\\\"\");",
            "asm(\"nop\\n .section .init\");",
            "asm(\"nop; .byte 15\");",
            "asm(\"x: .byte 15\");",
        ] {
            assert!(check_c(text).is_err(), "{text}");
        }
    }

    #[test]
    fn switches_and_places_of_code_are_refused() {
        for text in [
            "#pragma GCC optimize(\"fast-math\")",
            "#pragma GCC push_options",
            "_Pragma(\"GCC optimize(\\\"Ofast\\\")\")",
            "__attribute__((optimize(\"fast-math\"))) void k(void);",
            "__attribute__((__optimize__(\"fast-math\"))) void k(void);",
            "__attribute__((constructor)) void k(void);",
            "__attribute__((\n section(\"x\"))) int k;",
            "__attribute__ ((unused, visibility(\"default\"))) int k;",
            "__attribute__((__weak__)) int k;",
            "static __thread int k;",
            "const char *s = R\"(\n#include \"/etc/passwd\"\n)\";",
            "void k(void) { asm volatile(\"syscall\"); }",
            "void k(void) { asm volatile(\"RDTSC\"); }",
            // No separator of digits in this C: what a reader takes for a character would be a comment's begin in a later one.
            "int a = 1'0; /* ' */",
        ] {
            assert!(check_c(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_refusal_names_the_line() {
        let error = check_c("int a;\n/* x\n y */ int b;\n#include <stdio.h>\n").unwrap_err();
        assert_eq!(error.line, 4);
        assert!(error.what.contains("stdio.h"), "{error}");
    }
}
