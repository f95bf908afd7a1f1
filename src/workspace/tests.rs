#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use super::*;

fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_workspace_is_found_at_or_above_the_model() {
    let root = tempfile::tempdir().unwrap();
    let model = root.path().join("models/tiny");
    fs::create_dir_all(&model).unwrap();
    assert!(Workspace::find(&model).unwrap().is_none());
    fs::write(root.path().join(SETTINGS_FILE), "[run]\nmax_reverts = 7\n").unwrap();
    let found = Workspace::find(&model).unwrap().unwrap();
    assert_eq!(found.root(), root.path().canonicalize().unwrap());
    assert_eq!(found.settings().run.max_reverts, 7);
    fs::write(model.join(SETTINGS_FILE), "").unwrap();
    assert_eq!(Workspace::find(&model).unwrap().unwrap().root(), model.canonicalize().unwrap());
}

#[test]
fn a_wrong_setting_is_shown_with_its_file_and_line() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join(SETTINGS_FILE), "[run]\nmax_revert = 7\n").unwrap();
    let error = Workspace::find(root.path()).unwrap_err().to_string();
    assert!(error.contains("warpsmith.toml") && error.contains("line 2"), "{error}");
}

#[test]
fn a_model_directory_that_is_not_there_is_named() {
    let error = Workspace::find(Path::new("/no/such/model")).unwrap_err().to_string();
    assert!(error.starts_with("/no/such/model is not a directory"), "{error}");
}

#[test]
fn outside_any_repository_one_is_made_with_only_our_own_files() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("model.safetensors"), "weights").unwrap();
    let (workspace, made) = Workspace::make(root.path()).unwrap();
    assert_eq!(made.repository.as_deref(), Some(workspace.root()));
    assert_eq!(made.settings, Some(workspace.root().join(SETTINGS_FILE)));
    assert_eq!(git(root.path(), &["ls-files"]), "warpsmith.toml\n");
    assert_eq!(git(root.path(), &["status", "--porcelain", "--untracked-files=all"]), "");
    assert_eq!(git(root.path(), &["log", "--format=%s"]), "Make a Warpsmith workspace\n");
    let (_, again) = Workspace::make(root.path()).unwrap();
    assert_eq!(again, Made::default());
}

#[test]
fn inside_a_repository_only_the_settings_are_written() {
    let root = tempfile::tempdir().unwrap();
    git(root.path(), &["init", "-q"]);
    let model = root.path().join("model");
    fs::create_dir(&model).unwrap();
    let (_, made) = Workspace::make(&model).unwrap();
    assert!(made.settings.is_some() && made.repository.is_none());
    assert!(!model.join(".git").exists());
    assert_eq!(git(root.path(), &["status", "--porcelain", "--untracked-files=all"]), "?? model/warpsmith.toml\n");
}

#[test]
fn a_file_is_taken_from_disk_before_the_copy_inside() {
    let root = tempfile::tempdir().unwrap();
    let (workspace, _) = Workspace::make(root.path()).unwrap();
    fs::create_dir_all(root.path().join("kernels/cpu")).unwrap();
    fs::write(root.path().join("kernels/cpu/own.c"), "own").unwrap();
    let text = workspace.file("kernels/cpu/own.c").unwrap();
    assert_eq!((text.text.as_str(), text.path.is_some()), ("own", true));
    for name in embedded_names("") {
        let text = workspace.file(name).unwrap();
        assert_eq!((Some(text.text.as_str()), text.path), (embedded(name), None));
    }
    assert!(workspace.names("kernels/cpu").unwrap().contains(&"kernels/cpu/own.c".to_owned()));
    assert!(matches!(workspace.file("kernels/cpu/none.c"), Err(WorkspaceError::NoFile { .. })));
    for name in ["../secret", "/etc/passwd", "", "a/../../b", "a\nb"] {
        assert!(matches!(workspace.file(name), Err(WorkspaceError::BadName(_))), "{name}");
    }
}

#[test]
fn the_private_folder_ignores_itself() {
    let root = tempfile::tempdir().unwrap();
    let (workspace, _) = Workspace::make(root.path()).unwrap();
    fs::write(workspace.private_folder().unwrap().join("x"), "").unwrap();
    assert_eq!(git(root.path(), &["status", "--porcelain", "--ignored=no"]), "");
}

/// Repositories that libgit2 cannot open: made with the real git, refused in a sentence that says what to do.
#[test]
fn repositories_that_cannot_be_opened_get_a_sentence_with_a_way_out() {
    let cases: [(&[&str], &str, &str); 3] = [
        (&["init", "-q", "--object-format=sha256"], "sha256", "--object-format=sha1"),
        (&["init", "-q", "--ref-format=reftable"], "reftable", "git refs migrate"),
        (&["init", "-q", "--bare"], "bare", "a clone of it"),
    ];
    for (init, word, hint) in cases {
        let root = tempfile::tempdir().unwrap();
        git(root.path(), init);
        let error = Workspace::make(root.path()).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains(hint) && !error.contains('\n'), "{error}");
        assert!(!root.path().join(SETTINGS_FILE).exists());
    }
    let root = tempfile::tempdir().unwrap();
    git(root.path(), &["init", "-q"]);
    git(root.path(), &["config", "core.repositoryformatversion", "1"]);
    git(root.path(), &["config", "extensions.partialClone", "origin"]);
    let error = Workspace::make(root.path()).unwrap_err().to_string();
    assert!(error.contains("partial clone"), "{error}");
}

#[test]
fn the_first_of_several_files_is_taken_and_what_is_on_disk_before_any_copy() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join(SETTINGS_FILE), "").unwrap();
    let workspace = Workspace::find(root.path()).unwrap().unwrap();
    let names = ["kernels/cpu/this-machine/rmsnorm.c", "kernels/cpu/rmsnorm.c"].map(str::to_owned);
    let first = || workspace.first_file(&names).unwrap().map(|(name, text)| (name, text.path.is_some()));
    assert_eq!(first(), Some((names[1].clone(), false)));
    fs::create_dir_all(root.path().join("kernels/cpu/this-machine")).unwrap();
    fs::write(root.path().join(&names[1]), "mine").unwrap();
    assert_eq!(first(), Some((names[1].clone(), true)));
    fs::write(root.path().join(&names[0]), "mine, tuned here").unwrap();
    assert_eq!(first(), Some((names[0].clone(), true)));
    assert_eq!(workspace.first_file(&["kernels/cpu/conv2d.c".to_owned()]).unwrap(), None);
    // A copy for the device does not take the place of what the user wrote for all: the copy here is the common one.
    let turned = [names[1].replace("rmsnorm", "matmul"), names[0].clone()];
    assert_eq!(workspace.first_file(&turned).unwrap().unwrap().0, names[0]);
}

#[test]
fn a_workspace_with_copies_has_none_of_the_headers_which_nobody_would_read() {
    let root = tempfile::tempdir().unwrap();
    Workspace::init(root.path(), true).unwrap();
    assert!(root.path().join("kernels/cuda/matmul.cu").is_file());
    assert!(!root.path().join(HEADERS).exists());
}
