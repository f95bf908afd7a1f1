//! Lengths of time as people write them: `2h`, `90s`, `8m`, `1h30m`, `1.5h`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// The units, in the order in which they may follow each other, with their seconds.
const UNITS: [(&str, f64); 5] = [("d", 86_400.0), ("h", 3_600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001)];

/// Why a text is not a length of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a length of time; write for example 90s, 8m, 2h or 1h30m")]
pub struct DurationError(String);

/// Reads a length of time: numbers with units `d`, `h`, `m`, `s`, `ms`, the larger first.
///
/// # Errors
/// [`DurationError`] for anything else: no number, no unit, units out of order, or more than fits.
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    let wrong = || DurationError(text.to_owned());
    let mut rest = text.trim();
    let mut units = UNITS.as_slice();
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let at = units.iter().position(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let part = Duration::try_from_secs_f64(number * units[at].1).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        units = &units[at + 1..];
        rest = tail;
    }
    Ok(total)
}

/// For serde's `deserialize_with`.
pub(super) fn required<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    duration(&String::deserialize(from)?).map_err(de::Error::custom)
}

/// For serde's `deserialize_with`, where the key may be left out.
pub(super) fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    required(from).map(Some)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lengths_of_time_are_read_as_written() {
        for (text, seconds) in [
            ("2h", 7200.0),
            ("90s", 90.0),
            ("8m", 480.0),
            ("1h30m", 5400.0),
            ("1.5h", 5400.0),
            ("1d", 86_400.0),
            ("250ms", 0.25),
            (" 1h0m5s ", 3605.0),
        ] {
            assert_eq!(duration(text).unwrap(), Duration::from_secs_f64(seconds), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_length_of_time_is_refused() {
        for text in ["", "2", "h", "2 h", "2x", "-1s", "1m1h", "1h1h", "1..5s", "1e9h", "99999999999999999999d"] {
            let error = duration(text).unwrap_err().to_string();
            assert!(error.contains("is not a length of time"), "{text}: {error}");
        }
    }
}
