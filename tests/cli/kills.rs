//! A run that is killed again and again at arbitrary moments.

use std::time::{Duration, Instant};

use warpsmith::rng::Stream;

use crate::common::processes::Session;
use crate::common::{Place, kernels};
use crate::consistency::check;

/// The seed of the moments.
const SEED: u64 = 20_260_214;

/// Kills come anywhere between a start and this long after the time that a run here takes to begin: enough for some experiments,
/// each of which takes [`VERDICT`].
const BEYOND: Duration = Duration::from_millis(400);

/// Long enough for a kill to come in the middle of one now and then.
const VERDICT: &str = "[[event]]\nwhen = \"PASSES >= 0\"\ndelay_ms = 30\n";

#[test]
#[ignore = "the full suite: .ci/run"]
fn five_kills_at_random_moments_lose_nothing_and_repeat_nothing() {
    killed_at_random(5);
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn fifty_kills_at_random_moments_lose_nothing_and_repeat_nothing() {
    killed_at_random(50);
}

/// So many kills of the whole process group of a run, which then ends.
fn killed_at_random(most: u64) {
    let place = Place::new(&kernels::eventful()).judged_by(VERDICT);
    let moments = Stream::new(SEED, "kills");
    let fresh =
        ["run", "model", "--only", "rmsnorm", "--max-reverts", "50", "--speedup", "1000", "--roofline", "10000"];
    let resume = ["run", "model", "--resume"];
    let began = Instant::now();
    Place::new(&kernels::eventful()).judged_by(VERDICT).begin(&fresh);
    let longest = u64::try_from((began.elapsed() + BEYOND).as_millis()).unwrap();
    let mut going_on = false;
    let mut kills = 0;
    while kills < most {
        let mut session = Session::start(place.command(if going_on { &resume } else { &fresh }));
        let moment = Duration::from_millis(moments.below(kills, longest));
        match session.ends_within(moment) {
            // It was done, or there was nothing yet to resume: the next one is a new run.
            Ok(code) => {
                assert!(code == Some(0) || (code == Some(2) && going_on), "{code:?}: {}", session.output());
                going_on = false;
            }
            Err(()) => {
                session.signal("KILL");
                kills += 1;
                going_on = place.git(&["for-each-ref", "refs/warpsmith"]).lines().count() > 0;
            }
        }
        session.nothing_left();
    }
    let ended = place.warpsmith(if going_on { &resume } else { &fresh });
    assert!(ended.code == Some(0) || ended.err.contains("has ended"), "{ended:?}");
    check(&place);
    let statuses = place.statuses();
    assert!(statuses.iter().any(|status| status == "keep"), "{statuses:?}");
}
