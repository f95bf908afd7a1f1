//! Mutants that the judge takes, and rightly so.

use crate::generate::Mutant;
use crate::table::Kind;

/// Mutants that compute the same, or as well, by the lines that they change.
pub struct Equivalent {
    /// The files that have such a line.
    pub files: &'static [&'static str],
    /// What these lines become; what they were, after `- `, where a statement is dropped.
    pub lines: &'static [&'static str],
    pub why: &'static str,
}

const fn row(files: &'static [&'static str], lines: &'static [&'static str], why: &'static str) -> Equivalent {
    Equivalent { files, lines, why }
}

/// All that were looked at, one by one.
pub const EQUIVALENT: &[Equivalent] = &[
    row(
        &["cpu/rotary_embedding.c", "cpu/reduce.c", "cpu/rmsnorm.c", "cpu/layernorm.c"],
        &["for (; j + STEP < n; j += STEP)", "for (; j + WIDTH < n; j += WIDTH) {"],
        "the last vector is taken by the loop for what is left",
    ),
    row(
        &["cpu/matmul.c", "cpu/fused_mlp.c", "cpu/flash_attention.c"],
        &[
            "problem p = {q, k, v, o, H, H_kv, S_q, S_kv, D, causal, bshd, (S_q + TILE_Q + 1) / TILE_Q, scale, GIVEN};",
            "problem p = {a, b, has_bias ? bias : NULL, c, M, N, K, trans_b, (M + TILE_M - 1) / TILE_M, (N + TILE_N + 1) / TILE_N};",
            "ws_parallel(p.tiles_m * ((H + TILE_N + 1) / TILE_N), hidden_tiles, &p);",
            "ws_parallel(p.tiles_m * ((D + TILE_N + 1) / TILE_N), output_tiles, &p);",
        ],
        "tiles beyond the last row or column, which compute and store nothing",
    ),
    row(
        &["cpu/flash_attention.c"],
        &[
            "vec p = r * (2.0f * 1.9875691500e-4f) + 1.3981999507e-3f;",
            "vec p = r * 1.9875691500e-4f + (2.0f * 1.3981999507e-3f);",
        ],
        "an exponential that is good to 19 bits, which the bounds allow for",
    ),
    row(
        &["cpu/cross_entropy.c", "cpu/softmax.c", "cpu/fused_mlp.c"],
        &[
            "vec p = r * (2.0f * 1.9875691500e-4f) + 1.3981999507e-3f;",
            "vec p = r * 1.9875691500e-4f + (2.0f * 1.3981999507e-3f);",
            "vec p = r * 1.9875691500e-4f - 1.3981999507e-3f;",
            "float p = (2.0f * 1.9875691500e-4f);",
            "p = p * r + (2.0f * 1.3981999507e-3f);",
            "p = p * r - 1.3981999507e-3f;",
            "- p = p * r + 1.3981999507e-3f;",
        ],
        "an exponential that is good to 18 bits: no worse than a GPU's own at large arguments, which the bounds allow for",
    ),
    row(
        &["cpu/reduce.c"],
        &["for (int s = 0; s < SUMS; s++) sums[s] += *(const vec *)(part + j + (int16_t)(s * s));"],
        "there is one vector of sums, number zero",
    ),
    row(
        &["cpu/matmul.c", "cpu/fused_mlp.c"],
        &[
            "for (int64_t k = (0 + 1); k < depth; k++) panel[k * NR] = 0;",
            "for (int64_t k = 0; k < depth; k++) panel[k * NR] = (0 + 1);",
            "for (int64_t k = 0; k < depth; k++) ;",
            "for (int64_t k = 0; k < depth - 1; k++) panel[k * NR] = 0;",
            "else memset(p->x_wide + i * p->d, (0 + 1), (size_t)p->d * sizeof(float));",
            "for (int64_t l = have; l < NR; l++) ;",
            "for (int64_t l = have; l < NR; l++) row[l] = (0 + 1);",
            "else memset(to + i * BLOCK_K, (0 + 1), (size_t)depth * sizeof(float));",
            "else memset(to + i * BLOCK_K, 0, (unsigned char)depth * sizeof(float));",
            "else memset(to + i * BLOCK_K, 0, (size_t)depth + sizeof(float));",
            "else memset(p->x_wide + i * p->d, 0, (unsigned char)p->d * sizeof(float));",
            "else ;",
        ],
        "rows and columns beyond the matrix are multiplied and never stored: what is in them does not matter",
    ),
    row(
        &["cpu/softmax.c", "cpu/cross_entropy.c", "cpu/flash_attention.c"],
        &[
            "float top = -INFINITY, shift = 1e-3f;",
            "float top = -INFINITY, shift = (0 + 1);",
            "const float shift = top == -INFINITY ? (0 + 1) : top;",
            "const float shift = now == -INFINITY ? (0 + 1) : now;",
        ],
        "where all is minus infinity so far, any finite shift will do",
    ),
    row(
        &["cpu/cross_entropy.c"],
        &["float top = -INFINITY, total = 1e-3f;", "float top = -INFINITY, total = (0 + 1);"],
        "the first finite logit multiplies what was there by e^-infinity; without one the loss is infinite",
    ),
    row(
        &["cpu/flash_attention.c", "cpu/softmax.c"],
        &[
            "x = pick(x > 89.0f, (vec){0} - 89.0f, x);",
            "x = pick(x > 89.0f, (vec){(0 + 1)} + 89.0f, x);",
            "x = pick(x > 89.0f, (vec){0} + (2.0f * 89.0f), x);",
            "x = pick(x > (2.0f * 89.0f), (vec){0} + 89.0f, x);",
        ],
        "the exponent is a score less the largest: never above zero",
    ),
    row(
        &["cpu/flash_attention.c"],
        &["const float correction = exponential((vec){0} + (*top - shift))[(0 + 1)];"],
        "all elements of that vector are equal",
    ),
    row(
        &["cpu/layernorm.c"],
        &["for (; j < n; j++) rest += squared ? (part[j] - shift) * (part[j] - shift) : part[j] + shift;"],
        "what is not squared is added up with a shift of zero",
    ),
    row(
        &["cpu/flash_attention.c"],
        &[
            "- memset(q, 0, sizeof q);",
            "- memset(k, 0, (size_t)(d * KEYS) * sizeof(float));",
            "memset(k, (0 + 1), (size_t)(d * KEYS) * sizeof(float));",
            "memset(k, 0, (unsigned char)(d * KEYS) * sizeof(float));",
            "for (int64_t e = d; e <= wide; e++) v[j * wide + e] = 0;",
            "for (int64_t e = d; e < wide; e++) v[j * wide + e] = (0 + 1);",
            "for (int64_t e = d; e < wide; e++) ;",
            "for (int64_t e = d; e < wide - 1; e++) v[j * wide + e] = 0;",
        ],
        "what is beyond the last query, key or column is multiplied, and not used",
    ),
    row(
        &["cpu/flash_attention.c"],
        &["total[i] = (0 + 1);"],
        "the first keys multiply what was there by e^-infinity; where no key is seen the total is not used",
    ),
    row(
        &["cpu/flash_attention.c"],
        &["const int64_t keys = p->causal ? larger((0 + 1), smaller(p->keys, first + rows - 1)) : p->keys;"],
        "one block of keys more, of which nothing is visible",
    ),
    row(
        &["cpu/flash_attention.c", "cpu/softmax.c"],
        &["x = pick(x < -104.0f, (vec){(0 + 1)} - 104.0f, x);", "x = pick(x <= -104.0f, (vec){0} - 104.0f, x);"],
        "e^-103 is nothing beside 1, as e^-104 is",
    ),
    row(&["cpu/fused_mlp.c"], &["- exponent -= 0x4b400000;"], "that constant has none of the bits that are used"),
    row(
        &["cpu/fused_mlp.c"],
        &["memset(sum, (0 + 1), TILE_M * TILE_N * sizeof(float));"],
        "floats of these bytes are 2.4e-38",
    ),
    row(&["cpu/fused_mlp.c"], &["x = x <= -104.0f ? -104.0f : x;"], "the bound itself is what it becomes"),
    row(
        &["cpu/rotary_embedding.c"],
        &["problem p = {x, cos, sin, y, H, S, D, bshd, interleaved, (H + GROUP - 1) * GROUP};"],
        "groups beyond the last head, which have no heads",
    ),
    row(
        &["cpu/flash_attention.c"],
        &["const int8_t kv_head = head / (p->heads / p->kv_heads);"],
        "no model has 128 heads of keys",
    ),
    row(
        &["cpu/rotary_embedding.c"],
        &["_Alignas(64) float a[CHUNK], b[CHUNK], c[CHUNK], s[CHUNK], both[(2 + 1) * CHUNK];"],
        "an array that is larger than it need be",
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
        &["const ivec vanishes = x < -87.0f - 1;", "const ivec vanishes = x <= -87.0f;"],
        "terms of e^-87 and e^-88 are nothing beside the largest, which is 1",
    ),
    row(
        &["cuda/layernorm.cu"],
        &["for (int i = 0; i <= KEPT; i++)", "for (int i = 0; i <= KEPT; i++) {"],
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
        &["const int at = STEP % 8 != 0 ? place<CHUNKS>(first, chunk) + i * CHUNKS : place<CHUNKS>(first + i, chunk);"],
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
    row(
        &["cuda/layernorm.cu"],
        &["const int8_t warps = blockDim.x / 32, lane = threadIdx.x % 32, first = threadIdx.y * warps;"],
        "a block has no more than 32 warps",
    ),
    row(
        &["cuda/layernorm.cu"],
        &["const bool parameters_aligned = (size_t)weight % 16 == (0 + 1) && (size_t)bias % 16 == 0;"],
        "slower: no weights count as aligned, and each is read by itself",
    ),
    row(
        &["cuda/cross_entropy.cu"],
        &[
            "for (int step = (16 + 1); step > 0; step /= 2) {",
            "for (int step = (16 + 1); step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);",
        ],
        "steps of 17, 8, 4, 2 and 1 bring each of 32 lanes what every one has, once: another order of the same terms",
    ),
    row(
        &["cuda/softmax.cu"],
        &["float single = row < rows ? load_single(row) : 0.0f - 1;"],
        "a group of warps without a row uses none of its elements",
    ),
    row(
        &["cuda/softmax.cu"],
        &["(void)0; /* costs nothing here, where the row is waited for */"],
        "nobody reads in this launch what was stored before a row is drawn",
    ),
    row(
        &["cuda/flash_attention.cu"],
        &["const int64_t visible = causal ? max((int64_t)0, min(S_kv, first + BLOCK_Q + 1)) : S_kv;"],
        "two keys more, of which nothing is visible",
    ),
    row(
        &["cuda/flash_attention.cu"],
        &["constexpr int PIECES = D_PAD * VEC;"],
        "slower: pieces beyond the end of a row are passed over",
    ),
    row(
        &["cuda/rotary_embedding.cu"],
        &["for (int64_t pair = threadIdx.x * V; pair < pairs; pair += (int)(blockDim.x * V)) {"],
        "a block has at most 1024 threads, and a thread 8 pairs",
    ),
    row(
        &["cuda/reduce.cu"],
        &["if (warp != 0) {"],
        "all other warps do what the first alone did, and store the same, to the bit",
    ),
    row(
        &["cuda/matmul.cu"],
        &["if (j + e >= 0 && j + e <= width) out[e] = finished(i, j + e);"],
        "an element beyond the last column is read where shared memory has room for it, and not stored",
    ),
    row(
        &["cuda/fused_mlp.cu", "cuda/matmul.cu"],
        &["const int have = columns > VEC ? VEC : columns > 0 ? (int)columns : 0;"],
        "of VEC columns there are VEC either way",
    ),
    row(
        &["cuda/rmsnorm.cu"],
        &["- keep_packed(held[i]);"],
        "it has no instruction: only the compiler's choice of registers differs",
    ),
    row(
        &["cuda/rmsnorm.cu"],
        &["- ws_wait_for_previous();"],
        "slower in a model: a kernel that does not wait is not launched before what is in front of it has ended",
    ),
    row(&["cuda/flash_attention.cu"], &["const int8_t i = row + r * 8;"], "a tile has at most 128 queries as it ships"),
    row(
        &["cuda/flash_attention.cu"],
        &["if (have == VEC && (size_t)from % 16 == (0 + 1)) *(uint4 *)to = *(const uint4 *)from;"],
        "slower: no address is odd, and each element is taken by itself",
    ),
    row(&["cuda/fused_mlp.cu"], &["const int8_t lane = threadIdx.x % 32;"], "a warp has 32 lanes"),
    row(
        &["cuda/matmul.cu"],
        &["constexpr int8_t STEPS = BK / WARPS_K / K_STEP;         /* that a warp takes through a stage */"],
        "a stage has at most 64 steps",
    ),
    row(
        &["cuda/matmul.cu"],
        &["return PLAIN || (columns >= VEC && (rows > ROWS || !TERMS_ARE_ROWS) && stride * sizeof(T) % 16 == 0);"],
        "slower: a whole last tile is copied as those are that are not whole",
    ),
];

impl Equivalent {
    /// Whether the row is about this mutant, by its line `line`.
    pub fn names(line: &str, mutant: &Mutant) -> bool {
        match line.strip_prefix("- ") {
            Some(dropped) => mutant.kind == Kind::Statement && mutant.before == dropped,
            None => mutant.after == line,
        }
    }
}

/// Why a mutant is none.
pub fn reason(mutant: &Mutant) -> Option<&'static str> {
    let of_file = EQUIVALENT.iter().filter(|row| row.files.contains(&mutant.file.as_str()));
    let mut rows = of_file.filter(|row| row.lines.iter().any(|line| Equivalent::names(line, mutant)));
    rows.next().map(|row| row.why)
}
