//! Reading a kernel file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Language, Launch, TensorMap};
use crate::device::kernel_folder;
use crate::expr::{Expr, ExprError};
use crate::op::{Dtype, toml_reason};

/// The longest kernel file that is read, in bytes: no honest kernel comes near it.
pub const MAX_BYTES: usize = 1 << 20;

/// Where an operation's kernel file for a backend stands, below the workspace; or for a language, by the name of its folder.
#[must_use]
pub fn kernel_file(op: &str, backend: &str) -> String {
    let extension = Language::of_folder(backend).unwrap_or(Language::C).extension();
    format!("kernels/{backend}/{op}.{extension}")
}

/// The same for kernels that were tuned on one device (of this product name) and are not for others.
#[must_use]
pub fn kernel_file_of_device(op: &str, backend: &str, device: &str) -> String {
    let common = kernel_file(op, backend);
    let folder = format!("kernels/{backend}/");
    format!("{folder}{}/{}", kernel_folder(device), &common[folder.len()..])
}

/// A kernel file that parsed: its front matter is consistent with itself.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelFile {
    /// The whole text, front matter included, as the compiler sees it.
    pub text: String,
    /// What it is written in.
    pub language: Language,
    /// What the front matter says.
    pub front: FrontMatter,
}

/// The front matter's keys; see `docs/kernel-file.md`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrontMatter {
    /// The operation it computes.
    pub op: String,
    /// The dtypes it serves.
    pub dtypes: Vec<Dtype>,
    /// Architectures it is for (`native`, `x86_64`, `aarch64`; GPUs: `sm_80+`, `sm_90a`).
    #[serde(default)]
    pub arch: Vec<String>,
    /// Compiler options from the backend's allowed list.
    #[serde(default)]
    pub options: Vec<String>,
    /// Shapes it serves; outside it a variant or another file must, so a required case outside is a rejection.
    #[serde(default)]
    pub domain: Option<Expr>,
    /// Symbols passed as macros.
    #[serde(default)]
    pub specialize: Vec<String>,
    /// Symbols of which the compiler is told that they are multiples of 16, at those shapes where they are (Triton).
    #[serde(default)]
    pub divisible: Vec<String>,
    /// Its sums are taken in an order that may differ between runs; determinism is then checked to a stated spread.
    #[serde(default)]
    pub order_free: bool,
    /// Compile-time constants that the tuner sweeps.
    #[serde(default)]
    pub tune: BTreeMap<String, Tunable>,
    /// The settings of its tunables that are worth trying: those where this holds. The tuner tries no others.
    #[serde(default)]
    pub tune_where: Option<Expr>,
    /// Constants derived from the others.
    #[serde(default, rename = "let")]
    pub lets: BTreeMap<String, Expr>,
    /// What it is told beside the operation's symbols and scalars, one value each (in C, for its expressions alone): a kernel of an
    /// operation of any size, used for another operation of one size, finds its sizes here.
    #[serde(default)]
    pub given: BTreeMap<String, Given>,
    /// Other constants for some shapes; the first that holds is taken.
    #[serde(default, rename = "variant")]
    pub variants: Vec<Variant>,
    /// Scratch buffers, passed after the tensors (CPU), or by name (GPU).
    #[serde(default)]
    pub scratch: Vec<Scratch>,
    /// Descriptions of tensors for the copy engine (GPU).
    #[serde(default, rename = "tensormap")]
    pub tensor_maps: Vec<TensorMap>,
    /// Kernels to start, in order (GPU).
    #[serde(default, rename = "launch")]
    pub launches: Vec<Launch>,
}

/// A value that a kernel file has for a name: a whole number is a symbol's, or the address of an absent tensor (0); any other a scalar's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Given {
    /// As `long long`.
    Int(i64),
    /// As `float`.
    Float(f64),
}

/// A compile-time constant and the values worth trying.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { value = 4, choices = [2, 4, 8] }")]
pub struct Tunable {
    /// The value in force.
    pub value: i64,
    /// All values worth trying, `value` among them.
    pub choices: Vec<i64>,
}

/// Constants for the shapes and devices where `when` holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Condition on the symbols, `dtype_bytes`, and facts of the device.
    pub when: Expr,
    /// Values that replace the tunables' own.
    pub tune: BTreeMap<String, i64>,
}

/// A scratch buffer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scratch {
    /// Name of the argument.
    pub name: String,
    /// Element type.
    pub dtype: crate::op::ElementType,
    /// Dimensions; tune constants may appear.
    pub shape: Vec<Expr>,
    /// What it holds before a launch.
    #[serde(default)]
    pub init: ScratchInit,
}

/// What scratch holds before a launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScratchInit {
    /// Anything.
    #[default]
    Poison,
    /// Zeros, written within the timed interval.
    Zero,
    /// Zeros, which the kernel must leave behind as zeros.
    ZeroKept,
}

/// Why a text is not a kernel file.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// There is no `/*--- … ---*/`, or docstring with it, at the start.
    #[error(
        "no front matter: a kernel file starts with a comment `/*---`, TOML, `---*/`; a Triton file with a docstring (without \
         backslashes) that has TOML between two lines `---`"
    )]
    NoFrontMatter,
    /// Larger than [`MAX_BYTES`].
    #[error("the file has {bytes} bytes; a kernel file has at most {MAX_BYTES}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The TOML does not parse, or has keys that are not known.
    #[error("front matter: {0}")]
    Toml(String),
    /// It parses, but contradicts itself.
    #[error("front matter: {0}")]
    Inconsistent(String),
    /// An expression fails for a shape.
    #[error("front matter, {place}: {source}")]
    Expression {
        /// The key.
        place: String,
        /// What failed.
        source: ExprError,
    },
    /// A launch or tensor map that a shape makes impossible.
    #[error("front matter, {place}: {what}")]
    Launch {
        /// Which.
        place: String,
        /// What is wrong with it.
        what: String,
    },
    /// A shape outside the domain.
    #[error("shape {shape} is outside the kernel's domain `{domain}`")]
    OutsideDomain {
        /// The shape.
        shape: String,
        /// The domain.
        domain: String,
    },
}

impl KernelFile {
    /// Reads a kernel file's text.
    ///
    /// # Errors
    /// [`KernelError`], with the key and the reason.
    pub fn parse(text: &str) -> Result<Self, KernelError> {
        if text.len() > MAX_BYTES {
            return Err(KernelError::TooLarge { bytes: text.len() });
        }
        let form = Language::of_form(text);
        let (range, _) = form.front_matter(text).ok_or(KernelError::NoFrontMatter)?;
        let front: FrontMatter =
            toml::from_str(&text[range]).map_err(|error| KernelError::Toml(toml_reason(&error)))?;
        let language = match form {
            Language::C if front.is_cuda() => Language::Cuda,
            form => form,
        };
        front.check(language)?;
        Ok(Self { text: text.to_owned(), language, front })
    }

    /// The text behind the front matter.
    #[must_use]
    pub fn code(&self) -> &str {
        let end = self.language.front_matter(&self.text).map_or(0, |(_, end)| end);
        &self.text[end..]
    }

    /// The number of points in the space of its tunables.
    #[must_use]
    pub fn space_size(&self) -> u64 {
        self.front.tune.values().fold(1u64, |n, tunable| n.saturating_mul(tunable.choices.len() as u64))
    }

    /// The tunables' values in force.
    #[must_use]
    pub fn values(&self) -> BTreeMap<String, i64> {
        self.front.tune.iter().map(|(name, tunable)| (name.clone(), tunable.value)).collect()
    }
}

/// Where the TOML stands in the text.
pub(super) fn front_matter_range(text: &str) -> Option<std::ops::Range<usize>> {
    Language::of_form(text).front_matter(text).map(|(range, _)| range)
}

impl FrontMatter {
    fn check(&self, language: Language) -> Result<(), KernelError> {
        let fail = |what: String| Err(KernelError::Inconsistent(what));
        if self.dtypes.is_empty() {
            return fail("`dtypes` is empty".into());
        }
        for (name, tunable) in &self.tune {
            if !is_macro_name(name) {
                return fail(format!("tunable `{name}` is not a name in capitals, such as BLOCK_M"));
            }
            if !tunable.choices.contains(&tunable.value) {
                return fail(format!("tunable {name}: value {} is not among its choices", tunable.value));
            }
            let mut seen = tunable.choices.clone();
            seen.sort_unstable();
            seen.dedup();
            if seen.len() != tunable.choices.len() {
                return fail(format!("tunable {name}: a choice stands twice"));
            }
        }
        if let Some(name) = self.lets.keys().find(|name| !is_macro_name(name) || self.tune.contains_key(*name)) {
            return fail(format!("let `{name}` is not a new name in capitals"));
        }
        for (index, variant) in self.variants.iter().enumerate() {
            if let Some(name) = variant.tune.keys().find(|name| !self.tune.contains_key(*name)) {
                return fail(format!("variant {}: `{name}` is not a tunable", index + 1));
            }
        }
        if let Some(name) = self.scratch.iter().map(|s| &s.name).find(|name| !is_identifier(name)) {
            return fail(format!("scratch `{name}` is not an identifier"));
        }
        self.check_launches(language)
    }
}

pub(super) fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn is_macro_name(name: &str) -> bool {
    is_identifier(name) && !name.chars().any(|c| c.is_ascii_lowercase()) && !name.starts_with("WS_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) const EXAMPLE: &str = "/*---\nop = \"rmsnorm\"\ndtypes = [\"f16\", \"f32\"]\n[tune]\nBLOCK = { value = 4, choices = [2, 4, 8] } # rows\n---*/\nint x;\n";

    #[test]
    fn a_kernel_file_gives_its_front_matter() {
        let kernel = KernelFile::parse(EXAMPLE).expect("parses");
        assert_eq!(kernel.front.op, "rmsnorm");
        assert_eq!(kernel.space_size(), 3);
        assert_eq!(kernel.values()["BLOCK"], 4);
    }

    #[test]
    fn each_backend_has_its_own_folder_and_extension() {
        assert_eq!(kernel_file("rmsnorm", "cpu"), "kernels/cpu/rmsnorm.c");
        assert_eq!(kernel_file("rmsnorm", "cuda"), "kernels/cuda/rmsnorm.cu");
        let own = kernel_file_of_device("rmsnorm", "cuda", "NVIDIA H200");
        assert_eq!(own, "kernels/cuda/nvidia-h200/rmsnorm.cu");
    }

    #[test]
    fn contradictions_are_refused_with_the_key() {
        for (from, to, part) in [
            ("value = 4", "value = 5", "not among its choices"),
            ("[2, 4, 8]", "[4, 4]", "stands twice"),
            ("BLOCK", "block", "not a name in capitals"),
            ("op = ", "opp = ", "opp"),
            ("[\"f16\", \"f32\"]", "[]", "`dtypes` is empty"),
            ("/*---", "/*", "no front matter"),
            ("/*---", "int y; /*---", "no front matter"),
            ("# rows", "# */ int z; /*", "no front matter"),
        ] {
            let error = KernelFile::parse(&EXAMPLE.replace(from, to)).expect_err(to).to_string();
            assert!(error.contains(part), "{to}: {error}");
        }
        assert!(matches!(KernelFile::parse(&" ".repeat(MAX_BYTES + 1)), Err(KernelError::TooLarge { .. })));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_panicking(body in "\\PC{0,200}") {
            let _ = KernelFile::parse(&body);
            let _ = KernelFile::parse(&format!("/*---\n{body}\n---*/"));
        }
    }
}
