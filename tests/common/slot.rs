//! Tests that run at the same time, each with a cache of its own.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

static TAKEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// A place among the tests that run at the same time, free again when the test's thread ends.
struct Slot(usize);

impl Slot {
    fn take() -> Self {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let free = (0..).find(|slot| !taken.contains(slot)).unwrap();
        taken.push(free);
        Self(free)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        TAKEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|slot| *slot != self.0);
    }
}

/// The number of this thread's place: no other test that runs has it.
pub fn slot() -> usize {
    thread_local!(static SLOT: Slot = Slot::take());
    SLOT.with(|slot| slot.0)
}

/// Where this test's calibration and compiled kernels are: the same for the tests before and after it, and of no test that
/// runs at the same time, since the device's lock lies there too and they would wait for each other. What the tests decide
/// is far above the noise that they make.
pub fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cache-{}", slot()))
}
