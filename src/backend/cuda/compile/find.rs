//! Where NVRTC and the headers of CUDA are on this machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// NVRTC and what it may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolkit {
    /// `libnvrtc.so.N`.
    pub library: PathBuf,
    /// `libnvrtc-builtins.so.N.M` beside it, which must be loaded first: some packages have no search path in the library.
    pub builtins: Option<PathBuf>,
    /// Folders of headers.
    pub includes: Vec<PathBuf>,
}

/// Where to look, in this order.
pub struct Search {
    /// `$WARPSMITH_NVRTC`: the library, or a folder that has it somewhere near.
    pub chosen: Option<PathBuf>,
    /// The folders of `$LD_LIBRARY_PATH`.
    pub library_path: Vec<PathBuf>,
    /// `$CUDA_HOME` and `$CUDA_PATH`.
    pub homes: Vec<PathBuf>,
    /// The folder in which toolkits are installed as `cuda*`.
    pub installed: PathBuf,
    /// Folders of Python packages; asked for only when nothing was found before.
    pub packages: Box<dyn Fn() -> Vec<PathBuf>>,
    /// The system's library folders.
    pub system: Vec<PathBuf>,
}

impl Search {
    /// This machine's places.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let list = |name: &str| {
            std::env::var_os(name).map(|value| std::env::split_paths(&value).collect()).unwrap_or_default()
        };
        Self {
            chosen: path("WARPSMITH_NVRTC"),
            library_path: list("LD_LIBRARY_PATH"),
            homes: ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(path).collect(),
            installed: PathBuf::from("/usr/local"),
            packages: Box::new(python_packages),
            system: [
                "/usr/lib/x86_64-linux-gnu",
                "/usr/lib/aarch64-linux-gnu",
                "/usr/lib64",
                "/usr/lib",
                "/usr/lib/wsl/lib",
                "/run/opengl-driver/lib",
            ]
            .map(PathBuf::from)
            .to_vec(),
        }
    }

    /// The first NVRTC whose major version a driver of `newest` (as 13 for 13.0) can load the code of.
    ///
    /// # Errors
    /// A sentence: there is none, and how to get one.
    pub fn find(&self, newest: Option<u32>) -> Result<Toolkit, String> {
        let mut too_new = BTreeSet::new();
        let mut look = |folder: &Path| best_in(folder, newest, &mut too_new);
        let found = match &self.chosen {
            Some(chosen) if chosen.is_file() => Some(chosen.clone()),
            Some(chosen) => around(chosen).iter().find_map(|folder| look(folder)),
            None => self
                .library_path
                .iter()
                .find_map(|folder| look(folder))
                .or_else(|| self.homes.iter().flat_map(|home| around(home)).find_map(|folder| look(&folder)))
                .or_else(|| installed(&self.installed).iter().flat_map(|t| around(t)).find_map(|folder| look(&folder)))
                .or_else(|| {
                    let packages = (self.packages)();
                    let nvidia = packages.iter().map(|folder| folder.join("nvidia"));
                    nvidia.flat_map(|folder| around(&folder)).find_map(|folder| look(&folder))
                })
                .or_else(|| self.system.iter().find_map(|folder| look(folder))),
        };
        let Some(library) = found else {
            return Err(self.missing(&too_new, newest));
        };
        // Links are followed, so that the folders beside it are those of its own package.
        let library = library.canonicalize().unwrap_or(library);
        Ok(Toolkit { builtins: builtins(&library), includes: self.includes(&library), library })
    }

    fn missing(&self, too_new: &BTreeSet<u32>, newest: Option<u32>) -> String {
        if let (Some(have), Some(newest)) = (too_new.first(), newest) {
            return format!(
                "NVRTC {have} is here, and this driver loads code of CUDA {newest} at most: update the driver, or install \
                 an older one (pip install 'nvidia-cuda-nvrtc-cu{newest}')"
            );
        }
        match &self.chosen {
            Some(chosen) => format!("WARPSMITH_NVRTC is {}, and there is no libnvrtc.so there", chosen.display()),
            None => {
                "no libnvrtc.so on this machine: pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl, \
                     or set WARPSMITH_NVRTC to the library or a folder that has it"
                    .to_owned()
            }
        }
    }

    /// Folders with CUDA's headers: those of the library's own package, of the packages beside it, of the toolkit.
    fn includes(&self, library: &Path) -> Vec<PathBuf> {
        let own = library.parent().and_then(Path::parent);
        let beside = own.and_then(Path::parent).map(folders).unwrap_or_default();
        let candidates = own
            .into_iter()
            .map(Path::to_owned)
            .chain(beside)
            .chain(self.homes.iter().cloned())
            .chain(installed(&self.installed))
            .map(|folder| folder.join("include"));
        let mut includes: Vec<PathBuf> = Vec::new();
        for folder in candidates {
            // The system's own folder has headers of everything, and NVRTC understands none of them.
            let Ok(folder) = folder.canonicalize() else { continue };
            if folder == Path::new("/usr/include") {
                continue;
            }
            for folder in [folder.clone(), folder.join("cccl")] {
                let known = ["cuda_fp16.h", "cuda/barrier", "cuda/std/cstdint", "nv/target"];
                if known.iter().any(|header| folder.join(header).is_file()) && !includes.contains(&folder) {
                    includes.push(folder);
                }
            }
        }
        includes
    }
}

/// Folders that may have libraries in and below `folder`.
fn around(folder: &Path) -> Vec<PathBuf> {
    let mut all = vec![folder.to_owned()];
    let with_libraries = |folder: &Path| ["lib64", "lib", "lib/x86_64-linux-gnu"].map(|name| folder.join(name));
    all.extend(with_libraries(folder));
    for below in folders(folder) {
        all.extend(with_libraries(&below));
    }
    for target in folders(&folder.join("targets")) {
        all.push(target.join("lib"));
    }
    all
}

/// Toolkits as `cuda*`, the plain name first, then the newest.
fn installed(root: &Path) -> Vec<PathBuf> {
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cuda"));
    let mut found: Vec<PathBuf> = folders(root).into_iter().filter(named).collect();
    found.reverse();
    found.sort_by_key(|path| path.file_name().is_none_or(|name| name != "cuda"));
    found
}

/// Sub-folders in the order of their names.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

/// The newest library in a folder that is not too new.
fn best_in(folder: &Path, newest: Option<u32>, too_new: &mut BTreeSet<u32>) -> Option<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let Some(rest) =
            entry.file_name().to_str().and_then(|name| name.strip_prefix("libnvrtc.so").map(str::to_owned))
        else {
            continue;
        };
        // A plain `libnvrtc.so` is a link; what it leads to says the version.
        let version = if rest.is_empty() {
            let target = entry.path().canonicalize().ok()?;
            target.file_name()?.to_str()?.strip_prefix("libnvrtc.so")?.to_owned()
        } else {
            rest
        };
        let Some(major) = version.trim_start_matches('.').split('.').next().and_then(|number| number.parse().ok())
        else {
            continue;
        };
        if newest.is_some_and(|newest| major > newest) {
            too_new.insert(major);
        } else {
            found.push((major, entry.path()));
        }
    }
    found.sort();
    found.pop().map(|(_, path)| path)
}

/// The built-ins beside the library, of its major version.
fn builtins(library: &Path) -> Option<PathBuf> {
    let major = library.file_name()?.to_str()?.strip_prefix("libnvrtc.so.")?.split('.').next()?.to_owned();
    let prefix = format!("libnvrtc-builtins.so.{major}");
    let entries = std::fs::read_dir(library.parent()?).ok()?.flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.pop()
}

/// Folders of packages of `$VIRTUAL_ENV` and of the Python that `python3` starts.
fn python_packages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Some(environment) = std::env::var_os("VIRTUAL_ENV").filter(|value| !value.is_empty()) {
        for version in folders(&Path::new(&environment).join("lib")) {
            found.push(version.join("site-packages"));
        }
    }
    let script =
        "import site, sys; print('\\n'.join([*site.getsitepackages(), site.getusersitepackages(), *sys.path]))";
    let said = Command::new("python3").args(["-c", script]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    if let Ok(said) = said {
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        found.extend(text.lines().filter(|line| line.starts_with('/')).map(PathBuf::from));
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    fn nothing(root: &Path) -> Search {
        Search {
            chosen: None,
            library_path: vec![],
            homes: vec![],
            installed: root.join("none"),
            packages: Box::new(Vec::new),
            system: vec![],
        }
    }

    fn put(path: &Path) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        path.canonicalize().unwrap()
    }

    #[test]
    fn places_are_searched_in_their_order() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        let system = put(&root.join("usr/lib/libnvrtc.so.12"));
        let mut search = Search { system: vec![root.join("usr/lib")], ..nothing(root) };
        assert_eq!(search.find(None).unwrap().library, system);
        let package = put(&root.join("site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"));
        let site = root.join("site");
        search.packages = Box::new(move || vec![site.clone()]);
        assert_eq!(search.find(None).unwrap().library, package);
        let toolkit = put(&root.join("local/cuda-12.4/targets/x86_64-linux/lib/libnvrtc.so.12"));
        search.installed = root.join("local");
        assert_eq!(search.find(None).unwrap().library, toolkit);
        let home = put(&root.join("home/lib64/libnvrtc.so.13"));
        search.homes = vec![root.join("home")];
        assert_eq!(search.find(None).unwrap().library, home);
        assert_eq!(search.find(Some(12)).unwrap().library, toolkit, "13 is too new for that driver");
        let path = put(&root.join("path/libnvrtc.so.11.2"));
        search.library_path = vec![root.join("path")];
        assert_eq!(search.find(None).unwrap().library, path);
        search.chosen = Some(root.join("site/nvidia"));
        assert_eq!(search.find(None).unwrap().library, package, "a folder of packages is enough");
        search.chosen = Some(home.clone());
        assert_eq!(search.find(None).unwrap().library, home);
    }

    #[test]
    fn the_newest_that_the_driver_can_load_is_taken_and_a_link_is_followed() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        put(&root.join("l/libnvrtc.so.11.8.89"));
        let twelve = put(&root.join("l/libnvrtc.so.12"));
        let thirteen = put(&root.join("l/libnvrtc.so.13"));
        put(&root.join("l/libnvrtc-builtins.so.12.8"));
        let builtins = put(&root.join("l/libnvrtc-builtins.so.13.0"));
        std::os::unix::fs::symlink("libnvrtc.so.13", root.join("l/libnvrtc.so")).unwrap();
        let search = Search { library_path: vec![root.join("l")], ..nothing(root) };
        let newest = search.find(None).unwrap();
        assert_eq!((newest.library, newest.builtins), (thirteen, Some(builtins)));
        assert_eq!(search.find(Some(12)).unwrap().library, twelve);
        let none = search.find(Some(10)).unwrap_err();
        assert!(none.contains("CUDA 10 at most"), "{none}");
    }

    #[test]
    fn headers_are_those_beside_the_library_and_never_the_systems() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        put(&root.join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12"));
        put(&root.join("nvidia/cuda_runtime/include/cuda_fp16.h"));
        put(&root.join("nvidia/cuda_cccl/include/cuda/std/cstdint"));
        put(&root.join("nvidia/other/include/other.h"));
        let search = Search { chosen: Some(root.join("nvidia")), ..nothing(root) };
        let base = root.canonicalize().unwrap().join("nvidia");
        let expected = vec![base.join("cuda_cccl/include"), base.join("cuda_runtime/include")];
        assert_eq!(search.find(None).unwrap().includes, expected);
        put(&root.join("cu13/lib/libnvrtc.so.13"));
        put(&root.join("cu13/include/cuda_fp16.h"));
        put(&root.join("cu13/include/cccl/nv/target"));
        let search = Search { chosen: Some(root.join("cu13/lib/libnvrtc.so.13")), ..nothing(root) };
        let base = root.canonicalize().unwrap().join("cu13/include");
        assert_eq!(search.find(None).unwrap().includes, [base.clone(), base.join("cccl")]);
    }

    #[test]
    fn where_there_is_none_it_says_how_to_get_one() {
        let temp = tempfile::tempdir().unwrap();
        let search = nothing(temp.path());
        assert!(search.find(None).unwrap_err().contains("pip install"));
        let search = Search { chosen: Some(temp.path().to_owned()), ..nothing(temp.path()) };
        assert!(search.find(None).unwrap_err().contains("WARPSMITH_NVRTC is"));
    }
}
