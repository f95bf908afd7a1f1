//! Reading keys of a configuration that anyone may have written.

use serde_json::{Map, Value};

use super::ModelError;

/// The object, with the model's name for errors. `null` counts as absent, as Hugging Face writes it.
pub(super) struct Keys<'a> {
    pub model: &'a str,
    pub map: &'a Map<String, Value>,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// A whole number in `1..=most`, or `None` where the key is absent.
    pub fn size(&self, key: &str, most: u64) -> Result<Option<u64>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        // Some exporters write 4096.0.
        let whole = value.as_u64().or_else(|| {
            value.as_f64().filter(|v| v.fract() == 0.0 && (0.0..=9e15).contains(v)).map(|exact| exact as u64)
        });
        match whole {
            Some(size) if (1..=most).contains(&size) => Ok(Some(size)),
            _ => Err(self.bad(key, value, format!("a whole number from 1 to {most}"))),
        }
    }

    /// The same, where absence is an error.
    pub fn required_size(&self, key: &'static str, most: u64, meaning: &'static str) -> Result<u64, ModelError> {
        self.size(key, most)?.ok_or_else(|| ModelError::Missing { model: self.model.to_owned(), key, meaning })
    }

    /// A finite number in `low..=high`, or `default`.
    pub fn number(&self, key: &str, default: f64, low: f64, high: f64) -> Result<f64, ModelError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        match value.as_f64() {
            Some(number) if (low..=high).contains(&number) => Ok(number),
            _ => Err(self.bad(key, value, format!("a number from {low:e} to {high:e}"))),
        }
    }

    /// `true` or `false`, or `default`.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.bad(key, value, "true or false".to_owned()))
    }

    /// A string, or `None`.
    pub fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.bad(key, value, "a string".to_owned()))
    }

    /// The only text that `key` may have where it is there.
    pub fn only(&self, key: &str, allowed: &[&str], why: &str) -> Result<(), ModelError> {
        match self.text(key)? {
            Some(other) if !allowed.contains(&other) => {
                Err(self.unsupported(format!("`{key}` {}", shorten(other)), why))
            }
            _ => Ok(()),
        }
    }

    /// The only value that the flag `key` may have; also what it is where it is not there.
    pub fn must_be(&self, key: &str, wanted: bool, why: &str) -> Result<(), ModelError> {
        match self.flag(key, wanted)? == wanted {
            true => Ok(()),
            false => Err(self.unsupported(format!("`{key}` {}", !wanted), why)),
        }
    }

    /// The width of a head where all heads together are as wide as the stream.
    pub fn even_heads(&self, hidden: (&str, u64), heads: (&str, u64)) -> Result<u64, ModelError> {
        match hidden.1.is_multiple_of(heads.1) {
            true => Ok(hidden.1 / heads.1),
            false => Err(self.value(heads.0, heads.1, format!("a divisor of {} {}", hidden.0, hidden.1))),
        }
    }

    /// A feature that no operation computes.
    pub fn unsupported(&self, what: String, why: &str) -> ModelError {
        ModelError::Unsupported { model: self.model.to_owned(), what, why: why.to_owned() }
    }

    /// A value that no model can have.
    pub fn value(&self, key: &str, found: impl ToString, expected: String) -> ModelError {
        let (model, key, found) = (self.model.to_owned(), key.to_owned(), shorten(&found.to_string()));
        ModelError::Value { model, key, found, expected }
    }

    /// Whether the key is there and says anything.
    pub fn says(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    fn bad(&self, key: &str, value: &Value, expected: String) -> ModelError {
        self.value(key, value, expected)
    }
}

/// At most 40 characters of a text that someone else wrote, without control characters.
pub(super) fn shorten(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.chars().count() <= 40 { clean } else { clean.chars().take(39).chain(['…']).collect() }
}
