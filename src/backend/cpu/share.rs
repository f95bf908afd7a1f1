//! Sharing the judge's own work over all cores.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Cores the judge may use. Asked once: the system's answer comes out of several files, and poison is written after
/// every launch.
pub(super) fn cores() -> usize {
    static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *CORES
}

/// Calls `body` with ranges of at most `grain` that together are `0..n`, over all cores, and returns
/// when all are done. Which thread takes which range is not fixed, so `body` must not depend on it.
pub(super) fn share(n: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
    let grain = grain.max(1);
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let begin = next.fetch_add(grain, Ordering::Relaxed);
            if begin >= n {
                break;
            }
            body(begin..n.min(begin + grain));
        }
    };
    let threads = cores().min(n.div_ceil(grain));
    if threads <= 1 {
        return work();
    }
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
}

/// The same for the parts of a slice: `fill(offset, part)`.
pub(super) fn share_slice<T: Send>(slice: &mut [T], grain: usize, fill: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let grain = grain.max(1);
    let parts: Vec<Mutex<&mut [T]>> = slice.chunks_mut(grain).map(Mutex::new).collect();
    share(parts.len(), 1, &|range| {
        for index in range {
            // Each part is taken once, so nobody else can have poisoned its lock.
            let mut part = parts[index].lock().unwrap_or_else(PoisonError::into_inner);
            fill(index * grain, &mut part);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_is_visited_once() {
        for (n, grain) in [(0, 3), (1, 3), (1000, 7), (8, 100), (5, 0)] {
            let mut seen = vec![0u8; n];
            share_slice(&mut seen, grain, &|_, part| part.iter_mut().for_each(|v| *v += 1));
            assert!(seen.iter().all(|v| *v == 1));
            let sum = AtomicUsize::new(0);
            share(n, grain, &|range| {
                sum.fetch_add(range.sum::<usize>(), Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), (0..n).sum::<usize>());
        }
    }
}
