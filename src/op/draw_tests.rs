//! What is drawn: distributions, specials, roundings.

#![allow(clippy::unwrap_used)]
use std::collections::BTreeSet;

use super::draw::{bf16_bits, draw, share_of_groups_with_rows};
use super::{Distribution, Draw, Dtype, ElementType, RowScale, Shape, Special, samples};
use crate::rng::Stream;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
}

fn drawn(rows: i64, cols: i64, how: &Draw, dtype: Dtype, seed: u64) -> Vec<u8> {
    let op = samples::rmsnorm();
    let shape = Shape::from([("rows", rows), ("cols", cols)]);
    let mut out = vec![0; (rows * cols) as usize * dtype.bytes()];
    draw(&op, &op.tensors[0], &shape, dtype, how, seed, &mut out).unwrap();
    out
}

fn plain(dist: Distribution) -> Draw {
    Draw { dist, scale: None, shift: None, rows: RowScale::None, specials: vec![], like: None }
}

#[test]
fn an_element_depends_only_on_seed_name_and_index() {
    let how = plain(Distribution::Normal);
    let large = drawn(300, 1000, &how, Dtype::F32, 9);
    let small = drawn(3, 1000, &how, Dtype::F32, 9);
    assert_eq!(large[..small.len()], small[..], "threads and sizes do not matter");
    let stream = Stream::new(9, "x");
    let values = floats(&large);
    assert!((0..300_000).all(|i| (values[i] - stream.normal(i as u64) as f32).abs() <= 1e-6));
    assert_ne!(drawn(3, 1000, &how, Dtype::F32, 10), small);
}

#[test]
fn sixteen_bits_are_rounded_to_nearest_even() {
    let how = Draw { scale: Some("3".parse().unwrap()), ..plain(Distribution::Normal) };
    let wide = floats(&drawn(5, 333, &how, Dtype::F32, 4));
    for (value, bytes) in wide.iter().zip(drawn(5, 333, &how, Dtype::F16, 4).chunks_exact(2)) {
        assert_eq!(bytes, half::f16::from_f32(*value).to_ne_bytes());
    }
    for (value, bytes) in wide.iter().zip(drawn(5, 333, &how, Dtype::Bf16, 4).chunks_exact(2)) {
        assert_eq!(bytes, half::bf16::from_f32(*value).to_ne_bytes());
    }
}

#[test]
fn every_sixteen_bit_pattern_and_its_neighbours_round_as_half_rounds_them() {
    for bits in
        (0..=u16::MAX).flat_map(|high| [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| u32::from(high) << 16 | low))
    {
        let value = f32::from_bits(bits);
        assert_eq!(bf16_bits(value), half::bf16::from_f32(value).to_bits(), "{bits:#x}");
    }
}

#[test]
fn rows_differ_in_magnitude_where_asked() {
    let ones = Draw { rows: RowScale::Wide, ..plain(Distribution::Constant) };
    let values = floats(&drawn(200, 7, &ones, Dtype::F32, 1));
    assert!(values.chunks(7).all(|row| row.iter().all(|v| *v == row[0] && v.log2().fract() == 0.0)));
    let (low, high) = values.iter().fold((f32::MAX, 0f32), |(l, h), v| (l.min(*v), h.max(*v)));
    assert!(low <= 1.0 / 32.0 && high >= 32.0 && low >= 1.0 / 64.0 && high <= 64.0);
    let mild = Draw { rows: RowScale::Mild, ..plain(Distribution::Constant) };
    assert!(floats(&drawn(200, 7, &mild, Dtype::F32, 1)).iter().all(|v| (0.5..2.0).contains(v)));
}

#[test]
fn rows_that_repeat_the_first_are_as_large_or_half_or_a_quarter_as_large() {
    let how = Draw { rows: RowScale::Repeated, ..plain(Distribution::Normal) };
    // Longer than a block.
    let values = floats(&drawn(40, 2500, &how, Dtype::F32, 3));
    let rows: Vec<&[f32]> = values.chunks(2500).collect();
    let factor = |row: &[f32]| row[7] / rows[0][7];
    assert!(rows.iter().all(|row| row.iter().zip(rows[0]).all(|(v, first)| *v == first * factor(row))));
    let mut sizes: Vec<f32> = rows.iter().map(|row| row[7].abs()).collect();
    sizes.sort_by(f32::total_cmp);
    sizes.dedup();
    assert!(sizes.len() == 3 && sizes[2] == 4.0 * sizes[0] && sizes[1] == 2.0 * sizes[0], "{sizes:?}");
}

#[test]
fn specials_replace_the_places_asked_for_from_a_drawn_row_on() {
    let specials = vec![Special::scattered(f64::INFINITY, Some(1), 2), Special::scattered(7.0, None, 5)];
    let how = Draw { specials, ..plain(Distribution::Alternating) };
    let mut ordinary = [0, 0];
    let mut widths = BTreeSet::new();
    for seed in 0..40 {
        // A row longer than a block, so that the places cross its parts.
        let values = floats(&drawn(10, 2500, &how, Dtype::F32, seed));
        let rows: Vec<&[f32]> = values.chunks(2500).collect();
        let infinite = |row: &[f32]| row.iter().filter(|v| v.is_infinite()).count();
        let sevens: Vec<usize> = (0..10).filter(|row| rows[*row].iter().all(|v| *v == 7.0)).collect();
        assert_eq!(sevens, [sevens[0], sevens[0] + 5], "{seed}");
        let odd = (0..10).find(|row| infinite(rows[*row]) > 0).unwrap() % 2;
        for (row, values) in rows.iter().enumerate().filter(|(row, _)| !sevens.contains(row)) {
            assert_eq!(infinite(values), usize::from(row % 2 == odd), "{seed}, {row}");
            let plain = values.iter().enumerate().filter(|(_, v)| v.is_finite());
            let width =
                (0..4).find(|width| plain.clone().all(|(j, v)| *v == if j >> width & 1 == 0 { 1.0 } else { -1.0 }));
            widths.insert(width.unwrap());
        }
        for (count, row) in ordinary.iter_mut().zip([0, 9]) {
            *count += usize::from(infinite(rows[row]) == 0 && !sevens.contains(&row));
        }
    }
    assert!(ordinary.iter().all(|count| (4..36).contains(count)), "{ordinary:?}");
    assert_eq!(widths.len(), 4);
}

#[test]
fn a_row_of_runs_has_runs_of_a_length_of_its_own_whose_signs_are_drawn() {
    let mut lengths = BTreeSet::new();
    for seed in 0..20 {
        // Longer than a block.
        for row in floats(&drawn(8, 2500, &plain(Distribution::Runs), Dtype::F32, seed)).chunks(2500) {
            assert!(row.iter().all(|v| v.abs() == 1.0));
            let is_in_runs = |length: usize| row.chunks(length).all(|run| run.iter().all(|v| *v == run[0]));
            let length = (0..11).rev().map(|power| 1 << power).find(|length| is_in_runs(*length)).unwrap();
            let negative = row.chunks(length).filter(|run| run[0] < 0.0).count();
            let count = 2500usize.div_ceil(length);
            assert!(count < 64 || (count / 4..=3 * count / 4).contains(&negative), "{negative} of {count}");
            lengths.insert(length);
        }
    }
    assert!(lengths.len() > 8 && lengths.contains(&1024), "{lengths:?}");
}

#[test]
fn a_run_stands_together_at_the_beginning_of_its_row_or_anywhere() {
    let how = Draw { specials: vec![Special::run(7.0, 2048, 2)], ..plain(Distribution::Constant) };
    let mut lengths = BTreeSet::new();
    let mut at_the_beginning = 0;
    for seed in 0..60 {
        let values = floats(&drawn(4, 5000, &how, Dtype::F32, seed));
        for row in values.chunks(5000) {
            let run: Vec<usize> = (0..5000).filter(|j| row[*j] == 7.0).collect();
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            assert_eq!(last - first + 1, run.len(), "{seed}");
            assert!(run.len().is_power_of_two() && run.len() <= 2048 || *last == 4999, "{seed}: {}", run.len());
            at_the_beginning += usize::from(*first == 0);
            lengths.insert(run.len());
        }
    }
    assert!((30..90).contains(&at_the_beginning), "{at_the_beginning}");
    assert!(lengths.len() > 8, "{lengths:?}");
}

#[test]
fn a_tensor_of_few_rows_has_each_special_in_one_of_them() {
    for (rows, seed) in (1..4).flat_map(|rows| (0..20).map(move |seed| (rows, seed))) {
        let specials = vec![Special::scattered(7.0, None, 9)];
        let values = floats(&drawn(rows, 5, &Draw { specials, ..plain(Distribution::Constant) }, Dtype::F32, seed));
        assert_eq!(values.iter().filter(|v| **v == 7.0).count(), 5, "{rows} rows, {seed}");
    }
}

#[test]
fn rectified_values_are_normal_ones_and_zero_where_these_are_below_zero() {
    let of = |dist| Draw { scale: Some("2".parse().unwrap()), shift: Some("0.5".parse().unwrap()), ..plain(dist) };
    let [all, rectified] =
        [Distribution::Normal, Distribution::Rectified].map(|dist| floats(&drawn(30, 40, &of(dist), Dtype::F32, 6)));
    assert!(all.iter().zip(&rectified).all(|(value, rectified)| rectified.to_bits() == value.max(0.0).to_bits()));
    assert!(all.iter().any(|value| *value < 0.0));
}

#[test]
fn steps_are_multiples_of_the_scale_and_all_of_them_occur() {
    let how =
        Draw { scale: Some("0.5".parse().unwrap()), shift: Some("-1".parse().unwrap()), ..plain(Distribution::Steps) };
    let mut values = floats(&drawn(20, 40, &how, Dtype::F32, 6));
    values.sort_by(f32::total_cmp);
    values.dedup();
    assert_eq!(values, [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
}

#[test]
fn indices_are_integers_in_range() {
    let shape = Shape::from([("rows", 50), ("cols", 40)]);
    let from = |least: &str| Draw {
        scale: Some("cols".parse().unwrap()),
        shift: Some(least.parse().unwrap()),
        ..plain(Distribution::Index)
    };
    for (dtype, least) in
        [(ElementType::I64, -7), (ElementType::I32, -7), (ElementType::I8, -7), (ElementType::U8, 200)]
    {
        let mut op = samples::rmsnorm();
        op.tensors[0].dtype = dtype;
        let stored = dtype.stored(Dtype::F16);
        let mut out = vec![0; 50 * 40 * stored.bytes()];
        draw(&op, &op.tensors[0], &shape, Dtype::F16, &from(&least.to_string()), 2, &mut out).unwrap();
        let value = |bytes: &[u8]| match dtype {
            ElementType::U8 => i64::from(bytes[0]),
            ElementType::I8 => i64::from(bytes[0].cast_signed()),
            ElementType::I32 => i64::from(i32::from_ne_bytes(bytes.try_into().unwrap())),
            _ => i64::from_ne_bytes(bytes.try_into().unwrap()),
        };
        let values: Vec<i64> = out.chunks_exact(stored.bytes()).map(value).collect();
        assert!(values.iter().all(|v| (least..least + 40).contains(v)), "{dtype:?}");
        assert!((least..least + 40).all(|wanted| values.contains(&wanted)), "{dtype:?}");
    }
}

#[test]
fn groups_end_in_order_the_last_with_the_last_row_and_some_are_empty() {
    let (rows, groups) = (64, 16);
    let shape = Shape::from([("rows", rows), ("cols", groups)]);
    let how = Draw { scale: Some("5 * cols".parse().unwrap()), ..plain(Distribution::Ends) };
    let mut op = samples::rmsnorm();
    op.tensors[0].dtype = ElementType::I32;
    let mut out = vec![0; (rows * groups) as usize * 4];
    draw(&op, &op.tensors[0], &shape, Dtype::F16, &how, 3, &mut out).unwrap();
    let values: Vec<i32> = out.chunks_exact(4).map(|bytes| i32::from_ne_bytes(bytes.try_into().unwrap())).collect();
    let draws: Vec<_> = values.chunks_exact(groups as usize).collect();
    for ends in &draws {
        assert!(ends.is_sorted() && ends[0] >= 0, "{ends:?}");
        assert_eq!(ends.last(), Some(&80), "{ends:?}");
    }
    // Alike on average, or nearly all rows in the last.
    assert!(draws.iter().any(|ends| ends.windows(2).all(|two| two[1] - two[0] < 11)), "{draws:?}");
    assert!(draws.iter().any(|ends| ends[7] == 0 && ends[14] < 50), "{draws:?}");
    let alone: BTreeSet<_> = draws.iter().collect();
    assert_eq!(alone.len(), draws.len(), "each row is drawn by itself");

    // What a roofline takes for the groups that have rows is what draws have.
    let with_rows = |ends: &[i32]| ends.windows(2).filter(|two| two[1] > two[0]).count() + usize::from(ends[0] > 0);
    let share = draws.iter().map(|ends| with_rows(ends)).sum::<usize>() as f64 / values.len() as f64;
    let expected = share_of_groups_with_rows(groups as usize, 80.0);
    assert!((share - expected).abs() < 0.06 && expected < 0.8, "{share} and {expected}");
}
