/*---
op = "matmul"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_90a"]
specialize = ["trans_b"]
[tune]
# Of the kernel for TMA and wgmma, which takes what a tensor map can describe.
TILE_M    = { value = 128, choices = [64, 128] }      # rows of c in a block's tile: 64 for each warpgroup that multiplies
NARROW    = { value = 128, choices = [64, 128] }      # columns of it where tiles are few, so that blocks share the terms
PAIRS     = { value = 2,   choices = [1, 2] }         # blocks, one below the other, that share what they read of b
MAX_SPLIT = { value = 4,   choices = [1, 2, 4] }      # blocks that share the terms of a tile, at most
MAX_RING  = { value = 12,  choices = [4, 6, 8, 12] }  # stages, if shared memory suffices
DEEP      = { value = 1,   choices = [1, 2, 4] }      # times 64 terms of b in a stage: so many times 128 bytes of a row are read at once
STREAMED  = { value = 8,   choices = [0, 6, 8, 16] }  # slices a cluster must save for the tiles of a wave that is not full to be dealt out; 0: never
BROUGHT   = { value = 1,   choices = [0, 1, 2, 3, 4] } # slices of a block's first tile that the threads which multiply bring themselves
LATE_TOO  = { value = 0,   choices = [0, 1] }          # also where tiles leave later
GROUP     = { value = 8,   choices = [4, 8, 16] }     # rows of tiles that run together, so that they find b in the L2 cache
# Of the kernel for one row.
ONE_WIDE   = { value = 65536,   choices = [0, 8192, 65536] } # columns of c up to which it is taken
ONE_WARPS  = { value = 8,    choices = [4, 8, 16] }          # of a block
ONE_ROWS   = { value = 1,    choices = [1, 2, 4] }           # rows of b that a warp reads at once
ONE_LOADS  = { value = 8,    choices = [4, 8, 16] }          # times 512 bytes of each that it asks for at once
ONE_BLOCKS = { value = 4,    choices = [1, 2, 3, 4, 6] }     # blocks that a multiprocessor must have room for
# Of the kernel for up to 8 rows.
FEW        = { value = 8,    choices = [0, 8, 16] }          # rows of a up to which it is taken
FEW_WIDE   = { value = 8192, choices = [4096, 8192, 16384] } # and columns of c: with more the ring is faster
FEW_WARPS  = { value = 8,    choices = [4, 8, 16] }          # that share the terms of 16 columns of c
FEW_LOADS  = { value = 4,    choices = [1, 2, 4] }           # times 64 terms of 16 rows of b that a warp asks for at once
FEW_BLOCKS = { value = 2,    choices = [1, 2, 3, 4] }        # blocks that a multiprocessor must have room for
# Of the kernel for everything else.
BM      = { value = 128, choices = [64, 128] }    # rows of c in a block's tile
BN      = { value = 256, choices = [128, 256] }   # its columns
K_BYTES = { value = 128, choices = [64, 128] }    # bytes along k of a row of a that one stage holds
WARP_M  = { value = 64,  choices = [32, 64] }     # rows of c in a warp's tile
WARP_N  = { value = 64,  choices = [32, 64] }     # its columns
WARPS_K = { value = 1,   choices = [1] }          # warps that share a tile, each with its part of k
DEPTH   = { value = 4,   choices = [3, 4] }       # stages in flight, if shared memory suffices
[let]
# Products of one a that are computed together: as many matrices b, c and biases, each where it likes. The plan of the operation itself has one.
PARTS       = "1"
# Of a product that is wider than others so many matrices of N columns, side by side: products, and `batch` in all.
SPAN        = "1"
SPAN_1      = "1"
SPAN_2      = "1"
# What becomes of each element of c at last, in a region of a model: 1 gelu, 2 gelu by tanh, 3 silu, 4 relu.
ACT         = "0"
MATRICES    = "PARTS > 1 ? 1 : batch"      # of a
ONE_ROW     = "dtype_bytes == 2 && trans_b == 1 && M == 1 && N <= ONE_WIDE && K % 8 == 0"
FEW_ROWS    = "!ONE_ROW && dtype_bytes == 2 && trans_b == 1 && M <= FEW && N <= FEW_WIDE && K % 64 == 0"
TOKENS      = "M <= 8 ? 8 : 16"
TMA         = "!ONE_ROW && !FEW_ROWS && dtype_bytes == 2 && K % 8 == 0 && (trans_b == 1 || N % 8 == 0)"
ROOM        = "max(1, SMS / (batch * ceil_div(M, TILE_M)))"     # blocks for each row of tiles
GRAIN       = "trans_b == 1 ? 32 : 64 * PAIRS"
# Few tiles: of NARROW columns, each shared by SPLIT blocks. Else as wide as fills the device once, 256 at most.
# With one row of tiles, as wide as fills it evenly some times: of 197 tiles of 256 columns (50257) a third would have the device for themselves. Where
# the copy engine stores c it was not measured.
WAVES       = "N % 8 != 0 && batch * ceil_div(M, TILE_M) == 1 ? ceil_div(N, ROOM * 256) : 1"
TILE_N      = "!TMA ? 64 : ceil_div(N, NARROW) * 2 <= ROOM ? NARROW : min(256, max(GRAIN, ceil_div(ceil_div(N, ROOM * WAVES), GRAIN) * GRAIN))"
# Rows of a that are copied: with one token 8 of 64, the others of the tile are never stored. wgmma reads 64, whatever they are: with 32 columns of b behind them
# 32 must be there.
A_ROWS      = "!TMA ? 64 : min(TILE_M, max(64 - TILE_N, M <= 8 ? 8 : M <= 16 ? 16 : M <= 32 ? 32 : M <= 64 ? 64 : 128))"
SHARE       = "min(min(ROOM / ceil_div(N, TILE_N), MAX_SPLIT), K / 512)"
# Clusters of 4 fit into 120 of an H200's 132 multiprocessors, no more.
SPLIT       = "!TMA ? 1 : SHARE >= 4 && batch * ceil_div(M, TILE_M) * ceil_div(N, TILE_N) * 4 <= SMS * 10 / 11 ? 4 : SHARE >= 2 ? 2 : 1"
PAIR        = "SPLIT > 1 ? 1 : PAIRS"
CLUSTER     = "PAIR * SPLIT"
BIASED      = "TMA && has_bias == 1"
PIECES      = "TMA && PAIR == 1 && trans_b == 1 && K % 64 == 0 && N % 8 == 0 ? DEEP : 1"
SLICE_BYTES = "(A_ROWS + TILE_N) * 128 * PIECES"    # a stage
BY_MAP      = "!TMA ? 0 : SPLIT == 1 && TILE_N % 64 == 0 && N % 8 == 0"     # whether c is stored by the copy engine
BY_ROWS     = "TMA && SPLIT == 1 && N % 8 != 0"     # or by a warp a row at a time, since rows of c begin anywhere
EXTRA_BYTES = "SPLIT > 1 ? TILE_M * TILE_N * 4 : BY_MAP ? TILE_M * 256 : BY_ROWS ? TILE_M * 144 : 0"
RING        = "!TMA ? 1 : max(2, min(MAX_RING, (SMEM_MAX - 2304 - EXTRA_BYTES) / SLICE_BYTES))"
TILES       = "batch * ceil_div(M, TILE_M * PAIR) * ceil_div(N, TILE_N)"     # of a cluster
# With three tiles a block or more, each leaves while the next is multiplied. With one there is no next, and what else comes with it loses 1 %;
# with two it was not measured.
LATER       = "BY_MAP && TILE_M == 128 && TILE_N == 256 && PIECES == 1 && K >= 256 && TILES > SMS / CLUSTER * 2"
OWN_SLICES  = "BY_MAP && (!LATER || LATE_TOO) && TILE_M == 128 && TILE_N == 256 && PIECES == 1 && SPLIT == 1 && A_ROWS == TILE_M && K >= 512 ? BROUGHT : 0"
# In a pass of a model b is asked for while the launch before still runs, which it does not depend on; a, which it does, by another warp.
AHEAD       = "TMA && !LATER && OWN_SLICES == 0"
COPIERS     = "LATER ? 128 : AHEAD ? 64 : 32"      # threads of which one copies, or of each warp: registers are handed over by a whole warpgroup
ROUND       = "SMS / CLUSTER"                      # tiles of a full wave
REST        = "TILES % ROUND"                      # and of the one that is not full
STREAM      = "LATER && CLUSTER == PAIR && STREAMED > 0 && REST > 0 && K / 64 * (ROUND - REST) / ROUND >= STREAMED && K / 64 * REST / ROUND >= 12"
BOXES       = "trans_b == 1 ? 2 : TILE_N / 64"     # copies that make a slice of b
VEC         = "16 / dtype_bytes"
BK          = "K_BYTES / dtype_bytes"
WARPS_MN    = "BM / WARP_M * (BN / WARP_N)"
THREADS     = "WARPS_MN * WARPS_K * 32"
STAGE_BYTES = "(BM + BN) * K_BYTES"
RESULTS     = "WARPS_K * BM * (BN + 8) * 4"
# No tile or slice reaches beyond the matrices, and rows are aligned. Where tiles are small it is asked as the kernel runs:
# one compilation less.
PLAIN       = "!TMA && !ONE_ROW && !FEW_ROWS && BM >= 64 && K % BK == 0 && M % BM == 0 && N % BN == 0"
STAGES      = "max(2, min(DEPTH, SMEM_MAX / STAGE_BYTES))"
[[variant]]    # few rows: all the time goes into reading b
when = "dtype_bytes == 2 && K % 8 == 0 && (trans_b == 1 || N % 8 == 0) && M <= 64"
tune = { TILE_M = 64, NARROW = 64, PAIRS = 1, DEEP = 2 }
[[variant]]    # 128 rows by very many columns: a is read again for each tile, so half of it is enough for a block
when = "dtype_bytes == 2 && K % 8 == 0 && (trans_b == 1 || N % 8 == 0) && batch == 1 && M <= 128 && N * 2 > SMS * 64 && N * 2 <= SMS * 256"
tune = { TILE_M = 64, NARROW = 64 }
[[variant]]    # 128 rows and a small matrix
when = "dtype_bytes == 2 && K % 8 == 0 && (trans_b == 1 || N % 8 == 0) && M <= 128 && batch * N * K <= 3072 * 3072"
tune = { TILE_M = 64, NARROW = 64, PAIRS = 1, DEEP = 2 }
[[variant]]    # 128 rows
when = "dtype_bytes == 2 && K % 8 == 0 && (trans_b == 1 || N % 8 == 0) && M <= 128"
tune = { TILE_M = 128, NARROW = 64, PAIRS = 1 }
[[variant]]    # one wave of an odd number of rows of tiles, of which a pair would leave one empty, or of two rows and few terms
when = "dtype_bytes == 2 && K % 8 == 0 && (trans_b == 1 || N % 8 == 0) && batch * ceil_div(M, 128) * ceil_div(N, 256) <= SMS && (ceil_div(M, 128) % 2 == 1 && N >= 1024 || M <= 256 && N >= 2048 && K <= 1024)"
tune = { TILE_M = 128, NARROW = 64, PAIRS = 1, DEEP = 2 }
[[variant]]    # few tiles
when = "dtype_bytes == 2 && K % 8 == 0 && (trans_b == 1 || N % 8 == 0) && batch * ceil_div(M, 128) * ceil_div(N, 128) * 8 <= SMS * 2"
tune = { TILE_M = 64, NARROW = 64, PAIRS = 1 }
[[variant]]    # not many
when = "dtype_bytes == 2 && K % 8 == 0 && (trans_b == 1 || N % 8 == 0) && batch * ceil_div(M, 128) * ceil_div(N, 128) * (K <= 1024 ? 7 : 8) <= SMS * 4"
tune = { TILE_M = 64, MAX_SPLIT = 1 }
[[variant]]    # tiles of 128 x 256
when = "dtype_bytes == 2 && K % 8 == 0 && (trans_b == 1 || N % 8 == 0)"
tune = { TILE_M = 128 }
[[variant]]    # few rows, of any length
when = "M <= 16"
tune = { BM = 16, BN = 32, K_BYTES = 512, WARP_M = 16, WARP_N = 32, WARPS_K = 8, DEPTH = 4 }
[[variant]]    # too few large tiles for all multiprocessors
when = "batch * ceil_div(M, 128) * ceil_div(N, 256) * 2 <= SMS"
tune = { BM = 64, BN = 64, K_BYTES = 128, WARP_M = 64, WARP_N = 32, WARPS_K = 2, DEPTH = 4 }
[[variant]]    # registers for f32 do not suffice for the larger tile
when = "dtype_bytes == 4"
tune = { BM = 128, BN = 128, K_BYTES = 128, WARP_M = 64, WARP_N = 32, DEPTH = 3 }
[[scratch]]    # sums of clusters that end somebody else's tile
name  = "parts"
dtype = "f32"
shape = ["STREAM ? ROUND * PAIR : 1", "STREAM ? TILE_M * TILE_N : 1"]
[[scratch]]    # and which warp's are there
name  = "arrived"
dtype = "i64"
shape = ["STREAM ? ROUND * PAIR * 8 : 1"]
init  = "zero_kept"
[[tensormap]]
name = "a_map"
tensor = "a"
dims = ["K", "M", "MATRICES"]
strides = ["K", "M * K"]
box = ["64", "A_ROWS", "1"]
swizzle = "128B"
[[tensormap]]
name = "b_map"
tensor = "b"
when = "PIECES > 1"
dims = ["64", "8", "K / 64", "N / 8", "PARTS > 1 ? SPAN : batch"]
strides = ["K", "64", "8 * K", "N * K"]
box = ["64", "8", "PIECES", "TILE_N / 16", "1"]
swizzle = "128B"
[[tensormap]]
name = "b_map"
tensor = "b"
when = "trans_b == 1"
dims = ["K", "N", "PARTS > 1 ? SPAN : batch"]
strides = ["K", "N * K"]
box = ["64", "TILE_N / 2", "1"]
swizzle = "128B"
[[tensormap]]
name = "b_map"
tensor = "b"
dims = ["N", "K", "PARTS > 1 ? SPAN : batch"]
strides = ["N * SPAN", "PARTS > 1 ? N : K * N"]
box = ["64", "64", "1"]
swizzle = "128B"
[[tensormap]]
name = "c_map"
tensor = "c"
when = "BY_MAP"
dims = ["N", "M", "PARTS > 1 ? SPAN : batch"]
strides = ["N * SPAN", "PARTS > 1 ? N : M * N"]
box = ["64", "16", "1"]
swizzle = "128B"
[[tensormap]]    # c is stored otherwise; this one is not used
name = "c_map"
tensor = "a"
dims = ["K", "M", "MATRICES"]
strides = ["K", "M * K"]
box = ["64", "16", "1"]
swizzle = "128B"
[[launch]]
kernel  = "product"
when    = "TMA"
grid    = ["(SPLIT > 1 ? TILES : min(TILES, SMS / CLUSTER)) * CLUSTER"]
block   = ["TILE_M * 2 + COPIERS"]
cluster = ["CLUSTER"]
shared  = "RING * SLICE_BYTES + EXTRA_BYTES + 1024"
args    = ["a", "b", "a_map", "b_map", "c_map", "bias", "c", "parts", "arrived", "batch", "M", "N", "K"]
[[launch]]
kernel = "one_row"
when   = "ONE_ROW"
grid   = ["batch * ceil_div(N, ONE_WARPS * ONE_ROWS)"]
block  = ["ONE_WARPS * 32"]
args   = ["a", "b", "bias", "c", "N", "K", "has_bias"]
[[launch]]
kernel = "few_rows"
when   = "FEW_ROWS"
grid   = ["batch * ceil_div(N, 16)"]
block  = ["FEW_WARPS * 32"]
args   = ["a", "b", "bias", "c", "M", "N", "K", "has_bias"]
[[launch]]
kernel = "matmul"
when   = "!TMA && !ONE_ROW && !FEW_ROWS"
grid   = ["batch * ceil_div(M, BM) * ceil_div(N, BN)"]
block  = ["THREADS"]
shared = "max(STAGES * STAGE_BYTES, RESULTS)"
args   = ["a", "b", "bias", "c", "batch", "M", "N", "K", "has_bias"]
---*/

/* Four kernels. `product`, for 16-bit types whose rows are multiples of 16 bytes, is Hopper's way; `one_row` is a plain read of b; `few_rows`, for 2 to 8
   rows by up to 8192 columns, reads b straight into the registers of mma.sync; `matmul`, for all else, is that of kernels/cuda/matmul.cu.

       a --\                                  /-> warpgroup 0: 64 rows of c --\
            TMA --> ring of RING stages  ----                                 ---> boxes --TMA--> c
       b --/        (128 to 200 KB)           \-> warpgroup 1: 64 rows of c --/
           one thread of a ninth warp,         wgmma, 128 sums a thread at most
           or of a ninth (b) and a tenth (a)

   What bounds it depends on the rows of a.
   - Many: the tensor cores, and then the power they take. A slice of a tile of 128 x 256 x 64 keeps them busy for 1024 cycles while
     48 KB of the next arrive; two blocks in a cluster share what they read of b (multicast), which takes a third off that. Blocks
     stay, one a multiprocessor, and work through tiles: the ring is filled again while sums are stored. c leaves through shared
     memory and TMA, since stores from registers took 10 % longer in all. 4 stages are what shared memory has room for.
     Between two tiles nothing would be multiplied for 2000 of 67000 cycles (4096^3), so with three tiles a block or more (LATER) a
     tile is only rounded to pairs there, and leaves behind the first four slices of the next one, a box of 64 columns each:

         multiplied    tile 0: slice 0 1 2 ... 63 | round | tile 1: slice 0 1 2 3 4 ... 63 | round | tile 2 ...
         leaves                                             box of tile 0:  0 1 2 3

     The pairs take 64 registers more a thread. Warps can have 65536 / 384 = 170, 168 rounded down; the copying warps, which are
     four then so that they can (setmaxnreg is for a whole warpgroup), keep 40 and give away what makes the others' 232. The last tile
     of a block has no next one: it leaves from where the ring was, all boxes at once. And the first may begin early: a ring of
     a is asked for before the neighbour is known to be there, for which only b must wait. In all 1.2 %.
     Tiles seldom fill the last wave. Where that saves 8 slices of 64 terms a cluster or more (STREAM), the tiles of a wave that is not full come first
     and are dealt out by slices, the same to each cluster: the end of one tile, whose sums stay in scratch, and the beginning of the next, to which
     the others' sums are added in their order. 28 tiles for 66 clusters of two (4096 x 11008 x 4096):

         cluster 65: tile 0, slices 0..26 <- sums of 64 and 63      cluster 64: 27..53      cluster 63: 54..63, then tile 1, slices 0..16 <- ...

     which takes 1.7 % off. What is written and read again costs some 19 slices, so with 7 to save (4096^3) it loses 4 %.
     With up to two tiles a block its beginning counts. The copy engine's first answer comes 3850 cycles after a block has begun: barriers, the
     neighbour, the map, and memory. Those who multiply have nothing to do then, and bring the first slice themselves (OWN_SLICES, cp.async), which
     needs none of these but memory: 1.8 % at 2048^3. Two slices or four take as much longer as they come sooner.
   - Few (a language model decoding, or a short prompt): reading b, once. All multiprocessors must ask for it, and each for some
     100 KB at a time, as memory answers after 1 to 2 us under load. So tiles are narrow, 64 columns, and where there are too few of
     them blocks share the terms: each of a cluster of two adds up half of the terms, and they exchange sums through each other's
     shared memory, in a fixed order, without scratch. With 1 row the tensor cores multiply 64, which costs nothing here, but
     only 8 are read. Stages hold 128 terms of b, brought by one copy that takes 256 bytes of each row: 3 % faster than 128.
   - 128: both of it. Now also a is read again for each tile of columns, from the L2 cache, at 8 to 10 TB/s in all: this is why
     tiles are not narrower, and why for 11008 columns two blocks with 64 rows each share a tile of b instead. With few columns and
     terms (the 768 of a small model) nothing is full, and what counts is how much one block has to wait for: tiles of 64 rows
     instead of 128 take 11 % off, and stages of 128 terms more (128 x 768 x 768: 5.7, 5.1, 4.3 us); bringing the first slices
     as above loses 4 %, sharing the terms 3 %. At 3072 x 3072 3 % are left of it, at 4096 x 4096 it loses 11 %. */

#include "ws/hopper.cuh"

using namespace ws;

/* What each of PARTS products has for itself comes as so many arguments: all of them, and that of the product which a matrix of N columns belongs to. */
#if PARTS == 1
#define EACH(type, name) type name
#define OF(matrix, name) name
#elif PARTS == 2
#define EACH(type, name) type name, type name##_1
#define OF(matrix, name) (product_of(matrix) == 0 ? name : name##_1)
#else
#define EACH(type, name) type name, type name##_1, type name##_2
#define OF(matrix, name) (product_of(matrix) == 0 ? name : product_of(matrix) == 1 ? name##_1 : name##_2)
#endif
constexpr bool MIXED = SPAN != 1 || SPAN_1 != 1 || SPAN_2 != 1; /* products of several widths */

__device__ int product_of(int64_t matrix) {
    return PARTS == 1 ? 0 : !MIXED ? (int)matrix : (matrix >= SPAN) + (PARTS > 2 && matrix >= SPAN + SPAN_1);
}
/* Its number among the matrices in tensors b and c: one behind the other, or those of a product side by side. */
__device__ int64_t within(int64_t matrix) {
    const int product = product_of(matrix);
    return PARTS == 1 ? matrix : !MIXED ? 0 : matrix - (product == 0 ? 0 : product == 1 ? SPAN : SPAN + SPAN_1);
}
/* Columns that rows of c have, and of b where it is not transposed. */
__device__ int64_t width_of(int64_t matrix, int64_t N) {
    const int product = product_of(matrix);
    return !MIXED ? N : N * (product == 0 ? SPAN : product == 1 ? SPAN_1 : SPAN_2);
}
/* Elements of c before it; of its bias; and matrices of a. */
__device__ int64_t c_before(int64_t matrix, int64_t M, int64_t N) { return within(matrix) * (PARTS > 1 ? N : M * N); }
__device__ int64_t b_before(int64_t matrix, int64_t N, int64_t K) { return within(matrix) * (PARTS > 1 && !WS_TRANS_B ? N : K * N); }
__device__ int64_t bias_before(int64_t matrix, int64_t N) { return PARTS > 1 ? within(matrix) * N : 0; }
__device__ int64_t of_a(int64_t matrix) { return PARTS > 1 ? 0 : matrix; }

__device__ float activated(float v) {
#if ACT == 1
    return 0.5f * v * (1.0f + erff(v * 0.70710678f));
#elif ACT == 2
    return 0.5f * v * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
#elif ACT == 3
    return v / (1.0f + expf(-v));
#elif ACT == 4
    return v <= 0.0f ? 0.0f : v; /* NaN stays what it is */
#else
    return v;
#endif
}

#if TMA

constexpr int MULTIPLIERS = TILE_M * 2;                     /* threads that multiply */
constexpr int A_BYTES = A_ROWS * 128, B_BYTES = TILE_N * 128; /* of a piece: 64 terms */
static_assert(PIECES == 1 || PAIR == 1, "pieces come to one block");
constexpr int OWN_BOXES = BOXES / PAIR; /* of b, that this block asks for */
static_assert(BOXES % PAIR == 0 && TILE_N % (8 * SPLIT) == 0 && TILE_N % 32 == 0, "parts are equal");
static_assert(SPLIT == 1 || RING * SLICE_BYTES >= TILE_M * TILE_N * 4, "sums are sent from where the ring was");
static_assert(!LATER || TILE_M * TILE_N * 2 <= RING * SLICE_BYTES, "a whole tile fits where the ring was");
static_assert(A_ROWS + TILE_N >= 64, "wgmma reads 64 rows of a, whatever they are");

/* Stores COLUMNS columns, from `column` on, of rows `row` and `row` + 8, two neighbours at a time. */
template <int COLUMNS> __device__ void store(const float *sums, T *c, int64_t row, int64_t column, int64_t M, int64_t N, int64_t width) {
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int64_t i = row + e * 8, at = column + j * 8 + threadIdx.x % 4 * 2;
            if (i >= M || at >= N) continue;
            const uint32_t both = pack(sums[j * 4 + e * 2], sums[j * 4 + e * 2 + 1]);
            T *to = c + i * width + at;
            if (N % 2 == 0) *(uint32_t *)to = both;
            else {
                to[0] = (T)both;
                if (at + 1 < N) to[1] = (T)(both >> 16);
            }
        }
}

/* The same for a warp's 16 rows, where a row of c begins at any element: through 16 rows of 36 words (32, and 4 that keep rows in different banks), so
   that a warp writes 128 neighbouring bytes at once. */
template <int COLUMNS> __device__ void store_by_rows(uint32_t *words, const float *sums, T *c, int64_t row, int64_t column, int64_t M, int64_t N, int64_t wide) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int begin = 0; begin < COLUMNS; begin += 64) {
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 8 && begin + j * 8 < COLUMNS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                words[(lane / 4 + e * 8) * 36 + j * 4 + lane % 4] = pack(sums[(begin / 8 + j) * 4 + e * 2], sums[(begin / 8 + j) * 4 + e * 2 + 1]);
        __syncwarp();
        const int width = (int)min((int64_t)min(64, COLUMNS - begin), N - column - begin), rows = (int)min((int64_t)16, M - row);
        if (width <= 0) break;
        for (int i = 0; i < rows; i++) {
            T *const to = c + (row + i) * wide + column + begin;
            const T *const from = (const T *)(words + i * 36);
            /* Pairs of elements that lie in one word of c; at the ends half of one may be somebody else's. */
            for (int j = lane * 2 - (int)((uintptr_t)to / sizeof(T) % 2); j < width; j += 64) {
                if (j >= 0 && j + 1 < width) *(uint32_t *)(to + j) = from[j] | (uint32_t)from[j + 1] << 16;
                else if (j >= 0) to[j] = from[j];
                else to[0] = from[0];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(MULTIPLIERS + COPIERS, 1)
product(const T *__restrict__ a_elements, EACH(const T *__restrict__, b_elements), const __grid_constant__ CUtensorMap a_map,
        EACH(const __grid_constant__ CUtensorMap, b_map), EACH(const __grid_constant__ CUtensorMap, c_map), EACH(const T *__restrict__, bias),
        EACH(T *__restrict__, c), float *__restrict__ parts, uint64_t *__restrict__ arrived, int64_t batch, int64_t M, int64_t N, int64_t K) {
    extern __shared__ char shared[];
    __shared__ uint64_t full[RING], empty[RING], filled;
#if BIASED
    __shared__ __align__(4) T line[MULTIPLIERS / 128][TILE_N];
#endif
    char *const ring = shared + (1024 - shared_address(shared) % 1024) % 1024, *const extra = ring + RING * SLICE_BYTES;
    (void)extra;

    const int rank = blockIdx.x % CLUSTER, peer = rank % PAIR, part = rank / PAIR;
    const int slices = (int)((K + 64 * PIECES - 1) / (64 * PIECES));
    int first = slices * part / SPLIT, last = slices * (part + 1) / SPLIT;

    /* Tiles of clusters in groups of GROUP rows of them, down the columns of a group. */
    const int tiles_m = (int)((M + TILE_M * PAIR - 1) / (TILE_M * PAIR)), tiles_n = (int)((N + TILE_N - 1) / TILE_N);
    const int tiles = (int)batch * tiles_m * tiles_n;
    int matrix, i0, j0; /* what is computed: this block's tile begins here */
    auto choose = [&](int index) {
        int group = 0, height = tiles_m; /* a division takes 35 dependent instructions: none where there is nothing to divide */
        matrix = 0;
        if (batch > 1) matrix = index / (tiles_m * tiles_n), index -= matrix * (tiles_m * tiles_n);
        if (tiles_m > GROUP) {
            group = index / (GROUP * tiles_n) * GROUP, index -= group * tiles_n;
            height = min(GROUP, tiles_m - group);
        }
        const int column = height == 1 ? index : index / height;
        i0 = ((group + index - column * height) * PAIR + peer) * TILE_M;
        j0 = column * TILE_N;
    };
    const int begin = blockIdx.x / CLUSTER, step_of_tiles = gridDim.x / CLUSTER;
#if STREAM
    /* The slices of the tiles that fill no wave stand in a row, of which each cluster takes as many as the others: first the end (or the
       middle) of a tile, which it leaves in scratch, then the beginning of the next, which is its own: others' sums are added to it. Clusters wait
       for those with lower numbers, which began before. Then come whole tiles. A cut near a tile's border is moved there. */
    const int rest = tiles % step_of_tiles, turn = step_of_tiles - 1 - begin; /* the cluster's place in that row */
    auto cut = [&](int place) {
        const int at = (int)((int64_t)rest * slices * place / step_of_tiles), off = at % slices;
        return off < 4 ? at - off : off > slices - 4 ? at - off + slices : at;
    };
    const int stream_begin = cut(turn), stream_end = cut(turn + 1), stream_tile = stream_begin / slices;
    const int pieces_of_tiles = stream_end > (stream_tile + 1) * slices ? 2 : 1;
    const int items = pieces_of_tiles + tiles / step_of_tiles;
    int owned = 0; /* where in that row what is computed begins */
    auto choose_item = [&](int item) {
        first = 0, last = slices;
        if (item >= pieces_of_tiles) choose(rest + begin + (item - pieces_of_tiles) * step_of_tiles);
        else {
            owned = item == 0 ? stream_begin : (stream_tile + 1) * slices;
            first = owned - (stream_tile + item) * slices;
            last = min(slices, stream_end - (stream_tile + item) * slices);
            choose(stream_tile + item);
        }
    };
    choose_item(0);
#else
    choose(begin);
#endif

#if OWN_SLICES > 0
    /* The first slices of the first tile: nobody has anything else to do, no barrier is needed for it, no map must come first, and no neighbour
       must be there. 16 bytes at a time, to where the copy engine would have put them. */
    ws_wait_for_previous();
    if (threadIdx.x < MULTIPLIERS) {
        const T *const a_matrix = a_elements + of_a(matrix) * M * K, *const b_matrix = OF(matrix, b_elements) + b_before(matrix, N, K);
#pragma unroll
        for (int slice = 0; slice < OWN_SLICES; slice++) {
            char *const stage = ring + slice * SLICE_BYTES;
            auto bring = [&](char *tile, int row, int chunk, const T *from, bool there) {
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(tile) + row * 128 + (chunk ^ row % 8) * 16),
                             "l"(there ? from : a_elements), "r"(there ? 16 : 0) : "memory");
            };
            const int chunk = threadIdx.x % 8, line = threadIdx.x / 8, k = (first + slice) * 64;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = line + i * 32;
                bring(stage, row, chunk, a_matrix + (int64_t)(i0 + row) * K + k + chunk * 8, i0 + row < M && k + chunk * 8 < K);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
#if WS_TRANS_B
                const int row = line + i * 32;
                bring(stage + A_BYTES, row, chunk, b_matrix + (int64_t)(j0 + row) * K + k + chunk * 8, j0 + row < N && k + chunk * 8 < K);
#else /* boxes of 64 columns, a row for each term */
                const int row = line + i % 2 * 32, column = j0 + i / 2 * 64 + chunk * 8;
                bring(stage + A_BYTES + i / 2 * 8192, row, chunk, b_matrix + (int64_t)(k + row) * width_of(matrix, N) + column, k + row < K && column < N);
#endif
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
    }
#endif

    if (threadIdx.x == (LATER || OWN_SLICES > 0 ? MULTIPLIERS : 0)) {
        for (int s = 0; s < RING; s++) make_barrier(full + s, 1), make_barrier(empty + s, TILE_M / 64 * PAIR);
        if (SPLIT > 1) make_barrier(&filled, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); /* the copy engine must see them too */
        if (LATER) asm volatile("fence.proxy.async;" ::: "memory");        /* at once: it is asked before the cluster has met */
        if (SPLIT > 1) arrive_and_expect(&filled, (SPLIT - 1) * min(TILE_M / 16, (int)(M - i0 + 15) / 16) * (TILE_N / SPLIT / 8 * 512));
    }
    /* What is nobody else's need not wait for the neighbour: a whole ring of a. */
    int early = 0; /* stages that have their a */
    if (LATER) ws_wait_for_previous();
    if (LATER && OWN_SLICES == 0 && PAIR > 1 && threadIdx.x == MULTIPLIERS)
        for (; early < min(RING, last - first); early++) {
            arrive_and_expect(full + early, SLICE_BYTES);
            copy_box(ring + early * SLICE_BYTES, a_map, (first + early) * 64, i0, (int)of_a(matrix), full + early, false, 0);
        }
    if (threadIdx.x == MULTIPLIERS) prefetch(a_map), prefetch(OF(matrix, b_map)), prefetch(OF(matrix, c_map));
    ws_next_may_begin(); /* in a pass of a model: as blocks leave, those of the next launch come, and wait for the end of this one */
    if (!AHEAD) ws_wait_for_previous();
    if (CLUSTER > 1) cluster_arrive();
    if (PAIR > 1) cluster_wait(); /* others write here, and arrive here */
    else __syncthreads();

    int s = 0, phase = 0;
    auto next_stage = [&] {
        if (++s == RING) s = 0, phase ^= 1;
    };

    if (threadIdx.x >= MULTIPLIERS) {
        if (LATER) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        auto fill_stages = [&](bool brings_a, bool brings_b) {
#if STREAM
            for (int item = 0; item < items; item++) {
                choose_item(item);
                const bool is_first = item == 0;
#else
            for (int index = begin; index < tiles; index += step_of_tiles) {
                choose(index);
                const bool is_first = index == begin;
#endif
                for (int slice = first; slice < last; slice++, next_stage()) {
                    if (OWN_SLICES > 0 && is_first && slice < first + OWN_SLICES) { /* is brought by others: a phase without bytes */
                        arrive(full + s);
                        continue;
                    }
                    if (early == 0) {
                        wait(empty + s, phase ^ 1);
                        if (brings_b) arrive_and_expect(full + s, SLICE_BYTES);
                    }
                    if (brings_b)
                        for (int box = 0; box < OWN_BOXES; box++) {
                            char *const b = ring + s * SLICE_BYTES + A_BYTES * PIECES;
                            const int at = peer * OWN_BOXES + box, column = j0 + at * (TILE_N / BOXES), k = slice * 64;
                            char *const to = b + at * (B_BYTES / BOXES * PIECES);
                            if (PIECES > 1) copy_pieces(to, OF(matrix, b_map), slice * PIECES, column, (int)within(matrix), full + s);
                            else
                                copy_box(to, OF(matrix, b_map), WS_TRANS_B ? k : column, WS_TRANS_B ? column : k, (int)within(matrix), full + s, PAIR > 1,
                                         (1 << PAIR) - 1);
                        }
                    if (early > 0) early--;
                    else if (brings_a)
#pragma unroll
                        for (int piece = 0; piece < PIECES; piece++)
                            copy_box(ring + s * SLICE_BYTES + piece * A_BYTES, a_map, (slice * PIECES + piece) * 64, i0, (int)of_a(matrix),
                                     full + s, false, 0);
                }
            }
        };
        if (threadIdx.x == MULTIPLIERS) fill_stages(!AHEAD, true);
        if (AHEAD && threadIdx.x == MULTIPLIERS + 32) {
            ws_wait_for_previous();
            fill_stages(true, false);
        }
        /* Until all stages are released: the other block's word for it orders nothing with the cluster's barrier, and must find this one here. */
        if (PAIR > 1 && threadIdx.x == MULTIPLIERS)
            for (int stage = 0; stage < RING; stage++, next_stage()) wait(empty + s, phase ^ 1);
        __syncwarp();
        if (SPLIT > 1) cluster_wait(), cluster_arrive();
    } else {
        if (LATER) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if (AHEAD) ws_wait_for_previous();
        const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
        auto release = [&](int stage) { /* one thread for each block that fills it */
            if (threadIdx.x % 128 < PAIR) arrive(empty + stage, part * PAIR + threadIdx.x % 128);
        };
        float sums[TILE_N / 2];
#if BY_MAP /* in boxes of 64 columns, in turn through two places that this warp has, from one tile to the next as well: one may still be read */
        char *const boxes = extra + threadIdx.x / 32 * 4096;
        constexpr bool ODD = TILE_N / 64 % 2 == 1;
        int flipped = 0;
        auto place = [&](int j) { return boxes + (ODD ? (j + flipped) % 2 : j % 2) * 2048; };
        auto next_box = [&] {
            if (threadIdx.x % 32 == 0) wait_for_stores<1>();
            __syncwarp();
        };
#endif
#if LATER
        uint32_t kept[TILE_N / 4]; /* the tile before, as it will be stored */
        int kept_row = (int)M, kept_column = 0, kept_matrix = 0;
#endif
#if STREAM
        for (int item = 0; item < items; item++) {
            choose_item(item);
            const bool is_last = item == items - 1, is_first = item == 0;
#else
        for (int index = begin; index < tiles; index += step_of_tiles) {
            choose(index);
            const bool is_last = index + step_of_tiles >= tiles, is_first = index == begin;
#endif
            (void)is_last, (void)is_first;
#if BIASED
            T own[(TILE_N + 127) / 128]; /* the bias of these columns, for all */
#pragma unroll
            for (int i = 0; i < TILE_N; i += 128) {
                const int j = i + threadIdx.x % 128;
                own[i / 128] = part == 0 && j < TILE_N && j0 + j < N ? OF(matrix, bias)[bias_before(matrix, N) + j0 + j] : T(0);
            }
#endif
            int before = 0, slice = first;
            auto start_products = [&] {
                const char *stage = ring + s * SLICE_BYTES;
                const uint64_t a = description(stage + group * 8192, 16, 1024);
                const uint64_t b = description(stage + A_BYTES * PIECES, WS_TRANS_B ? 16 : 8192, PIECES * 1024);
#if OWN_SLICES > 0
                if (is_first && slice < first + OWN_SLICES) {
                    if (slice - first == OWN_SLICES - 1) asm volatile("cp.async.wait_group 0;" ::: "memory");
                    else if (slice - first == OWN_SLICES - 2) asm volatile("cp.async.wait_group 1;" ::: "memory");
                    else if (slice - first == OWN_SLICES - 3) asm volatile("cp.async.wait_group 2;" ::: "memory");
                    else asm volatile("cp.async.wait_group 3;" ::: "memory");
                    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* wgmma will read what this thread brought */
                    meet(1, MULTIPLIERS);
                }
#endif
                wait(full + s, phase); /* also of a slice of one's own: synccheck refuses a phase that nobody has waited for */
                fence_products();
#pragma unroll
                for (int piece = 0; piece < PIECES; piece++)
#pragma unroll
                    for (int step = 0; step < 4; step++) /* 16 terms are 32 bytes of a row, or 16 rows */
                        multiply<TILE_N, PIECES, !WS_TRANS_B>(sums, a + piece * (A_BYTES / 16) + step * 2, b + piece * 64 + step * (WS_TRANS_B ? 2 : 128),
                                         slice > first || piece > 0 || step > 0);
                end_of_products();
            };
#if LATER
#pragma unroll
            for (int j = 0; j < TILE_N / 64; j++, slice++, next_stage()) {
                start_products();
                if (kept_row < M) { /* a box of the tile before leaves meanwhile */
                    next_box();
                    stage_pairs(place(j), kept + j * 16);
                    if (threadIdx.x % 32 == 0) store_box(place(j), OF(kept_matrix, c_map), kept_column + j * 64, kept_row, (int)within(kept_matrix));
                }
                wait_for_products<1>();
                if (j > 0) release(before);
                before = s;
            }
#endif
            for (; slice < last; slice++, next_stage()) {
                start_products();
                /* These products run on; those of the slice before are done now, and its stage can be filled again. */
                wait_for_products<1>();
                if (slice > first) release(before);
                before = s;
            }
            wait_for_products<0>();
#pragma unroll
            for (int i = 0; i < TILE_N / 2; i++) asm volatile("" : "+f"(sums[i])::"memory"); /* not to be read before */
            release(before);
#if STREAM
            /* A warp's sums lie in scratch as [four][lane]; only the same warp of another block asks for them. */
            constexpr int FOURS = TILE_N / 8;
            auto place_of = [&](int place) { return (place * PAIR + peer) * 8 + (int)threadIdx.x / 32; };
            if (item < pieces_of_tiles && first > 0) {
                float4 *const to = (float4 *)parts + (int64_t)place_of(turn) * (FOURS * 32) + threadIdx.x % 32;
#pragma unroll
                for (int i = 0; i < FOURS; i++) __stcg(to + i * 32, make_float4(sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]));
                __syncwarp();
                if (threadIdx.x % 32 == 0) {
                    __threadfence();
                    asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(arrived + place_of(turn)), "l"(1ull) : "memory");
                }
                kept_row = (int)M;
                continue;
            }
            if (item < pieces_of_tiles && last < slices)
                for (int place = turn + 1, end = owned + slices; cut(place) < end; place++) {
                    uint64_t *const flag = arrived + place_of(place);
                    if (threadIdx.x % 32 == 0) {
                        uint64_t there;
                        do asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(there) : "l"(flag) : "memory");
                        while (there == 0);
                        *flag = 0; /* for the next launch */
                    }
                    __syncwarp();
                    const float4 *const from = (const float4 *)parts + (int64_t)place_of(place) * (FOURS * 32) + threadIdx.x % 32;
#pragma unroll
                    for (int i = 0; i < FOURS; i += 8) {
                        float4 more[8];
#pragma unroll
                        for (int j = 0; j < 8; j++) more[j] = __ldcg(from + (i + j) * 32);
#pragma unroll
                        for (int j = 0; j < 8; j++) {
                            float *const s = sums + (i + j) * 4;
                            s[0] += more[j].x, s[1] += more[j].y, s[2] += more[j].z, s[3] += more[j].w;
                        }
                    }
                }
#endif

            const int warp_row = i0 + group * 64 + warp * 16; /* of c */
#if BIASED
#pragma unroll
            for (int i = threadIdx.x % 128; i < TILE_N; i += 128) line[group][i] = own[i / 128];
            meet(2 + group, 128);
#pragma unroll
            for (int j = 0; j < TILE_N / 8; j++) {
                const uint32_t two = *(const uint32_t *)&line[group][j * 8 + threadIdx.x % 4 * 2];
                const float left = ws_load((T)two), right = ws_load((T)(two >> 16));
                sums[j * 4] += left, sums[j * 4 + 1] += right, sums[j * 4 + 2] += left, sums[j * 4 + 3] += right;
            }
#endif
#if ACT > 0 && SPLIT == 1
#pragma unroll
            for (int i = 0; i < TILE_N / 2; i++) sums[i] = activated(sums[i]);
#endif
#if BY_MAP
#if LATER
            if (!is_last) {
#pragma unroll
                for (int i = 0; i < TILE_N / 4; i++) kept[i] = pack(sums[i * 2], sums[i * 2 + 1]);
                kept_row = warp_row, kept_column = j0, kept_matrix = matrix;
                continue;
            }
            meet(1, MULTIPLIERS); /* nobody reads the ring any more: there is room for all boxes of the last tile */
#endif
            if (warp_row >= M) continue;
#pragma unroll
            for (int j = 0; j < TILE_N / 64; j++) {
                char *const box = LATER ? ring + (threadIdx.x / 32 * (TILE_N / 64) + j) * 2048 : place(j);
                if (!LATER) next_box();
                stage_sums(box, sums + j * 32);
                if (threadIdx.x % 32 == 0) store_box(box, OF(matrix, c_map), j0 + j * 64, warp_row, (int)within(matrix));
            }
            if (ODD) flipped ^= 1;
#elif BY_ROWS
            if (warp_row < M)
                store_by_rows<TILE_N>((uint32_t *)(extra + threadIdx.x / 32 * 2304), sums, OF(matrix, c) + c_before(matrix, M, N), warp_row, j0, M, N, width_of(matrix, N));
#elif SPLIT == 1
            if (warp_row < M) store<TILE_N>(sums, OF(matrix, c) + c_before(matrix, M, N), warp_row + threadIdx.x % 32 / 4, j0, M, N, width_of(matrix, N));
#else
            /* Block p of a tile adds up the p-th part of its columns. All lay their sums out where the ring was, as
               [part][warp][four][lane], and the copy engine sends each part to its block, whose barrier counts the bytes. */
            constexpr int FOURS = TILE_N / SPLIT / 8, PLACES = MULTIPLIERS * FOURS;
            float4 *const mine = (float4 *)ring, *const parts = (float4 *)extra;
            const int place = threadIdx.x / 32 * FOURS * 32 + threadIdx.x % 32;
            meet(1, MULTIPLIERS); /* nobody reads the ring any more */
            if (warp_row < M)
#pragma unroll
                for (int i = 0; i < SPLIT * FOURS; i++)
                    mine[i / FOURS * PLACES + place + i % FOURS * 32] =
                        make_float4(sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            meet(1, MULTIPLIERS);
            cluster_wait(); /* all have begun */
            if (threadIdx.x == 0)
                for (int to = 0; to < SPLIT; to++)
                    if (to != part)
                        send(to, parts + part * PLACES, mine + to * PLACES, min(TILE_M / 16, (int)(M - i0 + 15) / 16) * FOURS * 512, &filled);
            wait(&filled, 0);
            cluster_arrive();
            if (warp_row < M) {
                float totals[FOURS * 4];
#pragma unroll
                for (int i = 0; i < FOURS; i++) {
                    float4 total = {0, 0, 0, 0};
#pragma unroll
                    for (int from = 0; from < SPLIT; from++) {
                        const float4 more = (from == part ? mine : parts)[from * PLACES + place + i * 32];
                        total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
                    }
                    totals[i * 4] = activated(total.x), totals[i * 4 + 1] = activated(total.y);
                    totals[i * 4 + 2] = activated(total.z), totals[i * 4 + 3] = activated(total.w);
                }
                store<TILE_N / SPLIT>(totals, OF(matrix, c) + c_before(matrix, M, N), warp_row + threadIdx.x % 32 / 4, j0 + part * (TILE_N / SPLIT),
                                      M, N, width_of(matrix, N));
            }
#endif
        }
#if BY_MAP
        if (threadIdx.x % 32 == 0) wait_for_stores<0>();
        __syncwarp();
#endif
    }
    /* Nobody leaves while others still write to him, or read what he sends. */
    if (PAIR > 1) cluster_arrive();
    if (CLUSTER > 1) cluster_wait();
}

#elif ONE_ROW

/* c = a b^T for one row of a: every element of b is used once, so that nothing is gained by tensor cores, and a plain read is what there is to match. A warp has
   ONE_ROWS rows of b and reads 512 contiguous bytes of each at a time, ONE_LOADS such at once: 4 KB a warp and, with four blocks of 8 warps, 128 KB a
   multiprocessor on their way; with 4096 rows all blocks fit at once. a stays in the L1 cache, which b passes by. Each lane adds two sums a row; the warp's
   meet at the end. 1 x 4096 x 4096 takes 11.1 us (few_rows 12.4, a plain read of b 10.8), by 32000 columns 62.6 (the ring 64.4). Three blocks, two rows a
   warp, fewer and more loads lose up to 5 %. */

/* Two neighbours of a 16-bit type, wide. */
__device__ float2 wide(uint32_t two) {
#if WS_F16
    float2 both;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(both.x), "=f"(both.y) : "r"(two));
    return both;
#else
    return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
#endif
}

__device__ uint4 passing(const uint4 *from) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

__device__ void multiply(float2 &sum, uint32_t b, float2 a) {
    const float2 v = wide(b);
    sum.x = fmaf(v.x, a.x, sum.x);
    sum.y = fmaf(v.y, a.y, sum.y);
}

extern "C" __global__ void __launch_bounds__(ONE_WARPS * 32, ONE_BLOCKS)
one_row(const T *a, EACH(const T *__restrict__, b), EACH(const T *__restrict__, bias), EACH(T *__restrict__, c), int64_t N, int64_t K,
        int64_t has_bias) {
    ws_next_may_begin();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunks = (int)(K / 8);
    const int64_t blocks = (N + ONE_WARPS * ONE_ROWS - 1) / (ONE_WARPS * ONE_ROWS), matrix = blockIdx.x / blocks;
    const int64_t first = (blockIdx.x % blocks * ONE_WARPS + warp) * ONE_ROWS;
    const uint4 *const x = (const uint4 *)(a + of_a(matrix) * K);
    const uint4 *rows[ONE_ROWS];
#pragma unroll
    for (int r = 0; r < ONE_ROWS; r++) rows[r] = (const uint4 *)(OF(matrix, b) + (within(matrix) * N + min(first + r, N - 1)) * K);

    float2 sums[ONE_ROWS] = {};
    for (int at = lane; at < chunks; at += 32 * ONE_LOADS) {
        uint4 w[ONE_LOADS][ONE_ROWS];
#pragma unroll
        for (int i = 0; i < ONE_LOADS; i++)
#pragma unroll
            for (int r = 0; r < ONE_ROWS; r++) w[i][r] = at + i * 32 < chunks ? passing(rows[r] + at + i * 32) : make_uint4(0, 0, 0, 0);
        ws_wait_for_previous(); /* b is asked for before; a is not, and is loaded in order: it is not __restrict__ */
#pragma unroll
        for (int i = 0; i < ONE_LOADS; i++) {
            const uint4 v = at + i * 32 < chunks ? x[at + i * 32] : make_uint4(0, 0, 0, 0);
            const float2 v0 = wide(v.x), v1 = wide(v.y), v2 = wide(v.z), v3 = wide(v.w);
#pragma unroll
            for (int r = 0; r < ONE_ROWS; r++) {
                multiply(sums[r], w[i][r].x, v0);
                multiply(sums[r], w[i][r].y, v1);
                multiply(sums[r], w[i][r].z, v2);
                multiply(sums[r], w[i][r].w, v3);
            }
        }
    }
    ws_wait_for_previous(); /* whoever had nothing to add up has not yet */
#pragma unroll
    for (int r = 0; r < ONE_ROWS; r++) {
        float sum = sums[r].x + sums[r].y;
#pragma unroll
        for (int other = 16; other; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
        if (lane == 0 && first + r < N) OF(matrix, c)[c_before(matrix, 1, N) + first + r] = ws_store(activated(has_bias ? sum + ws_load(OF(matrix, bias)[bias_before(matrix, N) + first + r]) : sum));
    }
}

#elif FEW_ROWS

/* c = a b^T for a few rows of a: all the time goes into reading b, once, so nothing stands between memory and the tensor cores: no ring, no
   barrier, no split sums to exchange (a product of 1 x 4096 x 4096 took 12.2 us instead of 12.5). A block has 16 columns of c,
   that is 16 rows of b; its warps take 64 terms of them in turn. Lane 4 g + t loads 16 bytes of rows g and g + 8 at a time, into the registers
   from which mma.sync multiplies:

       terms               0..7     8..15    16..23   24..31 | 32..39 ...
       loaded by lane t      0        1         2        3   |    0

   mma.sync wants terms 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 from lane t, but a sum does not mind in which order its terms come, as long as a and b
   agree: a is loaded the same way. b is what mma.sync calls A, with 16 rows, and 8 rows of a are its B: with one row seven eighths of the products
   are for nothing, which costs nothing here. FEW_LOADS x 4 loads of 16 bytes are in flight for each thread: 64 registers of them, two blocks of 8 warps
   a multiprocessor, 128 KB in all. With 16 rows a is read twice as much and the ring is faster; with 32000 columns the ring is too. */

__device__ uint4 load16(const T *from, bool there) { return there ? *(const uint4 *)from : make_uint4(0, 0, 0, 0); }

/* sums (16 columns of c x 8 rows) += 16 terms of 16 rows of b (u: rows 0 to 7, l: 8 to 15) x the same of 8 rows of a (x). */
__device__ void multiply(float *s, uint32_t u0, uint32_t l0, uint32_t u1, uint32_t l1, uint32_t x0, uint32_t x1) {
#if WS_F16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#endif
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]) : "r"(u0), "r"(l0), "r"(u1), "r"(l1), "r"(x0), "r"(x1));
}

extern "C" __global__ void __launch_bounds__(FEW_WARPS * 32, FEW_BLOCKS)
few_rows(const T *a, EACH(const T *__restrict__, b), EACH(const T *__restrict__, bias), EACH(T *__restrict__, c), int64_t M, int64_t N,
         int64_t K, int64_t has_bias) {
    __shared__ float parts[FEW_WARPS][TOKENS][17];
    ws_next_may_begin();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int64_t tiles = (N + 15) / 16, matrix = blockIdx.x / tiles, column = blockIdx.x % tiles * 16;
    const T *const upper = OF(matrix, b) + (within(matrix) * N + min(column + g, N - 1)) * K + t * 8;
    const T *const lower = OF(matrix, b) + (within(matrix) * N + min(column + g + 8, N - 1)) * K + t * 8;
    const T *const rows = a + (of_a(matrix) * M + g) * K + t * 8;
    const int chunks = (int)(K / 64);

    float sums[TOKENS / 8][4] = {};
    for (int chunk = warp; chunk < chunks; chunk += FEW_WARPS * FEW_LOADS) {
        uint4 u[FEW_LOADS][2], l[FEW_LOADS][2], x[FEW_LOADS][2][TOKENS / 8];
#pragma unroll
        for (int i = 0; i < FEW_LOADS; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int at = chunk + i * FEW_WARPS;
                u[i][half] = load16(upper + at * 64 + half * 32, at < chunks);
                l[i][half] = load16(lower + at * 64 + half * 32, at < chunks);
            }
        ws_wait_for_previous(); /* b is asked for before; a is not, and is loaded in order: it is not __restrict__ */
#pragma unroll
        for (int i = 0; i < FEW_LOADS; i++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int m = 0; m < TOKENS / 8; m++) {
                    const int at = chunk + i * FEW_WARPS;
                    x[i][half][m] = load16(rows + m * 8 * K + at * 64 + half * 32, at < chunks && m * 8 + g < M);
                }
#pragma unroll
        for (int i = 0; i < FEW_LOADS; i++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int m = 0; m < TOKENS / 8; m++) {
                    const uint4 up = u[i][half], low = l[i][half], row = x[i][half][m];
                    multiply(sums[m], up.x, low.x, up.y, low.y, row.x, row.y);
                    multiply(sums[m], up.z, low.z, up.w, low.w, row.z, row.w);
                }
    }
    ws_wait_for_previous(); /* whoever had nothing to add up has not yet */
#pragma unroll
    for (int m = 0; m < TOKENS / 8; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) parts[warp][m * 8 + t * 2 + i % 2][g + i / 2 * 8] = sums[m][i];
    __syncthreads();
    for (int i = threadIdx.x; i < TOKENS * 16; i += FEW_WARPS * 32) {
        const int row = i / 16, j = i % 16;
        if (row >= M || column + j >= N) continue;
        float sum = 0;
#pragma unroll
        for (int part = 0; part < FEW_WARPS; part++) sum += parts[part][row][j];
        if (has_bias) sum += ws_load(OF(matrix, bias)[bias_before(matrix, N) + column + j]);
        OF(matrix, c)[c_before(matrix, M, N) + row * width_of(matrix, N) + column + j] = ws_store(activated(sum));
    }
}

#else


/* A block computes a BM x BN tile of c. Slices of a and b, BK terms deep, come through a ring of STAGES stages in shared
   memory by cp.async, so that the next ones travel while one is multiplied. Each warp has a WARP_M x WARP_N part of the
   tile in registers. 16-bit types are multiplied by tensor cores (mma.sync) and added in single precision, f32 by fused
   multiply-adds. */

constexpr int K_STEP = WS_DTYPE_BYTES == 4 ? 4 : 16; /* terms multiplied in a step */
constexpr int STEPS = BK / WARPS_K / K_STEP;         /* that a warp takes through a stage */
constexpr int SHARES = STEPS - 1;                    /* in which a stage is sent for, one a step */
constexpr int UNROLL = PLAIN && WS_DTYPE_BYTES == 2 ? STEPS : 2; /* more gains only there, and takes long to compile */
static_assert(STEPS % 2 == 0, "the main loop loads one step ahead, in turn into two sets of fragments");

/* A thread's part in the copying of tiles of ROWS x CHUNKS chunks: one column of chunks, every STEP-th row. */
template <int ROWS, int CHUNKS, bool TERMS_ARE_ROWS> struct TileCopy {
    static constexpr int STEP = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0, "a thread copies one column of chunks");
    const T *from;         /* its first chunk */
    int64_t stride;        /* elements from one row of the matrix to the next */
    int64_t rows, columns; /* that the matrix has from the tile's first row, and from this column of chunks, on */
    int inside;            /* how many rows of the tile, from its first on, are in the matrix, if this column of chunks is */

    __device__ TileCopy(const T *tile, int64_t stride, int64_t rows, int64_t columns)
        : from(tile + threadIdx.x / CHUNKS * stride + threadIdx.x % CHUNKS * VEC), stride(stride), rows(rows),
          columns(columns - threadIdx.x % CHUNKS * VEC),
          inside((this->columns < VEC ? 0 : rows < ROWS ? (int)rows : ROWS) - (int)threadIdx.x / CHUNKS) {}

    /* Whether the terms are all in the matrix, and its rows aligned. */
    __device__ bool is_plain() const {
        return PLAIN || (columns >= VEC && (rows >= ROWS || !TERMS_ARE_ROWS) && stride * sizeof(T) % 16 == 0);
    }
    /* Starts one of SHARES shares of such a tile. Rows and columns of c that do not exist stay as they are in shared memory:
       what they are multiplied to is never stored. */
    __device__ void start(uint4 *tile, int share) const {
        const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS;
#pragma unroll
        for (int i = share * STEP; i < ROWS; i += SHARES * STEP)
            if ((PLAIN && ROWS % STEP == 0) || i < inside) {
                /* The same, but the first is cheaper: swizzles repeat every 8 rows. */
                const int at = STEP % 8 == 0 ? place<CHUNKS>(first, chunk) + i * CHUNKS : place<CHUNKS>(first + i, chunk);
                copy_async<16>(tile + at, from + i * stride);
            }
    }
    /* The same of any tile; what is not in the matrix is zero. */
    __device__ void start_any(uint4 *tile, int share) const {
        const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS;
        const int have = columns >= VEC ? VEC : columns > 0 ? (int)columns : 0;
#pragma unroll 1
        for (int i = share * STEP; first + i < ROWS; i += SHARES * STEP)
            copy_part(tile + place<CHUNKS>(first + i, chunk), from + i * stride, first + i < rows ? have : 0,
                      (int)(stride * sizeof(T) % 16));
    }
    __device__ void stop() { rows = inside = 0; }
    __device__ void move_right(int by) { from += by, columns -= by; }
    __device__ void move_down(int by) { from += by * stride, rows -= by; }
};

/* b as it is stored: rows of BK terms of one column of c, or rows of BN columns for one term. */
constexpr int A_CHUNKS = BK / VEC, B_CHUNKS = WS_TRANS_B ? BK / VEC : BN / VEC;

#if WS_F32

constexpr int TM = WARP_M / 8, TN = WARP_N / 4;

/* A warp's lanes stand 8 x 4 over its tile. Sum i * TN + j of a lane is at this row and column of it. */
__device__ int row_of(int sum) { return sum / TN * 8 + threadIdx.x % 32 / 4; }
__device__ int column_of(int sum) {
    const int j = sum % TN, lane = threadIdx.x % 4;
    return WS_TRANS_B ? j * 4 + lane : j / 4 * 16 + lane * 4 + j % 4;
}

/* What a lane needs for 4 terms of its sums. */
struct Fragments {
    float a[TM][4], b[TN][4];

    __device__ void load(const uint4 *a_tile, const uint4 *b_tile, int row, int column, int step) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < TM; i++)
            *(uint4 *)a[i] = a_tile[place<A_CHUNKS>(row + i * 8 + lane / 4, step)];
#if WS_TRANS_B
#pragma unroll
        for (int j = 0; j < TN; j++)
            *(uint4 *)b[j] = b_tile[place<B_CHUNKS>(column + j * 4 + lane % 4, step)];
#else
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int j = 0; j < TN; j += 4) {
                const uint4 four = b_tile[place<B_CHUNKS>(step * 4 + k, (column + j * 4) / 4 + lane % 4)];
                b[j][k] = __uint_as_float(four.x), b[j + 1][k] = __uint_as_float(four.y);
                b[j + 2][k] = __uint_as_float(four.z), b[j + 3][k] = __uint_as_float(four.w);
            }
#endif
    }

    __device__ void multiply(float *sums) const {
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++) sums[i * TN + j] = fmaf(a[i][k], b[j][k], sums[i * TN + j]);
    }
};

#else

constexpr int TM = WARP_M / 16, TN = WARP_N / 8;

/* Tensor cores deal the 16 x 8 sums of a product out to the lanes in four: two neighbours, and two neighbours 8 rows below. */
__device__ int row_of(int sum) { return sum / (4 * TN) * 16 + sum % 4 / 2 * 8 + threadIdx.x % 32 / 4; }
__device__ int column_of(int sum) { return sum / 4 % TN * 8 + threadIdx.x % 4 * 2 + sum % 2; }

/* What a warp needs for 16 terms of its sums. */
struct Fragments {
    uint32_t a[TM][4], b[TN][2];

    __device__ void load(const uint4 *a_tile, const uint4 *b_tile, int row, int column, int step) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < TM; i++)
            load_matrices(a[i], a_tile + place<A_CHUNKS>(row + i * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
        for (int j = 0; j < TN; j += 2) {
#if WS_TRANS_B
            const int n = column + j * 8 + lane / 16 * 8 + lane % 8;
            load_matrices(b[j], b_tile + place<B_CHUNKS>(n, step * 2 + lane / 8 % 2));
#else
            const int k = step * 16 + lane % 16;
            load_matrices_transposed(b[j], b_tile + place<B_CHUNKS>(k, column / 8 + j + lane / 16));
#endif
        }
    }

    __device__ void multiply(float *sums) const {
#pragma unroll
        for (int i = 0; i < TM; i++)
#pragma unroll
            for (int j = 0; j < TN; j++) ws::multiply(sums + (i * TN + j) * 4, a[i], b[j]);
    }
};

#endif

constexpr int SUMS = WARP_M * WARP_N / 32; /* of each lane */

extern "C" __global__ void __launch_bounds__(THREADS)
matmul(const T *__restrict__ a, EACH(const T *__restrict__, b_all), EACH(const T *__restrict__, bias_all), EACH(T *__restrict__, c_all), int64_t batch,
       int64_t M, int64_t N, int64_t K, int64_t has_bias) {
    extern __shared__ uint4 stages[];
    constexpr int STAGE = STAGE_BYTES / 16, B_AT = BM * A_CHUNKS;

    /* Tiles in groups of GROUP rows of them, down the columns of a group. */
    const int64_t tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    const int64_t matrix = blockIdx.x / (tiles_m * tiles_n), tile = blockIdx.x % (tiles_m * tiles_n);
    const int64_t group = tile / (GROUP * tiles_n) * GROUP, within = tile % (GROUP * tiles_n);
    const int64_t height = min((int64_t)GROUP, tiles_m - group);
    const int64_t i0 = (group + within % height) * BM, j0 = within / height * BN;
    const int64_t wide = width_of(matrix, N); /* elements from one row of c to the next */
    a += (of_a(matrix) * M + i0) * K;
    const T *const b = OF(matrix, b_all) + b_before(matrix, N, K) + (WS_TRANS_B ? j0 * K : j0), *const bias = OF(matrix, bias_all) + bias_before(matrix, N);
    T *const c = OF(matrix, c_all) + c_before(matrix, M, N) + i0 * wide + j0;

    const int warp = threadIdx.x / 32, part = warp / WARPS_MN;
    const int row = warp % WARPS_MN / (BN / WARP_N) * WARP_M, column = warp % (BN / WARP_N) * WARP_N;

    const int slices = (int)((K + BK - 1) / BK);
    TileCopy<BM, A_CHUNKS, false> copy_a(a, K, M - i0, K);
#if WS_TRANS_B
    TileCopy<BN, B_CHUNKS, false> copy_b(b, K, N - j0, K);
#else
    TileCopy<BK, B_CHUNKS, true> copy_b(b, wide, K, N - j0);
#endif
    uint4 *filling = stages, *const ring_end = stages + STAGES * STAGE;
    int to_copy = slices;
    auto start_copy = [&](int share) {
        if (copy_a.is_plain()) copy_a.start(filling, share);
        else copy_a.start_any(filling, share);
        if (copy_b.is_plain()) copy_b.start(filling + B_AT, share);
        else copy_b.start_any(filling + B_AT, share);
    };
    auto next_copy = [&] {
        end_of_copies();
        copy_a.move_right(BK);
        if (WS_TRANS_B) copy_b.move_right(BK);
        else copy_b.move_down(BK);
        filling = filling + STAGE == ring_end ? stages : filling + STAGE;
        if (--to_copy == 0) copy_a.stop(), copy_b.stop();
    };
#pragma unroll 1
    for (int slice = 0; slice < STAGES - 1; slice++) {
        for (int share = 0; share < SHARES; share++)
            if (!PLAIN || slice < slices) start_copy(share);
        next_copy();
    }
    wait_for_copies<STAGES - 2>();
    __syncthreads();

    /* While one step is multiplied, the fragments of the next are loaded (at a slice's last step, those of the next slice),
       and a share of the slice after those in flight is sent for. */
    float sums[SUMS] = {};
    Fragments fragments[2];
    fragments[0].load(stages, stages + B_AT, row, column, part * STEPS);
    const uint4 *reading = stages;
    for (int slice = 0; slice < slices; slice++) {
#pragma unroll UNROLL
        for (int step = 0; step < STEPS; step++) {
            if (step == STEPS - 1) {
                wait_for_copies<STAGES - 2>();
                __syncthreads(); /* the next slice is there for all, and nobody reads this one any more */
                reading = reading + STAGE == ring_end ? stages : reading + STAGE;
            }
            fragments[(step + 1) % 2].load(reading, reading + B_AT, row, column, part * STEPS + (step + 1) % STEPS);
            if (step < SHARES && (!PLAIN || slice + STAGES - 1 < slices)) start_copy(step);
            if (step == SHARES - 1) next_copy();
            fragments[step % 2].multiply(sums);
        }
    }

    /* Through shared memory to c, in whole pieces of its rows; parts of k are added in their order. */
    wait_for_copies<0>();
    __syncthreads();
    constexpr int WIDTH = BN + 8; /* of a row there: 8 words more keep a warp's 8 rows in different banks */
    float *results = (float *)stages;
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        results[(part * BM + row + row_of(i)) * WIDTH + column + column_of(i)] = sums[i];
    __syncthreads();
    auto finished = [&](int i, int j) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < WARPS_K; k++) sum += results[(k * BM + i) * WIDTH + j];
        if (has_bias && j < N - j0) sum += ws_load(bias[j0 + j]);
        return ws_store(activated(sum));
    };
    const int rows_here = (int)min((int64_t)BM, M - i0), width = (int)min((int64_t)BN, N - j0);
    if (N % VEC != 0) { /* rows of c begin anywhere: a warp writes a row's neighbouring words at once */
        constexpr int PER = 4 / sizeof(T);
        for (int i = warp; i < rows_here; i += THREADS / 32) {
            T *const to = c + i * wide;
            for (int j = threadIdx.x % 32 * PER - (int)((uintptr_t)to / sizeof(T) % PER); j < width; j += 32 * PER) {
                __align__(4) T out[PER];
#pragma unroll
                for (int e = 0; e < PER; e++)
                    if (j + e >= 0 && j + e < width) out[e] = finished(i, j + e);
                if (j >= 0 && j + PER <= width) *(uint32_t *)(to + j) = *(uint32_t *)out;
                else
#pragma unroll
                    for (int e = 0; e < PER; e++)
                        if (j + e >= 0 && j + e < width) to[j + e] = out[e];
            }
        }
        return;
    }
    for (int piece = threadIdx.x; piece < BM * BN / VEC; piece += THREADS) {
        const int i = piece / (BN / VEC), j = piece % (BN / VEC) * VEC;
        if (i >= rows_here || j >= width) continue;
        __align__(16) T out[VEC];
#pragma unroll
        for (int e = 0; e < VEC; e++) out[e] = finished(i, j + e);
        *(uint4 *)(c + i * wide + j) = *(uint4 *)out;
    }
}

#endif
