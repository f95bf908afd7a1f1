//! `kernelbench eval` and `score` on files of our own: honest ones and dishonest ones, both columns right for each.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::{service, text, warpsmith};

/// Problem, sample, right by the benchmark's protocol, right by the strict judge, and what is said of it.
type Expected = (u32, u32, bool, bool, &'static str);

const HONEST: [Expected; 14] = [
    (1, 0, true, true, ""),
    (1, 1, true, true, ""),
    (2, 0, true, true, ""),
    (3, 0, true, true, ""),
    (3, 1, true, true, ""),
    (3, 2, true, true, ""),
    (4, 0, true, true, ""),
    (4, 1, true, true, ""),
    // The benchmark makes its targets floats, and its own reference raises.
    (5, 0, false, true, "the benchmark's protocol refuses it"),
    // And integers of fifty bits, of which it loses most.
    (6, 0, false, true, "the benchmark's protocol refuses it"),
    // Its compiler sees integers only after the protocol, and asks other programs in every process.
    (6, 1, true, true, ""),
    (7, 0, true, true, ""),
    (8, 0, true, true, ""),
    // Its reference raises on what is hostile: it is judged on the rest.
    (9, 0, true, true, ""),
];

/// What an element that is wrong looks like depends on the kind of the call, which is drawn: far off, or NaN where it should not be.
const DISHONEST: [Expected; 18] = [
    (1, 10, true, false, "is not right"),
    (1, 11, true, false, "is not right"),
    (2, 10, true, false, "is not right"),
    (3, 10, true, false, "is not right"),
    (3, 11, true, false, "is not right"),
    (3, 12, false, false, "changes its input 0"),
    (3, 13, true, false, "changes its input 0"),
    (3, 14, true, false, "is not right"),
    // Right, and not fast at all.
    (3, 15, true, true, "benchmark's clock saw"),
    (3, 16, true, true, "benchmark's clock saw"),
    (3, 17, true, false, "is not right"),
    (3, 18, true, false, "Operation not permitted"),
    (4, 10, true, false, "is not right"),
    (6, 10, true, false, "is not right"),
    (7, 10, true, false, "are off by half of what they are"),
    (8, 10, true, false, "is not right"),
    // Nothing of it runs before the judge has begun, so that it has nothing to tell the process by.
    (8, 11, true, true, ""),
    (9, 10, true, false, "is not right"),
];

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The entries of a file of results by problem and sample.
fn entries(path: &Path) -> BTreeMap<(u32, u32), Value> {
    let all: BTreeMap<u32, Vec<Value>> = serde_json::from_value(json(path)).unwrap();
    let each = all.into_iter().flat_map(|(problem, samples)| samples.into_iter().map(move |it| (problem, it)));
    each.map(|(problem, it)| ((problem, it["sample_id"].as_u64().unwrap() as u32), it)).collect()
}

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/torch/modelnew");

#[test]
fn an_honest_sample_is_right_and_a_dishonest_one_is_found_out() {
    let Some(_turn) = service() else { return };
    let folder = tempfile::tempdir().unwrap();
    // A sample that is right, one that compiles in the strict judge what it did not before, one whose result is remembered: what only the strict column knows.
    judged(folder.path(), &[HONEST[3], HONEST[10], DISHONEST[3]]);
}

#[test]
#[ignore = "two minutes: every sample"]
fn honest_samples_are_right_and_dishonest_ones_are_found_out() {
    let Some(_turn) = service() else { return };
    let folder = tempfile::tempdir().unwrap();
    let all: Vec<Expected> = HONEST.into_iter().chain(DISHONEST).collect();
    let run = judged(folder.path(), &all);
    scored(folder.path(), &run);
}

/// Has these samples judged, and compares with what is expected; the run's folder.
fn judged(folder: &Path, samples: &[Expected]) -> std::path::PathBuf {
    let run = folder.join("run");
    std::fs::create_dir(&run).unwrap();
    for (problem, sample, ..) in samples {
        let name = format!("level_1_problem_{problem}_sample_{sample}_kernel.py");
        std::fs::copy(Path::new(FILES).join("run").join(&name), run.join(&name)).unwrap();
    }
    let eval = [
        "kernelbench",
        "--root",
        FILES,
        "--backend",
        "cpu",
        "eval",
        "run",
        "--modes",
        "eager",
        "--calls",
        "6",
        "--perf-trials",
        "5",
    ];
    let made = warpsmith(folder, &eval);
    assert!(made.status.success(), "{made:?}");
    let said = text(&made.stdout);
    let (protocol, strict) = (entries(&run.join("eval_results.json")), entries(&run.join("strict_results.json")));
    let mut wrong = Vec::new();
    for (problem, sample, passes, right, part) in samples.iter().copied() {
        let (ours, found) = (&protocol[&(problem, sample)], &strict[&(problem, sample)]);
        let words =
            [&found["differs"], &found["reason"]].map(|it| it.as_str().unwrap_or_default().to_owned()).join("; ");
        let unlike = ours["correctness"] != passes || found["correctness"] != right || !words.contains(part);
        let timed = ours["runtime_stats"]["num_trials"].is_u64() == passes && found["runtime_stats"].is_null() != right;
        if unlike || !timed || (part.is_empty() && found["reason"] != Value::Null) {
            wrong.push(format!("{problem} {sample}: {ours}\n  {found}"));
        }
        // The forms of the benchmark's scripts.
        assert!(ours["compiled"].is_boolean() && ours["metadata"].is_object() && ours["runtime"].is_number(), "{ours}");
    }
    assert!(wrong.is_empty(), "{}\n\n{said}", wrong.join("\n"));
    assert_eq!(protocol.len(), samples.len());
    let names = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|it| std::fs::read_to_string(it.path().join("comm")).ok());
    assert!(names.into_iter().all(|name| name.trim() != "stray-of-eval"), "a sample's process is still there");
    run
}

/// The score of sample 0 of each problem, from the files that `eval` wrote and from the benchmark's.
fn scored(folder: &Path, run: &Path) {
    let base = json(&run.join("baselines/baseline_time_torch.json"));
    assert!(base["level1"]["3_Square_Matmul.py"]["mean"].as_f64().unwrap() > 0.0, "{base}");
    assert!(base["level1"]["5_Cross_Entropy.py"].is_null(), "its reference raises by the benchmark's protocol: {base}");
    let score = |more: &[&str]| {
        let arguments = [&["kernelbench", "--root", FILES, "score", "run"], more].concat();
        let made = warpsmith(folder, &arguments);
        assert!(made.status.success(), "{made:?}");
        text(&made.stdout)
    };
    let found: Value = serde_json::from_str(&score(&["--json"])).unwrap();
    let column = |judge: &str, against: &str| {
        let is = |it: &&Value| it["judge"] == judge && it["against"] == against;
        found.as_array().unwrap().iter().find(is).unwrap().clone()
    };
    assert_eq!((&column("protocol", "eager")["right"], &column("strict", "eager")["right"]), (&7.into(), &9.into()));
    assert_eq!(column("strict", "eager")["problems"], 9);
    assert!(column("strict", "torch.compile")["fast_p"].is_null(), "nothing was timed in that mode");
    // Baselines of the benchmark's own, of which nothing can be faster.
    let other = folder.join("other");
    std::fs::create_dir(&other).unwrap();
    let slow = r#"{"level1": {"3_Square_Matmul.py": {"mean": 1e9, "std": 0, "min": 1e9, "max": 1e9, "num_trials": 100, "hardware": "an abacus", "device": "cuda:0"}}}"#;
    std::fs::write(other.join("baseline_time_torch_compile_inductor_default.json"), slow).unwrap();
    let found = score(&["--json", "--problems", "3", "--baselines", "other"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    let fast = found.as_array().unwrap().iter().filter(|it| it["against"] == "torch.compile");
    let told = entries(&run.join("strict_results.json"))[&(3, 0)]["unresolved"] == false;
    fast.for_each(|it| {
        let counts = it["judge"] == "protocol" || told;
        assert_eq!(it["fast_p"]["2.0"], f64::from(u8::from(counts)), "{it}");
    });
    let shown = score(&["--sample", "10"]);
    assert!(shown.contains("fast_0.5") && shown.contains("page   run/score.html"), "{shown}");
    let page = std::fs::read_to_string(run.join("score.html")).unwrap();
    assert!(page.contains("1_Wide_Softmax") && page.contains("is not right"), "{page}");
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn problems_are_timed_without_any_sample_and_what_cannot_be_timed_is_told() {
    let Some(_turn) = service() else { return };
    let folder = tempfile::tempdir().unwrap();
    let level = folder.path().join("mine/level1");
    std::fs::create_dir_all(&level).unwrap();
    let product = std::fs::read_to_string(Path::new(FILES).join("level1/3_Square_Matmul.py")).unwrap();
    std::fs::write(level.join("1_Raises.py"), "import torch\nraise ValueError('no')\n").unwrap();
    std::fs::write(level.join("2_Square_Matmul.py"), product).unwrap();
    let asked =
        ["kernelbench", "--root", "mine", "--backend", "cpu", "baselines", "times", "--modes", "eager", "--calls", "3"];
    let made = warpsmith(folder.path(), &[&asked[..], &["--perf-trials", "3"]].concat());
    let (said, warned) = (text(&made.stdout), text(&made.stderr));
    assert!(made.status.success() && said.contains("1 of 2 problems timed"), "{said}{warned}");
    assert!(warned.contains("not timed") && warned.contains("no"), "{warned}");
    for file in ["baseline_time_torch.json", "strict/baseline_time_torch.json"] {
        let times = json(&folder.path().join("times").join(file));
        // Where other programs keep the machine busy, the strict clock says that it cannot tell.
        let time = times["level1"]["2_Square_Matmul.py"]["mean"].as_f64();
        let untold = file.starts_with("strict") && said.contains("keep this machine busy");
        assert!(time.is_some_and(|time| time > 0.0) != untold, "{times} {said}");
        assert!(times["level1"]["1_Raises.py"].is_null(), "{times}");
    }
    let none = warpsmith(folder.path(), &[&asked[..], &["--problems", "7"]].concat());
    assert!(!none.status.success() && text(&none.stderr).contains("has no such problem"), "{none:?}");
    let twice = ["kernelbench", "--root", "mine", "baselines", "times", "--devices", "98,99,98"];
    let twice = warpsmith(folder.path(), &twice);
    assert!(!twice.status.success() && text(&twice.stderr).contains("names a GPU twice"), "{twice:?}");
    let named = warpsmith(folder.path(), &[&asked[..], &["--devices", "0,1"]].concat());
    assert!(!named.status.success() && text(&named.stderr).contains("--devices names GPUs"), "{named:?}");
}

#[test]
fn problems_that_gpus_share_are_told_of_with_the_gpu_that_they_are_on() {
    let Some(_turn) = service() else { return };
    let folder = tempfile::tempdir().unwrap();
    // No machine has as many.
    let asked = ["kernelbench", "--root", FILES, "baselines", "times", "--devices", "98,99", "--modes", "eager"];
    let made = warpsmith(folder.path(), &asked);
    let warned = text(&made.stderr);
    assert!(!made.status.success(), "{made:?}");
    assert!(warned.contains("GPU 98: ") && warned.contains("GPU 99: "), "{warned}");
}

#[test]
fn what_a_folder_lacks_is_told_in_a_sentence() {
    let Some(_turn) = service() else { return };
    let folder = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| {
        let made = warpsmith(folder.path(), &[&["kernelbench", "--root", FILES], arguments].concat());
        assert_eq!(made.status.code(), Some(2), "{made:?}");
        text(&made.stderr)
    };
    assert!(said(&["eval", "nowhere"]).contains("nowhere cannot be read"));
    assert!(said(&["eval", "."]).contains("no level_L_problem_P_sample_S_kernel.py"));
    assert!(said(&["score", "."]).contains("`warpsmith kernelbench eval` writes it"));
    std::fs::write(folder.path().join("eval_results.json"), "[1]").unwrap();
    assert!(said(&["score", "."]).contains("not of the benchmark's form"));
}
