//! What the documents say of the program is so: every key, technique, command and sentence they name is there, and every kernel
//! file they show is one.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use warpsmith::agent::tuner::TECHNIQUES;
use warpsmith::backend::cuda::judge::oracle_source;
use warpsmith::backend::cuda::{Compiler, Search, Unit};
use warpsmith::kernel::{Facts, KernelFile, headers, nvrtc_options};
use warpsmith::op::{Dtype, Operation};

/// The widest identifier for which the ledger's columns stay below each other.
const TECHNIQUE_COLUMN: usize = 16;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Every document, with its text.
fn documents() -> Vec<(String, String)> {
    let top = ["README.md", "program.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned);
    let docs = std::fs::read_dir(root().join("docs")).unwrap();
    let docs = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().to_string_lossy()));
    top.into_iter().chain(docs).filter(|name| name.ends_with(".md")).map(|name| (name.clone(), read(&name))).collect()
}

/// The part of a document under a heading, up to the next one of its level or above.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let level = heading.chars().take_while(|c| *c == '#').count();
    let start = text.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no heading `{heading}`")) + 1;
    let body = start + heading.len();
    let next = (1..=level).filter_map(|level| text[body..].find(&format!("\n{} ", "#".repeat(level)))).min();
    &text[start..next.map_or(text.len(), |end| body + end)]
}

/// The first column of every table in a text, where it is a name in code.
fn first_column(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(name, _)| name).collect()
}

/// Whatever stands in code within a line of text.
fn in_code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Fenced blocks in this language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    text.match_indices(&fence).map(|(at, _)| text[at + fence.len()..].split("\n```").next().unwrap()).collect()
}

fn techniques() -> Vec<(String, Vec<String>)> {
    let text = read("program.md");
    let playbook = text.split("\n### `").skip(1);
    playbook
        .map(|part| {
            let (name, body) = part.split_once("`\n").unwrap();
            let body = body.split("\n#").next().unwrap();
            (name.to_owned(), body.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
        })
        .collect()
}

#[test]
fn every_technique_has_an_identifier_of_its_own_and_says_when_it_pays_and_when_it_failed() {
    let mut seen = BTreeSet::new();
    for (name, lines) in techniques() {
        let kebab = name
            .split('-')
            .all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()));
        assert!(kebab && name.len() <= TECHNIQUE_COLUMN, "{name}");
        assert!(seen.insert(name.clone()), "{name} stands twice");
        let fields: Vec<&str> =
            lines.iter().filter_map(|line| line.strip_prefix("- **")?.split(":**").next()).collect();
        assert!(
            fields.len() == 4 && fields[0].starts_with("Do (") && fields[1..] == ["Pays when", "Costs", "Failed if"],
            "{name}: {fields:?}"
        );
        assert!(
            fields[0].contains("C") && lines.iter().all(|line| line.len() > 20 || line.ends_with("nothing.")),
            "{name}"
        );
    }
    assert!(seen.len() > 50, "{}", seen.len());
    for technique in TECHNIQUES {
        assert!(seen.contains(technique), "the tuner's `{technique}` is not in program.md");
    }
}

#[test]
fn the_playbook_has_six_tiers_and_every_technique_it_recommends() {
    let text = read("program.md");
    let tiers = text.lines().filter(|line| line.starts_with("## Tier ")).count();
    assert_eq!(tiers, 6);
    let known: BTreeSet<String> = techniques().into_iter().map(|(name, _)| name).collect();
    let choosing = section(&text, "## Choosing what to try");
    let tables: String =
        choosing.lines().filter(|line| line.starts_with('|')).map(|line| format!("{line}\n")).collect();
    let named: Vec<&str> = in_code(&tables).collect();
    assert!(named.len() > 30, "{named:?}");
    // Elsewhere a technique cannot be told from other words in code, but one with a hyphen mostly is one.
    let playbook = text.split_once("\n## The playbook\n").unwrap().1;
    let hyphened = in_code(playbook).filter(|word| {
        word.contains('-') && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    });
    for name in named.into_iter().chain(hyphened.filter(|word| !word.starts_with('-'))) {
        assert!(known.contains(name), "`{name}` is recommended and not explained");
    }
}

/// What the parser says of a key that it does not know, with all those it does.
fn keys_of(table: &str) -> BTreeSet<String> {
    let text = format!("/*---\nop = \"x\"\ndtypes = [\"f32\"]\n{table}no_such_key = 1\n---*/\n");
    let error = KernelFile::parse(&text).unwrap_err().to_string();
    let (_, expected) = error.split_once("expected one of ").unwrap_or_else(|| panic!("{table}: {error}"));
    in_code(expected.lines().next().unwrap()).map(str::to_owned).collect()
}

#[test]
fn the_instructions_and_the_parser_know_the_same_keys() {
    let text = read("program.md");
    let front: BTreeSet<String> =
        first_column(section(&text, "### Front matter")).into_iter().map(str::to_owned).collect();
    assert_eq!(front, keys_of(""));
    let rest = section(&text, "### Scratch, launches, tensor maps");
    for table in ["scratch", "launch", "tensormap"] {
        let (_, after) = rest.split_once(&format!("| key of `[[{table}]]` | meaning |")).unwrap();
        let own = after.split("\n\n").next().unwrap();
        let documented: BTreeSet<String> = first_column(own).into_iter().map(str::to_owned).collect();
        assert_eq!(documented, keys_of(&format!("[[{table}]]\n")), "{table}");
    }
}

#[test]
fn every_key_of_the_front_matter_is_in_the_reference_too() {
    let text = read("docs/kernel-file.md");
    for table in ["", "[[scratch]]\n", "[[launch]]\n", "[[tensormap]]\n"] {
        for key in keys_of(table) {
            let named = [format!("`{key}`"), format!("`[{key}]`"), format!("`[[{key}]]`")];
            assert!(named.iter().any(|name| text.contains(name.as_str())), "{table}{key}");
        }
    }
}

#[test]
fn the_instructions_and_the_reference_name_every_header_of_ours_and_all_that_is_in_it() {
    for document in ["program.md", "docs/kernel-file.md"] {
        let text = read(document);
        let named: BTreeSet<&str> = in_code(&text).flat_map(|code| code.split(['<', '(', '"'])).collect();
        for header in headers() {
            assert!(named.contains(header.name), "{document}: {}", header.name);
            for line in header.text.lines().filter(|line| line.contains("__device__ ") && !line.starts_with(' ')) {
                let name = line.split('(').next().and_then(|head| head.split([' ', '*']).next_back()).unwrap();
                assert!(named.contains(name), "{document}: {} has `{name}`", header.name);
            }
        }
    }
}

#[test]
fn every_option_of_the_compilers_that_is_named_is_allowed() {
    let text = read("program.md");
    let front = section(&text, "### Front matter");
    let (_, options) = front.split_once("Options in C: ").unwrap();
    let (c, rest) = options.split_once("It is compiled with").unwrap();
    let (_, cuda) = rest.split_once("Options in CUDA: ").unwrap();
    let cuda: Vec<String> = in_code(cuda.split("\n\n").next().unwrap()).map(str::to_owned).collect();
    assert!(cuda.len() >= 4 && nvrtc_options(&cuda).is_ok(), "{cuda:?}");
    let source = read("src/backend/cpu/compile.rs");
    let c: Vec<&str> = in_code(c).collect();
    assert!(c.len() >= 7, "{c:?}");
    for option in c {
        assert!(source.contains(&format!("(\"{option}\", ")), "{option}");
    }
}

#[test]
fn every_sentence_of_the_judge_that_is_explained_is_one_it_says() {
    let text = read("program.md");
    let (_, table) = text.split_once("What the judge says, and what it means:").unwrap();
    let table = table.split("\n###").next().unwrap();
    let mut sources = String::new();
    for room in ["harness", "backend", "evaluation", "kernel"] {
        collect(&root().join("src").join(room), &mut sources);
    }
    let sentences = first_column(table);
    assert!(sentences.len() > 10, "{sentences:?}");
    for sentence in sentences {
        assert!(sources.contains(sentence), "nothing says `{sentence}`");
    }
}

/// The texts of all sources in a folder that are not tests.
fn collect(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            collect(&path, text);
        } else if name.ends_with(".rs") && !name.contains("tests") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// Lines of a document that a reader types, or reads as typed: subcommand and the rest.
fn commands(text: &str) -> Vec<(String, String)> {
    let found = text.match_indices("warpsmith ").filter_map(|(at, name)| {
        let before = text[..at].chars().next_back();
        let rest = text[at + name.len()..].lines().next().unwrap();
        let rest = rest.split(['`', '#', '|']).next().unwrap();
        let subcommand: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
        let typed = matches!(before, Some('`' | '\n' | ' ' | '/'))
            && subcommand.starts_with(|c: char| c.is_ascii_lowercase())
            && subcommand.len() > 1;
        typed.then(|| (subcommand, rest.to_owned()))
    });
    found.collect()
}

#[test]
fn every_command_and_option_that_a_reader_is_told_to_type_is_there() {
    let mut helps: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut named = 0;
    for (document, text) in documents() {
        // Prose has the words as well: only what stands in code is typed.
        let code: String = in_code(&text).map(|code| format!("`{code}`\n")).collect();
        let fenced: String = ["sh", "console"]
            .iter()
            .flat_map(|language| blocks(&text, language))
            .map(|block| format!("{block}\n"))
            .collect();
        for (subcommand, rest) in commands(&code).into_iter().chain(commands(&fenced)) {
            // Processes of its own, which nobody types.
            if ["worker", "host", "nvrtc", "help"].contains(&subcommand.as_str()) {
                continue;
            }
            let help = helps.entry(subcommand.clone()).or_insert_with(|| {
                let mut command = Command::new(env!("CARGO_BIN_EXE_warpsmith"));
                let answer = command.args([subcommand.as_str(), "--help"]).output().unwrap();
                answer.status.success().then(|| String::from_utf8(answer.stdout).unwrap())
            });
            let help = help.as_ref().unwrap_or_else(|| panic!("{document}: there is no `warpsmith {subcommand}`"));
            for option in rest.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2) {
                let option = option.split('=').next().unwrap().trim_end_matches([',', '.', ';', ':', ')']);
                assert!(help.contains(option), "{document}: `warpsmith {subcommand}` has no {option}");
            }
            named += 1;
        }
    }
    assert!(named > 30, "{named}");
}

#[test]
fn every_link_between_documents_leads_to_a_file() {
    for (document, text) in documents() {
        let folder = root().join(&document).parent().unwrap().to_owned();
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split([')', '#']).next().unwrap();
            let local = !target.is_empty() && !target.contains("://");
            assert!(!local || folder.join(target).exists(), "{document}: {target}");
        }
    }
}

/// An operation from the repository, or from the document that shows a kernel for it.
fn operation(document: &str, name: &str) -> Operation {
    let shown = |path: &str| {
        let (_, after) = document.split_once(&format!("`{path}`"))?;
        Some(after.split_once("\n```")?.1.split_once('\n')?.1.split("\n```").next()?.to_owned())
    };
    let read = |path: &str| std::fs::read_to_string(root().join(path)).ok().or_else(|| shown(path));
    Operation::load(&read, name).unwrap_or_else(|error| panic!("{error}"))
}

fn facts(cuda: bool) -> Facts {
    let facts: &[(&str, i64)] = match cuda {
        true => &[("SMS", 132), ("SMEM_MAX", 232_448), ("CC", 90), ("L2", 60 << 20)],
        false => &[("CORES", 2), ("L1", 32 << 10), ("L2", 1 << 20), ("VECTOR_BYTES", 32)],
    };
    facts.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

#[test]
fn every_kernel_file_that_is_shown_is_one_for_its_operation() {
    let mut found = 0;
    for (document, text) in documents() {
        let kernels = ["c", "cuda"].iter().flat_map(|language| blocks(&text, language));
        for kernel in kernels.filter(|block| block.starts_with("/*---")) {
            found += 1;
            let file = KernelFile::parse(kernel).unwrap_or_else(|error| panic!("{document}: {error}"));
            let op = operation(&text, &file.front.op);
            file.check_against(&op).unwrap_or_else(|error| panic!("{document}: {error}"));
            let (facts, shape) = (facts(file.front.is_cuda()), op.complete(&op.smoke).unwrap());
            let mut resolutions = Vec::new();
            for dtype in Dtype::ALL {
                assert!(file.front.dtypes.contains(&dtype), "{document}: {dtype}");
                let resolution = file.resolve(&shape, dtype, &facts).unwrap();
                if file.front.is_cuda() {
                    let ints = op.ints(&shape).unwrap();
                    let planned = file.launches(&op, &ints, &resolution, &facts);
                    assert!(!planned.unwrap_or_else(|error| panic!("{document}: {error}")).is_empty(), "{document}");
                }
                resolutions.push(resolution);
            }
            if file.front.is_cuda() {
                compile(&op, &file, &resolutions, &facts);
            }
        }
    }
    // A kernel in C and one in CUDA, in the instructions and in the walk-through; one in C for an operation in PyTorch.
    assert_eq!(found, 5);
}

/// Compiles a CUDA file and its oracle, where there is a compiler.
fn compile(op: &Operation, file: &KernelFile, resolutions: &[warpsmith::kernel::Resolution], facts: &Facts) {
    let toolkit = match Search::of_this_machine().find(None) {
        Ok(toolkit) => toolkit,
        Err(why) => return eprintln!("not compiled: {why}"),
    };
    let cache = tempfile::tempdir().unwrap();
    let executable = PathBuf::from(env!("CARGO_BIN_EXE_warpsmith"));
    let compiler = Compiler::with(toolkit, cache.path(), Some(executable)).unwrap();
    let compiled = compiler.candidate(op, file, resolutions, 90, facts, &AtomicBool::new(false));
    compiled.unwrap_or_else(|error| panic!("{}: {error:?}", op.name));
    let (name, source) = (format!("{}.cu", op.name), oracle_source(op).unwrap());
    let unit = Unit { name, source, arch: "sm_90".into(), options: vec![], names: vec![], numbers: Default::default() };
    compiler.trusted(&[unit]).unwrap_or_else(|error| panic!("the oracle of {}: {error:?}", op.name));
}
