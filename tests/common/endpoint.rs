//! A chat endpoint over real HTTP, whose every answer is scripted: latency, status, headers, body, broken connections.
//!
//! It is written on plain sockets, so that it can do what no honest server library lets one do.
#![allow(clippy::unwrap_used, dead_code)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its number, from 1.
    pub number: usize,
    pub path: String,
    /// By their names in small letters.
    pub headers: BTreeMap<String, String>,
    pub body: Value,
    /// When it came, since the endpoint was started.
    pub at: Duration,
}

impl Request {
    pub fn model(&self) -> &str {
        self.body["model"].as_str().unwrap_or_default()
    }

    pub fn streams(&self) -> bool {
        self.body["stream"] == true
    }

    /// Roles of its messages.
    pub fn roles(&self) -> Vec<&str> {
        self.messages().map(|message| message["role"].as_str().unwrap_or_default()).collect()
    }

    /// The text of its last message.
    pub fn last(&self) -> &str {
        self.messages().last().and_then(|message| message["content"].as_str()).unwrap_or_default()
    }

    /// All its texts.
    pub fn text(&self) -> String {
        self.messages().filter_map(|message| message["content"].as_str()).collect::<Vec<_>>().join("\n")
    }

    fn messages(&self) -> impl Iterator<Item = &Value> {
        self.body["messages"].as_array().into_iter().flatten()
    }
}

/// How a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With `[DONE]`.
    Done,
    /// The connection breaks, so that a client can see it.
    Broken,
    /// The connection is closed as if all had been said.
    Closed,
    /// It stays open, and nothing more comes.
    Silent,
}

#[derive(Debug, Clone)]
enum Body {
    /// A reply, streamed if that was asked for.
    Reply { text: String, finish: Option<String>, usage: Option<(u64, u64)> },
    /// The values of a stream, as they are.
    Events { events: Vec<String>, end: End },
    /// Anything.
    Text { kind: String, text: String },
    /// The connection is closed without an answer.
    Nothing,
    /// The connection stays open without an answer.
    Silence,
}

/// A scripted answer.
#[derive(Debug, Clone)]
pub struct Answer {
    after: Duration,
    gate: Option<Gate>,
    status: u16,
    headers: Vec<(String, String)>,
    body: Body,
}

/// Holds answers back until it is opened.
pub type Gate = Arc<AtomicBool>;

/// A closed gate.
pub fn gate() -> Gate {
    Arc::new(AtomicBool::new(false))
}

/// Opens a gate.
pub fn open(gate: &Gate) {
    gate.store(true, Ordering::SeqCst);
}

impl Answer {
    fn new(status: u16, body: Body) -> Self {
        Self { after: Duration::ZERO, gate: None, status, headers: Vec::new(), body }
    }

    /// A complete reply with its usage.
    pub fn says(text: &str) -> Self {
        Self::new(200, Body::Reply { text: text.into(), finish: Some("stop".into()), usage: Some((1000, 100)) })
    }

    /// A reply that ends for a reason; `None` leaves the reason out, and no tokens are counted.
    pub fn ends(text: &str, finish: Option<&str>) -> Self {
        Self::new(200, Body::Reply { text: text.into(), finish: finish.map(str::to_owned), usage: None })
    }

    /// The values of a stream.
    pub fn events(events: &[Value], end: End) -> Self {
        Self::new(200, Body::Events { events: events.iter().map(Value::to_string).collect(), end })
    }

    /// The values of a stream, not even JSON.
    pub fn raw_events(events: &[&str], end: End) -> Self {
        Self::new(200, Body::Events { events: events.iter().map(|event| (*event).to_owned()).collect(), end })
    }

    /// A status with a body of JSON.
    pub fn error(status: u16, body: &Value) -> Self {
        Self::new(status, Body::Text { kind: "application/json".into(), text: body.to_string() })
    }

    /// A status with a body of any kind.
    pub fn text(status: u16, kind: &str, text: &str) -> Self {
        Self::new(status, Body::Text { kind: kind.into(), text: text.into() })
    }

    /// No answer, and the connection closed.
    pub fn hangs_up() -> Self {
        Self::new(200, Body::Nothing)
    }

    /// No answer, and the connection open.
    pub fn is_silent() -> Self {
        Self::new(200, Body::Silence)
    }

    /// Whether it is a reply that a model finished.
    pub fn is_reply(&self) -> bool {
        matches!(&self.body, Body::Reply { finish: Some(finish), text, .. } if finish == "stop" && !text.is_empty())
    }

    /// With a pause before it.
    pub fn after(mut self, pause: Duration) -> Self {
        self.after = pause;
        self
    }

    /// Not before a gate is open.
    pub fn behind(mut self, gate: &Gate) -> Self {
        self.gate = Some(Arc::clone(gate));
        self
    }

    /// With a header.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

type Script = Box<dyn FnMut(&Request) -> Answer + Send>;

struct Shared {
    began: Instant,
    script: Mutex<Script>,
    requests: Mutex<Vec<Request>>,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
    stopped: AtomicBool,
}

/// A chat endpoint; it ends when it is dropped.
pub struct Endpoint {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Starts one that answers by `script`.
    pub fn start(script: impl FnMut(&Request) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            began: Instant::now(),
            script: Mutex::new(Box::new(script)),
            requests: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            most_in_flight: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        let listening = thread::spawn(move || {
            for connection in listener.incoming() {
                if serving.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(connection) = connection else { continue };
                let serving = Arc::clone(&serving);
                // Its end is not waited for: a client that went away breaks the connection.
                thread::spawn(move || serve(&serving, connection));
            }
        });
        Self { address, shared, listening: Some(listening) }
    }

    /// Starts one that gives these answers in turn, the last one again and again.
    pub fn in_turn(answers: Vec<Answer>) -> Self {
        let mut next = 0;
        Self::start(move |_| {
            let answer = answers[next.min(answers.len() - 1)].clone();
            next += 1;
            answer
        })
    }

    /// What goes into `OPENAI_BASE_URL`.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// All requests so far, in the order in which they came.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// The most requests that were open at the same time.
    pub fn most_in_flight(&self) -> usize {
        self.shared.most_in_flight.load(Ordering::SeqCst)
    }

    /// Requests that are open now.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::SeqCst)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the listener, which then sees that it is over.
        let _ = TcpStream::connect(self.address);
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
    }
}

/// An address where nobody listens: tcpmux, which no machine of today has.
pub const NOBODY: &str = "http://127.0.0.1:1/v1";

fn serve(shared: &Shared, mut connection: TcpStream) {
    let Some((path, headers, body)) = read(&connection) else { return };
    let now = shared.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
    shared.most_in_flight.fetch_max(now, Ordering::SeqCst);
    let (request, answer) = {
        // One lock for both, so that numbers and script agree.
        let mut requests = shared.requests.lock().unwrap();
        let request = Request { number: requests.len() + 1, path, headers, body, at: shared.began.elapsed() };
        requests.push(request.clone());
        let answer = (shared.script.lock().unwrap())(&request);
        (request, answer)
    };
    wait(shared, answer.after);
    while answer.gate.as_ref().is_some_and(|gate| !gate.load(Ordering::SeqCst)) && !gone(shared, &connection) {
        thread::sleep(Duration::from_millis(2));
    }
    // A client that gave up is no fault of the server's.
    let _ = answer_with(shared, &mut connection, &request, &answer);
    let _ = connection.shutdown(Shutdown::Both);
    shared.in_flight.fetch_sub(1, Ordering::SeqCst);
}

fn wait(shared: &Shared, pause: Duration) {
    let until = Instant::now() + pause;
    while Instant::now() < until && !shared.stopped.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(5).min(pause));
    }
}

/// Whether the client went away or the endpoint ends; looks for a few milliseconds.
fn gone(shared: &Shared, connection: &TcpStream) -> bool {
    let _ = connection.set_read_timeout(Some(Duration::from_millis(10)));
    let waits = |kind| matches!(kind, std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
    let away = match connection.peek(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => !waits(error.kind()),
    };
    away || shared.stopped.load(Ordering::SeqCst)
}

fn stay_silent(shared: &Shared, connection: &TcpStream) {
    while !gone(shared, connection) {}
}

fn read(connection: &TcpStream) -> Option<(String, BTreeMap<String, String>, Value)> {
    let mut reader = BufReader::new(connection);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
    let path = line.split_whitespace().nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.trim().to_owned()),
            None => break,
        };
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, headers, serde_json::from_slice(&body).unwrap_or(Value::Null)))
}

fn answer_with(shared: &Shared, connection: &mut TcpStream, request: &Request, answer: &Answer) -> std::io::Result<()> {
    match &answer.body {
        Body::Nothing => Ok(()),
        Body::Silence => {
            stay_silent(shared, connection);
            Ok(())
        }
        Body::Text { kind, text } => whole(connection, answer, kind, text),
        Body::Reply { text, finish, usage } if !request.streams() => {
            let mut reply = json!({"choices": [{"message": {"role": "assistant", "content": text}}]});
            if let Some(finish) = finish {
                reply["choices"][0]["finish_reason"] = json!(finish);
            }
            if let Some((read, written)) = usage {
                reply["usage"] = json!({"prompt_tokens": read, "completion_tokens": written});
            }
            whole(connection, answer, "application/json", &reply.to_string())
        }
        Body::Reply { text, finish, usage } => {
            let mut events: Vec<Value> = pieces(text)
                .map(|piece| json!({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": null}]}))
                .collect();
            if let Some(finish) = finish {
                events.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}));
            }
            if let Some((read, written)) = usage {
                events.push(json!({"choices": [], "usage": {"prompt_tokens": read, "completion_tokens": written}}));
            }
            let events: Vec<String> = events.iter().map(Value::to_string).collect();
            stream(shared, connection, answer, &events, End::Done)
        }
        Body::Events { events, end } => stream(shared, connection, answer, events, *end),
    }
}

/// A text in pieces of some size, cut where no character is cut.
fn pieces(text: &str) -> impl Iterator<Item = String> {
    let characters: Vec<char> = text.chars().collect();
    let pieces: Vec<String> = characters.chunks(500).map(|piece| piece.iter().collect()).collect();
    pieces.into_iter()
}

fn head(answer: &Answer, more: &str) -> String {
    let mut head = format!("HTTP/1.1 {} Scripted\r\nconnection: close\r\n{more}", answer.status);
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head + "\r\n"
}

fn whole(connection: &mut TcpStream, answer: &Answer, kind: &str, text: &str) -> std::io::Result<()> {
    let head = head(answer, &format!("content-type: {kind}\r\ncontent-length: {}\r\n", text.len()));
    connection.write_all(head.as_bytes())?;
    connection.write_all(text.as_bytes())
}

fn stream(
    shared: &Shared,
    connection: &mut TcpStream,
    answer: &Answer,
    events: &[String],
    end: End,
) -> std::io::Result<()> {
    // Without chunks a client cannot tell a stream that was cut off from one that is over.
    let chunked = end != End::Closed;
    let encoding = if chunked { "transfer-encoding: chunked\r\n" } else { "" };
    connection.write_all(head(answer, &format!("content-type: text/event-stream\r\n{encoding}")).as_bytes())?;
    let mut send = |event: &str| {
        let text = format!("data: {event}\n\n");
        let text = if chunked { format!("{:x}\r\n{text}\r\n", text.len()) } else { text };
        connection.write_all(text.as_bytes())
    };
    for event in events {
        send(event)?;
    }
    match end {
        End::Done => {
            send("[DONE]")?;
            connection.write_all(b"0\r\n\r\n")
        }
        End::Broken | End::Closed => Ok(()),
        End::Silent => {
            stay_silent(shared, connection);
            Ok(())
        }
    }
}
