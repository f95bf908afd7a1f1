//! Headers of the program's own that a CUDA file may include: `kernels/cuda/include/`, as copies inside the binary.
//!
//! They are never read from a workspace: what a name stands for is part of the program that judges, so that no kernel and no agent
//! changes it.

use crate::workspace::{HEADERS, embedded, embedded_names};

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// As it is included: `ws/hopper.cuh`.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// All of them, by name.
pub fn headers() -> impl Iterator<Item = Header> {
    embedded_names(HEADERS).filter_map(|path| Some(Header { name: path.strip_prefix(HEADERS)?, text: embedded(path)? }))
}

/// Those that a text names as an `#include` does, and those that these include themselves; by name.
#[must_use]
pub fn headers_named(text: &str) -> Vec<Header> {
    let mut named: Vec<Header> = Vec::new();
    let mut texts = vec![text];
    while let Some(text) = texts.pop() {
        for header in headers().filter(|header| includes(text, header.name)) {
            if !named.contains(&header) {
                named.push(header);
                texts.push(header.text);
            }
        }
    }
    named.sort_by_key(|header| header.name);
    named
}

/// Whether a name stands in quotes or in angle brackets. That in a comment counts too: a header that nobody uses changes nothing.
fn includes(text: &str, name: &str) -> bool {
    text.contains(&format!("\"{name}\"")) || text.contains(&format!("<{name}>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_named_by_an_include_in_either_form_and_brings_those_that_it_includes() {
        let names = |text: &str| headers_named(text).iter().map(|header| header.name).collect::<Vec<_>>();
        assert_eq!(names("#include \"ws/ampere.cuh\"\n"), ["ws/ampere.cuh"]);
        assert_eq!(names("#  include <ws/ampere.cuh>\n"), ["ws/ampere.cuh"]);
        assert_eq!(names("#include \"ws/hopper.cuh\"\n"), ["ws/ampere.cuh", "ws/hopper.cuh"]);
        assert!(names("#include <cuda_fp16.h>\n#include \"ws/none.cuh\" // ws/hopper.cuh\n").is_empty());
    }

    #[test]
    fn a_header_is_read_once_leaves_no_macro_behind_and_keeps_its_names_together() {
        for Header { name, text } in headers() {
            assert!(name.starts_with("ws/") && name.ends_with(".cuh"), "{name}");
            assert!(text.lines().any(|line| line == "#pragma once"), "{name}");
            assert!(text.lines().any(|line| line == "namespace ws {"), "{name}");
            let macros = |directive| text.lines().filter_map(move |line: &str| line.strip_prefix(directive));
            let word =
                |rest: &str| rest.trim().split(|c: char| c != '_' && !c.is_alphanumeric()).next().map(str::to_owned);
            let left: Vec<String> = macros("#undef").filter_map(word).collect();
            for defined in macros("#define").filter_map(word) {
                assert!(left.contains(&defined), "{name} leaves `{defined}` behind");
            }
        }
    }
}
