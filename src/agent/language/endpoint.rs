//! One request to a chat endpoint: what is sent, and what comes back or goes wrong.
//!
//! `async-openai` builds the requests and reads the streams; requests go through a service of ours, because its own gives
//! up after 0.7 s of retries and forgets the status of errors whose body it cannot read. Replies are streamed wherever
//! the server can: while a slow one writes for half an hour, its words show that it is alive.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Duration;

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use async_openai::middleware::HttpRequestFactory;
use futures_util::StreamExt;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use reqwest::redirect::Policy;
use serde_json::{Map, Value, json};
use tower::service_fn;

use super::completion::{Completion, LONGEST};
use super::failure::{Body, Failure, Kind, OPTIONAL, SYSTEM, one_line, retry_after, told};
use super::secret::Secret;
use super::{LanguageError, Settings};
use crate::agent::prompt::{Message, Role};

/// A host that does not even take the connection is not there.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A reply that is written without pause may take so many times the longest silence.
const WHOLE_REPLY: u32 = 6;

/// A stream longer than this has no end, in bytes: pieces of a few letters come with some hundred bytes around them.
const LONGEST_STREAM: usize = 256 << 20;
/// Fields that settings cannot replace.
const OURS: [&str; 3] = ["model", "messages", "stream"];

/// What a model's server was found to do without.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manner {
    /// Fields that it does not know, and `system` where it knows no such role.
    pub without: BTreeSet<String>,
    /// Its context in tokens, where it has said so.
    pub context: Option<usize>,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The reply, or why there is none.
    pub outcome: Result<Completion, Failure>,
    /// Bytes that were written by then, thoughts included.
    pub written: usize,
}

/// A chat endpoint.
pub struct Endpoint {
    client: Client<OpenAIConfig>,
    key: Secret,
    parameters: Map<String, Value>,
    whole_reply: Duration,
}

/// An answer that is no stream: an error, or a reply in one piece.
#[derive(Debug, thiserror::Error)]
#[error("status {status}")]
struct InOnePiece {
    status: u16,
    retry_after: Option<Duration>,
    body: String,
}

impl Endpoint {
    /// Makes ready to ask. Nothing is sent.
    ///
    /// # Errors
    /// [`LanguageError::Setting`], where there is no certificate to trust.
    pub fn new(settings: &Settings) -> Result<Self, LanguageError> {
        let http = http_client(settings).map_err(|error| {
            let why = format!("no secure connection can be made: {}; are CA certificates installed?", root_of(&error));
            LanguageError::Setting(why)
        })?;
        let config = OpenAIConfig::new()
            .with_api_base(&settings.base_url)
            .with_api_key(settings.api_key.expose())
            .with_org_id(&settings.organization)
            .with_project_id(&settings.project);
        let keyless = settings.api_key.is_empty();
        let service = service_fn(move |factory: HttpRequestFactory| {
            let http = http.clone();
            async move { send(&http, &factory, keyless).await }
        });
        Ok(Self {
            client: Client::with_config(config).with_http_service(service),
            key: settings.api_key.clone(),
            parameters: settings.parameters.clone(),
            whole_reply: settings.timeout.saturating_mul(WHOLE_REPLY),
        })
    }

    /// Asks once.
    pub async fn ask(&self, model: &str, messages: &[Message], manner: &Manner) -> Answer {
        let mut so_far = Completion::default();
        let reply =
            tokio::time::timeout(self.whole_reply, self.read(model, messages, manner, &mut so_far, false)).await;
        let outcome = reply.unwrap_or_else(|_| Err(Failure::new(Kind::Silent, "the reply took too long")));
        self.answer(outcome, so_far)
    }

    /// Whether a model answers at all: ends with the first piece of its reply.
    pub async fn greet(&self, model: &str, manner: &Manner) -> Answer {
        let messages = [Message { role: Role::User, text: "Say yes.".into() }];
        let mut so_far = Completion::default();
        let outcome = self.read(model, &messages, manner, &mut so_far, true).await;
        self.answer(outcome, so_far)
    }

    fn answer(&self, outcome: Result<(), Failure>, mut reply: Completion) -> Answer {
        let written = reply.bytes();
        // A server may give back anything that it was sent.
        reply.text = self.key.redact(&reply.text);
        let outcome = outcome.map(|()| reply).map_err(|failure| {
            let words = one_line(&self.key.redact(&failure.words));
            Failure { words, ..failure }
        });
        Answer { outcome, written }
    }

    async fn read(
        &self,
        model: &str,
        messages: &[Message],
        manner: &Manner,
        reply: &mut Completion,
        first_piece: bool,
    ) -> Result<(), Failure> {
        let (body, sent) = self.body(model, messages, manner);
        let chat = self.client.chat();
        let stream = chat.create_stream_byot::<Value, Value>(Value::Object(body)).await;
        let mut stream = match stream {
            Ok(stream) => stream,
            Err(error) => return self.in_one_piece(error, &sent, reply),
        };
        while let Some(piece) = stream.next().await {
            match piece {
                Ok(value) => reply.push(&value)?,
                Err(error) => return Err(self.failed(error)),
            }
            if first_piece && reply.values > 0 {
                return Ok(());
            }
        }
        if first_piece && reply.values == 0 { reply.check() } else { Ok(()) }
    }

    /// The request, and the names of what could be left out of it.
    fn body(&self, model: &str, messages: &[Message], manner: &Manner) -> (Map<String, Value>, Vec<String>) {
        let system = !manner.without.contains(SYSTEM);
        let mut body = Map::new();
        body.insert("model".into(), json!(model));
        body.insert("messages".into(), said(messages, system, &self.key));
        let streaming = !manner.without.contains("stream");
        let mut optional = self.parameters.clone();
        if streaming {
            optional.insert("stream_options".into(), json!({"include_usage": true}));
        }
        optional.retain(|name, _| !manner.without.contains(name) && !OURS.contains(&name.as_str()));
        let mut sent: Vec<String> = optional.keys().cloned().collect();
        body.extend(optional);
        body.insert("stream".into(), json!(streaming));
        if streaming {
            sent.push(OPTIONAL[1].to_owned());
        }
        if system && messages.iter().any(|message| message.role == Role::System) {
            sent.push(SYSTEM.to_owned());
        }
        (body, sent)
    }

    /// Reads an answer that is no stream.
    fn in_one_piece(&self, error: OpenAIError, sent: &[String], reply: &mut Completion) -> Result<(), Failure> {
        let piece = match error {
            OpenAIError::Boxed(boxed) => match boxed.downcast::<InOnePiece>() {
                Ok(piece) => *piece,
                Err(other) => return Err(Failure::new(Kind::Odd, &other.to_string())),
            },
            other => return Err(self.failed(other)),
        };
        if piece.status == 200
            && let Ok(value) = serde_json::from_str::<Value>(&piece.body)
        {
            return reply.push(&value);
        }
        let body = Body::read(&self.key.redact(&piece.body));
        let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
        Err(told(Some(piece.status), &body, &sent, piece.retry_after))
    }

    fn failed(&self, error: OpenAIError) -> Failure {
        match error {
            OpenAIError::Reqwest(error) => transport(error),
            OpenAIError::StreamError(error) => Failure::new(Kind::Dropped, &error.to_string()),
            OpenAIError::JSONDeserialize(_, text) => {
                Failure::new(Kind::Odd, &format!("a piece of the stream is not JSON: {}", self.key.redact(&text)))
            }
            other => Failure::new(Kind::Odd, &self.key.redact(&other.to_string())),
        }
    }
}

/// Messages as the API has them. Where there is no `system` role, its text goes in front of the next message.
fn said(messages: &[Message], system: bool, key: &Secret) -> Value {
    let mut said = Vec::with_capacity(messages.len());
    let mut in_front = String::new();
    for message in messages {
        let text = key.redact(&message.text);
        if message.role == Role::System && !system {
            in_front.push_str(&text);
            in_front.push_str("\n\n");
        } else {
            let text = std::mem::take(&mut in_front) + &text;
            said.push(json!({"role": role_name(message.role), "content": text}));
        }
    }
    if !in_front.is_empty() {
        said.push(json!({"role": role_name(Role::User), "content": in_front}));
    }
    Value::Array(said)
}

/// A role's name in the API.
pub const fn role_name(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
    }
}

fn http_client(settings: &Settings) -> reqwest::Result<reqwest::Client> {
    // The first one to be installed stays, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = reqwest::Url::parse(&settings.base_url).ok();
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("warpsmith/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_WITHIN.min(settings.timeout))
        .read_timeout(settings.timeout)
        // A redirected POST loses its body or its key; whoever gave the address should know.
        .redirect(Policy::none());
    if url.as_ref().is_some_and(|url| url.scheme() == "http") {
        // Without TLS nobody needs certificates, and a small container has none.
        builder = builder.tls_certs_only([]);
    }
    if url.as_ref().and_then(reqwest::Url::host_str).is_some_and(is_this_machine) {
        // A proxy cannot reach a server on this machine.
        builder = builder.no_proxy();
    }
    builder.build()
}

fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Sends a request; anything but a stream is read to its end here, where status and headers are still known.
async fn send(
    http: &reqwest::Client,
    factory: &HttpRequestFactory,
    keyless: bool,
) -> Result<reqwest::Response, OpenAIError> {
    let mut request = factory.build().await?;
    match request.headers_mut().get_mut(AUTHORIZATION) {
        Some(_) if keyless => drop(request.headers_mut().remove(AUTHORIZATION)),
        Some(value) => value.set_sensitive(true),
        None => {}
    }
    let response = http.execute(request).await.map_err(OpenAIError::Reqwest)?;
    let status = response.status();
    if status.is_success() && !is_document(response.headers()) {
        return Ok(with_an_end(response));
    }
    let retry_after = {
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        retry_after(header("retry-after-ms"), header("retry-after"), jiff::Timestamp::now())
    };
    let body = text_of(response).await.map_err(OpenAIError::Reqwest)?;
    let status = if status.is_success() { 200 } else { status.as_u16() };
    Err(OpenAIError::Boxed(Box::new(InOnePiece { status, retry_after, body })))
}

/// A stream that breaks at [`LONGEST_STREAM`], because its reader keeps a line in memory until it ends.
fn with_an_end(response: reqwest::Response) -> reqwest::Response {
    let mut answer = http::Response::new(());
    *answer.status_mut() = response.status();
    let mut read = 0;
    let stream = response.bytes_stream().map(move |piece| {
        let piece = piece.map_err(std::io::Error::other)?;
        read += piece.len();
        if read > LONGEST_STREAM { Err(std::io::Error::other("the stream has no end")) } else { Ok(piece) }
    });
    answer.map(|()| reqwest::Body::wrap_stream(stream)).into()
}

/// Whether an answer comes in one piece. Some servers name their streams wrongly, so that only JSON and HTML are sure.
fn is_document(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.contains("json") && !kind.contains("ndjson") || kind.contains("html")
}

/// The body's text, of at most [`LONGEST`] bytes.
async fn text_of(mut response: reqwest::Response) -> reqwest::Result<String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > LONGEST {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A failure below HTTP. The address is left out: it stands in every sentence already.
fn transport(error: reqwest::Error) -> Failure {
    let kind = if error.is_connect() {
        Kind::Unreachable
    } else if error.is_timeout() {
        Kind::Silent
    } else if error.is_builder() {
        Kind::BadRequest
    } else {
        Kind::Dropped
    };
    Failure::new(kind, &root_of(&error.without_url()))
}

/// The words of the innermost cause, which is the one that says something.
fn root_of(error: &dyn Error) -> String {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_the_system_role_reads_it_in_front_of_the_first_message() {
        let messages = [
            Message { role: Role::System, text: "rules".into() },
            Message { role: Role::User, text: "task, key sk-0123456789".into() },
        ];
        let key = Secret::new("sk-0123456789");
        assert_eq!(
            said(&messages, true, &key),
            json!([{"role": "system", "content": "rules"}, {"role": "user", "content": "task, key [key]"}])
        );
        assert_eq!(said(&messages, false, &key), json!([{"role": "user", "content": "rules\n\ntask, key [key]"}]));
        assert_eq!(said(&messages[..1], false, &key), json!([{"role": "user", "content": "rules\n\n"}]));
    }

    #[test]
    fn only_this_machine_is_reached_without_a_proxy() {
        for local in ["localhost", "127.0.0.1", "[::1]"] {
            assert!(is_this_machine(local), "{local}");
        }
        for other in ["example.com", "10.0.0.1", "localhost.example.com"] {
            assert!(!is_this_machine(other), "{other}");
        }
    }
}
