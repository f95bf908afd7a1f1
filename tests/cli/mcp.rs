//! A run driven over the Model Context Protocol, by the SDK's own client.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientRequest, ProgressNotificationParam, Request, ServerResult,
};
use rmcp::service::{NotificationContext, PeerRequestOptions, RunningService};
use rmcp::{ClientHandler, RoleClient, ServiceExt};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use warpsmith::workspace::DeviceLock;

use crate::common::{Place, kernels, slot};
use crate::consistency::check;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(200);

const SERVE: [&str; 6] = ["mcp", "model", "--only", "rmsnorm", "--seed", "1"];

/// Hears where the judge is.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<String>>>);

impl ClientHandler for Listener {
    async fn on_progress(&self, news: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.0.lock().unwrap().push(news.message.unwrap_or_default());
    }
}

/// A client with its server.
struct Client {
    service: RunningService<RoleClient, Listener>,
    heard: Listener,
    server: Child,
    stderr: tempfile::NamedTempFile,
}

impl Client {
    async fn start(place: &Place, arguments: &[&str]) -> Self {
        let stderr = tempfile::NamedTempFile::new().unwrap();
        let mut command = place.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr.reopen().unwrap());
        let mut server = Command::from(command).kill_on_drop(true).spawn().unwrap();
        let pipes = (server.stdout.take().unwrap(), server.stdin.take().unwrap());
        let heard = Listener::default();
        let service = tokio::time::timeout(PATIENCE, heard.clone().serve(pipes)).await.unwrap().unwrap();
        Self { service, heard, server, stderr }
    }

    async fn call(&self, tool: &'static str, arguments: Value) -> CallToolResult {
        let params = CallToolRequestParams::new(tool).with_arguments(arguments.as_object().unwrap().clone());
        let answer = tokio::time::timeout(PATIENCE, self.service.call_tool(params)).await;
        answer.unwrap_or_else(|_| panic!("{tool} has no answer; {}", self.said())).unwrap()
    }

    /// The answer's data, of a call that must succeed.
    async fn data(&self, tool: &'static str, arguments: Value) -> Value {
        let answer = self.call(tool, arguments).await;
        assert_ne!(answer.is_error, Some(true), "{answer:?}; {}", self.said());
        answer.structured_content.unwrap()
    }

    /// The answer's texts.
    async fn texts(&self, tool: &'static str, arguments: Value) -> Vec<String> {
        let answer = self.call(tool, arguments).await;
        assert_ne!(answer.is_error, Some(true), "{answer:?}; {}", self.said());
        answer.content.iter().map(|block| block.as_text().unwrap().text.clone()).collect()
    }

    /// What a call that must be refused is answered.
    async fn refusal(&self, tool: &'static str, arguments: Value) -> String {
        let answer = self.call(tool, arguments).await;
        assert_eq!(answer.is_error, Some(true), "{answer:?}");
        answer.content[0].as_text().unwrap().text.clone()
    }

    async fn evaluate(&self, kernel: &str, description: &str) -> Value {
        self.data("evaluate", candidate(kernel, description)).await
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.stderr.path()).unwrap()
    }

    /// Waits until the judge has been heard to say `text` often enough.
    async fn hears(&self, text: &str, times: usize) {
        let until = std::time::Instant::now() + PATIENCE;
        while self.heard.0.lock().unwrap().iter().filter(|said| said.contains(text)).count() < times {
            assert!(std::time::Instant::now() < until, "{:?}; {}", self.heard.0.lock().unwrap(), self.said());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The client goes; the server follows by itself. What it said of its run.
    async fn leave(mut self) -> String {
        self.service.close().await.unwrap();
        let status = tokio::time::timeout(PATIENCE, self.server.wait()).await.unwrap().unwrap();
        let said = std::fs::read_to_string(self.stderr.path()).unwrap();
        assert_eq!(status.code(), Some(0), "{said}");
        said
    }
}

fn candidate(kernel: &str, description: &str) -> Value {
    json!({"op": "rmsnorm", "kernel": kernel, "technique": "read once", "description": description,
        "hypothesis": "it reads everything\nforty times", "predicted": 5.0})
}

fn with(text: &str, from: &str, to: &str) -> String {
    let changed = text.replacen(from, to, 1);
    assert_ne!(changed, text);
    changed
}

fn fast() -> String {
    with(&kernels::keeps(), "value = 200", "value = 4")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coding_agent_proposes_and_the_server_decides() {
    let place = Place::new(&kernels::keeps()).really_judged();
    let before = place.untouched();
    let client = Client::start(&place, &SERVE).await;
    let info = client.service.peer_info().unwrap();
    assert!(info.instructions.as_ref().unwrap().contains("what is measured decides"), "{info:?}");
    let tools = client.service.list_all_tools().await.unwrap();
    let mut names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    names.sort_unstable();
    assert_eq!(names, ["evaluate", "finish", "history", "incumbent", "profile", "program", "targets"]);
    assert!(tools.iter().all(|tool| tool.description.as_ref().is_some_and(|words| words.len() > 20)));

    let targets = client.data("targets", json!({})).await;
    let rmsnorm = targets["targets"].as_array().unwrap().iter().find(|target| target["op"] == "rmsnorm").unwrap();
    assert!(rmsnorm["share"].as_f64().unwrap() > 0.0 && rmsnorm["standing"] == "waiting", "{targets}");
    assert!(rmsnorm["ceiling"].as_f64().unwrap() > 1.0 && targets["whole_us"].as_f64().unwrap() > 0.0, "{targets}");
    let profile = client.texts("profile", json!({})).await;
    assert!(profile[0].contains("rmsnorm"), "{profile:?}");
    let page = client.texts("program", json!({})).await;
    assert!(page[0].contains("- The rules"), "{page:?}");
    let rules = client.texts("program", json!({"section": "The rules"})).await;
    assert!(rules[0].starts_with("## The rules\n"), "{rules:?}");
    let incumbent = client.texts("incumbent", json!({"op": "rmsnorm", "with_reference": true})).await;
    assert!(incumbent[0].contains("\"judged\": false") && incumbent[1] == kernels::keeps(), "{incumbent:?}");
    assert!(incumbent[2].contains("tolerance") && incumbent[3].contains("ws_"), "{incumbent:?}");

    // A good one.
    let keep = client.evaluate(&fast(), "four passes\tinstead of forty").await;
    assert_eq!((keep["status"].as_str(), keep["kept"].as_bool()), (Some("keep"), Some(true)), "{keep}");
    assert!(keep["low"].as_f64().unwrap() > 1.5 && keep["vs_user"].as_f64().unwrap() > 1.5, "{keep}");
    assert!(keep["shapes"][0]["roofline_us"].as_f64().unwrap() > 0.0, "{keep}");
    client.hears("#2 four passes instead of forty", 1).await;
    // One that leaves out the work at the shapes that are timed, and one that is no kernel.
    let timed = incumbent_shape(&client.texts("incumbent", json!({"op": "rmsnorm"})).await[0]);
    let cheat = client
        .evaluate(
            &with(&fast(), "float sum = 0;", &format!("if (cols == {timed}) continue;\nfloat sum = 0;")),
            "nothing",
        )
        .await;
    assert_eq!((cheat["status"].as_str(), cheat["kept"].as_bool()), (Some("reject"), Some(false)), "{cheat}");
    assert!(cheat["failed"][0]["failure"].as_str().unwrap().len() > 10, "{cheat}");
    let broken = client.evaluate(&with(&fast(), "float sum = 0;", "float sum = ;"), "a slip").await;
    assert_eq!((broken["status"].as_str(), broken["stage"].as_str()), (Some("error"), Some("compile")), "{broken}");
    assert!(broken["why"].as_str().unwrap().contains("expected expression"), "{broken}");
    let not_a_kernel = client.evaluate("$(touch gone)", "../../x; `touch gone`").await;
    assert_eq!(not_a_kernel["status"], "error", "{not_a_kernel}");

    let said =
        client.refusal("evaluate", json!({"op": "../x", "kernel": "", "technique": "", "description": ""})).await;
    assert!(said.contains("no target of this run") && said.contains("rmsnorm"), "{said}");
    let mut unwanted = candidate(&fast(), "another");
    unwanted["op"] = "fused_mlp".into();
    let said = client.refusal("evaluate", unwanted).await;
    assert!(said.contains("fused_mlp is not worked on in this run: not asked for"), "{said}");
    let said = client.refusal("incumbent", json!({"op": "matmuls"})).await;
    assert!(said.contains("rmsnorm"), "{said}");
    let history = client.data("history", json!({"op": "rmsnorm", "latest": 4})).await;
    let rows = history["rows"].as_array().unwrap();
    let statuses: Vec<&str> = rows.iter().map(|row| row["status"].as_str().unwrap()).collect();
    assert_eq!((history["experiments"].as_u64(), statuses), (Some(5), vec!["keep", "reject", "error", "error"]));
    assert_eq!(
        (rows[0]["technique"].as_str(), rows[0]["commit"].as_str()),
        (Some("read-once"), keep["commit"].as_str())
    );
    let incumbent = client.texts("incumbent", json!({"op": "rmsnorm"})).await;
    assert!(incumbent[0].contains("\"judged\": true") && incumbent[1] == fast(), "{incumbent:?}");

    // The agent goes, and another one comes.
    let said = client.leave().await;
    let run = place.only_run();
    assert!(said.contains(&format!("go on with   warpsmith mcp model --resume {run}\n")), "{said}");
    let status = place.warpsmith(&["status"]).ok();
    assert!(status.contains(&format!("go on with   warpsmith mcp model --resume {run}")), "{status}");
    let said = place.warpsmith(&["run", "model", "--resume"]).refusal();
    assert!(said.contains(&format!("warpsmith mcp model --resume {run}")), "{said}");
    // Three in a row were not kept, and the user wants no more than four.
    let client = Client::start(&place, &["mcp", "model", "--resume", "--max-reverts", "4"]).await;
    let slower = client.evaluate(&format!("{}\n// again\n", kernels::keeps()), "back again").await;
    assert_eq!((slower["status"].as_str(), slower["experiment"].as_u64()), (Some("revert"), Some(6)), "{slower}");
    let done = "rmsnorm is done: 4 reverts in a row; no other operation is left, and `finish` ends the run";
    assert_eq!((slower["done"].as_str(), &keep["done"]), (Some(done), &Value::Null), "{slower}");
    assert_eq!(client.refusal("evaluate", candidate(&fast(), "one more")).await, done);
    let targets = client.data("targets", json!({})).await;
    assert!(targets.to_string().contains("\"left: 4 reverts in a row\""), "{targets}");
    let summary = client.texts("finish", json!({})).await;
    assert!(
        summary[0].contains(&format!("run {run}: 6 experiments")) && summary[0].contains("measured"),
        "{summary:?}"
    );
    let said = client.refusal("evaluate", candidate(&fast(), "too late")).await;
    assert!(said.contains("has ended"), "{said}");
    client.leave().await;

    assert_eq!(place.git(&["show", &format!("warpsmith/{run}:./kernels/cpu/rmsnorm.c")]), fast());
    let log = place.git(&["log", "-1", "--format=%s%n%b", &format!("warpsmith/{run}")]);
    assert!(log.starts_with("rmsnorm: four passes instead of forty ("), "{log}");
    assert_eq!(place.untouched(), before);
    assert!(!place.root.join("gone").exists() && !place.root.join("x").exists());
    check(&place);
}

/// The columns of the first shape that is timed.
fn incumbent_shape(evaluation: &str) -> i64 {
    let evaluation: Value = serde_json::from_str(evaluation).unwrap();
    let shape = evaluation["shapes"][0]["shape"].as_str().unwrap();
    shape.split_whitespace().find_map(|pair| pair.strip_prefix("cols=")?.parse().ok()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_can_be_taken_back_and_a_client_that_dies_leaves_a_run_to_go_on_with() {
    let place = Place::new(&kernels::keeps());
    let client = Client::start(&place, &SERVE).await;
    let first = client.evaluate(&format!("{}\n// the same\n", kernels::keeps()), "a comment").await;
    assert_eq!(first["status"], "revert", "{first}");
    let state: Value = serde_json::from_str(&place.warpsmith(&["status", "--json"]).ok()).unwrap();
    // While the device is somebody else's there is no verdict.
    let hold = || {
        DeviceLock::take(&slot::cache(), state["device_key"].as_str().unwrap(), "a test", |_| true).unwrap().unwrap()
    };
    let ask = |kernel: &str| {
        let arguments = candidate(kernel, "a try").as_object().unwrap().clone();
        ClientRequest::CallToolRequest(Request::new(CallToolRequestParams::new("evaluate").with_arguments(arguments)))
    };
    let options = PeerRequestOptions::no_options;
    let device = hold();
    let asked = client.service.send_cancellable_request(ask(&fast()), options()).await.unwrap();
    client.hears("#3 a try", 1).await;
    asked.cancel(Some("another idea".into())).await.unwrap();
    // The next one has its turn only after that.
    let next = client.service.send_cancellable_request(ask(&fast()), options()).await.unwrap();
    client.hears("#3 a try", 2).await;
    drop(device);
    let answer = tokio::time::timeout(PATIENCE, next.await_response()).await.unwrap().unwrap();
    let ServerResult::CallToolResult(answer) = answer else { panic!("{answer:?}") };
    let keep = answer.structured_content.unwrap();
    assert_eq!((keep["status"].as_str(), keep["experiment"].as_u64()), (Some("keep"), Some(3)), "{keep}");

    // The client dies in the middle of a judging.
    let device = hold();
    let _asked = client.service.send_cancellable_request(ask(&format!("{}\n// more\n", fast())), options()).await;
    client.hears("#4 a try", 1).await;
    let Client { service, mut server, stderr, .. } = client;
    drop(service);
    let status = tokio::time::timeout(PATIENCE, server.wait()).await.unwrap().unwrap();
    drop(device);
    assert_eq!(status.code(), Some(0), "{}", std::fs::read_to_string(stderr.path()).unwrap());
    let status = place.warpsmith(&["status"]).ok();
    assert!(status.contains("3 experiments") && status.contains("go on with   warpsmith mcp model"), "{status}");
    let client = Client::start(&place, &["mcp", "model", "--resume", "--budget", "1ms"]).await;
    let incumbent = client.texts("incumbent", json!({"op": "rmsnorm"})).await;
    assert_eq!(incumbent[1], fast());
    let said = client.refusal("evaluate", candidate(&kernels::keeps(), "too late")).await;
    assert!(said.starts_with("nothing more is judged: the run's budget of 1 ms is spent; `finish` compares"), "{said}");
    client.texts("finish", json!({})).await;
    client.leave().await;
    assert!(place.warpsmith(&["status"]).ok().contains("ended because the run's budget of 1 ms is spent"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_alone_is_served_and_nothing_is_said_of_a_model() {
    const KERNEL: &str = "kernels/cpu/rmsnorm.c";
    let place = Place::new(&kernels::keeps());
    let serve = ["mcp", KERNEL, "--shape", "rows=16,cols=512", "--seed", "1", "--speedup", "1.2"];
    let client = Client::start(&place, &serve).await;
    let targets = client.data("targets", json!({})).await;
    assert_eq!(
        (&targets["model"], &targets["pass"], &targets["whole_us"]),
        (&json!(KERNEL), &json!("cols=512 rows=16 f32"), &Value::Null)
    );
    let only: Vec<&Value> = targets["targets"].as_array().unwrap().iter().map(|target| &target["op"]).collect();
    assert_eq!(only, ["rmsnorm"]);
    let said = client.refusal("profile", json!({})).await;
    assert!(said.contains("kernels/cpu/rmsnorm.c alone"), "{said}");

    // One that leaves out the work at the shape that is timed, and one that does it quickly.
    let cheat = with(&fast(), "float sum = 0;", "if (cols == 512) continue;\nfloat sum = 0;");
    let cheat = client.evaluate(&cheat, "nothing").await;
    assert_eq!((cheat["status"].as_str(), cheat["kept"].as_bool()), (Some("reject"), Some(false)), "{cheat}");
    assert_eq!((&cheat["experiment"], &cheat["done"]), (&json!(2), &Value::Null), "{cheat}");
    let keep = client.evaluate(&fast(), "four passes instead of forty").await;
    assert_eq!((keep["status"].as_str(), keep["kept"].as_bool()), (Some("keep"), Some(true)), "{keep}");
    let done = keep["done"].as_str().unwrap();
    assert!(done.starts_with("rmsnorm is done: ") && done.ends_with("(limit 1.2x); `finish` ends the run"), "{done}");

    let summary = client.texts("finish", json!({})).await.remove(0);
    let run = place.only_run();
    assert!(summary.starts_with(&format!("run {run}: 3 experiments")), "{summary}");
    assert!(summary.contains("kernels/cpu/rmsnorm.c at cols=512 rows=16 f32: "), "{summary}");
    let heard = client.heard.0.lock().unwrap().concat();
    let said = client.leave().await;
    for text in [&summary, &said, &heard] {
        assert!(!text.contains("model") && !text.contains("a pass"), "{text}");
    }
    assert_eq!(place.git(&["show", &format!("warpsmith/{run}:./{KERNEL}")]), fast());
    check(&place);
}

#[test]
fn what_cannot_be_served_is_said_before_any_work() {
    let place = Place::new(&kernels::keeps());
    let said = place.warpsmith(&["mcp", "nothing"]).refusal();
    assert!(said.contains("nothing"), "{said}");
    let said = place.warpsmith(&["mcp", "model", "--only", "conv"]).refusal();
    assert!(said.contains("`conv` is no operation of this model"), "{said}");
    let said = place.warpsmith(&["mcp", "model", "--resume"]).refusal();
    assert!(said.contains("there is no run to resume here"), "{said}");
}
