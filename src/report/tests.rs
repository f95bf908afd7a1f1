#![allow(clippy::unwrap_used)]

use super::data::{Outcome, Outputs, RunReport, Try};
use super::sample::{bare, night, part, target, tried};
use super::{Measured, Rendered, Whole};

/// The page as XML: it has no void element but `meta`, so that a strict parser can read it.
fn parsed(page: &str) -> String {
    let body = page.strip_prefix("<!DOCTYPE html>").expect("a doctype");
    let mut xml = String::new();
    for (at, piece) in body.split("<meta ").enumerate() {
        match piece.split_once('>') {
            Some((attributes, rest)) if at > 0 => xml += &format!("<meta {attributes}/>{rest}"),
            _ => xml += piece,
        }
    }
    xml
}

/// Renders, and checks what holds for every page.
fn rendered(report: &RunReport) -> Rendered {
    let rendered = report.render();
    let xml = parsed(&rendered.page);
    let document = roxmltree::Document::parse(&xml).unwrap_or_else(|error| panic!("{error}\n{xml}"));
    for node in document.descendants() {
        assert!(!matches!(node.tag_name().name(), "script" | "link" | "img" | "iframe"), "{}", node.tag_name().name());
        for attribute in node.attributes() {
            assert!(!attribute.name().starts_with("on"), "{}", attribute.name());
            let loads = matches!(attribute.name(), "src" | "href");
            assert!(!loads || attribute.value().starts_with('#'), "{}", attribute.value());
        }
        if let Some(goal) = node.attribute("href") {
            let there = document.descendants().any(|node| node.attribute("id") == Some(&goal[1..]));
            assert!(there, "{goal} leads nowhere");
        }
    }
    for word in ["NaN", ">inf", "url(", "@import", "http://", "https://"] {
        let without = rendered.page.replace("http://www.w3.org/2000/svg", "");
        assert!(!without.contains(word), "{word} in the page");
    }
    for (name, svg) in &rendered.charts {
        roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{name}");
    }
    for tried in report.tries() {
        let cell = format!("<td class=\"number\">{}</td>", tried.number);
        assert!(rendered.page.contains(&cell), "experiment {} is missing", tried.number);
    }
    rendered
}

#[test]
fn a_night_says_how_much_faster_the_model_got_and_why_to_believe_it() {
    let page = rendered(&night(120, 4)).page;
    for part in [
        "llama-7b is 1.37× as fast",
        "1.36× to 1.39× (95 %)",
        "2026-11-20 22:58 to 2026-11-21 07:00",
        "Outputs agree to",
        "NVIDIA H200",
        "resumed 2 times, at experiments 14 and 90;",
        "both in fresh processes",
        "#14",
        "warpsmith show ",
        "git log --stat warpsmith/261120a",
        "warpsmith apply 261120a",
        "warpsmith verify models/llama-7b --run 261120a",
        "embedding",
        "(cuBLAS, else the starting point)",
        "5 reverts in a row",
        "reading 4.38\u{a0}TB/s",
    ] {
        assert!(page.contains(part), "{part} is missing in\n{page}");
    }
}

#[test]
fn every_size_of_run_makes_a_sound_page() {
    sound_pages(&[(1, 1), (2, 1), (9, 9), (60, 3), (300, 9)]);
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_very_long_run_makes_a_sound_page() {
    sound_pages(&[(2000, 9)]);
}

fn sound_pages(nights: &[(u64, usize)]) {
    for &(count, targets) in nights {
        let Rendered { page, charts } = rendered(&night(count, targets));
        let names: Vec<_> = charts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.contains(&"experiments.svg"), count > 1, "{count}: {names:?}");
        assert!(names.contains(&"model.svg") && names.contains(&"roofline.svg"), "{count}: {names:?}");
        let own = names.iter().filter(|name| name.starts_with("target-")).count();
        assert_eq!(own, if targets > 1 && count > 9 { targets } else { 0 }, "{count}: {names:?}");
        assert!(page.len() < 4_000_000, "{count}: {} bytes", page.len());
    }
}

#[test]
fn a_run_that_kept_nothing_or_has_not_begun_says_so() {
    let ended = Some("no targets left".to_owned());
    let nothing = RunReport {
        ended: ended.clone(),
        parts: vec![part("rmsnorm", 10.0, 10.0)],
        ..bare(vec![target("rmsnorm", vec![tried(1, Outcome::Base), tried(2, Outcome::Revert)])])
    };
    let page = rendered(&nothing).page;
    assert!(page.contains("tiny-llama: nothing was faster than what you have"), "{page}");
    for absent in ["git log", "warpsmith apply", "--resume", "id=\"troubles\""] {
        assert!(!page.contains(absent), "{absent} in\n{page}");
    }
    let begun = bare(Vec::new());
    let page = rendered(&begun).page;
    for part in ["nothing kept so far", "warpsmith run models/tiny-llama --resume 261120a", "was not profiled"] {
        assert!(page.contains(part), "{part} is missing in\n{page}");
    }
    let refused = bare(vec![target("rmsnorm", vec![tried(1, Outcome::Reject)])]);
    assert!(rendered(&refused).page.contains("rejected"));
}

#[test]
fn outputs_that_differ_come_before_any_speedup() {
    let mut report = night(20, 1);
    let outputs = Outputs { agree: false, words: "OUTPUTS DIFFER: by 5e-2".to_owned() };
    report.whole = report.whole.map(|whole| Whole { outputs: Some(outputs), ..whole });
    let page = rendered(&report).page;
    assert!(page.contains("<h1>llama-7b: the outputs differ</h1>"), "{page}");
    assert!(page.contains("<p class=\"alert\">OUTPUTS DIFFER: by 5e-2.</p>"), "{page}");
    assert!(page.contains("--diagnose") && !page.contains("warpsmith apply") && !page.contains("git merge"), "{page}");
}

#[test]
fn what_the_parts_do_not_explain_of_the_whole_has_a_row_of_its_own() {
    let measured = |ratio: f64| {
        let measured = Measured { ratio, interval: None, passes_us: (100.0, 100.0 / ratio) };
        let whole = Whole { measured: Some(measured), ..night(20, 1).whole.unwrap() };
        let parts = vec![part("matmul", 600.0, 400.0), part("rmsnorm", 400.0, 400.0)];
        let page = rendered(&RunReport { whole: Some(whole), parts, ..night(20, 1) }).page;
        let row = page.split("not explained").nth(1).unwrap().split("</tr>").next().unwrap().to_owned();
        assert!(page.contains("whole pass, measured"), "{page}");
        row
    };
    // Together they say 800 µs; 1000 / 1.6 is 625, and 1000 / 1.1 is 909.
    assert!(measured(1.6).contains("−175"), "{}", measured(1.6));
    assert!(measured(1.1).contains("109"), "{}", measured(1.1));
    assert!(!rendered(&RunReport { whole: None, ..night(20, 1) }).page.contains("not explained"));
}

#[test]
fn words_from_outside_are_text_wherever_they_stand() {
    let hostile = "</title></style></text><script>alert(\"x\" + 'y')</script>&amp;\u{0}\u{1b}[31m\u{202e}";
    let evil = |number, outcome| Try {
        technique: hostile.to_owned(),
        description: hostile.to_owned(),
        why: hostile.to_owned(),
        commit: hostile.to_owned(),
        stage: hostile.to_owned(),
        speedup: Some((1.5, 1.4)),
        ..tried(number, outcome)
    };
    let mut report = night(9, 2);
    for target in &mut report.targets {
        target.op = hostile.to_owned();
        target.file = hostile.to_owned();
        target.why = hostile.to_owned();
        target.against = Some(hostile.to_owned());
        if let Some(timing) = &mut target.timing {
            timing.condition = Some(hostile.to_owned());
            timing.shapes[0].label = hostile.to_owned();
            timing.shapes[0].bound = hostile.to_owned();
        }
    }
    report.targets[0].tries = vec![evil(1, Outcome::Base), evil(2, Outcome::Keep), evil(3, Outcome::Crash)];
    report.parts[0].name = hostile.to_owned();
    for text in [
        &mut report.run,
        &mut report.model,
        &mut report.device,
        &mut report.backend,
        &mut report.agent,
        &mut report.pass,
    ] {
        *text = hostile.to_owned();
    }
    report.span = Some([hostile.to_owned(), hostile.to_owned()]);
    report.ended = None;
    report.troubles = vec![(1, hostile.to_owned())];
    report.notes = vec![hostile.to_owned()];
    let outputs = Outputs { agree: false, words: hostile.to_owned() };
    report.whole = report.whole.map(|whole| Whole { outputs: Some(outputs), ..whole });
    if let Some(ceilings) = &mut report.ceilings {
        ceilings.arithmetic = Some((hostile.to_owned(), 712_000.0));
    }
    let Rendered { page, charts } = rendered(&report);
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;alert("), "{page}");
    assert!(charts.iter().all(|(_, svg)| !svg.contains("<script")));
}

#[test]
fn figures_that_are_missing_or_infinite_do_no_harm() {
    for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, f64::MAX, f64::MIN_POSITIVE] {
        let mut report = night(12, 2);
        report.busy = odd;
        report.whole = Some(Whole {
            before_us: Some(odd),
            predicted: Some(odd),
            measured: Some(Measured { ratio: odd, interval: Some((odd, odd)), passes_us: (odd, odd) }),
            outputs: None,
        });
        for part in &mut report.parts {
            (part.before_us, part.after_us) = (odd, odd);
            (part.roofline_us, part.vs_user, part.in_place) = (Some(odd), Some(odd), Some(odd));
        }
        for target in &mut report.targets {
            (target.share, target.vs_user, target.sol_score) = (odd, Some(odd), Some(odd));
            (target.start_us, target.best_us) = (Some(odd), Some(odd));
            if let Some(timing) = &mut target.timing {
                (timing.latency_us, timing.spread, timing.margin, timing.roofline_pct) = (odd, odd, odd, odd);
                timing.confirmations = vec![odd];
                (timing.shapes[0].us, timing.shapes[0].roofline_us) = (odd, odd);
            }
            for tried in &mut target.tries {
                (tried.predicted, tried.speedup, tried.vs_user) = (Some(odd), Some((odd, odd)), Some(odd));
            }
        }
        if let Some(ceilings) = &mut report.ceilings {
            (ceilings.read_gb_s, ceilings.write_gb_s) = (odd, odd);
            ceilings.arithmetic = Some(("bf16".to_owned(), odd));
        }
        rendered(&report);
        rendered(&RunReport { whole: None, ..report });
    }
}

#[test]
fn a_kernel_alone_has_a_page_that_speaks_of_no_model() {
    let alone = RunReport {
        model: "kernels/cuda/matmul.cu".to_owned(),
        pass: "M=128 N=128 K=64 f16".to_owned(),
        whole: None,
        parts: Vec::new(),
        ..night(40, 1)
    };
    let Rendered { page, charts } = rendered(&alone);
    assert!(page.contains("<h1>matmul.cu is ") && page.contains(" as fast</h1>"), "{page}");
    for part in ["M=128 N=128 K=64 f16 on NVIDIA H200", "over the starting point", "against cuBLAS", "Of its roofline"]
    {
        assert!(page.contains(part), "{part} is missing in\n{page}");
    }
    for absent in
        ["of the model", "One pass", "Predicted", "Outputs", "share", "warpsmith verify", "id=\"model\"", " pass "]
    {
        let text = page.split("</style>").last().unwrap();
        assert!(!text.contains(absent), "{absent} in\n{text}");
    }
    assert!(charts.iter().any(|(name, _)| name == "roofline.svg"), "{charts:?}");
    let begun = RunReport { whole: None, ..bare(vec![target("softmax", vec![tried(1, Outcome::Base)])]) };
    assert!(rendered(&begun).page.contains("<h1>tiny-llama: nothing kept so far</h1>"));
}

#[test]
fn the_same_run_makes_the_same_page() {
    assert_eq!(night(50, 3).render(), night(50, 3).render());
}
