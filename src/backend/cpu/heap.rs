//! Memory that a kernel takes from the heap and never gives back.

use crate::backend::Call;

/// Equal batches after each of which more is in use than before: what is given back may stay with a thread, a few pieces of each size, so that
/// the first ones grow where nothing leaks.
const GROWING: u32 = 20;

/// Bytes of the heap that are in use in this process; zero where its allocator does not tell.
#[cfg(not(target_env = "gnu"))]
pub(super) fn in_use() -> u64 {
    0
}

/// Bytes of the heap that are in use in this process; zero where its allocator does not tell.
#[cfg(target_env = "gnu")]
pub(super) fn in_use() -> u64 {
    use std::sync::OnceLock;

    /// `mallinfo2` (glibc 2.33 and newer), which older ones lack.
    type Info = unsafe extern "C" fn() -> libc::mallinfo2;
    static INFO: OnceLock<Option<Info>> = OnceLock::new();
    let info = INFO.get_or_init(|| {
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr()) };
        // SAFETY: a function of this name has this type (mallinfo(3)).
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut libc::c_void, Info>(found) })
    });
    info.map_or(0, |info| {
        // SAFETY: it takes nothing, and only reads what the allocator knows.
        let info = unsafe { info() };
        (info.uordblks + info.hblkhd) as u64
    })
}

/// Whether what is in use grows with every batch.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// Image, sizes and number of the calls of the batch before, and what was in use when it began.
    before: Option<(usize, Vec<i64>, usize)>,
    used: u64,
    grown: u32,
    /// What was in use when it began to grow.
    from: u64,
}

impl Growth {
    /// Takes in what is in use as a batch begins: bytes that every launch left, where so many equal batches in a row left some.
    pub(super) fn take(&mut self, calls: &[Call], used: u64) -> Option<u64> {
        let batch = calls.first().map(|call| (call.image, call.ints.clone(), calls.len()));
        if used <= self.used || self.before.is_none() {
            (self.grown, self.from) = (0, used);
        } else {
            self.grown += 1;
        }
        self.used = used;
        if batch != self.before {
            self.before = batch;
            (self.grown, self.from) = (0, used);
        }
        let launches = u64::from(self.grown) * calls.len() as u64;
        (self.grown >= GROWING).then(|| (used - self.from) / launches.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(size: i64) -> Call {
        Call { image: 0, pointers: Vec::new(), ints: vec![size], floats: Vec::new(), zeroed: Vec::new() }
    }

    #[test]
    fn what_every_launch_leaves_is_seen_and_what_a_few_leave_is_not() {
        let mut growth = Growth::default();
        let seen: Vec<_> = (0..40).map(|batch| growth.take(&[call(3), call(3)], 1000 + 512 * batch)).collect();
        assert_eq!(seen.iter().position(Option::is_some), Some(GROWING as usize), "{seen:?}");
        assert_eq!(seen.last(), Some(&Some(256)));
        let mut growth = Growth::default();
        assert!((0..200).all(|batch| growth.take(&[call(3)], 1000 + 512 * (batch % 19)).is_none()));
        let mut growth = Growth::default();
        assert!((0..200).all(|batch| growth.take(&[call(batch)], 1000 + 512 * batch as u64).is_none()));
        let mut growth = Growth::default();
        assert!((0..200).all(|_| growth.take(&[call(3)], 0).is_none()), "an allocator that does not tell");
    }
}
