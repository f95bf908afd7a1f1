//! Reading a candidate's CUDA text for what it may not contain.
//!
//! As for C this is the first wall, for a clear sentence early: the compiler's process sees headers only, and what it makes is
//! read again where no spelling hides anything.

use super::lines::{Line, split};
use super::source::{RAW_PREFIXES, SourceError, line_of, refuse, words};

/// Headers a CUDA kernel may include by name; beside them the folders of [`FOLDERS`].
const HEADERS: [&str; 24] = [
    "cuda_fp16.h",
    "cuda_bf16.h",
    "cuda_fp8.h",
    "cuda_fp6.h",
    "cuda_fp4.h",
    "mma.h",
    "cooperative_groups.h",
    "cuda_pipeline.h",
    "cuda_pipeline_primitives.h",
    "cuda_awbarrier.h",
    "cuda_awbarrier_primitives.h",
    "math_constants.h",
    // These are empty: what they bring stands before every kernel, or is built in.
    "stdint.h",
    "cstdint",
    "stddef.h",
    "cstddef",
    "math.h",
    "cmath",
    "float.h",
    "cfloat",
    "limits.h",
    "climits",
    "cuda_runtime.h",
    "device_launch_parameters.h",
];

/// Folders of headers of which any may be included.
const FOLDERS: [&str; 3] = ["cuda/", "cooperative_groups/", "nv/"];

const DIRECTIVES: [&str; 12] =
    ["define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif", "error", "warning", "include", "pragma"];

const PRAGMAS: [&str; 6] =
    ["unroll", "nounroll", "nv_diag_suppress", "nv_diag_default", "nv_diagnostic", "diag_suppress"];

/// Words with no honest use in a kernel, wherever they stand.
const WORDS: [(&str, &str); 14] = [
    ("__has_include", "it asks which files the machine has"),
    ("__has_include_next", "it asks which files the machine has"),
    ("__has_embed", "it asks which files the machine has"),
    ("__FILE__", "it spells paths of the machine"),
    ("__BASE_FILE__", "it spells paths of the machine"),
    ("__TIMESTAMP__", "a kernel's bytes may not depend on the clock"),
    ("__DATE__", "a kernel's bytes may not depend on the clock"),
    ("__TIME__", "a kernel's bytes may not depend on the clock"),
    ("clock64", "a kernel reads no clock"),
    ("__globaltimer", "a kernel reads no clock"),
    ("globaltimer", "a kernel reads no clock"),
    ("__managed__", "memory that outlives a launch is forbidden"),
    ("cudaLaunchDevice", "launches stand in the front matter"),
    ("cudaLaunchKernel", "launches stand in the front matter"),
];

/// In strings, and so in inline assembler.
const SPELLINGS: [(&str, &str); 6] = [
    ("%clock", "a kernel reads no clock"),
    ("%globaltimer", "a kernel reads no clock"),
    ("%pm0", "a kernel reads no performance counters"),
    ("%gridid", "a kernel may not tell one launch from another"),
    ("%envreg", "a kernel reads no registers of the driver's"),
    (".incbin", "it reads files of the machine"),
];

/// Checks a CUDA kernel's text.
///
/// # Errors
/// The first thing a kernel may not contain: an include outside the allowed ones, a directive or pragma outside the
/// allowed ones, spellings that hide either, clocks.
pub fn check_cuda(text: &str) -> Result<(), SourceError> {
    if let Some(at) = text.find('\0') {
        return refuse(line_of(text, at), "a NUL byte");
    }
    for spelling in ["??=", "??/", "%:"] {
        if let Some(at) = text.find(spelling) {
            return refuse(
                line_of(text, at),
                &format!("the spelling `{spelling}` (write `#`, `\\` or the operator itself)"),
            );
        }
    }
    split(text).iter().try_for_each(check_line)
}

fn check_line(line: &Line) -> Result<(), SourceError> {
    let code = line.code.trim();
    if let Some(directive) = code.strip_prefix('#') {
        check_directive(line, directive.trim())?;
    }
    for word in words(code) {
        if let Some((_, why)) = WORDS.iter().find(|(bad, _)| *bad == word) {
            return refuse(line.number, &format!("`{word}`: {why}"));
        }
        if RAW_PREFIXES.contains(&word) && code.contains(&format!("{word}\"\"")) {
            return refuse(line.number, "a raw string: write an ordinary one");
        }
        if word == "_Pragma" && !line.strings.iter().all(|literal| known_pragma(literal)) {
            return refuse(line.number, &format!("`_Pragma`: allowed are {}", PRAGMAS.join(", ")));
        }
    }
    let assembler = line.strings.concat().to_ascii_lowercase();
    if let Some((spelling, why)) = SPELLINGS.iter().find(|(spelling, _)| assembler.contains(spelling)) {
        return refuse(line.number, &format!("`{spelling}`: {why}"));
    }
    Ok(())
}

fn check_directive(line: &Line, directive: &str) -> Result<(), SourceError> {
    let name: String = directive.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    let rest = directive[name.len()..].trim();
    if directive.is_empty() {
        return Ok(());
    }
    if !DIRECTIVES.contains(&name.as_str()) {
        return refuse(line.number, &format!("`#{directive}` is not among the directives a kernel may use"));
    }
    match name.as_str() {
        "include" => {
            let header = if rest == "\"\"" {
                line.strings.first().map(String::as_str)
            } else {
                rest.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'))
            };
            match header {
                Some(header) if allowed(header) => Ok(()),
                Some(header) => {
                    let base = header.rsplit('/').next().unwrap_or_default();
                    refuse(
                        line.number,
                        &format!(
                            "`#include` of `{base}`: a kernel may include {}, and headers of {}",
                            HEADERS[..12].join(", "),
                            FOLDERS.join(", ")
                        ),
                    )
                }
                None => refuse(line.number, "`#include` must name its header literally"),
            }
        }
        "pragma" if known_pragma(rest) => Ok(()),
        "pragma" => refuse(line.number, &format!("`#pragma {rest}`: allowed are {}", PRAGMAS.join(", "))),
        _ => Ok(()),
    }
}

/// Whether a header may be included: no name leaves the folders it is looked for in.
fn allowed(header: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '.');
    let inside = header.chars().all(plain) && !header.contains("..") && !header.contains("//");
    HEADERS.contains(&header) || inside && FOLDERS.iter().any(|folder| header.starts_with(folder))
}

fn known_pragma(text: &str) -> bool {
    let name: String = text.trim().chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    PRAGMAS.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_honest_kernel_passes() {
        let text = "/*---\nop = \"x\"\n---*/\n#include <cuda_fp16.h>\n#include <cuda/barrier>\n#include \"cooperative_groups/reduce.h\"\n\
            #include <cstdint>\n#define UNROLL _Pragma(\"unroll 4\")\n#pragma unroll\n\
            __constant__ float table[2] = {1, 2};\n\
            __device__ void f(int clock) { asm volatile(\"cp.async.ca.shared.global [%0], [%1], 16;\" :: \"r\"(clock)); }\n\
            // #include \"/etc/passwd\" and clock64()\n\
            extern \"C\" __global__ void __launch_bounds__(128) k(float *x) { x[threadIdx.x % 3] = 1; }\n";
        check_cuda(text).unwrap();
    }

    #[test]
    fn spellings_that_reach_for_files_are_refused() {
        for text in [
            "#include \"/etc/passwd\"",
            "#include </proc/self/environ>",
            "#include \"../cuda_fp16.h\"",
            "#include <cuda/../../../etc/passwd>",
            "#include <cuda//etc/passwd>",
            "#include <stdio.h>",
            "#define H \"/etc/passwd\"\n#include H",
            "%:include \"/etc/passwd\"",
            "??=include \"/etc/passwd\"",
            "#inc\\\nlude \"/etc/passwd\"",
            "/* x */ # /* y */ include /**/ \"/etc/passwd\"",
            "#include_next <mma.h>",
            "#import \"/etc/passwd\"",
            "#embed \"/etc/passwd\"",
            "#if __has_include(\"/etc/passwd\")\n#endif",
            "#if __has_\\\ninclude(\"/etc/passwd\")\n#endif",
            "#line 3 \"/etc/passwd\"",
            "# 3 \"/etc/passwd\"",
            "asm(\".incbin \\\"/etc/passwd\\\"\");",
            "const char *s = R\"(\n#include \"/etc/passwd\"\n)\";",
            "#pragma include_alias(\"a\", \"b\")",
            "_Pragma(\"once\")",
        ] {
            assert!(check_cuda(text).is_err(), "{text}");
        }
    }

    #[test]
    fn clocks_and_memory_that_stays_are_refused() {
        for text in [
            "long long t = clock64();",
            "asm volatile(\"mov.u64 %0, %clock64;\" : \"=l\"(t));",
            "asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(t));",
            "asm volatile(\"mov.u64 %0, %\" \"globaltimer;\" : \"=l\"(t));",
            "asm volatile(\"mov.u64 %0, %gridid;\" : \"=l\"(t));",
            "__managed__ int counter;",
        ] {
            assert!(check_cuda(text).is_err(), "{text}");
        }
        assert_eq!(check_cuda("int a;\n\nint t = clock64();").unwrap_err().line, 3);
    }
}
