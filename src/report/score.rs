//! The score of a benchmark's run as a page: what counts as fast, by two judges, against three ways to run the problems as they are.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::figures::{NOTHING, fine_times};
use super::page::style;

/// A run of a benchmark that was judged twice.
#[derive(Debug, Clone, PartialEq)]
pub struct ScorePage {
    /// The run's name.
    pub run: String,
    /// The benchmark's level.
    pub level: u32,
    /// What the problems were timed on.
    pub hardware: String,
    /// Speedups above which a problem counts as fast.
    pub thresholds: Vec<f64>,
    /// A judge against a way to run the problems.
    pub columns: Vec<ScoreColumn>,
    /// Every problem.
    pub rows: Vec<ScoreRow>,
}

/// One judge, against one way to run the problems.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreColumn {
    /// Whose verdict.
    pub judge: String,
    /// Against what.
    pub against: String,
    /// Problems that are right.
    pub right: usize,
    /// All of them.
    pub problems: usize,
    /// For each threshold the share of problems; none where nothing was timed.
    pub fast: Option<Vec<f64>>,
    /// Of the speedups of those that are right.
    pub geometric_mean: Option<f64>,
}

/// A problem.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreRow {
    /// Its name.
    pub problem: String,
    /// Whether it is right by the benchmark's protocol; none without a sample.
    pub protocol: Option<bool>,
    /// Whether it is right.
    pub strict: Option<bool>,
    /// Its times by the two clocks, ms.
    pub times: [Option<f64>; 2],
    /// Speedups in the columns' order.
    pub speedups: Vec<Option<f64>>,
    /// Why the judges differ, or why it is not right.
    pub said: String,
}

impl ScorePage {
    /// The page: one file, no script, nothing loaded from anywhere.
    #[must_use]
    pub fn render(&self) -> String {
        let title = format!("KernelBench level {}: {}", self.level, self.run);
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (title) }
                    style { (PreEscaped(style())) }
                }
                body {
                    main {
                        p.eyebrow { "KernelBench, level " (self.level) ", on " (self.hardware) }
                        h1 { (self.run) }
                        p.lead {
                            "Every sample was judged twice: by the benchmark’s own protocol, and by a strict judge that a sample cannot reach. "
                            (self.differing()) " of " (self.rows.len()) " problems differ."
                        }
                        h2 { "fast_p" }
                        (self.scores())
                        h2 { "Problems" }
                        (self.problems())
                    }
                }
            }
        };
        page.into_string()
    }

    fn differing(&self) -> usize {
        self.rows.iter().filter(|row| row.protocol != row.strict).count()
    }

    fn scores(&self) -> Markup {
        html! {
            div.scroll {
                table.numbers {
                    thead {
                        tr {
                            th { "Judge" } th { "Against" } th { "Right" }
                            @for p in &self.thresholds { th { "p = " (p) } }
                            th { "Geometric mean" }
                        }
                    }
                    tbody {
                        @for column in &self.columns {
                            tr {
                                th { (column.judge) } td { (column.against) } td { (column.right) " of " (column.problems) }
                                @for place in 0..self.thresholds.len() {
                                    td { (column.fast.as_ref().map_or_else(|| NOTHING.to_owned(), |fast| format!("{:.3}", fast[place]))) }
                                }
                                td { (column.geometric_mean.map_or_else(|| NOTHING.to_owned(), fine_times)) }
                            }
                        }
                    }
                }
            }
            p.small { "The share of all problems that are right and more than p times as fast; the mean is of those that are right." }
        }
    }

    fn problems(&self) -> Markup {
        html! {
            div.scroll {
                table.numbers {
                    thead {
                        tr {
                            th { "Problem" } th { "Protocol" } th { "Strict" } th { "ms" } th { "ms, strict" }
                            @for column in &self.columns { th { (column.judge) ", " (column.against) } }
                            th.words { "" }
                        }
                    }
                    tbody {
                        @for row in &self.rows {
                            tr.quiet[row.strict != Some(true)] {
                                th { (row.problem) } td { (word(row.protocol)) } td { (word(row.strict)) }
                                @for time in &row.times { td { (time.map_or_else(|| NOTHING.to_owned(), |ms| format!("{ms:.4}"))) } }
                                @for speedup in &row.speedups { td { (speedup.map_or_else(|| NOTHING.to_owned(), fine_times)) } }
                                td.words { (row.said) }
                            }
                        }
                    }
                }
            }
        }
    }
}

const fn word(right: Option<bool>) -> &'static str {
    match right {
        Some(true) => "right",
        Some(false) => "wrong",
        None => "no sample",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_both_judges_and_nothing_of_a_sample_is_markup() {
        let column = |judge: &str, fast| ScoreColumn {
            judge: judge.into(),
            against: "eager".into(),
            right: 1,
            problems: 1,
            fast,
            geometric_mean: None,
        };
        let row = ScoreRow {
            problem: "1_Relu".into(),
            protocol: Some(true),
            strict: Some(false),
            times: [Some(0.5), None],
            speedups: vec![Some(8.0), None],
            said: "it raises <script>alert(1)</script>".into(),
        };
        let page = ScorePage {
            run: "a & b".into(),
            level: 1,
            hardware: "cpu".into(),
            thresholds: vec![0.0, 1.0],
            columns: vec![column("protocol", Some(vec![1.0, 0.5])), column("strict", None)],
            rows: vec![row],
        };
        let text = page.render();
        assert!(text.contains("a &amp; b") && text.contains("1 of 1 problems differ") && text.contains("0.500"));
        assert!(!text.contains("<script") && text.contains("&lt;script&gt;"));
    }
}
