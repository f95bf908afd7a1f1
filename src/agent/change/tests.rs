#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;

const KERNEL: &str = "/*---\nop = \"x\"\ndtypes = [\"f32\"]\n---*/\nvoid x(void) {\n    a();\n    b();\n    a();\n}\n";

fn known() -> Techniques {
    Techniques::of_program("## Tier 1\n### `read-once`\ntext\n### `tune`\n")
}

fn read(reply: &str) -> Result<Reply, ChangeError> {
    parse(reply, &known())
}

fn headed(change: &str) -> String {
    format!(
        "Hypothesis: it reads twice\nTechnique: read-once\nPredicted: 1.3\nDescription: one pass\nChange:\n{change}"
    )
}

fn block(search: &str, replace: &str) -> String {
    format!("<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE\n")
}

fn applied(change: &str) -> Result<String, ChangeError> {
    read(&headed(change))?.change.apply(KERNEL)
}

#[test]
fn a_whole_file_in_a_fence_is_taken_as_it_stands() {
    let new = KERNEL.replace("b();", "c();");
    let reply = read(&headed(&format!("```c\n{new}```\nThat is all.\n"))).unwrap();
    assert_eq!(reply.hypothesis, "it reads twice");
    assert_eq!(
        (reply.technique.as_str(), reply.predicted, reply.description.as_str()),
        ("read-once", Some(1.3), "one pass")
    );
    assert_eq!(reply.change, Change::Whole(new.clone()));
    assert_eq!(reply.change.apply(KERNEL).unwrap(), new);
}

#[test]
fn blocks_replace_whole_lines_and_nothing_else() {
    let want = KERNEL.replace("    b();\n", "    c();\n    d();\n");
    assert_eq!(applied(&block("    b();\n", "    c();\n    d();\n")).unwrap(), want);
    // An empty replacement takes the lines out.
    assert_eq!(applied(&block("    b();\n", "")).unwrap(), KERNEL.replace("    b();\n", ""));
    // Each block in a fence of its own, with prose between them, in any order.
    let two = format!("First:\n```c\n{}```\nthen\n```\n{}```\n", block("}\n", "} \n"), block("    b();\n", ""));
    assert_eq!(applied(&two).unwrap(), KERNEL.replace("    b();\n", "").replace("}\n", "} \n"));
    // A search that is part of a line is no line.
    assert!(matches!(applied(&block("b();\n", "c();\n")), Err(ChangeError::NotFound { .. })));
}

#[test]
fn a_file_without_a_last_line_feed_keeps_its_end() {
    let reply = read(&headed(&block("}\n", "};\n"))).unwrap();
    assert_eq!(reply.change.apply("{\n}").unwrap(), "{\n};");
    assert_eq!(reply.change.apply("{\n}\n").unwrap(), "{\n};\n");
}

#[test]
fn what_does_not_stand_there_once_is_refused_with_the_nearest_line() {
    let why = |search: &str| applied(&block(search, "z\n")).unwrap_err().to_string();
    assert!(why("    a();\n").contains("stand in the file 2 times, first in lines 6 and 8"));
    assert!(
        why("    a();\n    b(); \n").contains("line 7 is \"    b();\", which differs in white space at its end only")
    );
    assert!(why("  a();\n    b();\n").contains("line 6 is \"    a();\", which differs in its indentation only"));
    assert!(why("    a();\n    bb();\n").contains("line 7 is \"    b();\", the search has \"    bb();\""));
    assert!(why("    b(1);\n").contains("nearest line is 7, \"    b();\""));
    assert!(why("no such thing\n").contains("No line is like \"no such thing\""));
    assert!(why("    b();\n    a();\n}\n}\n").contains("The file ends in line 9"));
    let crlf = why("    b();\r\n");
    assert!(crlf.contains("differs in the carriage return at its end only"), "{crlf}");
    assert_eq!(applied("<<<<<<< SEARCH\n=======\nx\n>>>>>>> REPLACE\n"), Err(ChangeError::EmptySearch { block: 1 }));
    let twice = format!("{}{}", block("    b();\n", "1\n"), block("    a();\n    b();\n", "2\n"));
    assert_eq!(applied(&twice), Err(ChangeError::Overlap { first: 1, second: 2 }));
    assert_eq!(applied(&block("}\n", "}\n")), Err(ChangeError::ChangesNothing));
}

#[test]
fn reasoning_in_front_is_dropped_with_all_that_it_quotes() {
    let answer = headed(&block("    b();\n", ""));
    let quoted = headed(&block("    a();\n", "never"));
    for reply in [
        format!("<think>\nlet me see\n{quoted}\n</think>\n{answer}"),
        // A server that keeps the opening tag to itself.
        format!("let me see\n{quoted}\n</think>\n\n{answer}"),
        format!("<thinking>{quoted}</thinking>{answer}"),
    ] {
        assert_eq!(read(&reply), read(&answer), "{reply}");
    }
    assert_eq!(read(&format!("<think>\n{answer}")), Err(ChangeError::OnlyThought));
    assert!(read(&format!("Well.\n<think>\n{quoted}</think>\n{answer}")).is_ok());
    // Nothing of an answer is dropped with it.
    for prefix in ["", "<think>hm</think>\n"] {
        let torn = format!("{prefix}{quoted}<think>\nand\n</think>\n{}", block("    b();\n", ""));
        assert!(matches!(read(&torn), Err(ChangeError::ThoughtWithin { .. })), "{torn}");
    }
}

#[test]
fn headers_may_be_dressed_and_any_of_them_may_be_missing() {
    let reply = read(&format!(
        "Sure!\n\n**Hypothesis:** it reads\n  twice\n\nnot this\n- **Technique**: `read_once` (tier 2)\n## Predicted: ~1.20x, maybe\n### Change:\n{}",
        block("}\n", "")
    ))
    .unwrap();
    assert_eq!((reply.hypothesis.as_str(), reply.description.as_str()), ("it reads twice", "it reads twice"));
    assert_eq!((reply.technique.as_str(), reply.predicted), ("read-once", Some(1.2)));
    let bare = read(&block("}\n", "")).unwrap();
    assert_eq!((bare.hypothesis.as_str(), bare.technique.as_str(), bare.predicted), ("", "other:unnamed", None));
    // All of it in one fence.
    let wrapped = format!("```\n{}```\n", headed(&format!("```c\n{}```\n", KERNEL.replace("b()", "c()"))));
    assert_eq!(read(&wrapped).unwrap().predicted, Some(1.3));
    let wrapped = format!("```text\n{}```", headed(&block("}\n", "")));
    assert_eq!(read(&wrapped).unwrap().technique, "read-once");
}

#[test]
fn what_a_command_says_of_its_change_is_found_in_what_it_prints() {
    let printed =
        "working…\nTechnique: unroll\n\ndone\nHypothesis: it waits\n for loads\nTechnique: tune\nPredicted: 1.1\nbye";
    let said = remarks(printed, &known());
    assert_eq!((said.hypothesis.as_str(), said.technique.as_str()), ("it waits for loads", "tune"));
    assert_eq!((said.predicted, said.description.as_str()), (Some(1.1), "it waits for loads"));
    assert_eq!(remarks("", &known()).technique, "other:unnamed");
}

#[test]
fn a_prediction_is_a_positive_number_and_nothing_else() {
    for (text, want) in [
        ("1.15", Some(1.15)),
        ("1.2x", Some(1.2)),
        ("**1.2×**", Some(1.2)),
        ("~1.05x on all shapes", Some(1.05)),
        ("1.3 times", Some(1.3)),
        ("0.98", Some(0.98)),
        ("120 %", None),
        ("120%", None),
        ("+15%", None),
        ("1.1 - 1.3", None),
        ("1.1-1.3x", None),
        ("1.1 to 1.3", None),
        ("inf", None),
        ("NaN", None),
        ("1e9", None),
        ("-1", None),
        ("0", None),
        ("99999999", None),
        ("faster", None),
        ("", None),
    ] {
        let reply = format!("Predicted: {text}\nChange:\n{}", block("}\n", ""));
        assert_eq!(read(&reply).unwrap().predicted, want, "{text}");
    }
}

#[test]
fn a_technique_is_one_word_whatever_is_written() {
    for (text, want) in [
        ("read-once", "read-once"),
        ("`Read-Once`", "read-once"),
        ("tier 2, tune and more", "tune"),
        ("Loop unrolling!", "other:loop-unrolling"),
        ("keep", "other:keep"),
        ("a\tb", "other:a-b"),
        ("übermäßig", "other:berm-ig"),
        ("…", "other:unnamed"),
        ("abcdefghijklmnopqrs-uvwxyz", "other:abcdefghijklmnopqrs"),
    ] {
        let reply = format!("Technique: {text}\nChange:\n{}", block("}\n", ""));
        assert_eq!(read(&reply).unwrap().technique, want, "{text}");
    }
}

#[test]
fn a_change_that_cannot_be_read_one_way_only_is_refused() {
    let whole = format!("```c\n{KERNEL}```\n");
    let edit = block("}\n", "");
    let none = |change: &str| read(&headed(change)).unwrap_err();
    assert_eq!(none("I would rather not."), ChangeError::NoChange);
    assert_eq!(read(""), Err(ChangeError::NoChange));
    assert_eq!(none("```c\nvoid x(void) {}\n```\n"), ChangeError::NotWhole);
    assert!(matches!(none(&format!("{whole}{whole}")), ChangeError::Several { line: 17 }));
    assert_eq!(none(&format!("{whole}{edit}")), ChangeError::Both);
    assert!(matches!(none(&format!("```c\n{KERNEL}")), ChangeError::OpenFence { line: 6 }));
    assert!(matches!(none(&format!("{edit}{}", headed(&edit))), ChangeError::Second { .. }));
    // A file with a fence in it, in a fence that is too short, and in one that is long enough.
    let nested = KERNEL.replace("    b();", "/*\n```\nquoted\n```\n*/");
    assert!(matches!(none(&format!("```c\n{nested}```\n")), ChangeError::Several { .. }));
    assert_eq!(applied(&format!("````c\n{nested}````\n")).unwrap(), nested);
    // A snippet in front of the file is prose.
    assert_eq!(
        applied(&format!("```\nc();\n```\n{}", whole.replace("b();", "c();"))).unwrap(),
        KERNEL.replace("b();", "c();")
    );
    for (marker, near) in [("<<<<<<< SEARCH", "<<<<<< SEARCH"), (">>>>>>> REPLACE", ">>>>>>> replace")] {
        assert!(matches!(none(&edit.replace(marker, near)), ChangeError::Marker { .. }), "{near}");
    }
    assert!(matches!(none("<<<<<<< SEARCH\na\n"), ChangeError::OpenBlock { missing: "=======", .. }));
    assert!(matches!(
        none("<<<<<<< SEARCH\na\n=======\nb\n"),
        ChangeError::OpenBlock { missing: ">>>>>>> REPLACE", .. }
    ));
    assert!(matches!(none("<<<<<<< SEARCH\na\n>>>>>>> REPLACE\n"), ChangeError::Misplaced { block: 1, .. }));
    assert!(matches!(none(&block("a\n=======\nb\n", "c\n")), ChangeError::Misplaced { .. }));
    assert_eq!(none(&format!("{edit}\0")), ChangeError::Nul { line: 10 });
    assert_eq!(none(&edit.repeat(MAX_BLOCKS + 1)), ChangeError::TooManyBlocks { limit: MAX_BLOCKS });
    assert!(matches!(read(&"x".repeat(MAX_REPLY_BYTES + 1)), Err(ChangeError::TooLong { .. })));
}

#[test]
fn whoever_has_nothing_left_says_so() {
    let why = ChangeError::Declined { why: "at 91 % of the roofline".into() };
    assert_eq!(read("Hypothesis: at 91 % of the roofline\nChange: none.\n"), Err(why));
    // With a change behind it, it is one.
    assert!(read(&format!("Change: none\n{}", block("}\n", ""))).is_ok());
    assert_eq!(read("Change: see above\n"), Err(ChangeError::NoChange));
}

#[test]
fn a_row_of_equal_signs_of_another_length_is_code() {
    let text = "/* A\n========\n*/\n";
    let reply = read(&headed(&block("========\n", "---\n"))).unwrap();
    assert_eq!(reply.change.apply(text).unwrap(), "/* A\n---\n*/\n");
}

#[test]
fn a_huge_hostile_reply_is_read_in_little_time() {
    // Quadratic work on these would take minutes and end the test run by its own limit.
    let lines = "x\n".repeat(200_000);
    let many = headed(&block(&lines, "y\n"));
    assert!(matches!(read(&many).unwrap().change.apply(&"x\n".repeat(1000)), Err(ChangeError::NotFound { .. })));
    assert_eq!(read(&"```\n".repeat(200_001)), Err(ChangeError::OpenFence { line: 200_001 }));
    assert!(read(&"<think>".repeat(100_000)).is_err());
    assert!(read(&"</think>".repeat(100_000)).is_err());
    assert!(read(&"Change:\n".repeat(100_000)).is_err());
}

/// Pieces that mean something to the reader, in any order.
fn piece() -> impl Strategy<Value = String> {
    let pieces = [
        "<<<<<<< SEARCH\n",
        "=======\n",
        ">>>>>>> REPLACE\n",
        "```c\n",
        "```\n",
        "````\n",
        "~~~\n",
        "/*---\n",
        "---*/\n",
        "Hypothesis: x\n",
        "Technique: tune\n",
        "Predicted: 1.1\n",
        "Change:\n",
        "<think>",
        "</think>",
        "\r\n",
        "\n",
        "a\n",
        "é\u{0}",
        "    b();\n",
        "<<<<<<<SEARCH",
        "=",
        "```",
    ];
    prop_oneof![4 => proptest::sample::select(pieces.to_vec()).prop_map(str::to_owned), 1 => any::<String>()]
}

proptest! {
    #[test]
    fn no_reply_makes_the_reader_panic(pieces in proptest::collection::vec(piece(), 0..40), incumbent in any::<String>()) {
        if let Ok(reply) = read(&pieces.concat()) {
            prop_assert!(!reply.technique.contains(char::is_whitespace) && !reply.technique.is_empty());
            prop_assert!(!reply.description.contains(['\n', '\t']));
            prop_assert!(reply.predicted.is_none_or(|x| x.is_finite() && x > 0.0));
            let _ = reply.change.apply(&incumbent);
            let _ = reply.change.apply(KERNEL);
        }
    }

    #[test]
    fn an_edit_of_any_lines_gives_exactly_the_file_that_was_meant(
        before in proptest::collection::vec("[a-c ]{0,3}", 0..6),
        search in proptest::collection::vec("[d-f ]{0,3}d", 1..4),
        replace in proptest::collection::vec("[a-f ]{0,3}", 0..4),
        after in proptest::collection::vec("[a-c ]{0,3}", 0..6),
    ) {
        let text = |lines: &[String]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let incumbent = format!("{}{}{}", text(&before), text(&search), text(&after));
        let want = format!("{}{}{}", text(&before), text(&replace), text(&after));
        let change = read(&headed(&block(&text(&search), &text(&replace)))).unwrap().change;
        match change.apply(&incumbent) {
            Ok(got) => prop_assert_eq!(got, want),
            Err(ChangeError::ChangesNothing) => prop_assert_eq!(&incumbent, &want),
            Err(error) => prop_assert!(false, "{}", error),
        }
        // Beside itself it is ambiguous, and in a file without it it is not found.
        let twice = change.apply(&format!("{incumbent}-\n{incumbent}"));
        prop_assert!(matches!(twice, Err(ChangeError::Ambiguous { times: 2, .. })), "{:?}", twice);
        let without = change.apply(&text(&before));
        prop_assert!(matches!(without, Err(ChangeError::NotFound { .. })), "{:?}", without);
    }

    #[test]
    fn a_whole_file_comes_out_as_it_went_in(body in "([ -_a-z{|}]{0,20}\n){0,20}") {
        prop_assume!(!body.lines().any(|line| line.contains("SEARCH") || line.contains("REPLACE")));
        let file = format!("/*---\n{body}");
        let reply = read(&headed(&format!("````c\n{file}````\n"))).unwrap();
        prop_assert_eq!(reply.change, Change::Whole(file));
    }
}
