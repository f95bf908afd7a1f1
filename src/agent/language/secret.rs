//! A key that is never shown.

use std::fmt;

/// Shorter ones are the placeholders that local servers ask for (`none`, `EMPTY`): taking such a word out of every text
/// would harm the text and hide nothing.
const SHORTEST: usize = 8;

/// What stands in its place.
const SHOWN: &str = "[key]";

/// A key. It is shown nowhere, and can take itself out of any text.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes `key`, without the white space around it that copying leaves.
    #[must_use]
    pub fn new(key: &str) -> Self {
        Self(key.trim().to_owned())
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it can stand in an HTTP header.
    #[must_use]
    pub fn is_printable(&self) -> bool {
        self.0.bytes().all(|byte| byte.is_ascii_graphic())
    }

    /// The key itself, for the request alone.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }

    /// `text` without the key, should it stand there.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        if self.0.len() < SHORTEST { text.to_owned() } else { text.replace(&self.0, SHOWN) }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Secret(none)" } else { "Secret([key])" })
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "none" } else { SHOWN })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_shown() {
        let key = Secret::new("  sk-very-secret-1234\n");
        let shown = format!("{key} {key:?} {:?}", Some(&key));
        assert!(!shown.contains("very"), "{shown}");
        assert_eq!(key.redact("no key sk-very-secret-1234, sk-very-secret-1234"), "no key [key], [key]");
        assert_eq!(key.expose(), "sk-very-secret-1234");
    }

    #[test]
    fn a_placeholder_leaves_texts_alone() {
        assert_eq!(Secret::new("none").redact("nonetheless"), "nonetheless");
        assert_eq!(Secret::new("").redact("nothing"), "nothing");
    }

    #[test]
    fn a_key_that_no_header_takes_is_noticed() {
        assert!(Secret::new("sk-1234").is_printable());
        assert!(!Secret::new("sk-12\n34").is_printable());
        assert!(!Secret::new("sk-ключ").is_printable());
    }
}
