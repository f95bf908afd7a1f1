//! What a compilation's result depends on, as the name that it is kept under.

use super::Unit;
use crate::defence::readers;
use crate::kernel::Header;

/// BLAKE3, in hex, of the compiler (`identity`), the text with all that it includes of ours, and how it is read.
pub(super) fn key(identity: &str, unit: &Unit, options: &[String], headers: &[Header], checked: bool) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut add = |part: &str| {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    };
    let kind = if checked { "candidate" } else { "trusted" };
    for part in [identity, &unit.name, &unit.source, kind, &readers()] {
        add(part);
    }
    for list in [options, &unit.names[..]] {
        add(&list.len().to_string());
        list.iter().for_each(|part| add(part));
    }
    add(&headers.len().to_string());
    for header in headers {
        add(header.name);
        add(header.text);
    }
    if checked {
        hasher.update(format!("{:?}", unit.numbers).as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_header_is_part_of_what_a_compilation_is_kept_under() {
        let unit = Unit {
            name: "x.cu".into(),
            source: "#include \"ws/a.cuh\"\n".into(),
            arch: "sm_90".into(),
            options: vec![],
            names: vec!["k".into()],
            numbers: Default::default(),
        };
        let with = |headers: &[Header]| key("nvrtc", &unit, &[], headers, true);
        let header = |text| Header { name: "ws/a.cuh", text };
        assert_eq!(with(&[header("int a;")]), with(&[header("int a;")]));
        assert_ne!(with(&[header("int a;")]), with(&[header("int b;")]));
        assert_ne!(with(&[header("int a;")]), with(&[]));
    }
}
