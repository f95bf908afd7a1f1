//! A kernel of one operation as a kernel of another one that is the same at one set of sizes.

use std::collections::BTreeMap;

use toml_edit::value;

use super::edit::rewrite;
use super::{KernelError, KernelFile, Language, set_tunables};
use crate::op::{Dtype, Operation};

/// How the kernel of an operation is called where another one is computed by it.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Call {
    /// The operation whose kernel it is.
    pub op: String,
    /// Its tensors, by the other operation's names; none where a tensor is absent.
    pub tensors: BTreeMap<String, Option<String>>,
    /// Its symbols.
    pub symbols: BTreeMap<String, i64>,
    /// Its scalars.
    pub scalars: BTreeMap<String, f64>,
}

/// The kernel of `theirs` in C as one of `own`, which calls it so, for one type: the same text with the same tunables, and a function beside it
/// that hands on tensors and sizes. Its variants are decided, since there is one size.
///
/// # Errors
/// The kernel is in another language, has buffers of its own, or lacks what the call says.
pub fn adopted(
    text: &str,
    (theirs, own): (&Operation, &Operation),
    call: &Call,
    dtype: Dtype,
) -> Result<String, KernelError> {
    let kernel = KernelFile::parse(text)?;
    let refused = |why: &str| KernelError::Inconsistent(format!("it cannot be called for {}: {why}", own.name));
    if kernel.language != Language::C || !kernel.front.launches.is_empty() || !kernel.front.scratch.is_empty() {
        return Err(refused("only plain kernels in C are"));
    }
    let known = |name: &str| call.symbols.get(name).copied();
    let holds = kernel.front.variants.iter().find(|row| row.when.int(&known).is_ok_and(|holds| holds != 0));
    let text = holds.map_or_else(|| Ok(text.to_owned()), |row| set_tunables(text, &row.tune))?;
    let text = rewrite(&text, |document| {
        document.insert("op", value(own.name.as_str()));
        document.insert("dtypes", value([dtype.to_string()].into_iter().collect::<toml_edit::Array>()));
        document.remove("variant");
        document.remove("domain");
        Ok(())
    })?;
    let head = format!("void {}(", theirs.name);
    if text.matches(&head).count() != 1 {
        return Err(refused("it defines its function more than once, or not at all"));
    }
    let mut arguments = Vec::new();
    for tensor in &theirs.tensors {
        match call.tensors.get(&tensor.name) {
            Some(Some(name)) => arguments.push(name.clone()),
            Some(None) => arguments.push("0".to_owned()),
            None => return Err(refused(&format!("nothing is said of `{}`", tensor.name))),
        }
    }
    for symbol in &theirs.symbols {
        let size = call.symbols.get(symbol).ok_or_else(|| refused(&format!("`{symbol}` has no value")))?;
        arguments.push(size.to_string());
    }
    for scalar in &theirs.scalars {
        let size = call.scalars.get(&scalar.name).ok_or_else(|| refused(&format!("`{}` has no value", scalar.name)))?;
        arguments.push(format!("(float){size:e}"));
    }
    let function = own.c_function();
    let text = format!(
        "{}\n/* {} is {} at these sizes. */\n{} {{\n    {}({});\n}}\n",
        text.replace(&head, &format!("static {head}")),
        own.name,
        theirs.name,
        function.trim_end_matches(';'),
        theirs.name,
        arguments.join(", ")
    );
    KernelFile::parse(&text)?.check_against(own)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kernel::{Facts, add_variant};
    use crate::op::{OpSource, Shape};
    use crate::workspace::embedded;

    fn operation(name: &str) -> Operation {
        OpSource::read(name, &|path| embedded(path).map(str::to_owned)).unwrap().operation().unwrap()
    }

    fn region() -> Operation {
        let tensor = |name: &str, role: &str, shape: &str| {
            let draw = if role == "input" { "draw = { dist = \"normal\" }\n" } else { "" };
            format!("[[tensors]]\nname = \"{name}\"\nrole = \"{role}\"\nshape = {shape}\ndtype = \"T\"\n{draw}")
        };
        let toml = format!(
            "name = \"mm_1\"\nsummary = \"s\"\noracle = \"torch\"\nsymbols = []\nflops = \"1\"\nshrink = []\nprimary = 0\nsmoke = {{}}\nsweep = [{{}}]\n\
             edges = []\nrandom = {{}}\n{}{}{}",
            tensor("x0", "input", "[\"4\", \"8\"]"),
            tensor("w0", "input", "[\"6\", \"8\"]"),
            tensor("out", "output", "[\"4\", \"6\"]")
        );
        Operation::parse(&toml, "def reference(x0, w0):\n    return x0 @ w0.T\n", "mm_1").unwrap()
    }

    fn call() -> Call {
        let names = [("a", Some("x0")), ("b", Some("w0")), ("bias", None), ("c", Some("out"))];
        let sizes = [("batch", 1), ("M", 4), ("N", 6), ("K", 8), ("trans_b", 1), ("has_bias", 0)];
        Call {
            op: "matmul".into(),
            tensors: names.map(|(own, name)| (own.to_owned(), name.map(str::to_owned))).into(),
            symbols: sizes.map(|(symbol, size)| (symbol.to_owned(), size)).into(),
            scalars: BTreeMap::new(),
        }
    }

    #[test]
    fn a_kernel_that_ships_is_called_with_what_a_region_has() {
        let shipped = embedded("kernels/cpu/matmul.c").unwrap();
        let text = adopted(shipped, (&operation("matmul"), &region()), &call(), Dtype::F32).unwrap();
        assert!(
            text.contains(
                "void mm_1(const T *x0, const T *w0, T *out) {\n    matmul(x0, w0, 0, out, 1, 4, 6, 8, 1, 0);\n}"
            ),
            "{text}"
        );
        assert!(text.contains("static void matmul(const T *a"), "{text}");
        let (own, theirs) = (KernelFile::parse(&text).unwrap(), KernelFile::parse(shipped).unwrap());
        assert_eq!((own.front.op.as_str(), own.front.dtypes.as_slice()), ("mm_1", &[Dtype::F32][..]));
        assert_eq!(own.front.tune, theirs.front.tune);
        assert!(own.front.tune.len() > 1);
    }

    #[test]
    fn variants_are_decided_by_the_sizes_that_there_are() {
        let shipped = embedded("kernels/cpu/matmul.c").unwrap();
        let row =
            |text: &str, when, value| add_variant(text, when, &BTreeMap::from([("MR".to_owned(), value)])).unwrap();
        let text = row(&row(shipped, "N > 100", 6), "N <= 6", 8);
        let text = adopted(&text, (&operation("matmul"), &region()), &call(), Dtype::F32).unwrap();
        let kernel = KernelFile::parse(&text).unwrap();
        assert!(kernel.front.variants.is_empty());
        let facts = Facts::from([("VECTOR_BYTES".to_owned(), 32)]);
        assert_eq!(kernel.resolve(&Shape::default(), Dtype::F32, &facts).unwrap().macros["MR"], 8);
    }

    #[test]
    fn every_plain_kernel_can_be_adopted_and_one_with_buffers_or_half_a_call_is_refused() {
        let shipped = |op: &str| embedded(&format!("kernels/cpu/{op}.c")).unwrap();
        for op in ["softmax", "rmsnorm", "layernorm", "reduce", "flash_attention"] {
            let theirs = operation(op);
            let inputs = ["x0", "w0", "x0"].into_iter();
            let of = theirs.tensors.iter().zip(inputs.chain(["out"])).map(|(tensor, name)| {
                let output = tensor.role == crate::op::Role::Output;
                (tensor.name.clone(), Some(if output { "out" } else { name }.to_owned()))
            });
            let call = Call {
                op: op.into(),
                tensors: of.collect(),
                symbols: theirs.symbols.iter().map(|symbol| (symbol.clone(), 4)).collect(),
                scalars: theirs.scalars.iter().map(|scalar| (scalar.name.clone(), 1e-6)).collect(),
            };
            let text = adopted(shipped(op), (&theirs, &region()), &call, Dtype::F16).unwrap();
            assert_eq!(text.contains("(float)1e-6"), !theirs.scalars.is_empty(), "{text}");
        }
        let half = Call { symbols: BTreeMap::new(), ..call() };
        assert!(adopted(shipped("matmul"), (&operation("matmul"), &region()), &half, Dtype::F32).is_err());
        assert!(adopted(shipped("fused_mlp"), (&operation("fused_mlp"), &region()), &call(), Dtype::F32).is_err());
    }
}
