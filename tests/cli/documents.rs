//! What a reader of the documents types, and sees.

use std::process::Command;

use serde_json::Value;

use crate::common::{Place, alone, kernels, outcome};

fn document(name: &str) -> String {
    std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The files that a document shows: a path in code in the paragraph before a fenced block, and the block.
fn files(text: &str) -> Vec<(&str, &str)> {
    let fence = |language: &str| ["toml", "c", "cuda"].contains(&language);
    let parts: Vec<&str> = text.split("\n```").collect();
    let shown = parts.windows(2).filter_map(|pair| {
        let (language, block) = pair[1].split_once('\n')?;
        let paragraph = pair[0].trim_end().rsplit("\n\n").next()?;
        let path = paragraph.split('`').skip(1).step_by(2).find(|code| code.contains('/') && code.contains('.'))?;
        fence(language).then_some((path, block))
    });
    shown.collect()
}

/// A command that a document shows, and what it says the reader sees.
struct Typed {
    command: String,
    seen: Vec<String>,
}

fn typed(text: &str) -> Vec<Typed> {
    let mut all: Vec<Typed> = Vec::new();
    for block in text.split("\n```console\n").skip(1) {
        for line in block.split("\n```").next().unwrap().lines() {
            match (line.strip_prefix("$ "), all.last_mut()) {
                (Some(command), _) => all.push(Typed { command: command.to_owned(), seen: Vec::new() }),
                (None, Some(last)) => last.seen.push(line.to_owned()),
                (None, None) => panic!("an answer before any command: {line}"),
            }
        }
    }
    all
}

/// What is said of a machine with much else to do, and of no other.
const BUSY: &str = "; smaller gains cannot be proven until this machine is quieter";

/// A line without what differs from machine to machine and seed to seed: numbers and their signs, in which type a case failed first, which
/// ceiling is the lower one, and whether it is busy.
fn masked(line: &str) -> String {
    let mut text = String::new();
    for c in line.chars() {
        match c {
            '0'..='9' | '.' | '-' | 'e' if text.ends_with('#') => {}
            '0'..='9' => text.push('#'),
            other => text.push(other),
        }
    }
    text.replace(" -#", " #")
        .replace(" bf#", " f#")
        .replace("memory bound", "bound")
        .replace("compute bound", "bound")
        .replace(BUSY, "")
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn an_operation_of_ones_own_is_added_as_the_walk_through_says() {
    let text = document("docs/adding-an-operation.md");
    let place = Place::empty();
    let shown = files(&text);
    let paths: Vec<&str> = shown.iter().map(|(path, _)| *path).collect();
    let expected =
        ["reference/gelu_bias.toml", "reference/gelu_bias.h", "kernels/cpu/gelu_bias.c", "kernels/cuda/gelu_bias.cu"];
    assert_eq!(paths, expected);
    for (path, block) in shown {
        place.write(path, &format!("{block}\n"));
    }
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_warpsmith")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let commands = typed(&text);
    assert!(commands.len() > 6, "{}", commands.len());
    for Typed { command, seen } in commands {
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).current_dir(&place.root);
        alone(&mut shell, &place.root);
        shell.env("PATH", &path);
        for who in ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"] {
            shell.env(who, "reader@example.com");
        }
        let ended = outcome(shell);
        let rejected = seen.iter().any(|line| line.contains(": reject at "));
        assert_eq!(ended.code, Some(i32::from(rejected)), "{command}: {ended:?}");
        if seen.is_empty() {
            continue;
        }
        let masked = |text: &str| text.lines().map(masked).collect::<Vec<_>>();
        assert_eq!(masked(&ended.out), masked(&seen.join("\n")), "{command}\n{}", ended.out);
    }
}

#[test]
fn the_kernel_in_the_instructions_is_right_and_its_evaluation_has_what_they_explain() {
    let text = document("program.md");
    let kernel = text.split_once("\n```c\n").unwrap().1.split("\n```").next().unwrap();
    let place = Place::without_repository(&kernels::keeps()).really_judged();
    place.write("mine.c", &format!("{kernel}\n"));
    let judged = place.warpsmith(&["bench", "mine.c", "--shape", "rows=16,cols=96", "--json"]).ok();
    let evaluation: Value = serde_json::from_str(&judged).unwrap();
    assert_eq!(evaluation["verdict"]["status"], "base", "{judged}");
    let (_, explained) = text.split_once("`bench --json` and `show N --json` print it whole.").unwrap();
    let mut keys = 0;
    for row in explained.split("\n\n").nth(1).unwrap().lines().filter_map(|line| line.strip_prefix("| `")) {
        let (key, meaning) = row.split_once("` | ").unwrap();
        let value = evaluation.get(key).unwrap_or_else(|| panic!("no `{key}` in {judged}"));
        // What is named in code to the right of it is found below it, but for what other verdicts have.
        let below = value.to_string() + &evaluation["timing"].to_string();
        let other = ["why", "stage", "speedup", "ratio", "low", "bench --seed N"];
        for name in meaning.split('`').skip(1).step_by(2).filter(|name| !other.contains(name)) {
            assert!(below.contains(&format!("\"{name}\":")), "no `{name}` below `{key}` in {judged}");
        }
        keys += 1;
    }
    assert!(keys >= 8, "{keys}");
}
