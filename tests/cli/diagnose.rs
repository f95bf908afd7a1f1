//! Which kernel is to blame, where the model differs or falls short.

use serde_json::Value;

use warpsmith::engine::stop::StopReason;

use crate::common::{Place, kernels};
use crate::made::{MADE, made, write_run};

/// Commits to the run's branch, as someone who goes on by hand.
fn edit(place: &Place, path: &str, change: &dyn Fn(&str) -> String) {
    place.git(&["switch", "-q", &format!("warpsmith/{}", MADE)]);
    let text = place.read(path);
    let changed = change(&text);
    assert_ne!(text, changed);
    place.write(path, &changed);
    place.git(&["commit", "-q", "-m", "By hand", path]);
    place.git(&["switch", "-q", "main"]);
}

/// The kernel with a statement at its end.
fn and_then(text: &str, statement: &str) -> String {
    let end = text.rfind('}').unwrap();
    format!("{}    {statement}\n}}\n", &text[..end])
}

#[test]
fn a_clean_run_has_no_wrong_kernel_and_the_table_says_what_each_does() {
    let out = made().warpsmith(&["verify", "model", "--diagnose"]).ok();
    for part in ["operation", "vs_user", "predicted", "alone (95 %)", "without it"] {
        assert!(out.contains(part), "{part} in\n{out}");
    }
    let row = out.lines().find(|line| line.starts_with("fused_mlp ")).unwrap();
    assert!(row.contains("1.50x") && row.contains("agree") && !row.contains("DIFFER"), "{out}");
    assert!(!out.contains("with it alone, "), "{out}");
}

#[test]
fn a_kernel_that_is_wrong_is_named_and_the_others_are_not() {
    let place = made();
    edit(&place, "kernels/cpu/rmsnorm.c", &|text| {
        and_then(text, "for (int64_t i = 0; i < rows * cols; i++) y[i] = ws_store(1.5f * ws_load(y[i]));")
    });
    let whole = place.warpsmith(&["verify", "model"]);
    assert_eq!(whole.code, Some(1), "{whole:?}");
    let note = "rmsnorm was changed on the run's branch after the run; no judge has seen it";
    assert!(whole.out.contains("OUTPUTS DIFFER") && whole.out.contains(note), "{whole:?}");
    let found = place.warpsmith(&["verify", "model", "--diagnose", "--json"]);
    assert_eq!((found.code, found.err.as_str()), (Some(1), ""), "{found:?}");
    let found: Value = serde_json::from_str(&found.out).unwrap();
    let first = &found["culprits"][0];
    assert_eq!(first["op"], "rmsnorm", "{found}");
    assert!(first["why"].as_str().unwrap().starts_with("with it alone, the outputs differ by"), "{found}");
    let of = |op: &str| {
        let suspects = found["suspects"].as_array().unwrap();
        suspects.iter().find(|suspect| suspect["op"] == op).unwrap_or_else(|| panic!("{op} in {found}")).clone()
    };
    assert!(of("fused_mlp")["alone"]["ran"]["output"]["wrong"].is_null(), "{found}");
    assert!(of("rmsnorm")["without"]["ran"]["output"]["wrong"].is_null(), "{found}");
}

#[test]
fn a_kernel_that_crashes_or_is_slow_in_the_model_is_named_for_that() {
    let place = made();
    edit(&place, "kernels/cpu/rmsnorm.c", &|text| and_then(text, "*(volatile int *)8 = 1;"));
    // Its work again and again: many times as slow, whatever else the machine does.
    let again = "for (int i = 0; i < 100; i++) ws_parallel(p.tiles_m * ((D + TILE_N - 1) / TILE_N), output_tiles, &p);";
    edit(&place, "kernels/cpu/fused_mlp.c", &|text| and_then(text, again));
    let found = place.warpsmith(&["verify", "model", "--diagnose"]);
    assert_eq!(found.code, Some(1), "{found:?}");
    assert!(found.err.contains("trying rmsnorm alone"), "{found:?}");
    let culprit = |op: &str| {
        let start = format!("culprit: {op}: ");
        let line = found.out.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("{op} in\n{}", found.out)).to_owned()
    };
    assert!(culprit("rmsnorm").contains("SIGSEGV"), "{found:?}");
    assert!(culprit("fused_mlp").contains("where 1.00x was predicted"), "{found:?}");
}

#[test]
fn where_nothing_is_installed_there_is_nothing_to_diagnose() {
    let place = Place::new(&kernels::keeps());
    write_run(&place, Some(StopReason::NoTargets), 0.9);
    let out = place.warpsmith(&["verify", "model", "--diagnose"]).ok();
    assert!(out.starts_with("nothing to diagnose"), "{out}");
}
