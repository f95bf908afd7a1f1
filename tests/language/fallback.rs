//! An endpoint that is away: the tuner stands in, and the endpoint comes back.

use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warpsmith::agent::transcript::Transcript;
use warpsmith::agent::{Agent, BoxFuture, Offer, Outcome, Screen, Screened};
use warpsmith::evaluation::{Speedup, Verdict};

use crate::endpoint::{Answer, Endpoint, NOBODY};
use crate::place::{agent, agent_with, brief, in_time, incumbent, offer, proposal, reply, settings};

/// The starter of the repository, which leaves the tuner many points.
fn many_points() -> String {
    include_str!("../../kernels/cpu/rmsnorm.c").to_owned()
}

#[tokio::test]
async fn the_tuner_stands_in_until_the_endpoint_is_back() {
    let up = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&up);
    let whole = |mark: &str| format!("Technique: unroll\nChange:\n```c\n{}/* {mark} */\n```\n", many_points());
    let endpoint = Endpoint::start(move |request| {
        if seen.load(Ordering::SeqCst) {
            Answer::says(&whole(&request.number.to_string()))
        } else {
            Answer::text(500, "text/plain", "down")
        }
    });
    let mut agent = agent(&endpoint.url());
    let brief = brief(&many_points());
    let first = proposal(offer(&mut agent, &brief).await);
    assert_eq!(first.by.as_deref(), Some("tuner"));
    assert_eq!(first.technique, "tune");
    let troubles = agent.usage().troubles;
    let gone = troubles.iter().filter(|trouble| trouble.contains("the tuner proposes meanwhile")).count();
    assert_eq!(gone, 1, "{troubles:?}");
    up.store(true, Ordering::SeqCst);
    let mut back = None;
    for _ in 0..90 {
        let next = proposal(offer(&mut agent, &brief).await);
        assert_ne!(next.ticket, first.ticket);
        if next.by.as_deref() == Some("model-a") {
            back = Some(next);
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(back.is_some(), "it comes back");
    let troubles = agent.usage().troubles;
    assert!(troubles.iter().any(|trouble| trouble.contains("answers again")), "{troubles:?}");
}

/// Opens the endpoint as soon as it hears what the agent waits for.
struct Opens {
    heard: Vec<String>,
    up: Arc<AtomicBool>,
}

impl Screen for Opens {
    fn screen<'a>(&'a mut self, texts: Vec<String>) -> BoxFuture<'a, Vec<Option<Screened>>> {
        Box::pin(std::future::ready(vec![None; texts.len()]))
    }

    fn waits(&mut self, what: &str) {
        self.heard.push(what.to_owned());
        self.up.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn what_is_waited_for_is_said_while_it_is_waited_for() {
    let up = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&up);
    let endpoint = Endpoint::start(move |_| {
        if seen.load(Ordering::SeqCst) {
            Answer::says(&reply("at last"))
        } else {
            Answer::text(503, "text/plain", "overloaded")
        }
    });
    let mut agent = agent(&endpoint.url());
    let mut screen = Opens { heard: Vec::new(), up };
    let brief = brief(&incumbent());
    let offer = in_time(agent.propose(&brief, &mut screen)).await.unwrap();
    assert_eq!(proposal(offer).by.as_deref(), Some("model-a"));
    let [heard] = screen.heard.as_slice() else { panic!("{:?}", screen.heard) };
    assert!(heard.contains("status 503 (overloaded): asking again, for up to 180 s"), "{heard}");
}

#[tokio::test]
async fn a_model_that_never_writes_code_does_not_hold_up_the_night() {
    let endpoint = Endpoint::in_turn(vec![Answer::says("As a language model, I think that loops are nice.")]);
    let mut agent = agent(&endpoint.url());
    let stands_in = proposal(offer(&mut agent, &brief(&incumbent())).await);
    assert_eq!(stands_in.by.as_deref(), Some("tuner"));
    assert_eq!(endpoint.requests().len(), 6, "three questions, and each once more in the form");
    let troubles = agent.usage().troubles;
    assert!(troubles.iter().any(|trouble| trouble.contains("no change that can be used")), "{troubles:?}");
}

#[tokio::test]
async fn a_model_that_repeats_itself_does_not_hold_up_the_night() {
    let endpoint = Endpoint::in_turn(vec![Answer::says(&reply("always the same"))]);
    let mut agent = agent(&endpoint.url());
    let brief = brief(&incumbent());
    assert_eq!(proposal(offer(&mut agent, &brief).await).by.as_deref(), Some("model-a"));
    assert_eq!(proposal(offer(&mut agent, &brief).await).by.as_deref(), Some("tuner"));
}

#[tokio::test]
async fn the_tuner_learns_of_its_own_proposals_and_of_no_others() {
    let mut agent = agent(NOBODY);
    let brief = brief(&many_points());
    let tuned = proposal(offer(&mut agent, &brief).await);
    let outcome = |text: &str| Outcome {
        experiment: 3,
        text: text.to_owned(),
        verdict: Verdict::Revert { speedup: Speedup { ratio: 0.5, low: 0.4 }, why: "slower".into() },
        shapes: vec![0.5],
    };
    let before = agent.save();
    // The same tunables around other code.
    agent.learn(&outcome(&format!("{}/* another body */\n", tuned.text)));
    assert_eq!(agent.save(), before);
    agent.learn(&outcome(&tuned.text));
    assert_ne!(agent.save()["tuner"], before["tuner"]);
}

#[tokio::test]
async fn it_is_exhausted_where_only_someone_can_help_and_the_tuner_has_nothing_left() {
    let refused = Answer::error(401, &json!({"error": {"message": "revoked", "code": "invalid_api_key"}}));
    let endpoint = Endpoint::in_turn(vec![refused]);
    let mut agent = agent(&endpoint.url());
    // Two points: the tuner has one proposal.
    let brief = brief(&incumbent());
    assert_eq!(proposal(offer(&mut agent, &brief).await).by.as_deref(), Some("tuner"));
    let Offer::Exhausted { why } = offer(&mut agent, &brief).await else { panic!("nothing is left") };
    assert!(why.contains("refuses the key") && why.contains("; the tuner: "), "{why}");
}

#[tokio::test]
async fn an_endpoint_that_comes_back_is_waited_for_when_the_tuner_is_at_its_end() {
    let endpoint = Endpoint::start(|request| match request.number {
        // Three requests with their retries, and the first tries to come back.
        0..=40 => Answer::text(503, "text/plain", "down"),
        number => Answer::says(&reply(&format!("number {number}"))),
    });
    let mut agent = agent(&endpoint.url());
    let brief = brief(&incumbent());
    assert_eq!(proposal(offer(&mut agent, &brief).await).by.as_deref(), Some("tuner"));
    assert_eq!(proposal(offer(&mut agent, &brief).await).by.as_deref(), Some("model-a"));
}

#[tokio::test]
async fn another_target_need_not_find_out_again_that_the_endpoint_is_away() {
    let refused = Answer::error(401, &json!({"error": {"message": "revoked", "code": "invalid_api_key"}}));
    let endpoint = Endpoint::in_turn(vec![refused]);
    let mut settings = settings(&endpoint.url());
    // No pause ends within this test.
    settings.time_scale = 1.0;
    let mut first = agent_with(settings, Transcript::nowhere());
    let brief = brief(&many_points());
    assert_eq!(proposal(offer(&mut first, &brief).await).by.as_deref(), Some("tuner"));
    let mut second = first.fresh();
    drop(first);
    let stands_in = proposal(offer(&mut second, &brief).await);
    assert_eq!((stands_in.by.as_deref(), stands_in.ticket), (Some("tuner"), 1));
    assert_eq!(endpoint.requests().len(), 3);
    assert_eq!(second.usage().troubles.len(), 2, "what the first one met is not lost");
}

#[tokio::test]
async fn a_model_with_no_idea_left_leaves_the_kernel_to_the_tuner_and_then_to_itself() {
    let declined = "Hypothesis: it is at the roofline\nTechnique: none\nChange: none\n";
    let endpoint = Endpoint::in_turn(vec![Answer::says(declined)]);
    let mut agent = agent(&endpoint.url());
    let brief = brief(&incumbent());
    assert_eq!(proposal(offer(&mut agent, &brief).await).by.as_deref(), Some("tuner"));
    assert_eq!(endpoint.requests().len(), 3, "nobody argues");
    let Offer::Exhausted { why } = offer(&mut agent, &brief).await else { panic!("nothing is left") };
    assert!(why.contains("has nothing left to propose (it is at the roofline)"), "{why}");
}
