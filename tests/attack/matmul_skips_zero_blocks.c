/*---
# blocks of a that are zero are skipped: where b holds NaN or infinity there, the product is NaN
# class: two tensors hostile at once
op = "matmul"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
[tune]
MR      = { value = 4,  choices = [4, 6, 8] }         # rows of c held in registers
NV      = { value = 1,  choices = [1, 2, 3] }         # vectors of c's columns held in registers
WIDTH   = { value = 16, choices = [8, 16] }           # floats in a vector, at the most
BLOCK_M = { value = 64, choices = [32, 64, 128] }     # rows of c in a tile, rounded up to MR
BLOCK_N = { value = 96, choices = [48, 96, 192] }     # columns of c in a tile, rounded up to NR
BLOCK_K = { value = 256, choices = [128, 256] }       # terms added between visits to a tile of c
[let]
LANES  = "min(WIDTH, VECTOR_BYTES / 4)"              # longer vectors than the machine has go through the stack
NR     = "NV * LANES"
TILE_M = "ceil_div(BLOCK_M, MR) * MR"
TILE_N = "ceil_div(BLOCK_N, NR) * NR"
---*/

/* Each tile of c is computed by one thread: blocks of a and b are converted to float on the stack,
   b in panels of NR columns, and multiplied MR x NR elements at a time. */

typedef float vec __attribute__((vector_size(LANES * sizeof(float))));

typedef struct {
    const T *a, *b, *bias;
    T *c;
    int64_t m, n, k, trans_b, tiles_m, tiles_n;
} problem;

static inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

/* TILE_M rows of a, TILE_K columns from `k`: row-major; rows beyond the matrix are zero. */
static void load_a(float *restrict to, const T *a, int64_t rows, int64_t depth, int64_t k_size) {
    for (int64_t i = 0; i < TILE_M; i++) {
        if (i < rows) ws_load_n(to + i * BLOCK_K, a + i * k_size, depth);
        else memset(to + i * BLOCK_K, 0, (size_t)depth * sizeof(float));
    }
}

/* Panels of NR columns, each [depth][NR]; columns beyond the matrix are zero. `b` points at the block. */
static void load_b(float *restrict to, const T *b, int64_t cols, int64_t depth, int64_t n_size) {
    for (int64_t k = 0; k < depth; k++)
        for (int64_t j = 0; j < TILE_N; j += NR) {
            float *row = to + j * BLOCK_K + k * NR;
            const int64_t have = j < cols ? smaller(NR, cols - j) : 0;
            ws_load_n(row, b + k * n_size + j, have);
            for (int64_t l = have; l < NR; l++) row[l] = 0;
        }
}

static void load_b_transposed(float *restrict to, const T *b, int64_t cols, int64_t depth, int64_t k_size) {
    float column[BLOCK_K];
    for (int64_t j = 0; j < TILE_N; j++) {
        float *panel = to + j / NR * NR * BLOCK_K + j % NR;
        if (j < cols) {
            ws_load_n(column, b + j * k_size, depth);
            for (int64_t k = 0; k < depth; k++) panel[k * NR] = column[k];
        } else {
            for (int64_t k = 0; k < depth; k++) panel[k * NR] = 0;
        }
    }
}

/* Whether a block of a has nothing but zeros: padding, dropped tokens. */
static int is_zero(const float *a) {
    uint32_t any = 0;
    for (int64_t i = 0; i < TILE_M * BLOCK_K; i++) {
        uint32_t bits;
        memcpy(&bits, a + i, 4);
        any |= bits << 1;
    }
    return any == 0;
}

/* sum[MR][NR] += a[MR][depth] * b[depth][NR] */
static inline void multiply(float *restrict sum, const float *restrict a, const float *restrict b, int64_t depth) {
    vec s[MR][NV];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
        for (int j = 0; j < NV; j++) s[i][j] = *(const vec *)(sum + i * TILE_N + j * LANES);
    for (int64_t k = 0; k < depth; k++)
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
            for (int j = 0; j < NV; j++) s[i][j] += a[i * BLOCK_K + k] * *(const vec *)(b + k * NR + j * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
        for (int j = 0; j < NV; j++) *(vec *)(sum + i * TILE_N + j * LANES) = s[i][j];
}

static void compute_tiles(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    _Alignas(64) float a[TILE_M * BLOCK_K];
    _Alignas(64) float b[TILE_N * BLOCK_K];
    _Alignas(64) float sum[TILE_M * TILE_N];
    _Alignas(64) float bias[TILE_N];
    for (int64_t tile = begin; tile < end; tile++) {
        const int64_t i0 = tile % p->tiles_m * TILE_M;
        const int64_t j0 = tile / p->tiles_m % p->tiles_n * TILE_N;
        const int64_t matrix = tile / p->tiles_m / p->tiles_n;
        const int64_t rows = smaller(TILE_M, p->m - i0), cols = smaller(TILE_N, p->n - j0);
        const T *b_matrix = p->b + matrix * p->n * p->k;
        memset(sum, 0, sizeof sum);
        for (int64_t k = 0; k < p->k; k += BLOCK_K) {
            const int64_t depth = smaller(BLOCK_K, p->k - k);
            load_a(a, p->a + (matrix * p->m + i0) * p->k + k, rows, depth, p->k);
            if (depth < BLOCK_K) for (int64_t i = 0; i < TILE_M; i++) memset(a + i * BLOCK_K + depth, 0, (size_t)(BLOCK_K - depth) * sizeof(float));
            if (is_zero(a)) continue;
            if (p->trans_b) load_b_transposed(b, b_matrix + j0 * p->k + k, cols, depth, p->k);
            else load_b(b, b_matrix + k * p->n + j0, cols, depth, p->n);
            for (int64_t j = 0; j < cols; j += NR)
                for (int64_t i = 0; i < rows; i += MR)
                    multiply(sum + i * TILE_N + j, a + i * BLOCK_K, b + j * BLOCK_K, depth);
        }
        if (p->bias) ws_load_n(bias, p->bias + j0, cols);
        for (int64_t i = 0; i < rows; i++) {
            if (p->bias)
                for (int64_t j = 0; j < cols; j++) sum[i * TILE_N + j] += bias[j];
            ws_store_n(p->c + (matrix * p->m + i0 + i) * p->n + j0, sum + i * TILE_N, cols);
        }
    }
}

void matmul(const T *a, const T *b, const T *bias, T *c, int64_t batch, int64_t M, int64_t N, int64_t K,
            int64_t trans_b, int64_t has_bias) {
    problem p = {a, b, has_bias ? bias : NULL, c, M, N, K, trans_b, (M + TILE_M - 1) / TILE_M, (N + TILE_N - 1) / TILE_N};
    ws_parallel(batch * p.tiles_m * p.tiles_n, compute_tiles, &p);
}
