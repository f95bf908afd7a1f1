//! `warpsmith kernelbench run`: a run with a target for each problem, whatever each begins with.

use std::path::Path;

use crate::{BODY, PROBLEM, service, text, warpsmith};

/// Problems of a level in a folder: one that is fine, one that is too large, one that no kernel can be for.
pub(crate) fn level(root: &Path) {
    std::fs::create_dir(root.join("level1")).unwrap();
    std::fs::write(root.join("level1/1_Relu.py"), PROBLEM).unwrap();
    std::fs::write(root.join("level1/2_Large.py"), PROBLEM.replace("48, 512", "1 << 40, 512")).unwrap();
    std::fs::write(root.join("level1/10_Worst.py"), PROBLEM.replace(" * scale", ".to(torch.complex64)")).unwrap();
}

const RUN: [&str; 7] = ["kernelbench", "--root", ".", "run", "night", "--backend", "cpu"];

#[test]
fn a_problem_without_a_kernel_is_left_out_where_nobody_writes_one() {
    let Some(_turn) = service() else { return };
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    level(root);
    std::fs::create_dir(root.join("night")).unwrap();
    let tuned = warpsmith(root, &RUN);
    let said = text(&tuned.stdout);
    assert!(said.contains("which the tuner cannot write (an --agent can): problems 1, 2, 10\n"), "{said}");
    assert!(!tuned.status.success() && text(&tuned.stderr).contains("no problem has a kernel"), "{tuned:?}");
    assert!(!root.join("night/reference").exists(), "nothing is left of what was left out");
    // Where somebody writes, what is no target is left out all the same.
    let end = ["--problems", "2,10", "--agent", "command", "--", "true"];
    let written = warpsmith(root, &[&RUN[..], &end].concat());
    let said = text(&written.stdout);
    for part in ["2_Large.py: judging it takes about", "10_Worst.py: ", "complex64"] {
        assert!(said.contains(part), "`{part}` is missing in\n{said}");
    }
    assert!(!written.status.success() && text(&written.stderr).contains("no problem has a kernel"), "{written:?}");
    let missing = warpsmith(root, &["kernelbench", "--root", ".", "run", "nowhere"]);
    assert!(text(&missing.stderr).contains("nowhere is no folder"), "{missing:?}");
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_problem_without_a_kernel_begins_with_an_empty_body_where_an_agent_writes() {
    let Some(_turn) = service() else { return };
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    level(root);
    std::fs::create_dir(root.join("night")).unwrap();
    let kernel = "kernels/cpu/p1_relu.c";
    std::fs::write(root.join("body"), BODY.replace('\n', " ")).unwrap();
    let write = format!(
        "sed -i \"s~/\\* To be written. \\*/~$(cat {}/body)~\" {kernel}; echo Description: a plain loop",
        root.display()
    );
    let end = ["--max-reverts", "1", "--examination", "1s", "--agent", "command", "--", "sh", "-c", &write];
    let written = warpsmith(root, &[&RUN[..], &end].concat());
    let said = text(&written.stdout);
    assert!(written.status.success() && said.contains("improving kernels for one problem"), "{written:?}");
    let rows = std::fs::read_to_string(root.join("night/results.tsv")).unwrap();
    let right = |row: &str| row.contains("p1_relu") && row.contains("a plain loop");
    assert!(rows.lines().any(|row| right(row) && !row.contains("reject") && !row.contains("crash")), "{rows}\n{said}");
}
