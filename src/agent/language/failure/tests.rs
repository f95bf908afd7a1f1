use super::*;

fn kind_of(status: u16, body: &str) -> Kind {
    let sent = ["temperature", "max_completion_tokens", OPTIONAL[0], OPTIONAL[1], SYSTEM];
    told(Some(status), &Body::read(body), &sent, None).kind
}

#[test]
fn bodies_of_any_form_are_classified() {
    let cases: &[(u16, &str, Kind)] = &[
        (401, r#"{"error":{"message":"Incorrect API key provided","code":"invalid_api_key"}}"#, Kind::Key),
        (401, r#"{"detail":"Unauthorized"}"#, Kind::Key),
        (403, "<html><title>403 Forbidden</title></html>", Kind::Key),
        (
            429,
            r#"{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}"#,
            Kind::RateLimited,
        ),
        (429, r#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#, Kind::Spent),
        (402, r#"{"error":{"message":"Insufficient credits","code":402}}"#, Kind::Spent),
        (403, r#"{"error":"insufficient_quota"}"#, Kind::Spent),
        (
            404,
            r#"{"error":{"message":"The model `x` does not exist or you do not have access","code":"model_not_found"}}"#,
            Kind::NoModel,
        ),
        (404, r#"{"object":"error","message":"The model `x` does not exist.","code":404}"#, Kind::NoModel),
        (404, r#"{"error":{"message":"model 'x' not found, try pulling it first"}}"#, Kind::NoModel),
        (400, r#"{"error":{"message":"x is not a valid model ID","code":400}}"#, Kind::NoModel),
        (404, "404 page not found", Kind::NoPlace),
        (404, r#"{"detail":"Not Found"}"#, Kind::NoPlace),
        (301, "", Kind::NoPlace),
        (405, r#"{"detail":"Method Not Allowed"}"#, Kind::NoPlace),
        (500, "", Kind::Overloaded),
        (502, "<html><head><title>502 Bad Gateway</title></head></html>", Kind::Overloaded),
        (503, r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#, Kind::Overloaded),
        (529, r#"{"error":{"type":"overloaded_error"}}"#, Kind::Overloaded),
        (504, "", Kind::Silent),
        (400, r#"[{"error":{"code":400,"message":"API key not valid","status":"INVALID_ARGUMENT"}}]"#, Kind::Key),
        (400, r#"{"error":{"message":"bad","code":null}}"#, Kind::BadRequest),
        (400, "null", Kind::BadRequest),
        (400, r#"{"error":{"message":"Filtered","code":"content_filter"}}"#, Kind::Filtered),
        (413, "", Kind::TooLong(None)),
    ];
    for (status, body, kind) in cases {
        assert_eq!(kind_of(*status, body), *kind, "{status} {body}");
    }
}

#[test]
fn a_context_that_is_too_short_is_read_from_the_message() {
    let cases: &[(&str, Option<usize>)] = &[
        (
            r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, you requested 9000 tokens","code":"context_length_exceeded"}}"#,
            Some(8192),
        ),
        (
            r#"{"object":"error","message":"This model's maximum context length is 32,768 tokens","code":400}"#,
            Some(32768),
        ),
        (
            r#"{"error":{"code":400,"message":"the request exceeds the available context size (4096 tokens), try increasing it","type":"exceed_context_size_error"}}"#,
            Some(4096),
        ),
        (r#"{"error":{"message":"prompt is too long"}}"#, None),
    ];
    for (body, limit) in cases {
        assert_eq!(kind_of(400, body), Kind::TooLong(*limit), "{body}");
    }
}

#[test]
fn an_unknown_parameter_is_named() {
    let cases: &[(&str, &str)] = &[
        (
            r#"{"error":{"message":"Unsupported value: 'temperature' does not support 0.7","param":"temperature","code":"unsupported_value"}}"#,
            "temperature",
        ),
        (
            r#"{"error":{"message":"Unrecognized request argument supplied: max_completion_tokens"}}"#,
            "max_completion_tokens",
        ),
        (
            r#"{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}"#,
            "stream_options",
        ),
        (r#"{"error":{"message":"Invalid 'stream': streaming is not supported","param":"stream"}}"#, "stream"),
        (r#"{"error":{"message":"System role not supported"}}"#, "system"),
    ];
    for (body, name) in cases {
        assert_eq!(kind_of(400, body), Kind::Parameter((*name).to_owned()), "{body}");
    }
    let other = r#"{"error":{"message":"Invalid value for 'messages'","param":"messages"}}"#;
    assert_eq!(kind_of(400, other), Kind::BadRequest);
}

#[test]
fn an_error_within_a_stream_has_its_status_as_a_code() {
    let of = |text: &str| {
        let value = serde_json::from_str(text).expect("json");
        told(Some(200), &Body::within(&value).expect("an error"), &[], None).kind
    };
    assert_eq!(of(r#"{"error":{"message":"Provider returned error","code":502}}"#), Kind::Overloaded);
    assert_eq!(of(r#"{"error":{"message":"slow down","code":429}}"#), Kind::RateLimited);
    assert_eq!(of(r#"{"error":"the engine is overloaded"}"#), Kind::Overloaded);
    assert_eq!(of(r#"{"object":"error","message":"internal"}"#), Kind::Overloaded);
    assert_eq!(of(r#"{"error":{}}"#), Kind::Odd);
    let fine = serde_json::from_str(r#"{"error":null,"choices":[]}"#).expect("json");
    assert_eq!(Body::within(&fine), None);
}

#[test]
fn retry_after_is_read_as_seconds_as_milliseconds_and_as_a_date() {
    let now: jiff::Timestamp = "2026-11-21T07:28:00Z".parse().expect("a time");
    let of = |ms, after| retry_after(ms, after, now).map(|wait| wait.as_millis());
    assert_eq!(of(None, Some("20")), Some(20_000));
    assert_eq!(of(None, Some(" 1.5 ")), Some(1500));
    assert_eq!(of(Some("250"), Some("20")), Some(250));
    assert_eq!(of(None, Some("Sat, 21 Nov 2026 07:28:30 GMT")), Some(30_000));
    assert_eq!(of(None, Some("Sat, 21 Nov 2026 07:27:00 GMT")), Some(0), "it is over");
    for odd in ["soon", "-5", "", "NaN", "1e300"] {
        assert_eq!(of(None, Some(odd)), None, "{odd}");
    }
    assert_eq!(of(None, None), None);
}

#[test]
fn sentences_are_one_line_and_say_what_to_do() {
    let failure = told(Some(401), &Body::read("{\"error\":{\"message\":\"no\\nway\"}}"), &[], None);
    let sentence = failure.sentence("api.example.com", "m");
    assert_eq!(sentence, "api.example.com refuses the key (no way); check OPENAI_API_KEY");
    let long = told(Some(500), &Body::read(&"x".repeat(100_000)), &[], None).sentence("h", "m");
    assert!(long.chars().count() < 400, "{}", long.len());
    assert_eq!(one_line("  a\u{7} \n b.  "), "a b");
}
