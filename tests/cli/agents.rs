//! Runs in which someone else proposes: a language model over HTTP, a program, a transcript.

use std::process::Command;

use serde_json::{Value, json};

use crate::common::endpoint::{Answer, Endpoint, Request};
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
    journal(place, &place.only_run()).into_iter().map(|entry| entry["evaluation"]["proposal"].clone()).collect()
}

/// Wrong with both its repairs, of no use, then several times as fast; with trouble on the way.
fn script() -> impl FnMut(&Request) -> Answer + Send + 'static {
    let wrong = change("hoist-bounds", LOOP, &format!("        cols -= cols == 31;\n{LOOP}"));
    let broken = change("hoist-bounds", LOOP, &format!("        undeclared zeal;\n{LOOP}"));
    let idle = change("unroll", LOOP, &format!("        // The same again.\n{LOOP}"));
    let good = change("read-once", LOOP, "        for (int pass = 0; pass < 4; pass++) {");
    let limited = Answer::error(429, &json!({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}));
    let mut answers = vec![
        limited.with("Retry-After", "0"),
        Answer::says("I would look at the loops first."),
        Answer::says(&wrong),
        Answer::says(&broken),
        Answer::says(&wrong),
        Answer::says(&idle),
        Answer::says(&good),
    ]
    .into_iter();
    move |request| match request.text().contains(LOOP.trim()) {
        true => answers.next().unwrap_or_else(|| Answer::says("Change: none\nHypothesis: all was said")),
        // The first look at the endpoint.
        false => Answer::says("ok"),
    }
}

#[test]
fn a_model_over_http_has_its_good_kernel_kept_among_bad_ones_and_replays_to_the_same_decisions() {
    let place = Place::new(&kernels::keeps());
    let endpoint = Endpoint::start(script());
    let out = outcome(asks(&place, &endpoint.url(), &["--speedup", "1.2"])).ok();
    assert_eq!(place.statuses(), ["base", "error", "revert", "keep"], "{out}");
    assert!(out.contains("agent       openai: test-model at http://127.0.0.1"), "{out}");

    // What failed on the way is in the journal with what it cost.
    let stories = stories(&place);
    let mended = stories[1]["mended"].as_array().unwrap();
    let failures: Vec<_> = mended.iter().map(|failed| failed["verdict"]["status"].as_str().unwrap()).collect();
    assert_eq!(failures, ["reject", "error"], "{stories:#?}");
    assert_eq!(stories[3]["hypothesis"], "because of read-once");
    assert_eq!((&stories[3]["predicted"], &stories[3]["by"]), (&json!(2.5), &json!("test-model")));
    assert!(stories.iter().skip(1).all(|story| story["bill"]["tokens_in"].as_u64().unwrap() >= 1000), "{stories:#?}");
    let told = place.git(&["log", "-1", "--format=%B", &format!("warpsmith/{}", place.only_run())]);
    assert!(told.contains("Agent: openai/test-model") && told.contains("Technique: read-once"), "{told}");

    // The judge's words went back to the model, and the key nowhere.
    let asked: Vec<String> = endpoint.requests().iter().map(|request| request.last().to_owned()).collect();
    assert!(asked.iter().any(|text| text.contains("undeclared")), "{asked:#?}");
    let transcript = format!(".warpsmith/{}/transcript.jsonl", place.only_run());
    let everything = format!("{}{}{}{out}", asked.concat(), place.read(&transcript), place.read("results.tsv"));
    assert!(!everything.contains(KEY) && !serde_json::to_string(&stories).unwrap().contains(KEY));

    let again = place.copy();
    let first = again.only_run();
    again.git(&["branch", "-D", &format!("warpsmith/{first}")]);
    again.git(&["update-ref", "-d", &format!("refs/warpsmith/{first}/journal")]);
    let kept_at = again.root.join(&transcript);
    std::fs::rename(&kept_at, again.root.join("night.jsonl")).unwrap();
    std::fs::remove_file(again.root.join("results.tsv")).unwrap();
    let out = again.run(&["--speedup", "1.2", "--agent", "replay", "night.jsonl"]).ok();
    assert_eq!(again.statuses(), ["base", "error", "revert", "keep"], "{out}");
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
fn the_run_ends_when_its_tokens_are_used_up() {
    let place = Place::new(&kernels::keeps());
    let endpoint = Endpoint::start(script());
    let out = outcome(asks(&place, &endpoint.url(), &["--max-tokens", "3000"])).ok();
    assert!(out.contains("ended because the agent's 3000 tokens are used up"), "{out}");
    assert!(endpoint.requests().len() <= 6, "{}", endpoint.requests().len());
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
sed -i 's/value = 40/value = 4/' "$WARPSMITH_KERNEL"
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
