//! Proposals that come back to be mended.

use warpsmith::agent::{Agent, Failed, Offer, Proposal};
use warpsmith::evaluation::{Speedup, Stage, Verdict};

use crate::endpoint::{Answer, Endpoint};
use crate::place::{agent, brief, changed, incumbent, offer, proposal, reply};

fn failed(proposal: &Proposal, why: &str) -> Failed {
    let verdict = Verdict::Reject { stage: Stage::Edges, why: why.into() };
    Failed { proposal: proposal.clone(), verdict }
}

/// A reply that changes what another one wrote.
fn mended(from: &str, to: &str) -> String {
    reply(to).replace(
        "<<<<<<< SEARCH\n            sum *= 0.0f;\n",
        &format!("<<<<<<< SEARCH\n            sum *= 0.0f; /* {from} */\n"),
    )
}

#[tokio::test]
async fn a_wrong_proposal_goes_back_with_the_judges_words_twice() {
    let endpoint = Endpoint::in_turn(vec![
        Answer::says(&reply("one")),
        Answer::says(&mended("one", "two")),
        Answer::says(&mended("two", "three")),
    ]);
    let mut agent = agent(&endpoint.url());
    let brief = brief(&incumbent());
    let first = proposal(offer(&mut agent, &brief).await);
    assert!(agent.mend(&failed(&first, "cols=1537: element 1536 is off")));
    let second = proposal(offer(&mut agent, &brief).await);
    assert_eq!((second.ticket, second.repairs), (first.ticket, 1));
    assert_eq!(second.text, changed(&incumbent(), "two"));
    assert!(agent.mend(&failed(&second, "now element 0 is off")));
    let third = proposal(offer(&mut agent, &brief).await);
    assert_eq!((third.ticket, third.repairs), (first.ticket, 2));
    assert_eq!(third.text, changed(&incumbent(), "three"));
    assert!(!agent.mend(&failed(&third, "still off")), "twice is enough");
    let requests = endpoint.requests();
    assert_eq!(requests[1].roles(), ["system", "user", "assistant", "user"]);
    assert!(requests[1].last().contains("element 1536 is off"));
    assert!(requests[2].last().contains("now element 0 is off"));
}

#[tokio::test]
async fn a_proposal_that_cannot_be_mended_is_given_up() {
    for (what, answer) in [
        ("chatter", Answer::says("I am sorry.")),
        ("the same again", Answer::says(&format!("Change:\n```c\n{}```\n", changed(&incumbent(), "one")))),
    ] {
        let good = Answer::says(&reply("another"));
        let endpoint = Endpoint::in_turn(vec![Answer::says(&reply("one")), answer.clone(), answer, good]);
        let mut agent = agent(&endpoint.url());
        let brief = brief(&incumbent());
        let first = proposal(offer(&mut agent, &brief).await);
        assert!(agent.mend(&failed(&first, "wrong")), "{what}");
        assert_eq!(offer(&mut agent, &brief).await, Offer::GivenUp { ticket: first.ticket }, "{what}");
        let next = proposal(offer(&mut agent, &brief).await);
        assert!(next.ticket != first.ticket && next.repairs == 0, "{what}");
        let troubles = agent.usage().troubles;
        assert!(troubles.iter().any(|trouble| trouble.contains("is not mended")), "{what}: {troubles:?}");
    }
}

#[tokio::test]
async fn only_what_is_wrong_is_mended_and_only_by_its_author() {
    let endpoint = Endpoint::in_turn(vec![Answer::says(&reply("one"))]);
    let mut agent = agent(&endpoint.url());
    let first = proposal(offer(&mut agent, &brief(&incumbent())).await);
    let speedup = Speedup { ratio: 0.9, low: 0.8 };
    let slow = Verdict::Revert { speedup, why: "slower".into() };
    assert!(!agent.mend(&Failed { proposal: first.clone(), verdict: slow }));
    let tuned = Proposal { by: Some("tuner".into()), ..first.clone() };
    assert!(!agent.mend(&failed(&tuned, "wrong")));
    let foreign = Proposal { ticket: 99, ..first };
    assert!(!agent.mend(&failed(&foreign, "wrong")));
}
