//! Figures for people: few digits, the right unit, a dash where there is nothing.

use super::data::sound;
use super::summary::places;

/// What stands where nothing was measured.
pub(super) const NOTHING: &str = "–";

/// A ratio: `1.37×`, `12.4×`, `140×`.
pub(super) fn times(ratio: f64) -> String {
    match sound(ratio) {
        None => NOTHING.to_owned(),
        Some(ratio) if ratio >= 99.95 => format!("{ratio:.0}×"),
        Some(ratio) if ratio >= 9.995 => format!("{ratio:.1}×"),
        Some(ratio) => format!("{ratio:.2}×"),
    }
}

/// A ratio of whole passes, in which a small gain counts: `1.024×`, else as [`times`].
pub(super) fn fine_times(ratio: f64) -> String {
    match sound(ratio) {
        Some(ratio) if places(ratio) > 2 => format!("{ratio:.3}×"),
        _ => times(ratio),
    }
}

/// A ratio that may be missing.
pub(super) fn maybe_times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| NOTHING.to_owned(), times)
}

/// A time given in µs, with three digits and its unit: `831 µs`, `12.4 ms`, `1.23 s`.
pub(super) fn time(us: f64) -> String {
    if us != 0.0 && sound(us).is_none() {
        return NOTHING.to_owned();
    }
    let (value, unit) = match us {
        us if us >= 999_500.0 => (us / 1e6, "s"),
        us if us >= 999.5 => (us / 1e3, "ms"),
        us => (us, "µs"),
    };
    format!("{}\u{a0}{unit}", three_digits(value))
}

/// A time that may be missing.
pub(super) fn maybe_time(us: Option<f64>) -> String {
    us.map_or_else(|| NOTHING.to_owned(), time)
}

/// A share (0 to 1) as percent: `62 %`, `0.4 %`.
pub(super) fn share(share: f64) -> String {
    percent(100.0 * share)
}

/// A percentage: `62 %`, `0.4 %`.
pub(super) fn percent(value: f64) -> String {
    match value {
        value if value != 0.0 && sound(value.abs()).is_none() => NOTHING.to_owned(),
        value if value.abs() < 0.05 => "0\u{a0}%".to_owned(),
        value if value.abs() < 9.95 => format!("{value:.1}\u{a0}%"),
        value => format!("{value:.0}\u{a0}%"),
    }
}

/// A rate given in units of 1e9 a second: `831 G`, `12.4 T`.
pub(super) fn rate(giga: f64) -> String {
    match giga {
        value if sound(value).is_none() => NOTHING.to_owned(),
        value if value >= 999.5 => format!("{}\u{a0}T", three_digits(value / 1e3)),
        value => format!("{}\u{a0}G", three_digits(value)),
    }
}

/// Three digits, more only before the point.
pub(super) fn three_digits(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.0995 || size == 0.0 => format!("{value:.2}"),
        size if size >= 0.000_95 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    }
}

/// `1 try`, `2 tries`.
pub(crate) fn counted(count: usize, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

/// `2026-02-14T03:12:45` as `2026-02-14 03:12`; two of one day name the day once.
pub(super) fn span(times: &[String; 2]) -> String {
    let [from, to] = times.each_ref().map(|time| time.split_once('T').unwrap_or((time, "")));
    let minutes = |clock: &str| clock.get(..5).unwrap_or(clock).to_owned();
    let (start, end) = (minutes(from.1), minutes(to.1));
    if from.0 != to.0 {
        format!("{} {start} to {} {end}", from.0, to.0)
    } else if start == end {
        format!("{} {start}", from.0)
    } else {
        format!("{}, {start} to {end}", from.0)
    }
}

/// A word as a shell reads it back: quoted where it needs that.
pub(super) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Text without the characters that no HTML or XML document may hold.
pub(super) fn legal(text: &str) -> String {
    let fine = |c: &char| matches!(c, '\n' | '\t') || (!c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}'));
    text.chars().filter(fine).collect()
}

/// At most so many characters, the last an ellipsis where some are missing.
pub(super) fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        assert_eq!([times(1.374), times(9.996), times(140.2)], ["1.37×", "10.0×", "140×"]);
        assert_eq!([fine_times(1.374), fine_times(1.0216), fine_times(f64::NAN)], ["1.37×", "1.022×", NOTHING]);
        assert_eq!(
            [time(0.0), time(8.312), time(831.2), time(999.7)],
            ["0.00 µs", "8.31 µs", "831 µs", "1.00 ms"].map(nbsp)
        );
        assert_eq!([time(12_400.0), time(1.234e6)], ["12.4 ms", "1.23 s"].map(nbsp));
        assert_eq!([share(0.62), share(0.004), share(0.0)], ["62 %", "0.4 %", "0 %"].map(nbsp));
        assert_eq!([rate(831.0), rate(12_400.0)], ["831 G", "12.4 T"].map(nbsp));
        assert_eq!([counted(1, "try", "tries"), counted(2, "try", "tries")], ["1 try", "2 tries"]);
    }

    fn nbsp(text: &str) -> String {
        text.replace(' ', "\u{a0}")
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
            assert_eq!([times(value), time(value), rate(value)], [NOTHING; 3]);
        }
        assert_eq!([times(0.0), maybe_times(None), maybe_time(None), percent(f64::NAN)], [NOTHING; 4]);
    }

    #[test]
    fn a_span_names_its_day_once() {
        let day = |time: &str| format!("2026-02-14T{time}");
        assert_eq!(span(&[day("01:12:45"), day("07:00:01")]), "2026-02-14, 01:12 to 07:00");
        assert_eq!(span(&[day("01:12:45"), day("01:12:50")]), "2026-02-14 01:12");
        assert_eq!(span(&[day("23:12:45"), "2026-02-15T07:00:00".into()]), "2026-02-14 23:12 to 2026-02-15 07:00");
        assert_eq!(span(&["soon".into(), String::new()]), "soon  to  ");
    }

    #[test]
    fn a_word_can_be_pasted_into_a_shell() {
        assert_eq!(shell_word("models/tiny-llama"), "models/tiny-llama");
        assert_eq!(shell_word("my model's; rm -rf"), r"'my model'\''s; rm -rf'");
        assert_eq!([shell_word(""), shell_word("-x")], ["''", "'-x'"]);
    }

    #[test]
    fn text_is_made_legal_and_short() {
        assert_eq!(legal("a\u{0}b\u{1b}[1m\u{85}c\u{ffff}\n"), "ab[1mc\n");
        assert_eq!([shorten("abcdef", 6), shorten("abc def", 5)], ["abcdef", "abc…"]);
    }
}
