//! What a candidate on a GPU can and cannot reach.

use super::*;

/// A kernel that does this in its first launch, fenced, at a size that is a whole number of units of alignment.
fn fenced(device: &Device, trap: &str) -> Stage {
    let conditions = Conditions { rubbish_between: true, ..Conditions::default() };
    Stage::under(device, trap, Dtype::F32, (16, 64), 1, (Placing::Fenced, conditions))
}

pub fn an_input_is_only_read(device: &Device) {
    let mut stage = Stage::new(device, "((T *)x)[0] = x[1];", Dtype::F16, (4, 64), 1);
    let fault = stage.host.launch(&stage.memory.call(0, 0), LIMIT).unwrap_err();
    assert!(fault.to_string().contains("wrote to memory that it may only read"), "{fault}");
}

pub fn past_a_fence(device: &Device) {
    let mut stage = fenced(device, "y[0] = ((const volatile T *)x)[gridDim.x * cols];");
    let fault = stage.host.launch(&stage.memory.call(0, 0), LIMIT).unwrap_err();
    assert!(matches!(fault, Fault::Crash { .. }), "{fault}");
}

pub fn inside_its_fences(device: &Device) {
    let mut stage = fenced(device, "");
    let (memory, arena) = (&stage.memory, &mut stage.arena);
    stage.host.launch(&memory.call(0, 0), LIMIT).unwrap();
    let taken = stage.host.take(memory, arena, 0);
    let stats = compare(&stage.oracle, memory, arena, 0, &taken, 1).unwrap();
    assert_eq!(stats.outside, 0, "{stats:?}");
    memory.check_zones(arena, 0).unwrap();
    // What stands before a fenced buffer is a red zone, up to where its memory begins.
    for span in memory.outputs(0) {
        let [before, after] = arena.red_zones(&span);
        assert!(before.bytes > 1 << 20 && after.bytes < 256);
    }
    arena.reset();
    assert_eq!(arena.place(warpsmith::backend::Region::Outputs, 100).unwrap().bytes, 100);
}

pub fn a_note_behind_the_last_buffer(device: &Device) {
    let mut stage = Stage::new(device, "((float *)scales)[100000] = 1;", Dtype::F16, (4, 64), 1);
    stage.host.launch(&stage.memory.call(0, 0), LIMIT).unwrap();
    let why = stage.memory.check_zones(&mut stage.arena, 0).unwrap_err();
    assert!(why.contains("outside `scales`, 3999") && why.contains("bytes after its end"), "{why}");
}

pub fn what_access_costs(device: &Device) {
    let desk: Rc<Desk> = Desk::new(&device.gpu, &|name, text| device.cubin(name, text)).unwrap();
    for megabytes in [64usize, 600, 8000] {
        let begin = Instant::now();
        let bytes = megabytes << 20;
        let mut arena = Arena::new(&desk, bytes, bytes, Placing::Packed).unwrap();
        let made = begin.elapsed();
        let span = arena.place(warpsmith::backend::Region::Inputs, bytes - (1 << 20)).unwrap();
        arena.place(warpsmith::backend::Region::Outputs, bytes - (1 << 20)).unwrap();
        arena.zero(&span);
        let mut costs = Vec::new();
        for turn in 0..9 {
            arena.seal().unwrap();
            device.gpu.settle().unwrap();
            let begin = Instant::now();
            // One change opens the inputs and the judge's papers; sealing takes both away.
            arena.exchange(&[warpsmith::backend::Exchange { span, size: 2, from: turn, to: 1000 + turn }]);
            device.gpu.settle().unwrap();
            let opened = begin.elapsed();
            let begin = Instant::now();
            arena.seal().unwrap();
            costs.push((opened + begin.elapsed(), opened));
        }
        costs.sort();
        let (both, opened) = costs[costs.len() / 2];
        let begin = Instant::now();
        drop(arena);
        let gone = begin.elapsed();
        let begin = Instant::now();
        drop(Arena::new(&desk, bytes, bytes, Placing::Packed).unwrap());
        eprintln!(
            "{megabytes} MB: made in {made:?}, changed and sealed {both:?} (changed {opened:?}), gone in {gone:?}, again {:?}",
            begin.elapsed()
        );
    }
    let begin = Instant::now();
    for turn in 0..20 {
        desk.flush(turn).unwrap();
    }
    device.gpu.settle().unwrap();
    eprintln!("a sweep of the cache: {:?}", begin.elapsed() / 20);
    assert!(desk.failure().is_none(), "{:?}", desk.failure());
}
