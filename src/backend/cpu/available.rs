//! How much memory the machine has free.

/// A number of bytes, or of KiB, MiB or GiB with a `K`, `M` or `G` behind it, that is all that may be taken of the machine's memory.
pub const MEMORY: &str = "WARPSMITH_MEMORY";

/// Bytes that can be had without swapping, as the system and its control groups say, and no more than [`MEMORY`] says; `None` where nobody
/// says anything.
pub fn available_memory() -> Option<u64> {
    // What is no number of bytes was refused before anything began.
    let told = memory_limit().ok().flatten();
    told.into_iter().chain(of_the_system()).min()
}

/// What [`MEMORY`] says, where it says anything.
///
/// # Errors
/// It is no number of bytes; a sentence.
pub fn memory_limit() -> Result<Option<u64>, String> {
    let Some(text) = std::env::var_os(MEMORY) else { return Ok(None) };
    let text = text.to_string_lossy();
    bytes(&text).map(Some).ok_or_else(|| {
        format!("{MEMORY} is `{text}`, which is no number of bytes; write it as 16G, 512M, or without a unit")
    })
}

fn of_the_system() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let system = read("/proc/meminfo").and_then(|text| meminfo(&text));
    let group = read("/sys/fs/cgroup/memory.max")
        .zip(read("/sys/fs/cgroup/memory.current"))
        .and_then(|(max, current)| left_in_group(&max, &current));
    match (system, group) {
        (Some(system), Some(group)) => Some(system.min(group)),
        (system, group) => system.or(group),
    }
}

/// `16G`, `512M`, `1000000`.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let units = [("K", 10), ("M", 20), ("G", 30)];
    let unit = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What a control group of version 2 may still take; `None` where it has no limit.
fn left_in_group(max: &str, current: &str) -> Option<u64> {
    let max: u64 = max.trim().parse().ok()?;
    Some(max.saturating_sub(current.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_figure_is_read_in_bytes() {
        let text = "MemTotal:       24554700 kB\nMemFree:        1000 kB\nMemAvailable:   20480 kB\n";
        assert_eq!(meminfo(text), Some(20 << 20));
        for odd in ["", "MemAvailable: 12 MB\n", "MemAvailable: lots kB\n", "MemAvailable: 18446744073709551615 kB\n"] {
            assert_eq!(meminfo(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn what_may_be_taken_is_a_number_with_a_unit_or_without() {
        for (text, expected) in [("16G", 16 << 30), ("512M", 512 << 20), (" 7K\n", 7 << 10), ("1000", 1000)] {
            assert_eq!(bytes(text), Some(expected), "{text:?}");
        }
        for odd in ["", "G", "1.5G", "-1", "16 GB", "99999999999G"] {
            assert_eq!(bytes(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn a_group_without_a_limit_has_none() {
        assert_eq!(left_in_group("max\n", "5\n"), None);
        assert_eq!(left_in_group("100\n", "40\n"), Some(60));
        assert_eq!(left_in_group("100\n", "400\n"), Some(0));
    }
}
