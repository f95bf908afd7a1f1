#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::*;
use crate::model::{Graph, ModelConfig, Pass, Phase};
use crate::op::Dtype;

const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 10}"#;
static GO: AtomicBool = AtomicBool::new(false);

fn graph() -> Graph {
    let config = ModelConfig::parse("tiny", CONFIG).unwrap();
    Graph::build(&config, Pass { phase: Phase::Prefill, batch: 1, seq: 3, dtype: Dtype::F32, layers: None }).unwrap()
}

/// Two models whose passes take a fixed time; the machine slows down a little with every pass.
struct Fake {
    whole_us: [f64; 2],
    after_error: f64,
    drift: f64,
    log: String,
    clock: f64,
    fail_at: Option<usize>,
    steps: usize,
}

impl Fake {
    fn new(whole_us: [f64; 2]) -> Self {
        Self { whole_us, after_error: 0.0, drift: 0.0, log: String::new(), clock: 1.0, fail_at: None, steps: 0 }
    }

    fn step(&mut self, what: char) -> Result<(), ForwardError> {
        self.log.push(what);
        self.steps += 1;
        if self.fail_at == Some(self.steps - 1) { Err(ForwardError::Cancelled) } else { Ok(()) }
    }
}

impl Contest for Fake {
    fn restart(&mut self) -> Result<(), ForwardError> {
        self.step('|')
    }
    fn whole(&mut self, side: Side) -> Result<Duration, ForwardError> {
        self.step(if side == Side::Before { 'b' } else { 'a' })?;
        self.clock += self.drift;
        Ok(Duration::from_secs_f64(self.whole_us[side as usize] * self.clock * 1e-6))
    }
    fn parts(&mut self, side: Side) -> Result<Vec<Stretch>, ForwardError> {
        self.step('p')?;
        Ok(vec![Stretch { nodes: vec![0], took: Duration::from_secs_f64(self.whole_us[side as usize] * 1e-6) }])
    }
    fn nothing(&mut self, _: Side) -> Result<Duration, ForwardError> {
        self.step('.')?;
        Ok(Duration::ZERO)
    }
    fn output(&mut self, side: Side) -> Result<Vec<f64>, ForwardError> {
        self.step('o')?;
        let factor = if side == Side::After { 1.0 + self.after_error } else { 1.0 };
        Ok((0..30).map(|i| f64::from(i * 7 % 11 - 5) * factor).collect())
    }
}

fn sessions(count: usize, blocks: usize) -> Sessions {
    Sessions { count, least: blocks, most: blocks, budget: Duration::ZERO }
}

fn effort() -> Effort {
    Effort { budget: Duration::ZERO, least: 3, most: 3 }
}

#[test]
fn blocks_are_symmetric_in_both_orders_and_processes_are_fresh() {
    let mut fake = Fake::new([100.0, 50.0]);
    let blocks = compare_times(&mut fake, &sessions(4, 8), 3, &GO).unwrap();
    assert!(blocks.len() == 4 && blocks.iter().all(|session| session.len() == 8));
    let mut seen = BTreeSet::new();
    for session in fake.log.split('|').skip(1) {
        let (warm_up, blocks) = session.split_at(2);
        assert_eq!((warm_up, blocks.len()), ("ba", 32));
        (0..8).for_each(|at| {
            seen.insert(&blocks[4 * at..4 * at + 4]);
        });
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["abba", "baab"]);
}

#[test]
fn every_pass_is_booked_to_its_side() {
    let blocks = compare_times(&mut Fake::new([100.0, 50.0]), &sessions(3, 8), 3, &GO).unwrap();
    for block in blocks.concat() {
        assert!(block.before_us.iter().all(|us| (us - 100.0).abs() < 0.01), "{block:?}");
        assert!(block.after_us.iter().all(|us| (us - 50.0).abs() < 0.01), "{block:?}");
    }
}

#[test]
fn a_linear_drift_cancels_within_a_block() {
    let mut fake = Fake::new([110.0, 110.0]);
    fake.drift = 0.01;
    for block in compare_times(&mut fake, &sessions(3, 8), 3, &GO).unwrap().concat() {
        let (before, after) = (block.before_us[0] + block.before_us[1], block.after_us[0] + block.after_us[1]);
        assert!((before - after).abs() < 0.01 && (block.before_us[0] - block.before_us[1]).abs() > 1.0, "{block:?}");
    }
}

#[test]
fn a_comparison_reads_outputs_first_and_carries_everything() {
    let mut fake = Fake::new([100.0, 50.0]);
    fake.after_error = 0.05;
    let comparison = compare(&mut fake, &graph(), &sessions(2, 4), Some(&effort()), 1, &GO).unwrap();
    assert!(fake.log.starts_with("oo"));
    assert!(comparison.output.wrong.as_ref().unwrap().contains("5.0e-2"));
    assert!((comparison.before.whole() - 100.0).abs() < 0.01 && (comparison.after.whole() - 50.0).abs() < 0.01);
    assert_eq!((comparison.sessions.len(), comparison.output.positions), (2, 3));
    let json = serde_json::to_string(&comparison).unwrap();
    assert_eq!(serde_json::from_str::<Comparison>(&json).unwrap().output, comparison.output);
}

#[test]
fn where_outputs_alone_are_asked_for_each_side_runs_once() {
    let mut fake = Fake::new([100.0, 50.0]);
    let comparison = compare(&mut fake, &graph(), &sessions(0, 4), None, 1, &GO).unwrap();
    assert_eq!(fake.log, "oo");
    assert_eq!((comparison.before.whole_us.len(), comparison.sessions.len()), (0, 0));
}

#[test]
fn a_failure_at_any_step_is_passed_on() {
    let run = |fail_at| {
        let mut fake = Fake::new([100.0, 50.0]);
        fake.fail_at = fail_at;
        (compare(&mut fake, &graph(), &sessions(2, 4), Some(&effort()), 1, &GO).is_ok(), fake.steps)
    };
    let (done, steps) = run(None);
    assert!(done && steps > 50);
    for at in 0..steps {
        assert_eq!(run(Some(at)), (false, at + 1));
    }
}

#[test]
fn a_cancelled_comparison_stops_before_the_next_block() {
    let mut fake = Fake::new([100.0, 50.0]);
    let stopped = compare_times(&mut fake, &sessions(2, 4), 1, &AtomicBool::new(true));
    assert!(matches!(stopped, Err(ForwardError::Cancelled)));
    assert_eq!(fake.log, "|ba");
}

#[test]
fn outputs_that_differ_by_less_than_the_bound_agree() {
    let before: Vec<f64> = (0..40).map(|i| f64::from(i % 9) - 4.0).collect();
    let check = |after: Vec<f64>| compare_outputs(&before, &after, 10, 1e-3);
    let same = check(before.clone());
    assert_eq!((same.wrong.as_ref(), same.rms_relative, same.same_token, same.positions), (None, Some(0.0), 4, 4));
    let near = check(before.iter().map(|v| v * (1.0 + 9e-4)).collect());
    assert!(near.wrong.is_none() && (near.rms_relative.unwrap() - 9e-4).abs() < 1e-9);
    let far = check(before.iter().map(|v| v * (1.0 + 2e-3)).collect());
    assert!(far.wrong.unwrap().contains("more than 1.0e-3"));
    // The scale is the outputs' own.
    let tiny: Vec<f64> = before.iter().map(|v| v * 1e-20).collect();
    let off: Vec<f64> = tiny.iter().map(|v| v * 1.01).collect();
    assert!(compare_outputs(&tiny, &off, 10, 1e-3).wrong.is_some());
}

#[test]
fn wrong_outputs_of_every_kind_are_called_so() {
    let before: Vec<f64> = (0..40).map(|i| f64::from(i % 9) - 4.0).collect();
    let wrong = |before: &[f64], after: &[f64]| compare_outputs(before, after, 10, 0.1).wrong;
    let mut one_nan = before.clone();
    one_nan[17] = f64::NAN;
    assert!(wrong(&before, &one_nan).unwrap().contains("1 of 40 outputs became NaN"));
    let mut one_inf = before.clone();
    one_inf[3] = f64::INFINITY;
    assert!(wrong(&before, &one_inf).is_some());
    assert!(wrong(&one_nan, &one_nan).unwrap().contains("nothing to compare with"));
    assert!(wrong(&[0.0; 40], &[0.0; 40]).unwrap().contains("zeros"));
    assert!(wrong(&before, &[0.0; 40]).is_some());
    assert!(wrong(&before, &before[..39]).unwrap().contains("39 after"));
    assert!(wrong(&[], &[]).is_some());
    let mut shifted = before.clone();
    shifted.rotate_right(1);
    assert!(wrong(&before, &shifted).is_some());
}

#[test]
fn the_bound_grows_with_depth_and_coarseness_but_stays_far_below_one() {
    for dtype in Dtype::ALL {
        assert!(bound(dtype, 400) > bound(dtype, 50));
        // The deepest of the models that ship has 387 calls.
        assert!(bound(dtype, 387) < 0.2, "{dtype}");
    }
    assert!(bound(Dtype::F32, 50) < bound(Dtype::F16, 50) && bound(Dtype::F16, 50) < bound(Dtype::Bf16, 50));
    assert!((bound(Dtype::F32, 50) - 2e-4).abs() < 1e-12);
}
