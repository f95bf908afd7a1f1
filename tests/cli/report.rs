//! The page of the morning: written from a run's journal, whole in itself, true to the ledger.

use std::fs;
use std::path::Path;

use crate::common::{Place, RUN, kernels, outcome};
use crate::run::FINISHED;

/// The page as XML: but for its doctype and `meta`, which is never closed, a page is that.
fn as_xml(page: &str) -> String {
    let body = page.strip_prefix("<!DOCTYPE html>").expect("it begins with a doctype");
    let mut pieces = body.split("<meta ");
    let first = pieces.next().unwrap().to_owned();
    pieces.fold(first, |xml, piece| {
        let (attributes, rest) = piece.split_once('>').unwrap();
        format!("{xml}<meta {attributes}/>{rest}")
    })
}

/// The page in a folder, after a look at what must hold for every page and chart.
fn sound_page(folder: &Path) -> String {
    let page = fs::read_to_string(folder.join("index.html")).unwrap();
    let xml = as_xml(&page);
    let document = roxmltree::Document::parse(&xml).unwrap_or_else(|error| panic!("{error}\n{page}"));
    for node in document.descendants() {
        let name = node.tag_name().name();
        assert!(!["script", "link", "img", "iframe", "object", "embed"].contains(&name), "<{name}> in the page");
        for attribute in node.attributes().filter(|attribute| ["src", "href"].contains(&attribute.name())) {
            assert!(attribute.value().starts_with('#'), "{} leads out of the page", attribute.value());
        }
    }
    for word in ["url(", "@import", "https://"] {
        assert!(!page.contains(word), "{word} in the page");
    }
    for file in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let text = fs::read_to_string(&file).unwrap();
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => {
                let chart = roxmltree::Document::parse(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"));
                assert!(chart.root_element().has_tag_name(("http://www.w3.org/2000/svg", "svg")), "{file:?}");
                assert!(chart.root_element().attribute("viewBox").is_some(), "{file:?}");
            }
            other => assert_eq!(other, Some("html"), "{file:?}"),
        }
    }
    page
}

/// Where `report` said the page is.
fn said_place(out: &str) -> &Path {
    let path = out.trim_end().strip_prefix("report   ").unwrap_or_else(|| panic!("{out}"));
    Path::new(path)
}

#[test]
fn after_a_run_the_page_has_every_experiment_and_the_models_speedup() {
    let place = FINISHED.place.copy();
    let out = place.warpsmith(&["report"]).ok();
    let folder = place.root.join(format!(".warpsmith/{}/report", FINISHED.run));
    assert_eq!(said_place(&out), folder.join("index.html"));
    let page = sound_page(&folder);
    let rows = place.ledger();
    for row in &rows {
        assert!(page.contains(&format!("<td class=\"number\">{}</td>", row.exp)), "experiment {} in\n{page}", row.exp);
    }
    let keep = rows.iter().find(|row| row.status == "keep").unwrap();
    for part in [
        "<h1>model is ",
        "PASSES 200→4",
        "Outputs agree to",
        "x what you had (limit 2x)",
        "not asked for",
        "In place",
        &keep.commit,
        &format!("git merge warpsmith/{}", FINISHED.run),
        &format!("warpsmith show {} --run {}", keep.exp, FINISHED.run),
    ] {
        assert!(page.to_lowercase().contains(&part.to_lowercase()), "{part} is missing in\n{page}");
    }
    for chart in ["experiments.svg", "model.svg", "roofline.svg"] {
        assert!(folder.join(chart).is_file(), "{chart}");
    }
    // The user's tree is as it was.
    assert_eq!(place.git(&["status", "--porcelain"]), "?? results.tsv\n");
}

#[test]
fn the_page_goes_where_the_user_wants_it_and_is_the_same_every_time() {
    let place = FINISHED.place.copy();
    let page = |out: &str| {
        let said = place.warpsmith(&["report", &FINISHED.run, "--out", out]).ok();
        assert_eq!(said_place(&said), place.root.join(out).join("index.html"));
        sound_page(&place.root.join(out))
    };
    assert_eq!(page("morning/page"), page("again"));
    assert_eq!(page("again"), page("again"));
    assert!(FINISHED.out.contains(&format!("warpsmith report {}", FINISHED.run)), "{}", FINISHED.out);
}

#[test]
fn a_run_that_was_killed_has_a_page_that_says_how_to_go_on() {
    let place = Place::new(&kernels::keeps());
    place.begin(&RUN);
    let run = place.only_run();
    let page = |place: &Place| {
        place.warpsmith(&["report"]).ok();
        sound_page(&place.root.join(format!(".warpsmith/{run}/report")))
    };
    let nothing = page(&place);
    for part in ["nothing kept so far", "This run has not ended", &format!("warpsmith run model --resume {run}")] {
        assert!(nothing.contains(part), "{part} is missing in\n{nothing}");
    }
    // Killed again, after its first verdict, and resumed once.
    let mut command = place.command(&["run", "model", "--resume"]);
    command.env("WARPSMITH_FAILPOINT", "pending:2");
    let ended = outcome(command);
    assert_eq!(ended.code, None, "{ended:?}");
    let resumed = page(&place);
    for part in ["resumed 1 time, at experiment 1;", "<td class=\"number\">1</td>", "the kernel as it is"] {
        assert!(resumed.contains(part), "{part} is missing in\n{resumed}");
    }
    assert!(!resumed.contains("<td class=\"number\">2</td>"), "{resumed}");
}

#[test]
fn what_the_judge_refused_is_on_the_page_with_its_reason() {
    let place = Place::new(&kernels::goes_wrong(&[1, 2, 3, 4]));
    place.run(&[]).ok();
    let folder = place.root.join("page");
    place.warpsmith(&["report", "--out", "page"]).ok();
    let page = sound_page(&folder);
    for row in place.ledger() {
        let line = format!("<tr class=\"{}\"><td class=\"number\">{}</td>", row.status, row.exp);
        assert!(page.contains(&line), "{line} is missing in\n{page}");
    }
    for part in [
        "model: nothing was faster than what you have",
        "SIGSEGV at a null pointer",
        "elements are outside their bound",
        "timed out",
        "did not compile",
    ] {
        assert!(page.contains(part), "{part} is missing in\n{page}");
    }
    assert!(!page.contains("git merge"), "{page}");
}

#[test]
fn what_cannot_be_reported_is_refused_in_a_sentence() {
    let place = FINISHED.place.copy();
    let refused = place.warpsmith(&["report", "991231z"]).refusal();
    assert!(refused.contains("991231z"), "{refused}");
    place.write("taken", "a file");
    let refused = place.warpsmith(&["report", "--out", "taken"]).refusal();
    assert!(refused.contains("taken cannot be written") && refused.contains("--out DIR"), "{refused}");
    let nowhere = Place::empty();
    assert!(nowhere.warpsmith(&["report"]).refusal().contains("belongs to no workspace"));
}
