//! The page through which judge and child speak, beside two pipes that wake the other.
//!
//! The candidate can write to it. Nothing the judge reads here is believed: times are the judge's own, results are read
//! from the tensors, and what stands here only words a failure.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use crate::backend::{Call, Region, Span};

/// Bytes of the page: the header, then a start-up message or a batch of calls.
pub(super) const BYTES: usize = 8 << 20;
/// Words (u64) behind the header.
pub(super) const WORDS: usize = (BYTES - size_of::<Header>()) / 8;

/// Waking bytes of the pipe from child to judge.
pub(super) mod wake {
    /// Start-up is done.
    pub(in super::super) const HELLO: u8 = b'H';
    /// The calls are decoded, the go word is being watched.
    pub(in super::super) const READY: u8 = b'R';
    /// The calls have returned.
    pub(in super::super) const DONE: u8 = b'D';
    /// Start-up failed; the page has the reason.
    pub(in super::super) const FAILED: u8 = b'F';
}

/// What the child noted when it died.
pub(super) mod note {
    /// Nothing.
    pub(in super::super) const NONE: u32 = 0;
    /// A fault at an address.
    pub(in super::super) const FAULT: u32 = 1;
    /// A write to the inputs; `detail` is the offset.
    pub(in super::super) const INPUT_WRITE: u32 = 2;
    /// A system call that is not allowed; `detail` is its number.
    pub(in super::super) const SYSCALL: u32 = 3;
    /// The time stamp counter was read.
    pub(in super::super) const CLOCK: u32 = 4;
    /// The page had calls that do not decode: the child's own mistake, not the candidate's.
    pub(in super::super) const CALLS: u32 = 5;
}

/// The page's head.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Header {
    /// Number of the batch that may run now (futex).
    pub(super) go: AtomicU32,
    /// One of [`note`].
    pub(super) note: AtomicU32,
    /// Belongs to the note.
    pub(super) detail: AtomicI64,
    /// Not zero where a launch left the floating-point environment changed: the call's number plus one.
    pub(super) environment: AtomicU32,
    /// Bytes of the message behind the header.
    pub(super) message: AtomicU32,
    /// Words of the batch behind the header.
    pub(super) words: AtomicU64,
}

const ABSENT: u64 = u64::MAX;
const OUTPUTS: u64 = 1 << 63;

/// Where a span begins, as a word.
const fn place(span: &Span) -> u64 {
    match span.region {
        Region::Inputs => span.offset as u64,
        Region::Outputs => OUTPUTS | span.offset as u64,
    }
}

/// Calls as words; `None` where they do not fit.
pub(super) fn encode(calls: &[Call]) -> Option<Vec<u64>> {
    let mut words = vec![calls.len() as u64];
    for call in calls {
        let counts = [call.pointers.len(), call.ints.len(), call.floats.len(), call.zeroed.len()];
        words.push(call.image as u64);
        words.extend(counts.map(|n| n as u64));
        words.extend(call.pointers.iter().map(|pointer| pointer.as_ref().map_or(ABSENT, place)));
        words.extend(call.ints.iter().map(|int| *int as u64));
        words.extend(call.floats.iter().map(|float| u64::from(float.to_bits())));
        words.extend(call.zeroed.iter().flat_map(|span| [place(span), span.bytes as u64]));
    }
    (words.len() <= WORDS).then_some(words)
}

/// A call with addresses of the child's own.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    pub(super) image: usize,
    pub(super) pointers: Vec<usize>,
    pub(super) ints: Vec<i64>,
    pub(super) floats: Vec<f32>,
    /// Addresses and bytes.
    pub(super) zeroed: Vec<[usize; 2]>,
}

/// The calls in `words`, with regions at the addresses `[inputs, outputs]`.
pub(super) fn decode(words: &[u64], bases: [usize; 2]) -> Option<Vec<Prepared>> {
    let mut words = words.iter().copied();
    let mut take = |n: u64| -> Option<Vec<u64>> {
        let n = usize::try_from(n).ok().filter(|n| *n <= WORDS)?;
        let taken: Vec<u64> = words.by_ref().take(n).collect();
        (taken.len() == n).then_some(taken)
    };
    let count = take(1)?[0];
    (0..count)
        .map(|_| {
            let head = take(5)?;
            let address = |word: u64| match word {
                ABSENT => 0,
                word if word & OUTPUTS != 0 => bases[1] + (word & !OUTPUTS) as usize,
                word => bases[0] + word as usize,
            };
            Some(Prepared {
                image: head[0] as usize,
                pointers: take(head[1])?.into_iter().map(address).collect(),
                ints: take(head[2])?.into_iter().map(|word| word as i64).collect(),
                floats: take(head[3])?.into_iter().map(|word| f32::from_bits(word as u32)).collect(),
                zeroed: take(head[4].checked_mul(2)?)?
                    .chunks_exact(2)
                    .map(|pair| [address(pair[0]), pair[1] as usize])
                    .collect(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn calls_arrive_as_they_were_sent() {
        let span = |region, offset| Some(Span { region, offset, bytes: 8 });
        let calls = [
            Call {
                image: 3,
                pointers: vec![span(Region::Inputs, 64), None, span(Region::Outputs, 128)],
                ints: vec![-1, i64::MAX],
                floats: vec![1e-5, f32::NAN],
                zeroed: span(Region::Outputs, 192).into_iter().collect(),
            },
            Call { image: 0, pointers: vec![], ints: vec![], floats: vec![], zeroed: vec![] },
        ];
        let decoded = decode(&encode(&calls).unwrap(), [0x1000, 0x10_0000]).unwrap();
        assert_eq!(decoded.len(), 2);
        assert_eq!((decoded[0].image, &decoded[0].pointers[..]), (3, &[0x1040, 0, 0x10_0080][..]));
        assert_eq!(decoded[0].ints, [-1, i64::MAX]);
        assert_eq!(decoded[0].floats[0].to_bits(), 1e-5f32.to_bits());
        assert!(decoded[0].floats[1].is_nan());
        assert_eq!((&decoded[0].zeroed[..], &decoded[1].zeroed[..]), (&[[0x10_00c0, 8]][..], &[][..]));
    }

    #[test]
    fn a_cut_batch_does_not_decode_and_a_huge_one_does_not_encode() {
        let call = Call { image: 0, pointers: vec![], ints: vec![0; 40], floats: vec![], zeroed: vec![] };
        let words = encode(std::slice::from_ref(&call)).unwrap();
        assert!(decode(&words[..words.len() - 1], [0, 0]).is_none());
        assert!(decode(&[1, 0, u64::MAX, 0, 0, 0], [0, 0]).is_none());
        assert!(decode(&[1, 0, 0, 0, 0, u64::MAX], [0, 0]).is_none());
        assert!(encode(&vec![call; 30_000]).is_none());
    }
}
