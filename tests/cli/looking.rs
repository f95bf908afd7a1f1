//! The commands that look: profile, verify, status, log, show, doctor, ops, help.

use serde_json::Value;

use crate::common::{Place, kernels};
use crate::run::FINISHED;

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_profile_is_a_table_of_what_to_gain_by_what() {
    let place = &FINISHED.place;
    let out = place.warpsmith(&["profile", "model"]).ok();
    let heading = out.lines().find(|line| line.trim_start().starts_with('#')).unwrap();
    let columns: Vec<_> = heading.split_whitespace().collect();
    assert_eq!(columns[..4], ["#", "operation", "shape", "calls"], "{out}");
    for column in ["ms", "share", "cum.", "bound", "1.5x", "2x", "at roof"] {
        assert!(heading.contains(column), "{column} in {heading}");
    }
    for op in ["matmul", "rmsnorm", "rotary_embedding", "flash_attention", "fused_mlp", "residual add", "embedding"] {
        assert!(out.lines().any(|line| line.contains(op)), "{op} in\n{out}");
    }
    let other = out.lines().find(|line| line.trim_start().starts_with("other")).unwrap();
    assert!(other.trim_end().ends_with('%'), "{other}");
}

#[test]
fn a_profile_as_json_has_everything_the_table_has() {
    let place = &FINISHED.place;
    let profile =
        parsed(&place.warpsmith(&["profile", "model", "--json", "--seq", "8", "--batch", "2", "--dtype", "bf16"]).ok());
    assert_eq!((profile["pass"]["seq"].as_u64(), profile["pass"]["batch"].as_u64()), (Some(8), Some(2)));
    assert_eq!(profile["pass"]["dtype"], "bf16");
    let rows = profile["rows"].as_array().unwrap();
    let shares: f64 = rows.iter().map(|row| row["share"].as_f64().unwrap()).sum();
    let other = profile["other_share"].as_f64().unwrap();
    assert!((shares + other - 1.0).abs() < 0.01, "{shares} + {other}");
    // The most that may stay unexplained is 10 %; where this machine is too busy for that, the profile says so itself.
    let says_so =
        profile["notes"].as_array().unwrap().iter().any(|note| note.as_str().unwrap().contains("do not explain"));
    assert_eq!(other > 0.10, says_so, "{profile}");
    let ranks: Vec<_> = rows.iter().map(|row| row["rank"].as_u64().unwrap()).collect();
    assert_eq!(ranks, (1..=rows.len() as u64).collect::<Vec<_>>());
}

#[test]
fn verify_compares_the_model_before_and_after_a_run() {
    let place = &FINISHED.place;
    let out = place.warpsmith(&["verify", "model"]).ok();
    for part in ["predicted", "measured", "outputs agree to "] {
        assert!(out.contains(part), "{part} in\n{out}");
    }
    let report = parsed(&place.warpsmith(&["verify", "model", "--run", &FINISHED.run, "--json"]).ok());
    assert!(report["output"]["wrong"].is_null(), "{report}");
    assert!(report["measured"]["median"].as_f64().unwrap() > 1.0, "{report}");
}

#[test]
fn status_says_where_the_run_is() {
    let place = &FINISHED.place;
    let out = place.warpsmith(&["status"]).ok();
    assert!(out.starts_with(&format!("run {}: ", FINISHED.run)) && out.contains("no targets left"), "{out}");
    assert!(!out.contains("--resume"), "{out}");
    let state = parsed(&place.warpsmith(&["status", "--json", "--run", &FINISHED.run]).ok());
    assert_eq!(state["run"], FINISHED.run.as_str());
    assert_eq!(state["targets"].as_array().unwrap().len(), 5);
    // From any directory of the workspace.
    assert_eq!(place.warpsmith(&["status", "--dir", "kernels/cpu"]).ok(), out);
}

#[test]
fn the_log_is_the_ledger_and_more_where_asked() {
    let place = &FINISHED.place;
    let trimmed = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    let log = place.warpsmith(&["log"]).ok();
    assert_eq!(trimmed(&log), trimmed(&place.read("results.tsv")));
    let wide = place.warpsmith(&["log", "--wide"]).ok();
    assert!(log.lines().all(|line| wide.contains(line)), "{wide}");
    for part in ["µs against ", " of the roofline, ", "seed ", "margin ", "confirmed "] {
        assert!(wide.contains(part), "{part} in\n{wide}");
    }
    let json = place.warpsmith(&["log", "--json"]).ok();
    assert_eq!(json.lines().count(), log.lines().count() - 1);
    for (line, row) in json.lines().zip(place.ledger()) {
        let entry = parsed(line);
        assert_eq!(entry["experiment"].as_u64(), Some(row.exp));
        assert_eq!(entry["run"], row.run.as_str());
        assert!(entry["commit"].as_str().unwrap().starts_with(&row.commit));
        assert_eq!(entry["evaluation"]["op"], row.op.as_str());
    }
}

#[test]
fn an_experiment_is_shown_with_its_verdict_its_cases_and_its_kernel() {
    let place = &FINISHED.place;
    let keep = place.ledger().into_iter().find(|row| row.status == "keep").unwrap();
    let number = keep.exp.to_string();
    let out = place.warpsmith(&["show", &number]).ok();
    for part in ["correct and faster: ", "smoke", "sweep", "stability", "determinism", "edges", "git show ", "seed "] {
        assert!(out.contains(part), "{part} in\n{out}");
    }
    let cases = place.warpsmith(&["show", &number, "--cases"]).ok();
    assert!(cases.contains("rows=3") && cases.contains("of its bound, rms ") && cases.contains("; ok"), "{cases}");
    let kernel = place.warpsmith(&["show", &number, "--kernel"]).ok();
    assert_eq!(kernel, place.git(&["show", &format!("{}:kernels/cpu/rmsnorm.c", keep.commit)]));
    let evaluation = parsed(&place.warpsmith(&["show", &number, "--json"]).ok());
    assert_eq!(evaluation["op"], "rmsnorm");
}

#[test]
fn the_doctor_says_what_works_here() {
    let place = Place::without_repository(&kernels::keeps()).really_judged();
    let out = place.warpsmith(&["doctor"]).ok();
    for part in [
        "warpsmith  ",
        "compiler  ",
        "git  ",
        "protection  ",
        "workspace  ",
        "cache  ",
        "device  ",
        "ceilings  ",
        "arithmetic  ",
        "gpu  ",
    ] {
        assert!(out.lines().any(|line| line.starts_with(part)), "{part} in\n{out}");
    }
    assert!(out.contains(&place.root.display().to_string()), "{out}");
}

#[test]
fn the_operations_are_listed_and_one_is_shown_in_full() {
    let nowhere = Place::empty();
    let out = nowhere.warpsmith(&["ops"]).ok();
    let names: Vec<_> = out.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(
        names,
        [
            "cross_entropy",
            "flash_attention",
            "fused_mlp",
            "layernorm",
            "matmul",
            "reduce",
            "rmsnorm",
            "rotary_embedding",
            "softmax"
        ]
    );
    let matmul = nowhere.warpsmith(&["ops", "matmul"]).ok();
    for part in [
        "symbols   batch, M, N, K",
        "input     a[",
        "output    c[",
        "2048x2048x2048",
        "(primary)",
        "tolerance ",
        "hostile ",
    ] {
        assert!(matmul.contains(part), "{part} in\n{matmul}");
    }
    // The workspace's own operations take the place of those inside the program.
    let place = &FINISHED.place;
    assert!(!place.warpsmith(&["ops", "rmsnorm"]).ok().contains("8192x8192"));
}

#[test]
fn an_operation_that_is_not_finished_is_named_among_the_others() {
    let place = Place::empty();
    place.write("warpsmith.toml", "");
    place.write("reference/half_done.toml", "summary = \"y = x / 2\"\n");
    place.write("reference/half_done.h", "");
    let out = place.warpsmith(&["ops"]).ok();
    let line = out.lines().find(|line| line.starts_with("half_done ")).unwrap_or_else(|| panic!("{out}"));
    assert!(line.contains("cannot be used: reference/half_done.toml: missing field `name`"), "{line}");
    assert!(out.contains("rmsnorm "), "{out}");
}

#[test]
fn every_command_has_help_with_examples() {
    let nowhere = Place::empty();
    let main = nowhere.warpsmith(&["--help"]).ok();
    for command in [
        "run",
        "profile",
        "bench",
        "verify",
        "status",
        "log",
        "show",
        "report",
        "apply",
        "prune",
        "init",
        "completions",
        "doctor",
        "ops",
    ] {
        assert!(main.lines().any(|line| line.trim_start().starts_with(command)), "{command} in\n{main}");
        let help = nowhere.warpsmith(&[command, "--help"]).ok();
        assert!(help.contains("Examples:") && help.contains(&format!("  warpsmith {command}")), "{help}");
        assert_eq!(help, nowhere.warpsmith(&["help", command]).ok());
    }
    assert!(!main.contains("worker"), "{main}");
    assert_eq!(nowhere.warpsmith(&[]).code, Some(2));
    assert!(nowhere.warpsmith(&["--version"]).ok().starts_with("warpsmith "));
}

#[test]
fn a_reader_that_goes_away_ends_a_command_quietly() {
    let command = format!("'{}' log --json | head -c 1", env!("CARGO_BIN_EXE_warpsmith"));
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", &format!("set -o pipefail; {command}")]).current_dir(&FINISHED.place.root);
    crate::common::alone(&mut shell, &FINISHED.place.root);
    let ended = crate::common::outcome(shell);
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "{", ""));
}
