//! Languages that kernel files are written in: where front matter stands, what a file is called, what runs it.
//!
//! A language is not a device: CUDA C++ and Triton run on the same one, and are launched and judged alike. What is a language's own
//! beyond this stands where it is used: its reader of hostile text in `sandbox`, its compiler in `backend`.

use std::ops::Range;

/// What a kernel file is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// C, for the processor.
    C,
    /// CUDA C++.
    Cuda,
    /// Triton: Python that describes blocks of a computation.
    Triton,
}

/// Opens the front matter of C and CUDA C++; what closes it is [`CLOSE`].
const OPEN: &str = "/*---";
const CLOSE: &str = "---*/";
/// What opens and closes the docstring that has a Triton file's front matter between two lines of dashes.
const DOCSTRING: &str = "\"\"\"";
const DASHES: &str = "---";

/// What a store takes in a GPU's code: two instructions of 16 bytes.
const STORE_BYTES: usize = 32;

impl Language {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::C, Self::Cuda, Self::Triton];

    /// The language that a text is in as far as its front matter's form says: C for both that have comments like C's.
    pub(super) fn of_form(text: &str) -> Self {
        if beginning(text).starts_with(DOCSTRING) { Self::Triton } else { Self::C }
    }

    /// Its name, as options and messages have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::C => "c",
            Self::Cuda => "cuda",
            Self::Triton => "triton",
        }
    }

    /// The folder below `kernels/` that its files are in.
    #[must_use]
    pub const fn folder(self) -> &'static str {
        match self {
            Self::C => "cpu",
            Self::Cuda => "cuda",
            Self::Triton => "triton",
        }
    }

    /// How its files' names end.
    #[must_use]
    pub const fn extension(self) -> &'static str {
        match self {
            Self::C => "c",
            Self::Cuda => "cu",
            Self::Triton => "py",
        }
    }

    /// The kind of device it runs on.
    #[must_use]
    pub const fn backend(self) -> &'static str {
        match self {
            Self::C => "cpu",
            Self::Cuda | Self::Triton => "cuda",
        }
    }

    /// The languages of a kind of device, the one that is usual first.
    #[must_use]
    pub fn of_backend(backend: &str) -> Vec<Self> {
        Self::ALL.into_iter().filter(|language| language.backend() == backend).collect()
    }

    /// The language of a kernel file, by its name.
    #[must_use]
    pub fn of_file(file: &str) -> Option<Self> {
        let (_, extension) = file.rsplit_once('.')?;
        Self::ALL.into_iter().find(|language| language.extension() == extension)
    }

    /// The language of a folder below `kernels/`.
    #[must_use]
    pub fn of_folder(folder: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|language| language.folder() == folder)
    }

    /// Whether a text has a kernel file's front matter, right or wrong.
    #[must_use]
    pub fn has_front_matter(text: &str) -> bool {
        Self::of_form(text).front_matter(text).is_some()
    }

    /// Where the front matter's TOML stands in a text, and where the code behind it begins.
    pub(super) fn front_matter(self, text: &str) -> Option<(Range<usize>, usize)> {
        match self {
            Self::C | Self::Cuda => in_comment(text),
            Self::Triton => in_docstring(text),
        }
    }

    /// A line that says `words` and does nothing.
    #[must_use]
    pub fn comment(self, words: &str) -> String {
        match self {
            Self::C | Self::Cuda => format!("/* {words} */\n"),
            Self::Triton => format!("# {words}\n"),
        }
    }

    /// What is appended to a text so that the kernel is another one at other addresses, which does the same.
    pub(super) fn padding(self, bytes: usize) -> String {
        match self {
            Self::C => {
                format!("__attribute__((used)) static const char warpsmith_padding[{}] = {{1}};\n", bytes.max(1))
            }
            // A GPU's constants are dropped where nothing reads them; a kernel stays, though nobody starts it.
            Self::Cuda => {
                let stores = bytes / STORE_BYTES + 1;
                format!(
                    "extern \"C\" __global__ void warpsmith_padding(volatile int *to) {{\n\
                     #pragma unroll\n    for (int i = 0; i < {stores}; i++) *to = i;\n}}\n"
                )
            }
            // Kernels are compiled one by one, so that nothing else in the file moves their code: a copy is another text, loaded
            // as a module of its own.
            Self::Triton => format!("WARPSMITH_PADDING = {}\n", bytes.max(1)),
        }
    }
}

fn beginning(text: &str) -> &str {
    text.trim_start_matches('\u{feff}').trim_start()
}

fn in_comment(text: &str) -> Option<(Range<usize>, usize)> {
    let open = text.find(OPEN)?;
    let blank_before = beginning(&text[..open]).is_empty();
    let start = open + OPEN.len();
    let end = start + text[start..].find(CLOSE)?;
    // A comment that ends earlier would let code stand inside what is read as TOML.
    let one_comment = !text[start..end].contains("*/");
    (blank_before && one_comment).then_some((start..end, end + CLOSE.len()))
}

fn in_docstring(text: &str) -> Option<(Range<usize>, usize)> {
    let open = text.len() - beginning(text).len();
    let start = open + DOCSTRING.len();
    let inside = text.get(open..)?.strip_prefix(DOCSTRING)?;
    let inside = &inside[..inside.find(DOCSTRING)?];
    // Python would read escapes where TOML is read, and end the docstring somewhere else.
    if inside.contains('\\') {
        return None;
    }
    let mut at = 0;
    let mut dashes = Vec::new();
    for line in inside.split_inclusive('\n') {
        if line.trim() == DASHES {
            dashes.push(at..at + line.len());
        }
        at += line.len();
    }
    let [first, second, ..] = dashes.as_slice() else { return None };
    Some((start + first.end..start + second.start, start + inside.len() + DOCSTRING.len()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_docstring_has_its_front_matter_between_two_lines_of_dashes() {
        let text = "\"\"\"\n---\nop = \"x\"\n---\nwords\n\"\"\"\nimport triton\n";
        let (toml, code) = Language::of_form(text).front_matter(text).unwrap();
        assert_eq!((&text[toml], &text[code..]), ("op = \"x\"\n", "\nimport triton\n"));
        let at_once = "\"\"\"---\nop = 1\n---\"\"\"";
        let (toml, code) = Language::Triton.front_matter(at_once).unwrap();
        assert_eq!((&at_once[toml], &at_once[code..]), ("op = 1\n", ""));
    }

    #[test]
    fn a_docstring_that_python_would_end_elsewhere_is_none() {
        for text in [
            "\"\"\"\n---\nop = \"\\\"\"\"\n---\n\"\"\"",
            "\"\"\"\n---\nop = 1\n\"\"\"\n---\n\"\"\"",
            "\"\"\"\nop = 1\n\"\"\"",
            "import os\n\"\"\"\n---\nop = 1\n---\n\"\"\"",
            "r\"\"\"\n---\nop = 1\n---\n\"\"\"",
            "\"\"\"",
            "",
        ] {
            assert!(Language::Triton.front_matter(text).is_none(), "{text}");
        }
    }

    #[test]
    fn every_language_has_a_folder_a_device_and_a_name() {
        for language in Language::ALL {
            assert_eq!(Language::of_folder(language.folder()), Some(language));
            assert_eq!(Language::of_file(&crate::kernel::kernel_file("x", language.folder())), Some(language));
            assert!(Language::of_backend(language.backend()).contains(&language));
        }
        assert_eq!(Language::of_backend("cuda"), [Language::Cuda, Language::Triton]);
    }
}
