//! Mutants that the judge takes, and rightly so.

use crate::generate::Mutant;

/// Mutants that compute the same, or as well, by the lines that they change.
pub struct Equivalent {
    /// The files that have such a line.
    pub files: &'static [&'static str],
    /// What these lines become.
    pub lines: &'static [&'static str],
    pub why: &'static str,
}

const fn row(files: &'static [&'static str], lines: &'static [&'static str], why: &'static str) -> Equivalent {
    Equivalent { files, lines, why }
}

/// All that were looked at, one by one.
pub const EQUIVALENT: &[Equivalent] = &[
    row(
        &["cpu/softmax.c", "cpu/cross_entropy.c", "cpu/flash_attention.c"],
        &[
            "highest[s] = pick(v >= highest[s], v, highest[s]);",
            "highest = pick(s >= highest, s, highest);",
            "for (int l = 0; l < WIDTH; l++) top = highest[s][l] >= top ? highest[s][l] : top;",
            "for (int l = 0; l < WIDTH; l++) now = highest[s][l] >= now ? highest[s][l] : now;",
            "for (int l = 0; l < WIDTH; l++) now = highest[l] >= now ? highest[l] : now;",
            "if (highest >= top) {",
            "if (now >= top) {",
        ],
        "the larger of two equal values is either",
    ),
    row(
        &["cpu/rotary_embedding.c"],
        &["for (int64_t at = 0; at <= pairs; at += CHUNK) {"],
        "one round more, over no pairs",
    ),
    row(
        &["cpu/softmax.c", "cpu/cross_entropy.c"],
        &[
            "for (int64_t j = 0; j < wide - 1; j += STEP)",
            "for (int64_t j = 0; j < wide - 1; j += WIDTH)",
            "for (int64_t j = 0; j < filled - 1; j += STEP)",
        ],
        "what is gone over is a multiple of the step",
    ),
    row(
        &["cpu/reduce.c"],
        &["for (int s = 0; s < SUMS; s++) sums[s] += *(const vec *)(part + j + (int16_t)(s * s));"],
        "there is one vector of sums, number zero",
    ),
    row(
        &["cpu/matmul.c", "cpu/fused_mlp.c"],
        &["for (int64_t k = (0 + 1); k < depth; k++) panel[k * NR] = 0;", "for (int64_t l = have; l < NR; l++) ;"],
        "columns beyond the matrix are multiplied and never stored: what is in them does not matter",
    ),
    row(
        &["cpu/softmax.c"],
        &["float top = -INFINITY, shift = 1e-3f;"],
        "where all is minus infinity so far, any finite shift will do",
    ),
    row(
        &["cpu/cross_entropy.c"],
        &["float top = -INFINITY, total = 1e-3f;"],
        "the first finite logit multiplies what was there by e^-infinity; without one the loss is infinite",
    ),
    row(
        &["cpu/flash_attention.c", "cpu/softmax.c"],
        &["x = pick(x > 89.0f, (vec){0} - 89.0f, x);", "x = pick(x > (2.0f * 89.0f), (vec){0} + 89.0f, x);"],
        "the exponent is a score less the largest: never above zero",
    ),
    row(
        &["cpu/flash_attention.c"],
        &["const float correction = exponential((vec){0} + (*top - shift))[(0 + 1)];"],
        "all elements of that vector are equal",
    ),
    row(
        &["cpu/fused_mlp.c", "cpu/flash_attention.c", "cpu/softmax.c"],
        &[
            "const int32_t first = exponent >> (1 + 1), bits[2] = {(first + 127) << 23, (exponent - first + 127) << 23};",
            "const ivec first = exponent >> (1 + 1);",
        ],
        "a power of two in two factors, of which both stay normal numbers whichever has how much of the exponent",
    ),
    row(
        &["cpu/cross_entropy.c"],
        &["const ivec vanishes = x < -87.0f - 1;"],
        "terms of e^-87 and e^-88 are nothing beside the largest, which is 1",
    ),
    row(
        &["cuda/layernorm.cu"],
        &["for (int i = 0; i <= HELD; i++)"],
        "what is beyond the pieces that are kept is left out by the condition within",
    ),
    row(
        &["cuda/softmax.cu"],
        &["const int64_t before = max((int64_t)(misaligned ? VEC - misaligned : 0), cols);"],
        "slower: every element is taken one by one, as the first and last few are",
    ),
    row(
        &["cuda/rmsnorm.cu", "cuda/reduce.cu"],
        &[
            "if (!(lane == 0)) of_warp[first + threadIdx.x / 32] = sum;",
            "if (lane != 0) of_warp[first + threadIdx.x / 32] = sum;",
            "if (threadIdx.x % 32 != 0) of_warp[threadIdx.x / 32] = value;",
            "if (!(threadIdx.x % 32 == 0)) of_warp[threadIdx.x / 32] = value;",
        ],
        "after the exchange all lanes of a warp have the same sum, to the bit: 31 write what one wrote",
    ),
    row(&["cuda/rmsnorm.cu"], &["if (lanes > (32 + 1)) {"], "lanes are 8, 16 or a multiple of 32"),
    row(
        &["cuda/fused_mlp.cu", "cuda/matmul.cu"],
        &["for (int i = 0; i <= TM; i++)"],
        "the surplus fragment of a lands on b's first, which is loaded after it",
    ),
    row(
        &["cuda/fused_mlp.cu", "cuda/matmul.cu"],
        &[
            "if (BYTES == (16 + 1) && have == 16)",
            "if (BYTES != 16 && have == 16)",
            "if ((PLAIN && ROWS % STEP != 0) || i < inside) {",
        ],
        "slower: whole pieces and whole tiles are copied as the others are",
    ),
    row(
        &["cuda/nvidia-h200/fused_mlp.cu"],
        &["const int at = STEP % 8 != 0 ? place(first, chunk) + i * CHUNKS : place(first + i, chunk);"],
        "slower: the same place, found the long way",
    ),
    row(
        &["cuda/flash_attention.cu", "cuda/nvidia-h200/flash_attention.cu"],
        &[
            "const int64_t share = ((S_kv + BLOCK_KV - 1) / BLOCK_KV + SPLITS + 1) / SPLITS * BLOCK_KV;",
            "const int64_t share = ((S_kv + BLOCK_KV - 1) * BLOCK_KV + SPLITS - 1) / SPLITS * BLOCK_KV;",
        ],
        "slower: the first blocks take more of the keys, the last fewer or none",
    ),
    row(
        &["cuda/flash_attention.cu"],
        &["o += (int)((bshd ? (b * S_q + i) * H + head : query) * D);"],
        "keys are split only where queries are too few to fill the device: never 2^31 elements",
    ),
    row(&["cuda/rotary_embedding.cu"], &["if (head + g <= H) {"], "a thread has one head, and it is there"),
    row(
        &["cuda/reduce.cu"],
        &["const int64_t singles = live ? cols - pieces * VEC : (0 + 1);"],
        "a row that is not there reads one element more, and is stored nowhere",
    ),
    row(
        &["cuda/cross_entropy.cu"],
        &["Seen seen = {-INFINITY, (0 + 1)};"],
        "the first logit, or another thread's, multiplies what was there by 2^-infinity",
    ),
];

/// Why a mutant is none.
pub fn reason(mutant: &Mutant) -> Option<&'static str> {
    let is_it =
        |row: &&Equivalent| row.files.contains(&mutant.file.as_str()) && row.lines.contains(&mutant.after.as_str());
    EQUIVALENT.iter().find(is_it).map(|row| row.why)
}
