//! Every rule that ends a target or a run, named where the summary says why. That a target ends at its default speedup,
//! at one asked for, and when its agent has nothing left, is seen in [`super::run`].

use crate::common::{Place, kernels};

/// The summary of a run with these arguments: the line of rmsnorm, and why the run ended.
fn stopped(kernel: &str, arguments: &[&str]) -> (String, String) {
    let place = Place::new(kernel);
    let out = place.run(arguments).ok();
    let summary = &out[out.find("device busy").unwrap()..];
    let target = summary.lines().find(|line| line.trim().starts_with("rmsnorm")).unwrap();
    let ended = summary.lines().next().unwrap().split_once("ended because ").unwrap().1;
    (target.to_owned(), ended.to_owned())
}

#[test]
fn a_target_ends_at_so_many_reverts() {
    let (target, ended) = stopped(&kernels::reverts(), &["--max-reverts", "1"]);
    assert!(target.ends_with("  1 revert"), "{target}");
    assert_eq!(ended, "no targets left");
}

#[test]
fn the_run_ends_with_its_budget() {
    let (target, ended) = stopped(&kernels::keeps(), &["--budget", "1s"]);
    assert!(target.ends_with("the run's budget of 1 s is spent"), "{target}");
    assert_eq!(ended, "the run's budget of 1 s is spent");
}

#[test]
fn the_run_ends_at_the_hour_asked_for() {
    let place = Place::new(&kernels::keeps());
    // A time zone in which the next full minute is five seconds away.
    let now = jiff::Timestamp::now().as_second();
    let zone = format!("TST-00:00:{:02}", (55 - now).rem_euclid(60));
    let shifted = jiff::Timestamp::from_second(now + (55 - now).rem_euclid(60) + 60).unwrap();
    let minute = shifted.to_zoned(jiff::tz::TimeZone::UTC).strftime("%H:%M").to_string();
    let mut command = place.command(&["run", "model", "--only", "rmsnorm", "--until", &minute]);
    command.env("TZ", zone);
    let out = crate::common::outcome(command).ok();
    assert!(out.contains(&format!("at the latest until {minute}")), "{out}");
    assert!(out.contains(&format!("ended because it is {minute}")), "{out}");
}

#[test]
fn a_target_ends_near_its_roofline_and_settings_count_where_nothing_is_said() {
    let place = Place::new(&kernels::keeps());
    place.write("warpsmith.toml", "[run]\nseq = 16\nroofline = 0.8\nbudget = \"1h\"\n");
    let out = place.run(&["--roofline", "1"]).ok();
    assert!(out.contains("budget      1h00; 2h00 a target"), "{out}");
    assert!(out.contains(" % of the roofline (limit 1 %)"), "{out}");
}

#[test]
fn a_target_ends_when_its_time_is_over_and_what_is_skipped_is_left_alone() {
    let place = Place::new(&kernels::keeps());
    let others = "matmul,fused_mlp,flash_attention,rotary_embedding";
    let out = place.warpsmith(&["run", "model", "--skip", others, "--per-kernel", "1ms"]).ok();
    assert!(out.contains("its 1 ms are over"), "{out}");
    assert_eq!(out.matches("not asked for").count(), 4, "{out}");
    let ops: Vec<String> = place.ledger().into_iter().map(|row| row.op).collect();
    assert_eq!(ops, ["rmsnorm"]);
}
