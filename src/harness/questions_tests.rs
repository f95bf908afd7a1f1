//! What the questions of the second tier are, operation by operation.

#![allow(clippy::unwrap_used)]
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use super::questions::{HUGE, Question, questions};
use super::topic::Topic;
use super::ways::way_at;
use crate::backend::CaseLimits;
use crate::kernel::{Facts, KernelFile};
use crate::op::{Case, Dtype, Operation, Role, Shape, TargetShape};
use crate::workspace::{embedded, embedded_names};

fn limits() -> CaseLimits {
    CaseLimits {
        macs: 1 << 26,
        macs_twice: u64::MAX,
        elements: 1 << 23,
        hostile_share: NonZeroU64::MIN,
        sample_macs: 1 << 22,
        timed_bytes: 1 << 30,
        repeats: 3,
        again: 0,
        least_flops: 1,
        threads_vary: true,
    }
}

fn of(name: &str, free_bytes: u64, seed: u64) -> (Operation, Vec<Question>) {
    let op = Operation::load(&|path| embedded(path).map(str::to_owned), name).unwrap();
    let target = [TargetShape { shape: op.primary_shape().unwrap(), dtype: Dtype::F16, calls: 1 }];
    let asked = questions(&op, &target, &Dtype::ALL, &limits(), free_bytes, seed, &|_, _| None).unwrap();
    (op, asked)
}

#[test]
fn every_topic_comes_early_whatever_the_operation() {
    let names = embedded_names("reference/").filter_map(|name| name.strip_prefix("reference/")?.strip_suffix(".toml"));
    for name in names {
        let (op, asked) = of(name, 1 << 38, 1);
        let first: BTreeSet<Topic> = asked.iter().take(16).map(|question| question.topic).collect();
        let others = usize::from(op.scalars.iter().any(|scalar| !scalar.others.is_empty()));
        assert!(first.len() >= 8 + others, "{name}: {first:?}");
        for question in &asked {
            op.complete(&question.case.shape).unwrap();
        }
    }
}

#[test]
fn larger_sizes_come_one_two_and_three_at_a_time() {
    let (op, asked) = of("matmul", 1 << 38, 2);
    let timed = op.primary_shape().unwrap();
    let larger =
        |question: &Question| op.shrink.iter().filter(|it| question.case.shape.get(it) > timed.get(it)).count();
    let counts: BTreeSet<usize> =
        asked.iter().filter(|question| question.topic == Topic::LongerSizes).map(larger).collect();
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn round_sizes_that_no_larger_power_of_two_divides_come_soon() {
    for (name, symbol) in [("matmul", "K"), ("softmax", "cols"), ("flash_attention", "S_kv")] {
        let (_, asked) = of(name, 1 << 38, 6);
        let sizes = asked.iter().filter(|question| question.topic == Topic::RoundSizes).take(20);
        let sizes: BTreeSet<i64> = sizes.filter_map(|question| question.case.shape.get(symbol)).collect();
        let odd = |unit: i64| sizes.iter().filter(|size| **size % unit == 0 && **size / unit % 2 == 1).count();
        assert!(odd(256) > 1 && odd(128) > 0, "{name}: {sizes:?}");
    }
}

#[test]
fn hostile_inputs_come_with_flags_and_arguments_that_they_were_not_made_for() {
    for (name, input, flag) in [
        ("matmul", "not_finite", "has_bias"),
        ("rotary_embedding", "not_finite", "interleaved"),
        ("flash_attention", "one_outlier", "causal"),
    ] {
        let (op, asked) = of(name, 1 << 38, 8);
        let of_input = |question: &&Question| question.case.input.as_deref() == Some(input);
        let values: BTreeSet<Option<i64>> =
            asked.iter().filter(of_input).map(|question| question.case.shape.get(flag)).collect();
        assert_eq!(values.len(), 2, "{name}");
        for question in &asked {
            let hostile = op.hostile_inputs().find(|it| Some(&it.name) == question.case.input.as_ref());
            assert!(hostile.is_none_or(|hostile| op.is_defined(hostile, &question.case.shape).unwrap()));
        }
    }
    let (_, asked) = of("rmsnorm", 1 << 38, 8);
    let settings: BTreeSet<u32> = asked
        .iter()
        .filter(|question| question.case.input.as_deref() == Some("tiny_rows"))
        .map(|question| question.case.setting)
        .collect();
    assert!((0..4).all(|listed| settings.contains(&listed)), "{settings:?}");
}

/// The questions about a shipped kernel on a device with these facts.
fn of_kernel(path: &str, facts: &Facts) -> (Operation, KernelFile, Vec<Question>) {
    let kernel = KernelFile::parse(embedded(path).unwrap()).unwrap();
    let op = Operation::load(&|path| embedded(path).map(str::to_owned), &kernel.front.op).unwrap();
    let target = [TargetShape { shape: op.primary_shape().unwrap(), dtype: Dtype::F16, calls: 1 }];
    let ways = |shape: &Shape, dtype| way_at(&op, &kernel, facts, shape, dtype);
    let asked = questions(&op, &target, &Dtype::ALL, &limits(), 1 << 38, 6, &ways).unwrap();
    (op, kernel, asked)
}

fn hopper() -> Facts {
    [("SMS", 132), ("SMEM_MAX", 227 << 10), ("CC", 90), ("L2", 60 << 20)]
        .map(|(name, value)| (name.into(), value))
        .into()
}

fn launched(op: &Operation, kernel: &KernelFile, case: &Case) -> Vec<(String, [u32; 3])> {
    way_at(op, kernel, &hopper(), &case.shape, case.dtype).unwrap().launches
}

#[test]
fn every_hostile_input_comes_on_every_way_through_a_kernel() {
    let (op, kernel, asked) = of_kernel("kernels/cuda/softmax.cu", &hopper());
    let mut inputs: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for question in asked.iter().filter(|question| question.topic == Topic::EachWay) {
        for (name, _) in launched(&op, &kernel, &question.case) {
            inputs.entry(name).or_default().insert(question.case.input.as_deref().unwrap());
        }
    }
    let ways: Vec<&str> = inputs.keys().map(String::as_str).collect();
    assert_eq!(ways, ["placed_rows", "shared_rows", "softmax"]);
    // Those that come in 16 bits, the type of the smallest shapes.
    let of_sixteen_bits =
        op.hostile_inputs().filter(|hostile| hostile.dtypes.is_empty() || hostile.dtypes.contains(&Dtype::F16));
    let names: BTreeSet<&str> = of_sixteen_bits.map(|hostile| hostile.name.as_str()).collect();
    for (way, inputs) in &inputs {
        let missing: Vec<&&str> = names.difference(inputs).collect();
        assert!(missing.len() <= 1, "{way}: {missing:?}");
    }
    // As small as it goes: rows that are drawn need two on each multiprocessor.
    let placed = asked.iter().filter(|question| question.topic == Topic::EachWay).map(|question| &question.case);
    let placed = placed.filter(|case| launched(&op, &kernel, case)[0].0 == "placed_rows");
    assert!(placed.clone().count() > 0);
    assert!(placed.clone().all(|case| case.shape.get("rows") < Some(4 * 132)), "{:?}", placed.collect::<Vec<_>>());
}

#[test]
fn each_launch_comes_with_more_blocks_than_sixteen_bits_count() {
    for (path, kernels) in [
        ("kernels/cuda/softmax.cu", vec!["softmax"]),
        ("kernels/cuda/rotary_embedding.cu", vec!["rotate"]),
        ("kernels/cuda/rmsnorm.cu", vec!["aligned", "ragged"]),
    ] {
        let (op, kernel, asked) = of_kernel(path, &hopper());
        let many = asked.iter().filter(|question| question.topic == Topic::ManyBlocks);
        let blocks: BTreeMap<String, u32> = many
            .flat_map(|question| launched(&op, &kernel, &question.case))
            .map(|(name, grid)| (name.split('<').next().unwrap().to_owned(), *grid.iter().max().unwrap()))
            .collect();
        for name in kernels {
            assert!(blocks.get(name).is_some_and(|blocks| *blocks > 32768), "{path}: {name} of {blocks:?}");
        }
    }
}

#[test]
fn each_size_comes_far_beyond_all_that_is_listed() {
    let (op, asked) = of("softmax", 1 << 38, 6);
    let far = asked.iter().filter(|question| question.topic == Topic::FarSizes);
    let shapes: Vec<&Shape> = far.map(|question| &question.case.shape).collect();
    assert!(shapes.iter().any(|shape| shape.get("cols") > Some(100_000)), "{shapes:?}");
    assert!(shapes.iter().any(|shape| shape.get("rows") > Some(65_536)), "{shapes:?}");
    assert!(shapes.iter().all(|shape| op.all_elements(shape).unwrap() <= limits().elements));
}

#[test]
fn each_size_comes_far_beyond_once_before_one_comes_again() {
    let (op, asked) = of("flash_attention", 1 << 38, 6);
    let grown = |question: &Question| {
        let beyond = |symbol: &&String| {
            let listed = [&op.smoke].into_iter().chain(&op.sweep).chain(&op.edges);
            let most = listed.filter_map(|shape| op.complete(shape).unwrap().get(symbol)).max().unwrap();
            question.case.shape.get(symbol).unwrap() > most
        };
        op.symbols.iter().find(beyond).unwrap().clone()
    };
    let far: Vec<String> = asked.iter().filter(|question| question.topic == Topic::FarSizes).map(grown).collect();
    let sizes: BTreeSet<&String> = far.iter().collect();
    assert!(sizes.len() >= 4, "{sizes:?}");
    // A round may lack one for which there is no room at that size.
    let first: BTreeSet<&String> = far.iter().take(sizes.len()).collect();
    assert!(first.len() + 1 >= sizes.len(), "{far:?}");
    let soonest: Vec<&Case> = asked
        .iter()
        .filter(|question| question.topic == Topic::FarSizes)
        .map(|question| &question.case)
        .take(first.len() - 1)
        .collect();
    let elements: Vec<u64> = soonest.iter().map(|case| op.all_elements(&case.shape).unwrap()).collect();
    assert!(elements.is_sorted(), "what is soon answered comes first: {elements:?}");
    assert!(soonest.iter().all(|case| case.dtype == Dtype::F16), "as it is timed: {soonest:?}");
}

#[test]
fn a_size_is_often_a_multiple_of_another() {
    let (_, asked) = of("flash_attention", 1 << 38, 8);
    let mixed = asked.iter().filter(|question| question.topic == Topic::AnySizes).take(60);
    let of_shape = |question: &Question, symbol| question.case.shape.get(symbol).unwrap();
    let grouped = mixed.filter(|question| {
        let (heads, of_keys) = (of_shape(question, "H"), of_shape(question, "H_kv"));
        of_keys > 1 && heads / of_keys > 5
    });
    assert!(grouped.count() >= 3);
}

#[test]
fn each_size_meets_sizes_of_the_others_that_no_listed_shape_has_with_it() {
    let (op, asked) = of("flash_attention", 1 << 38, 5);
    let mixed: Vec<_> = asked.iter().filter(|question| question.topic == Topic::AnySizes).take(300).collect();
    assert!(mixed.len() == 300, "{}", mixed.len());
    let sizes = |shape: &Shape| {
        ["B", "H", "H_kv", "S_q", "S_kv", "D", "causal", "bshd"].map(|symbol| shape.get(symbol).unwrap())
    };
    let shapes: Vec<[i64; 8]> = mixed.iter().map(|question| sizes(&question.case.shape)).collect();
    let any = |holds: fn(&[i64; 8]) -> bool| shapes.iter().filter(|shape| holds(shape)).count();
    let counts = [
        any(|[_, _, _, s_q, s_kv, d, causal, _]| *d == 64 && (2..16).contains(s_q) && s_kv > s_q && *causal == 1),
        any(|[_, h, h_kv, ..]| h / h_kv > 5),
        any(|[.., d, _, _]| (65..128).contains(d) && *d != 80),
        any(|[b, h, ..]| b * h > 64),
        any(|[.., d, _, bshd]| *bshd == 1 && *d > 128),
    ];
    assert!(counts.iter().all(|count| *count >= 2), "{counts:?}");
    for question in mixed {
        assert!(op.all_elements(&question.case.shape).unwrap() <= limits().elements);
    }
}

#[test]
fn floating_point_arguments_are_asked_about_that_nobody_listed() {
    for name in ["rmsnorm", "layernorm", "flash_attention"] {
        let (op, asked) = of(name, 1 << 38, 6);
        let drawn = asked.iter().take(200).filter(|question| question.case.setting > op.other_settings());
        let values: Vec<f32> = drawn.map(|question| op.scalars_of(&question.case).unwrap()[0]).collect();
        let different: BTreeSet<u32> = values.iter().map(|value| value.to_bits()).collect();
        assert!(different.len() >= 10, "{name}: {values:?}");
        assert!(values.iter().all(|value| (0.9e-9..1.6).contains(value)), "{name}: {values:?}");
    }
}

#[test]
fn the_order_is_the_seeds() {
    let [one, again, other] = [3, 3, 4].map(|seed| of("softmax", 1 << 38, seed).1);
    assert_eq!(one, again);
    assert_ne!(one, other);
}

#[test]
fn a_gpu_with_80_gb_is_asked_about_tensors_beyond_2_31_elements_with_rows_as_people_have_them() {
    for name in ["reduce", "rmsnorm", "softmax", "layernorm", "cross_entropy"] {
        let (op, asked) = of(name, 60 << 30, 5);
        let huge: Vec<&Question> = asked.iter().filter(|question| question.topic == Topic::HugeTensors).collect();
        assert!(!huge.is_empty(), "{name}");
        for question in huge {
            let row = op
                .tensors
                .iter()
                .filter_map(|tensor| op.dimensions(tensor, &question.case.shape).ok()?.last().copied());
            assert!(row.max().unwrap() < 1 << 20, "{name} {}", question.case.shape);
        }
    }
}

#[test]
fn a_tensor_goes_beyond_2_31_elements_by_each_size_and_no_result_is_a_sum_of_as_many_terms() {
    for (name, grown) in [
        ("matmul", &["M", "N", "K"][..]),
        ("fused_mlp", &["D", "H"]),
        ("flash_attention", &["S_q", "S_kv"]),
        ("reduce", &["rows", "cols"]),
    ] {
        for seed in 0..5 {
            let (op, asked) = of(name, 130 << 30, seed);
            let huge: Vec<&Shape> =
                asked.iter().filter(|it| it.topic == Topic::HugeTensors).map(|it| &it.case.shape).collect();
            let primary = op.primary_shape().unwrap();
            let longest = grown.iter().filter_map(|symbol| primary.get(symbol)).max();
            for symbol in grown {
                assert!(huge.iter().any(|shape| shape.get(symbol) > longest), "{name} by {symbol}: {huge:?}");
            }
            for shape in huge {
                let results = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
                let results: usize = results.map(|tensor| op.elements(tensor, shape).unwrap()).sum();
                let terms = op.macs(shape).unwrap() / results as u64;
                assert!(terms < 1 << 20, "{name} {shape}: {terms} terms");
            }
        }
    }
}

#[test]
fn what_memory_does_not_allow_is_not_asked() {
    let (_, asked) = of("softmax", 1 << 31, 5);
    assert!(asked.iter().all(|question| question.topic != Topic::HugeTensors));
    let (op, asked) = of("softmax", 1 << 38, 5);
    let huge: Vec<u64> = asked
        .iter()
        .filter(|question| question.topic == Topic::HugeTensors)
        .map(|question| op.all_elements(&question.case.shape).unwrap())
        .collect();
    assert!(!huge.is_empty() && huge.iter().all(|elements| *elements > HUGE && *elements <= 1 << 37));
}
