#![allow(clippy::unwrap_used)]

use super::*;
use crate::evaluation::{Speedup, Stage};

fn verdicts() -> Vec<(Verdict, &'static str)> {
    let speedup = Speedup { ratio: 1.1, low: 1.05 };
    let stage = Stage::Sweep;
    let why = String::new;
    vec![
        (Verdict::Base, "same"),
        (Verdict::Start, "same"),
        (Verdict::Keep { speedup, simpler: false }, "reset"),
        (Verdict::Keep { speedup, simpler: true }, "same"),
        (Verdict::Revert { speedup, why: why() }, "more"),
        (Verdict::Reject { stage, why: why() }, "more"),
        (Verdict::Crash { stage, why: why() }, "more"),
        (Verdict::Timeout { stage, why: why() }, "more"),
        (Verdict::Error { stage, why: why() }, "more"),
    ]
}

#[test]
fn every_verdict_counts_as_it_should() {
    for (verdict, effect) in verdicts() {
        for before in [0, 1, 4, u32::MAX] {
            let mut progress = TargetProgress { reverts: before, ..TargetProgress::default() };
            progress.record(&verdict);
            let expected = match effect {
                "same" => before,
                "reset" => 0,
                _ => before.saturating_add(1),
            };
            assert_eq!(progress.reverts, expected, "{verdict:?} after {before}");
        }
    }
}

#[test]
fn a_simplification_does_not_give_a_target_more_time() {
    let rules = Rules::default();
    let mut progress = TargetProgress::default();
    for index in 0..9 {
        assert_eq!(rules.target(&progress), None, "{index}");
        let speedup = Speedup { ratio: 1.0, low: 0.998 };
        progress.record(&if index % 2 == 0 {
            Verdict::Revert { speedup, why: String::new() }
        } else {
            Verdict::Keep { speedup, simpler: true }
        });
    }
    assert_eq!(rules.target(&progress), Some(StopReason::Reverts { limit: 5 }));
}

/// Each rule of a target, as (a progress on which only it fires, its reason under the default rules).
fn firing(which: usize, progress: &mut TargetProgress) -> StopReason {
    match which {
        0 => {
            progress.roofline_pct = Some(90.0);
            StopReason::Roofline { pct: 90.0, limit: 90.0 }
        }
        1 => {
            progress.vs_user = Some(2.5);
            StopReason::Speedup { vs_user: 2.5, limit: 2.0 }
        }
        2 => {
            progress.exhausted = Some("all 12 points were tried".into());
            StopReason::Exhausted { why: "all 12 points were tried".into() }
        }
        3 => {
            progress.reverts = 5;
            StopReason::Reverts { limit: 5 }
        }
        _ => {
            progress.spent = Duration::from_secs(7200);
            StopReason::PerKernel { limit: Duration::from_secs(7200) }
        }
    }
}

fn without(which: usize, rules: &mut Rules, progress: &mut TargetProgress) {
    match which {
        0 => rules.roofline_pct = None,
        1 => rules.speedup = None,
        2 => progress.exhausted = None,
        3 => rules.max_reverts = None,
        _ => rules.per_kernel = None,
    }
}

#[test]
fn in_every_combination_the_first_rule_that_holds_is_named() {
    for present in 0..32usize {
        for off in 0..32usize {
            let mut rules = Rules::default();
            let mut progress = TargetProgress::default();
            let mut expected = None;
            for which in (0..5).rev() {
                if present >> which & 1 == 1 {
                    let reason = firing(which, &mut progress);
                    if off >> which & 1 == 0 {
                        expected = Some(reason);
                    }
                }
                if off >> which & 1 == 1 {
                    without(which, &mut rules, &mut progress);
                }
            }
            assert_eq!(rules.target(&progress), expected, "{present:05b} without {off:05b}");
        }
    }
}

#[test]
fn just_below_its_limit_no_rule_fires() {
    let progress = TargetProgress {
        reverts: 4,
        roofline_pct: Some(89.99),
        vs_user: Some(1.999),
        spent: Duration::from_secs(7199),
        exhausted: None,
        beyond: false,
    };
    assert_eq!(Rules::default().target(&progress), None);
}

#[test]
fn what_is_gone_on_with_beyond_its_speedup_ends_by_every_other_rule() {
    let beyond = TargetProgress { vs_user: Some(2.5), beyond: true, ..TargetProgress::default() };
    assert_eq!(Rules::default().target(&beyond), None);
    let ended = |progress| Rules::default().target(&progress);
    assert_eq!(ended(TargetProgress { reverts: 5, ..beyond.clone() }), Some(StopReason::Reverts { limit: 5 }));
    let near = TargetProgress { roofline_pct: Some(91.0), ..beyond };
    assert_eq!(ended(near), Some(StopReason::Roofline { pct: 91.0, limit: 90.0 }));
}

#[test]
fn what_is_unknown_or_not_a_number_stops_nothing() {
    let progress =
        TargetProgress { roofline_pct: Some(f64::NAN), vs_user: Some(f64::NAN), ..TargetProgress::default() };
    assert_eq!(Rules::default().target(&progress), None);
    assert_eq!(Rules::default().target(&TargetProgress::default()), None);
}

fn at(text: &str) -> Moment {
    Moment(text.parse().unwrap())
}

#[test]
fn in_every_combination_the_run_names_its_own_end() {
    for bits in 0..64usize {
        let on = |which: usize| bits >> which & 1 == 1;
        let rules = Rules {
            budget: Some(Duration::from_secs(100)),
            until: Some(at("2026-03-01T07:00:00Z")),
            max_tokens: Some(1000),
            max_cost: Some(2.5),
            ..Rules::default()
        };
        let progress = RunProgress {
            interrupted: on(0),
            targets_left: usize::from(!on(1)),
            spent: Duration::from_secs(if on(2) { 100 } else { 99 }),
            now: at(if on(3) { "2026-03-01T07:00:00Z" } else { "2026-03-01T06:59:59Z" }),
            tokens: if on(4) { 1000 } else { 999 },
            cost_usd: if on(5) { 2.5 } else { 2.49 },
        };
        let all = [
            StopReason::Interrupted,
            StopReason::NoTargets,
            StopReason::Budget { limit: Duration::from_secs(100) },
            StopReason::Until { limit: at("2026-03-01T07:00:00Z") },
            StopReason::Tokens { limit: 1000 },
            StopReason::Cost { limit: 2.5 },
        ];
        let expected = (0..6).find(|which| on(*which)).map(|which| all[which].clone());
        assert_eq!(rules.run(&progress), expected, "{bits:06b}");
        assert!(expected.is_none_or(|reason| reason.ends_run()));
    }
}

#[test]
fn a_run_without_limits_goes_on_while_there_are_targets() {
    let progress = RunProgress {
        spent: Duration::from_secs(1_000_000),
        now: at("2036-01-01T00:00:00Z"),
        targets_left: 1,
        interrupted: false,
        tokens: u64::MAX,
        cost_usd: f64::INFINITY,
    };
    assert_eq!(Rules::default().run(&progress), None);
}

#[test]
fn an_agent_may_think_until_the_first_limit() {
    let (run, target, now) = (Duration::from_secs(50), Duration::from_secs(10), at("2026-03-01T06:59:30Z"));
    let none = Rules { per_kernel: None, ..Rules::default() };
    assert_eq!(none.time_left(run, target, now), None);
    let each = Rules { per_kernel: Some(Duration::from_secs(70)), ..none };
    assert_eq!(each.time_left(run, target, now), Some(Duration::from_secs(60)));
    let whole = Rules { budget: Some(Duration::from_secs(100)), ..each };
    assert_eq!(whole.time_left(run, target, now), Some(Duration::from_secs(50)));
    let morning = Rules { until: Some(at("2026-03-01T07:00:00Z")), ..whole };
    assert_eq!(morning.time_left(run, target, now), Some(Duration::from_secs(30)));
    assert_eq!(morning.time_left(run, target, at("2026-03-01T08:00:00Z")), Some(Duration::ZERO));
}

#[test]
fn reasons_are_sentences() {
    let says = |reason: StopReason| reason.to_string();
    assert_eq!(says(StopReason::Reverts { limit: 5 }), "5 reverts in a row");
    assert_eq!(says(StopReason::Reverts { limit: 1 }), "1 revert");
    assert_eq!(says(StopReason::Roofline { pct: 91.26, limit: 90.0 }), "91 % of the roofline (limit 90 %)");
    assert_eq!(says(StopReason::Speedup { vs_user: 2.014, limit: 2.0 }), "2.01x what you had (limit 2x)");
    assert_eq!(says(StopReason::PerKernel { limit: Duration::from_secs(7200) }), "its 2h are over");
    assert_eq!(says(StopReason::PerKernel { limit: Duration::from_secs(90) }), "its 90 s are over");
    assert_eq!(says(StopReason::Budget { limit: Duration::from_secs(5400) }), "the run's budget of 1h30 is spent");
    assert_eq!(says(StopReason::Budget { limit: Duration::from_secs(2700) }), "the run's budget of 45 min is spent");
    assert_eq!(
        says(StopReason::Exhausted { why: "all points were tried".into() }),
        "nothing left to propose: all points were tried"
    );
    assert_eq!(says(StopReason::Tokens { limit: 5000 }), "the agent's 5000 tokens are used up");
    assert_eq!(says(StopReason::Cost { limit: 2.5 }), "the agent's $2.50 are spent");
    assert_eq!(says(StopReason::NoTargets), "no targets left");
    assert_eq!(says(StopReason::Interrupted), "interrupted");
    assert!(says(StopReason::Until { limit: at("2026-03-01T07:00:00Z") }).starts_with("it is "));
}

#[test]
fn a_reason_survives_the_journal() {
    let reason = StopReason::Speedup { vs_user: 2.25, limit: 2.0 };
    let until = StopReason::Until { limit: at("2026-03-01T07:00:00Z") };
    for reason in [reason, until] {
        let text = serde_json::to_string(&reason).unwrap();
        assert_eq!(serde_json::from_str::<StopReason>(&text).unwrap(), reason);
    }
    assert!(serde_json::from_str::<Moment>("\"soon\"").is_err());
}

#[test]
fn until_is_the_next_such_hour() {
    let evening: jiff::Zoned = "2026-03-01T22:10:00[UTC]".parse().unwrap();
    assert_eq!(next_time_of_day("07:00", &evening).unwrap(), at("2026-03-02T07:00:00Z"));
    assert_eq!(next_time_of_day("23:30", &evening).unwrap(), at("2026-03-01T23:30:00Z"));
    assert_eq!(next_time_of_day("22:10", &evening).unwrap(), at("2026-03-02T22:10:00Z"));
    for wrong in ["25:00", "seven", "", "7"] {
        assert!(next_time_of_day(wrong, &evening).unwrap_err().to_string().contains("--until 07:00"), "{wrong}");
    }
}

#[test]
fn a_target_that_had_its_time_makes_room_for_a_next_one_that_is_worth_it() {
    let seconds = Duration::from_secs;
    let rules = Rules { budget: Some(seconds(210)), ..Rules::none() };
    let next = Some(("softmax", 1.08));
    let ahead = |trial, leaving| Ahead { trial: seconds(trial), leaving: seconds(leaving) };
    let room = StopReason::Room { kept: seconds(35), next: "softmax".into() };
    assert_eq!(rules.room(seconds(175), seconds(90), Ahead::default(), next), Some(room.clone()));
    assert!(room.to_string().contains("35 s") && !room.ends_run());
    // Too early, hardly begun itself, a next one that gives nothing, none, and no budget.
    assert_eq!(rules.room(seconds(174), seconds(90), Ahead::default(), next), None);
    assert_eq!(rules.room(seconds(180), seconds(34), Ahead::default(), next), None);
    assert_eq!(rules.room(seconds(180), seconds(90), Ahead::default(), Some(("softmax", 1.02))), None);
    assert_eq!(rules.room(seconds(180), seconds(90), Ahead::default(), None), None);
    assert_eq!(Rules::none().room(seconds(180), seconds(90), Ahead::default(), next), None);
    // The model is asked about the kernel that is left, which the last one took 15 s for.
    let sooner = StopReason::Room { kept: seconds(50), next: "softmax".into() };
    assert_eq!(rules.room(seconds(160), seconds(40), ahead(0, 15), next), Some(sooner));
    assert_eq!(rules.room(seconds(159), seconds(40), ahead(0, 15), next), None);
    // One more trial would take as long as the last, and its time is the next one's.
    let sooner = StopReason::Room { kept: seconds(43), next: "softmax".into() };
    assert_eq!(rules.room(seconds(147), seconds(40), ahead(20, 8), next), Some(sooner));
    assert_eq!(rules.room(seconds(146), seconds(40), ahead(20, 8), next), None);
    // Of a night it is two minutes.
    let night = Rules { budget: Some(seconds(8 * 3600)), ..Rules::none() };
    assert_eq!(night.room(seconds(8 * 3600 - 121), seconds(7200), Ahead::default(), next), None);
    assert!(night.room(seconds(8 * 3600 - 120), seconds(7200), Ahead::default(), next).is_some());
}
