//! From status and body to a [`Failure`]: no effects.

use std::time::Duration;

use jiff::Timestamp;

use super::{Body, Failure, Kind, one_line};

/// Fields of a request that a server may do without; one that it does not know is left out from then on.
pub const OPTIONAL: [&str; 2] = ["stream_options", "stream"];
/// Not a field: a message with the role `system`.
pub const SYSTEM: &str = "system";

/// What a server that answered with an error means. `sent` are the fields that can be left out.
#[must_use]
pub fn told(status: Option<u16>, body: &Body, sent: &[&str], retry_after: Option<Duration>) -> Failure {
    let kind = kind(status, body, sent);
    let words = if body.message.is_empty() { one_line(&body.words()) } else { one_line(&body.message) };
    Failure { kind, status, words, retry_after }
}

fn kind(status: Option<u16>, body: &Body, sent: &[&str]) -> Kind {
    let words = body.words();
    let has = |any: &[&str]| any.iter().any(|word| words.contains(word));
    // An error in a stream brings its status as a code.
    let status = status.filter(|status| *status != 200).or_else(|| body.code.parse().ok());
    if status == Some(402)
        || has(&["insufficient_quota", "exceeded your current quota", "billing_hard_limit", "insufficient balance"])
        || has(&["credit balance is too low", "insufficient credits", "not enough credits", "billing_not_active"])
    {
        return Kind::Spent;
    }
    if has(&[
        "context_length_exceeded",
        "maximum context length",
        "exceed_context_size",
        "context size has been exceeded",
    ]) || has(&["prompt is too long", "exceeds the available context", "exceeds context", "too many input tokens"])
        || has(&["longer than the model's context", "reduce the length of the messages"])
        || status == Some(413)
    {
        return Kind::TooLong(limit(&words));
    }
    if has(&["content_filter", "content_policy", "content management policy", "responsibleai"]) {
        return Kind::Filtered;
    }
    let named = has(&["does not exist", "not found", "not exist", "no such", "not available"]);
    let unknown = has(&["model_not_found", "unknown model", "invalid model", "not a valid model", "model not found"]);
    if matches!(status, Some(400 | 403 | 404 | 422) | None) && (unknown || words.contains("model") && named) {
        return Kind::NoModel;
    }
    if matches!(status, Some(400 | 404 | 405 | 415 | 422 | 501) | None)
        && let Some(name) = parameter(body, &words, sent)
    {
        return Kind::Parameter(name);
    }
    if matches!(status, Some(401 | 403)) || has(&["invalid_api_key", "api key not valid", "authentication_error"]) {
        return Kind::Key;
    }
    match status {
        Some(429) => Kind::RateLimited,
        Some(408 | 504) => Kind::Silent,
        Some(404 | 405 | 410) | Some(300..=399) => Kind::NoPlace,
        Some(409 | 425) | Some(500..=599) => Kind::Overloaded,
        Some(400..=499) => Kind::BadRequest,
        _ if has(&["rate limit", "rate_limit", "too many requests"]) => Kind::RateLimited,
        _ if has(&["overloaded", "server_error", "internal", "unavailable", "timeout", "capacity"]) => Kind::Overloaded,
        _ => Kind::Odd,
    }
}

/// The field that it does not know, if it is one that can be left out.
fn parameter(body: &Body, words: &str, sent: &[&str]) -> Option<String> {
    let complaint = ["unsupported", "unrecognized", "unrecognised", "unknown", "not supported", "does not support"]
        .iter()
        .chain(&["extra inputs", "extra fields", "not permitted", "invalid", "unexpected", "additional properties"])
        .chain(&["not allowed", "not implemented", "only supported", "must be"])
        .any(|word| words.contains(word));
    if !complaint {
        return None;
    }
    // The longest first: `stream_options` has `stream` in it.
    let mut names: Vec<&str> = sent.to_vec();
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    let named = names.iter().find(|name| body.param == **name || body.param.ends_with(&format!(".{name}")));
    let named = named.or_else(|| names.iter().find(|name| **name != SYSTEM && word_in(words, &name.to_lowercase())));
    let system = sent.contains(&SYSTEM) && words.contains("system") && words.contains("role");
    named.map(|name| (*name).to_owned()).or_else(|| system.then(|| SYSTEM.to_owned()))
}

/// Whether `word` stands in `text` as an identifier of its own.
fn word_in(text: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    text.match_indices(word)
        .any(|(at, _)| !part(text[..at].chars().next_back()) && !part(text[at + word.len()..].chars().next()))
}

/// The length of the context, as a message names it: the number after `context length`, `context size` or `n_ctx`,
/// within a few words.
fn limit(words: &str) -> Option<usize> {
    ["maximum context length", "context length", "available context size", "context size", "n_ctx", "context window"]
        .iter()
        .filter_map(|phrase| words.find(phrase).map(|at| &words[at + phrase.len()..]))
        .find_map(|rest| {
            let near: String = rest.chars().take(40).collect();
            let digits: String = near
                .chars()
                .skip_while(|c| !c.is_ascii_digit())
                .take_while(|c| c.is_ascii_digit() || matches!(c, ',' | '_'))
                .filter(char::is_ascii_digit)
                .collect();
            digits.parse().ok().filter(|limit| *limit >= 256)
        })
}

/// How long a server asks to wait: `retry-after-ms`, or `Retry-After` as seconds or as a date.
#[must_use]
pub fn retry_after(milliseconds: Option<&str>, after: Option<&str>, now: Timestamp) -> Option<Duration> {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite() && (0.0..=1e9).contains(n));
    if let Some(milliseconds) = milliseconds.and_then(number) {
        return Some(Duration::from_secs_f64(milliseconds / 1000.0));
    }
    let after = after?;
    if let Some(seconds) = number(after) {
        return Some(Duration::from_secs_f64(seconds));
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(after.trim()).ok()?;
    // A date that is over asks for nothing.
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}
