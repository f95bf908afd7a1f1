//! What the compilers keep in the machine's cache, for whoever tidies it up.

use std::path::{Path, PathBuf};

/// Hexadecimal digits of a key.
const KEY: usize = 64;

/// The files of compiled kernels in the cache, of every backend, and their bytes together; in no order. What was measured
/// of the machine and locks are not among them.
#[must_use]
pub fn compiled_kernels(cache: &Path) -> (Vec<PathBuf>, u64) {
    let places = [(cache.to_owned(), ["so", "log"]), (cache.join("cuda"), ["cubin", "json"])];
    let (mut found, mut bytes) = (Vec::new(), 0);
    for (folder, endings) in places {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let part =
                |part: Option<&std::ffi::OsStr>| part.and_then(|part| part.to_str()).unwrap_or_default().to_owned();
            let (stem, ending) = (part(path.file_stem()), part(path.extension()));
            let is_key = stem.len() == KEY && stem.bytes().all(|b| b.is_ascii_hexdigit());
            if is_key && endings.contains(&ending.as_str()) {
                bytes += entry.metadata().map_or(0, |data| data.len());
                found.push(path);
            }
        }
    }
    (found, bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn compiled_kernels_are_found_and_what_else_is_kept_is_not() {
        let cache = tempfile::tempdir().unwrap();
        std::fs::create_dir(cache.path().join("cuda")).unwrap();
        let key = "0123456789abcdef".repeat(4);
        let kernels =
            [format!("{key}.so"), format!("{key}.log"), format!("cuda/{key}.cubin"), format!("cuda/{key}.json")];
        let others = ["device-cpu-1.json", "lock-cpu-1", "mine.so", "cuda/notes.json"].map(str::to_owned);
        for name in kernels.iter().chain(&others) {
            std::fs::write(cache.path().join(name), "four").unwrap();
        }
        let (mut found, bytes) = compiled_kernels(cache.path());
        let mut wanted: Vec<_> = kernels.iter().map(|name| cache.path().join(name)).collect();
        found.sort();
        wanted.sort();
        assert_eq!((found, bytes), (wanted, 16));
        assert_eq!(compiled_kernels(&cache.path().join("nowhere")), (Vec::new(), 0));
    }
}
