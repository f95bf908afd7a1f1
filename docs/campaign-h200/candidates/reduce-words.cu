/*---
op = "reduce"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 256,  choices = [128, 256, 512] }              # threads in a block
HELD    = { value = 4,    choices = [1, 2, 4, 8] }                 # 16-byte pieces a thread loads before it adds them
LONG    = { value = 4096, choices = [1024, 4096, 16384, 65536] }   # rows of more bytes have a block each, others a warp
# Of the kernel that has whole rows in registers.
LANES   = { value = 512, choices = [32, 64, 128, 256, 512, 1024] } # threads which share a row
BYTES   = { value = 8,   choices = [4, 8, 16] }                    # of a load
KEPT    = { value = 4,   choices = [1, 2, 4, 8, 16, 32] }          # loads of each of them
ROWS    = { value = 1,   choices = [1, 2, 4] }                     # rows of a block, each with threads of its own
HINT    = { value = 0,   choices = [0, 1, 2, 3, 4, 5, 6, 7] }      # what the caches are told, see load_words
PAD     = { value = 0,   choices = [0, 1, 2, 3, 4, 5, 6, 7, 8] }  # if not 0, so many blocks fit a multiprocessor, by shared memory
ORDER   = { value = 0,   choices = [0, 1, 2, 3, 4] }               # which row a block takes, see row_of
SPREAD  = { value = 1,   choices = [0, 1] }                        # 1: a step of all threads is contiguous; 0: all that a warp loads is
AHEAD   = { value = 0,   choices = [0, 264, 528, 1056, 2112] }     # rows further on, one that is asked for into the L2 cache
[let]
VEC    = "16 / dtype_bytes"
ROW_BYTES = "cols * dtype_bytes"
PIECES = "ROW_BYTES / BYTES"
EXACT  = "PIECES == LANES * KEPT"     # every load is of the row
WHOLE  = "ROW_BYTES % 16 == 0 && ROW_BYTES > LONG && PIECES <= LANES * KEPT && PIECES * 2 > LANES * KEPT && rows >= SMS"
[[launch]]
kernel = "whole"
when   = "WHOLE"
grid   = ["ceil_div(rows, ROWS)"]
block  = ["LANES * ROWS"]
shared = "PAD == 0 ? 0 : (SMEM_MAX - 1024 * PAD) / PAD - 1024"
args   = ["x", "y", "rows", "cols"]
[[launch]]
kernel = "reduce"
when   = "!WHOLE"
grid   = ["ceil_div(rows, cols * dtype_bytes > LONG ? 1 : THREADS / 32)"]
block  = ["cols * dtype_bytes > LONG ? THREADS : 32", "cols * dtype_bytes > LONG ? 1 : THREADS / 32"]
args   = ["x", "y", "rows", "cols"]
---*/

/* Bound by memory, and by what a block does while nothing of it is under way: it begins, finds its row, asks, adds, meets at a barrier.

   `whole` is for rows that LANES threads load at once, KEPT loads of BYTES bytes each, without a loop, and one barrier, after which the first warp
   of a row adds up what its warps have.

   `reduce` is for all else: blockDim.x threads share a row, a warp or the whole block; blockDim.y rows share a block. A thread loads HELD pieces
   of 16 bytes at a time. Rows of odd length start at any address, so the elements before the first and after the last aligned
   piece, at most 2 VEC - 2 of them, are taken one by one. */

struct __align__(16) Piece {
    uint32_t word[4];
};
struct Words {
    uint32_t word[BYTES / 4];
};

__device__ float sum_of_word(uint32_t word) {
#if WS_F32
    return __uint_as_float(word);
#else
    return ws_load((T)word) + ws_load((T)(word >> 16));
#endif
}
__device__ float sum_of(const Piece &piece) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) sum += sum_of_word(piece.word[i]);
    return sum;
}
__device__ float sum_over_warp(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    return value;
}

#if HINT == 0
#define HOW ""
#elif HINT == 1 /* not kept in L1 */
#define HOW ".L1::no_allocate"
#elif HINT == 2 /* nor there, and 256 bytes at a time come from memory */
#define HOW ".L1::no_allocate.L2::256B"
#elif HINT == 3
#define HOW ".L2::256B"
#elif HINT == 4 /* to leave both caches first */
#define HOW ".L1::evict_first.L2::cache_hint"
#define POLICY "createpolicy.fractional.L2::evict_first.b64 %0, 1.0;"
#elif HINT == 5 /* to stay in the L2 cache */
#define HOW ".L1::no_allocate.L2::cache_hint"
#define POLICY "createpolicy.fractional.L2::evict_last.b64 %0, 1.0;"
#elif HINT == 6 /* to leave the L2 cache first, not kept in L1 */
#define HOW ".L1::no_allocate.L2::cache_hint"
#define POLICY "createpolicy.fractional.L2::evict_first.b64 %0, 1.0;"
#elif HINT == 7 /* half of it to stay */
#define HOW ".L1::no_allocate.L2::cache_hint"
#define POLICY "createpolicy.fractional.L2::evict_last.b64 %0, 0.5;"
#endif
#ifdef POLICY
#define LOAD(v, outs, at, n) asm volatile("ld.global" HOW v " " outs ", [%" at "], %" n ";"
#define GIVE , "l"(policy)
#else
#define LOAD(v, outs, at, n) asm volatile("ld.global" HOW v " " outs ", [%" at "];"
#define GIVE
#endif

__device__ Words load_words(const Words *from) {
    Words w;
#ifdef POLICY
    uint64_t policy;
    asm(POLICY : "=l"(policy));
#endif
#if BYTES == 16
    LOAD(".v4.u32", "{%0, %1, %2, %3}", "4", "5") : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3]) : "l"(from) GIVE);
#elif BYTES == 8
    LOAD(".v2.u32", "{%0, %1}", "2", "3") : "=r"(w.word[0]), "=r"(w.word[1]) : "l"(from) GIVE);
#else
    LOAD(".u32", "%0", "1", "2") : "=r"(w.word[0]) : "l"(from) GIVE);
#endif
    return w;
}

/* The row of place `at` in the order in which blocks begin. */
__device__ int64_t row_of(int64_t at, int64_t rows) {
#if ORDER == 0
    return at;
#elif ORDER == 1 /* from both halves in turn */
    const int64_t half = (rows + 1) / 2;
    return at % 2 * half + at / 2;
#elif ORDER == 2 /* from the last on */
    return rows - 1 - at;
#elif ORDER == 3 /* from eight parts in turn; what eight do not divide comes last */
    const int64_t part = rows / 8;
    return at < part * 8 ? at % 8 * part + at / 8 : at;
#else /* four neighbours far apart in time: from four parts of each 64 rows in turn */
    return at / 64 * 64 + 64 > rows ? at : at / 64 * 64 + at % 4 * 16 + at % 64 / 4;
#endif
}

extern "C" __global__ void __launch_bounds__(LANES * ROWS)
whole(const T *__restrict__ x, T *__restrict__ y, int64_t rows, int64_t cols) {
    constexpr int WARPS = LANES / 32;
    __shared__ float of_warp[ROWS][WARPS];
    const int thread = threadIdx.x % LANES, mine = threadIdx.x / LANES;
    const int warp = thread / 32, lane = thread % 32, pieces = (int)(cols * sizeof(T) / BYTES);
    const int64_t at_row = (int64_t)blockIdx.x * ROWS + mine;
    const bool live = ROWS == 1 || at_row < rows;
    const int64_t row = live ? row_of(at_row, rows) : 0;
    const int first = SPREAD ? thread : warp * 32 * KEPT + lane;
    constexpr int STEP = SPREAD ? LANES : 32;
    const Words *const at = (const Words *)x + row * pieces + first;
    Words held[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        held[i] = {};
        if (live && (EXACT || first + i * STEP < pieces)) held[i] = load_words(at + i * STEP);
    }
#if AHEAD > 0
    if (thread == 0 && at_row + AHEAD < rows)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"((const char *)x + row_of(at_row + AHEAD, rows) * cols * (int64_t)sizeof(T)),
                     "r"((int)(cols * sizeof(T))) : "memory");
#endif
    float sum = 0;
#pragma unroll
    for (int i = 0; i < KEPT; i++)
#pragma unroll
        for (int j = 0; j < BYTES / 4; j++) sum += sum_of_word(held[i].word[j]);
    sum = sum_over_warp(sum);
    if (lane == 0) of_warp[mine][warp] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = sum_over_warp(lane < WARPS ? of_warp[mine][lane] : 0.0f);
        if (lane == 0 && live) y[row] = ws_store(sum);
    }
}

/* The sum of `value` over the threads of a row. Every thread of the block comes by; the first of each row has the sum. */
__device__ float sum_over_row(float value) {
    value = sum_over_warp(value);
    if (blockDim.y > 1) return value; /* the row is a warp's */
    __shared__ float of_warp[THREADS / 32];
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
#pragma unroll 1
    for (int warp = 0; warp < THREADS / 32; warp++) sum += of_warp[warp];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
reduce(const T *__restrict__ x, T *__restrict__ y, int64_t rows, int64_t cols) {
    const int lane = threadIdx.x, lanes = blockDim.x;
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const bool live = row < rows; /* the others still take part in the barrier */
    if (live) x += row * cols;

    const int misaligned = (int)((size_t)x % 16 / sizeof(T));
    const int64_t before = min((int64_t)(misaligned ? VEC - misaligned : 0), cols);
    const int64_t pieces = live ? (cols - before) / VEC : 0;
    const int64_t singles = live ? cols - pieces * VEC : 0;
    const Piece *at = (const Piece *)(x + before) + lane;

    float sum = 0;
#pragma unroll 1
    for (int64_t left = pieces - lane; left > 0; left -= HELD * lanes, at += HELD * lanes) {
        const int there = (int)min(left, (int64_t)(HELD * lanes));
        Piece held[HELD];
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (i * lanes < there) held[i] = at[i * lanes];
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (i * lanes < there) sum += sum_of(held[i]);
    }
#pragma unroll 1
    for (int64_t i = lane; i < singles; i += lanes) sum += ws_load(x[i < before ? i : i + pieces * VEC]);

    sum = sum_over_row(sum);
    if (live && lane == 0) y[row] = ws_store(sum);
}
