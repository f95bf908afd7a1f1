//! A reply, put together from the pieces of a stream or from one answer: no effects.

use serde_json::Value;

use super::failure::{Body, Failure, Kind, told};

/// The longest reply that is read, thoughts included, in bytes: a server that never ends must not fill the memory.
pub const LONGEST: usize = 8 << 20;
/// Bytes of a token, where the server does not count. English text has about four, code three.
pub const BYTES_PER_TOKEN: f64 = 3.5;

/// Why a reply ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// It is complete.
    Stop,
    /// The length limit.
    Length,
    /// A content filter.
    Filter,
}

/// Tokens, as the server counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCount {
    /// Read.
    pub tokens_in: u64,
    /// Written, thoughts included.
    pub tokens_out: u64,
}

/// A reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Completion {
    /// Its text.
    pub text: String,
    /// A refusal, where the server tells it from text.
    pub refusal: String,
    /// Bytes of thoughts, which are counted and thrown away.
    pub thought: usize,
    /// Why it ends; `None` where nobody said: it may have been cut off.
    pub finish: Option<Finish>,
    /// Tokens, where the server counts.
    pub usage: Option<TokenCount>,
    /// Values that had the form of an answer.
    pub values: usize,
}

impl Completion {
    /// Takes up the next value of a stream, or a whole answer. Small servers leave out what is optional and some of what
    /// is not; all that is asked for is text.
    ///
    /// # Errors
    /// The value is an error, or the reply has no end.
    pub fn push(&mut self, value: &Value) -> Result<(), Failure> {
        if let Some(body) = Body::within(value) {
            return Err(told(None, &body, &[], None));
        }
        self.values += usize::from(value.get("choices").is_some());
        if let Some(usage) = usage(value) {
            self.usage = Some(usage);
        }
        // A server may put several choices side by side; the first is the reply.
        let first = |choice: &&Value| choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0;
        let choices = value.get("choices").and_then(Value::as_array);
        let Some(choice) = choices.and_then(|choices| choices.iter().find(first)) else { return Ok(()) };
        let piece = choice.get("delta").or_else(|| choice.get("message")).filter(|piece| piece.is_object());
        if let Some(piece) = piece {
            add_text(&mut self.text, piece.get("content"));
            add_text(&mut self.refusal, piece.get("refusal"));
            for thought in ["reasoning_content", "reasoning"] {
                self.thought += piece.get(thought).and_then(Value::as_str).map_or(0, str::len);
            }
        }
        add_text(&mut self.text, choice.get("text"));
        self.finish = match choice.get("finish_reason").and_then(Value::as_str) {
            None | Some("") => self.finish,
            Some("length" | "max_tokens") => Some(Finish::Length),
            Some("content_filter" | "safety") => Some(Finish::Filter),
            Some("error") => return Err(Failure::new(Kind::Dropped, "the server ended the reply with an error")),
            Some(_) => Some(Finish::Stop),
        };
        if self.bytes() > LONGEST {
            return Err(Failure::new(Kind::CutShort, "it has no end"));
        }
        Ok(())
    }

    /// Bytes written so far, thoughts included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text.len() + self.refusal.len() + self.thought
    }

    /// The reply's text, if it has one; else what is wrong with it.
    ///
    /// # Errors
    /// [`Kind::Refused`], [`Kind::Filtered`], [`Kind::CutShort`], [`Kind::Dropped`], [`Kind::Odd`] or [`Kind::Empty`].
    pub fn check(&self) -> Result<(), Failure> {
        if !self.text.trim().is_empty() {
            return match self.finish {
                Some(Finish::Filter) => Err(Failure::new(Kind::Filtered, "")),
                _ => Ok(()),
            };
        }
        if !self.refusal.trim().is_empty() {
            return Err(Failure::new(Kind::Refused, &self.refusal));
        }
        Err(match self.finish {
            Some(Finish::Filter) => Failure::new(Kind::Filtered, ""),
            Some(Finish::Length) => Failure::new(Kind::CutShort, "it thought until the limit and wrote nothing"),
            Some(Finish::Stop) => Failure::new(Kind::Empty, ""),
            None if self.values == 0 => Failure::new(Kind::Odd, "no reply is in it"),
            None => Failure::new(Kind::Dropped, "it ended before the reply began"),
        })
    }
}

/// Tokens of a text by its length.
#[must_use]
pub fn tokens(bytes: usize) -> u64 {
    (bytes as f64 / BYTES_PER_TOKEN).ceil() as u64
}

/// Adds a text, or the texts of a list of parts.
fn add_text(to: &mut String, from: Option<&Value>) {
    match from {
        Some(Value::String(text)) => to.push_str(text),
        Some(Value::Array(parts)) => parts.iter().for_each(|part| add_text(to, part.get("text"))),
        _ => {}
    }
}

fn usage(value: &Value) -> Option<TokenCount> {
    let usage = value.get("usage").filter(|usage| usage.is_object())?;
    let count = |name: &str| usage.get(name).and_then(Value::as_u64);
    match (count("prompt_tokens"), count("completion_tokens")) {
        (None, None) => None,
        (read, written) => {
            Some(TokenCount { tokens_in: read.unwrap_or_default(), tokens_out: written.unwrap_or_default() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn put_together(values: &[Value]) -> Completion {
        let mut completion = Completion::default();
        values.iter().for_each(|value| completion.push(value).expect("a piece"));
        completion
    }

    #[test]
    fn a_stream_is_put_together() {
        let whole = put_together(&[
            json!({"choices": [{"delta": {"role": "assistant", "content": null}}]}),
            json!({"choices": [{"delta": {"reasoning_content": "hmm"}}]}),
            json!({"choices": [{"delta": {"content": "a"}, "finish_reason": null}]}),
            json!({"choices": [{"delta": {"content": "b"}}, {"index": 1, "delta": {"content": "X"}}]}),
            json!({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": null}),
            json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}),
        ]);
        assert_eq!(whole.text, "ab");
        assert_eq!(whole.thought, 3);
        assert_eq!(whole.finish, Some(Finish::Stop));
        assert_eq!(whole.usage, Some(TokenCount { tokens_in: 7, tokens_out: 2 }));
        whole.check().expect("a reply");
    }

    #[test]
    fn the_least_answer_is_enough() {
        for least in [
            json!({"choices": [{"message": {"content": "a"}}]}),
            json!({"choices": [{"text": "a"}]}),
            json!({"choices": [{"message": {"content": [{"type": "text", "text": "a"}]}}]}),
        ] {
            let whole = put_together(&[least]);
            assert_eq!((whole.text.as_str(), whole.finish, whole.usage), ("a", None, None));
            whole.check().expect("a reply");
        }
    }

    #[test]
    fn what_is_no_reply_has_its_own_kind() {
        let kind = |value: Value| put_together(&[value]).check().expect_err("nothing to read").kind;
        let ends = |reason: &str| json!({"choices": [{"delta": {"content": ""}, "finish_reason": reason}]});
        assert_eq!(kind(ends("stop")), Kind::Empty);
        assert_eq!(kind(ends("length")), Kind::CutShort);
        assert_eq!(kind(ends("content_filter")), Kind::Filtered);
        assert_eq!(kind(json!({"choices": [{"delta": {"refusal": "I can't"}}]})), Kind::Refused);
        assert_eq!(kind(json!({"choices": []})), Kind::Dropped);
        assert_eq!(kind(json!({"hello": "world"})), Kind::Odd);
        assert_eq!(kind(json!([1, "x", null])), Kind::Odd);
        let filtered = json!({"choices": [{"message": {"content": "half a"}, "finish_reason": "content_filter"}]});
        assert_eq!(kind(filtered), Kind::Filtered);
    }

    #[test]
    fn an_error_among_the_pieces_ends_the_reply() {
        let mut completion = Completion::default();
        let error =
            completion.push(&json!({"error": {"message": "out of memory", "code": 500}})).expect_err("an error");
        assert_eq!(error.kind, Kind::Overloaded);
        let error = completion.push(&json!({"choices": [{"delta": {}, "finish_reason": "error"}]}));
        assert_eq!(error.expect_err("an error").kind, Kind::Dropped);
    }

    #[test]
    fn a_reply_without_end_is_cut() {
        let mut completion = Completion::default();
        let piece = json!({"choices": [{"delta": {"content": "x".repeat(1 << 20)}}]});
        let ended = (0..20).find_map(|_| completion.push(&piece).err()).expect("it is noticed");
        assert_eq!(ended.kind, Kind::CutShort);
    }
}
