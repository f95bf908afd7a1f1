//! Where NVIDIA's libraries may be on this machine.

use std::path::{Path, PathBuf};

/// Folders where NVIDIA's libraries may be, in the order in which they are looked through: `WARPSMITH_CUBLAS` (a folder),
/// `LD_LIBRARY_PATH`, `CUDA_HOME`, `/usr/local/cuda*`, Python's packages, the system's folders.
#[must_use]
pub fn library_folders() -> Vec<PathBuf> {
    let split = |name: &str| std::env::var_os(name).map(|value| std::env::split_paths(&value).collect::<Vec<_>>());
    let mut folders = Vec::new();
    for root in split("WARPSMITH_CUBLAS").unwrap_or_default() {
        folders.push(root.clone());
        folders.extend(packages(&root));
    }
    folders.extend(split("LD_LIBRARY_PATH").unwrap_or_default());
    let homes = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let installed = children(Path::new("/usr/local")).into_iter().filter(|folder| named(folder, "cuda"));
    for home in homes.chain(installed) {
        folders.extend([home.join("lib64"), home.join("lib"), home.join("targets/x86_64-linux/lib")]);
    }
    for prefix in python_prefixes() {
        for library in children(&prefix.join("lib")).into_iter().filter(|folder| named(folder, "python3")) {
            for packaged in ["site-packages", "dist-packages"] {
                folders.extend(packages(&library.join(packaged).join("nvidia")));
            }
        }
    }
    folders.extend(
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"].map(PathBuf::from),
    );
    folders.retain(|folder| folder.is_dir());
    folders
}

/// `nvidia/*/lib` of a folder of Python's packages.
fn packages(nvidia: &Path) -> Vec<PathBuf> {
    children(nvidia).into_iter().map(|package| package.join("lib")).collect()
}

/// Where the active Python and the one on `PATH` are installed.
fn python_prefixes() -> Vec<PathBuf> {
    let active = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).find(|folder| folder.join("python3").exists());
    // `bin/python3` may be a link into the installation; packages are beside the link or beside what it points to.
    let real = found.as_ref().and_then(|folder| std::fs::canonicalize(folder.join("python3")).ok());
    let above = |path: &Path| path.parent().map(Path::to_path_buf);
    let linked = found.as_deref().and_then(above);
    let real = real.as_deref().and_then(Path::parent).and_then(above);
    let mut all: Vec<PathBuf> = [active, linked, real].into_iter().flatten().collect();
    all.push("/usr/local".into());
    all.dedup();
    all
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    // Newer versions first.
    found.sort();
    found.reverse();
    found
}

fn named(folder: &Path, prefix: &str) -> bool {
    folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn packages_are_found_newest_first() {
        let root = tempfile::tempdir().unwrap();
        for package in ["cublas", "cu13"] {
            std::fs::create_dir_all(root.path().join(package).join("lib")).unwrap();
        }
        let found = packages(root.path());
        assert_eq!(found, ["cublas/lib", "cu13/lib"].map(|folder| root.path().join(folder)));
        assert!(library_folders().iter().all(|folder| folder.is_dir()));
    }
}
