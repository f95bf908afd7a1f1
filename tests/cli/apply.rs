//! A run's winners on the user's branch: what is committed, what is left alone, what is refused.

use std::os::unix::fs::PermissionsExt;

use warpsmith::history::APPLY_FAILPOINTS;

use warpsmith::engine::stop::StopReason;

use crate::common::{Outcome, Place, kernels, outcome};
use crate::made::{FASTER, KERNEL, MADE, NEXT, made, next_run, winner, write_run};

/// The refusal is one sentence with all of these in it, and nothing was changed.
#[track_caller]
fn refused(place: &Place, arguments: &[&str], parts: &[&str]) {
    let before = seen(place);
    let said = place.warpsmith(&[&["apply"], arguments].concat()).refusal();
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    for part in parts {
        assert!(said.contains(part), "`{part}` is missing in\n{said}");
    }
    assert_eq!(seen(place), before);
}

/// What a user sees of a repository: branches, what is staged, what differs, the kernel.
fn seen(place: &Place) -> String {
    let refs = place.git(&["for-each-ref"]);
    let status = place.git(&["status", "--porcelain"]);
    let kernel = std::fs::read_to_string(place.root.join(KERNEL)).unwrap_or_default();
    format!("{refs}\n{status}\n{}\n{kernel}", place.try_git(&["ls-files", "--stage"]).1)
}

/// There is one commit with the winner, and files and index follow it.
#[track_caller]
fn applied(place: &Place) {
    assert_eq!(place.git(&["log", "--format=%s", "main"]).lines().count(), 2);
    assert_eq!(place.git(&["diff", "--name-only", "main~", "main"]), format!("{KERNEL}\n"));
    assert_eq!(place.git(&["show", &format!("main:{KERNEL}")]), winner(place));
    assert_eq!(place.read(KERNEL), winner(place));
    assert_eq!(place.git(&["status", "--porcelain"]), "?? results.tsv\n");
    place.git(&["fsck", "--strict"]);
}

#[test]
fn a_kernel_that_the_whole_model_refused_is_not_applied() {
    let place = made();
    let folder = place.root.join(".warpsmith").join(MADE);
    std::fs::create_dir_all(&folder).unwrap();
    let said = r#"{"verified": null, "refused": [{"op": "fused_mlp", "why": "outputs differ"}]}"#;
    std::fs::write(folder.join("whole.json"), said).unwrap();
    refused(&place, &[], &["nothing to apply", "fused_mlp is left out", "does not agree with it: outputs differ"]);
    // A record that cannot be read is not one that says nothing.
    std::fs::write(folder.join("whole.json"), "{").unwrap();
    refused(&place, &[], &["whole.json"]);
}

#[test]
fn the_winners_become_one_commit_and_the_next_run_starts_from_it() {
    let place = made();
    let out = place.warpsmith(&["apply"]).ok();
    applied(&place);
    let subject = place.git(&["log", "-1", "--format=%s"]);
    assert_eq!(subject, format!("Faster kernels of run {MADE}: fused_mlp 1.50x\n"));
    assert!(out.starts_with("main ") && out.contains(subject.trim()), "{out}");
    assert!(out.contains(&format!("{KERNEL} | 1 +")) && out.contains("git revert "), "{out}");
    // What does not beat the user's own is left out, and said.
    let left_out =
        "rmsnorm is left out: it is 0.80x what you have; `git merge warpsmith/260214a` takes it all the same";
    assert!(out.contains(left_out), "{out}");
    let message = place.git(&["log", "-1", "--format=%B"]);
    for part in [
        "Measured on ",
        "with model, 1x16 tokens, f32:",
        "- fused_mlp: 1.50x what was there before, 3.18 ms -> 2.12 ms a pass",
        KERNEL,
    ] {
        assert!(message.contains(part), "`{part}` is missing in\n{message}");
    }
    assert_eq!(place.git(&["log", "-1", "--format=%(trailers:only)"]).trim(), format!("Warpsmith-run: {MADE}"));
    // Whoever works here is its author, as of any commit.
    assert_eq!(place.git(&["log", "-1", "--format=%an"]), "Warpsmith\n");

    let before = seen(&place);
    let again = place.warpsmith(&["apply", MADE]).ok();
    assert!(again.starts_with(&format!("main has the winners of run {MADE} already\n")), "{again}");
    assert_eq!(seen(&place), before);

    place.begin(&NEXT);
    let next = next_run(&place);
    assert_eq!(place.git(&["rev-parse", &format!("warpsmith/{next}")]), place.git(&["rev-parse", "main"]));
    assert!(place.read(&format!(".warpsmith/{next}/pending.json")).contains(FASTER));
    // The run that has begun has not ended: the latest that has is still the first.
    assert!(place.warpsmith(&["apply"]).ok().contains(&format!("run {MADE} already")));
}

#[test]
fn what_else_is_changed_or_staged_stays_as_it_is() {
    let place = made();
    place.write("notes.txt", "Changed, not staged.\n");
    place.write("kernels/cpu/rmsnorm.c", "the user's own work");
    place.git(&["add", "kernels/cpu/rmsnorm.c"]);
    place.write("staged.txt", "New, staged.\n");
    place.git(&["add", "staged.txt"]);
    place.write("kernels/cpu/rmsnorm.c", "the user's own work, and more of it");
    let (status, diff) = (place.git(&["status", "--porcelain"]), place.git(&["diff"]));
    let staged = place.git(&["diff", "--cached"]);
    place.warpsmith(&["apply"]).ok();
    assert_eq!(place.git(&["diff", "--name-only", "main~", "main"]), format!("{KERNEL}\n"));
    assert_eq!(place.git(&["status", "--porcelain"]), status);
    assert_eq!((place.git(&["diff"]), place.git(&["diff", "--cached"])), (diff, staged));
    assert_eq!(place.read(KERNEL), winner(&place));
}

#[test]
fn a_dry_run_shows_the_commit_and_makes_none() {
    let place = made();
    let before = seen(&place);
    let out = place.warpsmith(&["apply", "--dry-run"]).ok();
    assert_eq!(seen(&place), before);
    assert!(out.starts_with("this would be committed to main, and nothing has been done:"), "{out}");
    assert!(out.contains("    Faster kernels of run") && out.contains(&format!("{KERNEL} | 1 +")), "{out}");
    place.warpsmith(&["apply"]).ok();
    let message = place.git(&["log", "-1", "--format=%B"]);
    let told = message.lines().take_while(|line| !line.starts_with("Warpsmith-run"));
    assert!(told.clone().count() > 5 && told.clone().all(|line| out.contains(line)), "{message}\n{out}");
    assert!(place.warpsmith(&["apply", "--dry-run"]).ok().contains("already"));
}

#[test]
fn where_head_is_on_no_branch_of_the_users_nothing_is_applied() {
    let place = made();
    place.git(&["switch", "-q", "--detach"]);
    refused(&place, &[], &["HEAD is detached", "git switch BRANCH", "git switch -c NEW-NAME"]);
    place.git(&["switch", "-q", &format!("warpsmith/{}", MADE)]);
    refused(&place, &[], &["belongs to its run", "git switch BRANCH"]);
    place.git(&["switch", "-q", "--orphan", "fresh"]);
    place.write("warpsmith.toml", "");
    refused(&place, &[], &["no commit yet", "commit your own files first"]);
    place.git(&["config", "core.bare", "true"]);
    let said = place.warpsmith(&["apply"]).refusal();
    assert!(said.contains("bare git repository"), "{said}");
}

#[test]
fn in_the_middle_of_a_merge_or_a_rebase_nothing_is_applied() {
    let place = made();
    for (branch, text) in [("other", "One thing.\n"), ("main", "Another thing.\n")] {
        place.git(if branch == "main" { &["switch", "-q", "main"] } else { &["switch", "-q", "-c", "other"] });
        place.write("notes.txt", text);
        place.git(&["commit", "-q", "-a", "-m", text.trim()]);
    }
    assert!(!place.try_git(&["merge", "other"]).0);
    refused(&place, &[], &["in the middle of a merge", "git status"]);
    place.git(&["merge", "--abort"]);
    assert!(!place.try_git(&["rebase", "other"]).0);
    refused(&place, &[], &["in the middle of a rebase"]);
    place.git(&["rebase", "--abort"]);
    place.write(".git/index.lock", "");
    let said = place.warpsmith(&["apply"]).refusal();
    assert!(said.contains("another git is at work here") && said.contains("index.lock"), "{said}");
    std::fs::remove_file(place.root.join(".git/index.lock")).unwrap();
    place.warpsmith(&["apply"]).ok();
    assert_eq!(place.read("notes.txt"), "Another thing.\n");
}

#[test]
fn a_kernel_that_the_user_changed_is_never_overwritten() {
    let merge = format!("git merge warpsmith/{}", MADE);
    let place = made();
    let mine = format!("// mine\n{}", place.read(KERNEL));
    place.write(KERNEL, &mine);
    refused(&place, &[], &[&format!("{KERNEL} (on disk)"), "nothing was written", &merge]);
    place.git(&["add", KERNEL]);
    refused(&place, &[], &[&format!("{KERNEL} (staged, on disk)")]);
    place.git(&["commit", "-q", "-m", "Mine"]);
    refused(&place, &[], &[&format!("{KERNEL} (committed, staged, on disk)")]);
    // What the sentence says: git decides, and both are there.
    place.git(&["merge", "-q", "-m", "Both", &format!("warpsmith/{}", MADE)]);
    let both = place.read(KERNEL);
    assert!(both.contains("// mine") && both.contains(FASTER), "{both}");

    let place = made();
    std::fs::remove_file(place.root.join(KERNEL)).unwrap();
    refused(&place, &[], &[&format!("{KERNEL} (on disk)")]);
    std::os::unix::fs::symlink("/etc/hostname", place.root.join(KERNEL)).unwrap();
    let said = place.warpsmith(&["apply"]).refusal();
    assert!(said.contains("(on disk)"), "{said}");
}

#[test]
fn what_the_run_started_from_must_be_committed_first() {
    let place = Place::new(&kernels::keeps());
    place.write(KERNEL, &format!("{}// mine\n", place.read(KERNEL)));
    write_run(&place, Some(StopReason::NoTargets), 1.5);
    refused(&place, &[], &["started with changes that are not committed yet", &format!("git add {KERNEL}")]);
    place.git(&["commit", "-q", "-a", "-m", "Mine"]);
    place.warpsmith(&["apply"]).ok();
    let changed = place.git(&["diff", "--stat", "main~", "main"]);
    assert_eq!(changed.lines().next().unwrap().trim(), format!("{KERNEL} | 1 +"));
    assert_eq!(place.git(&["status", "--porcelain"]), "?? results.tsv\n");
}

#[test]
fn a_run_that_has_not_ended_or_has_no_winner_is_not_applied() {
    let place = Place::new(&kernels::keeps());
    refused(&place, &[], &["there is no run here yet"]);
    refused(&place, &["991231z"], &["there is no run 991231z"]);
    write_run(&place, None, 1.5);
    refused(&place, &[], &["no run has ended here yet", &format!("--resume {MADE}"), "--unfinished"]);
    let resume = format!("warpsmith run model --resume {MADE}");
    refused(&place, &[MADE], &["has not ended", &resume, "--unfinished"]);
    let out = place.warpsmith(&["apply", "--unfinished"]).ok();
    assert!(out.contains("Faster kernels of run") && place.read(KERNEL).contains(FASTER), "{out}");

    let place = Place::new(&kernels::keeps());
    write_run(&place, Some(StopReason::NoTargets), 0.9);
    refused(&place, &[], &["nothing to apply: fused_mlp is left out: it is 0.90x what you have", "git merge"]);
    assert!(Place::empty().warpsmith(&["apply"]).refusal().contains("belongs to no workspace"));
}

#[test]
fn while_a_run_goes_on_its_repository_is_left_alone() {
    let place = made();
    let lock = std::fs::File::create(place.root.join(".git/warpsmith.lock")).unwrap();
    lock.lock().unwrap();
    refused(&place, &[], &["is using this repository", "wait until it ends"]);
    drop(lock);
    place.warpsmith(&["apply"]).ok();
}

#[test]
fn killed_at_any_step_there_is_the_commit_or_nothing_and_a_repeat_finishes() {
    for step in APPLY_FAILPOINTS {
        let place = made();
        let before = seen(&place);
        let mut command = place.command(&["apply"]);
        command.env("WARPSMITH_FAILPOINT", format!("{step}:0"));
        let Outcome { code, out, err } = outcome(command);
        assert_eq!(code, None, "{step}: {out}{err}");
        let commits = place.git(&["log", "--format=%s", "main"]).lines().count();
        if step == "apply-objects" {
            assert_eq!(seen(&place), before, "{step}");
        } else {
            assert_eq!(commits, 2, "{step}");
            assert_eq!(place.git(&["show", &format!("main:{KERNEL}")]), winner(&place), "{step}");
        }
        let out = place.warpsmith(&["apply"]).ok();
        applied(&place);
        match step {
            "apply-objects" => assert!(out.contains("Faster kernels"), "{out}"),
            "apply-index" => assert!(out.contains("already"), "{out}"),
            _ => assert!(out.contains(&format!("what was behind now follows it: {KERNEL}")), "{step}: {out}"),
        }
    }
}

#[test]
fn hooks_do_not_run_and_a_missing_signature_is_said() {
    let place = made();
    place.git(&["config", "commit.gpgsign", "true"]);
    place.git(&["config", "gpg.program", "/bin/false"]);
    place.git(&["config", "user.name", "Somebody"]);
    place.git(&["config", "user.email", "somebody@example.com"]);
    place.write(".git/hooks/pre-commit", "#!/bin/sh\nexit 1\n");
    std::fs::set_permissions(place.root.join(".git/hooks/pre-commit"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(place.root.join(KERNEL), PermissionsExt::from_mode(0o640)).unwrap();
    let out = place.warpsmith(&["apply"]).ok();
    assert!(out.contains("it is not signed; `git commit --amend --no-edit -S` signs it"), "{out}");
    applied(&place);
    assert_eq!(place.git(&["log", "-1", "--format=%an <%ae>"]), "Somebody <somebody@example.com>\n");
    let mode = std::fs::metadata(place.root.join(KERNEL)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

#[test]
fn a_workspace_below_the_repository_and_a_linked_working_tree_are_served() {
    let linked = made();
    let tree = linked.root.join(".tree");
    linked.git(&["worktree", "add", "-q", "-b", "side", tree.to_str().unwrap()]);
    linked.warpsmith(&["apply", "--dir", ".tree"]).ok();
    assert_eq!(linked.git(&["diff", "--name-only", "main", "side"]), format!("{KERNEL}\n"));
    assert_eq!(linked.git(&["-C", ".tree", "status", "--porcelain"]), "");
    assert_eq!(std::fs::read_to_string(tree.join(KERNEL)).unwrap(), winner(&linked));
    assert_ne!(linked.read(KERNEL), winner(&linked));
}

#[test]
fn per_device_the_winner_serves_runs_on_such_a_device_and_the_common_kernel_stays() {
    let place = made();
    let common = place.read(KERNEL);
    let out = place.warpsmith(&["apply", "--per-device"]).ok();
    let changed = place.git(&["diff", "--name-only", "main~", "main"]);
    let own = changed.trim();
    assert!(own.starts_with("kernels/cpu/") && own.ends_with("/fused_mlp.c") && own.matches('/').count() == 3, "{out}");
    assert_eq!(place.read(KERNEL), common);
    assert_eq!(place.read(own), winner(&place));
    assert_eq!(place.git(&["status", "--porcelain"]), "?? results.tsv\n");
    // A run here begins with the device's own kernel, and what it keeps takes that one's place.
    place.begin(&NEXT);
    let pending = place.read(&format!(".warpsmith/{}/pending.json", next_run(&place)));
    assert!(pending.contains(FASTER) && pending.contains(own), "{pending}");
    // Where there is none, the common one is taken.
    place.git(&["rm", "-q", own]);
    place.begin(&NEXT);
    let pending = place.read(&format!(".warpsmith/{}/pending.json", next_run(&place)));
    assert!(!pending.contains(FASTER) && pending.contains(KERNEL), "{pending}");
}

#[test]
fn a_winner_that_serves_fewer_types_does_not_replace_a_wider_file_unasked() {
    let place = Place::new(&kernels::keeps());
    let out = place.warpsmith(&["run", "model", "--only", "rmsnorm", "--dtypes", "f32", "--per-kernel", "1m"]).ok();
    assert_eq!(place.statuses(), ["base", "keep"], "{out}");
    let run = place.only_run();
    let file = "kernels/cpu/rmsnorm.c";
    let kept = place.git(&["show", &format!("warpsmith/{run}:{file}")]);
    assert!(kept.contains("dtypes = [\"f32\"]"), "{kept}");
    let said = place.warpsmith(&["apply"]).refusal();
    assert!(
        said.contains("rmsnorm.c serves f16 and bf16 and the winner does not") && said.contains("--narrow"),
        "{said}"
    );
    let beside = place.copy();
    beside.warpsmith(&["apply", "--per-device"]).ok();
    assert!(beside.read(file).contains("\"bf16\""));
    // In f32 the device's own is found, in another type the one for all.
    let profiled = |dtype: &str| beside.warpsmith(&["profile", "model", "--dtype", dtype]).ok();
    assert!(profiled("f32").contains("rmsnorm") && profiled("f16").contains("rmsnorm"));
    place.warpsmith(&["apply", "--narrow"]).ok();
    assert!(place.read(file).contains("dtypes = [\"f32\"]"));
    let said = place.warpsmith(&["run", "model", "--resume", "--dtypes", "f32"]).refusal();
    assert!(said.contains("has ended") || said.contains("keeps its pass"), "{said}");
}
