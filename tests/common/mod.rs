//! Workspaces of a very small model, and the program run in them as a user runs it.
//!
//! The model has one layer, the operations have few and small cases, and the kernels have few points. What judges and times
//! is the scripted worker, so that a run takes a fraction of a second and ends the same on every machine; where a test says
//! [`Place::really_judged`], it is the real one. Everything else is the real thing: the agents, the loop, git.
#![allow(clippy::unwrap_used, dead_code)]

pub mod endpoint;
pub mod kernels;
pub mod processes;
pub mod slot;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::{NamedTempFile, TempDir};
use warpsmith::history::{Row, parse_ledger};

/// A Llama of one layer.
pub const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 128, "rms_norm_eps": 1e-5}"#;

/// A GPT-2 of one layer.
pub const GPT2: &str = r#"{"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 1, "n_head": 2,
"n_positions": 32, "vocab_size": 128}"#;

/// A BERT of one layer, with its pooler.
pub const BERT: &str = r#"{"architectures": ["BertModel"], "hidden_size": 64, "intermediate_size": 128,
"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 128, "max_position_embeddings": 32}"#;

/// A run over one target.
pub const RUN: [&str; 6] = ["run", "model", "--only", "rmsnorm", "--seed", "1"];

/// What the program said, and how it ended.
#[derive(Debug)]
pub struct Outcome {
    /// The exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Outcome {
    /// Standard output of a command that must have succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// The one sentence of a command that must have refused: exit code 2, one line, no panic.
    #[track_caller]
    pub fn refusal(self) -> String {
        assert_eq!(self.code, Some(2), "{self:?}");
        assert!(!self.err.contains("panicked"), "{self:?}");
        assert!(self.err.starts_with("error: "), "{self:?}");
        self.err
    }
}

/// A folder with a workspace, normally in a repository of a user's.
pub struct Place {
    /// Removed with it; none where the place is for several tests, which never drop it.
    folder: Option<TempDir>,
    /// The workspace's root, below the folder where a test wants that.
    pub root: PathBuf,
    worker: Worker,
}

/// Who judges.
#[derive(Clone)]
enum Worker {
    /// The program itself.
    Real,
    /// The scripted worker, by `kernels.toml`.
    Scripted,
    /// The same by rules of the test's own, which come before those.
    OfItsOwn(Arc<NamedTempFile>),
}

/// The rules that all kernels of `kernels.rs` have.
const SCRIPT: &str = include_str!("kernels.toml");

impl Worker {
    /// The command that starts it, if it is not the program.
    fn command(&self) -> Option<String> {
        let of_all = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/kernels.toml"));
        let script = match self {
            Self::Real => return None,
            Self::Scripted => of_all,
            Self::OfItsOwn(file) => file.path(),
        };
        let (worker, program) = (env!("CARGO_BIN_EXE_scripted_worker"), env!("CARGO_BIN_EXE_warpsmith"));
        Some(format!("'{worker}' '{program}' '{}'", script.display()))
    }
}

impl Place {
    /// A folder with nothing in it.
    pub fn empty() -> Self {
        let folder = tempfile::Builder::new().prefix("warpsmith-").tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        Self { folder: Some(folder), root, worker: Worker::Scripted }
    }

    /// Judged and timed by the real worker: for the few tests that go the whole way.
    pub fn really_judged(self) -> Self {
        Self { worker: Worker::Real, ..self }
    }

    /// Judged by these rules before those of `kernels.toml`.
    pub fn judged_by(self, rules: &str) -> Self {
        let file = NamedTempFile::new().unwrap();
        fs::write(file.path(), format!("{rules}\n{SCRIPT}")).unwrap();
        Self { worker: Worker::OfItsOwn(Arc::new(file)), ..self }
    }

    /// A user's repository for several tests: it stays until the next time they run.
    pub fn shared(name: &str, rmsnorm: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let place = Self { folder: None, root: folder.canonicalize().unwrap(), worker: Worker::Scripted };
        place.fill(rmsnorm);
        place.commit_all();
        place
    }

    /// The workspace's files with this rmsnorm, and no repository.
    pub fn without_repository(rmsnorm: &str) -> Self {
        let place = Self::empty();
        place.fill(rmsnorm);
        place
    }

    /// A user's repository with one commit of everything.
    pub fn new(rmsnorm: &str) -> Self {
        let place = Self::without_repository(rmsnorm);
        place.commit_all();
        place
    }

    /// Writes the workspace's files.
    pub fn fill(&self, rmsnorm: &str) {
        self.write("warpsmith.toml", "[run]\nseq = 16\nexamination = \"1s\"\n");
        self.write("model/config.json", CONFIG);
        self.write("notes.txt", "The user's own.\n");
        self.write("kernels/cpu/rmsnorm.c", rmsnorm);
        self.write("kernels/cpu/fused_mlp.c", &kernels::with_one_point("fused_mlp"));
        self.write("reference/rmsnorm.toml", &kernels::few_cases("rmsnorm", "rows = 3\ncols = 31"));
        self.write("reference/fused_mlp.toml", &kernels::few_cases("fused_mlp", "B = 3\nD = 5\nH = 7"));
    }

    /// Makes a repository at the root and commits everything.
    pub fn commit_all(&self) {
        self.git(&["init", "-q", "-b", "main"]);
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", "A model"]);
    }

    /// The same files at another place: a run that was interrupted here can be resumed there.
    pub fn copy(&self) -> Self {
        let place = Self { worker: self.worker.clone(), ..Self::empty() };
        let done = Command::new("cp").arg("-a").arg(self.root.join(".")).arg(&place.root).status().unwrap();
        assert!(done.success());
        place
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[track_caller]
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The program in this workspace.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warpsmith"));
        command.args(arguments).current_dir(&self.root);
        alone(&mut command, &self.root);
        if let Some(worker) = self.worker.command() {
            command.env("WARPSMITH_WORKER", worker);
        }
        command
    }

    /// The command that starts the worker, where that is not the program.
    pub fn worker(&self) -> Option<String> {
        self.worker.command()
    }

    /// Runs the program to its end.
    pub fn warpsmith(&self, arguments: &[&str]) -> Outcome {
        outcome(self.command(arguments))
    }

    /// `warpsmith run model --only rmsnorm` with more arguments.
    pub fn run(&self, more: &[&str]) -> Outcome {
        self.warpsmith(&[&RUN, more].concat())
    }

    /// Begins a run, which is killed before it has judged anything: there is a branch, a journal and a ledger.
    #[track_caller]
    pub fn begin(&self, arguments: &[&str]) -> String {
        let mut command = self.command(arguments);
        command.env("WARPSMITH_FAILPOINT", "pending:1");
        let ended = outcome(command);
        assert_eq!(ended.code, None, "{ended:?}");
        ended.out
    }

    /// Runs git, which must succeed.
    #[track_caller]
    pub fn git(&self, arguments: &[&str]) -> String {
        let (ok, out, err) = self.try_git(arguments);
        assert!(ok, "git {arguments:?}: {err}");
        out
    }

    /// Runs git: whether it succeeded, what it printed, what it complained about.
    pub fn try_git(&self, arguments: &[&str]) -> (bool, String, String) {
        let mut command = Command::new("git");
        command.arg("-C").arg(&self.root).args(["-c", "user.name=User", "-c", "user.email=user@example.com"]);
        command.args(arguments);
        alone(&mut command, &self.root);
        let ended = outcome(command);
        (ended.code == Some(0), ended.out, ended.err)
    }

    /// The rows of `results.tsv`.
    pub fn ledger(&self) -> Vec<Row> {
        // Other lines may be anything.
        parse_ledger(&String::from_utf8_lossy(&fs::read(self.root.join("results.tsv")).unwrap()))
    }

    /// Statuses in `results.tsv`, in order.
    pub fn statuses(&self) -> Vec<String> {
        self.ledger().into_iter().map(|row| row.status).collect()
    }

    /// The only run there is.
    #[track_caller]
    pub fn only_run(&self) -> String {
        let refs = self.git(&["for-each-ref", "--format=%(refname)", "refs/warpsmith"]);
        let runs: Vec<_> = refs.lines().collect();
        assert_eq!(runs.len(), 1, "{refs}");
        runs[0].split('/').nth(2).unwrap().to_owned()
    }

    /// Whatever of the user's a run must not touch.
    pub fn untouched(&self) -> String {
        let refs = self.git(&["for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/main", "refs/tags"]);
        let index = self.git(&["ls-files", "--stage"]);
        let files: Vec<String> = ["notes.txt", "kernels/cpu/rmsnorm.c", "model/config.json", "warpsmith.toml"]
            .map(|file| self.read(file))
            .into();
        format!("{}\n{refs}\n{index}\n{}", self.try_git(&["symbolic-ref", "HEAD"]).1, files.join("\n"))
    }
}

/// Keeps the surroundings of the tests, a user's git settings above all, away from a command.
pub fn alone(command: &mut Command, home: &Path) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GIT_")) {
        command.env_remove(name);
    }
    command
        .env("HOME", home.join(".no-home"))
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("OPENAI_API_KEY")
        .env_remove("OPENAI_BASE_URL")
        .env_remove("WARPSMITH_FAILPOINT")
        .env_remove("WARPSMITH_WORKER")
        // The kernels of these tests are in C, also where there is a GPU.
        .env("WARPSMITH_BACKEND", "cpu")
        .env("LC_ALL", "C")
        .env("WARPSMITH_CACHE", slot::cache());
}

pub fn outcome(command: Command) -> Outcome {
    // Longer than any test takes even on a busy machine: a hang is a failure, not an endless wait.
    let done = assert_cmd::Command::from_std(command).timeout(std::time::Duration::from_secs(300)).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Outcome { code: done.status.code(), out: text(done.stdout), err: text(done.stderr) }
}
