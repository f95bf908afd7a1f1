//! Every way in which a request can fail, and the proposal that comes of it all the same.

use std::time::Duration;

use serde_json::{Value, json};
use warpsmith::agent::Agent;
use warpsmith::agent::language::Secret;
use warpsmith::agent::transcript::Transcript;

use crate::endpoint::{Answer, End, Endpoint, Request};
use crate::place::{KEY, agent, agent_with, brief, changed, incumbent, offer, proposal, reply, settings};

/// Answers once with `failure`, and well from then on: the proposal comes, and the trouble is said. Gives the requests
/// and the troubles.
async fn survives(what: &str, failure: Answer) -> (Vec<Request>, Vec<String>) {
    let endpoint = Endpoint::in_turn(vec![failure, Answer::says(&reply("good"))]);
    let mut agent = agent(&endpoint.url());
    let proposal = proposal(offer(&mut agent, &brief(&incumbent())).await);
    assert_eq!(proposal.text, changed(&incumbent(), "good"), "{what}");
    assert_eq!(proposal.by.as_deref(), Some("model-a"), "{what}");
    let usage = agent.usage();
    assert!(usage.troubles.iter().all(|trouble| !trouble.contains(KEY)), "{what}: {:?}", usage.troubles);
    (endpoint.requests(), usage.troubles)
}

fn piece(text: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]})
}

#[tokio::test]
async fn what_passes_is_tried_again() {
    let half = reply("good");
    let half = &half[..half.len() / 2];
    let limited = json!({"error": {"message": "Rate limit reached", "type": "tokens", "code": "rate_limit_exceeded"}});
    let failures = [
        ("limited", Answer::error(429, &limited), "limits the rate"),
        ("limited, in plain text", Answer::text(429, "text/plain", "slow down"), "limits the rate"),
        (
            "limited, with a date",
            Answer::error(429, &limited).with("retry-after", "Sat, 21 Nov 2020 07:28:00 GMT"),
            "limits",
        ),
        ("a fault in HTML", Answer::text(500, "text/html", "<title>oops</title>"), "status 500 (oops)"),
        ("a bad gateway", Answer::text(502, "text/plain", ""), "status 502"),
        ("a code that is a number", Answer::error(503, &json!({"error": {"message": "busy", "code": 503}})), "(busy)"),
        ("an overload", Answer::error(529, &json!({"type": "error", "error": {"type": "overloaded_error"}})), "529"),
        ("an error that is a word", Answer::error(500, &json!({"error": "boom"})), "(boom)"),
        ("a body that is no JSON", Answer::text(500, "application/json", "{\"error\": "), "status 500"),
        ("no answer", Answer::hangs_up(), "broke off"),
        ("a broken stream", Answer::events(&[piece(half)], End::Broken), "broke off"),
        (
            "an error in the stream",
            Answer::events(&[piece(half), json!({"error": {"message": "oom", "code": 500}})], End::Done),
            "(oom)",
        ),
        ("a stream of something else", Answer::raw_events(&["hello"], End::Done), "not JSON"),
        ("an empty stream", Answer::events(&[], End::Done), "not as a chat endpoint"),
        ("an empty reply", Answer::ends("", Some("stop")), "empty reply"),
        ("a page", Answer::text(200, "text/html", "<title>Sign in</title>"), "(Sign in)"),
        ("JSON of something else", Answer::error(200, &json!({"status": "ok"})), "not as a chat endpoint"),
        (
            "a refusal",
            Answer::events(&[json!({"choices": [{"delta": {"refusal": "I can't"}}]})], End::Done),
            "refused (I can't)",
        ),
        ("a filter", Answer::ends(half, Some("content_filter")), "content filter"),
    ];
    for (what, failure, said) in failures {
        let (requests, mut troubles) = survives(what, failure).await;
        assert_eq!(requests.len(), 2, "{what}");
        troubles.retain(|trouble| !trouble.contains("does not count tokens"));
        let [trouble] = troubles.as_slice() else { panic!("{what}: {troubles:?}") };
        assert!(trouble.contains(said) && trouble.ends_with("answered at attempt 2"), "{what}: {trouble}");
    }
}

#[tokio::test]
async fn a_stream_that_ends_without_a_reason_is_asked_for_again() {
    let half = reply("good");
    let (requests, _) = survives("closed", Answer::events(&[piece(&half[..half.len() / 2])], End::Closed)).await;
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].roles(), requests[1].roles(), "the same question");
}

#[tokio::test]
async fn a_silent_server_is_asked_again() {
    for silence in [Answer::is_silent(), Answer::events(&[piece("Hypo")], End::Silent)] {
        let endpoint = Endpoint::in_turn(vec![silence, Answer::says(&reply("good"))]);
        let mut settings = settings(&endpoint.url());
        settings.timeout = Duration::from_secs(1);
        let mut agent = agent_with(settings, Transcript::nowhere());
        proposal(offer(&mut agent, &brief(&incumbent())).await);
        assert!(endpoint.requests().len() >= 2);
    }
}

#[tokio::test]
async fn retry_after_is_waited_for() {
    let limited = Answer::error(429, &json!({"error": {"message": "wait"}})).with("retry-after", "100");
    let (requests, _) = survives("100 s, scaled", limited).await;
    // 100 s are 100 ms here; the endpoint looks at its own clock.
    assert!(requests[1].at - requests[0].at >= Duration::from_millis(100));
}

#[tokio::test]
async fn a_reply_without_code_is_asked_for_again_in_the_form() {
    for (what, answer) in [
        ("chatter", Answer::says("I would unroll the loop.")),
        ("not found", Answer::says(&reply("x").replace("sum *=", "total *="))),
        ("cut off", Answer::ends(&reply("x")[..140], Some("length"))),
        (
            "no change",
            Answer::says(
                "Change:\n<<<<<<< SEARCH\n            sum *= 0.0f;\n=======\n            sum *= 0.0f;\n>>>>>>> REPLACE\n",
            ),
        ),
    ] {
        let (requests, _) = survives(what, answer).await;
        assert_eq!(requests[0].roles(), ["system", "user"], "{what}");
        assert_eq!(requests[1].roles(), ["system", "user", "assistant", "user"], "{what}");
        assert!(!requests[1].text().contains("<think>"), "{what}");
    }
}

#[tokio::test]
async fn what_a_server_does_not_know_is_left_out_from_then_on() {
    let unknown = |name: &str| json!({"error": {"message": format!("Unsupported parameter: '{name}'"), "param": name}});
    let endpoint = Endpoint::start(move |request| match &request.body {
        body if body.get("temperature").is_some() => Answer::error(400, &unknown("temperature")),
        body if body.get("stream_options").is_some() => Answer::error(400, &unknown("stream_options")),
        _ if request.roles().contains(&"system") => Answer::error(400, &json!({"error": "System role not supported"})),
        body if body["stream"] == true => Answer::error(501, &json!({"error": "stream is not implemented"})),
        _ => Answer::says(&reply(&format!("number {}", request.number))),
    });
    let mut settings = settings(&endpoint.url());
    settings.parameters.insert("temperature".into(), json!(0.7));
    let mut agent = agent_with(settings, Transcript::nowhere());
    let brief = brief(&incumbent());
    proposal(offer(&mut agent, &brief).await);
    proposal(offer(&mut agent, &brief).await);
    let requests = endpoint.requests();
    assert_eq!(requests.len(), 6, "four refusals, two replies");
    assert_eq!(requests[5].roles(), ["user"]);
    assert_eq!(requests[5].body["stream"], false);
    let troubles = agent.usage().troubles;
    assert_eq!(troubles.iter().filter(|trouble| trouble.contains("it is asked without")).count(), 4, "{troubles:?}");
}

#[tokio::test]
async fn a_prompt_beyond_the_context_is_made_shorter() {
    let endpoint = Endpoint::start(|request| {
        if request.text().len() > 24_000 {
            let message = "This model's maximum context length is 8192 tokens, your messages have 99999";
            Answer::error(400, &json!({"object": "error", "message": message, "code": 400}))
        } else {
            Answer::says(&reply(&format!("number {}", request.number)))
        }
    });
    let mut brief = brief(&incumbent());
    // A long oracle is what a short context goes without.
    brief.source.header += &format!("/* {} */\n", "a word ".repeat(6000));
    let mut agent = agent(&endpoint.url());
    proposal(offer(&mut agent, &brief).await);
    proposal(offer(&mut agent, &brief).await);
    let requests = endpoint.requests();
    assert_eq!(requests.len(), 3, "it is learnt once");
    assert!(requests[1].text().contains(brief.incumbent.trim()), "the code is whole");
    assert!(agent.usage().troubles.iter().any(|trouble| trouble.contains("8192")));
}

#[tokio::test]
async fn an_answer_in_one_piece_is_taken_where_a_stream_was_asked_for() {
    let whole = json!({"choices": [{"message": {"content": reply("good")}}]});
    let (requests, troubles) = survives("in one piece", Answer::error(200, &whole)).await;
    assert_eq!(requests.len(), 1);
    assert!(troubles.iter().any(|trouble| trouble.contains("does not count tokens")), "{troubles:?}");
}

#[tokio::test]
async fn a_key_that_is_given_back_goes_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let echo = json!({"error": {"message": format!("the key {KEY} is slow today")}});
    let endpoint = Endpoint::in_turn(vec![Answer::error(503, &echo), Answer::says(&reply(&format!("{KEY} good")))]);
    let mut agent = agent_with(settings(&endpoint.url()), Transcript::open(folder.path()).unwrap());
    let mut brief = brief(&incumbent());
    brief.resources = format!("the environment has {KEY}");
    let proposal = proposal(offer(&mut agent, &brief).await);
    let transcript = std::fs::read_to_string(folder.path().join("transcript.jsonl")).unwrap();
    let prompts: String = endpoint.requests().iter().map(Request::text).collect();
    let everything = format!("{proposal:?} {:?} {} {transcript} {prompts}", agent.usage(), agent.save());
    assert!(!everything.contains(KEY) && everything.contains("[key]"));
    assert!(format!("{:?}", Secret::new(KEY)) == "Secret([key])");
}
