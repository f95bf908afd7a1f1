//! What an agent would be asked, for a run that is over.

use crate::common::Place;
use crate::run::FINISHED;

fn headings(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("=== ")).collect()
}

#[test]
fn a_prompt_has_the_kernel_of_the_branch_its_times_and_what_was_tried() {
    let place = &FINISHED.place;
    let out = place.warpsmith(&["prompt", "--op", "rmsnorm"]).ok();
    let messages = headings(&out);
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(
        messages[0].starts_with("=== system, about ") && messages[1].starts_with("=== user, about "),
        "{messages:?}"
    );
    let kernel = place.git(&["show", &format!("warpsmith/{}:kernels/cpu/rmsnorm.c", FINISHED.run)]);
    assert!(kernel.contains("PASSES = { value = 4,"), "{kernel}");
    for part in [kernel.as_str(), "void rmsnorm(const T *x,", "memory bound", "GB/s read", "PASSES 200→4", "| f32 |"]
    {
        assert!(out.contains(part), "{part} in\n{out}");
    }
    // The same by the run's name, by its model, and from elsewhere in the workspace.
    for named in [&FINISHED.run, "model"] {
        assert_eq!(place.warpsmith(&["prompt", named, "--op", "rmsnorm"]).ok(), out);
    }
    assert_eq!(place.warpsmith(&["prompt", "--op", "rmsnorm", "--dir", "kernels"]).ok(), out);
    // Without an operation it is one that was worked on.
    let evaluation = place.warpsmith(&["prompt", "--part", "evaluation"]).ok();
    assert!(evaluation.starts_with("# Its evaluation") && evaluation.contains("% of the roofline"), "{evaluation}");
}

#[test]
fn a_shorter_context_says_less_and_one_that_is_too_short_is_refused() {
    let place = &FINISHED.place;
    let asked = |context: &str| place.warpsmith(&["prompt", "--op", "rmsnorm", "--context", context]);
    let (long, short) = (asked("128000").ok(), asked("10000").ok());
    assert!(short.len() < long.len() / 2 && short.contains("were left out: ") && !long.contains("were left out: "));
    let refusal = asked("1000").refusal();
    assert!(refusal.contains("rmsnorm needs about ") && refusal.contains("context has 1000"), "{refusal}");
}

#[test]
fn templates_are_exported_edited_and_taken() {
    let place = FINISHED.place.copy();
    let out = place.warpsmith(&["prompt", "--export"]).ok();
    assert!(out.lines().count() > 10 && out.lines().all(|line| line.ends_with("   written")), "{out}");
    place.write("prompts/task.md", "Make {op} quick.\n");
    place.write("prompts/device.md", "");
    let part = |name: &str| place.warpsmith(&["prompt", "--op", "rmsnorm", "--part", name]);
    assert_eq!(part("task").ok().trim_end(), "Make rmsnorm quick.");
    let refusal = part("device").refusal();
    assert!(refusal.contains("`device` has nothing to say"), "{refusal}");
    // A follow-up needs a failure; alone it is a template.
    assert!(part("repair").ok().contains("{why}"));
    let again = place.warpsmith(&["prompt", "--export"]).ok();
    assert!(again.contains("prompts/task.md   stays as it is"), "{again}");
    assert_eq!(place.read("prompts/task.md"), "Make {op} quick.\n");
    place.write("prompts/task.md", "Make {opp} quick.\n");
    let refusal = part("task").refusal();
    assert!(refusal.contains("prompts/task.md") && refusal.contains("{opp}") && refusal.contains("{op}"), "{refusal}");
}

#[test]
fn what_there_is_no_prompt_for_is_said() {
    let place = &FINISHED.place;
    for (arguments, said) in [
        (&["prompt", "--op", "gelu"][..], "has no gelu; it has "),
        (&["prompt", "no-such-thing"], "no-such-thing is neither a directory nor a run"),
        (&["prompt", "kernels"], "there is no run on kernels yet"),
    ] {
        let refusal = place.warpsmith(arguments).refusal();
        assert!(refusal.contains(said), "{said} in\n{refusal}");
    }
    let help = place.warpsmith(&["prompt", "--help"]).ok();
    assert!(help.contains("evaluation") && help.contains("Examples:"), "{help}");
    let empty = Place::empty();
    let refusal = empty.warpsmith(&["prompt"]).refusal();
    assert!(refusal.contains("belongs to no workspace"), "{refusal}");
}
