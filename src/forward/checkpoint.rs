//! Weights from `*.safetensors` files: found, checked against the graph, and converted to the pass's dtype.

use std::collections::BTreeMap;
use std::path::Path;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::model::{Graph, Header, Kind, ModelError, Stored, Tensor, parse_index, stored_names};
use crate::op::Dtype;
use crate::sandbox::MappedFile;

/// What says which of several files has a tensor.
const INDEX: &str = "model.safetensors.index.json";

/// A list of tensors is no larger than the largest header.
const MAX_INDEX: u64 = 100_000_000;

/// Missing weights that are named.
const NAMED: usize = 3;

/// Elements converted at a time, so that the conversion is a loop of its own.
const BLOCK: usize = 1024;

/// The files of a model directory that hold its weights.
#[derive(Debug)]
pub(super) struct Checkpoint {
    parts: Vec<Part>,
    /// Where there is an index: for each tensor, the place of its file in `parts`.
    index: Option<BTreeMap<String, usize>>,
    kind: Kind,
}

#[derive(Debug)]
struct Part {
    name: String,
    map: MappedFile,
    header: Header,
}

/// A weight in a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'a> {
    bytes: &'a [u8],
    dtype: Dtype,
}

impl Checkpoint {
    /// Maps the directory's files and reads their headers.
    ///
    /// # Errors
    /// [`ModelError::Weights`]: files that are not there or not what they should be, or too many to choose from.
    pub fn open(dir: &Path, kind: &Kind) -> Result<Self, ModelError> {
        let index_file = dir.join(INDEX);
        let by_tensor = match index_file.exists() {
            true => Some(parse_index(INDEX, &text_of(&index_file)?)?),
            false => None,
        };
        let names = match &by_tensor {
            Some(by_tensor) => {
                let mut names: Vec<String> = by_tensor.values().cloned().collect();
                names.sort();
                names.dedup();
                names
            }
            None => vec![only_file(dir)?],
        };
        let parts: Vec<Part> = names.into_iter().map(|name| Part::open(dir, name)).collect::<Result<_, _>>()?;
        let place = |name: &String| parts.iter().position(|part| part.name == *name).unwrap_or(0);
        let index =
            by_tensor.map(|by_tensor| by_tensor.into_iter().map(|(tensor, name)| (tensor, place(&name))).collect());
        Ok(Self { parts, index, kind: kind.clone() })
    }

    /// The weight of the graph's tensor; `None` where the files have none of its names.
    ///
    /// # Errors
    /// [`ModelError::Weights`]: another shape, a type that is no float of 16 or 32 bits, a file that lacks what the index says
    /// it has.
    pub fn find(&self, tensor: &Tensor) -> Result<Option<Found<'_>>, ModelError> {
        for name in stored_names(&self.kind, &tensor.name) {
            let Some((part, stored)) = self.stored(&name)? else { continue };
            let fail = |what: String| {
                Err(ModelError::Weights { file: part.name.clone(), what: format!("tensor `{name}` {what}") })
            };
            if stored.dims != tensor.dims {
                return fail(format!("has the shape {:?}; config.json makes it {:?}", stored.dims, tensor.dims));
            }
            let Some(dtype) = stored.floats() else {
                return fail(format!("is {}; F16, BF16 and F32 can be read", stored.dtype));
            };
            return Ok(Some(Found { bytes: &part.map[stored.bytes.clone()], dtype }));
        }
        Ok(None)
    }

    fn stored(&self, name: &str) -> Result<Option<(&Part, &Stored)>, ModelError> {
        let of = |part: &'_ Part| part.header.tensors.contains_key(name);
        let part = match &self.index {
            None => self.parts.iter().find(|part| of(part)),
            Some(index) => match index.get(name).map(|at| &self.parts[*at]) {
                Some(part) if !of(part) => {
                    let what = format!("it lacks the tensor `{name}`, which {INDEX} says it has");
                    return Err(ModelError::Weights { file: part.name.clone(), what });
                }
                part => part,
            },
        };
        Ok(part.and_then(|part| Some((part, part.header.tensors.get(name)?))))
    }

    /// Checks every weight of the graph, and says in a sentence or two where they come from.
    ///
    /// # Errors
    /// Those of [`Self::find`]; files that have nothing of this model.
    pub fn check(&self, graph: &Graph) -> Result<Vec<String>, ModelError> {
        let weights = || graph.tensors.iter().filter(|tensor| tensor.kind.is_weight());
        let mut missing = Vec::new();
        for tensor in weights() {
            if self.find(tensor)?.is_none() {
                missing.push(stored_names(&self.kind, &tensor.name).into_iter().next().unwrap_or_default());
            }
        }
        let files = match &self.parts[..] {
            [only] => only.name.clone(),
            parts => format!("{} files", parts.len()),
        };
        let all = weights().count();
        if missing.len() == all {
            let example = missing.first().map_or("", String::as_str);
            let what = format!("it has none of the model's {all} weights, such as `{example}`");
            return Err(ModelError::Weights { file: files, what });
        }
        let mut notes = vec![format!("{} of {all} weights are read from {files}", all - missing.len())];
        if !missing.is_empty() {
            let named = missing.iter().take(NAMED).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            let more = if missing.len() > NAMED { ", …" } else { "" };
            notes.push(format!("{} weights are in no file and are drawn: {named}{more}", missing.len()));
        }
        Ok(notes)
    }
}

impl Part {
    fn open(dir: &Path, name: String) -> Result<Self, ModelError> {
        let map = MappedFile::open(&dir.join(&name))
            .map_err(|error| ModelError::Weights { file: name.clone(), what: error.to_string() })?;
        let header = Header::parse(&name, &map)?;
        Ok(Self { name, map, header })
    }
}

/// The one file of a checkpoint without an index: `model.safetensors`, or the only one there is.
fn only_file(dir: &Path) -> Result<String, ModelError> {
    let fail = |what: String| ModelError::Weights { file: dir.display().to_string(), what };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|error| fail(error.to_string()))? {
        let name = entry.map_err(|error| fail(error.to_string()))?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") {
            names.push(name);
        }
    }
    names.sort();
    match &names[..] {
        [only] => Ok(only.clone()),
        [] => Err(fail("its *.safetensors files are gone".to_owned())),
        names => match names.iter().find(|name| *name == "model.safetensors") {
            Some(usual) => Ok(usual.clone()),
            None => Err(fail(format!(
                "{} *.safetensors files and no {INDEX} that says which has what; one file would be model.safetensors",
                names.len()
            ))),
        },
    }
}

fn text_of(path: &Path) -> Result<String, ModelError> {
    let fail = |what: String| ModelError::Weights { file: INDEX.to_owned(), what };
    let facts = std::fs::metadata(path).map_err(|error| fail(error.to_string()))?;
    if !facts.is_file() || facts.len() > MAX_INDEX {
        return Err(fail("it is no file, or too long for an index".to_owned()));
    }
    std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))
}

impl Found<'_> {
    /// Writes the elements as `dtype`, rounded to nearest even by way of single precision, which holds all of them.
    pub fn convert(self, dtype: Dtype, out: &mut [u8]) {
        let (from, to) = (self.dtype.bytes(), dtype.bytes());
        if self.dtype == dtype && cfg!(target_endian = "little") {
            out.copy_from_slice(self.bytes);
            return;
        }
        let mut singles = [0f32; BLOCK];
        for (bytes, out) in self.bytes.chunks(BLOCK * from).zip(out.chunks_mut(BLOCK * to)) {
            let singles = &mut singles[..bytes.len() / from];
            read(bytes, self.dtype, singles);
            write(singles, dtype, out);
        }
    }
}

/// Little-endian elements as singles.
fn read(bytes: &[u8], dtype: Dtype, singles: &mut [f32]) {
    match dtype {
        Dtype::F32 => singles.iter_mut().zip(bytes.chunks_exact(4)).for_each(|(single, b)| {
            *single = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        }),
        Dtype::Bf16 => singles.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(single, b)| {
            *single = bf16::from_le_bytes([b[0], b[1]]).to_f32();
        }),
        Dtype::F16 => {
            let mut halves = [f16::ZERO; BLOCK];
            let halves = &mut halves[..singles.len()];
            halves.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(half, b)| *half = f16::from_le_bytes([b[0], b[1]]));
            halves.convert_to_f32_slice(singles);
        }
    }
}

/// Singles in the machine's byte order.
fn write(singles: &[f32], dtype: Dtype, out: &mut [u8]) {
    match dtype {
        Dtype::F32 => {
            out.chunks_exact_mut(4).zip(singles).for_each(|(b, single)| b.copy_from_slice(&single.to_ne_bytes()))
        }
        Dtype::Bf16 => out.chunks_exact_mut(2).zip(singles).for_each(|(b, single)| {
            b.copy_from_slice(&bf16::from_f32(*single).to_ne_bytes());
        }),
        Dtype::F16 => {
            let mut halves = [f16::ZERO; BLOCK];
            let halves = &mut halves[..singles.len()];
            halves.convert_from_f32_slice(singles);
            out.chunks_exact_mut(2).zip(halves).for_each(|(b, half)| b.copy_from_slice(&half.to_ne_bytes()));
        }
    }
}
