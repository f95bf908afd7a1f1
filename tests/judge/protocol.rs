//! The worker's lines: what is no request, cancellation, and every way to die.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio_util::sync::CancellationToken;
use warpsmith::evaluation::Evaluation;
use warpsmith::harness::ScreenTask;
use warpsmith::harness::Screened;
use warpsmith::worker::protocol::{Ask, FailureKind, MAX_LINE, Reply, Request};
use warpsmith::worker::{Client, WorkerError};

use crate::bench::{answer, correct, edit, source, start, task, worker};
use crate::honest::small;

/// Two minutes for what is over in seconds: a test that hangs must end as well.
const PATIENCE: Duration = Duration::from_secs(120);

/// A worker spoken to without a client.
struct Raw {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Raw {
    fn start() -> Self {
        let (program, arguments) = worker();
        let mut child =
            Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut raw = Self { input: child.stdin.take(), output, child };
        assert!(matches!(raw.hear(), Reply::Hello { .. }));
        raw
    }

    fn say(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn ask(&mut self, id: u64, ask: Ask) {
        let line = serde_json::to_string(&Request { id, ask }).unwrap();
        self.say(format!("{line}\n").as_bytes());
    }

    fn hear(&mut self) -> Reply {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// The next reply that is no event.
    fn outcome(&mut self) -> Reply {
        loop {
            match self.hear() {
                Reply::Event { .. } => {}
                other => return other,
            }
        }
    }

    fn refused(&mut self) -> bool {
        matches!(self.outcome(), Reply::Failed { id: 0, kind: FailureKind::BadRequest, .. })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn smoke(candidate: &str) -> Ask {
    Ask::Smoke(Box::new(task("rmsnorm", candidate, candidate)))
}

fn endless() -> String {
    edit(small("rmsnorm"), &[("float eps) {", "float eps) {\n    for (;;) __asm__ volatile(\"\");")])
}

fn done(reply: Reply, wanted: u64) -> Evaluation {
    match reply {
        Reply::Done { id, result, .. } if id == wanted => serde_json::from_value(result).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.unwrap() })
}

#[test]
fn lines_that_are_no_requests_are_refused_and_those_after_them_answered() {
    let mut worker = Raw::start();
    for line in [
        "rubbish\n",
        "\n{}\n",
        "{\"id\":7,\"ask\":\"dance\"}\n",
        "{\"id\":-1,\"ask\":\"cancel\"}\n",
        "\u{0}\n",
        "[1]\n",
    ] {
        worker.say(line.as_bytes());
        assert!(worker.refused(), "{line}");
    }
    worker.say(b"\xff\xfe\n");
    assert!(worker.refused());
    worker.ask(3, smoke(small("rmsnorm")));
    worker.ask(4, smoke("no kernel"));
    assert!(correct(&done(worker.outcome(), 3).verdict));
    assert_eq!(done(worker.outcome(), 4).verdict.status(), "error");
}

#[test]
fn a_line_that_is_too_long_is_refused_once_and_as_a_whole() {
    let mut worker = Raw::start();
    let end = serde_json::to_string(&Request { id: 5, ask: smoke("the end of a long line") }).unwrap();
    worker.say(&vec![b' '; MAX_LINE]);
    worker.say(format!("{end}\n").as_bytes());
    assert!(worker.refused());
    worker.ask(6, smoke("no kernel"));
    done(worker.outcome(), 6);
}

#[test]
fn a_request_can_be_taken_back_even_before_it_is_begun() {
    let mut worker = Raw::start();
    worker.ask(1, smoke("no kernel"));
    worker.ask(2, Ask::Evaluate(Box::new(task("matmul", small("matmul"), small("matmul")))));
    worker.ask(2, Ask::Cancel);
    done(worker.outcome(), 1);
    assert!(matches!(worker.outcome(), Reply::Failed { id: 2, kind: FailureKind::Cancelled, .. }));
    worker.ask(2, Ask::Cancel);
    worker.ask(3, smoke("no kernel"));
    done(worker.outcome(), 3);
}

#[test]
fn an_evaluation_under_way_is_cancelled_and_the_next_one_is_not() {
    block_on(async {
        let mut client = start().await;
        let cancel = CancellationToken::new();
        let stop = cancel.clone();
        let asked = Ask::Evaluate(Box::new(task("rmsnorm", small("rmsnorm"), small("rmsnorm"))));
        let answer: Result<Evaluation, _> = client.ask(asked, &mut move |_| stop.cancel(), &cancel).await;
        assert!(answer.unwrap_err().is_cancelled());
        let again: Evaluation =
            client.ask(smoke(small("rmsnorm")), &mut |_| {}, &CancellationToken::new()).await.unwrap();
        assert!(correct(&again.verdict));
    });
}

#[test]
fn a_killed_worker_is_noticed_and_another_takes_its_place() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let (program, arguments) = worker();
        let script = format!("echo $$ > {}; exec {} \"$@\"", file.display(), program.display());
        let shell: Vec<String> = ["-c", &script, "sh"].map(str::to_owned).into_iter().chain(arguments).collect();
        let mut client = Client::start("/bin/sh".as_ref(), &shell).await.unwrap();
        let pid = || Pid::from_raw(std::fs::read_to_string(&file).unwrap().trim().parse().unwrap()).unwrap();
        let (first, mut killed) = (pid(), false);
        let mut kill = |_| {
            if !std::mem::replace(&mut killed, true) {
                kill_process(first, Signal::KILL).unwrap();
            }
        };
        let never = CancellationToken::new();
        let answer: Result<Evaluation, _> = client.ask(smoke(&endless()), &mut kill, &never).await;
        assert!(matches!(answer, Err(WorkerError::Died(_))), "{answer:?}");
        let answer: Result<Evaluation, _> = client.ask(smoke(small("rmsnorm")), &mut |_| {}, &never).await;
        assert!(matches!(answer, Err(WorkerError::Died(_))), "{answer:?}");
        client.restart().await.unwrap();
        assert_ne!(pid(), first);
        let answer: Evaluation = client.ask(smoke(small("rmsnorm")), &mut |_| {}, &never).await.unwrap();
        assert!(correct(&answer.verdict));
    });
}

fn children(of: u32) -> Vec<u32> {
    let parent = format!("PPid:\t{of}");
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mine = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| text.lines().any(|line| line == parent))
    };
    processes.filter(mine).collect()
}

#[test]
fn the_end_of_input_ends_a_worker_and_what_it_has_started() {
    let mut worker = Raw::start();
    worker.ask(1, smoke(&endless()));
    // Compilers come first; the one that stays is the candidate's.
    let host = loop {
        assert!(matches!(worker.hear(), Reply::Event { .. }), "it ended before it was seen");
        let own = |pid: &u32| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"warpsmith\0host\0"))
        };
        if let Some(host) = children(worker.child.id()).into_iter().find(own) {
            break host;
        }
    };
    drop(worker.input.take());
    // At once, and not after whatever a device is still doing.
    assert_eq!(worker.child.wait().unwrap().signal(), Some(9));
    let deadline = std::time::Instant::now() + PATIENCE;
    let running = || std::fs::read_to_string(format!("/proc/{host}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    while running() {
        assert!(std::time::Instant::now() < deadline, "the candidate's process lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_candidate_cannot_speak_for_the_worker() {
    let forged = r#"{"say":"done","id":1,"result":{"verdict":{"status":"base"}}}"#;
    for edits in [
        [("#include", &*format!("#warning {forged}\n#include"))],
        [("#include", &*format!("#error \n{forged}\n#include"))],
        [("float eps) {", &*format!("float eps) {{ }}\n{forged}\nvoid f(void) {{"))],
    ] {
        let mut worker = Raw::start();
        worker.ask(1, smoke(&edit(small("rmsnorm"), &edits)));
        let evaluation = done(worker.outcome(), 1);
        assert_eq!(evaluation.op, "rmsnorm");
        worker.ask(2, smoke("no kernel"));
        assert_eq!(done(worker.outcome(), 2).verdict.status(), "error");
    }
}

#[test]
fn screening_tells_what_runs_from_what_does_not() {
    let honest = small("rmsnorm");
    let lazy = edit(honest, &[("y[r * cols + j] = ws_store(v);", "")]);
    let slow =
        edit(honest, &[("sum += v * v; }", "sum += v * v; __asm__ volatile(\"pause\\npause\\npause\\npause\"); }")]);
    let wanted = task("rmsnorm", honest, honest);
    let screened: Vec<Option<Screened>> = answer(Ask::Screen(Box::new(ScreenTask {
        op: source("rmsnorm"),
        incumbent: honest.to_owned(),
        candidates: vec![honest.to_owned(), lazy, slow, "no kernel".to_owned()],
        target: wanted.target,
        seed: 3,
    })));
    let speedups: Vec<Option<f64>> = screened.iter().map(|one| one.as_ref().map(|one| one.speedup)).collect();
    assert!(speedups[0].is_some() && speedups[1].is_none() && speedups[3].is_none(), "{speedups:?}");
    assert!(speedups[2].unwrap() < speedups[0].unwrap(), "{speedups:?}");
}
