//! Calls that are recorded together: one begins early only where it waits for what it uses.

use super::*;
use warpsmith::backend::{Call, Region, Span};
use warpsmith::kernel::PlannedLaunch;

/// y = x + weight, slowly, and the next launch may begin at once; `FIRST` and `THEN` are what it does before and after that.
const STEP: &str = "/*---\nop = \"rmsnorm\"\ndtypes = [\"f32\"]\narch = [\"sm_80+\"]\n\
    [[launch]]\nkernel = \"step\"\ngrid = [\"rows\"]\nblock = [\"64\"]\nargs = [\"x\", \"weight\", \"y\", \"cols\", \"eps\"]\n---*/\n\
    extern \"C\" __global__ void step(const T *x, const T *weight, T *y, long long cols, float eps) {\n\
    ws_next_may_begin();\n const long long at = blockIdx.x * cols + threadIdx.x;\n float v = 0, w = 0;\n FIRST\n\
    for (int i = 0; i < 20000; i++) eps = fmaf(eps, 0.5f, 1e-9f);\n THEN\n\
    y[at] = ws_store(v + w + (eps > 1.0f ? eps : 0.0f)); }\n";

/// A name, what it does before and after it was slow, and whether it may begin early.
const STEPS: [(&str, &str, &str, bool); 5] = [
    ("waits at once", "ws_wait_for_previous(); v = x[at];", "w = weight[threadIdx.x];", true),
    ("reads a weight, then waits", "w = weight[threadIdx.x]; ws_wait_for_previous();", "v = x[at];", true),
    ("reads what is written, then waits", "v = x[at]; ws_wait_for_previous();", "w = weight[threadIdx.x];", false),
    (
        "waits, and reads as if nobody wrote",
        "ws_wait_for_previous(); v = __ldg(x + at);",
        "w = weight[threadIdx.x];",
        false,
    ),
    ("never waits", "v = x[at];", "w = weight[threadIdx.x];", false),
];

pub fn what_begins_early_has_waited(device: &Device) {
    const CALLS: usize = 12;
    let (op, facts) = (rmsnorm(), front_matter_facts(device.gpu.facts()));
    let shape = op.complete(&Shape::from([("rows", 264), ("cols", 64)])).unwrap();
    let ints = op.ints(&shape).unwrap();
    let can = device.gpu.facts().capability >= 90;
    for (name, first, then, may) in STEPS {
        let file = KernelFile::parse(&STEP.replace("FIRST", first).replace("THEN", then)).unwrap();
        let resolution = file.resolve(&shape, Dtype::F32, &facts).unwrap();
        let (one, never) = (std::slice::from_ref(&resolution), AtomicBool::new(false));
        let compiled =
            device.compiler.candidate(&op, &file, one, device.gpu.facts().capability, &facts, &never).unwrap();
        let image = Image::of_kernel(&op, &file, &resolution, &facts, compiled[0].clone());
        let desk: Rc<Desk> = Desk::new(&device.gpu, &|name, text| device.cubin(name, text)).unwrap();
        let bytes = 264 * 64 * 4;
        let mut arena = Arena::new(&desk, 1 << 20, (CALLS + 2) << 20, Placing::Packed).unwrap();
        let weight = arena.place(Region::Inputs, 64 * 4).unwrap();
        arena.fill(&weight, &mut |bytes| bytes.copy_from_slice(&1.0f32.to_le_bytes().repeat(64)));
        let values: Vec<Span> = (0..=CALLS).map(|_| arena.place(Region::Outputs, bytes).unwrap()).collect();
        values.iter().for_each(|span| arena.zero(span));
        let call = |pair: &[Span]| Call {
            image: 0,
            pointers: vec![Some(pair[0]), Some(weight), Some(pair[1])],
            ints: ints.clone(),
            floats: vec![1e-5],
            zeroed: Vec::new(),
        };
        let calls: Vec<Call> = values.windows(2).map(call).collect();
        let Image::Kernel(kernel) = &image else { unreachable!() };
        let plan: Vec<PlannedLaunch> = kernel.launches(&ints).unwrap();
        assert_eq!(kernel.may_begin_early(&plan, &calls[0]), may && can, "{name}");
        let conditions = Conditions { overlapped: true, ..Conditions::default() };
        let mut host = Host::start(&[&image], &arena, &conditions).unwrap();
        for _ in 0..20 {
            let took = host.run(&calls, LIMIT).unwrap();
            let last = arena.read(&values[CALLS]);
            let right = last.chunks_exact(4).all(|value| value == (CALLS as f32).to_le_bytes());
            assert!(right, "{name}: after {took:?} one had read what was not yet written");
            values[1..].iter().for_each(|span| arena.zero(span));
        }
    }
}
