//! The profile as text, at most 100 columns wide.

use super::{Profile, Row};

const WIDTH: usize = 100;

/// Headings, and whether the column stands right, as numbers do.
const HEADINGS: [(&str, bool); 11] = [
    ("#", true),
    ("operation", false),
    ("shape", false),
    ("calls", true),
    ("ms", true),
    ("share", true),
    ("cum.", true),
    ("roof, bound", false),
    ("1.5x", true),
    ("2x", true),
    ("at roof", true),
];
const SHAPE: usize = 2;

impl Profile {
    /// Three lines about the pass, the Amdahl table, what the parts do not explain, and the notes.
    ///
    /// `roof, bound` is how much of the row's roofline it reaches (above 100 % where a cache still held what the
    /// roofline counts as read from memory), and which ceiling that is. The last three columns are the end-to-end
    /// speedup with that row alone at 1.5 times its speed, at twice its speed and at its roofline.
    #[must_use]
    pub fn table(&self) -> String {
        let mut lines: Vec<[String; 11]> = vec![HEADINGS.map(|(name, _)| name.to_owned())];
        lines.extend(self.rows.iter().map(cells));
        lines.push(other(self));
        let mut text = format!("{}\n{}\n\n", self.title(), self.summary());
        for line in layout(&lines) {
            text += &line;
            text.push('\n');
        }
        for note in &self.notes {
            text += &format!("\nnote: {note}");
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        text
    }

    fn title(&self) -> String {
        let layers = if self.layers == self.layers_of_model {
            format!("{} layers", self.layers)
        } else {
            format!("{} of {} layers", self.layers, self.layers_of_model)
        };
        let weights = millions(self.parameters);
        let pass = &self.pass;
        format!("{} · {layers}, {weights} weights · {} · {} · {}", self.model, pass.label(), pass.dtype, self.device)
    }

    fn summary(&self) -> String {
        let whole = milliseconds(self.whole_us);
        let rounds = self.rounds;
        format!(
            "one pass takes {whole} ms ({rounds} rounds)\n\
             last columns: how much faster the pass gets when that row alone runs at 1.5x, at 2x, at its roof"
        )
    }
}

fn cells(row: &Row) -> [String; 11] {
    let gains = row.gains.map_or_else(
        || [const { String::new() }; 3],
        |gains| [gains.at_1_5, gains.at_2, gains.at_roofline].map(|gain| format!("{gain:.2}x")),
    );
    let [at_1_5, at_2, at_roofline] = gains;
    [
        row.rank.to_string(),
        row.name().to_owned(),
        row.label.clone(),
        row.calls.to_string(),
        milliseconds(row.us),
        percent(row.share),
        percent(row.cumulative),
        format!("{:>4} {}", of_roof(row), row.bound),
        at_1_5,
        at_2,
        at_roofline,
    ]
}

/// Where a cache still holds what the roofline counts as read from memory, the figure says nothing beyond that.
fn of_roof(row: &Row) -> String {
    let percent = 100.0 * row.roofline_us / row.us.max(f64::MIN_POSITIVE);
    if percent > 999.0 { ">999%".to_owned() } else { format!("{percent:.0}%") }
}

/// What the parts do not explain, or, with a minus, how much longer they take than the pass.
fn other(profile: &Profile) -> [String; 11] {
    let mut line = [const { String::new() }; 11];
    line[1] = "other".to_owned();
    let base_us = profile.whole_us.max(profile.parts_us).max(f64::MIN_POSITIVE);
    let (sign, us) = if profile.overlap_us > 0.0 { ("-", profile.overlap_us) } else { ("", profile.other_us) };
    line[4] = format!("{sign}{}", milliseconds(us));
    line[5] = format!("{sign}{}", percent(us / base_us));
    line
}

/// Pads the columns, two spaces apart where that fits and one where it does not; then the shapes give way.
fn layout(lines: &[[String; 11]]) -> Vec<String> {
    let mut widths = [0; 11];
    for line in lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let text: usize = widths.iter().sum();
    let gaps = widths.len() - 1;
    let gap = if text + 2 * gaps <= WIDTH { "  " } else { " " };
    let rest = text - widths[SHAPE] + gap.len() * gaps;
    widths[SHAPE] = widths[SHAPE].min(WIDTH.saturating_sub(rest).max(HEADINGS[SHAPE].0.len()));
    let pad = |(at, cell): (usize, &String)| {
        let (width, cell) = (widths[at], if at == SHAPE { short_shape(cell, widths[at]) } else { cell.clone() });
        if HEADINGS[at].1 { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
    };
    lines
        .iter()
        .map(|line| line.iter().enumerate().map(pad).collect::<Vec<_>>().join(gap).trim_end().to_owned())
        .collect()
}

/// The sizes whole and of each word behind them the beginning, so that rows that differ in a word still look different.
fn short_shape(text: &str, width: usize) -> String {
    let mut words = text.split(' ');
    let sizes = words.next().unwrap_or_default();
    let words: Vec<&str> = words.collect();
    let room = width.saturating_sub(sizes.chars().count()) / words.len().max(1);
    if text.chars().count() <= width || room < 3 {
        return shorten(text, width);
    }
    let short = words.into_iter().map(|word| shorten(word, room - 1));
    std::iter::once(sizes.to_owned()).chain(short).collect::<Vec<_>>().join(" ")
}

fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width { text.to_owned() } else { text.chars().take(width - 1).chain(['…']).collect() }
}

/// Three or four digits, whatever the size.
fn milliseconds(us: f64) -> String {
    let ms = us / 1e3;
    match ms {
        _ if ms >= 1000.0 => format!("{ms:.0}"),
        _ if ms >= 100.0 => format!("{ms:.1}"),
        _ if ms >= 10.0 => format!("{ms:.2}"),
        _ => format!("{ms:.3}"),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

fn millions(count: u64) -> String {
    let millions = count as f64 / 1e6;
    if millions >= 1000.0 { format!("{:.2}G", millions / 1e3) } else { format!("{millions:.1}M") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_differ_in_a_word_look_different_when_they_are_short() {
        let short = ["128x768x768 trans_b has_bias", "128x768x768 trans_b", "128x768x768 has_bias"]
            .map(|shape| short_shape(shape, 21));
        assert_eq!(short, ["128x768x768 tra… has…", "128x768x768 trans_b", "128x768x768 has_bias"]);
        assert_eq!(short_shape("1x12x128x128x64 causal bshd", 21), "1x12x128x128x64 c… b…");
        assert_eq!(short_shape("65536x4096x65536x131072 causal bshd", 21), "65536x4096x65536x131…");
        for width in 1..40 {
            assert!(short_shape("128x768x768 trans_b has_bias", width).chars().count() <= width, "{width}");
        }
    }
}
