//! Runs in which someone else proposes: a language model over HTTP, a program, a transcript.

use std::process::Command;

use serde_json::{Value, json};

use crate::common::endpoint::{Answer, End, Endpoint, Request, gate, open};
use crate::common::{Outcome, Place, RUN, kernels, outcome};
use crate::consistency::{check, journal};

const KEY: &str = "sk-test-0123456789abcdef";

/// A reply with one search/replace block.
fn change(technique: &str, from: &str, to: &str) -> String {
    format!(
        "Hypothesis: because of {technique}\nTechnique: {technique}\nPredicted: 2.5\nDescription: {from} to {to}\nChange:\n\
         <<<<<<< SEARCH\n{from}\n=======\n{to}\n>>>>>>> REPLACE\n"
    )
}

const LOOP: &str = "        for (int pass = 0; pass < PASSES; pass++) {";

/// A run with an endpoint's models.
fn asks(place: &Place, endpoint: &str, more: &[&str]) -> Command {
    let mut command = place.command(&[&RUN[..], &["--agent", "openai", "--model", "test-model"], more].concat());
    command.env("OPENAI_BASE_URL", endpoint).env("OPENAI_API_KEY", KEY);
    command
}

/// What the journal says of each proposal.
fn stories(place: &Place) -> Vec<Value> {
    journal(place, &place.only_run()).into_iter().map(|entry| entry["trial"].clone()).collect()
}

/// A night's worth of trouble. The kernels: one that is wrong, and does not compile any more when it is mended, twice; one of no
/// use; one that is several times as fast, after the tuner has stood in.
fn script() -> impl FnMut(&Request) -> Answer + Send + 'static {
    let wrong = change("hoist-bounds", LOOP, &format!("        cols -= cols == 31;\n{LOOP}"));
    let broken = change("hoist-bounds", LOOP, &format!("        undeclared zeal;\n{LOOP}"));
    let idle = change("unroll", LOOP, &format!("        // The same again.\n{LOOP}"));
    let good = change("read-once", LOOP, "        for (int pass = 0; pass < 2; pass++) {");
    let said = |message: &str, code: &str| json!({"error": {"message": message, "code": code}});
    let piece = |text: &str| json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]});
    let refusal = json!({"choices": [{"index": 0, "delta": {"refusal": "I cannot help with that"}}]});
    let page = format!("<html><title>Bad gateway for {KEY}</title></html>");
    let mut answers = vec![
        // The first kernel, and its repairs.
        Answer::error(429, &said("slow down", "rate_limit_exceeded")).with("Retry-After", "0"),
        Answer::says("I would look at the loops first."),
        Answer::says(&wrong),
        Answer::text(502, "text/html", &page),
        Answer::events(&[piece(&broken[..60])], End::Broken),
        Answer::says(&broken),
        Answer::is_silent(),
        Answer::says(&wrong),
        // The second.
        Answer::ends("", Some("stop")),
        Answer::error(400, &said("Unsupported parameter: 'stream_options'", "unsupported_parameter")),
        Answer::events(&[refusal], End::Done),
        Answer::ends(&idle[..idle.len() - 20], Some("length")),
        Answer::says(&idle),
        // Nobody can do anything with these: the tuner takes over.
        Answer::text(400, "text/html", ""),
        Answer::text(400, "text/html", &page),
        Answer::text(400, "application/json", "{\"error\": "),
        // Back again.
        Answer::says(&good),
    ]
    .into_iter();
    let mut last = (Value::Null, None);
    move |request| {
        if request.body.get("tools").or_else(|| request.body.get("response_format")).is_some() {
            return Answer::error(400, &said("this model has neither tools nor JSON", "invalid_request"));
        }
        if !request.text().contains(LOOP.trim()) {
            // The first look at the endpoint.
            return Answer::says("ok");
        }
        // A busy machine may be so slow to read a reply that it takes the endpoint for silent, and asks again.
        if let (question, Some(reply)) = &last
            && *question == request.body
        {
            return Answer::clone(reply);
        }
        let answer = answers.next().unwrap_or_else(|| Answer::says("Change: none\nHypothesis: all was said"));
        last = (request.body.clone(), answer.is_reply().then(|| answer.clone()));
        answer
    }
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_model_over_http_has_its_good_kernel_kept_through_every_failure_and_replays_to_the_same_decisions() {
    let place = Place::new(&kernels::reverts());
    let endpoint = Endpoint::start(script());
    let rules = ["--speedup", "1.2", "--max-reverts", "99"];
    let mut command = asks(&place, &endpoint.url(), &rules);
    // A minute of the endpoint's absence is less than a second.
    command.env("WARPSMITH_TIME_SCALE", "0.01");
    let out = outcome(command).ok();
    let statuses = place.statuses();
    let ["base", "error", "revert", stood_in @ .., "keep"] = &*statuses.iter().map(String::as_str).collect::<Vec<_>>()
    else {
        panic!("{statuses:?} in\n{out}")
    };
    // What it tries is slower, or two changes at once.
    let slow = |status: &&str| ["revert", "error"].contains(status);
    assert!(!stood_in.is_empty() && stood_in.iter().all(slow), "{statuses:?} in\n{out}");
    let host = endpoint.url().replace("http://", "").replace("/v1", "");
    for line in [
        &format!("agent       openai: test-model at {}", endpoint.url()),
        &format!("{host} limits the rate of requests to test-model (slow down)"),
        "answered at attempt 2",
        &format!("{host} failed with status 502 (Bad gateway for [key])"),
        &format!("{host} was silent for too long"),
        "test-model gave an empty reply",
        "test-model does not know `stream_options`; it is asked without",
        "3 requests in a row came to nothing: the tuner proposes meanwhile, and",
        &format!("{host} answers again: proposals are test-model's from here on"),
    ] {
        assert!(out.contains(line), "`{line}` in\n{out}");
    }

    // What failed on the way is in the journal with what it cost.
    let stories = stories(&place);
    let mended = stories[1]["mended"].as_array().unwrap();
    let failures: Vec<_> = mended.iter().map(|failed| failed["verdict"]["status"].as_str().unwrap()).collect();
    assert_eq!(failures, ["reject", "error"], "{stories:#?}");
    let tokens = |story: &Value| story["bill"]["tokens_in"].as_u64().unwrap_or_default();
    // Chatter and three kernels, with what came of a broken stream.
    assert!(tokens(&stories[1]) >= 4000 && tokens(&stories[2]) >= 1000, "{stories:#?}");
    let kept = stories.last().unwrap();
    let said = &kept["proposal"];
    assert_eq!(said["hypothesis"], "because of read-once");
    assert_eq!((&said["predicted"], &said["by"]), (&json!(2.5), &json!("test-model")));
    assert!(tokens(kept) >= 1000, "{stories:#?}");
    assert!(stories[3..stories.len() - 1].iter().all(|story| story["proposal"]["by"] == "tuner"), "{stories:#?}");
    let status: Value = serde_json::from_str(&place.warpsmith(&["status", "--json"]).ok()).unwrap();
    assert_eq!(status["bill"]["tokens_in"].as_u64().unwrap(), stories.iter().map(tokens).sum::<u64>());
    let told = place.git(&["log", "-1", "--format=%B", &format!("warpsmith/{}", place.only_run())]);
    assert!(told.contains("Agent: openai/test-model") && told.contains("Technique: read-once"), "{told}");

    // The judge's words went back to the model, and the key nowhere: not even where the endpoint gave it back.
    let asked: Vec<String> = endpoint.requests().iter().map(Request::text).collect();
    assert!(asked.iter().any(|text| text.contains("undeclared")), "{asked:#?}");
    let transcript = format!(".warpsmith/{}/transcript.jsonl", place.only_run());
    let history = place.git(&["log", "--all", "-m", "-p", "--format=%B"]);
    assert!(history.contains("evaluation.json") && history.contains("Bad gateway for [key]"), "{history}");
    let log = place.read(&format!(".warpsmith/{}/warpsmith.log", place.only_run()));
    assert!(log.contains("a language model answers") && !log.contains("PASSES"), "{log}");
    let everything = [asked.concat(), log, place.read(&transcript), place.read("results.tsv"), history, out].concat();
    assert!(!everything.contains(KEY));
    check(&place);

    let again = place.copy();
    let first = again.only_run();
    again.git(&["branch", "-D", &format!("warpsmith/{first}")]);
    again.git(&["update-ref", "-d", &format!("refs/warpsmith/{first}/journal")]);
    let kept_at = again.root.join(&transcript);
    std::fs::rename(&kept_at, again.root.join("night.jsonl")).unwrap();
    std::fs::remove_file(again.root.join("results.tsv")).unwrap();
    let out = again.run(&[&rules[..], &["--agent", "replay", "night.jsonl"]].concat()).ok();
    assert_eq!(again.statuses(), statuses, "{out}");
}

#[test]
fn an_endpoint_that_cannot_serve_is_refused_in_a_sentence_before_anything_is_begun() {
    let place = Place::new(&kernels::keeps());
    let refuses = |status: u16, code: &str, message: &str| {
        let body = json!({"error": {"message": format!("{message} {KEY}"), "code": code, "type": code}});
        Endpoint::start(move |_| Answer::error(status, &body))
    };
    let nobody = "http://127.0.0.1:9/v1".to_owned();
    let wrong_key = refuses(401, "invalid_api_key", "Incorrect API key provided:");
    let unknown = refuses(404, "model_not_found", "The model does not exist:");
    let spent = refuses(429, "insufficient_quota", "You exceeded your current quota:");
    let cases = [
        (wrong_key.url(), "OPENAI_API_KEY"),
        (nobody, "127.0.0.1:9"),
        (unknown.url(), "test-model"),
        (spent.url(), "quota"),
    ];
    for (url, word) in cases {
        let Outcome { code, out, err } = outcome(asks(&place, &url, &[]));
        assert_eq!(code, Some(2), "{out}{err}");
        assert!(err.contains(word) && err.trim_end().lines().count() == 1 && !err.contains(KEY), "{word}: {err}");
        assert!(!out.contains("profiling"), "{out}");
    }
    assert_eq!(place.git(&["for-each-ref", "refs/warpsmith"]), "");
}

#[test]
fn a_key_in_the_environment_is_mentioned_and_never_used_unasked() {
    let place = Place::new(&kernels::keeps());
    let endpoint = Endpoint::start(|_| Answer::says("ok"));
    let mut command = place.command(&[&RUN[..], &["--budget", "1ms"]].concat());
    command.env("OPENAI_BASE_URL", endpoint.url()).env("OPENAI_API_KEY", KEY);
    let out = outcome(command).ok();
    assert!(out.contains("agent       tuner") && out.contains("--agent openai --model NAME"), "{out}");
    assert!(endpoint.requests().is_empty() && !out.contains(KEY));
}

#[test]
fn every_experiment_bears_its_own_tokens_also_after_a_kill_and_the_run_ends_when_they_are_used_up() {
    let place = Place::new(&kernels::keeps());
    let wrong = change("hoist-bounds", LOOP, &format!("        cols -= cols == 31;\n{LOOP}"));
    let idle = change("unroll", LOOP, &format!("        // The same again.\n{LOOP}"));
    // Two at once: one is wrong and on its way to be mended when the other one comes.
    let second = gate();
    let mut answers = vec![Answer::says(&wrong), Answer::says(&idle).behind(&second)].into_iter();
    let endpoint = Endpoint::start(move |request| {
        if !request.text().contains(LOOP.trim()) {
            return Answer::says("ok");
        }
        answers.next().unwrap_or_else(|| {
            // The next question, which is asked while the wrong one is judged.
            open(&second);
            Answer::is_silent()
        })
    });
    let mut command = asks(&place, &endpoint.url(), &["--proposals", "2"]);
    command.env("WARPSMITH_FAILPOINT", "done:2");
    let Outcome { code, out, err } = outcome(command);
    assert_eq!((code, place.statuses()), (None, vec!["base".to_owned(), "revert".to_owned()]), "{out}{err}");

    let mut command = place.command(&["run", "model", "--resume", "--max-tokens", "2000"]);
    command.env("OPENAI_BASE_URL", endpoint.url()).env("OPENAI_API_KEY", KEY);
    let out = outcome(command).ok();
    assert!(out.contains("ended because the agent's 2000 tokens are used up"), "{out}");
    assert_eq!(place.statuses(), ["base", "revert", "reject"], "{out}");
    for story in stories(&place).into_iter().skip(1) {
        let bill = &story["bill"];
        assert_eq!(
            (&bill["requests"], &bill["tokens_in"], &bill["tokens_out"]),
            (&json!(1), &json!(1000), &json!(100))
        );
        assert!(bill["wall_s"].as_f64().unwrap() > 0.0, "{story}");
    }
    let shown = place.warpsmith(&["show", "3"]).ok();
    assert!(shown.contains("asked once, 1000 tokens in, 100 out"), "{shown}");
}

/// A line of a transcript.
fn proposed(ticket: u64, repairs: u64, text: &str) -> String {
    let proposal =
        json!({"text": text, "technique": "tune", "description": "a try", "ticket": ticket, "repairs": repairs});
    let at = "2026-03-01T07:00:00Z";
    format!("{}\n", json!({"at": at, "said": "proposed", "op": "rmsnorm", "experiment": 2, "proposal": proposal}))
}

#[test]
fn a_proposal_that_is_being_mended_when_the_run_is_killed_is_mended_afterwards_or_has_failed() {
    let place = Place::new(&kernels::keeps());
    let with = |line: &str| kernels::keeps().replacen(LOOP, &format!("{line}\n{LOOP}"), 1);
    let (wrong, another, mended) = (with("cols -= cols == 31;"), with("a slip;"), with("another slip;"));
    // Another one has its verdict between the first and its repair.
    let lines = [proposed(1, 0, &wrong), proposed(2, 0, &another), proposed(1, 1, &mended)].concat();
    place.write(".git/night.jsonl", &lines);
    let mut command = place.command(&[&RUN[..], &["--agent", "replay", ".git/night.jsonl"]].concat());
    command.env("WARPSMITH_FAILPOINT", "done:2");
    let Outcome { code, out, err } = outcome(command);
    assert_eq!((code, place.statuses()), (None, vec!["base".to_owned(), "error".to_owned()]), "{out}{err}");

    let given_up = place.copy();
    given_up.warpsmith(&["run", "model", "--resume", "--budget", "1ms"]).ok();
    place.warpsmith(&["run", "model", "--resume"]).ok();
    for (place, last, failures) in [(&given_up, "reject", &[][..]), (&place, "error", &["reject"][..])] {
        assert_eq!(place.statuses(), ["base", "error", last]);
        let story = stories(place).remove(2);
        let mended = story["mended"].as_array().into_iter().flatten();
        assert_eq!(mended.map(|failed| failed["verdict"]["status"].as_str().unwrap()).collect::<Vec<_>>(), failures);
        check(place);
    }
    let text = |place: &Place| place.warpsmith(&["show", "3", "--kernel"]).ok();
    assert_eq!((text(&given_up).trim_end(), text(&place).trim_end()), (wrong.trim_end(), mended.trim_end()));
}

/// Edits the kernel, meddles with what is not its own, and says what it did.
const SCRIPT: &str = r#"
test -s "$WARPSMITH_PROMPT" || exit 1
echo meddled > ../../notes-of-the-agent
echo meddled > other.txt
sed -i 's/value = 200/value = 4/' "$WARPSMITH_KERNEL"
echo 'Technique: tune'
echo 'Description: fewer passes'
"#;

#[test]
fn a_program_that_edits_the_file_has_its_kernel_judged_and_kept() {
    let place = Place::new(&kernels::keeps());
    // Named as a user names it, and started in the run's folder.
    place.write(".git/agent.sh", &format!("#!/bin/sh\n{SCRIPT}"));
    let script = place.root.join(".git/agent.sh");
    std::fs::set_permissions(script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let out = place.run(&["--speedup", "1.2", "--agent", "command", "--", "./.git/agent.sh"]).ok();
    assert_eq!(place.statuses(), ["base", "keep"], "{out}");
    assert_eq!(place.ledger()[1].description, "fewer passes");
    assert!(out.contains("/.git/agent.sh (at most") && out.contains("put back: other.txt"), "{out}");
    assert!(!place.root.join(format!(".warpsmith/{}/other.txt", place.only_run())).exists());
}

#[test]
fn agents_and_their_flags_that_do_not_go_together_are_refused() {
    let place = Place::new(&kernels::keeps());
    place.write("script.sh", "exit 0\n");
    let cases: [(&[&str], &str); 9] = [
        (&["--agent", "command"], "write it behind `--`"),
        (&["--agent", "command", "--", "no-such-agent"], "no program `no-such-agent` in PATH"),
        (&["--agent", "command", "--", "./none.sh"], "./none.sh is not there"),
        (&["--agent", "command", "--", "./script.sh"], "chmod +x"),
        (&["--agent", "replay"], "no transcript to play"),
        (&["--agent", "replay", "nowhere.jsonl"], "nowhere.jsonl"),
        (&["--model", "gpt"], "--agent openai"),
        (&["--agent", "openai"], "--model NAME"),
        (&["--agent", "tuner", "--", "true"], "--agent command"),
    ];
    for (arguments, words) in cases {
        let mut command = place.command(&[&RUN[..], arguments].concat());
        command.env("OPENAI_BASE_URL", "http://127.0.0.1:9/v1").env_remove("OPENAI_API_KEY");
        let Outcome { code, err, .. } = outcome(command);
        assert_eq!(code, Some(2), "{arguments:?}: {err}");
        assert!(err.contains(words), "{arguments:?}: {err}");
    }
}
