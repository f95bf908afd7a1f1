//! The look at an endpoint before any work: one clear sentence for each thing that is wrong.

use std::time::Duration;

use serde_json::json;
use warpsmith::agent::language::{Settings, check, weighted};

use crate::endpoint::{Answer, Endpoint, NOBODY};
use crate::place::{KEY, in_time, settings};

/// The sentence, which is one line, has no key, and says what to do.
async fn sentence(settings: &Settings) -> String {
    let error = in_time(check(settings)).await.expect_err("something is wrong").to_string();
    assert!(!error.contains(KEY), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

async fn sentence_for(answer: Answer) -> String {
    let endpoint = Endpoint::in_turn(vec![answer]);
    sentence(&settings(&endpoint.url())).await
}

#[tokio::test]
async fn an_endpoint_that_answers_is_asked_once_for_each_model() {
    let endpoint = Endpoint::in_turn(vec![Answer::says("yes")]);
    let mut settings = settings(&endpoint.url());
    settings.models = weighted("model-a:2,model-b").unwrap();
    in_time(check(&settings)).await.expect("it answers");
    let requests = endpoint.requests();
    assert_eq!(requests.iter().map(|request| request.model()).collect::<Vec<_>>(), ["model-a", "model-b"]);
    assert!(requests.iter().all(|request| request.path == "/v1/chat/completions"));
    assert!(requests.iter().all(|request| request.headers["authorization"] == format!("Bearer {KEY}")));
    assert!(requests.iter().all(|request| request.text().len() < 50), "it is cheap");
}

#[tokio::test]
async fn a_wrong_key_is_said_and_not_shown() {
    let body = json!({"error": {"message": format!("Incorrect API key provided: {KEY}."), "code": "invalid_api_key"}});
    let said = sentence_for(Answer::error(401, &body)).await;
    assert!(said.contains("refuses the key") && said.contains("OPENAI_API_KEY"), "{said}");
    assert!(said.contains("[key]"), "{said}");
}

#[tokio::test]
async fn a_host_that_cannot_be_reached_is_said() {
    let said = sentence(&settings(NOBODY)).await;
    assert!(said.contains("127.0.0.1:1 cannot be reached") && said.contains("OPENAI_BASE_URL"), "{said}");
    let nowhere = sentence(&settings("http://no-such-host.invalid/v1")).await;
    assert!(nowhere.contains("no-such-host.invalid cannot be reached"), "{nowhere}");
}

#[tokio::test]
async fn an_unknown_model_is_named() {
    let endpoint = Endpoint::start(|request| match request.model() {
        "model-a" => Answer::says("yes"),
        _ => Answer::error(
            404,
            &json!({"error": {"message": "The model `b` does not exist", "code": "model_not_found"}}),
        ),
    });
    let mut settings = settings(&endpoint.url());
    settings.models = weighted("model-a,b").unwrap();
    let said = sentence(&settings).await;
    assert!(said.contains("has no model `b`") && said.contains("--model"), "{said}");
}

#[tokio::test]
async fn a_spent_quota_is_not_taken_for_a_rate_limit() {
    let spent = json!({"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}});
    let said = sentence_for(Answer::error(429, &spent)).await;
    assert!(said.contains("is spent") && said.contains("add credit"), "{said}");
    let limited = json!({"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}});
    let endpoint = Endpoint::in_turn(vec![Answer::error(429, &limited).with("retry-after", "3600")]);
    in_time(check(&settings(&endpoint.url()))).await.expect("the night has time");
}

#[tokio::test]
async fn an_address_that_is_no_endpoint_is_said() {
    let said = sentence_for(Answer::text(404, "text/plain", "404 page not found")).await;
    assert!(said.contains("no chat endpoint") && said.contains("/v1"), "{said}");
    let said = sentence_for(Answer::text(200, "text/html", "<html><title>Welcome to nginx!</title></html>")).await;
    assert!(said.contains("not as a chat endpoint") && said.contains("Welcome to nginx!"), "{said}");
}

#[tokio::test]
async fn a_fault_of_the_servers_is_tried_again_a_little() {
    let fault = Answer::text(500, "text/html", "<html><title>oops</title></html>");
    let endpoint = Endpoint::in_turn(vec![fault.clone(), Answer::hangs_up(), Answer::says("yes")]);
    in_time(check(&settings(&endpoint.url()))).await.expect("the third time");
    let said = sentence_for(fault).await;
    assert!(said.contains("failed with status 500 (oops)"), "{said}");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_not_waited_for_long() {
    let endpoint = Endpoint::in_turn(vec![Answer::is_silent()]);
    let mut settings = settings(&endpoint.url());
    settings.check_within = Duration::from_millis(300);
    let said = sentence(&settings).await;
    assert!(said.contains("silent for too long"), "{said}");
}

#[tokio::test]
async fn a_server_that_knows_little_is_asked_for_less() {
    let unknown = |name: &str| json!({"detail": [{"loc": ["body", name], "msg": "Extra inputs are not permitted"}]});
    let endpoint = Endpoint::start(move |request| match &request.body {
        body if body.get("stream_options").is_some() => Answer::error(422, &unknown("stream_options")),
        body if body["stream"] == true => Answer::error(400, &json!({"error": "stream is not supported"})),
        _ => Answer::says("yes"),
    });
    in_time(check(&settings(&endpoint.url()))).await.expect("it answers in the end");
    assert_eq!(endpoint.requests().len(), 3);
}

#[tokio::test]
async fn without_a_key_none_is_sent() {
    let endpoint = Endpoint::in_turn(vec![Answer::says("yes")]);
    let models = weighted("local").unwrap();
    let keyless = Settings::new(&endpoint.url(), Default::default(), models).unwrap();
    in_time(check(&keyless)).await.expect("it answers");
    assert!(!endpoint.requests()[0].headers.contains_key("authorization"));
}
