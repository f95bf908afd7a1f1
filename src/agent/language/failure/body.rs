//! An error's body. Servers agree on little: an object under `error`, a word there, fields at the top, a list, HTML, text.

use serde_json::Value;

/// What an error's body says, whatever its form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Body {
    /// For a reader.
    pub message: String,
    /// `code`, numbers as text.
    pub code: String,
    /// `type` or `status`.
    pub kind: String,
    /// The parameter it is about.
    pub param: String,
}

impl Body {
    /// Reads a body that came with an error status.
    #[must_use]
    pub fn read(text: &str) -> Self {
        match serde_json::from_str::<Value>(text) {
            Ok(value) => Self::of(&value),
            Err(_) => Self { message: plain(text), ..Self::default() },
        }
    }

    /// The error in an answer that has one: also in a stream, as one of its values.
    #[must_use]
    pub fn within(value: &Value) -> Option<Self> {
        let error = value.get("error").filter(|error| !error.is_null());
        let object = value.get("object").and_then(Value::as_str) == Some("error");
        (error.is_some() || object).then(|| Self::of(value))
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::Array(values) => values.first().map(Self::of).unwrap_or_default(),
            Value::String(text) => Self { message: text.clone(), ..Self::default() },
            Value::Object(_) => match value.get("error").filter(|error| !error.is_null()) {
                Some(error) => {
                    let inner = Self::of(error);
                    if inner == Self::default() { Self { message: error.to_string(), ..inner } } else { inner }
                }
                None => Self::fields(value),
            },
            other => Self { message: other.to_string(), ..Self::default() },
        }
    }

    fn fields(value: &Value) -> Self {
        let field = |name: &str| match value.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let first = |names: &[&str]| names.iter().map(|name| field(name)).find(|text| !text.is_empty());
        Self {
            message: first(&["message", "detail", "msg", "error_description", "title"]).unwrap_or_default(),
            code: field("code"),
            kind: first(&["type", "status"]).unwrap_or_default(),
            param: field("param"),
        }
    }

    /// Everything it says, in small letters, to look for words in.
    #[must_use]
    pub fn words(&self) -> String {
        format!("{} {} {} {}", self.message, self.code, self.kind, self.param).to_lowercase()
    }
}

/// A page's title, or the text as it is.
fn plain(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let title = lower.find("<title>").map(|at| at + "<title>".len());
    match title.and_then(|from| Some((from, from + lower.get(from..)?.find("</title>")?))) {
        Some((from, to)) => text.get(from..to).unwrap_or_default().trim().to_owned(),
        None => text.trim().to_owned(),
    }
}
