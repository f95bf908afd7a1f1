//! A run with several workers: it decides what it would with one, loses nothing to workers that die, and gains by each of them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::processes::Session;
use crate::common::{Outcome, Place, kernels, outcome};
use crate::consistency::{check, journal};

/// Proposals that take fewer passes: every third better than all before it, the others worse.
fn passes(count: u64) -> impl Iterator<Item = u64> {
    (1..=count).map(|at| if at % 3 == 0 { 200 - at } else { 200 + at })
}

/// A transcript with so many proposals.
fn transcript(count: u64) -> String {
    proposals(&passes(count).collect::<Vec<_>>())
}

/// A transcript that proposes these.
fn proposals(passes: &[u64]) -> String {
    passes.iter().enumerate().fold(String::new(), |mut lines, (at, passes)| {
        let text = kernels::keeps().replace("value = 200, choices = [4, 200]", &format!("value = {passes}, choices = [{passes}]"));
        let proposal = json!({"text": text, "technique": "tune", "description": format!("{passes} passes"), "ticket": at});
        let said = json!({"at": "2026-03-01T07:00:00Z", "said": "proposed", "op": "rmsnorm", "experiment": 2, "proposal": proposal});
        writeln!(lines, "{said}").unwrap();
        lines
    })
}

/// A place where verdicts take so long, and a run with these proposals has no rule that ends it early.
fn place(count: u64, delay_ms: u64) -> Place {
    let slow = format!("own_devices = true\n[[event]]\nop = \"rmsnorm\"\ndelay_ms = {delay_ms}\n");
    let cost = "[[cost]]\nop = \"rmsnorm\"\ntimes_roofline = \"PASSES\"\n";
    let place = Place::new(&kernels::keeps()).judged_by(&format!("{slow}{cost}"));
    place.write(".git/night.jsonl", &transcript(count));
    place
}

/// The run, by so many workers.
fn run(place: &Place, workers: usize, more: &[&str]) -> Command {
    let rules = ["--max-reverts", "1000", "--speedup", "1000", "--roofline", "1000"];
    let start = ["run", "kernels/cpu/rmsnorm.c", "--agent", "replay", ".git/night.jsonl"];
    let worker = place.worker().unwrap();
    let crew: Vec<&str> = (0..workers).flat_map(|_| ["--worker", &worker]).collect();
    place.command(&[&start[..], &rules, &crew, more].concat())
}

/// What was decided about each proposal, in order, and what the branch ends with.
fn decided(place: &Place) -> (Vec<(String, String)>, String) {
    let run = place.only_run();
    let said = |entry: Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&entry["trial"]["proposal"]["description"]), text(&entry["trial"]["decision"]))
    };
    let tip = place.git(&["show", &format!("warpsmith/{run}:kernels/cpu/rmsnorm.c")]);
    (journal(place, &run).into_iter().map(said).collect(), tip)
}

/// Nothing is there twice, nothing is missing.
fn is_complete(place: &Place, count: u64) {
    let (all, _) = decided(place);
    let described: Vec<String> = passes(count).map(|passes| format!("{passes} passes")).collect();
    assert_eq!(all.iter().skip(1).map(|(said, _)| said.clone()).collect::<Vec<_>>(), described);
    check(place);
}

#[test]
fn four_workers_decide_what_one_decides() {
    let alone = place(12, 0);
    outcome(run(&alone, 1, &[])).ok();
    is_complete(&alone, 12);
    let together = place(12, 20);
    let out = outcome(run(&together, 4, &[])).ok();
    is_complete(&together, 12);
    assert_eq!(decided(&together), decided(&alone), "{out}");
    let kept = decided(&alone).0.iter().filter(|(_, decision)| decision == "keep").count();
    assert_eq!(kept, 4, "{:?}", decided(&alone));
    // What was kept against an incumbent that had been replaced was timed against the new one.
    for entry in journal(&together, &together.only_run()).iter().filter(|entry| entry["kept"] == true).skip(1) {
        let kept: BTreeSet<u64> = journal(&together, &together.only_run())
            .iter()
            .filter(|other| other["kept"] == true)
            .map(|other| other["experiment"].as_u64().unwrap())
            .collect();
        let number = entry["experiment"].as_u64().unwrap();
        assert_eq!(entry["trial"]["parent"].as_u64(), kept.range(..number).next_back().copied(), "{entry}");
    }
}

#[test]
fn rules_count_in_the_order_of_trials_not_of_arrival() {
    // The first proposal takes long: the keep behind it has its verdict much earlier, and comes after it all the same.
    let slow = "own_devices = true\n[[event]]\nwhen = \"PASSES == 201\"\ndelay_ms = 700\n[[cost]]\nop = \"rmsnorm\"\ntimes_roofline = \"PASSES\"\n";
    let place = Place::new(&kernels::keeps()).judged_by(slow);
    place.write(".git/night.jsonl", &transcript(3));
    outcome(run(&place, 3, &[])).ok();
    is_complete(&place, 3);
    assert_eq!(place.statuses(), ["base", "revert", "revert", "keep"]);
}

#[test]
fn killed_at_any_step_with_four_workers_at_work_nothing_is_lost_or_done_twice() {
    for step in ["pending", "objects", "journal", "branch", "ledger", "restored", "done"] {
        let place = place(9, 30);
        let mut command = run(&place, 4, &[]);
        command.env("WARPSMITH_FAILPOINT", format!("{step}:4"));
        let Outcome { code, out, err } = outcome(command);
        assert_eq!(code, None, "{step}: {out}{err}");
        let worker = place.worker().unwrap();
        let crew: Vec<&str> = (0..4).flat_map(|_| ["--worker", &worker]).collect();
        place.warpsmith(&[&["run", "kernels/cpu/rmsnorm.c", "--resume"], &crew[..]].concat()).ok();
        is_complete(&place, 9);
    }
}

#[test]
fn workers_that_are_killed_cost_the_run_nothing_but_time() {
    let place = place(24, 150);
    let mut session = Session::start(run(&place, 4, &[]));
    assert!(session.says("#3", Duration::from_secs(60)), "{}", session.output());
    let mut killed = 0;
    while session.ends_within(Duration::from_millis(250)).is_err() {
        // Another one each time; how long a run lives does not depend on it, since the same candidate is not hit twice in a row
        // as long as verdicts are shorter than the pause.
        if let Some(worker) = session.processes("scripted_worker").get(killed % 4) {
            let _ = Command::new("kill").args(["-KILL", &worker.to_string()]).status();
            killed += 1;
        }
        assert!(killed < 400, "{}", session.output());
        if killed > 6 {
            assert_eq!(session.ends_within(Duration::from_secs(120)), Ok(Some(0)), "{}", session.output());
            break;
        }
    }
    assert!(killed > 2, "{}", session.output());
    assert!(session.output().contains("is judged again: the worker died"), "{}", session.output());
    is_complete(&place, 24);
    let log = place.read(&format!(".warpsmith/{}/warpsmith.log", place.only_run()));
    assert!(log.contains("start a worker") && log.contains("a worker was lost"), "{log}");
    assert!(log.contains("an experiment is recorded") && !log.contains("PASSES"), "{log}");
    assert!(session.output().contains("what happened in detail"), "{}", session.output());
    assert!(decided(&place).0.iter().all(|(_, decision)| decision != "crash"), "{:?}", decided(&place));
}

#[test]
#[ignore = "the full suite: .ci/run"]
#[allow(clippy::print_stdout)]
fn eight_workers_judge_nearly_eight_times_as_much() {
    // None is kept: what is must be timed once more where another was kept meanwhile, which is a chain by its nature.
    let worse = |count: u64| (1..=count).map(|at| 200 + at).collect::<Vec<_>>();
    let spent = |workers: usize, count: u64| {
        let place = place(0, 1000);
        place.write(".git/night.jsonl", &proposals(&worse(count)));
        let began = Instant::now();
        outcome(run(&place, workers, &[])).ok();
        assert_eq!(place.statuses().len() as u64, count + 1);
        check(&place);
        began.elapsed().as_secs_f64()
    };
    // Starting, the base, which all the rest waits for, and ending are alike for both.
    let idle = spent(1, 0);
    let (one, eight) = (spent(1, 8) - idle, spent(8, 64) - idle);
    println!(
        "a trial takes one worker {:.3} s, eight workers {:.3} s each: {:.2} times as many",
        one / 8.0,
        eight / 64.0,
        8.0 * one / eight
    );
    assert!(8.0 * one / eight > 6.0, "{one:.1} s and {eight:.1} s");
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_thousand_trials_survive_workers_that_are_killed_at_random() {
    let place = place(0, 40);
    // Every twentieth is better than all before it.
    let passes: Vec<u64> = (1..=1000).map(|at| if at % 20 == 0 { 200 - 3 * (at / 20) } else { 201 + at }).collect();
    place.write(".git/night.jsonl", &proposals(&passes));
    let mut session = Session::start(run(&place, 8, &[]));
    assert!(session.says("#3", Duration::from_secs(60)), "{}", session.output());
    let (mut killed, mut random) = (0, 7_u64);
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let ended = loop {
        if let Ok(ended) = session.ends_within(Duration::from_millis(20 + next(400))) {
            break ended;
        }
        let workers = session.processes("scripted_worker");
        if let Some(worker) = workers.get(next(workers.len().max(1) as u64) as usize) {
            let _ = Command::new("kill").args(["-KILL", &worker.to_string()]).status();
            killed += 1;
        }
    };
    assert_eq!(ended, Some(0), "{}", session.output());
    let (all, tip) = decided(&place);
    let output = session.output();
    let last: Vec<&str> = output.lines().rev().take(12).collect();
    assert_eq!(all.len(), 1 + passes.len(), "{last:#?}");
    assert!(killed > 10, "{killed}");
    let as_proposed = all.iter().skip(1).zip(&passes).all(|((said, _), passes)| *said == format!("{passes} passes"));
    assert!(as_proposed, "{last:#?}");
    assert!(all.iter().all(|(_, decision)| decision != "crash"), "{last:#?}");
    assert_eq!(all.iter().filter(|(_, decision)| decision == "keep").count(), 50);
    assert!(tip.contains("value = 50,"), "{tip}");
    check(&place);
}

#[test]
fn status_shows_each_worker() {
    let place = place(40, 200);
    let mut session = Session::start(run(&place, 2, &[]));
    assert!(session.says("#4", Duration::from_secs(60)), "{}", session.output());
    let out = place.warpsmith(&["status"]).ok();
    let lines: Vec<&str> = out.lines().filter(|line| line.contains("scripted_worker")).collect();
    assert_eq!(lines.len(), 2, "{out}");
    assert!(lines.iter().all(|line| line.contains("% busy")), "{out}");
}
