//! What is written down: usage, the transcript, the state.

use warpsmith::agent::Agent;
use warpsmith::agent::language::{Price, weighted};
use warpsmith::agent::transcript::{self, Said, Transcript};

use crate::endpoint::{Answer, Endpoint};
use crate::place::{agent, agent_with, brief, incumbent, offer, proposal, reply, settings};

#[tokio::test]
async fn tokens_cost_and_time_are_billed_once() {
    let endpoint = Endpoint::in_turn(vec![Answer::says(&reply("one"))]);
    let mut settings = settings(&endpoint.url());
    let price =
        Price { name: "model-a".into(), input: 2.0, output: 10.0, context: Some(100_000), source: String::new() };
    settings.prices = settings.prices.with(vec![price]);
    let mut agent = agent_with(settings, Transcript::nowhere());
    proposal(offer(&mut agent, &brief(&incumbent())).await);
    let usage = agent.usage();
    assert_eq!((usage.requests, usage.tokens_in, usage.tokens_out), (1, 1000, 100));
    assert!((usage.cost_usd - 0.003).abs() < 1e-12, "{usage:?}");
    assert!(usage.wall_s > 0.0 && usage.troubles.is_empty(), "{usage:?}");
    assert!(agent.usage().is_empty());
}

#[tokio::test]
async fn a_proposal_carries_what_its_author_says_of_it() {
    let endpoint = Endpoint::in_turn(vec![Answer::says(&reply("one"))]);
    let mut settings = settings(&endpoint.url());
    settings.models = weighted("model-z").unwrap();
    let mut agent = agent_with(settings, Transcript::nowhere());
    let proposal = proposal(offer(&mut agent, &brief(&incumbent())).await);
    assert_eq!(proposal.hypothesis, "because of one");
    assert_eq!(proposal.description, "one");
    assert_eq!(proposal.predicted, Some(1.25));
    assert_eq!((proposal.ticket, proposal.repairs), (1, 0));
    assert_eq!(agent.name(), "openai");
    let troubles = agent.usage().troubles;
    assert!(troubles.iter().any(|trouble| trouble.contains("no price is known for model-z")), "{troubles:?}");
}

#[tokio::test]
async fn the_transcript_has_questions_and_answers_and_long_parts_once() {
    let folder = tempfile::tempdir().unwrap();
    let fault = Answer::text(500, "text/plain", "oops");
    let endpoint = Endpoint::in_turn(vec![fault, Answer::says(&reply("one")), Answer::says(&reply("two"))]);
    let mut agent = agent_with(settings(&endpoint.url()), Transcript::open(folder.path()).unwrap());
    let brief = brief(&incumbent());
    for _ in 0..2 {
        proposal(offer(&mut agent, &brief).await);
    }
    let lines = transcript::read(&folder.path().join(transcript::FILE)).unwrap();
    let said: Vec<&str> = lines
        .iter()
        .map(|line| match &line.said {
            Said::Asked { ticket: 1, .. } => "asked 1",
            Said::Asked { .. } => "asked 2",
            Said::Answered { failed: true, .. } => "failed",
            Said::Answered { ticket: 1, .. } => "answered 1",
            Said::Answered { .. } => "answered 2",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(said, ["asked 1", "failed", "answered 1", "asked 2", "answered 2"]);
    let prompt = |line: usize| match &lines[line].said {
        Said::Asked { prompt, .. } => prompt.clone(),
        other => panic!("{other:?}"),
    };
    assert!(prompt(0)[1]["text"].as_str().unwrap().contains(incumbent().trim()));
    assert_eq!(prompt(3)[1]["same_as"], prompt(0)[1]["id"]);
}

#[tokio::test]
async fn a_restarted_agent_goes_on_with_its_tickets_and_repeats_nothing() {
    let endpoint =
        Endpoint::in_turn(vec![Answer::says(&reply("one")), Answer::says(&reply("one")), Answer::says(&reply("two"))]);
    let brief = brief(&incumbent());
    let mut first = agent(&endpoint.url());
    let before = proposal(offer(&mut first, &brief).await);
    let saved = first.save();
    drop(first);
    let mut second = agent(&endpoint.url());
    second.restore(&saved).unwrap();
    let after = proposal(offer(&mut second, &brief).await);
    assert!(after.ticket > before.ticket);
    assert!(after.text.contains("/* two */"), "the first was judged before");
    assert!(second.restore(&serde_json::json!({"targets": {}})).is_err());
}
