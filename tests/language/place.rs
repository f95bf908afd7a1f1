//! An agent, a brief and replies to work with.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use warpsmith::agent::language::{Language, Price, Secret, Settings, weighted};
use warpsmith::agent::prompt::Prompt;
use warpsmith::agent::transcript::Transcript;
use warpsmith::agent::{Agent, BoxFuture, Brief, Offer, Proposal, Screen, Screened};
use warpsmith::device::{Ceilings, DeviceCard};
use warpsmith::op::{Dtype, OpSource, Shape, TargetShape};

/// A key that is nowhere else.
pub const KEY: &str = "sk-very-secret-0123456789";
/// How much shorter pauses are.
pub const SCALE: f64 = 0.001;

/// Settings for an endpoint, with pauses a thousand times as short.
pub fn settings(url: &str) -> Settings {
    let mut settings = Settings::new(url, Secret::new(KEY), weighted("model-a").unwrap()).unwrap();
    settings.time_scale = SCALE;
    let price = Price { name: "model-a".into(), input: 1.0, output: 1.0, context: Some(32_768), source: String::new() };
    settings.prices = settings.prices.with(vec![price]);
    settings
}

pub fn agent_with(settings: Settings, transcript: Transcript) -> Language {
    let prompt = Prompt::new(&|_| None).unwrap();
    Language::new(settings, transcript, Box::new(prompt)).unwrap()
}

/// An agent with a request at a time.
pub fn agent(url: &str) -> Language {
    agent_with(settings(url), Transcript::nowhere())
}

/// A brief about a kernel of few points.
pub fn brief(incumbent: &str) -> Brief {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = OpSource::read("rmsnorm", &|path| std::fs::read_to_string(root.join(path)).ok()).unwrap();
    let sizes = [("rows".to_owned(), 64), ("cols".to_owned(), 512)];
    Brief {
        op: "rmsnorm".into(),
        source,
        backend: "cpu".into(),
        file: "kernels/cpu/rmsnorm.c".into(),
        languages: Vec::new(),
        incumbent: incumbent.to_owned(),
        starter: incumbent.to_owned(),
        shapes: vec![TargetShape { shape: Shape(BTreeMap::from(sizes)), dtype: Dtype::F32, calls: 4 }],
        timing: None,
        resources: String::new(),
        vs_user: 1.0,
        against: None,
        share: Some(0.5),
        unwritten: false,
        device: device(),
        margin: 0.01,
        history: Vec::new(),
        seed: 7,
        experiment: 2,
    }
}

fn device() -> DeviceCard {
    let ceilings =
        Ceilings { read_gb_s: 10.0, write_gb_s: 10.0, gflops: BTreeMap::new(), launch_us: 1.0, shown: BTreeMap::new() };
    DeviceCard {
        backend: "cpu".into(),
        name: "made up".into(),
        key: "made-up".into(),
        cores: 2,
        vector_bits: 256,
        l1_bytes: 32768,
        l2_bytes: 1 << 20,
        l3_bytes: 0,
        cold_bytes: 1 << 22,
        facts: BTreeMap::new(),
        ceilings,
    }
}

/// The kernel of the briefs.
pub fn incumbent() -> String {
    crate::kernels::keeps()
}

/// The line that replies change; it stands there once.
pub const LINE: &str = "            sum *= 0.0f;\n";

/// The incumbent, changed as by [`reply`].
pub fn changed(incumbent: &str, mark: &str) -> String {
    incumbent.replace(LINE, &format!("            sum *= 0.0f; /* {mark} */\n"))
}

/// A reply that changes a line.
pub fn reply(mark: &str) -> String {
    format!(
        "<think>what about {mark}?</think>\nHypothesis: because of {mark}\nTechnique: unroll\nPredicted: 1.25\n\
         Description: {mark}\nChange:\n<<<<<<< SEARCH\n{LINE}=======\n            sum *= 0.0f; /* {mark} */\n>>>>>>> REPLACE\n"
    )
}

/// Finds every candidate a little faster.
pub struct Faster;

impl Screen for Faster {
    fn screen<'a>(&'a mut self, texts: Vec<String>) -> BoxFuture<'a, Vec<Option<Screened>>> {
        let all = texts.iter().map(|_| Some(Screened { speedup: 1.05, shapes: vec![1.05] })).collect();
        Box::pin(std::future::ready(all))
    }
}

/// What takes longer than this hangs.
pub async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), future).await.expect("it ends")
}

/// Waits until something is so.
pub async fn until(what: &str, so: impl Fn() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(120), async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("never: {what}"));
}

pub async fn offer(agent: &mut Language, brief: &Brief) -> Offer {
    in_time(agent.propose(brief, &mut Faster)).await.expect("an offer")
}

#[track_caller]
pub fn proposal(offer: Offer) -> Proposal {
    match offer {
        Offer::Proposal(proposal) => proposal,
        other => panic!("no proposal: {other:?}"),
    }
}
