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
    /// Its tensors, by the other operation's names; none where a tensor is absent. Beside those of the operation there may be some that a constant of the
    /// kernel stands for in its launches, such as attention's bias; in C they are the function's last arguments, in the order of their names.
    pub tensors: BTreeMap<String, Option<String>>,
    /// Its symbols.
    pub symbols: BTreeMap<String, i64>,
    /// Its scalars.
    pub scalars: BTreeMap<String, f64>,
    /// Constants under the kernel's `[let]` that are other than its own: where rows of a tensor are parts of longer ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lets: BTreeMap<String, i64>,
    /// Where it computes several at once that share tensors: those that each further one has for itself, by the other operation's names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<BTreeMap<String, Option<String>>>,
}

impl Call {
    /// Whether it says something of everything that the operation has.
    fn covers(&self, theirs: &Operation, own: &Operation) -> Result<(), KernelError> {
        if let Some(symbol) = theirs.symbols.iter().find(|symbol| !self.symbols.contains_key(*symbol)) {
            return Err(refused(own, &format!("`{symbol}` has no value")));
        }
        if let Some(scalar) = theirs.scalars.iter().find(|scalar| !self.scalars.contains_key(&scalar.name)) {
            return Err(refused(own, &format!("`{}` has no value", scalar.name)));
        }
        match theirs.tensors.iter().find(|tensor| !self.tensors.contains_key(&tensor.name)) {
            Some(tensor) => Err(refused(own, &format!("nothing is said of `{}`", tensor.name))),
            None => Ok(()),
        }
    }
}

/// The kernel of `theirs` as one of `own`, which calls it so, for one type: the same text with the same tunables. In C a function beside it
/// hands on tensors and sizes; in CUDA C++ the launch plan does. Its variants are decided, since there is one size. A kernel in CUDA C++ may be of
/// what is no operation by itself: then the call says all there is.
///
/// # Errors
/// The kernel is in Triton, or lacks a constant that the call sets, or the call lacks something.
pub fn adopted(
    text: &str,
    (theirs, own): (Option<&Operation>, &Operation),
    call: &Call,
    dtype: Dtype,
    facts: &Facts,
) -> Result<String, KernelError> {
    let kernel = KernelFile::parse(text)?;
    if let Some(name) = call.lets.keys().find(|name| !kernel.front.lets.contains_key(*name)) {
        return Err(refused(own, &format!("its kernel has no `{name}` under [let]")));
    }
    if let Some(theirs) = theirs {
        call.covers(theirs, own)?;
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
            Language::Cuda => {
                call.beside.iter().enumerate().for_each(|(at, more)| beside(document, at + 1, more));
                in_plan(document, call);
                Ok(())
            }
            _ if !call.beside.is_empty() => Err(refused(own, "only kernels in CUDA C++ compute several at once")),
            // How large buffers are follows from sizes.
            Language::C if !kernel.front.scratch.is_empty() => {
                document.insert("given", Item::Table(sizes(call)));
                Ok(())
            }
            Language::C => Ok(()),
            Language::Triton => Err(refused(own, "only kernels in C and CUDA C++ are")),
        }
    })?;
    let text = match kernel.language {
        Language::C => {
            let theirs = theirs.ok_or_else(|| refused(own, "in C only kernels of operations are"))?;
            in_function(&text, &kernel.front.scratch, (theirs, own), call)?
        }
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

/// Each symbol of the called operation with its size.
fn sizes(call: &Call) -> Table {
    call.symbols.iter().map(|(symbol, size)| (symbol.as_str(), *size)).collect()
}

/// Launches and tensor maps with the names that the other operation has for tensors; sizes, scalars and absent tensors are given.
fn in_plan(document: &mut DocumentMut, call: &Call) {
    let mut given = sizes(call);
    call.scalars.iter().for_each(|(scalar, number)| drop(given.insert(scalar, value(*number))));
    let mut names = BTreeMap::new();
    for (tensor, name) in &call.tensors {
        match name {
            Some(name) => drop(names.insert(tensor.as_str(), name.as_str())),
            None => drop(given.insert(tensor, value(0))),
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
}

/// Behind every argument that a further computation has for itself that one's: of a tensor map `b_map` the same over the other tensor, named
/// `b_map_1`, with the constants that the kernel has under such a name (`SPAN_1` for `SPAN`). Names of tensors are still those of `theirs`, but
/// for these.
fn beside(document: &mut DocumentMut, number: usize, more: &BTreeMap<String, Option<String>>) {
    let further_of = |lets: &Table| -> Vec<(String, String)> {
        let numbered = lets.iter().map(|(name, _)| (name.to_owned(), format!("{name}_{number}")));
        numbered.filter(|(_, further)| lets.contains_key(further)).collect()
    };
    let constants = document.get("let").and_then(Item::as_table).map(further_of).unwrap_or_default();
    let mut names: BTreeMap<String, String> =
        more.iter().map(|(own, name)| (own.clone(), name.clone().unwrap_or_else(|| own.clone()))).collect();
    if let Some(maps) = document.get_mut("tensormap").and_then(|item| item.as_array_of_tables_mut()) {
        let text = |map: &Table, key: &str| map.get(key).and_then(Item::as_str).map(str::to_owned);
        let is_own = |map: &Table| text(map, "tensor").is_some_and(|tensor| more.contains_key(&tensor));
        let several: Vec<String> = maps.iter().filter(|map| is_own(map)).filter_map(|map| text(map, "name")).collect();
        // Each row of such a name: for some shapes it may be of a tensor that is everybody's.
        let rows: Vec<Table> =
            maps.iter().filter(|map| text(map, "name").is_some_and(|name| several.contains(&name))).cloned().collect();
        for mut row in rows {
            let Some(name) = text(&row, "name") else { continue };
            let other = format!("{name}_{number}");
            row.insert("name", value(other.as_str()));
            if let Some(tensor) = text(&row, "tensor").and_then(|tensor| names.get(&tensor).cloned()) {
                row.insert("tensor", value(tensor));
            }
            own_constants(&mut row, &constants);
            names.insert(name, other);
            maps.push(row);
        }
    }
    let launches = document.get_mut("launch").and_then(|item| item.as_array_of_tables_mut());
    for launch in launches.into_iter().flat_map(|tables| tables.iter_mut()) {
        let Some(args) = launch.get_mut("args").and_then(Item::as_array_mut) else { continue };
        let mut at = 0;
        while let Some(arg) = args.get(at).and_then(|arg| arg.as_str()) {
            at += 1;
            if let Some(other) = names.get(arg) {
                // Behind what earlier ones brought.
                at += number - 1;
                args.insert(at, other.as_str());
                at += 1;
            }
        }
    }
}

/// Sizes and strides of a tensor map with other constants in place of some.
fn own_constants(map: &mut Table, constants: &[(String, String)]) {
    for key in ["dims", "strides"] {
        let Some(list) = map.get_mut(key).and_then(Item::as_array_mut) else { continue };
        for one in list.iter_mut() {
            let Some(text) = one.as_str() else { continue };
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let words = text.split_inclusive(|c| !is_word(c)).map(|piece| {
                let word = piece.trim_end_matches(|c| !is_word(c));
                let named =
                    constants.iter().find(|(name, _)| name == word).map_or(word, |(_, further)| further.as_str());
                format!("{named}{}", &piece[word.len()..])
            });
            *one = words.collect::<String>().into();
        }
    }
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
    let further = call.tensors.iter().filter(|(own, _)| theirs.tensors.iter().all(|tensor| tensor.name != **own));
    arguments.extend(further.filter_map(|(_, name)| name.clone()));
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
