//! Reading a candidate's CUDA text for what it may not contain.
//!
//! As for C this is the first wall, for a clear sentence early: the compiler's process sees headers only, and what it makes is
//! read again where no spelling hides anything.

use super::dialect::{Dialect, SourceError, refuse};
use super::lines::Line;
use crate::kernel;

/// Headers of CUDA that a kernel may include by name; beside them the folders of [`FOLDERS`] and the headers of the program's own.
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

const PRAGMAS: [&str; 6] =
    ["unroll", "nounroll", "nv_diag_suppress", "nv_diag_default", "nv_diagnostic", "diag_suppress"];

/// What CUDA adds to the words with no honest use.
const WORDS: [(&str, &str); 6] = [
    ("clock64", "a kernel reads no clock"),
    ("__globaltimer", "a kernel reads no clock"),
    ("globaltimer", "a kernel reads no clock"),
    ("__managed__", "memory that outlives a launch is forbidden"),
    ("cudaLaunchDevice", "launches stand in the front matter"),
    ("cudaLaunchKernel", "launches stand in the front matter"),
];

const CUDA: Dialect = Dialect {
    separates_digits: true,
    words: &WORDS,
    header: allowed,
    headers: || {
        let own: Vec<String> = kernel::headers().map(|header| format!("\"{}\"", header.name)).collect();
        format!("{}, headers of {}, and of our own {}", HEADERS[..12].join(", "), FOLDERS.join(", "), own.join(", "))
    },
    pragmas: &PRAGMAS,
    pragma_operator: true,
};

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
    CUDA.check(text)?.iter().try_for_each(check_strings)
}

fn check_strings(line: &Line) -> Result<(), SourceError> {
    let assembler = line.strings.concat().to_ascii_lowercase();
    if let Some((spelling, why)) = SPELLINGS.iter().find(|(spelling, _)| assembler.contains(spelling)) {
        return refuse(line.number, &format!("`{spelling}`: {why}"));
    }
    Ok(())
}

/// Whether a header may be included: no name leaves the folders it is looked for in.
fn allowed(header: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '.');
    let inside = header.chars().all(plain) && !header.contains("..") && !header.contains("//");
    let own = kernel::headers().any(|own| own.name == header);
    own || HEADERS.contains(&header) || inside && FOLDERS.iter().any(|folder| header.starts_with(folder))
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
            int many = 1'000'000, hex = 0xff'ff; char c = '1', d = u8'1', e = '\\'';\n\
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
            // The quote separates digits, so that what stands between two of them is no character.
            "int a = 1'0; /*'*/\n#include \"/etc/passwd\"\n",
            "int a = 0x1'f /*'\n*/;\n#include \"/etc/passwd\" /*'*/",
            "int a = 1'0; //'\\\n \n#include \"/etc/passwd\"",
        ] {
            assert!(check_cuda(text).is_err(), "{text}");
        }
    }

    #[test]
    fn headers_of_ours_may_be_included_and_of_others_it_is_said_which_there_are() {
        check_cuda("#include \"ws/hopper.cuh\"\n#  include \"ws/ampere.cuh\"\n").unwrap();
        for name in [
            "ws/blackwell.cuh",
            "ws/../ws/hopper.cuh",
            "ws//hopper.cuh",
            "hopper.cuh",
            "kernels/cuda/include/ws/hopper.cuh",
        ] {
            let error = check_cuda(&format!("int a;\n#include \"{name}\"\n")).unwrap_err().to_string();
            assert!(
                error.contains("line 2") && error.contains("\"ws/ampere.cuh\", \"ws/hopper.cuh\""),
                "{name}: {error}"
            );
        }
    }

    #[test]
    fn a_header_of_ours_has_nothing_that_a_kernel_may_not_have_but_the_pragma_that_it_is_read_once() {
        for header in kernel::headers() {
            let text = header.text.replace("#pragma once", "");
            check_cuda(&text).unwrap_or_else(|error| panic!("{}: {error}", header.name));
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
