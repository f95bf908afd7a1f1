use proptest::prelude::*;
use serde_json::{Value, json};

use crate::model::{Header, parse_index};
use crate::op::Dtype;

/// A file with this header and so many bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

fn tensor(dtype: &str, shape: Value, begin: u64, end: u64) -> Value {
    json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]})
}

/// Three tensors of 24, 8 and 4 bytes.
fn good() -> Value {
    json!({
        "__metadata__": {"format": "pt"},
        "a": tensor("F32", json!([2, 3]), 0, 24),
        "b": tensor("BF16", json!([4]), 24, 32),
        "c": tensor("F16", json!([1, 2]), 32, 36)
    })
}

fn refused(bytes: &[u8]) -> String {
    let said = Header::parse("x.safetensors", bytes).unwrap_err().to_string();
    assert!(said.starts_with("x.safetensors: ") && !said.contains('\n') && said.len() < 400, "{said}");
    said
}

/// The refusal of `good` with the tensor `b` replaced.
fn refused_b(b: Value) -> String {
    let mut header = good();
    header["b"] = b;
    refused(&file(&header.to_string(), 36))
}

#[test]
fn a_file_is_read_with_types_shapes_and_places() {
    let text = good().to_string();
    let header = Header::parse("x.safetensors", &file(&text, 36)).unwrap();
    let begin = 8 + text.len();
    let read = |name: &str| {
        let stored = &header.tensors[name];
        (stored.floats(), stored.dims.clone(), stored.bytes.start - begin..stored.bytes.end - begin)
    };
    assert_eq!(header.tensors.len(), 3);
    assert_eq!(read("a"), (Some(Dtype::F32), vec![2, 3], 0..24));
    assert_eq!(read("b"), (Some(Dtype::Bf16), vec![4], 24..32));
    assert_eq!(read("c"), (Some(Dtype::F16), vec![1, 2], 32..36));
    // Padding after the object, a scalar, an empty tensor, a type of no pass, and no tensors at all.
    assert!(Header::parse("x", &file(&format!("{}   ", good()), 36)).is_ok());
    let odd = json!({"s": tensor("F32", json!([]), 0, 4), "e": tensor("F32", json!([0, 9]), 4, 4), "i": tensor("I64", json!([1]), 4, 12)});
    let header = Header::parse("x", &file(&odd.to_string(), 12)).unwrap();
    assert_eq!((header.tensors["e"].bytes.len(), header.tensors["i"].floats()), (0, None));
    assert!(Header::parse("x", &file("{}", 0)).unwrap().tensors.is_empty());
}

#[test]
fn a_length_that_cannot_be_is_refused() {
    assert!(refused(b"").contains("0 bytes are too few"));
    assert!(refused(&[1; 7]).contains("7 bytes are too few"));
    for length in [u64::MAX, 1 << 40, 100_000_001] {
        assert!(refused(&length.to_le_bytes()).contains("a header has at most 100000000"));
    }
    assert!(refused(&[&9u64.to_le_bytes()[..], b"{}"].concat()).contains("the file ends before"));
}

#[test]
fn a_header_that_is_no_object_of_tensors_is_refused() {
    for text in ["", "[]", "null", " {}", "\u{feff}{}", "3"] {
        assert!(refused(&file(text, 0)).contains("does not begin with `{`"), "{text}");
    }
    for text in ["{", "{\"a\": 3}", "{\"a\": {}}", "{}{}", "{\"a\": null}", "{\"a\": {\"dtype\": \"F32\"}}"] {
        assert!(refused(&file(text, 0)).contains("cannot be read"), "{text}");
    }
    assert!(refused(&file(&format!("{{\"a\": {}", "[".repeat(100_000)), 0)).contains("cannot be read"));
    let not_text = [&4u64.to_le_bytes()[..], b"{\"\xff\x00"].concat();
    assert!(refused(&not_text).contains("cannot be read"));
}

#[test]
fn sizes_that_are_none_are_refused_with_the_tensor() {
    for (shape, begin, end) in [(json!([-4]), 24, 32), (json!([1.5]), 24, 32), (json!("4"), 24, 32), (json!(4), 24, 32)]
    {
        assert!(refused_b(tensor("BF16", shape, begin, end)).contains("tensor `b`: invalid"));
    }
    let offsets = |offsets: Value| refused_b(json!({"dtype": "BF16", "shape": [4], "data_offsets": offsets}));
    for wrong in [json!([-1, 8]), json!([24]), json!([24, 32, 36]), json!([24, 1e30]), json!({}), json!(["24", "32"])] {
        assert!(offsets(wrong.clone()).contains("tensor `b`: "), "{wrong}");
    }
    for shape in [json!([1u64 << 63, 2]), json!([u64::MAX, u64::MAX]), json!([u64::MAX])] {
        assert!(refused_b(tensor("BF16", shape, 24, 32)).contains("tensor `b` has the shape"), "size overflows");
    }
    let named = refused_b(json!({"dtype": "BF16", "shape": [4], "data_offsets": [24, 32], "extra": 1}));
    assert!(named.contains("tensor `b`: unknown field `extra`"), "{named}");
}

#[test]
fn bytes_that_do_not_fit_are_refused_with_the_tensor() {
    assert!(
        refused_b(tensor("BF16", json!([4]), 32, 24)).contains("tensor `b` ends at byte 24, before it begins at 32")
    );
    assert!(refused_b(tensor("BF16", json!([4]), 24, 99)).contains("tensor `b` ends at byte 99 of 36"));
    assert!(refused_b(tensor("BF16", json!([4]), 24, u64::MAX)).contains("of 36"));
    assert!(
        refused_b(tensor("BF16", json!([4]), 20, 28)).contains("tensor `b` begins at byte 20, inside the one before")
    );
    assert!(refused_b(tensor("BF16", json!([4]), 0, 24)).contains("tensor `b` begins at byte 0, inside"));
    assert!(refused_b(tensor("BF16", json!([3]), 26, 32)).contains("nothing has the bytes from 24 on"));
    assert!(
        refused_b(tensor("F32", json!([4]), 24, 32)).contains("tensor `b` has 8 bytes, and F32 of shape [4] needs 16")
    );
    assert!(refused(&file(&good().to_string(), 40)).contains("4 bytes at its end belong to no tensor"));
    assert!(refused(&file(&good().to_string(), 35)).contains("tensor `c` ends at byte 36 of 35"));
}

#[test]
fn a_name_that_stands_twice_is_refused() {
    let entry = tensor("F32", json!([1]), 0, 4);
    assert!(
        refused(&file(&format!("{{\"a\": {entry}, \"a\": {entry}}}"), 4))
            .contains("tensor `a`: the name stands there twice")
    );
}

#[test]
fn a_hostile_name_does_not_reach_the_terminal() {
    let name = format!("\u{1b}[31m{}", "x".repeat(500));
    let said = refused(&file(&json!({name: tensor("F32", json!([1]), 0, 8)}).to_string(), 8));
    assert!(!said.contains('\u{1b}') && said.contains('…'), "{said}");
}

#[test]
fn an_index_names_files_beside_it_and_nothing_else() {
    let index = |file: &str| parse_index("i.json", &json!({"weight_map": {"a": file}}).to_string());
    assert_eq!(index("model-00001-of-00002.safetensors").unwrap()["a"], "model-00001-of-00002.safetensors");
    for wrong in
        ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", ".safetensors", "x.bin", "", "x\0.safetensors"]
    {
        let said = index(wrong).unwrap_err().to_string();
        assert!(said.contains("i.json: tensor `a` is said to be in") && !said.contains('\0'), "{wrong}: {said}");
    }
    for text in ["", "{}", "{\"weight_map\": []}", "{\"weight_map\": {\"a\": 3}}"] {
        assert!(parse_index("i.json", text).unwrap_err().to_string().contains("cannot be read"), "{text}");
    }
}

proptest! {
    /// Whatever bytes are changed, cut or added, what is read lies inside the file, apart, and has the size of its shape.
    #[test]
    fn no_file_makes_it_panic_or_reach_beyond(
        flips in prop::collection::vec((0usize..400, any::<u8>()), 0..4),
        cut in prop::option::of(0usize..400),
        more in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let mut bytes = file(&good().to_string(), 36);
        for (at, with) in flips {
            let length = bytes.len();
            bytes[at % length] = with;
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        bytes.extend(more);
        match Header::parse("x", &bytes) {
            Ok(header) => {
                let mut places: Vec<_> = header.tensors.values().collect();
                places.sort_by_key(|stored| (stored.bytes.start, stored.bytes.end));
                prop_assert!(places.windows(2).all(|pair| pair[0].bytes.end == pair[1].bytes.start));
                for stored in places {
                    prop_assert!(stored.bytes.start <= stored.bytes.end && stored.bytes.end <= bytes.len());
                    if let Some(dtype) = stored.floats() {
                        let elements: u64 = stored.dims.iter().product();
                        prop_assert_eq!(stored.bytes.len() as u64, elements * dtype.bytes() as u64);
                    }
                }
            }
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }

    /// The same for an object of any numbers.
    #[test]
    fn no_numbers_make_it_panic(begin in any::<u64>(), end in any::<u64>(), shape in prop::collection::vec(any::<u64>(), 0..5)) {
        for dtype in ["F32", "F16", "U8", "F4", "unknown"] {
            let header = json!({"a": tensor(dtype, json!(shape), begin, end)});
            let read = Header::parse("x", &file(&header.to_string(), 16));
            prop_assert!(read.is_err() || (begin, end) == (0, 16));
        }
    }
}
