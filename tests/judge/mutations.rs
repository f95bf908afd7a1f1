//! The honest starters with one small mistake each: the share that the judge finds is what its verdicts are worth.

use crate::bench::{Edits, correct, edit, evaluate, starter};

// Each of these changes some output.

const RMSNORM: Edits = &[
    ("float rest = 0;", "float rest = 1e-3f;"),
    ("for (; j < n; j++) rest +=", "for (; j < n - 1; j++) rest +="),
    ("rest += sums[s][l]", "rest = sums[s][l]"),
    ("l < WIDTH; l++", "l < WIDTH - 1; l++"),
    ("sums[s] += v * v", "sums[s] = v * v"),
    ("/ (float)p->cols + p->eps", "/ (float)(p->cols - 1) + p->eps"),
    ("row = begin; row < end", "row = begin + 1; row < end"),
    ("part[j] *= scale", "part[j] = scale"),
    ("p->weight + at", "p->weight"),
    ("normalise_rows(0, rows, &p);", "normalise_rows(0, rows - 1, &p);"),
];

const MATMUL: Edits = &[
    ("smaller(BLOCK_K, p->k - k)", "smaller(BLOCK_K, p->k - k - 1)"),
    ("s[i][j] += a[i * BLOCK_K + k]", "s[i][j] = a[i * BLOCK_K + k]"),
    ("memset(sum, 0, sizeof sum);", ""),
    ("i < rows; i += MR", "i < rows - MR; i += MR"),
    ("sum[i * TILE_N + j] += bias[j]", "sum[i * TILE_N + j] = bias[j]"),
    ("j < cols; j++) sum", "j < cols - 1; j++) sum"),
    ("p->b + matrix * p->n * p->k", "p->b"),
    ("tile = begin; tile < end", "tile = begin; tile < end - 1"),
    ("panel[k * NR] = column[k]", "panel[k * NR] = column[depth - 1 - k]"),
];

const ROTARY_EMBEDDING: Edits = &[
    ("va * vc - vb * vs", "va * vc + vb * vs"),
    ("first * s[j] + second * c[j]", "first * c[j] + second * s[j]"),
    ("p->cos + position * pairs + at", "p->cos + at"),
    ("ws_store_n(y + pairs + at, b, n)", "ws_store_n(y + pairs + at, a, n)"),
    ("(H + GROUP - 1) / GROUP", "H / GROUP"),
    ("b[j] = both[2 * j + 1];", "b[j] = both[2 * j];"),
    ("smaller(first + GROUP, p->heads)", "smaller(first + GROUP, p->heads - 1)"),
];

const FLASH_ATTENTION: Edits = &[
    ("scores[j] = -INFINITY", "scores[j] = 0"),
    ("vec highest = (vec){0} - INFINITY;", "vec highest = (vec){0};"),
    ("*total * correction + sum", "*total + sum"),
    ("o[i * wide + e] *= correction", "o[i * wide + e] *= 1"),
    ("i0 + 1 + p->keys", "i0 + p->keys"),
    ("smaller(KEYS, keys - j0)", "smaller(KEYS, keys - j0 - 1)"),
    ("head / (p->heads / p->kv_heads)", "head % p->kv_heads"),
    ("q[i * wide + e] *= p->scale", "q[i * wide + e] *= 1"),
    ("first + i <= 0", "first + i < 0"),
    ("5.0000001201e-1f", "4.9990001201e-1f"),
];

const FUSED_MLP: Edits = &[
    ("exponential(-g)", "exponential(g)"),
    (") * up[i * TILE_N + j]", ") + up[i * TILE_N + j]"),
    ("p->w_up + j0 * p->d", "p->w_gate + j0 * p->d"),
    ("memset(sum, 0, TILE_M * TILE_N * sizeof(float));", ""),
    ("smaller(BLOCK_K, terms - k)", "smaller(BLOCK_K, terms - k - 1)"),
    ("smaller(TILE_N, p->d - j0)", "smaller(TILE_N - 1, p->d - j0)"),
];

const SOFTMAX: Edits = &[
    ("part[j] = -INFINITY", "part[j] = 0"),
    ("highest[s] = (vec){0} - INFINITY", "highest[s] = (vec){0}"),
    ("sums[s] *= correction", "sums[s] *= 1"),
    ("top = shift = highest;", "top = highest;"),
    ("l++) sum += sums[s][l]", "l++) sum = sums[s][l]"),
    ("sums[s] += exponential", "sums[s] = exponential"),
    ("row = begin; row < end", "row = begin; row < end - 1"),
    ("x + at, smaller(CHUNK, p->cols - at)", "x + at, smaller(CHUNK, p->cols - at - 1)"),
    ("1.6666665459e-1f", "1.6466665459e-1f"),
    ("ws_store_n(y + at, part, n);", "ws_store_n(y + at, part, n - 1);"),
];

const LAYERNORM: Edits = &[
    ("p->bias + at, n", "p->bias, n"),
    ("(part[j] - mean) * scale", "part[j] * scale"),
    ("variance + p->eps", "variance"),
    ("+ apart * apart * fraction * (float)at;", ";"),
    ("apart * apart * fraction", "apart * apart"),
    ("average += apart * fraction", "average += apart / 2"),
    ("sum_of(part, n, of_chunk, 1)", "sum_of(part, n, average, 1)"),
    ("*variance = squares / (float)dim;", "*variance = squares / (float)(dim - 1);"),
    ("normalise_rows(0, batch, &p);", "normalise_rows(0, batch - 1, &p);"),
];

const CROSS_ENTROPY: Edits = &[
    ("part[filled] = -INFINITY", "part[filled] = 0"),
    ("float top = -INFINITY,", "float top = 0,"),
    ("total *= expf(top - now);", ""),
    ("l < WIDTH; l++) total +=", "l < WIDTH - 1; l++) total +="),
    ("x < -87.0f", "x < -3.0f"),
    ("- ws_load(logits[target])", "- ws_load(logits[0])"),
    ("p->logits + row * p->vocab", "p->logits + row"),
    ("row = begin; row < end", "row = begin + 1; row < end"),
    ("rows_of_logits(0, batch, &p);", "rows_of_logits(0, batch - 1, &p);"),
    ("row < batch; row++", "row < batch - 1; row++"),
    ("/ (double)batch", "/ (double)(batch + 1)"),
];

const REDUCE: Edits = &[
    ("float rest = 0;", "float rest = 1e-3f;"),
    ("for (; j < n; j++) rest +=", "for (; j < n - 1; j++) rest +="),
    ("rest += sums[s][l]", "rest = sums[s][l]"),
    ("l < WIDTH; l++", "l < WIDTH - 1; l++"),
    ("sums[s] += *(const vec *)", "sums[s] = *(const vec *)"),
    ("row = begin; row < end", "row = begin + 1; row < end"),
    ("p->x + row * p->cols", "p->x + row"),
    ("sum_rows(0, rows, &p);", "sum_rows(0, rows - 1, &p);"),
];

/// Changes that change nothing, and must be accepted.
const EQUIVALENT: &[(&str, &str, &str)] =
    &[("rmsnorm", "j + STEP <= n", "j + STEP < n"), ("rotary_embedding", "j + WIDTH <= n", "j + WIDTH < n")];

fn survivors(op: &str, mistakes: Edits) -> Vec<String> {
    let starter = starter(op);
    mistakes
        .iter()
        .filter_map(|(right, mistake)| {
            let verdict = evaluate(op, &edit(&starter, &[(right, mistake)]), &starter).verdict;
            println!("{op}: {mistake:<55} {} at {}", verdict.status(), verdict.stage());
            correct(&verdict).then(|| format!("{op}: `{mistake}` for `{right}`"))
        })
        .collect()
}

#[test]
fn every_small_mistake_in_an_honest_starter_is_found() {
    let table = [
        ("rmsnorm", RMSNORM),
        ("matmul", MATMUL),
        ("rotary_embedding", ROTARY_EMBEDDING),
        ("flash_attention", FLASH_ATTENTION),
        ("fused_mlp", FUSED_MLP),
        ("softmax", SOFTMAX),
        ("layernorm", LAYERNORM),
        ("cross_entropy", CROSS_ENTROPY),
        ("reduce", REDUCE),
    ];
    let all: usize = table.iter().map(|(_, mistakes)| mistakes.len()).sum();
    let alive: Vec<String> = table.iter().flat_map(|(op, mistakes)| survivors(op, mistakes)).collect();
    println!("{} of {all} mistakes found", all - alive.len());
    assert!(alive.is_empty(), "not found: {alive:#?}");
}

#[test]
fn a_change_that_changes_nothing_is_no_mistake() {
    for (op, before, after) in EQUIVALENT {
        let starter = starter(op);
        let verdict = evaluate(op, &edit(&starter, &[(before, after)]), &starter).verdict;
        assert!(correct(&verdict), "{op}, {after}: {verdict:?}");
    }
}
