#![allow(clippy::unwrap_used)]
use std::path::Path;

use super::*;
use crate::agent::{Screened, transcript};
use crate::device::samples;
use crate::evaluation::{Stage, Verdict};
use crate::op::{Dtype, OpSource, Shape, TargetShape};
use crate::workspace::{LOG_FILE, WORKERS_FILE, embedded};

const GIVEN: &str = include_str!("../../../kernels/cpu/rmsnorm.c");

struct NoScreen;

impl Screen for NoScreen {
    fn screen<'a>(&'a mut self, texts: Vec<String>) -> BoxFuture<'a, Vec<Option<Screened>>> {
        Box::pin(async move { vec![None; texts.len()] })
    }
}

fn brief() -> Brief {
    let read = |path: &str| embedded(path).map(str::to_owned);
    let shape = Shape::from([("rows", 8), ("cols", 64)]);
    Brief {
        op: "rmsnorm".into(),
        source: OpSource::read("rmsnorm", &read).unwrap(),
        backend: "cpu".into(),
        file: "kernels/cpu/rmsnorm.c".into(),
        languages: Vec::new(),
        incumbent: GIVEN.into(),
        unwritten: false,
        starter: GIVEN.into(),
        shapes: vec![TargetShape { shape, dtype: Dtype::F32, calls: 1 }],
        timing: None,
        resources: String::new(),
        vs_user: 1.0,
        against: None,
        share: Some(0.3),
        device: samples::card(),
        margin: 0.01,
        history: Vec::new(),
        seed: 1,
        experiment: 2,
    }
}

fn agent(folder: &Path, script: &str) -> Command {
    let desk = Desk {
        argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
        limit: Duration::from_secs(60),
        folder: folder.join("run"),
        candidate: folder.join("run/kernels/cpu/rmsnorm.c"),
        transcript: Transcript::open(&folder.join("run")).unwrap(),
    };
    Command::new(desk, Prompt::new(&|path| embedded(path).map(str::to_owned)).unwrap())
}

async fn proposal(agent: &mut Command) -> Proposal {
    match agent.propose(&brief(), &mut NoScreen).await.unwrap() {
        Offer::Proposal(proposal) => proposal,
        other => panic!("{other:?}; {:?}", agent.usage().troubles),
    }
}

const EDIT: &str = "echo '// faster' >> kernels/cpu/rmsnorm.c";

#[tokio::test]
async fn what_the_program_leaves_in_the_file_is_proposed_with_what_it_says() {
    let temp = tempfile::tempdir().unwrap();
    let says = "echo 'Technique: read-once'; echo 'Predicted: 1.2x'; echo 'Description: one pass'";
    let mut agent = agent(temp.path(), &format!("{EDIT}; {says}"));
    let proposal = proposal(&mut agent).await;
    assert!(proposal.text.starts_with(GIVEN) && proposal.text.ends_with("// faster\n"));
    assert_eq!((proposal.technique.as_str(), proposal.description.as_str()), ("read-once", "one pass"));
    assert_eq!((proposal.predicted, proposal.ticket, proposal.repairs), (Some(1.2), 1, 0));
    let usage = agent.usage();
    assert!(usage.requests == 1 && usage.troubles.is_empty(), "{usage:?}");
    let said = transcript::read(&temp.path().join("run").join(transcript::FILE)).unwrap();
    assert!(matches!(said[0].said, Said::Asked { .. }) && matches!(said[1].said, Said::Answered { failed: false, .. }));
}

#[tokio::test]
async fn the_prompt_comes_as_a_file_and_on_standard_input_and_names_the_file() {
    let temp = tempfile::tempdir().unwrap();
    let script = format!(
        "cat > stdin; cmp stdin prompt.md && cmp stdin \"$WARPSMITH_PROMPT\" && grep -q 'kernels/cpu/rmsnorm.c' stdin && cmp incumbent kernels/cpu/rmsnorm.c && rm stdin && {EDIT}"
    );
    let mut agent = agent(temp.path(), &script);
    assert!(proposal(&mut agent).await.text.ends_with("// faster\n"));
}

#[tokio::test]
async fn everything_else_in_the_folder_is_put_back_and_reported() {
    let temp = tempfile::tempdir().unwrap();
    let run = temp.path().join("run");
    std::fs::create_dir_all(run.join("deep")).unwrap();
    for name in ["pending.json", "deep/kept", "gone"] {
        std::fs::write(run.join(name), name).unwrap();
    }
    let script = format!("{EDIT}; echo x > pending.json; rm gone; rm -r deep; echo y > new; ln -s /etc/passwd deep");
    let mut agent = agent(temp.path(), &script);
    proposal(&mut agent).await;
    for name in ["pending.json", "deep/kept", "gone"] {
        assert_eq!(std::fs::read_to_string(run.join(name)).unwrap(), name);
    }
    assert!(!run.join("new").exists());
    let troubles = agent.usage().troubles.join("\n");
    for name in ["pending.json", "deep", "gone", "new"] {
        assert!(troubles.contains(name), "{troubles}");
    }
}

#[tokio::test]
async fn what_the_run_writes_meanwhile_stays_written() {
    let temp = tempfile::tempdir().unwrap();
    let run = temp.path().join("run");
    std::fs::create_dir_all(&run).unwrap();
    for name in [LOG_FILE, WORKERS_FILE] {
        std::fs::write(run.join(name), "before\n").unwrap();
    }
    let mut agent =
        agent(temp.path(), &format!("{EDIT}; for it in {LOG_FILE} {WORKERS_FILE}; do echo after >> $it; done"));
    proposal(&mut agent).await;
    for name in [LOG_FILE, WORKERS_FILE] {
        assert_eq!(std::fs::read_to_string(run.join(name)).unwrap(), "before\nafter\n");
    }
    assert!(agent.usage().troubles.is_empty());
}

#[tokio::test]
async fn git_finds_no_repository_around_the_folder() {
    let temp = tempfile::tempdir().unwrap();
    git2::Repository::init(temp.path()).unwrap();
    let mut agent = agent(temp.path(), &format!("git rev-parse --git-dir && exit 0; {EDIT}"));
    assert!(proposal(&mut agent).await.text.ends_with("// faster\n"));
}

#[tokio::test]
async fn a_program_over_its_limit_is_ended_with_its_children() {
    let temp = tempfile::tempdir().unwrap();
    let mut agent = agent(temp.path(), "sleep 1000 & sleep 1000");
    agent.desk.limit = Duration::from_millis(200);
    let offer = agent.propose(&brief(), &mut NoScreen).await.unwrap();
    let Offer::Exhausted { why } = offer else { panic!("{offer:?}") };
    assert!(why.contains("did not end within 0.2 s"), "{why}");
}

#[tokio::test]
async fn what_it_leaves_running_is_ended_with_it() {
    let temp = tempfile::tempdir().unwrap();
    let mut agent = agent(temp.path(), &format!("{EDIT}; (sleep 1000; echo late >> kernels/cpu/rmsnorm.c) &"));
    assert!(proposal(&mut agent).await.text.ends_with("// faster\n"));
}

#[tokio::test]
async fn a_program_that_changes_nothing_three_times_has_nothing_left() {
    let temp = tempfile::tempdir().unwrap();
    let mut agent = agent(temp.path(), "echo no idea");
    let offer = agent.propose(&brief(), &mut NoScreen).await.unwrap();
    let Offer::Exhausted { why } = offer else { panic!("{offer:?}") };
    assert!(why.contains("changed nothing") && why.contains("no idea"), "{why}");
    assert_eq!(agent.usage().requests, 3);
}

#[tokio::test]
async fn a_program_can_say_that_nothing_is_left() {
    let temp = tempfile::tempdir().unwrap();
    let mut agent = agent(temp.path(), "echo 'Hypothesis: at the roofline'; echo 'Change: none'");
    let offer = agent.propose(&brief(), &mut NoScreen).await.unwrap();
    assert_eq!(offer, Offer::Exhausted { why: "at the roofline".into() });
}

#[tokio::test]
async fn a_link_in_the_files_place_is_neither_read_nor_followed() {
    let temp = tempfile::tempdir().unwrap();
    let secret = temp.path().join("secret");
    std::fs::write(&secret, "hush").unwrap();
    let mut agent = agent(temp.path(), "rm kernels/cpu/rmsnorm.c; ln -s ../../../secret kernels/cpu/rmsnorm.c");
    let offer = agent.propose(&brief(), &mut NoScreen).await.unwrap();
    let Offer::Exhausted { why } = offer else { panic!("{offer:?}") };
    assert!(why.contains("no plain file"), "{why}");
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "hush");
}

#[tokio::test]
async fn a_failure_goes_back_to_the_program_with_the_judges_words() {
    let temp = tempfile::tempdir().unwrap();
    let script = "if grep -q 'undeclared zeal' prompt.md; then sed -i 's/broken/mended/' kernels/cpu/rmsnorm.c; \
                  else echo '// broken' >> kernels/cpu/rmsnorm.c; fi";
    let mut agent = agent(temp.path(), script);
    let first = proposal(&mut agent).await;
    let verdict = Verdict::Error { stage: Stage::Compile, why: "undeclared zeal".into() };
    assert!(agent.mend(&Failed { proposal: first.clone(), verdict }));
    let second = proposal(&mut agent).await;
    assert!(second.text.ends_with("// mended\n"));
    assert_eq!((second.ticket, second.repairs), (first.ticket, 1));
    assert_eq!(proposal(&mut agent).await.ticket, 2);
}

#[tokio::test]
async fn a_command_that_is_not_there_is_an_error_that_names_it() {
    let temp = tempfile::tempdir().unwrap();
    let mut agent = agent(temp.path(), "");
    agent.desk.argv = vec!["no-such-agent".into()];
    let error = agent.propose(&brief(), &mut NoScreen).await.unwrap_err().to_string();
    assert!(error.contains("no-such-agent cannot be started"), "{error}");
}
