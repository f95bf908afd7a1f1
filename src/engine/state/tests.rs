#![allow(clippy::unwrap_used)]
use super::*;
use crate::evaluation::Speedup;

/// What the judge found of a kernel that took `latency_us` at 20 % of its roofline when that was 1000 µs.
fn found(verdict: Verdict, latency_us: f64, vs_user: Option<f64>) -> Evaluation {
    let timing = Timing {
        shapes: Vec::new(),
        latency_us,
        incumbent_us: latency_us,
        roofline_pct: 20_000.0 / latency_us,
        margin: 0.01,
        spread: 0.003,
        rounds: 4,
        blocks: 20,
        confirmations: Vec::new(),
        condition: None,
    };
    Evaluation {
        op: "rmsnorm".into(),
        backend: "cpu".into(),
        verdict,
        cases: Vec::new(),
        timing: Some(timing),
        vs_user,
        against: None,
        baselines: Vec::new(),
        examination: None,
        seed: 1,
        wall_s: 1.0,
        stage_s: BTreeMap::new(),
        build_log: String::new(),
    }
}

fn kept(ratio: f64) -> Verdict {
    Verdict::Keep { speedup: Speedup { ratio, low: ratio }, simpler: false }
}

fn target() -> TargetState {
    TargetState::new("rmsnorm", "kernels/cpu/rmsnorm.c".into(), "text".into(), Vec::new())
}

fn near(got: f64, want: f64) {
    assert!((got / want - 1.0).abs() < 1e-12, "{got} is not {want}");
}

#[test]
fn a_machine_that_slows_down_between_two_keeps_does_not_hide_what_they_gained() {
    let mut target = target();
    target.learn(&found(Verdict::Base, 1000.0, Some(1.0)));
    target.learn(&found(kept(1.25), 1010.0, Some(1.25)));
    near(target.start_us.unwrap(), 1000.0);
    near(target.best_us.unwrap(), 800.0);
    near(target.progress.roofline_pct.unwrap(), 25.0);
    // Times as they were measured stay with the evaluation.
    near(target.timing.unwrap().latency_us, 1010.0);
}

#[test]
fn a_gain_over_the_start_counts_where_the_comparison_is_with_a_library() {
    let mut target = target();
    target.learn(&found(Verdict::Base, 1000.0, Some(0.5)));
    target.learn(&found(kept(1.6), 500.0, Some(0.8)));
    near(target.best_us.unwrap(), 625.0);
    near(target.vs_user(), 0.8);
}

#[test]
fn an_equal_but_simpler_kernel_is_held_against_the_fastest_by_paired_gains() {
    let mut target = target();
    target.learn(&found(Verdict::Base, 1000.0, Some(1.0)));
    target.learn(&found(kept(1.25), 800.0, Some(1.25)));
    target.learn(&found(kept(0.99), 700.0, Some(1.24)));
    near(target.best_us.unwrap() / target.fastest_us.unwrap(), 1.25 / 1.24);
}

#[test]
fn where_nothing_was_compared_with_the_users_the_times_are_as_measured() {
    let mut target = target();
    target.learn(&found(Verdict::Base, 1000.0, None));
    target.learn(&found(kept(1.25), 790.0, None));
    near(target.best_us.unwrap(), 790.0);
}

#[test]
fn an_answer_in_a_language_that_the_run_leaves_out_is_refused_in_a_sentence() {
    let cuda = "/*---\nop = \"rmsnorm\"\ndtypes = [\"f32\"]\n[[launch]]\nkernel = \"k\"\ngrid = [\"1\"]\nblock = [\"1\"]\nargs = []\n---*/\n";
    let triton = "\"\"\"\n---\nop = \"rmsnorm\"\ndtypes = [\"f32\"]\n[[launch]]\nkernel = \"k\"\ngrid = [\"1\"]\nargs = []\n---\n\"\"\"\n";
    let target = |file: &str, languages: &[Language]| {
        let mut target = TargetState::new("rmsnorm", file.into(), String::new(), Vec::new());
        target.languages = languages.to_vec();
        target
    };
    let (own, other) = ("kernels/cuda/rmsnorm.cu", "kernels/triton/rmsnorm.py");
    for (file, languages, in_cuda, in_triton) in [
        (own, &[][..], true, false),
        (own, &[Language::Cuda], true, false),
        (other, &[Language::Triton], false, true),
        (other, &[Language::Cuda, Language::Triton], true, true),
        // Where there was none in the language that was asked for, what is there is gone on from.
        (own, &[Language::Triton], true, true),
    ] {
        let target = target(file, languages);
        assert_eq!(target.refuses(cuda).is_none(), in_cuda, "{file} {languages:?}");
        assert_eq!(target.refuses(triton).is_none(), in_triton, "{file} {languages:?}");
        assert_eq!(target.refuses("no kernel file"), None);
    }
    assert_eq!(
        target(own, &[]).refuses(triton).unwrap(),
        "it is in triton, and this run takes kernels for rmsnorm in cuda only: write it in that, or begin a run with `--language cuda,triton`"
    );
}

#[test]
fn a_kernel_that_the_branch_should_have_and_has_not_is_not_replaced_by_the_first() {
    let begun = target();
    assert_eq!(begun.stands_at(None).as_deref(), Some("text"), "the branch may do without what nobody has judged");
    assert_eq!(begun.stands_at(Some("tip".into())).as_deref(), Some("tip"));
    let judged = TargetState { incumbent: Some(1), ..target() };
    assert_eq!(judged.stands_at(None), None);
    assert_eq!(judged.stands_at(Some("tip".into())).as_deref(), Some("tip"));
    // A run of an earlier version does not say which experiment it was.
    assert_eq!(TargetState { kept: 1, ..target() }.stands_at(None), None);
}
