//! A kernel file that is still to be written: front matter and signature are right, and the body is empty.

use super::{KernelFile, Language};
use crate::op::{Dtype, ElementType, Operation, Role, TensorSpec};

/// What stands where the body belongs.
const TO_BE_WRITTEN: &str = "/* To be written. */";

/// A kernel file for an operation that computes nothing yet, for kernels of one type; in CUDA C++ with a thread for each element of the first
/// output, else in C.
#[must_use]
pub fn skeleton(op: &Operation, language: Language, dtype: Dtype) -> String {
    match language {
        Language::C => in_c(op, dtype),
        Language::Cuda | Language::Triton => in_cuda(op, dtype),
    }
}

/// Whether nobody has written the kernel of a file yet: beside comments it has one body, which is empty.
#[must_use]
pub fn is_unwritten(text: &str) -> bool {
    let Ok(kernel) = KernelFile::parse(text) else { return false };
    if kernel.language == Language::Triton {
        return false;
    }
    let code = without_comments(text);
    let Some((before, body)) = code.split_once('{') else { return false };
    before.trim_end().ends_with(')')
        && body.split_once('}').is_some_and(|(inside, after)| inside.trim().is_empty() && after.trim().is_empty())
}

/// A text in C without its comments, the front matter among them.
fn without_comments(text: &str) -> String {
    let (mut code, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        code.push_str(&rest[..at]);
        let end = if rest[at..].starts_with("/*") { "*/" } else { "\n" };
        rest = rest[at + 2..].split_once(end).map_or("", |(_, after)| after);
    }
    code + rest
}

/// A line for each tensor, with its sizes.
fn tensors(op: &Operation) -> String {
    let line = |tensor: &TensorSpec| {
        let role = if tensor.role == Role::Input { "in " } else { "out" };
        let sizes: Vec<&str> = tensor.shape.iter().map(|size| size.text()).collect();
        format!("     {role} {:<16} {}[{}]\n", tensor.name, tensor.dtype.c_name(), sizes.join("]["))
    };
    op.tensors.iter().map(line).collect()
}

/// A type's name where there are no headers.
const fn cuda_name(element: ElementType) -> &'static str {
    match element {
        ElementType::I64 => "long long",
        ElementType::I32 => "int",
        ElementType::U8 => "unsigned char",
        ElementType::I8 => "signed char",
        ElementType::Case | ElementType::F32 => element.c_name(),
    }
}

fn in_cuda(op: &Operation, dtype: Dtype) -> String {
    let parameters = op.tensors.iter().map(|tensor| {
        let constant = if tensor.role == Role::Input { "const " } else { "" };
        format!("{constant}{} *{}", cuda_name(tensor.dtype), tensor.name)
    });
    let parameters: Vec<String> =
        parameters.chain(op.scalars.iter().map(|scalar| format!("float {}", scalar.name))).collect();
    let names = op.tensors.iter().map(|it| &it.name).chain(op.scalars.iter().map(|it| &it.name));
    let names: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
    let output = op.tensors.iter().find(|tensor| tensor.role == Role::Output);
    let sizes: Vec<&str> = output.iter().flat_map(|tensor| &tensor.shape).map(|size| size.text()).collect();
    let elements = if sizes.is_empty() { "1".to_owned() } else { sizes.join(" * ") };
    format!(
        "/*---\nop = \"{0}\"\ndtypes = [\"{dtype}\"]\narch = [\"sm_80+\"]\n[tune]\nTHREADS = {{ value = 256, choices = [128, 256, 512] }}\n\
         [let]\nELEMENTS = \"{elements}\"\n[[launch]]\nkernel = \"{0}\"\ngrid   = [\"ceil_div(ELEMENTS, THREADS)\"]\n\
         block  = [\"THREADS\"]\nargs   = [{1}]\n---*/\n\n{2}extern \"C\" __global__ void {0}({3}) {{\n    {TO_BE_WRITTEN}\n}}\n",
        op.name,
        names.join(", "),
        explained(op),
        parameters.join(", ")
    )
}

fn in_c(op: &Operation, dtype: Dtype) -> String {
    let function = op.c_function();
    let function = function.trim_end_matches(';');
    format!(
        "/*---\nop = \"{}\"\ndtypes = [\"{dtype}\"]\narch = [\"native\"]\n---*/\n\n{}{function} {{\n    {TO_BE_WRITTEN}\n}}\n",
        op.name,
        explained(op)
    )
}

fn explained(op: &Operation) -> String {
    format!(
        "/* What to compute: reference/{}.py. Tensors are row-major; ws_load(x[i]) reads an element as a float, ws_store(v) makes\n   \
         one of it. Everything of every output is to be written.\n\n{}*/\n",
        op.name,
        tensors(op)
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::op::OpSource;
    use crate::workspace::{embedded, embedded_names};

    fn scaled() -> Operation {
        let toml = "name = \"scaled\"\nsummary = \"s\"\noracle = \"torch\"\nsymbols = []\nflops = \"1\"\nshrink = []\nprimary = 0\nsmoke = {}\n\
                    sweep = [{}]\nedges = []\nrandom = {}\n[[scalars]]\nname = \"s\"\nvalue = \"2\"\nothers = [\"1\"]\n[[tensors]]\nname = \"x\"\n\
                    role = \"input\"\nshape = [\"16\", \"64\"]\ndtype = \"T\"\ndraw = { dist = \"normal\", scale = \"1\", shift = \"0\" }\n[[tensors]]\n\
                    name = \"at\"\nrole = \"input\"\nshape = [\"16\"]\ndtype = \"i64\"\ndraw = { dist = \"index\", scale = \"9\", shift = \"0\" }\n\
                    [[tensors]]\nname = \"out\"\nrole = \"output\"\nshape = [\"16\"]\ndtype = \"T\"\n";
        let source = OpSource {
            name: "scaled".into(),
            toml: toml.into(),
            header: String::new(),
            python: "def reference(x, at, *, s):\n    return x.sum(1) * s + at\n".into(),
        };
        source.operation().unwrap()
    }

    #[test]
    fn the_files_to_begin_with_are_kernels_of_their_operation_that_launch_something() {
        let op = scaled();
        let cuda = KernelFile::parse(&skeleton(&op, Language::Cuda, Dtype::Bf16)).unwrap();
        let c = KernelFile::parse(&skeleton(&op, Language::C, Dtype::F32)).unwrap();
        assert!(cuda.front.is_cuda() && !c.front.is_cuda());
        assert_eq!((cuda.front.dtypes.as_slice(), c.front.dtypes.as_slice()), (&[Dtype::Bf16][..], &[Dtype::F32][..]));
        cuda.check_against(&op).unwrap();
        assert!(cuda.text.contains("void scaled(const T *x, const long long *at, T *out, float s) {"), "{}", cuda.text);
        assert!(cuda.text.contains("ELEMENTS = \"16\"") && cuda.text.contains("at               int64_t[16]"));
    }

    #[test]
    fn a_file_is_unwritten_until_there_is_something_in_its_body() {
        let op = scaled();
        for language in [Language::C, Language::Cuda] {
            let text = skeleton(&op, language, Dtype::F32);
            assert!(is_unwritten(&text) && is_unwritten(&text.replace(TO_BE_WRITTEN, "// not yet {")));
            assert!(!is_unwritten(&text.replace(TO_BE_WRITTEN, "out[0] = x[0];")));
            // Whoever writes may leave the words where they were.
            assert!(!is_unwritten(&text.replace(TO_BE_WRITTEN, &format!("{TO_BE_WRITTEN} out[0] = 1;"))));
            assert!(!is_unwritten(&format!("{text}\nvoid other(void) {{ }}\n")), "another function is something");
        }
        for (name, text) in embedded_names("kernels/").filter_map(|name| Some((name, embedded(name)?))) {
            assert!(!is_unwritten(text), "{name}");
        }
    }
}
