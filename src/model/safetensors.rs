//! The header of a `.safetensors` file, which anyone may have written: eight bytes with the length of a JSON object, the
//! object, and the tensors' bytes one after the other.
//!
//! The crate of this name takes a header with two tensors of one name, adds up hostile offsets without a check, and most of its
//! errors name no tensor; hence this reader.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::ModelError;
use super::json::shorten;
use crate::op::Dtype;

/// Bytes of the header's length.
const LENGTH: usize = 8;

/// The longest header: the format's own limit.
const MAX_HEADER: u64 = 100_000_000;

/// The tensors of one file, none of them outside it or over another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// By name.
    pub tensors: BTreeMap<String, Stored>,
}

/// A tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The file's name for its element type.
    pub dtype: String,
    /// Dimensions, row-major and contiguous.
    pub dims: Vec<u64>,
    /// Its bytes in the file.
    pub bytes: Range<usize>,
}

impl Stored {
    /// Its element type, if a pass can have that.
    #[must_use]
    pub fn floats(&self) -> Option<Dtype> {
        match self.dtype.as_str() {
            "F16" => Some(Dtype::F16),
            "BF16" => Some(Dtype::Bf16),
            "F32" => Some(Dtype::F32),
            _ => None,
        }
    }
}

/// Bits of an element; `None` for a type that is not known, which may still stand in a file.
fn bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" => 8,
        "U16" | "I16" | "F16" | "BF16" => 16,
        "U32" | "I32" | "F32" => 32,
        "U64" | "I64" | "F64" => 64,
        _ => return None,
    })
}

impl Header {
    /// Reads the header of the file whose content is `bytes`; `file` is its name, for errors.
    ///
    /// # Errors
    /// [`ModelError::Weights`], which names the file and, where there is one, the tensor: a length beyond the file or the
    /// format's limit, what is not JSON, a name that stands twice, a size that is no size, bytes that do not fit a shape, lie
    /// outside the file, over each other or apart.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, ModelError> {
        let fail = |what: String| ModelError::Weights { file: file.to_owned(), what };
        let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else {
            return Err(fail(format!("{} bytes are too few for a safetensors file", bytes.len())));
        };
        let length = u64::from_le_bytes(*length);
        if length > MAX_HEADER {
            return Err(fail(format!(
                "its header is said to be {length} bytes long; a header has at most {MAX_HEADER}"
            )));
        }
        let Some((text, data)) = rest.split_at_checked(length as usize) else {
            return Err(fail(format!("its header is said to be {length} bytes long, and the file ends before")));
        };
        // The format's rule; JSON itself would allow white space.
        if text.first() != Some(&b'{') {
            return Err(fail("its header does not begin with `{`".to_owned()));
        }
        let entries: Entries = serde_json::from_slice(text)
            .map_err(|error| fail(format!("its header cannot be read: {}", sentence(&error.to_string()))))?;
        let begin = LENGTH + text.len();
        place(entries.0, begin, data.len() as u64).map(|tensors| Self { tensors }).map_err(fail)
    }
}

/// The entries with their places in the file, where they fill `length` bytes from `begin` on without a gap.
fn place(entries: BTreeMap<String, Entry>, begin: usize, length: u64) -> Result<BTreeMap<String, Stored>, String> {
    let mut order: Vec<(&String, &Entry)> = entries.iter().collect();
    order.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut end_before = 0;
    for (name, entry) in order {
        let (from, to) = entry.data_offsets;
        let fail = |what: String| Err(format!("tensor `{}` {what}", shorten(name)));
        if from > to {
            return fail(format!("ends at byte {to}, before it begins at {from}"));
        }
        if to > length {
            return fail(format!("ends at byte {to} of {length}"));
        }
        if from < end_before {
            return fail(format!("begins at byte {from}, inside the one before it"));
        }
        if from > end_before {
            return fail(format!("begins at byte {from}, and nothing has the bytes from {end_before} on"));
        }
        let elements = entry.shape.iter().try_fold(1u64, |all, size| all.checked_mul(*size));
        let size = |bits: u64| elements.and_then(|elements| elements.checked_mul(bits)).map(|all| all.div_ceil(8));
        match bits(&entry.dtype).map(size) {
            Some(None) => return fail(format!("has the shape {:?}, whose size no computer can count", entry.shape)),
            Some(Some(needs)) if needs != to - from => {
                return fail(format!(
                    "has {} bytes, and {} of shape {:?} needs {needs}",
                    to - from,
                    entry.dtype,
                    entry.shape
                ));
            }
            _ => {}
        }
        end_before = to;
    }
    if end_before != length {
        return Err(format!("{} bytes at its end belong to no tensor", length - end_before));
    }
    let stored = |entry: Entry| {
        let (from, to) = entry.data_offsets;
        Stored { dtype: entry.dtype, dims: entry.shape, bytes: begin + from as usize..begin + to as usize }
    };
    Ok(entries.into_iter().map(|(name, entry)| (name, stored(entry))).collect())
}

/// A tensor as the header describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// All tensors of a header, each name once.
struct Entries(BTreeMap<String, Entry>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Entries;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let named =
                        |what: &dyn fmt::Display| A::Error::custom(format!("tensor `{}`: {what}", shorten(&name)));
                    let entry = map.next_value::<Entry>().map_err(|error| named(&error))?;
                    if entries.contains_key(&name) {
                        return Err(named(&"the name stands there twice"));
                    }
                    entries.insert(name, entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Someone else's words in one line of bearable length.
fn sentence(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.chars().count() <= 200 { clean } else { clean.chars().take(199).chain(['…']).collect() }
}

/// The files of a checkpoint in several parts: from `model.safetensors.index.json`, by tensor.
///
/// # Errors
/// [`ModelError::Weights`]: not JSON, no `weight_map`, or a file that is not beside the index.
pub fn parse_index(file: &str, text: &str) -> Result<BTreeMap<String, String>, ModelError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let fail = |what: String| ModelError::Weights { file: file.to_owned(), what };
    let Index { weight_map } = serde_json::from_str(text)
        .map_err(|error| fail(format!("it cannot be read: {}", sentence(&error.to_string()))))?;
    for (tensor, part) in &weight_map {
        let plain = part.ends_with(".safetensors") && !part.contains(['/', '\\', '\0']) && !part.starts_with('.');
        if !plain {
            let (tensor, part) = (shorten(tensor), shorten(part));
            return Err(fail(format!("tensor `{tensor}` is said to be in `{part}`, which is no file beside it")));
        }
    }
    Ok(weight_map)
}
