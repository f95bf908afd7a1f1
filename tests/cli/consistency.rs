//! Whether journal, ledger, branch and seeds of a run tell the same story.

use std::collections::BTreeSet;

use serde_json::Value;
use warpsmith::rng::Stream;

use crate::common::Place;

/// The experiments of a run as `log --json` has them.
pub fn journal(place: &Place, run: &str) -> Vec<Value> {
    let out = place.warpsmith(&["log", "--json", "--run", run]).ok();
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whether a seed is that of a trial: the number's own, or where it had to be judged once more, one that follows from it.
fn belongs(seeds: &Stream, trial: u64, seed: u64) -> bool {
    let own = seeds.bits(trial);
    let mut again = own;
    let mut newer = || {
        again = Stream::new(again, "against the new incumbent").bits(0);
        again
    };
    seed == own || seed == Stream::new(own, "once more").bits(0) || (0..8).any(|_| seed == newer())
}

/// Every run here has contiguous numbers, each experiment once with a seed that belongs to it, a ledger that says
/// what the journal says, a branch that ends at what was kept last, and nothing left lying about.
#[track_caller]
pub fn check(place: &Place) {
    let refs = place.git(&["for-each-ref", "--format=%(refname)", "refs/warpsmith"]);
    let mut rows = Vec::new();
    for run in refs.lines().map(|name| name.split('/').nth(2).unwrap()) {
        let journal = journal(place, run);
        let numbers: Vec<_> = journal.iter().map(|entry| entry["experiment"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
        let state: Value = serde_json::from_str(&place.warpsmith(&["status", "--json", "--run", run]).ok()).unwrap();
        assert_eq!(state["next_experiment"].as_u64().unwrap(), numbers.len() as u64 + 1);
        let seeds = Stream::new(state["seed"].as_u64().unwrap(), "trial");
        let mut used = BTreeSet::new();
        for entry in &journal {
            let (trial, seed) = (&entry["trial"], entry["evaluation"]["seed"].as_u64().unwrap());
            assert_eq!(trial["seed"].as_u64(), Some(seed), "{entry}");
            assert!(belongs(&seeds, trial["id"].as_u64().unwrap(), seed) && used.insert(seed), "{entry}");
        }
        let kept: Vec<_> = journal.iter().filter(|entry| entry["kept"] == true).collect();
        let tip = place.git(&["rev-parse", &format!("warpsmith/{run}")]);
        let last =
            kept.last().map_or(place.git(&["rev-parse", "main"]), |entry| entry["commit"].as_str().unwrap().to_owned());
        assert_eq!(tip.trim(), last.trim());
        let commits = place.git(&["rev-list", "--count", &format!("main..warpsmith/{run}")]);
        assert_eq!(commits.trim(), kept.len().to_string());
        let tried: Vec<_> = journal
            .iter()
            .map(|entry| [&entry["commit"], &entry["trial"]["file"]].map(|text| text.as_str().unwrap()))
            .map(|[commit, file]| place.git(&["show", &format!("{commit}:{file}")]))
            .collect();
        for (at, text) in tried.iter().enumerate() {
            let before = tried[..at].iter().position(|earlier| earlier == text);
            let verdict = |at: usize| &journal[at]["evaluation"]["verdict"];
            assert!(
                before.is_none(),
                "experiment {} was made before: {}, {:?}",
                at + 1,
                verdict(at),
                before.map(verdict)
            );
        }
        rows.extend(place.warpsmith(&["log", "--run", run]).ok().lines().skip(1).map(str::to_owned));
        let folder = place.root.join(".warpsmith").join(run);
        assert!(!folder.join("pending.json").exists() || state["ended"].is_null());
    }
    let ledger: Vec<_> = place.read("results.tsv").lines().skip(1).map(str::trim_end).map(str::to_owned).collect();
    assert_eq!(ledger, rows.iter().map(|row| row.trim_end()).collect::<Vec<_>>());
    let (ok, out, err) = place.try_git(&["fsck", "--strict", "--no-dangling"]);
    assert!(ok && out.is_empty(), "{out}{err}");
    assert_eq!(place.git(&["status", "--porcelain"]), "?? results.tsv\n");
}
