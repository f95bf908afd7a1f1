#![allow(clippy::unwrap_used)]

use super::*;

/// Blocks of one shape whose `d` is exactly as given.
fn blocks(d: impl IntoIterator<Item = f64>) -> Vec<Block> {
    d.into_iter().map(|d| Block { incumbent_us: vec![100.0 * d.exp()], candidate_us: vec![100.0] }).collect()
}

/// `n` blocks around `centre`, half of them above and half below by up to `scatter`.
fn around(centre: f64, scatter: f64, n: usize) -> Vec<Block> {
    blocks((0..n).map(|i| {
        let size = scatter * (1 + i / 2 % 5) as f64 / 5.0;
        centre + if i % 2 == 0 { size } else { -size }
    }))
}

fn one_shape() -> Decision {
    Decision::new(Margin::default(), &[3])
}

fn gave_up(first: First) -> (Speedup, String) {
    match first {
        First::GiveUp { speedup, why } => (speedup, why),
        other => panic!("{other:?}"),
    }
}

fn reverted(outcome: Outcome) -> (Speedup, String) {
    match outcome {
        Outcome::Revert { speedup, why } => (speedup, why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn blocks_are_asked_for_up_to_the_next_look() {
    let rule = one_shape();
    // Above 0.3 m and below m: nothing is decided before the last look.
    let undecided = around(0.008, 0.001, 80);
    for seen in 0..80 {
        let next = [6, 20, 40, 80].into_iter().find(|look| *look > seen).unwrap();
        let fresh = [20, 40].contains(&seen);
        assert_eq!(rule.first(&undecided[..seen]), First::More { blocks: next - seen, fresh });
    }
    assert!(gave_up(rule.first(&undecided)).1.starts_with("not beyond doubt after 80 blocks: +0.8 %"));
}

#[test]
fn a_clear_gain_goes_to_confirmation_at_the_first_look() {
    assert_eq!(one_shape().first(&around(0.05, 0.01, 20)), First::Confirm);
}

#[test]
fn a_clear_loss_is_sent_away_after_six_blocks() {
    let (speedup, why) = gave_up(one_shape().first(&around(-0.05, 0.01, 6)));
    assert!(speedup.ratio < 0.97 && speedup.low <= speedup.ratio);
    assert!(why.starts_with("clearly slower after 6 blocks"), "{why}");
}

#[test]
fn six_scattered_blocks_with_a_low_median_are_not_yet_a_clear_loss() {
    let mixed = blocks([-0.06, -0.05, -0.04, -0.03, 0.05, 0.05]);
    assert_eq!(one_shape().first(&mixed), First::More { blocks: 14, fresh: false });
}

#[test]
fn no_gain_is_sent_away_at_the_first_look() {
    let (_, why) = gave_up(one_shape().first(&around(0.002, 0.001, 20)));
    assert!(why.starts_with("no gain after 20 blocks"), "{why}");
}

#[test]
fn blocks_past_a_look_do_not_change_its_answer() {
    let mut seen = around(0.05, 0.01, 20);
    seen.extend(around(-0.5, 0.01, 60));
    assert_eq!(one_shape().first(&seen), First::Confirm);
    let mut seen = around(0.0, 0.001, 20);
    seen.extend(around(0.5, 0.01, 60));
    assert!(gave_up(one_shape().first(&seen)).1.contains("after 20 blocks"));
}

#[test]
fn a_time_that_is_no_time_keeps_nothing() {
    for wrong in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        for side in 0..2 {
            let mut seen = around(0.2, 0.01, 80);
            let times = if side == 0 { &mut seen[3].incumbent_us } else { &mut seen[3].candidate_us };
            times[0] = wrong;
            let (speedup, why) = gave_up(one_shape().first(&seen));
            assert_eq!((speedup.ratio, speedup.low), (0.0, 0.0));
            assert!(why.contains("not a positive number"));
            let sessions = [seen[..16].to_vec(), around(0.2, 0.01, 16), around(0.2, 0.01, 16)];
            assert!(reverted(one_shape().confirm(&sessions)).1.contains("not a positive number"));
        }
    }
}

#[test]
fn a_missing_shape_keeps_nothing() {
    let rule = Decision::new(Margin::default(), &[1, 1]);
    assert!(gave_up(rule.first(&around(0.2, 0.01, 20))).1.contains("not a positive number"));
}

#[test]
fn a_confirmed_gain_is_kept_with_the_second_stages_speedup() {
    let sessions = [around(0.05, 0.004, 16), around(0.06, 0.004, 16), around(0.04, 0.004, 16)];
    let Outcome::Keep { speedup, simpler: false } = one_shape().confirm(&sessions) else { panic!() };
    assert!((speedup.ratio.ln() - 0.05).abs() < 0.003, "{speedup:?}");
    // Session medians differ by 1 % (sd), so the bound lies at least 1.96 × 1 % / √3 lower.
    assert!(speedup.low.ln() < speedup.ratio.ln() - 0.0113, "{speedup:?}");
    assert!(speedup.low > 1.0);
}

#[test]
fn one_session_that_disagrees_reverts() {
    let sessions = [around(0.05, 0.004, 16), around(0.05, 0.004, 16), around(0.004, 0.001, 16)];
    let (speedup, why) = reverted(one_shape().confirm(&sessions));
    assert!(why.starts_with("not confirmed: one fresh process saw +0.4 %"), "{why}");
    assert!(speedup.ratio > 1.0);
}

#[test]
fn sessions_that_agree_on_too_little_revert() {
    let sessions = [around(0.008, 0.001, 16), around(0.009, 0.001, 16), around(0.007, 0.001, 16)];
    assert!(reverted(one_shape().confirm(&sessions)).1.starts_with("not confirmed: fresh processes saw +0.8 %"));
    // Each is a gain, and together they do not even say whether there is one.
    let sessions = [0.53, 0.22, 0.12].map(|gain| around(gain, 0.002, 16));
    let (speedup, why) = reverted(one_shape().confirm(&sessions));
    assert!(speedup.ratio > 1.2 && speedup.low <= 1.0, "{speedup:?}");
    assert_eq!(why, "not confirmed: fresh processes saw +12.7 % to +69.9 %");
}

#[test]
fn too_few_or_too_short_sessions_revert() {
    let good = around(0.05, 0.004, 16);
    assert!(reverted(one_shape().confirm(&[])).1.contains("needs 3 sessions"));
    assert!(reverted(one_shape().confirm(&[good.clone(), good.clone()])).1.contains("needs 3 sessions"));
    let short = good[..15].to_vec();
    assert!(reverted(one_shape().confirm(&[good.clone(), good, short])).1.contains("of 16 blocks"));
}

/// Two shapes, the first called ten times; `d` of each.
fn two_shapes(first: f64, second: f64, n: usize) -> Vec<Block> {
    let wobble = |i: usize| if i.is_multiple_of(2) { 1.001 } else { 0.999 };
    (0..n)
        .map(|i| Block {
            incumbent_us: vec![50.0 * first.exp() * wobble(i), 20.0 * second.exp() * wobble(i)],
            candidate_us: vec![50.0, 20.0],
        })
        .collect()
}

#[test]
fn a_gain_on_one_shape_does_not_pay_for_a_loss_on_another() {
    let rule = Decision::new(Margin::default(), &[10, 1]);
    assert_eq!(rule.first(&two_shapes(0.1, 0.0, 20)), First::Confirm);
    let (speedup, why) = gave_up(rule.first(&two_shapes(0.1, -0.02, 20)));
    assert!(why.contains("shape 2 of the target is slower: -2.0 %"), "{why}");
    assert!(speedup.ratio > 1.05);
    let sessions = |second| vec![two_shapes(0.1, second, 16); 3];
    assert!(matches!(rule.confirm(&sessions(-0.005)), Outcome::Keep { .. }));
    assert!(reverted(rule.confirm(&sessions(-0.02))).1.contains("shape 2"));
}

#[test]
fn calls_weigh_the_shapes() {
    let rule = Decision::new(Margin::default(), &[10, 1]);
    let d = rule.logs(&[Block { incumbent_us: vec![60.0, 20.0], candidate_us: vec![50.0, 20.0] }]);
    assert!((d[0] - (620.0f64 / 520.0).ln()).abs() < 1e-12);
    let shapes = rule.shape_speedups(&two_shapes(0.1, 0.0, 20));
    assert!((shapes[0] - 0.1f64.exp()).abs() < 1e-3 && (shapes[1] - 1.0).abs() < 1e-3);
}

#[test]
fn the_margin_is_three_spreads_and_never_below_one_percent() {
    assert_eq!(Margin::default().ratio(), 0.01);
    assert_eq!(Margin::from_spread(0.0).ratio(), 0.01);
    assert!((Margin::from_spread(0.006).ratio() - 0.018).abs() < 1e-12);
    for wrong in [f64::NAN, f64::INFINITY, -0.1] {
        assert_eq!(Margin::from_spread(wrong), Margin::default());
    }
    let sessions: Vec<_> = [0.006, -0.006, 0.006, -0.006].map(|d| around(d, 0.0, 16)).into();
    assert!((Margin::from_sessions(&one_shape(), &sessions).spread - 0.006).abs() < 1e-9);
    assert_eq!(Margin::from_sessions(&one_shape(), &sessions[..2]), Margin::default());
    // Half of what is seen at most is put down to the scatter of the blocks.
    let noisy: Vec<_> = [0.006, -0.006, 0.006, -0.006].map(|d| around(d, 0.1, 16)).into();
    let spread = Margin::from_sessions(&one_shape(), &noisy).spread;
    assert!((0.0029..0.02).contains(&spread), "{spread}");
    let mut broken = sessions;
    broken[1][0].candidate_us[0] = 0.0;
    assert_eq!(Margin::from_sessions(&one_shape(), &broken), Margin::default());
}

#[test]
fn a_wider_margin_asks_for_more() {
    let gain = around(0.015, 0.002, 80);
    assert_eq!(one_shape().first(&gain), First::Confirm);
    let rough = Decision::new(Margin::from_spread(0.006), &[1]);
    assert!(gave_up(rough.first(&gain)).1.contains("margin +1.8 %"));
}

fn simpler(branch_over_best: f64) -> Decision {
    Decision::new(Margin::from_spread(0.001), &[1]).for_simpler(Simplification { branch_over_best })
}

#[test]
fn an_equal_and_simpler_kernel_is_kept_for_being_simpler() {
    let rule = simpler(1.0);
    assert_eq!(rule.first(&around(0.0, 0.002, 20)), First::More { blocks: 20, fresh: true });
    assert_eq!(rule.first(&around(0.0, 0.002, 80)), First::Confirm);
    let sessions = vec![around(0.0, 0.002, 16); 3];
    assert!(matches!(rule.confirm(&sessions), Outcome::Keep { simpler: true, .. }));
    assert!(matches!(one_shape().confirm(&sessions), Outcome::Revert { .. }));
}

#[test]
fn a_simpler_kernel_that_is_faster_is_kept_for_being_faster() {
    assert!(matches!(simpler(1.0).confirm(&vec![around(0.05, 0.002, 16); 3]), Outcome::Keep { simpler: false, .. }));
}

#[test]
fn a_simpler_kernel_is_not_kept_where_its_loss_may_reach_the_limit() {
    for loss in [0.002, 0.003, 0.01] {
        assert!(matches!(simpler(1.0).confirm(&vec![around(-loss, 0.004, 16); 3]), Outcome::Revert { .. }), "{loss}");
    }
    assert!(gave_up(simpler(1.0).first(&around(-0.005, 0.001, 20))).1.contains("no gain"));
}

#[test]
fn simplifications_cannot_add_up_to_a_loss() {
    let equal = vec![around(0.0, 0.002, 16); 3];
    assert!(matches!(simpler(1.0099).confirm(&equal), Outcome::Keep { .. }));
    assert!(matches!(simpler(1.02).confirm(&equal), Outcome::Revert { .. }));
    assert!(matches!(simpler(f64::NAN).confirm(&equal), Outcome::Revert { .. }));
}

#[test]
fn an_outcome_becomes_a_verdict_with_its_speedup() {
    let speedup = Speedup { ratio: 1.2, low: 1.1 };
    assert_eq!(Verdict::from(Outcome::Keep { speedup, simpler: true }), Verdict::Keep { speedup, simpler: true });
    let why = "no".to_owned();
    assert_eq!(Verdict::from(Outcome::Revert { speedup, why: why.clone() }), Verdict::Revert { speedup, why });
}
