//! The judge for one kernel file: exit 0 where it is correct, 1 where it is not, 2 where nobody can say.

use serde_json::Value;

use crate::common::{Outcome, Place, kernels};

/// The kernel with another value of its first tunable in force.
fn with(text: &str, from: &str, to: &str) -> String {
    let changed = text.replacen(from, to, 1);
    assert_ne!(changed, text);
    changed
}

#[test]
fn a_correct_kernel_is_judged_with_its_cases_and_its_roofline() {
    let place = Place::without_repository(&kernels::keeps()).really_judged();
    let out = place.warpsmith(&["bench", "kernels/cpu/rmsnorm.c", "--seed", "7"]).ok();
    for part in [
        "rmsnorm: correct",
        "smoke",
        "edges",
        "0 failed",
        "% of the roofline (",
        " bound)",
        "margin here ",
        "seed 7, judged in ",
    ] {
        assert!(out.contains(part), "{part} in\n{out}");
    }
    let json = place
        .warpsmith(&["bench", "kernels/cpu/rmsnorm.c", "--shape", "rows=5,cols=32", "--dtype", "bf16", "--json"])
        .ok();
    let evaluation: Value = serde_json::from_str(&json).unwrap();
    let timed = &evaluation["timing"]["shapes"][0];
    assert_eq!((timed["shape"]["rows"].as_u64(), timed["dtype"].as_str()), (Some(5), Some("bf16")), "{timed}");
    assert_eq!(evaluation["timing"]["shapes"].as_array().unwrap().len(), 1);
}

#[test]
fn a_cuda_file_is_compiled_without_a_gpu_where_there_is_a_compiler() {
    let place = Place::without_repository(&kernels::keeps()).really_judged();
    let softmax = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/cuda/softmax.cu");
    let text = std::fs::read_to_string(softmax).unwrap();
    place.write("mine.cu", &text);
    let c = place.warpsmith(&["bench", "--compile", "kernels/cpu/rmsnorm.c"]).refusal();
    assert!(c.contains("is for a processor; --smoke compiles it"), "{c}");
    let unknown = place.warpsmith(&["bench", "--compile=h200", "mine.cu"]).refusal();
    assert!(unknown.contains("sm_80, ") && unknown.contains("`h200`"), "{unknown}");
    let compiled = place.warpsmith(&["bench", "--compile", "mine.cu"]);
    if compiled.code == Some(2) {
        let why = compiled.refusal();
        assert!(why.contains("NVRTC"), "{why}");
        return;
    }
    let out = compiled.ok();
    assert!(out.starts_with("softmax: compiles for sm_90 with NVRTC ") && out.contains("nothing was run"), "{out}");
    assert!(["  f16 ", "  bf16 ", "  f32 ", " registers, "].iter().all(|part| out.contains(part)), "{out}");
    place.write("mine.cu", &format!("{text}\n__global__ void other() {{ int x = nowhere; }}\n"));
    let refused = place.warpsmith(&["bench", "--compile", "mine.cu"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.out.starts_with("softmax: error at compile: ") && refused.out.contains("nowhere"), "{refused:?}");
}

#[test]
fn a_kernel_is_compared_with_another_by_the_keep_rule() {
    compares(&Place::without_repository(&kernels::keeps()));
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_kernel_is_really_compared_with_another() {
    compares(&Place::without_repository(&kernels::keeps()).really_judged());
}

fn compares(place: &Place) {
    place.write("fast.c", &with(&kernels::keeps(), "value = 200", "value = 4"));
    let out = place.warpsmith(&["bench", "fast.c", "--against", "kernels/cpu/rmsnorm.c"]).ok();
    assert!(out.contains("correct and faster: ") && out.contains("a run would keep it"), "{out}");
    let out = place.warpsmith(&["bench", "kernels/cpu/rmsnorm.c", "--against", "fast.c"]).ok();
    assert!(out.contains("correct, not a gain: ") && out.contains("a run would revert it"), "{out}");
}

#[test]
fn a_result_that_is_rounded_to_the_nearest_is_right_where_it_is_nearly_all_of_its_tensor() {
    let place = Place::without_repository(&kernels::keeps()).really_judged();
    place.write("fast.c", &with(&kernels::keeps(), "value = 200", "value = 4"));
    // An element of the weights becomes -13.5, and with it one of the results.
    let out = place.warpsmith(&["bench", "fast.c", "--smoke", "--seed", "18180177898963120322"]).ok();
    assert!(out.contains("correct"), "{out}");
}

#[test]
fn a_wrong_kernel_is_rejected_with_the_case() {
    let place = Place::without_repository(&kernels::keeps()).really_judged();
    for (mode, parts) in [
        (1, ["reject at edges: ", "are outside their bound"]),
        (2, ["crash at edges: ", "SIGSEGV"]),
        (3, ["timeout at edges: ", "it did not return within"]),
        (4, ["error at compile: ", "not written yet"]),
    ] {
        place.write("wrong.c", &with(&kernels::goes_wrong(&[mode]), "value = 0", &format!("value = {mode}")));
        let ended = place.warpsmith(&["bench", "wrong.c"]);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        for part in parts {
            assert!(ended.out.contains(part), "{part} in {ended:?}");
        }
    }
}

#[test]
fn a_kernel_whose_comparison_is_wrong_cannot_be_judged() {
    let place = Place::without_repository(&kernels::keeps()).really_judged();
    place.write("broken.c", &with(&kernels::keeps(), "float sum = 0;", "float sum = ;"));
    let said = place.warpsmith(&["bench", "kernels/cpu/rmsnorm.c", "--against", "broken.c"]).refusal();
    assert!(said.contains("the incumbent no longer passes") && said.contains("warpsmith bench"), "{said}");
}

#[test]
fn the_self_test_counts_what_is_kept_by_mistake() {
    let ended = self_test(&Place::without_repository(&kernels::keeps()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn the_real_judge_tests_itself() {
    self_test(&Place::without_repository(&kernels::keeps()).really_judged());
}

fn self_test(place: &Place) -> Outcome {
    let ended = place.warpsmith(&["bench", "--self-test", "2", "kernels/cpu/rmsnorm.c"]);
    // A machine as busy as this may make one look faster; it is counted then, and the code says so.
    assert!(matches!(ended.code, Some(0 | 1)), "{ended:?}");
    assert!(ended.out.starts_with("2 pairs that differ in nothing: "), "{ended:?}");
    assert_eq!(ended.code == Some(0), ended.out.contains(": 0 kept by the keep rule"), "{ended:?}");
    ended
}

#[test]
fn the_speed_of_verdicts_is_a_table_with_a_row_for_each_kernel() {
    // Long enough to be seen in hundredths of a second.
    let rule = "[[event]]\nwhen = \"PASSES >= 0\"\ndelay_ms = 20\n";
    speed_table(&Place::without_repository(&kernels::keeps()).judged_by(rule));
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn the_speed_of_real_verdicts_is_a_table_with_a_row_for_each_kernel() {
    speed_table(&Place::without_repository(&kernels::keeps()).really_judged());
}

fn speed_table(place: &Place) {
    place.write("fast.c", &with(&kernels::keeps(), "value = 200", "value = 4"));
    let out = place.warpsmith(&["bench", "--speed=1", "fast.c", "kernels/cpu/rmsnorm.c"]).ok();
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..5], ["seconds/verdict", "backend", "not_kept", "kept", "cold"], "{out}");
    assert_eq!(rows.len(), 3, "{out}");
    for (row, column) in [(&rows[1], 2), (&rows[2], 3)] {
        // The first one's candidate is slower, the second one's faster, several times over.
        assert_eq!(row[..2], ["rmsnorm", "cpu"], "{out}");
        assert_eq!(row[5 - column], "-", "{out}");
        for seconds in [row[column], row[4]] {
            assert!(seconds.parse::<f64>().unwrap() > 0.0, "{out}");
        }
    }
    let json = place.warpsmith(&["bench", "--speed=1", "fast.c", "--json"]).ok();
    let table: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (table[0]["not_kept_s"].as_array().unwrap().len(), table[0]["refused"].as_u64()),
        (1, Some(0)),
        "{json}"
    );
}

#[test]
fn speed_needs_kernels_that_are_right_and_counts_neighbours_that_are_not() {
    let place = Place::without_repository(&kernels::keeps());
    place.write("right.c", &kernels::goes_wrong(&[4]));
    let out = place.warpsmith(&["bench", "--speed=1", "right.c"]).ok();
    assert!(out.ends_with("0 not kept, 0 kept, 1 refused\n"), "{out}");
    place.write("wrong.c", &with(&kernels::goes_wrong(&[1]), "value = 0", "value = 1"));
    let ended = place.warpsmith(&["bench", "--speed", "right.c", "wrong.c"]);
    assert!(ended.code == Some(1) && ended.err.starts_with("wrong.c: reject at edges: "), "{ended:?}");
}

#[test]
fn one_kernel_is_judged_at_a_time_and_its_smoke_test_has_no_times() {
    let place = Place::without_repository(&kernels::keeps()).really_judged();
    let said = place.warpsmith(&["bench", "kernels/cpu/rmsnorm.c", "kernels/cpu/fused_mlp.c"]).refusal();
    assert!(said.contains("one is judged at a time"), "{said}");
    let out = place.warpsmith(&["bench", "--smoke", "kernels/cpu/rmsnorm.c"]).ok();
    assert!(out.contains("smoke") && !out.contains("sweep") && !out.contains("roofline"), "{out}");
    place.write("wrong.c", &with(&kernels::keeps(), "sum / (float)cols", "sum"));
    let ended = place.warpsmith(&["bench", "--smoke", "wrong.c"]);
    assert!(ended.code == Some(1) && ended.out.contains("reject at smoke"), "{ended:?}");
}
