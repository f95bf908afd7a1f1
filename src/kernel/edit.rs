//! Changing a kernel file's text without disturbing the rest of it.

use std::collections::BTreeMap;

use toml_edit::{DocumentMut, InlineTable, Item, Table, Value};

use super::file::front_matter_range;
use super::{KernelError, KernelFile, Language};
use crate::op::Dtype;

/// The text with tunables set to `values`; comments and order stay.
///
/// # Errors
/// A text without front matter, an unknown tunable, or a value that is not among its choices.
pub fn set_tunables(text: &str, values: &BTreeMap<String, i64>) -> Result<String, KernelError> {
    rewrite(text, |document| {
        for (name, value) in values {
            let slot = document
                .get_mut("tune")
                .and_then(|tune| tune.get_mut(name))
                .and_then(|tunable| tunable.get_mut("value"))
                .ok_or_else(|| KernelError::Inconsistent(format!("no tunable `{name}`")))?;
            let decor = slot.as_value().map(|old| old.decor().clone());
            let mut new = Value::from(*value);
            if let Some(decor) = decor {
                *new.decor_mut() = decor;
            }
            *slot = Item::Value(new);
        }
        Ok(())
    })
}

/// The text with `dtypes` set to these.
///
/// # Errors
/// A text without front matter.
pub fn set_dtypes(text: &str, dtypes: &[Dtype]) -> Result<String, KernelError> {
    rewrite(text, |document| {
        let names: toml_edit::Array = dtypes.iter().map(ToString::to_string).collect();
        document.insert("dtypes", toml_edit::value(names));
        Ok(())
    })
}

/// The text with a row `[[variant]] when = …, tune = {…}` put before the others, so that it takes precedence. A row
/// with the same condition, which could never hold again, is dropped.
///
/// # Errors
/// A text without front matter, or a variant that does not fit it.
pub fn add_variant(text: &str, when: &str, tune: &BTreeMap<String, i64>) -> Result<String, KernelError> {
    rewrite(text, |document| {
        let mut row = Table::new();
        row.insert("when", toml_edit::value(when));
        let values: InlineTable = tune.iter().map(|(name, value)| (name.clone(), Value::from(*value))).collect();
        row.insert("tune", toml_edit::value(values));
        let old = document.remove("variant").and_then(|item| item.into_array_of_tables().ok());
        let mut rows = toml_edit::ArrayOfTables::new();
        rows.push(row);
        for mut table in old.into_iter().flatten() {
            if table.get("when").and_then(Item::as_str) == Some(when) {
                continue;
            }
            // A table remembers where it stood; forgetting it keeps the new row first.
            table.set_position(None);
            rows.push(table);
        }
        document.insert("variant", Item::ArrayOfTables(rows));
        Ok(())
    })
}

/// The same kernel with other symbol addresses: the self-test's "different" candidate.
#[must_use]
pub fn pad(text: &str, bytes: usize) -> String {
    let language = KernelFile::parse(text).map_or(Language::C, |kernel| kernel.language);
    format!("{text}\n{}", language.padding(bytes))
}

/// The text with its front matter changed.
pub(super) fn rewrite(
    text: &str,
    change: impl FnOnce(&mut DocumentMut) -> Result<(), KernelError>,
) -> Result<String, KernelError> {
    let range = front_matter_range(text).ok_or(KernelError::NoFrontMatter)?;
    let mut document: DocumentMut =
        text[range.clone()].parse().map_err(|error: toml_edit::TomlError| KernelError::Toml(error.to_string()))?;
    change(&mut document)?;
    let mut changed = text.to_owned();
    let mut front = document.to_string();
    if !front.ends_with('\n') {
        front.push('\n');
    }
    changed.replace_range(range, &front);
    KernelFile::parse(&changed)?;
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Facts;
    use crate::op::Shape;

    const TEXT: &str = "/*---\nop = \"rmsnorm\"\ndtypes = [\"f32\"]\n\n[tune]\n# rows at once\nBLOCK = { value = 4, choices = [2, 4, 8] } # rows\n---*/\nint x;\n";

    #[test]
    fn setting_a_tunable_changes_its_value_and_nothing_else() {
        let changed = set_tunables(TEXT, &BTreeMap::from([("BLOCK".to_owned(), 8)])).expect("sets");
        assert_eq!(changed, TEXT.replace("value = 4", "value = 8"));
    }

    #[test]
    fn a_value_outside_the_choices_or_an_unknown_name_is_refused() {
        assert!(set_tunables(TEXT, &BTreeMap::from([("BLOCK".to_owned(), 5)])).is_err());
        assert!(set_tunables(TEXT, &BTreeMap::from([("WARPS".to_owned(), 4)])).is_err());
    }

    #[test]
    fn an_added_variant_takes_precedence_over_older_ones() {
        let tune = |value| BTreeMap::from([("BLOCK".to_owned(), value)]);
        let once = add_variant(TEXT, "cols > 10", &tune(2)).expect("adds");
        let twice = add_variant(&once, "cols > 20", &tune(8)).expect("adds");
        let kernel = KernelFile::parse(&twice).expect("parses");
        let block = |cols| {
            let shape = Shape::from([("cols", cols)]);
            kernel.resolve(&shape, Dtype::F32, &Facts::new()).expect("resolves").macros["BLOCK"]
        };
        assert_eq!([block(5), block(15), block(25)], [4, 2, 8]);
        assert!(twice.ends_with("---*/\nint x;\n"));
    }

    #[test]
    fn a_file_with_launches_is_edited_and_padded_as_well() {
        let launch = "[[launch]]\nkernel = \"norm<BLOCK>\"\ngrid = [\"rows\"]\nblock = [\"32\"]\nargs = []\n";
        let text = TEXT.replace("---*/\n", &format!("{launch}---*/\n"));
        let changed = add_variant(&text, "cols > 20", &BTreeMap::from([("BLOCK".to_owned(), 8)])).expect("adds");
        let front = KernelFile::parse(&changed).expect("parses").front;
        assert_eq!((front.launches.len(), front.variants.len()), (1, 1));
        assert!(pad(&changed, 100).ends_with("for (int i = 0; i < 4; i++) *to = i;\n}\n"));
        assert!(pad(TEXT, 100).contains("warpsmith_padding[100]"));
    }

    #[test]
    fn a_new_row_comes_first_and_replaces_one_with_its_condition() {
        let front = "op = \"x\"\ndtypes = [\"f32\"]\n[tune]\nA = { value = 1, choices = [1, 2, 3] }\n";
        let text = format!("/*---\n{front}---*/\nvoid x(void) {{}}\n");
        let row = |value| BTreeMap::from([("A".to_owned(), value)]);
        let text = add_variant(&text, "N <= 4", &row(2)).expect("fits");
        let text = add_variant(&text, "N > 4", &row(3)).expect("fits");
        let text = add_variant(&text, "N <= 4", &row(3)).expect("fits");
        let rows = KernelFile::parse(&text).expect("fits").front.variants;
        let whens: Vec<&str> = rows.iter().map(|row| row.when.text()).collect();
        assert_eq!(whens, ["N <= 4", "N > 4"]);
        assert_eq!(rows[0].tune["A"], 3);
        assert!(text.ends_with("---*/\nvoid x(void) {}\n"));
    }
}
