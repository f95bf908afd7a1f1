//! The page through which judge and child speak, beside two pipes that wake the other.
//!
//! The candidate can write to its head. Nothing the judge reads there is believed: times are the judge's own, results are
//! read from the tensors, and what stands there only words a failure. What follows the head the child can only read, and the
//! judge wipes it when the child has read it.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use serde::{Deserialize, Serialize};

use crate::backend::{Call, Region, Span};

/// Bytes of it all: the head, then what the judge says: how to start, or a batch of calls.
pub(super) const BYTES: usize = 8 << 20;
/// Bytes of the head: the header, then room for a message of the child's. A whole number of pages on every system.
pub(super) const HEAD: usize = 1 << 16;
/// Bytes of a message behind the header.
pub(super) const MESSAGE: usize = HEAD - size_of::<Header>();
/// Words (u64) behind the head.
pub(super) const WORDS: usize = (BYTES - HEAD) / 8;

/// What the child says through its pipe, in words of eight bytes: the upper half is the go word for [`wake::DONE`], so that
/// nobody can say it who was not told to go, and zero else.
pub(super) mod wake {
    /// Start-up is done.
    pub(in super::super) const HELLO: u32 = b'H' as u32;
    /// The calls are decoded, the go word is being watched.
    pub(in super::super) const READY: u32 = b'R' as u32;
    /// The calls have returned.
    pub(in super::super) const DONE: u32 = b'D' as u32;
    /// Start-up failed; the head has the reason.
    pub(in super::super) const FAILED: u32 = b'F' as u32;

    /// One of these with its upper half.
    pub(in super::super) const fn word(what: u32, token: u32) -> u64 {
        what as u64 | (token as u64) << 32
    }
}

/// What the judge says through its pipe.
pub(super) const RUN: u64 = b'C' as u64;

/// What the child noted when it died.
pub(super) mod note {
    /// Nothing.
    pub(in super::super) const NONE: u32 = 0;
    /// A fault at an address.
    pub(in super::super) const FAULT: u32 = 1;
    /// A fault where its stack would be, had it more.
    pub(in super::super) const STACK: u32 = 2;
    /// A system call that is not allowed; `detail` is its number.
    pub(in super::super) const SYSCALL: u32 = 3;
    /// The time stamp counter was read.
    pub(in super::super) const CLOCK: u32 = 4;
    /// The page had calls that do not decode: the child's own mistake, not the candidate's.
    pub(in super::super) const CALLS: u32 = 5;
    /// A read of the inputs where they may not be read, a write to them, and the same of the outputs; `detail` is the offset.
    pub(in super::super) const OUTSIDE: [[u32; 2]; 2] = [[6, 7], [8, 9]];
}

/// The page's head.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Header {
    /// Zero until the batch may run, then a number that nobody can foresee (futex).
    pub(super) go: AtomicU32,
    /// One of [`note`].
    pub(super) note: AtomicU32,
    /// Belongs to the note.
    pub(super) detail: AtomicI64,
    /// Not zero where a launch left registers changed that are not its own to change: the call's number plus one.
    pub(super) registers: AtomicU32,
    /// Bytes of the heap that were in use when the batch came.
    pub(super) in_use: AtomicU64,
    /// Bytes of the message behind the header.
    pub(super) message: AtomicU32,
    /// Words behind the head; bytes, where they are how to start.
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

/// What of a region a child may touch: stretches of whole pages, in order, and a number that differs where they do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Visible {
    pub(super) version: u64,
    /// First byte and the one behind the last.
    pub(super) stretches: Vec<[usize; 2]>,
}

/// Calls as words, and what may be touched of inputs and outputs meanwhile; `None` where they do not fit.
pub(super) fn encode(calls: &[Call], visible: &[Visible; 2]) -> Option<Vec<u64>> {
    let mut words = Vec::new();
    for Visible { version, stretches } in visible {
        words.extend([*version, stretches.len() as u64]);
        words.extend(stretches.as_flattened().iter().map(|end| *end as u64));
    }
    words.push(calls.len() as u64);
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

/// What `words` say: what may be touched, and the calls, with regions at the addresses `[inputs, outputs]`.
pub(super) fn decode(words: &[u64], bases: [usize; 2]) -> Option<([Visible; 2], Vec<Prepared>)> {
    let mut words = words.iter().copied();
    let mut take = |n: u64| -> Option<Vec<u64>> {
        let n = usize::try_from(n).ok().filter(|n| *n <= WORDS)?;
        let taken: Vec<u64> = words.by_ref().take(n).collect();
        (taken.len() == n).then_some(taken)
    };
    let mut region = || {
        let head = take(2)?;
        let stretches = take(head[1].checked_mul(2)?)?;
        let stretches = stretches.chunks_exact(2).map(|pair| [pair[0] as usize, pair[1] as usize]).collect();
        Some(Visible { version: head[0], stretches })
    };
    let visible = [region()?, region()?];
    let count = take(1)?[0];
    let calls = (0..count)
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
        .collect::<Option<_>>()?;
    Some((visible, calls))
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
        let stretches = |stretches: &[[usize; 2]]| Visible { version: 7, stretches: stretches.to_vec() };
        let visible = [stretches(&[[0, 4096], [8192, 12288]]), stretches(&[])];
        let words = encode(&calls, &visible).unwrap();
        let (seen, decoded) = decode(&words, [0x1000, 0x10_0000]).unwrap();
        assert_eq!(seen, visible);
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
        let nothing = [Visible::default(), Visible::default()];
        let words = encode(std::slice::from_ref(&call), &nothing).unwrap();
        assert!(decode(&words[..words.len() - 1], [0, 0]).is_none());
        assert!(decode(&[0, 0, 0, 0, 1, 0, u64::MAX, 0, 0, 0], [0, 0]).is_none());
        assert!(decode(&[0, 0, 0, 0, 1, 0, 0, 0, 0, u64::MAX], [0, 0]).is_none());
        assert!(decode(&[0, u64::MAX, 0, 0, 0], [0, 0]).is_none());
        assert!(encode(&vec![call; 30_000], &nothing).is_none());
    }
}
