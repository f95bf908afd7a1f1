//! A kernel of one operation as a kernel of another one that is the same at one set of sizes.

use std::collections::BTreeMap;

use toml_edit::{DocumentMut, Item, Table, value};

use super::edit::rewrite;
use super::file::Scratch;
use super::{Facts, KernelError, KernelFile, Language};
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
    /// Constants under the kernel's `[let]` that are other than its own: where rows of a tensor are parts of longer ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lets: BTreeMap<String, i64>,
}

/// The kernel of `theirs` as one of `own`, which calls it so, for one type: the same text with the same tunables. In C a function beside it
/// hands on tensors and sizes; in CUDA C++ the launch plan does. Its variants are decided, since there is one size.
///
/// # Errors
/// The kernel is in Triton, or lacks a constant that the call sets, or the call lacks something.
pub fn adopted(
    text: &str,
    (theirs, own): (&Operation, &Operation),
    call: &Call,
    dtype: Dtype,
    facts: &Facts,
) -> Result<String, KernelError> {
    let kernel = KernelFile::parse(text)?;
    if let Some(name) = call.lets.keys().find(|name| !kernel.front.lets.contains_key(*name)) {
        return Err(refused(own, &format!("its kernel has no `{name}` under [let]")));
    }
    let mut known = facts.clone();
    known.extend(call.symbols.clone());
    known.insert("dtype_bytes".into(), dtype.bytes() as i64);
    let known = |name: &str| known.get(name).copied();
    let holds = kernel.front.variants.iter().find(|row| row.when.int(&known).is_ok_and(|holds| holds != 0));
    let text = rewrite(text, |document| {
        holds.into_iter().flat_map(|row| &row.tune).for_each(|(name, number)| decide(document, name, *number));
        call.lets.iter().for_each(|(name, number)| document["let"][name] = value(number.to_string()));
        document.insert("op", value(own.name.as_str()));
        document.insert("dtypes", value([dtype.to_string()].into_iter().collect::<toml_edit::Array>()));
        document.remove("variant");
        document.remove("domain");
        match kernel.language {
            Language::Cuda => in_plan(document, theirs, own, call),
            // How large buffers are follows from sizes.
            Language::C if !kernel.front.scratch.is_empty() => {
                document.insert("given", Item::Table(sizes(theirs, own, call)?));
                Ok(())
            }
            Language::C => Ok(()),
            Language::Triton => Err(refused(own, "only kernels in C and CUDA C++ are")),
        }
    })?;
    let text = match kernel.language {
        Language::C => in_function(&text, &kernel.front.scratch, (theirs, own), call)?,
        Language::Cuda | Language::Triton => text,
    };
    KernelFile::parse(&text)?.check_against(own)?;
    Ok(text)
}

/// Gives a tunable the value that a variant has for it, which need not be among its choices.
fn decide(document: &mut DocumentMut, name: &str, number: i64) {
    let Some(tunable) = document.get_mut("tune").and_then(|tune| tune.get_mut(name)) else { return };
    if let Some(choices) = tunable.get_mut("choices").and_then(|choices| choices.as_array_mut())
        && !choices.iter().any(|choice| choice.as_integer() == Some(number))
    {
        choices.push(number);
    }
    if let Some(slot) = tunable.get_mut("value") {
        *slot = value(number);
    }
}

fn refused(own: &Operation, why: &str) -> KernelError {
    KernelError::Inconsistent(format!("it cannot be called for {}: {why}", own.name))
}

/// The operation's symbols, each with its size.
fn sizes(theirs: &Operation, own: &Operation, call: &Call) -> Result<Table, KernelError> {
    let mut given = Table::new();
    for symbol in &theirs.symbols {
        let size = call.symbols.get(symbol).ok_or_else(|| refused(own, &format!("`{symbol}` has no value")))?;
        given.insert(symbol, value(*size));
    }
    Ok(given)
}

/// Launches and tensor maps with the names that `own` has for tensors; sizes, scalars and absent tensors are given.
fn in_plan(document: &mut DocumentMut, theirs: &Operation, own: &Operation, call: &Call) -> Result<(), KernelError> {
    let mut given = sizes(theirs, own, call)?;
    for scalar in &theirs.scalars {
        let number = call.scalars.get(&scalar.name);
        let number = number.ok_or_else(|| refused(own, &format!("`{}` has no value", scalar.name)))?;
        given.insert(&scalar.name, value(*number));
    }
    let mut names = BTreeMap::new();
    for tensor in &theirs.tensors {
        match call.tensors.get(&tensor.name) {
            Some(Some(name)) => {
                names.insert(tensor.name.as_str(), name.as_str());
            }
            Some(None) => {
                given.insert(&tensor.name, value(0));
            }
            None => return Err(refused(own, &format!("nothing is said of `{}`", tensor.name))),
        }
    }
    let renamed = |old: &mut toml_edit::Value| {
        if let Some(name) = old.as_str().and_then(|name| names.get(name)) {
            *old = (*name).into();
        }
    };
    for (key, field) in [("launch", "args"), ("tensormap", "tensor")] {
        let tables = document.get_mut(key).and_then(|item| item.as_array_of_tables_mut());
        for item in tables.into_iter().flat_map(|tables| tables.iter_mut()).filter_map(|table| table.get_mut(field)) {
            match item.as_value_mut() {
                Some(toml_edit::Value::Array(list)) => list.iter_mut().for_each(renamed),
                Some(one) => renamed(one),
                None => {}
            }
        }
    }
    document.insert("given", Item::Table(given));
    Ok(())
}

/// The text with a function of `own` behind it that calls that of `theirs` and hands on the file's buffers.
fn in_function(
    text: &str,
    buffers: &[Scratch],
    (theirs, own): (&Operation, &Operation),
    call: &Call,
) -> Result<String, KernelError> {
    let refused = |why: &str| refused(own, why);
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
    arguments.extend(buffers.iter().map(|buffer| buffer.name.clone()));
    for symbol in &theirs.symbols {
        let size = call.symbols.get(symbol).ok_or_else(|| refused(&format!("`{symbol}` has no value")))?;
        arguments.push(size.to_string());
    }
    for scalar in &theirs.scalars {
        let size = call.scalars.get(&scalar.name).ok_or_else(|| refused(&format!("`{}` has no value", scalar.name)))?;
        arguments.push(format!("(float){size:e}"));
    }
    // A region has neither symbols nor scalars, so that buffers come last.
    let own_buffers: String =
        buffers.iter().map(|buffer| format!(", {} *{}", buffer.dtype.c_name(), buffer.name)).collect();
    let function = own.c_function().replace(");", &format!("{own_buffers})"));
    Ok(format!(
        "{}\n/* {} is {} at these sizes. */\n{} {{\n    {}({});\n}}\n",
        text.replace(&head, &format!("static {head}")),
        own.name,
        theirs.name,
        function,
        theirs.name,
        arguments.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kernel::{Argument, PlannedLaunch, add_variant};
    use crate::op::{OpSource, Shape};
    use crate::workspace::embedded;

    fn operation(name: &str) -> Operation {
        OpSource::read(name, &|path| embedded(path).map(str::to_owned)).unwrap().operation().unwrap()
    }

    fn region() -> Operation {
        region_of(&[("x0", "[\"4\", \"8\"]"), ("w0", "[\"6\", \"8\"]")], "[\"4\", \"6\"]")
    }

    fn region_of(inputs: &[(&str, &str)], out: &str) -> Operation {
        let tensor = |name: &str, role: &str, shape: &str| {
            let draw = if role == "input" { "draw = { dist = \"normal\" }\n" } else { "" };
            format!("[[tensors]]\nname = \"{name}\"\nrole = \"{role}\"\nshape = {shape}\ndtype = \"T\"\n{draw}")
        };
        let toml = format!(
            "name = \"mm_1\"\nsummary = \"s\"\noracle = \"torch\"\nsymbols = []\nflops = \"1\"\nshrink = []\nprimary = 0\nsmoke = {{}}\nsweep = [{{}}]\n\
             edges = []\nrandom = {{}}\n{}{}",
            inputs.iter().map(|(name, shape)| tensor(name, "input", shape)).collect::<String>(),
            tensor("out", "output", out)
        );
        let names: Vec<&str> = inputs.iter().map(|(name, _)| *name).collect();
        Operation::parse(&toml, &format!("def reference({}):\n    return x0\n", names.join(", ")), "mm_1").unwrap()
    }

    fn facts() -> Facts {
        Facts::from([("VECTOR_BYTES".to_owned(), 32)])
    }

    fn call() -> Call {
        let names = [("a", Some("x0")), ("b", Some("w0")), ("bias", None), ("c", Some("out"))];
        let sizes = [("batch", 1), ("M", 4), ("N", 6), ("K", 8), ("trans_b", 1), ("has_bias", 0)];
        Call {
            op: "matmul".into(),
            tensors: names.map(|(own, name)| (own.to_owned(), name.map(str::to_owned))).into(),
            symbols: sizes.map(|(symbol, size)| (symbol.to_owned(), size)).into(),
            scalars: BTreeMap::new(),
            lets: BTreeMap::new(),
        }
    }

    #[test]
    fn a_kernel_that_ships_is_called_with_what_a_region_has() {
        let shipped = embedded("kernels/cpu/matmul.c").unwrap();
        let text = adopted(shipped, (&operation("matmul"), &region()), &call(), Dtype::F32, &Facts::new()).unwrap();
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
        let text = adopted(&text, (&operation("matmul"), &region()), &call(), Dtype::F32, &Facts::new()).unwrap();
        let kernel = KernelFile::parse(&text).unwrap();
        assert!(kernel.front.variants.is_empty());
        assert_eq!(kernel.resolve(&Shape::default(), Dtype::F32, &facts()).unwrap().macros["MR"], 8);
    }

    #[test]
    fn the_plan_of_a_kernel_for_a_gpu_hands_on_names_and_sizes() {
        let facts = Facts::from(
            [("SMS", 132), ("SMEM_MAX", 232_448), ("CC", 90), ("L2", 50 << 20)]
                .map(|(name, value)| (name.to_owned(), value)),
        );
        for (file, dtype) in
            [("kernels/cuda/matmul.cu", Dtype::F32), ("kernels/cuda/nvidia-h200/matmul.cu", Dtype::F16)]
        {
            let text =
                adopted(embedded(file).unwrap(), (&operation("matmul"), &region()), &call(), dtype, &facts).unwrap();
            let kernel = KernelFile::parse(&text).unwrap();
            let resolution = kernel.resolve(&Shape::default(), dtype, &facts).unwrap();
            assert!(kernel.front.tune.len() > 1 && kernel.front.variants.is_empty());
            assert!(!resolution.macros.contains_key("M"), "parameters of kernels are called so");
            let launches = kernel.launches(&region(), &[], &resolution, &facts).unwrap();
            assert_eq!(resolution.macros["WS_TRANS_B"], 1);
            assert!(!launches.is_empty());
            let theirs = operation("matmul");
            let whole = KernelFile::parse(embedded(file).unwrap()).unwrap();
            let shape = theirs.complete(&Shape(call().symbols)).unwrap();
            let of_theirs = whole.resolve(&shape, dtype, &facts).unwrap();
            let planned = whole.launches(&theirs, &theirs.ints(&shape).unwrap(), &of_theirs, &facts).unwrap();
            let geometry = |all: &[PlannedLaunch]| -> Vec<_> {
                all.iter().map(|one| (one.kernel.clone(), one.grid, one.block, one.shared, one.args.len())).collect()
            };
            assert_eq!(geometry(&launches), geometry(&planned));
        }
    }

    #[test]
    fn a_scalar_of_a_launch_is_given_as_a_float() {
        let theirs = operation("rmsnorm");
        let call = Call {
            op: "rmsnorm".into(),
            tensors: [("x", "x0"), ("weight", "w0"), ("y", "out")]
                .map(|(own, name)| (own.to_owned(), Some(name.to_owned())))
                .into(),
            symbols: theirs.symbols.iter().map(|symbol| (symbol.clone(), 8)).collect(),
            scalars: theirs.scalars.iter().map(|scalar| (scalar.name.clone(), 1e-6)).collect(),
            lets: BTreeMap::new(),
        };
        let facts = Facts::from(
            [("SMS", 132), ("SMEM_MAX", 232_448), ("CC", 90), ("L2", 50 << 20)]
                .map(|(name, value)| (name.to_owned(), value)),
        );
        let text =
            adopted(embedded("kernels/cuda/rmsnorm.cu").unwrap(), (&theirs, &region()), &call, Dtype::F32, &facts)
                .unwrap();
        let kernel = KernelFile::parse(&text).unwrap();
        let resolution = kernel.resolve(&Shape::default(), Dtype::F32, &facts).unwrap();
        let launches = kernel.launches(&region(), &[], &resolution, &facts).unwrap();
        assert!(launches[0].args.contains(&Argument::Float(1e-6f32.to_bits())), "{launches:?}");
        let missing = Call { scalars: BTreeMap::new(), ..call };
        assert!(
            adopted(embedded("kernels/cuda/rmsnorm.cu").unwrap(), (&theirs, &region()), &missing, Dtype::F32, &facts)
                .is_err()
        );
    }

    #[test]
    fn queries_keys_and_values_may_lie_side_by_side_in_one_tensor() {
        let theirs = operation("flash_attention");
        let own = region_of(&[("x0", "[\"80\", \"288\"]")], "[\"2\", \"40\", \"6\", \"16\"]");
        let sizes = [("B", 2), ("H", 6), ("H_kv", 6), ("S_q", 40), ("S_kv", 40), ("D", 16), ("causal", 1), ("bshd", 1)];
        let row = [("Q", 0), ("K", 6), ("V", 12)];
        let call = Call {
            op: "flash_attention".into(),
            tensors: [("q", "x0"), ("k", "x0"), ("v", "x0"), ("o", "out")]
                .map(|(own, name)| (own.to_owned(), Some(name.to_owned())))
                .into(),
            symbols: sizes.map(|(symbol, size)| (symbol.to_owned(), size)).into(),
            scalars: BTreeMap::from([("scale".to_owned(), 0.25)]),
            lets: row
                .into_iter()
                .flat_map(|(of, first)| [(format!("{of}_HEADS"), 18), (format!("{of}_FIRST"), first)])
                .collect(),
        };
        let made = |file: &str, dtype, facts: &Facts| {
            adopted(embedded(file).unwrap(), (&theirs, &own), &call, dtype, facts).unwrap()
        };
        let text = made("kernels/cpu/flash_attention.c", Dtype::F32, &facts());
        assert!(text.contains("flash_attention(x0, x0, x0, out, 2, 6, 6, 40, 40, 16, 1, 1, (float)2.5e-1);"), "{text}");
        let macros = KernelFile::parse(&text).unwrap().resolve(&Shape::default(), Dtype::F32, &facts()).unwrap().macros;
        assert_eq!(
            ["Q_HEADS", "Q_FIRST", "K_FIRST", "V_HEADS", "V_FIRST"].map(|name| macros[name]),
            [18, 0, 6, 18, 12]
        );

        let facts = Facts::from(
            [("SMS", 132), ("SMEM_MAX", 232_448), ("CC", 90), ("L2", 50 << 20)]
                .map(|(name, value)| (name.to_owned(), value)),
        );
        let kernel =
            KernelFile::parse(&made("kernels/cuda/nvidia-h200/flash_attention.cu", Dtype::F16, &facts)).unwrap();
        let resolution = kernel.resolve(&Shape::default(), Dtype::F16, &facts).unwrap();
        let launches = kernel.launches(&own, &[], &resolution, &facts).unwrap();
        let maps: Vec<_> = launches[0]
            .args
            .iter()
            .filter_map(|argument| match argument {
                Argument::TensorMap(map) => Some((map.dims.clone(), map.strides_bytes.clone())),
                _ => None,
            })
            .collect();
        let (longer, of_output) =
            ((vec![16, 40, 18, 2], vec![576, 32, 23_040]), (vec![16, 40, 6, 2], vec![192, 32, 7680]));
        assert_eq!(maps, [longer.clone(), longer.clone(), longer, of_output]);

        let other = "/*---\nop = \"flash_attention\"\ndtypes = [\"f32\"]\n---*/\nvoid flash_attention(const T *q) {}\n";
        let error = adopted(other, (&theirs, &own), &call, Dtype::F32, &facts).unwrap_err().to_string();
        assert!(error.contains("no `K_FIRST` under [let]"), "{error}");
    }

    #[test]
    fn every_kernel_in_c_can_be_adopted_with_its_buffers_and_half_a_call_is_refused() {
        let shipped = |op: &str| embedded(&format!("kernels/cpu/{op}.c")).unwrap();
        for op in ["softmax", "rmsnorm", "layernorm", "reduce", "flash_attention", "fused_mlp"] {
            let theirs = operation(op);
            let inputs = ["x0", "w0", "x0", "w0"].into_iter();
            let of = theirs.tensors.iter().zip(inputs.chain(["out"])).map(|(tensor, name)| {
                let output = tensor.role == crate::op::Role::Output;
                (tensor.name.clone(), Some(if output { "out" } else { name }.to_owned()))
            });
            let call = Call {
                op: op.into(),
                tensors: of.collect(),
                symbols: theirs.symbols.iter().map(|symbol| (symbol.clone(), 4)).collect(),
                scalars: theirs.scalars.iter().map(|scalar| (scalar.name.clone(), 1e-6)).collect(),
                lets: BTreeMap::new(),
            };
            let text = adopted(shipped(op), (&theirs, &region()), &call, Dtype::F16, &Facts::new()).unwrap();
            assert_eq!(text.contains("(float)1e-6"), !theirs.scalars.is_empty(), "{text}");
            if op == "fused_mlp" {
                let call = "T *out, float *x_wide, float *hidden) {\n    fused_mlp(x0, w0, x0, w0, out, x_wide, hidden, 4, 4, 4);";
                assert!(text.contains(call), "{text}");
                let kernel = KernelFile::parse(&text).unwrap();
                let resolution = kernel.resolve(&Shape::default(), Dtype::F16, &facts()).unwrap();
                assert_eq!(resolution.scratch_elements, [16, 16]);
            }
        }
        let half = Call { symbols: BTreeMap::new(), ..call() };
        assert!(
            adopted(shipped("matmul"), (&operation("matmul"), &region()), &half, Dtype::F32, &Facts::new()).is_err()
        );
    }
}
