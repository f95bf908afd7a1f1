//! Several requests in flight.

use std::collections::BTreeSet;
use std::time::Duration;

use warpsmith::agent::Attempt;
use warpsmith::agent::language::{Language, weighted};
use warpsmith::agent::transcript::Transcript;
use warpsmith::evaluation::{Stage, Verdict};

use crate::endpoint::{Answer, Endpoint, gate, open};
use crate::place::{LINE, agent_with, brief, changed, in_time, incumbent, offer, proposal, reply, settings, until};

fn pool_of(size: usize, endpoint: &Endpoint) -> Language {
    let mut settings = settings(&endpoint.url());
    settings.proposals = size;
    agent_with(settings, Transcript::nowhere())
}

#[tokio::test]
async fn as_many_requests_are_in_flight_as_are_wished_for_and_they_differ() {
    let held = gate();
    let theirs = held.clone();
    let endpoint = Endpoint::start(move |request| Answer::says(&reply(&request.number.to_string())).behind(&theirs));
    let mut agent = pool_of(4, &endpoint);
    let brief = brief(&incumbent());
    // The run may drop the future at any time; nothing is asked twice for it.
    for _ in 0..3 {
        tokio::select! {
            _ = offer(&mut agent, &brief) => panic!("nobody has answered"),
            () = until("four requests", || endpoint.in_flight() == 4) => {}
        }
    }
    let requests = endpoint.requests();
    assert_eq!(requests.len(), 4);
    let directions: BTreeSet<String> = requests
        .iter()
        .map(|request| request.text().split("Look first at ").nth(1).expect("a direction").to_owned())
        .collect();
    assert_eq!(directions.len(), 4);
    assert!(requests.iter().any(|request| request.text().contains("being written right now")));
    open(&held);
    let mut tickets = BTreeSet::new();
    let mut texts = BTreeSet::new();
    for _ in 0..8 {
        let proposal = proposal(offer(&mut agent, &brief).await);
        tickets.insert(proposal.ticket);
        texts.insert(proposal.text);
    }
    assert_eq!((tickets.len(), texts.len()), (8, 8), "none is lost, none comes twice");
    assert!(endpoint.most_in_flight() <= 4);
}

#[tokio::test]
async fn candidates_that_nobody_asks_for_take_a_place() {
    let endpoint = Endpoint::start(|request| Answer::says(&reply(&request.number.to_string())));
    let mut agent = pool_of(3, &endpoint);
    let brief = brief(&incumbent());
    for asked in 1..=5 {
        proposal(offer(&mut agent, &brief).await);
        // Time in which a careless pool would go on asking.
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(endpoint.requests().len() <= 3 + asked, "{} after {asked}", endpoint.requests().len());
    }
}

#[tokio::test]
async fn a_proposal_for_a_superseded_incumbent_is_made_on_the_new_one() {
    let (held, closed) = (gate(), gate());
    let theirs = held.clone();
    // Whatever is asked later must not be answered first.
    let endpoint = Endpoint::start(move |request| {
        let gate = if request.number <= 2 { &theirs } else { &closed };
        Answer::says(&reply(&request.number.to_string())).behind(gate)
    });
    let mut agent = pool_of(2, &endpoint);
    let old = brief(&incumbent());
    tokio::select! {
        _ = offer(&mut agent, &old) => panic!("nobody has answered"),
        () = until("two requests", || endpoint.in_flight() == 2) => {}
    }
    // Kept meanwhile: a change elsewhere in the file, which must not be lost.
    let improved = format!("{}/* faster */\n", incumbent());
    open(&held);
    let first = proposal(offer(&mut agent, &brief(&improved)).await);
    assert!(first.text.ends_with("/* faster */\n") && first.text != improved, "{}", first.text);
    // Kept meanwhile: a change of the same line. Then the candidate is what it was made to be.
    let elsewhere = incumbent().replace(LINE, "            sum = 0;\n");
    let second = proposal(offer(&mut agent, &brief(&elsewhere)).await);
    let made_for: Vec<String> = (1..=2).map(|number| changed(&incumbent(), &number.to_string())).collect();
    assert!(made_for.contains(&second.text), "{}", second.text);
}

#[tokio::test]
async fn requests_end_with_their_agent() {
    let held = gate();
    let theirs = held.clone();
    let endpoint = Endpoint::start(move |_| Answer::says(&reply("x")).behind(&theirs));
    let mut agent = pool_of(3, &endpoint);
    let brief = brief(&incumbent());
    tokio::select! {
        _ = offer(&mut agent, &brief) => panic!("nobody has answered"),
        () = until("three requests", || endpoint.in_flight() == 3) => {}
    }
    drop(agent);
    in_time(until("the end of all requests", || endpoint.in_flight() == 0)).await;
}

#[tokio::test]
async fn models_are_asked_by_their_weights() {
    let endpoint = Endpoint::start(|request| Answer::says(&reply(&request.number.to_string())));
    let mut settings = settings(&endpoint.url());
    settings.models = weighted("often:3,seldom:1").unwrap();
    let mut agent = agent_with(settings, Transcript::nowhere());
    let brief = brief(&incumbent());
    let mut by = Vec::new();
    for _ in 0..24 {
        by.push(proposal(offer(&mut agent, &brief).await).by.unwrap());
    }
    let often = by.iter().filter(|model| *model == "often").count();
    // Drawn from a fixed seed, so that the figure is always the same.
    assert!((12..24).contains(&often), "{often} of 24");
    let asked: Vec<String> = endpoint.requests().iter().map(|request| request.model().to_owned()).collect();
    assert_eq!(asked, by);
}

#[tokio::test]
async fn a_place_is_taken_again_while_the_device_works() {
    let held = gate();
    let theirs = held.clone();
    let endpoint = Endpoint::start(move |request| match request.number {
        1 => Answer::says(&reply("one")),
        number => Answer::says(&reply(&number.to_string())).behind(&theirs),
    });
    let mut agent = pool_of(4, &endpoint);
    proposal(offer(&mut agent, &brief(&incumbent())).await);
    // Nobody asks the agent for anything meanwhile.
    until("four requests again", || endpoint.in_flight() == 4).await;
    assert_eq!(endpoint.requests().len(), 5);
}

#[tokio::test]
async fn alone_a_question_waits_for_the_verdict() {
    let endpoint = Endpoint::start(|request| Answer::says(&reply(&request.number.to_string())));
    let mut agent = pool_of(1, &endpoint);
    let mut brief = brief(&incumbent());
    let first = proposal(offer(&mut agent, &brief).await);
    assert_eq!(endpoint.requests().len(), 1);
    brief.history.push(Attempt {
        experiment: 2,
        technique: first.technique,
        description: "a telling name".into(),
        hypothesis: first.hypothesis,
        predicted: first.predicted,
        verdict: Verdict::Reject { stage: Stage::Smoke, why: "it is off by one".into() },
    });
    proposal(offer(&mut agent, &brief).await);
    let asked = endpoint.requests()[1].text();
    assert!(asked.contains("a telling name") && asked.contains("it is off by one"), "{asked}");
    assert!(!asked.contains("Look first at"), "and it is free to follow what it reads");
}
