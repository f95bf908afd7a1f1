//! What runs left behind is taken away: what goes, what stays, what can be had again.

use std::path::Path;

use crate::common::{Place, kernels, outcome};
use crate::made::{MADE, NEXT, made, next_run};

fn branches(place: &Place) -> String {
    place.git(&["branch", "--list", "--format=%(refname:short)", "warpsmith/*"])
}

#[test]
fn of_a_run_that_is_not_merged_the_folder_goes_and_branch_and_journal_stay() {
    let place = made();
    let run = MADE;
    let (ledger, refs) = (place.read("results.tsv"), place.git(&["for-each-ref"]));
    let dry = place.warpsmith(&["prune", "--all", "--dry-run"]).ok();
    assert!(
        dry.contains(&format!("{run}: would remove .warpsmith/{run} (")) && dry.contains("would be freed"),
        "{dry}"
    );
    assert!(place.root.join(".warpsmith").join(run).is_dir());
    let out = place.warpsmith(&["prune", run]).ok();
    assert!(out.contains(&format!("{run}: removed .warpsmith/{run} (")), "{out}");
    assert!(out.contains("neither merged nor applied; --branches removes it"), "{out}");
    assert!(!place.root.join(".warpsmith").join(run).exists());
    assert_eq!((place.read("results.tsv"), place.git(&["for-each-ref"])), (ledger, refs));
    // All that looks still works.
    assert!(place.warpsmith(&["status"]).ok().contains("no targets left"));
    place.warpsmith(&["show", "2", "--kernel"]).ok();
    let again = place.warpsmith(&["prune", run]).ok();
    assert!(again.contains("0 B were freed"), "{again}");
}

#[test]
fn what_the_whole_model_said_stays_as_long_as_the_journal() {
    let place = made();
    let run = MADE;
    let (folder, said) = (place.root.join(".warpsmith").join(run), r#"{"refused": [], "slower": []}"#);
    std::fs::write(folder.join("whole.json"), said).unwrap();
    std::fs::create_dir_all(folder.join("package/inner")).unwrap();
    let out = place.warpsmith(&["prune", run]).ok();
    assert!(out.contains(&format!("{run}: removed .warpsmith/{run} (")), "{out}");
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["whole.json"]);
    assert_eq!(std::fs::read_to_string(folder.join("whole.json")).unwrap(), said);
    let again = place.warpsmith(&["prune", run]).ok();
    assert!(again.contains("0 B were freed") && !again.contains("removed .warpsmith"), "{again}");
    place.warpsmith(&["prune", run, "--journal"]).ok();
    assert!(!folder.exists());
}

#[test]
fn a_branch_goes_when_it_is_merged_applied_or_named_and_can_be_had_again() {
    let run = MADE;
    let branch = format!("warpsmith/{run}");
    for (prepare, arguments, why) in [
        (["merge", "-q", branch.as_str()].as_slice(), ["prune", "--all"].as_slice(), "(merged)"),
        (&["branch", "mine", &branch], &["prune", "--all"], "(merged)"),
        (&["status"], &["prune", "--all", "--branches"], "(as asked)"),
    ] {
        let place = made();
        place.git(prepare);
        let tip = place.git(&["rev-parse", &branch]);
        let out = place.warpsmith(arguments).ok();
        assert!(out.contains(&format!("removed the branch {branch} {why}; `git branch {branch} ")), "{out}");
        assert_eq!(branches(&place), "");
        // As it says.
        let command = out.split('`').nth(1).unwrap();
        place.git(&command.split(' ').skip(1).collect::<Vec<_>>());
        assert_eq!(place.git(&["rev-parse", &branch]), tip);
        place.warpsmith(&["log"]).ok();
    }
    let place = made();
    place.warpsmith(&["apply"]).ok();
    place.git(&["branch", "-m", "main", "trunk"]);
    assert!(place.warpsmith(&["prune", "--all"]).ok().contains("(applied)"));
    assert_eq!(branches(&place), "");
}

#[test]
fn a_branch_with_the_users_own_commits_or_checked_out_is_left() {
    let place = made();
    let branch = format!("warpsmith/{}", MADE);
    place.git(&["switch", "-q", &branch]);
    let out = place.warpsmith(&["prune", "--all", "--branches"]).ok();
    assert!(out.contains("it is checked out in"), "{out}");
    place.write("notes.txt", "Mine.\n");
    place.git(&["commit", "-q", "-a", "-m", "Mine"]);
    place.git(&["switch", "-q", "main"]);
    let out = place.warpsmith(&["prune", "--all", "--branches"]).ok();
    assert!(out.contains("it has commits that are not the run's"), "{out}");
    assert_eq!(branches(&place), format!("{branch}\n"));
}

#[test]
fn a_journal_goes_only_when_named_and_its_rows_stay() {
    let place = made();
    let run = MADE;
    let ledger = place.read("results.tsv");
    place.git(&["merge", "-q", &format!("warpsmith/{run}")]);
    let out = place.warpsmith(&["prune", "--all", "--journal"]).ok();
    let experiments = ledger.lines().count() - 1;
    assert!(out.contains(&format!("{run}: removed the journal of {experiments} experiments")), "{out}");
    assert!(out.contains("git gc --prune=now"), "{out}");
    assert_eq!(place.git(&["for-each-ref", "--format=%(refname)"]), "refs/heads/main\n");
    assert_eq!(place.read("results.tsv"), ledger);
    place.git(&["gc", "-q", "--prune=now"]);
    place.git(&["fsck", "--strict"]);
    // The rows stand where they stood.
    place.begin(&NEXT);
    assert_eq!(place.read("results.tsv"), ledger);
    let none = place.warpsmith(&["prune", run]).refusal();
    assert!(none.contains(&format!("nothing left of a run {run}")), "{none}");
}

#[test]
fn a_run_that_can_be_resumed_is_left_alone_unless_forced() {
    let place = made();
    place.begin(&NEXT);
    let run = next_run(&place);
    let said = place.warpsmith(&["prune", &run]).refusal();
    assert!(said.contains("can still be resumed") && said.contains("--force"), "{said}");
    let out = place.warpsmith(&["prune", "--all", "--branches", "--journal"]).ok();
    assert!(out.contains(&format!("left alone: {run}, which can be resumed")), "{out}");
    assert_eq!(branches(&place), format!("warpsmith/{run}\n"));
    assert!(place.root.join(".warpsmith").join(&run).join("pending.json").is_file());
    // Its start is the user's own commit: nothing is lost with the branch.
    place.warpsmith(&["prune", &run, "--force", "--journal"]).ok();
    assert_eq!(place.git(&["for-each-ref", "--format=%(refname)"]), "refs/heads/main\n");
    assert!(!place.root.join(".warpsmith").join(&run).exists());
}

#[test]
fn while_a_run_goes_on_nothing_is_pruned() {
    let place = made();
    let lock = std::fs::File::create(place.root.join(".git/warpsmith.lock")).unwrap();
    lock.lock().unwrap();
    let said = place.warpsmith(&["prune", "--all"]).refusal();
    assert!(said.contains("is using this repository"), "{said}");
    assert!(place.root.join(".warpsmith").join(MADE).is_dir());
}

#[test]
fn the_cache_loses_compiled_kernels_and_keeps_what_was_measured() {
    let place = Place::new(&kernels::keeps());
    let cache = place.root.join(".cache-of-its-own");
    let prune = |more: &[&str]| {
        let mut command = place.command(&[&["prune", "--cache"], more].concat());
        command.env("WARPSMITH_CACHE", &cache);
        outcome(command)
    };
    assert!(prune(&[]).ok().contains("removed 0 files"));
    std::fs::create_dir_all(&cache).unwrap();
    let key = "0123456789abcdef".repeat(4);
    let file = |name: &str| cache.join(name);
    for name in [format!("{key}.so"), format!("{key}.log"), "device-cpu-1.json".into(), "lock-cpu-1".into()] {
        std::fs::write(file(&name), "four").unwrap();
    }
    let there = |path: &Path| path.exists();
    assert!(prune(&["--dry-run"]).ok().contains("would remove 2 files of compiled kernels"));
    assert!(there(&file(&format!("{key}.so"))));
    let lock = std::fs::File::open(file("lock-cpu-1")).unwrap();
    lock.lock().unwrap();
    let said = prune(&[]).refusal();
    assert!(said.contains("is at work with the cache"), "{said}");
    assert!(there(&file(&format!("{key}.so"))));
    drop(lock);
    let out = prune(&[]).ok();
    assert!(out.contains("removed 2 files of compiled kernels") && out.contains("(8 B)"), "{out}");
    assert!(!there(&file(&format!("{key}.so"))) && there(&file("device-cpu-1.json")) && there(&file("lock-cpu-1")));
}

#[test]
fn what_to_prune_must_be_said() {
    let place = made();
    let said = place.warpsmith(&["prune"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("--all") && said.err.contains("RUN"), "{said:?}");
    assert_eq!(place.warpsmith(&["prune", "--all", "--force"]).code, Some(2));
    assert!(place.warpsmith(&["prune", "../../x"]).refusal().contains("nothing left of a run"));
}
