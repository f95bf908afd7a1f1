//! Cubins on disk, under the hash of everything they came from.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::messages::Resources;

/// What is kept beside a cubin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The lowered name of each kernel that is launched.
    pub(super) names: Vec<String>,
    /// What each kernel needs.
    pub(super) resources: Vec<Resources>,
    /// Those of its kernels that wait for the launch before them, as `names` has them, and the places of parameters that they
    /// use before.
    pub(super) waits: BTreeMap<String, BTreeSet<usize>>,
    /// The compiler's words.
    pub(super) log: String,
    /// BLAKE3 of the cubin, so that a torn write is noticed.
    pub(super) hash: String,
    /// What launching it needs, where the compiler decides that: in Triton.
    #[serde(default)]
    pub(super) jit: Option<JitRecord>,
}

/// What Triton has decided about a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JitRecord {
    /// The kernel's name in the cubin.
    pub(super) lowered: String,
    /// Bytes of dynamic shared memory.
    pub(super) shared: u32,
    /// Warps of a block.
    pub(super) num_warps: u32,
    /// Parameters behind those of the plan.
    pub(super) hidden: usize,
    /// Bytes of device memory that each of its blocks asks for.
    pub(super) scratch: usize,
}

/// A folder of them.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
}

impl Cache {
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// A cubin that was made before; whatever is wrong with it, it is made again.
    pub(super) fn get(&self, key: &str) -> Option<(Record, Vec<u8>)> {
        let record: Record = serde_json::from_slice(&std::fs::read(self.path(key, "json")).ok()?).ok()?;
        let cubin = std::fs::read(self.path(key, "cubin")).ok()?;
        (blake3::hash(&cubin).to_hex().as_str() == record.hash).then_some((record, cubin))
    }

    /// Keeps one. A cache that cannot be written costs time, not results.
    pub(super) fn put(&self, key: &str, record: &Record, cubin: &[u8]) -> io::Result<()> {
        let write = |ending: &str, bytes: &[u8]| -> io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
            io::Write::write_all(&mut file, bytes)?;
            file.persist(self.path(key, ending)).map_err(|error| error.error)?;
            Ok(())
        };
        write("cubin", cubin)?;
        write("json", &serde_json::to_vec(record)?)
    }

    fn path(&self, key: &str, ending: &str) -> PathBuf {
        self.folder.join(format!("{key}.{ending}"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_was_kept_is_found_and_what_was_torn_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache::new(&temp.path().join("cuda")).unwrap();
        let hash = blake3::hash(b"code").to_hex().to_string();
        let record = Record {
            names: vec!["k".into()],
            resources: vec![],
            waits: BTreeMap::new(),
            log: String::new(),
            hash,
            jit: None,
        };
        assert!(cache.get("a").is_none());
        cache.put("a", &record, b"code").unwrap();
        assert_eq!(cache.get("a").unwrap(), (record, b"code".to_vec()));
        std::fs::write(temp.path().join("cuda/a.cubin"), b"cod").unwrap();
        assert!(cache.get("a").is_none());
    }
}
