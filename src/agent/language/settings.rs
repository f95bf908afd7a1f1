//! How the endpoint is reached, and how patiently.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Url;
use serde_json::{Map, Value};

use super::LanguageError;
use super::prices::PriceTable;
use super::secret::Secret;
use crate::rng::Stream;

/// Where OpenAI itself listens.
pub const OPENAI: &str = "https://api.openai.com/v1";

/// Silence after which a request is taken for lost. A local server may read a long prompt for minutes before it says
/// its first word.
const TIMEOUT: Duration = Duration::from_secs(300);
/// How long one request is retried.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long the first look at an endpoint may take: long enough for a local server to load its model.
const CHECK_WITHIN: Duration = Duration::from_secs(60);
/// Tokens that a model without a row in the price table is taken to read and write.
pub const CONTEXT_TOKENS: usize = 32_768;

/// How the endpoint is reached, and how patiently.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The address above `/chat/completions`, without a slash at its end.
    pub base_url: String,
    /// The key; may be empty for a local server.
    pub api_key: Secret,
    /// `OpenAI-Organization`, where there is one.
    pub organization: String,
    /// `OpenAI-Project`, where there is one.
    pub project: String,
    /// Names and weights, at least one.
    pub models: Vec<(String, f64)>,
    /// Requests in flight, at least one.
    pub proposals: usize,
    /// The longest silence of a request.
    pub timeout: Duration,
    /// How long one request is retried.
    pub patience: Duration,
    /// How long [`super::check`] may take for a model.
    pub check_within: Duration,
    /// What all pauses are multiplied by: 1, but for tests.
    pub time_scale: f64,
    /// What tokens cost.
    pub prices: PriceTable,
    /// Tokens that a model can read and write together, by its name; wins over the price table's.
    pub context_tokens: BTreeMap<String, usize>,
    /// More fields for each request, such as `temperature`; one that a model does not know is left out for it.
    pub parameters: Map<String, Value>,
}

impl Settings {
    /// Settings for an endpoint, everything else as usual.
    ///
    /// # Errors
    /// [`LanguageError::Setting`]: an address or a key that cannot be used, or no models.
    pub fn new(base_url: &str, api_key: Secret, models: Vec<(String, f64)>) -> Result<Self, LanguageError> {
        if !api_key.is_printable() {
            let why = "OPENAI_API_KEY has a character that no key has; copy it again";
            return Err(LanguageError::Setting(why.into()));
        }
        if models.is_empty() {
            return Err(LanguageError::Setting("no model is named: `--model NAME`".into()));
        }
        Ok(Self {
            base_url: address(base_url)?,
            api_key,
            organization: String::new(),
            project: String::new(),
            models,
            proposals: 1,
            timeout: TIMEOUT,
            patience: PATIENCE,
            check_within: CHECK_WITHIN,
            time_scale: 1.0,
            prices: PriceTable::builtin(),
            context_tokens: BTreeMap::new(),
            parameters: Map::new(),
        })
    }

    /// Settings from `OPENAI_API_KEY`, `OPENAI_BASE_URL`, `OPENAI_ORG_ID` and `OPENAI_PROJECT_ID`, as `variable` reads
    /// them, and from the words of `--model` (`a:2,b:1`).
    ///
    /// # Errors
    /// [`LanguageError::Setting`]: what is missing or cannot be used, and what to do about it.
    pub fn from_environment(
        models: Option<&str>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, LanguageError> {
        let of = |name| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let base_url = of("OPENAI_BASE_URL").unwrap_or_else(|| OPENAI.to_owned());
        let api_key = Secret::new(&of("OPENAI_API_KEY").unwrap_or_default());
        if api_key.is_empty() && host(&base_url).as_deref() == Some("api.openai.com") {
            let why = "OPENAI_API_KEY is not set; export your key, or set OPENAI_BASE_URL to a local server such as \
                       http://localhost:8000/v1";
            return Err(LanguageError::Setting(why.into()));
        }
        let models = models.map(str::trim).filter(|models| !models.is_empty()).ok_or_else(|| {
            LanguageError::Setting(
                "no model is named: `--model NAME`, or several with weights, `--model a:2,b:1`".into(),
            )
        })?;
        let mut settings = Self::new(&base_url, api_key, weighted(models)?)?;
        settings.organization = header_value("OPENAI_ORG_ID", of("OPENAI_ORG_ID"))?;
        settings.project = header_value("OPENAI_PROJECT_ID", of("OPENAI_PROJECT_ID"))?;
        Ok(settings)
    }

    /// The host and port, for sentences.
    #[must_use]
    pub fn host(&self) -> String {
        host(&self.base_url).unwrap_or_else(|| "the endpoint".into())
    }

    /// The model of a ticket: the same for the same seed.
    #[must_use]
    pub fn model(&self, seed: u64, ticket: u64) -> &str {
        let total: f64 = self.models.iter().map(|(_, weight)| weight).sum();
        let mut left = Stream::new(seed, "model").uniform(ticket) * total;
        for (name, weight) in &self.models {
            left -= weight;
            if left < 0.0 {
                return name;
            }
        }
        self.models.last().map_or("", |(name, _)| name)
    }

    /// Tokens that a model can read and write together.
    #[must_use]
    pub fn context(&self, model: &str) -> usize {
        let stated = self.context_tokens.get(model).copied();
        stated.or_else(|| self.prices.context(model)).unwrap_or(CONTEXT_TOKENS)
    }

    /// A nominal pause as it is slept.
    #[must_use]
    pub(super) fn scaled(&self, pause: Duration) -> Duration {
        pause.mul_f64(self.time_scale)
    }
}

/// Reads `a:2,b:1`; a model without a weight has 1. A name may have colons of its own (`llama3:8b`): only a number behind
/// the last one is a weight.
///
/// # Errors
/// [`LanguageError::Setting`]: an empty name, or a weight that is not a positive number.
pub fn weighted(models: &str) -> Result<Vec<(String, f64)>, LanguageError> {
    models
        .split(',')
        .map(|model| {
            let model = model.trim();
            let (name, weight) = match model.rsplit_once(':') {
                Some((name, weight)) => match weight.parse::<f64>() {
                    Ok(weight) => (name, weight),
                    Err(_) => (model, 1.0),
                },
                None => (model, 1.0),
            };
            if name.is_empty() || !weight.is_finite() || weight <= 0.0 {
                let why = format!("`--model {models}`: `{model}` is not `NAME` or `NAME:WEIGHT` with a weight above 0");
                return Err(LanguageError::Setting(why));
            }
            Ok((name.to_owned(), weight))
        })
        .collect()
}

/// The address as requests need it.
fn address(base_url: &str) -> Result<String, LanguageError> {
    let wrong = |why: &str| Err(LanguageError::Setting(format!("OPENAI_BASE_URL {why}")));
    let trimmed = base_url.trim().trim_end_matches('/');
    let trimmed = trimmed.strip_suffix("/chat/completions").unwrap_or(trimmed).trim_end_matches('/');
    let Ok(url) = Url::parse(trimmed) else {
        return wrong("is not an address; it looks like http://localhost:8000/v1");
    };
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return wrong("does not begin with http:// or https://; it looks like http://localhost:8000/v1");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return wrong("has a user or a password in it; put the key into OPENAI_API_KEY instead");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return wrong("has a `?` or `#` in it; give the part before /chat/completions alone");
    }
    Ok(trimmed.to_owned())
}

/// Host and port of an address.
fn host(base_url: &str) -> Option<String> {
    let url = Url::parse(base_url).ok()?;
    let name = url.host_str()?;
    Some(url.port().map_or_else(|| name.to_owned(), |port| format!("{name}:{port}")))
}

fn header_value(name: &str, value: Option<String>) -> Result<String, LanguageError> {
    let value = value.unwrap_or_default();
    if value.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(value)
    } else {
        Err(LanguageError::Setting(format!("{name} has a character that no identifier has")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn models_have_weights_and_may_have_colons() {
        assert_eq!(weighted("a:2,b:1").expect("read"), [("a".into(), 2.0), ("b".into(), 1.0)]);
        assert_eq!(weighted("gpt").expect("read"), [("gpt".into(), 1.0)]);
        assert_eq!(weighted("llama3:8b").expect("read"), [("llama3:8b".into(), 1.0)]);
        assert_eq!(weighted("llama3:8b:0.5, x").expect("read"), [("llama3:8b".into(), 0.5), ("x".into(), 1.0)]);
        for wrong in ["", "a,,b", ":2", "a:0", "a:-1", "a:nan", "a:inf"] {
            assert!(weighted(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn models_are_drawn_by_their_weights_and_the_same_each_time() {
        let models = weighted("a:3,b:1").expect("read");
        let settings = Settings::new("http://localhost/v1", Secret::default(), models).expect("sound");
        let of_a = (0..2000).filter(|ticket| settings.model(7, *ticket) == "a").count();
        assert!((1400..1600).contains(&of_a), "{of_a}");
        assert_eq!(settings.model(7, 11), settings.model(7, 11));
    }

    #[test]
    fn addresses_are_brought_into_one_form_or_refused() {
        for (given, taken) in [
            ("http://localhost:8000/v1/", "http://localhost:8000/v1"),
            ("http://localhost:8000/v1/chat/completions", "http://localhost:8000/v1"),
            (" https://api.openai.com/v1", "https://api.openai.com/v1"),
        ] {
            assert_eq!(address(given).expect(given), taken);
        }
        for wrong in ["localhost:8000", "", "ftp://x/v1", "http://me:pass@x/v1", "https://x/v1?a=b", "http://"] {
            let error = address(wrong).expect_err(wrong).to_string();
            assert!(!error.contains("pass@"), "{error}");
        }
    }

    #[test]
    fn the_environment_says_what_is_missing() {
        let none = Settings::from_environment(Some("m"), &variables(&[])).expect_err("no key").to_string();
        assert!(none.contains("OPENAI_API_KEY is not set"), "{none}");
        let local = variables(&[("OPENAI_BASE_URL", "http://localhost:8000/v1")]);
        assert!(Settings::from_environment(Some("m"), &local).is_ok());
        let none = Settings::from_environment(None, &local).expect_err("no model").to_string();
        assert!(none.contains("--model"), "{none}");
        let odd = variables(&[("OPENAI_API_KEY", "sk-a b-c-d-e")]);
        let odd = Settings::from_environment(Some("m"), &odd).expect_err("a blank").to_string();
        assert!(!odd.contains("sk-a"), "{odd}");
    }
}
