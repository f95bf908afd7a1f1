//! A row of `results.tsv`: fixed widths first, so that columns line up under `tail -f`.

use std::fmt::Write as _;

/// The columns, in order, and the width each is padded to (in characters); numbers are right-aligned.
const COLUMNS: [(&str, usize, bool); 15] = [
    ("run", 7, false),
    ("exp", 4, true),
    ("time", 19, false),
    ("status", 7, false),
    ("speedup", 7, true),
    ("low", 7, true),
    ("vs_user", 7, true),
    ("us", 10, true),
    ("roof_pct", 8, true),
    ("commit", 10, false),
    ("stage", 11, false),
    ("op", 16, false),
    ("backend", 7, false),
    ("technique", 16, false),
    ("description", 0, false),
];

/// Hexadecimal digits of a commit in the ledger.
pub(super) const COMMIT_DIGITS: usize = 10;

/// One experiment in the ledger. A number that does not exist is written as `-`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// The run's id; set by [`super::History::record`].
    pub run: String,
    /// The experiment's number; set by [`super::History::record`].
    pub exp: u64,
    /// When it ended, local time, as `2026-02-14T03:12:45`.
    pub time: String,
    /// `base`, `keep`, `revert`, `reject`, `crash`, `timeout` or `error`.
    pub status: String,
    /// Incumbent's time over the candidate's.
    pub speedup: Option<f64>,
    /// Its lower bound.
    pub low: Option<f64>,
    /// Against what the user has today.
    pub vs_user: Option<f64>,
    /// Σ calls × time over the target, µs.
    pub us: Option<f64>,
    /// Share of the roofline, percent.
    pub roof_pct: Option<f64>,
    /// The candidate's commit, shortened; set by [`super::History::record`].
    pub commit: String,
    /// Where judging ended.
    pub stage: String,
    /// The operation.
    pub op: String,
    /// The backend.
    pub backend: String,
    /// The technique's name.
    pub technique: String,
    /// What was changed, in a sentence.
    pub description: String,
}

/// Why a line of a ledger is not a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a row of results.tsv: {0}")]
pub struct RowError(String);

/// The first line of a ledger, without its end.
#[must_use]
pub fn header() -> String {
    join(COLUMNS.map(|(name, _, _)| name.to_owned()))
}

/// Pads the cells to their columns and joins them by tabs.
fn join(cells: [String; 15]) -> String {
    let mut line = String::new();
    for (at, (cell, (_, width, right))) in cells.iter().zip(COLUMNS).enumerate() {
        let tab = if at == 0 { "" } else { "\t" };
        // Writing to a `String` cannot fail.
        let _ = if right { write!(line, "{tab}{cell:>width$}") } else { write!(line, "{tab}{cell:<width$}") };
    }
    line
}

/// A cell: one line without tabs, never empty.
fn cell(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let words = clean.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.is_empty() { "-".to_owned() } else { words }
}

/// A number with so many decimals.
fn number(value: Option<f64>, decimals: usize) -> String {
    value.filter(|value| value.is_finite()).map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

impl Row {
    /// The line, without its end.
    #[must_use]
    pub fn format(&self) -> String {
        join([
            cell(&self.run),
            self.exp.to_string(),
            cell(&self.time),
            cell(&self.status),
            number(self.speedup, 3),
            number(self.low, 3),
            number(self.vs_user, 3),
            number(self.us, 2),
            number(self.roof_pct, 1),
            cell(&self.commit),
            cell(&self.stage),
            cell(&self.op),
            cell(&self.backend),
            cell(&self.technique),
            cell(&self.description),
        ])
    }

    /// Reads a line as [`Self::format`] writes it.
    ///
    /// # Errors
    /// Too few cells or too many, or a cell that is not the number it should be.
    pub fn parse(line: &str) -> Result<Self, RowError> {
        reader(line).records().next().map_or_else(|| Err(RowError("it is empty".to_owned())), row)
    }
}

/// The rows of a whole ledger. The header, and lines that someone else wrote, are passed over.
#[must_use]
pub fn parse_ledger(text: &str) -> Vec<Row> {
    reader(text).records().filter_map(|record| row(record).ok()).collect()
}

fn reader(text: &str) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new()
        .delimiter(b'\t')
        .quoting(false)
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes())
}

fn row(record: csv::Result<csv::StringRecord>) -> Result<Row, RowError> {
    let record = record.map_err(|error| RowError(error.to_string()))?;
    if record.len() != COLUMNS.len() {
        return Err(RowError(format!("{} columns where there should be {}", record.len(), COLUMNS.len())));
    }
    let text = |at: usize| if &record[at] == "-" { String::new() } else { record[at].to_owned() };
    let wrong = |at: usize| RowError(format!("{} is `{}`, not a number", COLUMNS[at].0, &record[at]));
    let number = |at: usize| match &record[at] {
        "-" => Ok(None),
        digits => digits.parse::<f64>().map(Some).map_err(|_| wrong(at)),
    };
    let exp = record[1].parse().map_err(|_| wrong(1))?;
    Ok(Row {
        run: text(0),
        exp,
        time: text(2),
        status: text(3),
        speedup: number(4)?,
        low: number(5)?,
        vs_user: number(6)?,
        us: number(7)?,
        roof_pct: number(8)?,
        commit: text(9),
        stage: text(10),
        op: text(11),
        backend: text(12),
        technique: text(13),
        description: text(14),
    })
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    pub fn sample() -> Row {
        Row {
            run: "260214a".to_owned(),
            exp: 12,
            time: "2026-02-14T03:12:45".to_owned(),
            status: "keep".to_owned(),
            speedup: Some(1.1834),
            low: Some(1.1712),
            vs_user: Some(2.31),
            us: Some(1234.567),
            roof_pct: Some(58.04),
            commit: "0123456789".to_owned(),
            stage: "confirm".to_owned(),
            op: "rmsnorm".to_owned(),
            backend: "cpu".to_owned(),
            technique: "vectorise".to_owned(),
            description: "vectorised loads".to_owned(),
        }
    }

    #[test]
    fn a_row_reads_back_as_it_was_written_up_to_its_decimals() {
        let back = Row::parse(&sample().format()).unwrap();
        let rounded =
            Row { speedup: Some(1.183), low: Some(1.171), us: Some(1234.57), roof_pct: Some(58.0), ..sample() };
        assert_eq!(back, rounded);
        assert_eq!(Row::parse(&back.format()).unwrap(), back);
        let bare = Row { exp: 3, ..Row::default() };
        assert_eq!(Row::parse(&bare.format()).unwrap(), bare);
    }

    #[test]
    fn the_columns_of_rows_and_header_line_up() {
        let starts = |line: &str| line.match_indices('\t').map(|(at, _)| at).collect::<Vec<_>>();
        let error = Row { status: "timeout".to_owned(), exp: 1, description: String::new(), ..Row::default() };
        assert_eq!(starts(&header()), starts(&sample().format()));
        assert_eq!(starts(&header()).len(), 14);
        assert_eq!(starts(&header())[..13], starts(&Row { run: "260214a".to_owned(), ..error }.format())[..13]);
    }

    #[test]
    fn tabs_and_line_ends_in_a_description_do_not_break_the_table() {
        let row = Row { description: "a\tb\nc\r\n \u{7}d \"quoted\" ".to_owned(), ..sample() };
        let line = row.format();
        assert_eq!(line.matches('\t').count(), 14);
        assert!(!line.contains(['\n', '\r']));
        assert_eq!(Row::parse(&line).unwrap().description, "a b c d \"quoted\"");
    }

    #[test]
    fn what_is_not_finite_is_written_as_missing() {
        let row = Row { speedup: Some(f64::NAN), low: Some(f64::INFINITY), ..sample() };
        let back = Row::parse(&row.format()).unwrap();
        assert_eq!((back.speedup, back.low), (None, None));
    }

    #[test]
    fn a_line_that_is_not_a_row_is_named_and_passed_over_in_a_ledger() {
        let error = Row::parse("nonsense").unwrap_err().to_string();
        assert_eq!(error, "not a row of results.tsv: 1 columns where there should be 15");
        let wrong = sample().format().replace("1.183", "fast!");
        assert!(Row::parse(&wrong).unwrap_err().to_string().contains("speedup is `fast!`"));
        assert!(Row::parse("").is_err());
        let good = sample().format();
        let ledger = parse_ledger(&format!("{}\n{good}\nnonsense\n\n{wrong}\n{good}\n", header()));
        assert_eq!(ledger, [Row::parse(&good).unwrap(), Row::parse(&good).unwrap()]);
    }
}
