//! What tokens cost.

use serde::Deserialize;

/// The rows that come with the program.
const BUILTIN: &str = include_str!("prices.toml");

/// What one model costs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Its name at the endpoint; dated versions of it (`NAME-2025-08-07`) are meant too.
    pub name: String,
    /// US dollars for a million tokens read.
    pub input: f64,
    /// US dollars for a million tokens written.
    pub output: f64,
    /// Tokens that it reads and writes together, where that is known.
    #[serde(default)]
    pub context: Option<usize>,
    /// Where this stands, and when it was read.
    #[serde(default)]
    pub source: String,
}

/// Prices, the first that fits first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PriceTable {
    rows: Vec<Price>,
}

#[derive(Deserialize)]
struct Rows {
    model: Vec<Price>,
}

impl PriceTable {
    /// The rows that come with the program.
    #[must_use]
    pub fn builtin() -> Self {
        // The file is part of the program, and a test reads it.
        toml::from_str::<Rows>(BUILTIN).map_or_else(|_| Self::default(), |rows| Self { rows: rows.model })
    }

    /// This table with `rows` in front, which win.
    #[must_use]
    pub fn with(mut self, rows: Vec<Price>) -> Self {
        self.rows.splice(0..0, rows);
        self
    }

    /// US dollars for tokens read and written; `None` for a model without a price.
    #[must_use]
    pub fn cost(&self, model: &str, tokens_in: u64, tokens_out: u64) -> Option<f64> {
        let row = self.row(model)?;
        Some((tokens_in as f64 * row.input + tokens_out as f64 * row.output) / 1e6)
    }

    /// Tokens that a model reads and writes together.
    #[must_use]
    pub fn context(&self, model: &str) -> Option<usize> {
        self.row(model)?.context
    }

    /// The row of a model; a name may stand behind its provider's, as in `openai/gpt-5`.
    fn row(&self, model: &str) -> Option<&Price> {
        let bare = model.rsplit('/').next().unwrap_or(model);
        let of = |name: &str| self.rows.iter().find(|row| serves(&row.name, name));
        of(model).or_else(|| of(bare))
    }
}

/// Whether a row's name means a model: the same, or a dated version of it.
fn serves(row: &str, model: &str) -> bool {
    let Some(rest) = model.strip_prefix(row) else { return false };
    let dated = |rest: &str| rest.len() >= 4 && rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    rest.is_empty() || rest.strip_prefix('-').is_some_and(dated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_row_has_a_price_and_a_source() {
        let rows = toml::from_str::<Rows>(BUILTIN).expect("the table is sound").model;
        for row in &rows {
            assert!(row.input > 0.0 && row.output >= row.input, "{row:?}");
            assert!(row.source.starts_with("https://") && row.source.contains("202"), "{row:?}");
        }
        assert!(rows.len() >= 5);
    }

    #[test]
    fn a_model_is_found_by_name_by_date_and_behind_its_provider() {
        let table = PriceTable::builtin();
        let full = table.cost("gpt-5", 1_000_000, 1_000_000).expect("known");
        assert!((full - 11.25).abs() < 1e-9);
        assert_eq!(table.cost("gpt-5-2025-08-07", 1_000_000, 1_000_000), Some(full));
        assert_eq!(table.cost("openai/gpt-5", 1_000_000, 1_000_000), Some(full));
        assert_eq!(table.context("gpt-4.1-2025-04-14"), Some(1_000_000));
    }

    #[test]
    fn a_variant_is_another_model() {
        let table = PriceTable::builtin();
        for unknown in ["gpt-5-turbo", "gpt-50", "llama3:8b", "", "gpt", "gpt-5-"] {
            assert_eq!(table.cost(unknown, 1, 1), None, "{unknown}");
        }
        assert_ne!(table.cost("gpt-5-mini", 1_000_000, 0), table.cost("gpt-5", 1_000_000, 0));
    }

    #[test]
    fn own_rows_win() {
        let own = Price { name: "gpt-5".into(), input: 1.0, output: 1.0, context: Some(8), source: String::new() };
        let table = PriceTable::builtin().with(vec![own]);
        assert_eq!(table.cost("gpt-5", 1_000_000, 0), Some(1.0));
        assert_eq!(table.context("gpt-5"), Some(8));
    }
}
