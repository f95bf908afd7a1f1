//! A worker that a command starts: what it is told, and what is refused.

use crate::common::{Outcome, Place, kernels, outcome};

/// `bench` with this command for its worker.
fn bench_by(place: &Place, worker: &str, more: &[&str]) -> Outcome {
    place.warpsmith(&[&["bench", "kernels/cpu/rmsnorm.c", "--worker", worker], more].concat())
}

#[test]
fn the_worker_of_a_command_judges_and_is_told_which_device() {
    let place = Place::without_repository(&kernels::keeps()).really_judged();
    // As `ssh` would: a shell that has a program of its own run with what stands behind it.
    place.write("remote", "#!/bin/sh\necho \"$@\" >> told\nexec \"$@\"\n");
    let command = format!("sh remote '{}' worker", env!("CARGO_BIN_EXE_warpsmith"));
    let out = bench_by(&place, &command, &["--smoke"]).ok();
    assert!(out.contains("smoke"), "{out}");
    assert!(place.read("told").ends_with(" worker --backend cpu --at-once\n"), "{}", place.read("told"));
    // The settings name it as well, and the command line comes before them.
    place.write("warpsmith.toml", &format!("[run]\nworker = \"{}\"\n", command.replace('"', "\\\"")));
    place.warpsmith(&["bench", "--smoke", "kernels/cpu/rmsnorm.c"]).ok();
    assert_eq!(place.read("told").lines().count(), 2);
    assert!(bench_by(&place, "no-such-program", &[]).refusal().contains("no-such-program: No such file"));
}

#[test]
fn where_nobody_says_which_device_a_model_runs_on_the_worker_does() {
    let place = Place::new(&kernels::keeps());
    let mut command = place.command(&["profile", "model", "--json"]);
    command.env_remove("WARPSMITH_BACKEND");
    let profile: serde_json::Value = serde_json::from_str(&outcome(command).ok()).unwrap();
    assert_eq!(profile["pass"]["dtype"], "f32", "{profile}");
}

#[test]
fn a_worker_that_is_another_build_or_none_at_all_is_refused_in_a_sentence() {
    let place = Place::without_repository(&kernels::keeps()).really_judged();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/kernels.toml");
    let (worker, other) = (env!("CARGO_BIN_EXE_scripted_worker"), env!("CARGO_BIN_EXE_scripted_worker"));
    let said = bench_by(&place, &format!("'{worker}' '{other}' '{script}'"), &[]).refusal();
    assert!(said.contains("is another build of Warpsmith than this program"), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    let said = bench_by(&place, "true", &[]).refusal();
    assert!(said.contains("the worker did not start") && said.contains("its output ended"), "{said}");
    assert!(bench_by(&place, "echo hello", &[]).refusal().contains("the worker did not start"));
    assert!(bench_by(&place, "ssh 'gpu7", &[]).refusal().contains("quotation mark"));
    assert!(bench_by(&place, "", &[]).refusal().contains("names no program"));
}
