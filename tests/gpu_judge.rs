//! The judge on a GPU against the judge on the processor: draws, guards, oracles and comparisons are the same.
//!
//! Where no device opens, or nothing compiles for it, each test says why and passes.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::rc::Rc;

use half::{bf16, f16};
use warpsmith::backend::cpu;
use warpsmith::backend::cuda::judge::{Arena, Desk, Oracle, compare, compare_some, device_sources, oracle_source};
use warpsmith::backend::cuda::{Compiler, Gpu, Unit};
use warpsmith::backend::{Arena as _, CaseMemory, Exchange, Placing, Poison, Region, Span};
use warpsmith::evaluation::ErrorStats;
use warpsmith::op::{Case, Dtype, OpSource, Operation, Role, Shape, Stored};
use warpsmith::rng::Stream;

const OPERATIONS: &[&str] = &[
    "matmul",
    "rmsnorm",
    "rotary_embedding",
    "flash_attention",
    "fused_mlp",
    "softmax",
    "layernorm",
    "cross_entropy",
    "reduce",
];

/// Multiply-adds and elements of a case that the processor's oracle answers in a moment.
const MACS: u64 = 1 << 23;
const ELEMENTS: u64 = 1 << 20;

struct Device {
    desk: Rc<Desk>,
    compiler: Compiler,
    arch: String,
    cache: tempfile::TempDir,
}

impl Device {
    /// The first GPU; `None`, with the reason on the terminal, where there is none to test on.
    fn open() -> Option<Self> {
        let skip = |why: String| eprintln!("skipped: {why}");
        let gpu = Gpu::open(0).map_err(|error| skip(error.to_string())).ok()?;
        let cache = tempfile::tempdir().unwrap();
        let program = Some(PathBuf::from(env!("CARGO_BIN_EXE_warpsmith")));
        let compiler = Compiler::new(cache.path(), Some(gpu.facts().driver), program);
        let compiler = compiler.map_err(|error| skip(error.to_string())).ok()?;
        let arch = format!("sm_{}", gpu.facts().capability);
        let desk = Desk::new(&gpu, &|name, text| build(&compiler, &arch, name, text)).unwrap();
        Some(Self { desk, compiler, arch, cache })
    }

    fn oracle(&self, op: &Operation) -> Oracle {
        Oracle::compile(&self.desk, op, &|name, text| build(&self.compiler, &self.arch, name, text)).unwrap()
    }
}

fn build(compiler: &Compiler, arch: &str, name: &str, text: &str) -> Result<Vec<u8>, String> {
    let unit = Unit {
        name: format!("{name}.cu"),
        source: text.to_owned(),
        arch: arch.to_owned(),
        options: vec![],
        names: vec![],
        numbers: Default::default(),
    };
    let compiled = compiler.trusted(&[unit]).map_err(|error| error.to_string())?;
    Ok(compiled[0].cubin.to_vec())
}

fn operation(name: &str) -> Operation {
    let read = |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok();
    Operation::load(&read, name).unwrap()
}

/// Every shape, shrunk where it is not small enough, with its input.
fn cases(op: &Operation, dtype: Dtype) -> Vec<Case> {
    let plain = op.sweep.iter().chain(&op.edges).chain(&op.decode).chain([&op.smoke]);
    let plain = plain.map(|shape| (shape, None));
    let hostile = op.adversarial.iter().map(|input| (&input.shape, Some(input.name.clone())));
    let mut cases = Vec::new();
    for (shape, input) in plain.chain(hostile) {
        let macs = if input.is_none() { MACS } else { u64::MAX };
        let (shape, _) = op.shrink_to(&op.complete(shape).unwrap(), macs, ELEMENTS).unwrap();
        cases.push(Case { shape, dtype, input, setting: 0 });
    }
    cases
}

/// A case on the device with its inputs drawn, and what they are.
fn place(device: &Device, op: &Operation, case: &Case, seed: u64) -> (Arena, CaseMemory, Vec<Option<Vec<u8>>>) {
    let (inputs, outputs) = CaseMemory::footprint::<Arena>(op, case, &[], 1, Placing::Packed).unwrap();
    let mut arena = Arena::new(&device.desk, inputs, outputs, Placing::Packed).unwrap();
    let memory = CaseMemory::place(&mut arena, op, case, &[], 1).unwrap();
    memory.draw(&mut arena, 0, seed).unwrap();
    let inputs = memory.inputs(0).iter().map(|span| span.as_ref().map(|span| arena.read(span))).collect();
    (arena, memory, inputs)
}

fn encode(values: impl Iterator<Item = f64>, stored: Stored) -> Vec<u8> {
    match stored {
        Stored::F16 => values.flat_map(|v| f16::from_f32(v as f32).to_ne_bytes()).collect(),
        Stored::Bf16 => values.flat_map(|v| bf16::from_f32(v as f32).to_ne_bytes()).collect(),
        Stored::F32 | Stored::I64 | Stored::I32 | Stored::U8 | Stored::I8 => {
            values.flat_map(|v| (v as f32).to_ne_bytes()).collect()
        }
    }
}

/// Both judges' statistics agree: counts and places exactly, sums up to the order they were taken in.
fn same(gpu: &ErrorStats, cpu: &ErrorStats, what: &str) {
    let near = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-5 * a.abs().max(b.abs());
    let text = format!("{what}\ngpu {gpu:?}\ncpu {cpu:?}");
    assert_eq!((gpu.elements, gpu.outside), (cpu.elements, cpu.outside), "{text}");
    // The oracles' last bits differ, and with them what lies in the middle between two numbers.
    assert!(gpu.misrounded.abs_diff(cpu.misrounded) <= 2, "{text}");
    assert!(near(gpu.worst, cpu.worst) || (gpu.worst < 1e-2 && cpu.worst < 1e-2), "{text}");
    for (a, b) in [(gpu.relative_rms, cpu.relative_rms), (gpu.tensor_ratio, cpu.tensor_ratio)] {
        assert!(near(a, b) || (a - b).abs() < 1e-7, "{text}");
    }
    assert!(near(gpu.row_ratio, cpu.row_ratio) || (gpu.row_ratio - cpu.row_ratio).abs() < 1e-6, "{text}");
    if cpu.worst > 1e-2 && cpu.worst < 1e300 {
        assert!(near(gpu.got, cpu.got) && near(gpu.want, cpu.want), "{text}");
    }
}

#[test]
fn what_is_drawn_on_the_device_is_what_the_processor_draws() {
    let Some(device) = Device::open() else { return };
    for &name in OPERATIONS {
        let op = operation(name);
        for dtype in Dtype::ALL {
            drawn_alike(&device, &op, dtype);
        }
    }
    assert!(device.desk.failure().is_none(), "{:?}", device.desk.failure());
}

fn drawn_alike(device: &Device, op: &Operation, dtype: Dtype) {
    for case in cases(op, dtype) {
        let (_, _, inputs) = place(device, op, &case, 77);
        let specs = op.tensors.iter().filter(|tensor| tensor.role == Role::Input);
        for (tensor, bytes) in specs.zip(inputs) {
            let Some(bytes) = bytes else { continue };
            let mut wanted = vec![0; bytes.len()];
            let how = op.draw_of(tensor, &case).unwrap().unwrap();
            warpsmith::op::draw(op, tensor, &case.shape, dtype, how, 77, &mut wanted).unwrap();
            let differs = bytes.iter().zip(&wanted).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{} {dtype} {case:?} `{}`", op.name, tensor.name);
        }
    }
}

/// An operation of PyTorch's: whole numbers of every width, and its own hostile draws.
fn whole() -> Operation {
    let mut toml = "name = \"whole\"\nsummary = \"s\"\noracle = \"torch\"\nsymbols = []\nflops = \"1\"\nshrink = []\nprimary = 0\n\
                    smoke = {}\nsweep = [{}]\nedges = []\nrandom = {}\n"
        .to_owned();
    for (name, dtype, draw) in [
        ("x", "T", "draw = { dist = \"normal\" }"),
        ("a", "i64", "draw = { dist = \"index\", scale = \"9000\", shift = \"-3\" }"),
        ("b", "i32", "draw = { dist = \"index\", scale = \"9000\", shift = \"-3\" }"),
        ("c", "i8", "draw = { dist = \"index\", scale = \"255\", shift = \"-127\" }"),
        ("d", "u8", "draw = { dist = \"index\", scale = \"2\" }"),
        ("out", "T", ""),
    ] {
        let role = if draw.is_empty() { "output" } else { "input" };
        toml += &format!(
            "[[tensors]]\nname = \"{name}\"\nrole = \"{role}\"\nshape = [\"37\", \"259\"]\ndtype = \"{dtype}\"\n{draw}\n"
        );
    }
    let python = "def reference(x, a, b, c, d):\n    return x\n".into();
    OpSource { name: "whole".into(), toml, header: String::new(), python }.operation().unwrap()
}

#[test]
fn whole_numbers_and_runs_of_signs_are_drawn_on_the_device_as_on_the_processor() {
    let Some(device) = Device::open() else { return };
    let op = whole();
    let all = cases(&op, Dtype::Bf16);
    let runs = |case: &&Case| case.input.as_ref().is_some_and(|name| name.starts_with("runs"));
    assert!(all.iter().filter(runs).count() > 0);
    for dtype in Dtype::ALL {
        drawn_alike(&device, &op, dtype);
    }
    assert!(device.desk.failure().is_none(), "{:?}", device.desk.failure());
}

#[test]
fn oracle_and_comparison_on_the_device_say_what_the_processor_says() {
    let Some(device) = Device::open() else { return };
    let compiler = cpu::Compiler::new(device.cache.path()).unwrap();
    let build = |name: &str, text: &str, flags: &[&str]| {
        compiler.compile_trusted(name, text, flags).map(|image| image.path).map_err(|error| error.to_string())
    };
    for &name in OPERATIONS {
        let op = operation(name);
        let (ours, theirs) = (device.oracle(&op), cpu::Oracle::compile(&build, &op).unwrap());
        for dtype in Dtype::ALL {
            for (number, case) in cases(&op, dtype).into_iter().enumerate() {
                let what = format!("{name} {dtype} {} {:?}", op.label(&case.shape), case.input);
                let (mut arena, memory, inputs) = place(&device, &op, &case, number as u64);
                let views: Vec<Option<&[u8]>> = inputs.iter().map(Option::as_deref).collect();
                let expected = theirs.expected(&case, &views, 5).unwrap();
                let noise = Stream::new(number as u64, "noise");
                // As a kernel may answer: nearly right, with every kind of mistake here and there, or not at all.
                for mistakes in [0, 1, 50] {
                    let mut outputs = Vec::new();
                    for (tensor, span) in expected.tensors.iter().zip(memory.outputs(0)) {
                        let stored = op.tensor(&tensor.name).unwrap().dtype.stored(dtype);
                        let count = tensor.values.len() as u64;
                        let mut values: Vec<f64> =
                            (0..count).map(|i| tensor.values[i as usize] * (1.0 + 1e-4 * noise.normal(i))).collect();
                        for turn in 0..mistakes {
                            let at = noise.below(count + turn, count) as usize;
                            let wrong = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -values[at], 65504.0, 1e9];
                            values[at] = wrong[noise.below(turn, wrong.len() as u64) as usize];
                        }
                        let bytes = encode(values.into_iter(), stored);
                        arena.fill(&span, &mut |to| to.copy_from_slice(&bytes));
                        outputs.push(bytes);
                    }
                    let given: Vec<&[u8]> = outputs.iter().map(Vec::as_slice).collect();
                    let cpu = cpu::compare(&op, &case, &given, &expected).unwrap();
                    let taken = arena.digests(&memory.outputs(0)).unwrap();
                    let gpu = compare(&ours, &memory, &arena, 0, &taken, 5).unwrap_or_else(|e| panic!("{what}: {e}"));
                    same(&gpu, &cpu, &format!("{what}, {mistakes} mistakes"));
                }
                assert!(device.desk.failure().is_none(), "{what}: {:?}", device.desk.failure());
            }
        }
    }
}

#[test]
fn a_few_elements_on_the_device_are_what_the_processor_says_they_are() {
    let Some(device) = Device::open() else { return };
    let compiler = cpu::Compiler::new(device.cache.path()).unwrap();
    let build = |name: &str, text: &str, flags: &[&str]| {
        compiler.compile_trusted(name, text, flags).map(|image| image.path).map_err(|error| error.to_string())
    };
    for &name in OPERATIONS {
        let op = operation(name);
        let (ours, theirs) = (device.oracle(&op), cpu::Oracle::compile(&build, &op).unwrap());
        let mut looked_at = 0;
        for dtype in Dtype::ALL {
            for (number, case) in cases(&op, dtype).into_iter().enumerate() {
                let what = format!("{name} {dtype} {} {:?}", op.label(&case.shape), case.input);
                let (mut arena, memory, inputs) = place(&device, &op, &case, number as u64);
                let views: Vec<Option<&[u8]>> = inputs.iter().map(Option::as_deref).collect();
                let expected = theirs.expected(&case, &views, 5).unwrap();
                let mut outputs = Vec::new();
                for (tensor, span) in expected.tensors.iter().zip(memory.outputs(0)) {
                    let stored = op.tensor(&tensor.name).unwrap().dtype.stored(dtype);
                    let bytes = encode(tensor.values.iter().copied(), stored);
                    arena.fill(&span, &mut |to| to.copy_from_slice(&bytes));
                    outputs.push((span, bytes, stored));
                }
                let sample = op.sample(&case.shape, number as u64, u64::MAX).unwrap();
                let given: Vec<&[u8]> = outputs.iter().map(|(_, bytes, _)| &bytes[..]).collect();
                let places = theirs.expected_some(&case, &views, &given, &sample).unwrap();
                let right = compare_some(&ours, &memory, &arena, 0, &sample).unwrap_or_else(|e| panic!("{what}: {e}"));
                let count: usize = places.iter().map(Vec::len).sum();
                assert_eq!((right.elements, right.outside), (count as u64, 0), "{what}: {right:?}");
                looked_at += count;
                // One of the elements is wrong: with it, and no other, what is said of the sample changes.
                let finite = |place: &&warpsmith::backend::Place| place.value.is_finite();
                for (place, (span, _, stored)) in
                    places.iter().zip(&outputs).filter_map(|(all, output)| Some((all.iter().find(finite)?, output)))
                {
                    let wrong = encode([f64::NAN].into_iter(), *stored);
                    arena.poke(span, place.index * wrong.len(), &wrong);
                    let found = compare_some(&ours, &memory, &arena, 0, &sample).unwrap();
                    assert!(found.outside > 0, "{what}: {place:?}, {found:?}");
                    let back = encode([place.value].into_iter(), *stored);
                    arena.poke(span, place.index * back.len(), &back);
                }
                let again = compare_some(&ours, &memory, &arena, 0, &sample).unwrap();
                assert_eq!(again.outside, 0, "{what}: {again:?}");
                assert!(device.desk.failure().is_none(), "{what}: {:?}", device.desk.failure());
            }
        }
        assert!(looked_at > 100, "{name}: {looked_at}");
    }
}

#[test]
fn looking_at_a_few_elements_takes_little_time_at_large_shapes() {
    let Some(device) = Device::open() else { return };
    for &name in OPERATIONS {
        let op = operation(name);
        let oracle = device.oracle(&op);
        let shape = op.complete(&op.sweep[op.primary]).unwrap();
        let case = Case { shape, dtype: Dtype::F16, input: None, setting: 0 };
        let (arena, memory, _) = place(&device, &op, &case, 3);
        let mut took = Vec::new();
        for seed in 0..7 {
            let sample = op.sample(&case.shape, seed, u64::MAX).unwrap();
            arena.seal().unwrap();
            device.desk.gpu().settle().unwrap();
            let begin = std::time::Instant::now();
            compare_some(&oracle, &memory, &arena, 0, &sample).unwrap();
            took.push(begin.elapsed());
        }
        took.sort();
        eprintln!("{name} {}: {:?} for a few elements", op.label(&case.shape), took[3]);
    }
    assert!(device.desk.failure().is_none(), "{:?}", device.desk.failure());
}

#[test]
fn poison_is_never_plausible_and_every_byte_of_it_is_guarded() {
    let Some(device) = Device::open() else { return };
    let mut arena = Arena::new(&device.desk, 1 << 20, 1 << 20, Placing::Packed).unwrap();
    let spans: Vec<Span> = [2, 6, 4098, 70_002, 131_072].map(|n| arena.place(Region::Outputs, n).unwrap()).to_vec();
    for (stored, size) in [(Stored::F16, 2), (Stored::Bf16, 2), (Stored::F32, 4)] {
        let whole = |span: &Span| Span { bytes: span.bytes / size * size, ..*span };
        let zones = spans.iter().flat_map(|span| arena.red_zones(span).to_vec());
        let stretches: Vec<Poison> = spans
            .iter()
            .map(whole)
            .chain(zones)
            .filter(|span| span.bytes > 0)
            .zip(1..)
            .map(|(span, key)| Poison { span, stored, key })
            .collect();
        arena.poison(&stretches);
        assert_eq!(arena.disturbed(&stretches), None);
        let bytes = arena.read(&whole(&spans[4]));
        let (mut not_finite, mut count) = (0, 0);
        for element in bytes.chunks_exact(size) {
            let value = match stored {
                Stored::F16 => f16::from_ne_bytes([element[0], element[1]]).to_f64() / 65504.0,
                Stored::Bf16 => bf16::from_ne_bytes([element[0], element[1]]).to_f64() / f64::from(f32::MAX),
                _ => f64::from(f32::from_ne_bytes(element.try_into().unwrap())) / f64::from(f32::MAX),
            };
            assert!(!value.is_finite() || value.abs() > 0.2);
            not_finite += usize::from(!value.is_finite());
            count += 1;
        }
        assert!((0.45..0.55).contains(&(not_finite as f64 / f64::from(count))));
        for (index, stretch) in stretches.iter().enumerate() {
            for at in [0, stretch.span.bytes / 2, stretch.span.bytes - 1] {
                let one = Span { offset: stretch.span.offset + at, bytes: 1, ..stretch.span };
                let before = arena.read(&one);
                arena.poke(&one, 0, &[before[0] ^ 0x10]);
                let found = arena.disturbed(&stretches).unwrap();
                assert_eq!((found.index, found.first, found.last), (index, at, at));
                arena.poke(&one, 0, &before);
            }
        }
    }
    let mut zeros = spans[3];
    zeros.bytes -= 1;
    arena.zero(&zeros);
    assert_eq!(arena.not_zero(&zeros), None);
    for at in [0, 9, 65_536, zeros.bytes - 1] {
        arena.poke(&zeros, at, &[1]);
        assert_eq!(arena.not_zero(&zeros), Some(at));
        arena.poke(&zeros, at, &[0]);
    }
    assert!(device.desk.failure().is_none(), "{:?}", device.desk.failure());
}

#[test]
fn an_input_that_was_written_to_is_named_and_the_same_bytes_have_the_same_digest() {
    let Some(device) = Device::open() else { return };
    let mut arena = Arena::new(&device.desk, 1 << 20, 1 << 20, Placing::Packed).unwrap();
    let inputs: Vec<Span> = [10, 4096, 300_001].map(|n| arena.place(Region::Inputs, n).unwrap()).to_vec();
    let copy = arena.place(Region::Outputs, 300_001).unwrap();
    for span in inputs.iter().chain([&copy]) {
        arena.fill(span, &mut |bytes| bytes.iter_mut().zip(0..).for_each(|(byte, i)| *byte = (i * 7 % 251) as u8));
    }
    assert_eq!(arena.changed_input(&inputs), None);
    let digests = arena.digests(&[inputs[2], copy]).unwrap();
    assert_eq!(digests[0], digests[1]);
    // The judge's own writes are known; a kernel's are not. The kernel is a copy on the device.
    arena.poke(&inputs[1], 17, &[99]);
    assert_eq!(arena.changed_input(&inputs), None);
    let gpu = device.desk.gpu();
    gpu.copy(arena.address(&inputs[2]) + 300_000, arena.address(&inputs[0]), 1).unwrap();
    assert_eq!(arena.changed_input(&inputs), Some(2));
    assert_eq!(arena.gather(&inputs[0], 2, &[4, 0]), [56, 63, 0, 7]);
    // What the judge changes afterwards does not make it right again, where it was changed or elsewhere.
    for at in [300_000, 299_999, 0] {
        arena.poke(&inputs[2], at, &[1]);
        assert_eq!(arena.changed_input(&inputs), Some(2));
    }
    arena.exchange(&[Exchange { span: inputs[2], size: 1, from: 5, to: 300_000 }]);
    assert_eq!(arena.changed_input(&inputs), Some(2));
    assert!(device.desk.failure().is_none(), "{:?}", device.desk.failure());
}

#[test]
fn elements_that_take_each_others_places_leave_the_digests_right() {
    let Some(device) = Device::open() else { return };
    let mut arena = Arena::new(&device.desk, 1 << 20, 1 << 20, Placing::Packed).unwrap();
    let inputs: Vec<Span> = [10, 4096, 300_002].map(|n| arena.place(Region::Inputs, n).unwrap()).to_vec();
    for span in &inputs {
        arena.fill(span, &mut |bytes| bytes.iter_mut().zip(0..).for_each(|(byte, i)| *byte = (i * 7 % 251) as u8));
    }
    // Many in one word, in the last word, and everywhere.
    let mut changes: Vec<Exchange> = (0..5).map(|to| Exchange { span: inputs[0], size: 2, from: 4 - to, to }).collect();
    changes.extend((0..512).map(|to| Exchange { span: inputs[1], size: 8, from: 100, to }));
    changes.extend((0..300).map(|n| Exchange { span: inputs[2], size: 2, from: n * 101, to: 150_000 - n * 7 }));
    let to = Exchange { span: inputs[2], size: 2, from: 3, to: 150_000 };
    let wanted = arena.gather(&inputs[2], 2, &[0]);
    arena.exchange(&changes);
    assert_eq!(arena.changed_input(&inputs), None);
    assert_eq!(arena.gather(&inputs[2], 2, &[150_000]), wanted);
    let wanted = arena.gather(&inputs[2], 2, &[3]);
    arena.exchange(&[to]);
    assert_eq!(arena.gather(&inputs[2], 2, &[150_000]), wanted);
    let eights = arena.gather(&inputs[1], 8, &[0, 511, 100]);
    assert!(eights[..8] == eights[8..16] && eights[..8] == eights[16..]);
    arena.seal().unwrap();
    assert_eq!(arena.changed_input(&inputs), None);
    assert!(device.desk.failure().is_none(), "{:?}", device.desk.failure());
}

#[test]
fn sealing_takes_nothing_from_the_judge() {
    let Some(device) = Device::open() else { return };
    let op = operation("rmsnorm");
    let oracle = device.oracle(&op);
    let case = Case {
        shape: op.complete(&Shape::from([("rows", 7), ("cols", 130)])).unwrap(),
        dtype: Dtype::F32,
        input: None,
        setting: 0,
    };
    let (arena, memory, _) = place(&device, &op, &case, 3);
    let outputs = memory.outputs(0);
    let mut stats = Vec::new();
    for _ in 0..2 {
        let taken = arena.digests(&outputs).unwrap();
        stats.push(compare(&oracle, &memory, &arena, 0, &taken, 1).unwrap());
        arena.seal().unwrap();
        device.desk.dirty(5).unwrap();
        device.desk.flush(6).unwrap();
        device.desk.litter(7).unwrap();
    }
    // What stands in the output is nothing in particular, NaN perhaps, which does not equal itself.
    assert_eq!(format!("{:?}", stats[0]), format!("{:?}", stats[1]));
    assert!(device.desk.failure().is_none(), "{:?}", device.desk.failure());
}

#[test]
fn the_device_code_and_every_oracle_compile_for_every_architecture() {
    let cache = tempfile::tempdir().unwrap();
    let program = Some(PathBuf::from(env!("CARGO_BIN_EXE_warpsmith")));
    let compiler = match Compiler::new(cache.path(), None, program) {
        Ok(compiler) => compiler,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let mut sources: Vec<(String, String)> = device_sources().map(|(name, text)| (name.to_owned(), text)).into();
    for &name in OPERATIONS {
        sources.push((format!("oracle_{name}"), oracle_source(&operation(name)).unwrap()));
    }
    let mut units = Vec::new();
    for arch in ["sm_80", "sm_90a", "sm_100"] {
        for (name, text) in &sources {
            units.push(Unit {
                name: format!("{name}.cu"),
                source: text.clone(),
                arch: arch.to_owned(),
                options: vec![],
                names: vec![],
                numbers: Default::default(),
            });
        }
    }
    for (unit, compiled) in units.iter().zip(compiler.trusted(&units).unwrap()) {
        assert!(compiled.resources.iter().all(|kernel| kernel.spill_stores == 0), "{} {}", unit.name, compiled.log);
    }
}
