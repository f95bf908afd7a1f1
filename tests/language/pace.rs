//! How fast proposals come, with models as slow as they are: a second here stands for twenty.

use std::time::{Duration, Instant};

use warpsmith::agent::transcript::Transcript;

use crate::endpoint::{Answer, Endpoint};
use crate::place::{agent_with, brief, incumbent, offer, proposal, reply, settings};

const IN_FLIGHT: usize = 8;
/// Twenty seconds.
const LATENCY: Duration = Duration::from_secs(1);

/// Throughput against what the slower of model and device allows, with a device that takes so long for a candidate.
async fn share_of_the_possible(device: Duration, candidates: u32) -> f64 {
    let endpoint = Endpoint::start(|request| Answer::says(&reply(&request.number.to_string())).after(LATENCY));
    let mut settings = settings(&endpoint.url());
    settings.proposals = IN_FLIGHT;
    let mut agent = agent_with(settings, Transcript::nowhere());
    let brief = brief(&incumbent());
    // The first answers are waited for in any case.
    proposal(offer(&mut agent, &brief).await);
    let began = Instant::now();
    for _ in 0..candidates {
        tokio::time::sleep(device).await;
        proposal(offer(&mut agent, &brief).await);
    }
    let possible = device.max(LATENCY / IN_FLIGHT as u32) * candidates;
    possible.as_secs_f64() / began.elapsed().as_secs_f64()
}

/// The best of three: what else the machine does takes time of its own.
async fn at_best(device: Duration, candidates: u32) -> f64 {
    let mut best = 0.0f64;
    for _ in 0..3 {
        best = best.max(share_of_the_possible(device, candidates).await);
        if best >= 0.9 {
            break;
        }
    }
    best
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_is_the_slower_one_hardly_ever_waits_for_eight_slow_models() {
    let share = at_best(Duration::from_millis(200), 16).await;
    assert!(share >= 0.9, "{share:.2} of the possible");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_models_are_asked_again_at_once_where_they_are_the_slower_ones() {
    let share = at_best(Duration::from_millis(20), 24).await;
    assert!(share >= 0.9, "{share:.2} of the possible");
}
