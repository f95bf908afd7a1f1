//! The starters' mutants before the judge.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use warpsmith::kernel::headers;
use warpsmith::op::{Dtype, OpSource, TargetShape};
use warpsmith::workspace::{embedded, embedded_names};

use crate::equivalent::{EQUIVALENT, Equivalent, reason};
use crate::generate::{Mutant, draw, mutants};
use crate::judged::{Fate, Lane, Questions, Tier, all};
use crate::tally::{Population, Tally, table};
use crate::{slot, small};

/// Mutants of each starter in C that every `cargo test` judges, and that the full suite does.
const FEW: usize = 1;
const SAMPLE: usize = 6;

/// Of the samples. With this one none of those in C needs an examination to be found, which takes half a minute each.
const SEED: u64 = 69;

/// The share of mistakes that must be found.
const KILL_RATE: f64 = 0.97;

/// The share of mutants that may be equivalent, of those that are other code: one in twenty is aimed at, and 5.6 % were seen.
const MOST_EQUIVALENT: f64 = 0.06;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The program whose worker judges: one that was built elsewhere where `WARPSMITH` names it.
fn program() -> PathBuf {
    std::env::var_os("WARPSMITH").map_or_else(|| env!("CARGO_BIN_EXE_warpsmith").into(), PathBuf::from)
}

/// Where calibration and compiled kernels are.
fn cache() -> PathBuf {
    std::env::var_os("WARPSMITH_CACHE").map_or_else(slot::cache, PathBuf::from)
}

/// Kernel files that ship, in the folder of a backend: their names without `kernels/`, and their texts.
fn starters(folder: &str) -> Vec<(String, &'static str)> {
    let names = embedded_names("kernels/").filter_map(|name| name.strip_prefix("kernels/"));
    let starters = names.filter(|name| name.rsplit_once('/').is_some_and(|(parent, _)| parent == folder));
    starters.map(|name| (name.to_owned(), whole(embedded(&format!("kernels/{name}")).unwrap()))).collect()
}

/// A kernel file with the headers of ours that it includes in it: a mistake may be in these as well.
fn whole(text: &str) -> &'static str {
    let mut text = text.to_owned();
    // A header may include another.
    while let Some(header) = headers().find(|header| text.contains(&include(header.name))) {
        text = text.replace(&include(header.name), &header.text.replace("#pragma once\n", ""));
    }
    text.leak()
}

fn include(header: &str) -> String {
    format!("#include \"{header}\"\n")
}

/// The operation of a kernel file.
fn operation(file: &str) -> &str {
    Path::new(file).file_stem().unwrap().to_str().unwrap()
}

/// Small shapes; an examination, where there is one, is long enough for the sanitizers to join in.
fn questions_in_c(file: &str, starter: &str, examined_s: u64) -> Questions {
    let op = operation(file);
    let examination_s = number("WARPSMITH_MUTANTS_EXAMINED").unwrap_or(examined_s) as f64;
    let tier = match std::env::var_os("WARPSMITH_MUTANTS_AS_SHIPPED") {
        Some(_) => Tier { op: shipped(op), target: small::target(op), examination_s },
        None => Tier { op: small::source(op), target: small::target(op), examination_s },
    };
    Questions { starter: starter.to_owned(), tier, examinations: None }
}

fn shipped(op: &str) -> OpSource {
    OpSource::read(op, &|path| embedded(path).map(str::to_owned)).unwrap()
}

/// As it ships: a GPU has the time, but not the memory for many examinations at once.
fn questions_in_cuda(file: &str, starter: &str, examinations: Arc<Semaphore>) -> Questions {
    let op = shipped(operation(file));
    let shape = op.operation().unwrap().primary_shape().unwrap();
    let target = vec![TargetShape { shape, dtype: Dtype::F16, calls: 1 }];
    let examination_s = number("WARPSMITH_MUTANTS_EXAMINED").unwrap_or(20) as f64;
    let tier = Tier { op, target, examination_s };
    Questions { starter: starter.to_owned(), tier, examinations: Some(examinations) }
}

/// Tells each fate as it becomes known, and keeps what is not found where `WARPSMITH_MUTANTS` names a folder.
fn tell(log: &Mutex<Option<std::fs::File>>, mutant: &Mutant, fate: &Fate, took_s: f64) {
    let what = match fate {
        Fate::Found { status, stage, why } => format!("{status} at {}: {}", stage.name(), first_line(why)),
        other => format!("{other:?}"),
    };
    let known = reason(mutant).filter(|_| *fate == Fate::Alive).unwrap_or_default();
    let row = format!("{}{took_s:.2}\t{what}\t{known}\n", name(mutant));
    if let Some(log) = &mut *log.lock().unwrap() {
        log.write_all(row.as_bytes()).unwrap();
    }
    if matches!(fate, Fate::Alive | Fate::NotJudged(_)) {
        println!("{}", row.trim_end());
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}

/// Judges what was chosen, prints the table, and says what the judge should not have taken.
fn judge(lanes: Vec<Lane>, chosen: Vec<(usize, Mutant)>, questions: &[Questions], population: &Population) -> Tally {
    let folder = std::env::var_os("WARPSMITH_MUTANTS").map(PathBuf::from);
    let log = folder.map(|folder| {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::File::create(folder.join("fates.tsv")).unwrap()
    });
    let log = Mutex::new(log);
    let fates = all(lanes, chosen, questions, end(), &|mutant, fate, took_s| tell(&log, mutant, fate, took_s));
    let (text, tally) = table(&fates, population);
    println!("{text}");
    tally
}

fn assert_is_enough(tally: Tally, whole: bool) {
    assert_eq!(tally.not_judged, 0, "some had no verdict");
    assert!(tally.kill_rate() >= KILL_RATE, "{tally:?}");
    assert!(!whole || tally.equivalent() <= MOST_EQUIVALENT, "{tally:?}");
}

/// How a mutant is told: file and line, which mistake, the line before and after, with tabs between.
fn name(mutant: &Mutant) -> String {
    let Mutant { file, kind, line, before, after, .. } = mutant;
    format!("{file}:{line}\t{}\t{before}\t{after}\t", kind.name())
}

/// `count` mutants of each starter, or all: each file in turn, so that whatever the time suffices for is a sample of all. Where
/// `WARPSMITH_MUTANTS_AGAIN` names a file, those of them that are told in it; none that is told in `WARPSMITH_MUTANTS_DONE`.
fn choose(starters: &[(String, &str)], count: Option<usize>) -> Vec<(usize, Mutant)> {
    let mut chosen: Vec<(usize, usize, Mutant)> = Vec::new();
    for (at, (file, text)) in starters.iter().enumerate() {
        let all = mutants(file, text);
        let some = draw(&all, count.unwrap_or(all.len()), number("SEED").unwrap_or(SEED));
        // What is made for one GPU is long, and takes three times as long to compile.
        let pace = if file.matches('/').count() > 1 { 3 } else { 1 };
        chosen.extend(some.into_iter().enumerate().map(|(turn, mutant)| (pace * turn, at, mutant)));
    }
    chosen.sort_by_key(|(turn, at, _)| (*turn, *at));
    let told = |variable: &str| std::env::var_os(variable).map(|path| std::fs::read_to_string(path).unwrap());
    let (again, done) = (told("WARPSMITH_MUTANTS_AGAIN"), told("WARPSMITH_MUTANTS_DONE").unwrap_or_default());
    let wanted = |mutant: &Mutant| {
        again.as_ref().is_none_or(|again| again.contains(&name(mutant))) && !done.contains(&name(mutant))
    };
    chosen.into_iter().map(|(_, at, mutant)| (at, mutant)).filter(|(_, mutant)| wanted(mutant)).collect()
}

/// How many mutants there are.
fn population(starters: &[(String, &str)]) -> Population {
    let mut population = Population::new();
    for mutant in starters.iter().flat_map(|(file, text)| mutants(file, text)) {
        *population.entry((mutant.file, mutant.kind)).or_default() += 1;
    }
    population
}

/// When to begin no more.
fn end() -> Option<Instant> {
    number("WARPSMITH_MUTANTS_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds))
}

fn lanes(usual: u64) -> std::ops::Range<u64> {
    0..number("WARPSMITH_MUTANTS_LANES").unwrap_or(usual)
}

#[test]
fn what_is_listed_as_equivalent_is_a_mutant() {
    for Equivalent { files, lines, why } in EQUIVALENT {
        for line in *lines {
            let of_file = |file: &&str| {
                let text = whole(embedded(&format!("kernels/{file}")).unwrap());
                mutants(file, text).iter().any(|mutant| Equivalent::names(line, mutant))
            };
            assert!(!why.is_empty() && files.iter().any(of_file), "{line}");
        }
    }
}

#[test]
#[ignore = "prints every mutant, judged or not"]
fn mutants_are_told() {
    for (file, text) in ["cpu", "cuda", "cuda/nvidia-h200"].iter().flat_map(|folder| starters(folder)) {
        for mutant in mutants(&file, text) {
            println!("{}", name(&mutant));
        }
    }
}

#[test]
fn a_mistake_in_each_starter_in_c_is_found() {
    in_c(FEW);
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn mistakes_in_starters_in_c_are_found() {
    in_c(SAMPLE);
}

/// So many mistakes in each starter in C are found, or all.
fn in_c(sample: usize) {
    let whole = std::env::var_os("WARPSMITH_ALL_MUTANTS").is_some();
    let starters = starters("cpu");
    let examined_s = if whole { 20 } else { 0 };
    let questions = starters.iter().map(|(file, text)| questions_in_c(file, text, examined_s));
    let questions: Vec<Questions> = questions.collect();
    let (chosen, population) = (choose(&starters, (!whole).then_some(sample)), population(&starters));
    // Two lanes keep two cores busy, each while the other waits for a process to end.
    let lanes = lanes(if whole { 2 } else { 1 }).map(|lane| {
        let cache = cache();
        let own = if lane == 0 { cache } else { cache.with_extension(format!("lane-{lane}")) };
        Lane::start(program(), &own, &own, false)
    });
    let tally = judge(lanes.collect(), chosen, &questions, &population);
    if whole {
        assert_is_enough(tally, true);
    } else {
        assert_eq!((tally.alive, tally.not_judged), (0, 0), "the judge takes mistakes");
    }
}

#[test]
fn mistakes_in_starters_in_cuda_are_found() {
    let Some(count) = number("WARPSMITH_CUDA_MUTANTS") else {
        return println!("skipped: WARPSMITH_CUDA_MUTANTS does not say how many of each are to be judged");
    };
    let folders = std::env::var("WARPSMITH_MUTANTS_IN").unwrap_or_else(|_| "cuda".into());
    let starters: Vec<_> = folders.split(',').flat_map(starters).collect();
    let examinations = Arc::new(Semaphore::new(number("WARPSMITH_MUTANTS_EXAMINATIONS").unwrap_or(4) as usize));
    let questions = starters.iter().map(|(file, text)| questions_in_cuda(file, text, examinations.clone()));
    let questions: Vec<Questions> = questions.collect();
    let (chosen, population) = (choose(&starters, Some(count as usize)), population(&starters));
    // Each with a copy of what was measured of the device, which is locked by way of that folder; what one compiles serves all.
    let measured = cache();
    let lanes = lanes(8).map(|lane| {
        let cache = measured.with_extension(format!("lane-{lane}"));
        share(&measured, &cache);
        Lane::start(program(), &cache, &measured, true)
    });
    let tally = judge(lanes.collect(), chosen, &questions, &population);
    assert_is_enough(tally, false);
}

/// Makes `to` a folder with copies of the files in `from`, and its folders as they are.
fn share(from: &Path, to: &Path) {
    std::fs::create_dir_all(from.join("cuda")).unwrap();
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (entry, to) = entry.map(|entry| (entry.path(), to.join(entry.file_name()))).unwrap();
        if entry.is_dir() {
            // It may be there from an earlier run.
            let _ = std::os::unix::fs::symlink(entry, to);
        } else {
            std::fs::copy(entry, to).unwrap();
        }
    }
}
