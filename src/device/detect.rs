//! What the processor is, from the operating system.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::Path;

/// The least memory walked through to call a buffer cold, bytes.
const LEAST_COLD: u64 = 32 << 20;

/// A processor as the operating system describes it; sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuFacts {
    /// Product name.
    pub name: String,
    /// `cpu-` and a hash of everything here: caches of results and ceilings are kept under it.
    pub key: String,
    /// Cores this process may use.
    pub cores: u32,
    /// Widest vector, bits.
    pub vector_bits: u32,
    /// L1 data cache of a core.
    pub l1_bytes: u64,
    /// L2 of a core.
    pub l2_core_bytes: u64,
    /// All L2 together.
    pub l2_bytes: u64,
    /// Last-level cache, 0 where there is none.
    pub l3_bytes: u64,
    /// See `DeviceCard::cold_bytes`: four times all L2, at least 32 MiB.
    pub cold_bytes: u64,
    /// Facts for front matter: `CORES`, `L1` and `L2` of a core, `VECTOR_BYTES`.
    pub facts: BTreeMap<String, i64>,
}

/// Looks at the processor this process runs on.
#[must_use]
pub fn detect_cpu() -> CpuFacts {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
    let cpus = allowed_cpus(cores);
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = field(&cpuinfo, &["model name", "Model", "Hardware", "cpu model"])
        .unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH));
    let flags = field(&cpuinfo, &["flags", "Features"]).unwrap_or_default();
    let caches = read_caches(Path::new("/sys/devices/system/cpu"), &cpus);
    let vector_bits = vector_bits();
    // Where the system says nothing, the sizes of a small processor: too small is only a little slower.
    let l1_bytes = caches.level(1).map_or(32 << 10, |(one, _)| one);
    let (l2_core_bytes, l2_bytes) = caches.level(2).unwrap_or((256 << 10, u64::from(cores) << 18));
    let l3_bytes = caches.level(3).map_or(0, |(_, all)| all);
    let cold_bytes = (4 * l2_bytes).max(LEAST_COLD);
    let facts = [
        ("CORES", i64::from(cores)),
        ("L1", l1_bytes as i64),
        ("L2", l2_core_bytes as i64),
        ("VECTOR_BYTES", i64::from(vector_bits / 8)),
    ];
    let identity = format!("{name}|{flags}|{cores}|{l1_bytes}|{l2_bytes}|{l3_bytes}|{vector_bits}");
    CpuFacts {
        key: format!("cpu-{}", &blake3::hash(identity.as_bytes()).to_hex()[..12]),
        name,
        cores,
        vector_bits,
        l1_bytes,
        l2_core_bytes,
        l2_bytes,
        l3_bytes,
        cold_bytes,
        facts: facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
    }
}

/// What this machine's processor can do, as the system names it.
#[must_use]
pub fn cpu_flags() -> Vec<String> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    field(&cpuinfo, &["flags", "Features"]).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

fn allowed_cpus(cores: u32) -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
        Err(_) => (0..cores as usize).collect(),
    }
}

fn field(cpuinfo: &str, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == *name && !value.trim().is_empty()).then(|| value.trim().to_owned())
        })
    })
}

/// Each cache once: level, the processors that share it, size.
#[derive(Debug, Default, PartialEq, Eq)]
struct Caches(BTreeSet<(u32, String, u64)>);

impl Caches {
    /// Size of one, and of all together.
    fn level(&self, level: u32) -> Option<(u64, u64)> {
        let sizes: Vec<u64> = self.0.iter().filter(|(at, ..)| *at == level).map(|(.., size)| *size).collect();
        sizes.iter().max().map(|one| (*one, sizes.iter().sum()))
    }
}

fn read_caches(root: &Path, cpus: &[usize]) -> Caches {
    let mut caches = Caches::default();
    for cpu in cpus {
        for index in 0..8 {
            let folder = root.join(format!("cpu{cpu}/cache/index{index}"));
            let read = |name: &str| std::fs::read_to_string(folder.join(name)).map(|text| text.trim().to_owned());
            let (Ok(level), Ok(kind), Ok(size)) = (read("level"), read("type"), read("size")) else { continue };
            let shared = read("shared_cpu_list").unwrap_or_else(|_| cpu.to_string());
            if let (Ok(level), Some(size), true) = (level.parse(), parse_size(&size), kind != "Instruction") {
                caches.0.insert((level, shared, size));
            }
        }
    }
    caches
}

/// `48K`, `2M`, `260M` or bytes.
fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = match text.char_indices().next_back()? {
        (at, 'K') => (&text[..at], 1 << 10),
        (at, 'M') => (&text[..at], 1 << 20),
        (at, 'G') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(target_arch = "x86_64")]
fn vector_bits() -> u32 {
    if std::arch::is_x86_feature_detected!("avx512f") {
        512
    } else if std::arch::is_x86_feature_detected!("avx") {
        256
    } else {
        128
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn vector_bits() -> u32 {
    128
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_cache_shared_by_two_cores_counts_once() {
        let root = tempfile::tempdir().unwrap();
        for cpu in 0..2 {
            for (index, level, kind, size, shared) in [
                (0, "1", "Data", "48K", cpu.to_string()),
                (1, "1", "Instruction", "32K", cpu.to_string()),
                (2, "2", "Unified", "2048K", cpu.to_string()),
                (3, "3", "Unified", "260M", "0-1".to_owned()),
            ] {
                let folder = root.path().join(format!("cpu{cpu}/cache/index{index}"));
                std::fs::create_dir_all(&folder).unwrap();
                for (name, text) in [("level", level), ("type", kind), ("size", size), ("shared_cpu_list", &shared)] {
                    std::fs::write(folder.join(name), text).unwrap();
                }
            }
        }
        let caches = read_caches(root.path(), &[0, 1]);
        assert_eq!(caches.level(1), Some((48 << 10, 96 << 10)));
        assert_eq!(caches.level(2), Some((2 << 20, 4 << 20)));
        assert_eq!(caches.level(3), Some((260 << 20, 260 << 20)));
        assert_eq!(read_caches(root.path(), &[7]), Caches::default());
    }

    #[test]
    fn the_machine_of_the_tests_is_described_in_full_and_the_same_twice() {
        let cpu = detect_cpu();
        assert!(cpu.cores > 0 && cpu.vector_bits >= 128 && cpu.cold_bytes >= LEAST_COLD);
        assert_eq!(cpu.facts.keys().collect::<Vec<_>>(), ["CORES", "L1", "L2", "VECTOR_BYTES"]);
        assert_eq!(cpu, detect_cpu());
    }
}
