//! What the judge does to a case's memory, and what it notices.

#![allow(clippy::unwrap_used)]

use super::arena::Arena;
use super::values::decode;
use crate::backend::{CaseMemory, Placing, Region, ScratchBuffer};
use crate::kernel::ScratchInit;
use crate::op::{Case, Dtype, ElementType, Operation, Shape, Stored, samples};

fn case(op: &Operation, shape: Shape, dtype: Dtype) -> Case {
    Case { shape: op.complete(&shape).unwrap(), dtype, input: None, setting: 0 }
}

fn scratch(init: ScratchInit) -> ScratchBuffer {
    ScratchBuffer { name: "partial".into(), elements: 37, dtype: ElementType::F32, init }
}

/// The bytes of each input that is there.
fn inputs(arena: &Arena, memory: &CaseMemory, copy: usize) -> Vec<Vec<u8>> {
    arena.inputs(memory, copy).into_iter().flatten().map(<[u8]>::to_vec).collect()
}

/// Two copies of a small matmul without bias, with one scratch buffer, drawn and poisoned.
fn placed(dtype: Dtype, init: ScratchInit) -> (Arena, CaseMemory) {
    let op = samples::matmul();
    let case = case(&op, Shape::from([("M", 7), ("N", 9), ("K", 11)]), dtype);
    let buffers = [scratch(init)];
    let (inputs, outputs) = CaseMemory::footprint::<Arena>(&op, &case, &buffers, 2, Placing::Packed).unwrap();
    let mut arena = Arena::new(inputs, outputs).unwrap();
    let mut memory = CaseMemory::place(&mut arena, &op, &case, &buffers, 2).unwrap();
    assert_eq!((arena.used(Region::Inputs), arena.used(Region::Outputs)), (inputs, outputs));
    for copy in 0..2 {
        memory.draw(&mut arena, copy, 5).unwrap();
        memory.poison(&mut arena, copy, 6 + copy as u64);
    }
    (arena, memory)
}

#[test]
fn copies_hold_the_same_numbers_at_other_addresses() {
    let (arena, memory) = placed(Dtype::Bf16, ScratchInit::Poison);
    assert_eq!(arena.inputs(&memory, 0), arena.inputs(&memory, 1));
    assert_ne!(arena.outputs(&memory, 0), arena.outputs(&memory, 1), "each has its own poison");
    assert_eq!(arena.outputs(&memory, 0)[0].len(), 7 * 9 * 2);
    let [first, second] = [0, 1].map(|copy| memory.call(3, copy));
    assert_eq!((first.image, &first.ints[..]), (3, &[1, 7, 9, 11, 0, 0][..]));
    assert_eq!(first.pointers.len(), 5);
    assert!(first.pointers[2].is_none(), "an absent bias is NULL");
    assert_eq!(first.pointers[0].unwrap().region, Region::Inputs);
    assert!(first.pointers[3..].iter().all(|span| span.unwrap().region == Region::Outputs));
    for (a, b) in first.pointers.iter().zip(&second.pointers).filter(|(a, _)| a.is_some()) {
        assert_ne!(a.unwrap().offset, b.unwrap().offset);
    }
}

#[test]
fn poison_is_never_plausible_and_never_the_same() {
    for (dtype, stored) in [(Dtype::F16, Stored::F16), (Dtype::Bf16, Stored::Bf16), (Dtype::F32, Stored::F32)] {
        let op = samples::rmsnorm();
        let case = case(&op, Shape::from([("rows", 301), ("cols", 401)]), dtype);
        let (inputs, outputs) = CaseMemory::footprint::<Arena>(&op, &case, &[], 1, Placing::Packed).unwrap();
        let mut arena = Arena::new(inputs, outputs).unwrap();
        let mut memory = CaseMemory::place(&mut arena, &op, &case, &[], 1).unwrap();
        memory.poison(&mut arena, 0, 1);
        let first = arena.outputs(&memory, 0)[0].to_vec();
        let values = decode(&first, stored, vec![]);
        assert!(values.iter().all(|v| v.is_nan() || v.abs() >= dtype.largest() / 5.0), "{dtype}");
        let share =
            |what: &dyn Fn(&f64) -> bool| values.iter().filter(|v| what(v)).count() as f64 / values.len() as f64;
        assert!(share(&|v| v.is_nan()) > 0.4 && share(&|v| v.is_finite()) > 0.4, "{dtype}");
        assert!(share(&|v| v.is_sign_negative()) > 0.4 && share(&|v| v.is_sign_positive()) > 0.4, "{dtype}");
        memory.poison(&mut arena, 0, 2);
        let again = arena.outputs(&memory, 0)[0];
        let size = stored.bytes();
        let repeated = first.chunks(size).zip(again.chunks(size)).filter(|(a, b)| a == b).count();
        assert!(repeated < values.len() / 50, "{dtype}: {repeated} elements are what they were");
    }
}

#[test]
fn a_byte_written_outside_any_buffer_is_noticed() {
    let (mut arena, memory) = placed(Dtype::F16, ScratchInit::Poison);
    assert_eq!(memory.check_zones(&mut arena, 0), Ok(()));
    let spans = memory.call(0, 0).pointers;
    for (index, name) in [(0, "a"), (1, "b"), (3, "c"), (4, "partial")] {
        let [before, after] = arena.red_zones(&spans[index].unwrap());
        for (zone, at, said) in [
            (before, before.bytes - 1, "1 bytes before its start"),
            (before, 0, "256 bytes before its start"),
            (after, 0, "1 bytes after its end"),
            (after, after.bytes - 1, "after its end"),
        ] {
            arena.bytes_mut(&zone)[at] ^= 1;
            let message = memory.check_zones(&mut arena, 0).unwrap_err();
            assert!(message.contains(&format!("`{name}`")) && message.contains(said), "{message}");
            assert_eq!(memory.check_zones(&mut arena, 1), Ok(()), "the other copy is not to blame");
            arena.bytes_mut(&zone)[at] ^= 1;
        }
    }
    assert_eq!(memory.check_zones(&mut arena, 0), Ok(()));
}

#[test]
fn scratch_is_as_the_front_matter_wants_it() {
    let (arena, memory) = placed(Dtype::F32, ScratchInit::Poison);
    let span = memory.call(0, 0).pointers[4].unwrap();
    assert!(decode(arena.bytes(&span), Stored::F32, vec![]).iter().all(|v| v.is_nan() || v.abs() >= 1e30));
    let (mut arena, memory) = placed(Dtype::F32, ScratchInit::ZeroKept);
    let span = memory.call(0, 0).pointers[4].unwrap();
    assert!(arena.bytes(&span).iter().all(|byte| *byte == 0));
    arena.bytes_mut(&span)[5] = 1;
    assert!(memory.check_zones(&mut arena, 0).is_err());
}

#[test]
fn scratch_that_starts_at_zero_is_zeroed_by_each_launch_and_not_before() {
    let (mut arena, memory) = placed(Dtype::F32, ScratchInit::Zero);
    let span = memory.call(0, 0).pointers[4].unwrap();
    assert!(decode(arena.bytes(&span), Stored::F32, vec![]).iter().all(|v| v.is_nan() || v.abs() >= 1e30));
    assert_eq!(memory.call(0, 0).zeroed, [span]);
    arena.bytes_mut(&span)[5] = 1;
    assert_eq!(memory.check_zones(&mut arena, 0), Ok(()));
    for other in [ScratchInit::Poison, ScratchInit::ZeroKept] {
        assert_eq!(placed(Dtype::F32, other).1.call(0, 0).zeroed, []);
    }
}

#[test]
fn exactly_one_element_changes_and_by_much() {
    let (mut arena, memory) = placed(Dtype::Bf16, ScratchInit::Poison);
    let mut tensors = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let before = inputs(&arena, &memory, 0);
        let old = before.concat();
        let change = memory.change_one(&mut arena, 0, seed).unwrap();
        let new = inputs(&arena, &memory, 0).concat();
        let elements: std::collections::BTreeSet<usize> =
            (0..old.len()).filter(|i| old[*i] != new[*i]).map(|i| i / 2).collect();
        assert_eq!(elements.len(), 1);
        assert!(change.after.abs() > 2.0 * change.before.abs() && change.after * change.before <= 0.0, "{change:?}");
        assert_ne!(inputs(&arena, &memory, 0), before);
        tensors.insert(change.tensor);
        memory.draw(&mut arena, 0, 5).unwrap();
        assert_eq!(inputs(&arena, &memory, 0), before, "drawn again, it is what it was");
    }
    assert!(tensors.contains("a") && tensors.contains("b"));
    assert_eq!(memory.check_zones(&mut arena, 0), Ok(()), "the judge's own writing stays within the buffers");
}

#[test]
fn an_adversarial_input_is_drawn_where_the_case_asks_for_it() {
    let op = samples::rmsnorm();
    let mut case = case(&op, op.adversarial[0].shape.clone(), Dtype::F32);
    case.input = Some("infinite".into());
    let (inputs, outputs) = CaseMemory::footprint::<Arena>(&op, &case, &[], 1, Placing::Packed).unwrap();
    let mut arena = Arena::new(inputs, outputs).unwrap();
    let memory = CaseMemory::place(&mut arena, &op, &case, &[], 1).unwrap();
    memory.draw(&mut arena, 0, 9).unwrap();
    let x = decode(arena.inputs(&memory, 0)[0].unwrap(), Stored::F32, vec![]);
    assert!(x.iter().any(|v| v.is_infinite()) && x.iter().any(|v| v.is_nan()));
    assert!(CaseMemory::place(&mut arena, &op, &case, &[], 1).is_err(), "a second set does not fit");
}
