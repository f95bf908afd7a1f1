//! Garbage in everything that is read from outside: a sentence each time, never a panic.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use warpsmith::rng::Stream;

use crate::common::{CONFIG, Outcome, Place, RUN, kernels};

/// It ended with a code of its own and, where it refused, a sentence.
#[track_caller]
fn survived(ended: &Outcome) {
    assert!(matches!(ended.code, Some(0..=2)), "{ended:?}");
    assert!(!ended.err.contains("panicked") && !ended.out.contains("panicked"), "{ended:?}");
    if ended.code == Some(2) {
        assert!(ended.err.starts_with("error: ") && ended.err.trim_end().len() > 20, "{ended:?}");
    }
}

/// Texts that are not quite `seed`: cut, overwritten, repeated, or something else altogether; not always UTF-8.
fn mangled(seed: String) -> impl Strategy<Value = Vec<u8>> {
    let bytes = seed.into_bytes();
    let length = bytes.len();
    let cut = {
        let bytes = bytes.clone();
        (0..length).prop_map(move |at| bytes[..at].to_vec())
    };
    let changed = (0..length, prop::collection::vec(any::<u8>(), 1..6)).prop_map(move |(at, with)| {
        let mut bytes = bytes.clone();
        bytes.splice(at..(at + with.len()).min(length), with);
        bytes
    });
    prop_oneof![cut, changed, prop::collection::vec(any::<u8>(), 0..200), "\\PC{0,200}".prop_map(String::into_bytes)]
}

/// Runs the program with `file` mangled in many ways.
fn any_text_in(file: &str, seed: &str, cases: u32, arguments: &[&str]) {
    let place = Place::without_repository(&kernels::keeps());
    let mut runner = TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() });
    runner
        .run(&mangled(seed.to_owned()), |bytes| {
            std::fs::write(place.root.join(file), bytes).unwrap();
            survived(&place.warpsmith(arguments));
            Ok(())
        })
        .unwrap();
}

#[test]
fn any_settings_file_is_read_or_refused() {
    any_text_in("warpsmith.toml", "[run]\nseq = 16\nbudget = \"8h\"\nroofline = 0.9\n", 60, &["ops", "rmsnorm"]);
}

#[test]
fn any_operation_is_read_or_refused() {
    any_text_in(
        "reference/rmsnorm.toml",
        &kernels::few_cases("rmsnorm", "rows = 3\ncols = 31"),
        60,
        &["ops", "rmsnorm"],
    );
}

#[test]
fn any_model_configuration_is_read_or_refused() {
    // A vocabulary of nothing, so that what is read is refused before it is measured.
    any_text_in("model/config.json", &CONFIG.replace("128,", "0,"), 60, &["profile", "model"]);
}

#[test]
fn any_kernel_file_is_read_or_refused() {
    // Without its comment's end, so that what is read is refused before it is judged.
    any_text_in("mine.c", &kernels::keeps().replace("---*/", ""), 60, &["bench", "mine.c"]);
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_hostile_kernel_file_is_a_verdict_or_a_sentence() {
    let place = Place::without_repository(&kernels::keeps()).really_judged();
    let good = kernels::keeps();
    let front = |more: &str| good.replace("---*/", &format!("{more}\n---*/"));
    for (what, text) in [
        ("a domain that divides by zero", front("").replace("[tune]", "domain = \"cols / (rows - rows)\"\n[tune]")),
        (
            "a deep expression",
            front("").replace("[tune]", &format!("domain = \"{}1{}\"\n[tune]", "(".repeat(5000), ")".repeat(5000))),
        ),
        ("a let of itself", front("[let]\nAGAIN = \"AGAIN + 1\"")),
        ("a let that overflows", front("[let]\nBIG = \"9223372036854775807 * PASSES\"")),
        (
            "scratch larger than any machine",
            front("[[scratch]]\nname = \"s\"\ndtype = \"f32\"\nshape = [\"cols * 1000000000000\"]"),
        ),
        ("scratch of less than nothing", front("[[scratch]]\nname = \"s\"\ndtype = \"f32\"\nshape = [\"0 - cols\"]")),
        ("an option that is not allowed", front("").replace("[tune]", "options = [\"-fplugin=/tmp/x.so\"]\n[tune]")),
        ("a NUL byte", good.replace("float sum = 0", "float sum = \0 0")),
        ("another operation", good.replace("op = \"rmsnorm\"", "op = \"../../etc/passwd\"")),
        ("another processor", good.replace("\"native\"", "\"sm_90a\"")),
        ("fewer types, of which one is timed", good.replace(", \"bf16\", \"f32\"", "")),
        ("another function", good.replace("void rmsnorm", "void norm")),
        ("a file of the machine's", good.replace("void rmsnorm", "#include \"/etc/passwd\"\nvoid rmsnorm")),
        ("a constructor", good.replace("void rmsnorm", "__attribute__((constructor)) void now(void) {}\nvoid rmsnorm")),
        (
            "a symbol that is not there",
            good.replace("void rmsnorm", "void nowhere(void);\nvoid rmsnorm")
                .replace("float sum = 0;", "float sum = 0; nowhere();"),
        ),
        (
            "an endless macro",
            good.replace("void rmsnorm", "#define A(x) B(x) B(x)\n#define B(x) C(x) C(x)\nvoid rmsnorm")
                .replace("float sum = 0;", "float sum = A(;"),
        ),
        ("line ends of another system", good.replace('\n', "\r\n")),
    ] {
        place.write("mine.c", &text);
        let ended = place.warpsmith(&["bench", "mine.c"]);
        survived(&ended);
        assert_eq!(
            ended.code == Some(0),
            what.starts_with("line ends") || what.starts_with("fewer types"),
            "{what}: {ended:?}"
        );
    }
    let huge = format!("{good}//{}", "x".repeat(2 << 20));
    place.write("mine.c", &huge);
    assert!(place.warpsmith(&["bench", "mine.c"]).refusal().contains("a kernel file has at most"));
    // Bytes that are no text, a folder, and a link to nowhere.
    std::fs::write(place.root.join("mine.c"), b"/*---\xff\xfe---*/").unwrap();
    place.warpsmith(&["bench", "mine.c"]).refusal();
    place.warpsmith(&["bench", "kernels"]).refusal();
    std::os::unix::fs::symlink("nowhere", place.root.join("link.c")).unwrap();
    place.warpsmith(&["bench", "link.c"]).refusal();
}

#[test]
fn a_broken_starter_ends_its_target_and_not_the_run() {
    let place = Place::new(&kernels::keeps().replace("scale = 1 /", "scale = 2 /")).really_judged();
    let out = place.run(&[]).ok();
    assert_eq!(place.statuses(), ["reject"], "{out}");
    assert!(out.contains("the kernel as it is does not pass; `warpsmith log` says where"), "{out}");
    // One that cannot even run in the model is a sentence that names it.
    let place = Place::new(&kernels::keeps().replace("float sum = 0;", "float sum = ;")).really_judged();
    let said = place.run(&[]).refusal();
    assert!(said.contains("rmsnorm.c:") && said.contains("compiler"), "{said}");
    place.write("kernels/cpu/rmsnorm.c", "not a kernel file");
    let said = place.run(&[]).refusal();
    assert!(said.contains("rmsnorm") && said.contains("no front matter"), "{said}");
}

#[test]
fn a_starter_that_is_rejected_once_and_passes_on_other_inputs_is_worked_on() {
    // Half of all seeds find it wrong.
    let rule = "[[fault]]\nop = \"rmsnorm\"\nwhen = \"SEED % 2 == 1 && PASSES == 200\"\nstatus = \"reject\"\nstage = \"smoke\"\n\
                why = \"rows=4 cols=64 f32: 256 of 256 elements are outside their bound\"\n";
    let place = Place::new(&kernels::keeps()).judged_by(rule);
    let passes = |seed: u64| seed.is_multiple_of(2);
    let seeds = |run: u64| {
        let trials = Stream::new(run, "trial");
        [trials.bits(1), Stream::new(trials.bits(1), "once more").bits(0), trials.bits(2)]
    };
    let run = (1..60).find(|&run| seeds(run).map(passes) == [false, true, true]).unwrap();
    let run = run.to_string();
    let out = place.warpsmith(&["run", "model", "--only", "rmsnorm", "--seed", &run, "--max-reverts", "1"]).ok();
    assert_eq!(place.statuses()[0], "base", "{out}");
    assert!(out.contains("rejected, and passed on other inputs"), "{out}");
    assert!(out.contains("outside their bound"), "{out}");
}

#[test]
fn a_ledger_with_anything_in_it_keeps_what_is_not_ours() {
    let place = Place::new(&kernels::keeps());
    let lines =
        ["my own note", "261120a\tnot\ta row", "\t\t\t", "run\texp", "999999z\t1\tkeep", "\u{1F600}\t\"unclosed"];
    place.write("results.tsv", &lines.join("\n"));
    place.begin(&[&RUN[..], &["--per-kernel", "1ms"]].concat());
    let after = place.read("results.tsv");
    for line in lines.iter().filter(|line| !line.trim().is_empty()) {
        assert!(after.contains(line), "`{line}` is lost in\n{after}");
    }
    // The run goes on, even with bytes that are no text.
    std::fs::write(place.root.join("results.tsv"), [after.as_bytes(), b"\xff\x00\xfe\n"].concat()).unwrap();
    place.warpsmith(&["run", "model", "--resume"]).ok();
    assert_eq!(
        place.statuses().iter().filter(|status| *status == "base").count(),
        1,
        "{}",
        String::from_utf8_lossy(&std::fs::read(place.root.join("results.tsv")).unwrap())
    );
}

#[test]
fn the_worker_answers_garbage_with_a_sentence_and_lives_on() {
    let place = Place::without_repository(&kernels::keeps());
    let garbage: [&[u8]; 6] =
        [b"{}", b"\xff\xfe", b"[1, 2", b"{\"id\": 1, \"ask\": \"fly\"}", b"{\"id\": -1, \"ask\": \"cancel\"}", b"null"];
    let ended = assert_cmd::Command::from_std(place.command(&["worker"])).write_stdin(garbage.join(&b'\n')).assert();
    let output = ended.success().get_output().clone();
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(out.matches("bad_request").count(), garbage.len(), "{out}");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
}
