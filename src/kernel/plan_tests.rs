//! Launch plans at shapes: what comes out, and what is refused in which words.

use proptest::prelude::*;

use super::samples::{GEMM, NORM};
use super::{Argument, Facts, KernelError, KernelFile, MapSource, PlannedLaunch, Resolution, Swizzle};
use crate::op::{Dtype, ElementType, Operation, Shape, samples};

fn hopper() -> Facts {
    let facts = [("SMS", 132), ("SMEM_MAX", 232_448), ("CC", 90), ("L2", 50 << 20)];
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

struct At<'a> {
    op: &'a Operation,
    kernel: KernelFile,
    shape: Shape,
    dtype: Dtype,
    facts: Facts,
}

impl<'a> At<'a> {
    fn new(op: &'a Operation, text: &str, shape: &Shape, dtype: Dtype) -> Self {
        let kernel = KernelFile::parse(text).expect("parses");
        Self { op, kernel, shape: op.complete(shape).expect("complete"), dtype, facts: hopper() }
    }

    fn resolution(&self) -> Result<Resolution, KernelError> {
        self.kernel.resolve(&self.shape, self.dtype, &self.facts)
    }

    fn plan(&self) -> Result<Vec<PlannedLaunch>, KernelError> {
        let ints = self.op.ints(&self.shape).expect("complete");
        self.kernel.launches(self.op, &ints, &self.resolution()?, &self.facts)
    }

    fn refusal(&self) -> String {
        self.plan().expect_err("refused").to_string()
    }
}

fn norm(text: &str, rows: i64, cols: i64) -> Result<Vec<PlannedLaunch>, KernelError> {
    let op = samples::rmsnorm();
    At::new(&op, text, &Shape::from([("rows", rows), ("cols", cols)]), Dtype::F16).plan()
}

fn gemm_shape() -> Shape {
    Shape::from([("M", 256), ("N", 512), ("K", 128)])
}

#[test]
fn a_launch_gets_its_sizes_its_template_arguments_and_its_arguments_in_order() {
    let planned = norm(NORM, 1001, 4096).expect("plans");
    let wanted = PlannedLaunch {
        kernel: "rmsnorm<8, T, (2 > 1)>".into(),
        grid: [501, 1, 1],
        block: [32, 8, 1],
        shared: 1024,
        cluster: None,
        cooperative: false,
        pdl: false,
        args: vec![
            Argument::Tensor(0),
            Argument::Tensor(1),
            Argument::Tensor(2),
            Argument::Scratch(0),
            Argument::Symbol(0),
            Argument::Symbol(1),
            Argument::Scalar(0),
            Argument::Constant(2),
        ],
    };
    assert_eq!(planned, [wanted]);
}

#[test]
fn the_example_in_the_documentation_is_what_it_says() {
    let page = include_str!("../../docs/kernel-file.md");
    let example = page.split("# CUDA").nth(1).and_then(|part| part.split("---*/").next()).expect("an example");
    let front = &example[example.find("/*---").expect("front matter")..];
    let op = samples::rmsnorm();
    let at = At::new(&op, &format!("{front}---*/"), &Shape::from([("rows", 4097), ("cols", 1024)]), Dtype::Bf16);
    at.kernel.check_against(&op).expect("fits");
    let planned = at.plan().expect("plans");
    assert_eq!(
        (planned[0].kernel.as_str(), planned[0].grid, planned[0].block),
        ("rmsnorm<8>", [2049, 1, 1], [128, 2, 1])
    );
}

#[test]
fn when_chooses_launches_and_variants_change_their_instances() {
    let names = |rows, cols| -> Vec<String> {
        norm(NORM, rows, cols).expect("plans").into_iter().map(|launch| launch.kernel).collect()
    };
    assert_eq!(names(8, 4097), ["partial", "rmsnorm<8, T, (2 > 1)>"]);
    assert_eq!(names(8, 64), ["rmsnorm<1, T, (2 > 1)>"]);
}

#[test]
fn a_variant_can_be_for_a_device() {
    let op = samples::rmsnorm();
    let mut at = At::new(&op, NORM, &Shape::from([("rows", 8), ("cols", 4096)]), Dtype::F16);
    at.facts.insert("SMS".into(), 58);
    assert_eq!(at.plan().expect("plans")[0].kernel, "rmsnorm<1, T, (2 > 1)>");
}

#[test]
fn a_launch_without_blocks_is_left_out() {
    let none = NORM.replace("ceil_div(rows, ROWS)", "rows - 8");
    assert_eq!(norm(&none, 8, 100).expect("plans"), []);
    assert_eq!(norm(&none, 9, 100).expect("plans").len(), 1);
}

#[test]
fn a_shape_that_no_launch_is_for_is_refused() {
    let only = NORM.replace("pdl = true", "when = \"rows < 4\"");
    let error = norm(&only, 4, 100).expect_err("none is for it").to_string();
    assert!(error.contains("no launch is for shape cols=100 rows=4 in f16"), "{error}");
}

#[test]
fn overlapping_launches_are_in_order_where_the_device_cannot_overlap_them() {
    let op = samples::rmsnorm();
    let mut at = At::new(&op, NORM, &Shape::from([("rows", 8), ("cols", 5000)]), Dtype::F16);
    assert!(at.plan().expect("plans")[1].pdl);
    at.facts.insert("CC".into(), 80);
    assert!(!at.plan().expect("plans")[1].pdl);
}

#[test]
fn a_launch_that_nothing_is_in_front_of_overtakes_nothing() {
    assert!(!norm(NORM, 8, 100).expect("plans")[0].pdl);
}

#[test]
fn sizes_that_cuda_does_not_take_are_refused_with_the_size() {
    for (from, to, part) in [
        ("ceil_div(rows, ROWS)", "rows - 9", "grid.x `rows - 9` is -1; it must be between 0 and 2147483647"),
        ("ceil_div(rows, ROWS)", "rows * 1000000000", "grid.x"),
        ("[\"ceil_div(rows, ROWS)\"]", "[\"1\", \"65536\"]", "grid.y `65536` is 65536; it must be between 0 and 65535"),
        ("[\"ceil_div(rows, ROWS)\"]", "[\"1\", \"1\", \"65536\"]", "grid.z"),
        ("\"THREADS / 32\"", "\"0\"", "block.y `0` is 0; it must be between 1 and 1024"),
        ("\"THREADS / 32\"", "\"33\"", "a block has 1056 threads; it has at most 1024"),
        ("\"THREADS / 32\"", "\"1\", \"65\"", "block.z"),
        ("THREADS * 4", "232449", "shared memory is 232449 bytes; a block has at most 232448"),
        ("THREADS * 4", "-1", "shared memory is -1 bytes"),
        ("THREADS * 4", "THREADS / (rows - 8)", "division by zero"),
        ("THREADS * 4", "nothing", "unknown name `nothing`"),
        ("\"eps\"", "\"epsilon\"", "nothing is called `epsilon`"),
        ("pdl = true", "cluster = [\"0\"]", "cluster.x `0` is 0"),
        ("pdl = true", "cluster = [\"3\"]", "grid.x is 4; it must be a multiple of the cluster's 3"),
        ("pdl = true", "cluster = [\"4\", \"8\"]", "a cluster has 32 blocks; it has at most 16"),
    ] {
        let error = norm(&NORM.replace(from, to), 8, 100).expect_err(to).to_string();
        assert!(error.contains(part) && error.contains("launch 2 (rmsnorm"), "{to}: {error}");
    }
    let many = vec!["\"x\""; 513].join(", ");
    let error = norm(&NORM.replace("\"eps\"", &many), 8, 100).expect_err("many").to_string();
    assert!(error.contains("room for 4096"), "{error}");
    let wrong = NORM.replace("pdl = true", "when = \"1 / 0\"");
    assert!(
        norm(&wrong, 8, 100).expect_err("when").to_string().contains("launch 2 (rmsnorm<VEC, T, (ROWS > 1)>), when")
    );
}

#[test]
fn values_for_other_symbols_are_refused() {
    let op = samples::rmsnorm();
    let at = At::new(&op, NORM, &Shape::from([("rows", 8), ("cols", 8)]), Dtype::F16);
    let resolution = at.resolution().expect("resolves");
    assert!(at.kernel.launches(&op, &[8], &resolution, &at.facts).is_err());
}

#[test]
fn tensor_maps_are_in_bytes_and_packed_unless_strides_are_given() {
    let op = samples::matmul();
    let planned = At::new(&op, GEMM, &gemm_shape(), Dtype::Bf16).plan().expect("plans");
    assert_eq!(planned.len(), 1);
    let launch = &planned[0];
    assert_eq!((launch.kernel.as_str(), launch.grid, launch.cluster), ("gemm_wgmma<128>", [4, 2, 1], Some([2, 1, 1])));
    assert!(launch.cooperative && !launch.pdl && launch.shared == 65536);
    let [Argument::TensorMap(a), Argument::TensorMap(b), ..] = launch.args.as_slice() else { panic!("{launch:?}") };
    assert_eq!((a.source, a.dtype, a.rank()), (MapSource::Tensor(0), ElementType::Case, 3));
    assert_eq!((&a.dims[..], &a.strides_bytes[..]), (&[128, 256, 1][..], &[256, 65536][..]));
    assert_eq!((&a.extent[..], &a.elem_strides[..], a.swizzle), (&[64, 128, 1][..], &[1, 1, 1][..], Swizzle::Bytes128));
    assert_eq!((&b.dims[..], &b.elem_strides[..], b.swizzle), (&[512, 128, 1][..], &[1, 2, 1][..], Swizzle::None));
}

#[test]
fn the_first_tensor_map_of_a_name_that_holds_is_taken() {
    let op = samples::matmul();
    let planned = At::new(&op, GEMM, &gemm_shape().with("trans_b", 1), Dtype::F16).plan().expect("plans");
    let Argument::TensorMap(b) = &planned[0].args[1] else { panic!("{planned:?}") };
    assert_eq!(
        (b.source, &b.dims[..], &b.strides_bytes[..]),
        (MapSource::Tensor(1), &[128, 512, 1][..], &[256, 131_072][..])
    );
}

#[test]
fn a_tensor_map_can_describe_scratch() {
    let op = samples::matmul();
    let planned = At::new(&op, GEMM, &gemm_shape(), Dtype::F32).plan().expect("plans");
    assert_eq!(planned[0].kernel, "gemm_plain");
    let Argument::TensorMap(copy) = &planned[0].args[3] else { panic!("{planned:?}") };
    assert_eq!((copy.source, copy.dtype), (MapSource::Scratch(0), ElementType::F32));
    assert_eq!((&copy.dims[..], &copy.strides_bytes[..]), (&[512, 256][..], &[2048][..]));
}

#[test]
fn shapes_that_share_a_compilation_have_scratch_of_their_own_under_their_maps() {
    let op = samples::matmul();
    let at = At::new(&op, GEMM, &gemm_shape(), Dtype::F32);
    let shared = Resolution { scratch_elements: Vec::new(), ..at.resolution().expect("resolves") };
    let ints = op.ints(&at.shape).expect("complete");
    let planned = at.kernel.launches(&op, &ints, &shared, &at.facts);
    assert_eq!(planned.expect("plans"), at.plan().expect("plans"));
}

#[test]
fn tensor_maps_that_the_driver_does_not_take_are_refused() {
    let op = samples::matmul();
    let refusal = |from: &str, to: &str| At::new(&op, &GEMM.replace(from, to), &gemm_shape(), Dtype::F16).refusal();
    for (from, to, part) in [
        ("[\"BK\", \"BM\", \"1\"]", "[\"BK\", \"257\", \"1\"]", "box[1] is 257; it must be between 1 and 256"),
        ("[\"BK\", \"BM\", \"1\"]", "[\"BK\", \"0\", \"1\"]", "box[1] is 0"),
        (
            "[\"BK\", \"BM\", \"1\"]",
            "[\"BK + 8\", \"8\", \"1\"]",
            "box[0] is 144 bytes; swizzle 128B takes at most 128",
        ),
        ("[\"BK\", \"BM\", \"1\"]", "[\"12\", \"8\", \"1\"]", "box[0] is 24 bytes; it must be a multiple of 16"),
        ("\"128B\"", "\"64B\"", "swizzle 64B takes at most 64"),
        ("\"128B\"", "\"32B\"", "swizzle 32B takes at most 32"),
        (
            "[\"K\", \"M\", \"batch\"]",
            "[\"K - 1\", \"M\", \"batch\"]",
            "strides[0] is 254 bytes (127 elements); it must be a multiple of 16",
        ),
        ("[\"K\", \"M\", \"batch\"]", "[\"0\", \"M\", \"batch\"]", "dims[0] is 0; it must be between 1 and 2^32"),
        ("[\"K\", \"M\", \"batch\"]", "[\"K\", \"M * 100000000\", \"batch\"]", "dims[1] is 25600000000"),
        (
            "[\"K\", \"M\", \"batch\"]",
            "[\"K\", \"M\", \"batch + 1\"]",
            "it reaches element 65535 of `a`, which has 32768",
        ),
        ("[\"K\", \"M\", \"batch\"]", "[\"K * 20000000\", \"M\", \"batch\"]", "strides[1] is 2^40 bytes or more"),
        ("swizzle = \"128B\"", "strides = [\"-8\", \"8\"]", "strides[0] is -8 elements"),
        ("swizzle = \"128B\"", "strides = [\"8\", \"4611686018427387904\"]", "strides[1] is 2^40 bytes or more"),
        (
            "swizzle = \"128B\"",
            "elem_strides = [\"1\", \"9\", \"1\"]",
            "elem_strides[1] is 9; it must be between 1 and 8",
        ),
        ("swizzle = \"128B\"", "elem_strides = [\"1\", \"cols\", \"1\"]", "unknown name `cols`"),
        ("tensor = \"a\"", "tensor = \"M\"", "`M` is neither a tensor nor a scratch buffer"),
    ] {
        let error = refusal(from, to);
        assert!(error.contains(part) && error.contains("tensor map `map_a`"), "{to}: {error}");
    }
    let error = refusal("when = \"dtype_bytes == 2\"\n[[tensormap]]", "when = \"dtype_bytes == 4\"\n[[tensormap]]");
    assert!(error.contains("it takes the tensor map `map_a`, which is not made for shape"), "{error}");
}

#[test]
fn what_only_newer_gpus_have_is_refused_on_older_ones() {
    let op = samples::matmul();
    let mut at = At::new(&op, GEMM, &gemm_shape(), Dtype::F16);
    at.facts.insert("CC".into(), 86);
    assert!(at.refusal().contains("clusters need an sm_90; this device is sm_86"));
    let text = GEMM.replace("cluster = [\"2\"]\n", "");
    at.kernel = KernelFile::parse(&text).expect("parses");
    assert!(at.refusal().contains("tensor maps need an sm_90; this device is sm_86"));
}

#[test]
fn a_tensor_map_of_an_absent_tensor_is_refused() {
    let op = samples::matmul();
    let planned = |shape: Shape, text: &str| At::new(&op, text, &shape, Dtype::F16).plan();
    assert_eq!(planned(gemm_shape().with("has_bias", 1), GEMM).expect("there").len(), 2);
    let always = GEMM.replace("when = \"has_bias\"\n", "");
    let error = planned(gemm_shape(), &always).expect_err("absent").to_string();
    assert!(error.contains("`bias` is absent at shape") && error.contains("give the map a `when`"), "{error}");
}

#[test]
fn the_compiler_is_asked_for_every_kernel_that_can_be_launched_and_no_other() {
    let op = samples::matmul();
    let names = |dtype| {
        let at = At::new(&op, GEMM, &gemm_shape(), dtype);
        at.kernel.kernel_names(&at.resolution().expect("resolves"), &at.facts)
    };
    assert_eq!(names(Dtype::F16), ["gemm_wgmma<128>", "add_bias"]);
    assert_eq!(names(Dtype::F32), ["gemm_plain", "add_bias"]);
    let op = samples::rmsnorm();
    let special = NORM.replace("dtypes =", "specialize = [\"cols\"]\ndtypes =");
    let names = |text: &str, cols| {
        let at = At::new(&op, text, &Shape::from([("rows", 8), ("cols", cols)]), Dtype::F16);
        at.kernel.kernel_names(&at.resolution().expect("resolves"), &at.facts)
    };
    assert_eq!(names(NORM, 100), ["partial", "rmsnorm<8, T, (2 > 1)>"]);
    assert_eq!(names(&special, 100), ["rmsnorm<8, T, (2 > 1)>"]);
    assert_eq!(names(&special.replace("\"partial\"", "\"rmsnorm<8, T, (ROWS > 1)>\""), 5000).len(), 1);
}

const WORDS: [&str; 16] = [
    "0",
    "-1",
    "4611686018427387904",
    "rows",
    "cols",
    "VEC",
    "SMS",
    "1 / 0",
    "nothing",
    "x",
    "y",
    "sums",
    "8",
    "((",
    "eps",
    "65536",
];

proptest! {
    #[test]
    fn any_plan_is_made_or_refused_without_panicking(
        grid in proptest::collection::vec(0usize..16, 0..4),
        block in proptest::collection::vec(0usize..16, 0..4),
        dims in proptest::collection::vec(0usize..16, 0..6),
        extent in proptest::collection::vec(0usize..16, 0..6),
        args in proptest::collection::vec(0usize..16, 0..6),
        kernel in "[a-z<>(),A-Z8 ]{0,12}",
        rows in 0i64..i64::MAX,
    ) {
        let list = |picked: &[usize]| {
            picked.iter().map(|word| format!("\"{}\"", WORDS[*word])).collect::<Vec<_>>().join(", ")
        };
        let text = format!(
            "/*---\nop = \"rmsnorm\"\ndtypes = [\"f32\"]\n[tune]\nVEC = {{ value = 1, choices = [1] }}\n\
             [[scratch]]\nname = \"sums\"\ndtype = \"f32\"\nshape = [\"8\"]\n\
             [[tensormap]]\nname = \"map\"\ntensor = \"x\"\ndims = [{}]\nbox = [{}]\n\
             [[launch]]\nkernel = \"{kernel}\"\ngrid = [{}]\nblock = [{}]\nargs = [\"map\", {}]\n---*/",
            list(&dims), list(&extent), list(&grid), list(&block), list(&args)
        );
        if let Ok(kernel) = KernelFile::parse(&text) {
            let op = samples::rmsnorm();
            let _ = kernel.check_against(&op);
            let shape = Shape::from([("rows", rows), ("cols", 8)]);
            if let Ok(resolution) = kernel.resolve(&shape, Dtype::F32, &hopper()) {
                let _ = kernel.kernel_names(&resolution, &hopper());
                for launch in kernel.launches(&op, &[rows, 8], &resolution, &hopper()).unwrap_or_default() {
                    prop_assert!(!launch.grid.contains(&0) && launch.block.iter().product::<u32>() <= 1024);
                }
            }
        }
    }

    #[test]
    fn any_front_matter_with_launches_is_read_or_refused(body in "\\PC{0,120}", key in "(grid|block|args|when|box|dims)") {
        let _ = KernelFile::parse(&format!("/*---\nop = \"x\"\ndtypes = [\"f32\"]\n[[launch]]\n{key} = {body}\n---*/"));
        let _ = KernelFile::parse(&format!("/*---\nop = \"x\"\ndtypes = [\"f32\"]\n[[tensormap]]\n{key} = [\"{body}\"]\n---*/"));
        let _ = KernelFile::parse(&NORM.replace("rows", &body));
    }
}
