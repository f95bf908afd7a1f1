//! Sanitizers: a kernel built once more, with the compiler's own watch for what it must not do, and run in a jail at small shapes.
//!
//! The program is the kernel, as the preprocessor leaves it for an ordinary build, and `driver.c`. Nothing of the judge is in it,
//! and nothing it says is read but the sanitizer's first report.

use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::compile::{CompileError, Compiler, redact};
use super::prelude::candidate_source;
use crate::backend::{Instrument, Look, ScratchBuffer};

use crate::kernel::{Facts, KernelFile, ScratchInit};
use crate::op::{Case, DrawPlan, Dtype, OpError, Operation, Role, TargetShape};
use crate::rng::Stream;
use crate::sandbox::Jail;

/// Multiply-adds and elements of a case: what a kernel does in parallel is done so here too, and takes some milliseconds.
const MACS: u64 = 1 << 21;
const ELEMENTS: u64 = 1 << 17;
/// The same where the timed shapes themselves are run, last of all, in search of races that need a way for large sizes.
const TIMED_MACS: u64 = 1 << 27;
const TIMED_ELEMENTS: u64 = 1 << 23;
/// Bytes of a report that are kept.
const REPORT: usize = 64 << 10;
/// Signals of which a kernel dies by its own doing, with or without a report: that the sanitizer itself works here was seen before.
const FATAL: [libc::c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
/// Letters of a finding.
const WORDS: usize = 240;

/// A sanitizer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sanitizer {
    name: &'static str,
    flags: &'static [&'static str],
    /// What a report has in its first line.
    marks: &'static [&'static str],
    /// A program that it must find something in.
    defect: &'static str,
}

pub(super) const SANITIZERS: [Sanitizer; 3] = [
    Sanitizer {
        name: "address sanitizer",
        flags: &["-fsanitize=address"],
        marks: &["ERROR: AddressSanitizer"],
        defect: "#include <stdlib.h>\nint main(void) { volatile char *p = malloc(9); return p[9]; }\n",
    },
    // What honest code does as a matter of course is left out: unaligned vectors, bits of numbers shifted out, a pointer to an
    // absent tensor that is moved and never followed.
    Sanitizer {
        name: "undefined-behaviour sanitizer",
        flags: &[
            "-fsanitize=bool,bounds,enum,integer-divide-by-zero,null,return,shift-exponent,signed-integer-overflow,unreachable,vla-bound",
            "-fno-sanitize-recover=all",
        ],
        marks: &["runtime error: "],
        defect: "int main(void) { volatile int most = 2147483647; most++; return 0; }\n",
    },
    Sanitizer {
        name: "thread sanitizer",
        flags: &["-fsanitize=thread"],
        marks: &["WARNING: ThreadSanitizer", "ERROR: ThreadSanitizer"],
        defect: "#include <pthread.h>\nstatic int sum;\nstatic void *add(void *p) { sum++; return p; }\n\
            int main(void) { pthread_t a, b; pthread_create(&a, 0, add, 0); pthread_create(&b, 0, add, 0);\n\
            pthread_join(a, 0); pthread_join(b, 0); return 0; }\n",
    },
];

impl Compiler {
    /// The sanitizers that kernels are examined with, by name; why this compiler has none, where that is so.
    #[must_use]
    pub fn sanitizers(&self) -> Vec<(&'static str, Result<(), String>)> {
        let try_out = |sanitizer: Sanitizer| {
            let built = self.program(("defect", None), sanitizer.defect, &[], sanitizer.flags);
            let why = |error: CompileError| error.to_string().lines().next().unwrap_or_default().to_owned();
            (sanitizer.name, built.map(drop).map_err(why))
        };
        SANITIZERS.map(try_out).into_iter().collect()
    }
}

/// All instruments for a kernel. They are owned by nobody: each may look in a thread of its own.
pub(super) fn instruments(
    compiler: &Compiler,
    facts: &Facts,
    op: &Result<Operation, OpError>,
    (kernel, target): (&KernelFile, &[TargetShape]),
    seed: u64,
) -> Vec<Instrument> {
    let one = |sanitizer: Sanitizer| {
        let op = match op {
            Ok(op) => op.clone(),
            Err(error) => return Instrument { name: sanitizer.name, look: Err(error.to_string()) },
        };
        let (compiler, facts, kernel, target) = (compiler.clone(), facts.clone(), kernel.clone(), target.to_vec());
        let look: Look = Box::new(move |limit| {
            let watched = Watched { compiler, facts, op, kernel, end: Instant::now() + limit };
            let cases = cases(&watched.op, &watched.kernel.front.dtypes, &target, seed);
            let cases = cases.map_err(|error| error.to_string())?;
            watched.look(sanitizer, &cases, seed)
        });
        Instrument { name: sanitizer.name, look: Ok(look) }
    };
    SANITIZERS.map(one).into_iter().collect()
}

/// What is run, the smallest and the edges first: each shape in single precision, and in one of the other types that the kernel serves, as
/// the seed chooses.
fn cases(op: &Operation, served: &[Dtype], target: &[TargetShape], seed: u64) -> Result<Vec<Case>, OpError> {
    let stream = Stream::new(seed, "instruments");
    let mut cases: Vec<Case> = Vec::new();
    let wanted = target.iter().map(|one| &one.shape);
    for (number, shape) in std::iter::once(&op.smoke).chain(wanted).chain(&op.edges).chain(&op.sweep).enumerate() {
        let (shape, _) = op.shrink_to(&op.complete(shape)?, MACS, ELEMENTS)?;
        let others: Vec<Dtype> = served.iter().copied().filter(|dtype| *dtype != Dtype::F32).collect();
        let other = others.get(stream.below(number as u64, others.len().max(1) as u64) as usize).copied();
        for dtype in served.iter().copied().filter(|dtype| *dtype == Dtype::F32).chain(other) {
            let case = Case { shape: shape.clone(), dtype, input: None, setting: 0 };
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
    }
    for wanted in target {
        let (shape, _) = op.shrink_to(&op.complete(&wanted.shape)?, TIMED_MACS, TIMED_ELEMENTS)?;
        let case = Case { shape, dtype: wanted.dtype, input: None, setting: 0 };
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    Ok(cases)
}

struct Watched {
    compiler: Compiler,
    facts: Facts,
    op: Operation,
    kernel: KernelFile,
    end: Instant,
}

impl Watched {
    fn look(&self, sanitizer: Sanitizer, cases: &[Case], seed: u64) -> Result<Option<String>, String> {
        let missing = |error: CompileError| format!("the compiler has none that works here: {error}");
        let defect =
            self.compiler.program(("defect", None), sanitizer.defect, &[], sanitizer.flags).map_err(missing)?;
        if self.run(sanitizer, defect.path(), None)?.is_none() {
            return Err("it does not see what it should here".into());
        }
        let mut built: Vec<(String, tempfile::TempDir)> = Vec::new();
        let mut looked = false;
        for (number, case) in cases.iter().enumerate() {
            if Instant::now() >= self.end {
                break;
            }
            // Outside its domain a kernel is not asked.
            let Ok(resolution) = self.kernel.resolve(&case.shape, case.dtype, &self.facts) else { continue };
            let source = candidate_source(&self.op, &self.kernel, &resolution);
            let known = built.iter().position(|(text, _)| *text == source);
            let place = match known {
                Some(place) => place,
                None => {
                    let name = (&*self.op.name, Some(&*self.kernel.text));
                    let options = &self.kernel.front.options;
                    let made = self.compiler.program(name, &source, options, sanitizer.flags);
                    built.push((source, made.map_err(|error| error.to_string())?));
                    built.len() - 1
                }
            };
            let folder = built[place].1.path();
            let scratch = ScratchBuffer::of(&self.kernel, &resolution);
            let seed = Stream::new(seed, "instrument").bits(number as u64);
            let file = folder.join("case");
            write_case(&file, &self.op, case, &scratch, seed)?;
            if let Some(found) = self.run(sanitizer, folder, Some(&file))? {
                return Ok(Some(format!("{found} ({} {})", case.shape, case.dtype)));
            }
            looked = true;
        }
        if looked { Ok(None) } else { Err("there was no time for a case".into()) }
    }

    /// The report of one run of the program in `folder`, if it made one.
    fn run(&self, sanitizer: Sanitizer, folder: &Path, case: Option<&Path>) -> Result<Option<String>, String> {
        let left = self.end.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
        let mut read = self.compiler.jail().read.clone();
        read.push(folder.to_owned());
        let jail = Jail {
            read,
            write: vec!["/dev/null".into()],
            time: left,
            // A sanitizer reserves terabytes of addresses.
            memory: u64::MAX,
            file: 0,
            output: REPORT,
        };
        let mut command = Command::new(folder.join("program"));
        command.args(case).current_dir(folder);
        let fixed = || {
            // SAFETY: changes a flag of the process. Where addresses are too random, a sanitizer finds no place for its notes.
            unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes one system call.
        unsafe { command.pre_exec(fixed) };
        let finished = jail.run(command, &[("LC_ALL", "C")]).map_err(|error| error.to_string())?;
        let report = redact(&finished.output, folder);
        if let Some(found) = finding(sanitizer, &report) {
            return Ok(Some(found));
        }
        if let Some(limit) = finished.limit {
            return Err(limit);
        }
        if finished.status.success() || case.is_none() {
            return Ok(None);
        }
        if let Some(signal) = finished.status.signal().filter(|signal| FATAL.contains(signal)) {
            return Ok(Some(format!("the program that it watches dies of signal {signal}")));
        }
        Err(format!("the program ended with {}: {}", finished.status, report.chars().take(WORDS).collect::<String>()))
    }
}

/// The first report in a program's output, in a line without addresses; the place is the first frame in the kernel's own file.
fn finding(sanitizer: Sanitizer, report: &str) -> Option<String> {
    let mut lines = report.lines();
    let first = lines.find(|line| sanitizer.marks.iter().any(|mark| line.contains(mark)))?;
    let what = sanitizer.marks.iter().find_map(|mark| first.split_once(mark)).map_or(first, |(_, what)| what);
    let what = what.trim_start_matches([':', ' ']).split(" on address ").next().unwrap_or_default();
    let what = ["on unknown address", "(pid="]
        .iter()
        .fold(what, |what, end| what.split(end).next().unwrap_or_default().trim_end());
    let is_place =
        |word: &&str| word.split_once(".c:").is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()));
    let own = |line: &str| {
        line.split_whitespace().find(|word| is_place(word) && !word.starts_with("driver.c")).map(str::to_owned)
    };
    let frames = lines.filter(|line| line.trim_start().starts_with('#'));
    let place = own(first).or_else(|| frames.filter_map(own).next());
    let place =
        place.map_or_else(String::new, |place| format!(" at {}", place.trim_start_matches("./").trim_end_matches(':')));
    // What the kernel did there: a read or a write, and how much.
    let access = report.lines().find(|line| line.starts_with("READ of size") || line.starts_with("WRITE of size"));
    let access = access.map_or_else(String::new, |line| {
        let words: Vec<&str> = line.split_whitespace().take(4).collect();
        format!(", a {}", words.join(" ").to_lowercase())
    });
    Some(format!("{what}{access}{place}").chars().take(WORDS).collect())
}

/// A case as `driver.c` reads it.
fn write_case(file: &Path, op: &Operation, case: &Case, scratch: &[ScratchBuffer], seed: u64) -> Result<(), String> {
    const ABSENT: i64 = 0;
    const INPUT: i64 = 1;
    const RUBBISH: i64 = 2;
    const ZERO: i64 = 3;
    let failed = |error: OpError| error.to_string();
    let mut pointers = Vec::new();
    let mut inputs = Vec::new();
    for tensor in &op.tensors {
        let bytes = op.elements(tensor, &case.shape).map_err(failed)? * tensor.dtype.bytes(case.dtype);
        let kind = match (op.present(tensor, &case.shape).map_err(failed)?, tensor.role) {
            (false, _) => ABSENT,
            (true, Role::Input) => INPUT,
            (true, _) => RUBBISH,
        };
        pointers.push([kind, bytes as i64]);
        if kind == INPUT {
            let mut drawn = vec![0; bytes];
            if let Some(how) = op.draw_of(tensor, case).map_err(failed)? {
                // No file is asked here, and what is wrong is found by any values.
                let how = how.like.as_deref().unwrap_or(how);
                DrawPlan::new(op, tensor, &case.shape, case.dtype, how, seed).map_err(failed)?.fill(&mut drawn);
            }
            inputs.push(drawn);
        }
    }
    for buffer in scratch {
        let kind = if buffer.init == ScratchInit::Poison { RUBBISH } else { ZERO };
        pointers.push([kind, (buffer.elements * buffer.dtype.bytes(case.dtype)) as i64]);
    }
    let ints = op.ints(&case.shape).map_err(failed)?;
    let floats = op.scalars_of(case).map_err(failed)?;
    let head = [pointers.len() as i64, ints.len() as i64, floats.len() as i64];
    let mut bytes = Vec::new();
    for word in head.iter().chain(pointers.as_flattened()).chain(&ints) {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    floats.iter().for_each(|float| bytes.extend_from_slice(&float.to_ne_bytes()));
    let io = |error: std::io::Error| format!("writing a case: {error}");
    let mut file = std::fs::File::create(file).map_err(io)?;
    file.write_all(&bytes).map_err(io)?;
    inputs.iter().try_for_each(|input| file.write_all(input)).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_becomes_a_sentence() {
        let report = "=====\n==1==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x60 at pc 0x5 bp 0x7 sp 0x8\n\
            READ of size 4 at 0x60 thread T0\n    #0 0x55 in rmsnorm softmax.c:12:3\n    #1 0x55 in main driver.c:90\n";
        let found = finding(SANITIZERS[0], report).unwrap_or_default();
        assert_eq!(found, "heap-buffer-overflow, a read of size 4 at softmax.c:12:3");
        let report =
            "k.c:5:20: runtime error: signed integer overflow: 1 + 2147483647 cannot be represented in type 'int'\n";
        let found = finding(SANITIZERS[1], report).unwrap_or_default();
        assert_eq!(found, "signed integer overflow: 1 + 2147483647 cannot be represented in type 'int' at k.c:5:20");
        let report = "WARNING: ThreadSanitizer: data race (pid=7)\n  Write of size 4 at 0x7f by thread T2:\n    #0 add k.c:3 (program+0x1)\n";
        assert_eq!(finding(SANITIZERS[2], report).unwrap_or_default(), "data race at k.c:3");
        assert_eq!(finding(SANITIZERS[0], "x\n"), None);
    }
}
