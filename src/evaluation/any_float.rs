//! Doubles in JSON where NaN and infinity are ordinary: numbers where they are finite, else `"NaN"`,
//! `"inf"`, `"-inf"`. JSON itself has none of these, and would give back `null`, which is no number.

use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() { serializer.serialize_f64(*value) } else { serializer.collect_str(value) }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Number(f64),
        Text(String),
    }
    match Form::deserialize(deserializer)? {
        Form::Number(value) => Ok(value),
        Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::super::ErrorStats;

    #[test]
    fn values_that_json_does_not_know_survive_it() {
        for (got, want) in [(f64::NAN, 1.5), (f64::INFINITY, f64::NEG_INFINITY), (0.1, -2.0)] {
            let stats = ErrorStats { got, want, worst: f64::MAX, ..ErrorStats::default() };
            let text = serde_json::to_string(&stats).expect("serialises");
            let back: ErrorStats = serde_json::from_str(&text).expect(&text);
            let same = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan());
            assert!(same(back.got, got) && same(back.want, want) && back.worst == f64::MAX, "{text}");
        }
    }
}
