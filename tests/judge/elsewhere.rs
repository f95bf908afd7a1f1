//! Workers beside the first one: a session in a process of its own, and another worker after a device was lost.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use tokio_util::sync::CancellationToken;
use warpsmith::backend::cpu::CASE_LIMITS;
use warpsmith::device::{Ceilings, DeviceCard};
use warpsmith::evaluation::Verdict;
use warpsmith::harness::{Elsewhere, Failure, JudgeError, SessionTask, Watch};
use warpsmith::worker::protocol::{Ask, PROTOCOL, Reply};
use warpsmith::worker::{Client, Workers};

use crate::bench::{edit, task, worker};
use crate::honest::small;

static GO: AtomicBool = AtomicBool::new(false);

fn session(candidate: &str, number: u32) -> SessionTask {
    let asked = task("rmsnorm", candidate, small("rmsnorm"));
    let op = asked.op.operation().unwrap();
    let mut target = asked.target;
    target.iter_mut().for_each(|shape| shape.shape = op.complete(&shape.shape).unwrap());
    SessionTask {
        op: asked.op,
        incumbent: asked.incumbent,
        candidate: asked.candidate,
        target,
        rounds: 1,
        seed: 4,
        number,
        asks: false,
    }
}

fn measure(tasks: &[SessionTask], cancelled: &AtomicBool) -> Result<Vec<warpsmith::harness::Session>, Failure> {
    let (program, mut arguments) = worker();
    arguments.push("--within".to_owned());
    Workers::new(program, arguments).sessions(tasks, None, Watch { progress: &|_| {}, cancelled })
}

#[test]
fn each_session_is_measured_in_a_worker_of_its_own() {
    let honest = small("rmsnorm");
    let sessions = measure(&[session(honest, 1), session(honest, 2)], &GO).unwrap();
    assert_eq!(sessions.len(), 2);
    for session in &sessions {
        assert!(session.blocks.len() == 16 && session.took_s > 0.0);
        assert!(session.blocks.iter().all(|block| block.candidate_us[0] > 0.0 && block.incumbent_us[0] > 0.0));
    }
}

#[test]
fn what_is_wrong_in_a_session_elsewhere_is_a_verdict_and_what_is_missing_is_not() {
    let lazy = edit(small("rmsnorm"), &[("y[r * cols + j] = ws_store(v);", "")]);
    let failed = measure(&[session(&lazy, 1)], &GO).unwrap_err();
    assert!(matches!(&failed, Failure::Verdict(Verdict::Reject { why, .. }) if why.contains("timed")), "{failed:?}");
    let library = SessionTask { incumbent: None, ..session(small("rmsnorm"), 1) };
    let failed = measure(&[library], &GO).unwrap_err();
    assert!(
        matches!(&failed, Failure::Judge(JudgeError::Machine { what, .. }) if what.contains("library")),
        "{failed:?}"
    );
    let broken = SessionTask { incumbent: Some(lazy.replace("rmsnorm(", "other(")), ..session(&lazy, 1) };
    let failed = measure(&[broken], &GO).unwrap_err();
    assert!(matches!(&failed, Failure::Judge(JudgeError::Incumbent(_))), "{failed:?}");
    let failed = measure(&[session(&lazy, 1)], &AtomicBool::new(true)).unwrap_err();
    assert!(matches!(failed, Failure::Judge(JudgeError::Cancelled)), "{failed:?}");
}

#[test]
fn after_a_device_is_lost_the_next_question_goes_to_another_worker() {
    let card = DeviceCard {
        backend: "none".into(),
        name: "a device that is lost at every question".into(),
        key: "none-1".into(),
        cores: 1,
        vector_bits: 0,
        l1_bytes: 0,
        l2_bytes: 0,
        l3_bytes: 0,
        cold_bytes: 0,
        facts: BTreeMap::new(),
        ceilings: Ceilings {
            read_gb_s: 1.0,
            write_gb_s: 1.0,
            gflops: BTreeMap::new(),
            launch_us: 1.0,
            shown: BTreeMap::new(),
        },
    };
    let hello = Reply::Hello { protocol: PROTOCOL, judge: "j".into(), device: Box::new(card), limits: CASE_LIMITS };
    let script = r#"echo "$0"; read -r line; id=${line#*\"id\":}; id=${id%%,*}
        echo "{\"say\":\"done\",\"id\":$id,\"result\":$$,\"last\":true}""#;
    let arguments = ["-c".to_owned(), script.to_owned(), serde_json::to_string(&hello).unwrap()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = Client::start("/bin/sh".as_ref(), &arguments).await.unwrap();
        let never = CancellationToken::new();
        let mut processes = Vec::new();
        for _ in 0..3 {
            let ask = Ask::Smoke(Box::new(task("rmsnorm", "", "")));
            processes.push(client.ask::<u32>(ask, &mut |_| {}, &never).await.unwrap());
        }
        processes.sort_unstable();
        processes.dedup();
        assert_eq!(processes.len(), 3, "each question had a process of its own");
    });
}
