/*---
op = "fused_mlp"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_90a"]
[tune]
# Of the kernels for TMA and wgmma, which take what a tensor map can describe.
TILE_M    = { value = 128, choices = [64, 128] }      # rows of a block's tile: 64 for each warpgroup that multiplies
NARROW    = { value = 128, choices = [64, 128] }      # columns of y in it where tiles are few and blocks share the terms
PAIRS     = { value = 2,   choices = [1, 2] }         # blocks, one below the other, that share what they read of weights
MAX_SPLIT = { value = 4,   choices = [1, 2, 4] }      # blocks that share the terms of a tile of y, at most
MAX_RING  = { value = 12,  choices = [4, 6, 8, 12] }  # stages, if shared memory suffices
UP_DEEP   = { value = 1,   choices = [1, 2, 4] }      # times 64 terms of weights in a stage: so many times 128 bytes of a row are read at once
DOWN_DEEP = { value = 1,   choices = [1, 2, 4] }
GROUP     = { value = 8,   choices = [4, 8, 16] }     # rows of tiles that run together, so that they find weights in the L2 cache
# Of the kernels for everything else.
BM      = { value = 128, choices = [64, 128] }    # rows of a product in a block's tile
BN      = { value = 256, choices = [128, 256] }   # its columns; in the first launch half of them gate, half up
K_BYTES = { value = 128, choices = [64, 128] }    # bytes along the sum of a row that one stage holds
WARP_M  = { value = 64,  choices = [32, 64] }     # rows in a warp's tile
WARP_N  = { value = 64,  choices = [32, 64] }     # its columns
WARPS_K = { value = 1,   choices = [1] }          # warps that share a tile, each with its part of the sum
DEPTH   = { value = 4,   choices = [3, 4] }       # stages in flight, if shared memory suffices
[let]
TMA         = "dtype_bytes == 2 && D % 8 == 0 && H % 8 == 0"
# Rows of x that are copied: with one token 8 of 64, the others of the tile are never stored.
A_ROWS      = "!TMA ? 64 : min(TILE_M, B <= 8 ? 8 : B <= 16 ? 16 : B <= 32 ? 32 : B <= 64 ? 64 : 128)"
ROOM        = "max(1, SMS / ceil_div(B, TILE_M))"     # blocks for each row of tiles
# Columns of hidden in a tile: as many as fill the device once, 128 at most. Twice as many are multiplied.
UP_N        = "!TMA ? 64 : 2 * min(128, max(16, ceil_div(ceil_div(H, ROOM), 16) * 16))"
UP_TILES    = "ceil_div(B, TILE_M * PAIRS) * ceil_div(BLOCKS * 64, UP_N / 2)"
UP_ROUND    = "SMS / PAIRS"                          # tiles of hidden in a wave
WHOLE       = "UP_TILES / UP_ROUND * UP_ROUND"       # in full waves
REST        = "UP_TILES - WHOLE"                     # in the last
UP_PIECES   = "TMA && PAIRS == 1 && D % 64 == 0 ? UP_DEEP : 1"
UP_STAGE    = "(A_ROWS + UP_N) * 128 * UP_PIECES"
UP_BOXES    = "!TMA ? 0 : UP_N % 128 == 0 && A_ROWS == TILE_M"     # whether hidden is stored by the copy engine
UP_EXTRA    = "max(A_ROWS < 64 ? 8192 : 0, UP_BOXES ? TILE_M * 256 : 0)"   # wgmma reads 64 rows, whatever they are
# With more than one wave a tile of hidden leaves while the next one is multiplied, and of a last wave that is at most half full PARTS
# clusters share each tile.
LATER       = "UP_BOXES && TILE_M == 128 && D >= 128 && UP_TILES > UP_ROUND"
PARTS       = "LATER && UP_N == 256 && REST > 0 && D >= 1024 ? (REST * 4 <= UP_ROUND ? 4 : REST * 2 <= UP_ROUND ? 2 : 1) : 1"
COPIERS     = "LATER ? 128 : 64"                     # threads, of which one copies weights and one x: registers are handed over by a whole warpgroup
UP_RING     = "!TMA ? 1 : max(2, min(MAX_RING, (SMEM_MAX - 1280 - UP_EXTRA) / UP_STAGE))"
# Columns of y in a tile: NARROW, shared by SPLIT blocks, where tiles are few, else as for hidden, 256 at most.
DOWN_N      = "!TMA ? 64 : ceil_div(D, NARROW) * 2 <= ROOM ? NARROW : min(256, max(32, ceil_div(ceil_div(D, ROOM), 32) * 32))"
SHARE       = "min(min(ROOM / ceil_div(D, DOWN_N), MAX_SPLIT), H / 512)"
# Clusters of 4 fit into 120 of an H200's 132 multiprocessors, no more.
DOWN_SPLIT  = "!TMA ? 1 : SHARE >= 4 && ceil_div(B, TILE_M) * ceil_div(D, DOWN_N) * 4 <= SMS * 10 / 11 ? 4 : SHARE >= 2 ? 2 : 1"
DOWN_PAIR   = "DOWN_SPLIT > 1 ? 1 : PAIRS"
DOWN_TILES  = "ceil_div(B, TILE_M * DOWN_PAIR) * ceil_div(D, DOWN_N)"
DOWN_PIECES = "TMA && PAIRS == 1 && H % 64 == 0 ? DOWN_DEEP : 1"
DOWN_STAGE  = "(A_ROWS + DOWN_N) * 128 * DOWN_PIECES"
DOWN_BOXES  = "!TMA ? 0 : DOWN_SPLIT == 1 && DOWN_N % 64 == 0"
DOWN_EXTRA  = "DOWN_SPLIT > 1 ? TILE_M * DOWN_N * 4 : max(A_ROWS < 64 ? 8192 : 0, DOWN_BOXES ? TILE_M * 256 : 0)"
DOWN_RING   = "!TMA ? 1 : max(2, min(MAX_RING, (SMEM_MAX - 1280 - DOWN_EXTRA) / DOWN_STAGE))"
BLOCKS      = "ceil_div(H, 64 * DOWN_PIECES) * DOWN_PIECES"     # of 64 columns of hidden
VEC         = "16 / dtype_bytes"
BK          = "K_BYTES / dtype_bytes"
WARPS_MN    = "BM / WARP_M * (BN / WARP_N)"
THREADS     = "WARPS_MN * WARPS_K * 32"
STAGE_BYTES = "(BM + BN) * K_BYTES"
RESULTS     = "WARPS_K * BM * (BN + 8) * 4"
# No tile or slice reaches beyond the matrices, and rows are aligned. Where tiles are small it is asked as the kernel runs:
# one compilation less.
PLAIN       = "!TMA && BM >= 64 && D % BK == 0 && H % BK == 0 && B % BM == 0 && D % BN == 0 && H % (BN / 2) == 0"
STAGES      = "max(2, min(DEPTH, SMEM_MAX / STAGE_BYTES))"
[[variant]]    # few rows: all the time goes into reading weights
when = "dtype_bytes == 2 && D % 8 == 0 && H % 8 == 0 && B <= 64"
tune = { TILE_M = 64, NARROW = 64, PAIRS = 1, UP_DEEP = 2, DOWN_DEEP = 2 }
[[variant]]    # the same of small matrices, where what counts is how much one block has to wait for
when = "dtype_bytes == 2 && D % 8 == 0 && H % 8 == 0 && B <= 128 && D * H <= 3072 * 1024"
tune = { TILE_M = 64, NARROW = 64, PAIRS = 1, UP_DEEP = 2, DOWN_DEEP = 2 }
[[variant]]    # one tile high: reading weights, and x again and again
when = "dtype_bytes == 2 && D % 8 == 0 && H % 8 == 0 && B <= 128"
tune = { TILE_M = 128, NARROW = 64, PAIRS = 1, DOWN_DEEP = 2 }
[[variant]]
when = "dtype_bytes == 2 && D % 8 == 0 && H % 8 == 0"
tune = { TILE_M = 128 }
[[variant]]    # few rows, of any length
when = "B <= 16"
tune = { BM = 16, BN = 16, K_BYTES = 256, WARP_M = 16, WARP_N = 16, WARPS_K = 4, DEPTH = 4 }
[[variant]]    # too few large tiles for all multiprocessors
when = "ceil_div(B, 128) * ceil_div(min(D, 2 * H), 256) * 2 <= SMS"
tune = { BM = 64, BN = 64, K_BYTES = 128, WARP_M = 32, WARP_N = 32, WARPS_K = 1, DEPTH = 4 }
[[variant]]    # registers for f32 do not suffice for the larger tile
when = "dtype_bytes == 4"
tune = { BM = 128, BN = 128, K_BYTES = 128, WARP_M = 64, WARP_N = 32, DEPTH = 3 }
[[scratch]]
name = "hidden"
dtype = "T"
shape = ["TMA ? ceil_div(B, TILE_M * PAIRS) * PAIRS * BLOCKS * A_ROWS * 64 : B * H"]
[[scratch]]
name = "parts"
dtype = "f32"
shape = ["PARTS > 1 ? REST * PAIRS * PARTS : 1", "PARTS > 1 ? TILE_M * UP_N : 1"]
[[scratch]]
name = "arrived"
dtype = "i64"
shape = ["PARTS > 1 ? REST * PAIRS : 1"]
init = "zero_kept"
[[tensormap]]
name = "x_map"
tensor = "x"
dims = ["D", "B"]
strides = ["D"]
box = ["64", "A_ROWS"]
swizzle = "128B"
[[tensormap]]
name = "gate_map"
tensor = "w_gate"
when = "UP_PIECES > 1"
dims = ["64", "8", "D / 64", "H / 8"]
strides = ["D", "64", "8 * D"]
box = ["64", "8", "UP_PIECES", "UP_N / 16"]
swizzle = "128B"
[[tensormap]]
name = "gate_map"
tensor = "w_gate"
dims = ["D", "H"]
strides = ["D"]
box = ["64", "UP_N / 2"]
swizzle = "128B"
[[tensormap]]
name = "up_map"
tensor = "w_up"
when = "UP_PIECES > 1"
dims = ["64", "8", "D / 64", "H / 8"]
strides = ["D", "64", "8 * D"]
box = ["64", "8", "UP_PIECES", "UP_N / 16"]
swizzle = "128B"
[[tensormap]]
name = "up_map"
tensor = "w_up"
dims = ["D", "H"]
strides = ["D"]
box = ["64", "UP_N / 2"]
swizzle = "128B"
[[tensormap]]
name = "down_map"
tensor = "w_down"
when = "DOWN_PIECES > 1"
dims = ["64", "8", "H / 64", "D / 8"]
strides = ["H", "64", "8 * H"]
box = ["64", "8", "DOWN_PIECES", "DOWN_N / 16"]
swizzle = "128B"
[[tensormap]]
name = "down_map"
tensor = "w_down"
dims = ["H", "D"]
strides = ["H"]
box = ["64", "DOWN_N / 2"]
swizzle = "128B"
[[tensormap]]
name = "y_map"
tensor = "y"
dims = ["D", "B"]
strides = ["D"]
box = ["64", "16"]
swizzle = "128B"
[[launch]]
kernel  = "gate_and_up_tma"
when    = "TMA"
grid    = ["min(UP_TILES, UP_ROUND) * PAIRS"]
block   = ["TILE_M * 2 + COPIERS"]
cluster = ["PAIRS"]
shared  = "UP_RING * UP_STAGE + UP_EXTRA + 1024"
args    = ["x_map", "gate_map", "up_map", "hidden", "parts", "arrived", "WHOLE", "BLOCKS", "B", "D", "H"]
[[launch]]
kernel  = "down_tma"
when    = "TMA"
grid    = ["(DOWN_SPLIT > 1 ? DOWN_TILES : min(DOWN_TILES, SMS / DOWN_PAIR)) * DOWN_PAIR * DOWN_SPLIT"]
block   = ["TILE_M * 2 + 64"]
cluster = ["DOWN_PAIR * DOWN_SPLIT"]
shared  = "DOWN_RING * DOWN_STAGE + DOWN_EXTRA + 1024"
args    = ["hidden", "BLOCKS", "down_map", "y_map", "y", "B", "D", "H"]
pdl     = true
[[launch]]
kernel = "gate_and_up"
when   = "!TMA"
grid   = ["ceil_div(B, BM) * ceil_div(H, BN / 2)"]
block  = ["THREADS"]
shared = "max(STAGES * STAGE_BYTES, RESULTS)"
args   = ["x", "w_gate", "w_up", "hidden", "B", "D", "H"]
[[launch]]
kernel = "down"
when   = "!TMA"
grid   = ["ceil_div(B, BM) * ceil_div(D, BN)"]
block  = ["THREADS"]
shared = "max(STAGES * STAGE_BYTES, RESULTS)"
args   = ["hidden", "w_down", "y", "B", "D", "H"]
---*/

/* Two launches, for 16-bit types whose rows are multiples of 16 bytes Hopper's way, for all else as in kernels/cuda/fused_mlp.cu.

       x, w_gate, w_up --TMA--> ring of stages --wgmma--> gate | up --silu(gate) * up--> hidden, in blocks as they will
                   two threads ask          two warpgroups, 128 sums a thread at most    lie in shared memory

       hidden, w_down --TMA--> ring of stages --wgmma--> sums --(blocks that share the terms add up)--> y

   A tile of the first launch has as many columns of gate as of up: x is read once for both, and each thread has both sums of an
   element of hidden. The second launch may begin early (pdl): its blocks come as those of the first leave, and read weights, a
   whole ring of them, before hidden is there: a warp that copies weights does not wait, one that copies hidden does. So it is with the first launch
   in a pass of a model, with x. Hidden is scratch of our own, so it is kept as the ring wants it: blocks of 64 columns, 128 bytes a row, pieces of
   16 exchanged by the row's number. One plain copy of contiguous bytes brings a stage.

   Many tokens make several tiles of hidden a block, and then two things cost time in which nothing is multiplied (LATER).
   - Between two tiles, 3500 of 36500 cycles with 2048 terms, 2000 of them special functions (two each for 64 elements a thread). So hidden
     is only rounded to pairs there, and leaves behind the next tile's first two slices, and two sigmoids share a reciprocal:

         multiplied    tile 0: slice 0 1 ... 31 | silu, round | tile 1: slice 0 1 2 ... 31 | silu, round | tile 2 ...
         leaves                                                 box of tile 0:  0 1

     The pairs take 32 registers more a thread, which the copying warps, four then instead of one, give away (setmaxnreg: 40 for them,
     232 for those who multiply). A block's last tile leaves from where the ring was, so that no box waits for another; y does too.
   - The last wave. 2048 x 5504 of hidden are 344 tiles of 66 clusters: five waves and 14 tiles, for which 52 clusters would wait. So
     each of those 14 is done by four clusters, each with a quarter of the terms (PARTS; by two where there are up to 33 of them). Their sums
     meet in memory, 15 MB of it: each adds up, and stores, a quarter of the columns. This takes 201.8 us to 194.1, the above to 193.6.

   What bounds it: with many tokens the tensor cores (see kernels/cuda/nvidia-h200/matmul.cu, whose tiles these are); with few
   the reading of 3 D H weights. With few a tile has as many columns as make one tile for each multiprocessor (96 of gate and up each, 115
   tiles, for 11008), and where y has too few columns for that blocks share the terms. */

#include "ws/hopper.cuh"

using namespace ws;

#if TMA

/* A product of two sums can exceed the largest half, 65504, where y does not: halves are kept at a quarter. */
#if WS_F16
constexpr float SCALE = 0.25f;
#else
constexpr float SCALE = 1.0f;
#endif

constexpr int MULTIPLIERS = TILE_M * 2; /* threads that multiply */

/* Stores COLUMNS columns, from `column` on, of rows `row` and `row` + 8 of y, two neighbours at a time. */
template <int COLUMNS> __device__ void store(const float *sums, T *y, int64_t row, int64_t column, int64_t B, int64_t D) {
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int64_t i = row + e * 8, at = column + j * 8 + threadIdx.x % 4 * 2;
            if (i < B && at < D) *(uint32_t *)(y + i * D + at) = pack(sums[j * 4 + e * 2], sums[j * 4 + e * 2 + 1]);
        }
}

/* A tile of `hidden` is stored as the second launch will want it in shared memory: blocks of 64 columns, A_ROWS rows of them, and of
   each row pieces of 8 exchanged by its number. A tile that is not made of such blocks is stored two neighbours at a time. */
template <int COLUMNS> __device__ void store_hidden(const float *sums, T *tile, int row, int column, int blocks) {
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = row + e * 8, at = column + j * 8;
            if (i < A_ROWS && at / 64 < blocks)
                *(uint32_t *)(tile + ((int64_t)(at / 64) * A_ROWS + i) * 64 + (at / 8 % 8 ^ i % 8) * 8 + threadIdx.x % 4 * 2) =
                    pack(sums[j * 4 + e * 2], sums[j * 4 + e * 2 + 1]);
        }
}

/* With GATED hidden = silu(a b^T) * (a b2^T), a = x; else y = a b^T, a = hidden. */
template <int TILE_N, int SPLIT, int PAIR, int PIECES, int RING, bool GATED, bool BY_BOX>
__device__ void product(const CUtensorMap *a_map, const CUtensorMap &b_map, const CUtensorMap &b2_map, const CUtensorMap *c_map,
                        T *__restrict__ hidden, int blocks, T *__restrict__ y, float *sums_of_all, unsigned long long *arrived, int whole,
                        int64_t M, int64_t N, int64_t K) {
    constexpr int SHARES = GATED ? PARTS : 1;
    constexpr int CLUSTER = PAIR * SPLIT, COLUMNS = GATED ? TILE_N / 2 : TILE_N; /* of the result in a tile */
    constexpr int A_BYTES = A_ROWS * 128, B_BYTES = TILE_N * 128, STAGE = (A_BYTES + B_BYTES) * PIECES, OWN_BOXES = 2 / PAIR;
    static_assert(PIECES == 1 || PAIR == 1, "pieces come to one block");
    static_assert(!(LATER && BY_BOX) || TILE_M * COLUMNS * 2 <= RING * STAGE, "a whole tile fits where the ring was");
    static_assert(SPLIT == 1 || RING * STAGE >= TILE_M * TILE_N * 4, "sums are sent from where the ring was");
    extern __shared__ char shared[];
    __shared__ uint64_t full[RING], empty[RING], filled;
    char *const ring = shared + (1024 - shared_address(shared) % 1024) % 1024, *const extra = ring + RING * STAGE;
    (void)extra;

    const int rank = blockIdx.x % CLUSTER, peer = rank % PAIR, part = rank / PAIR;
    const int slices = (int)((K + 64 * PIECES - 1) / (64 * PIECES));
    int first = slices * part / SPLIT, last = slices * (part + 1) / SPLIT, share = 0;

    const int tiles_m = (int)((M + TILE_M * PAIR - 1) / (TILE_M * PAIR));
    const int tiles_n = ((GATED ? blocks * 64 : (int)N) + COLUMNS - 1) / COLUMNS;
    const int tiles = SHARES > 1 ? whole + (tiles_m * tiles_n - whole) * SHARES : tiles_m * tiles_n;
    int i0, j0;
    auto choose = [&](int tile) {
        if (SHARES > 1) { /* tiles of the last wave come in parts, each with its share of the terms */
            const bool late = tile >= whole;
            share = late ? (tile - whole) % SHARES : 0;
            first = late ? slices * share / SHARES : 0, last = late ? slices * (share + 1) / SHARES : slices;
            if (late) tile = whole + (tile - whole) / SHARES;
        }
        const int group = tile / (GROUP * tiles_n) * GROUP, within = tile % (GROUP * tiles_n);
        const int height = min(GROUP, tiles_m - group);
        i0 = ((group + within % height) * PAIR + peer) * TILE_M;
        j0 = within / height * COLUMNS;
    };
    const int begin = blockIdx.x / CLUSTER, step_of_tiles = gridDim.x / CLUSTER;
    choose(begin);

    if (threadIdx.x == 0) {
        for (int s = 0; s < RING; s++) make_barrier(full + s, 1), make_barrier(empty + s, TILE_M / 64 * PAIR);
        if (SPLIT > 1) make_barrier(&filled, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); /* the copy engine must see them too */
        if (SPLIT > 1) arrive_and_expect(&filled, (SPLIT - 1) * min(TILE_M / 16, (int)(M - i0 + 15) / 16) * (TILE_N / SPLIT / 8 * 512));
    }
    if (threadIdx.x == MULTIPLIERS) {
        prefetch(b_map);
        if (GATED) prefetch(*a_map), prefetch(b2_map);
        else prefetch(*c_map);
    }
    if (CLUSTER > 1) cluster_arrive();
    if (PAIR > 1) cluster_wait(); /* others write here, and arrive here */
    else __syncthreads();
    ws_next_may_begin(); /* as blocks leave, those of the next launch may come */

    int s = 0, phase = 0;
    auto next_stage = [&] {
        if (++s == RING) s = 0, phase ^= 1;
    };

    constexpr bool DEFERRED = LATER && GATED;
    if (threadIdx.x >= MULTIPLIERS) {
        if (DEFERRED) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        auto fill_stages = [&](auto copy) {
            for (int index = begin; index < tiles; index += step_of_tiles) {
                choose(index);
                for (int slice = first; slice < last; slice++, next_stage()) {
                    wait(empty + s, phase ^ 1);
                    copy(slice);
                }
            }
        };
        if (threadIdx.x == MULTIPLIERS) { /* weights do not wait for what the launch before computes */
            fill_stages([&](int slice) {
                arrive_and_expect(full + s, STAGE);
#pragma unroll
                for (int box = 0; box < OWN_BOXES; box++) {
                    const int at = peer * OWN_BOXES + box;
                    char *const to = ring + s * STAGE + A_BYTES * PIECES + at * (B_BYTES / 2 * PIECES);
                    const CUtensorMap &map = GATED && at == 1 ? b2_map : b_map;
                    const int row = GATED ? j0 : j0 + at * (TILE_N / 2);
                    if (PIECES > 1) copy_pieces(to, map, slice * PIECES, row, full + s);
                    else copy_box(to, map, slice * 64, row, full + s, PAIR > 1, (1 << PAIR) - 1);
                }
            });
            /* Until all stages are released: the other block's word for it orders nothing with the cluster's barrier, and must find this one here. */
            if (PAIR > 1)
                for (int stage = 0; stage < RING; stage++, next_stage()) wait(empty + s, phase ^ 1);
        } else if (threadIdx.x == MULTIPLIERS + 32) {
            ws_wait_for_previous();
            if (!GATED) asm volatile("fence.proxy.async;" ::: "memory");
            fill_stages([&](int slice) {
                if (GATED)
#pragma unroll
                    for (int piece = 0; piece < PIECES; piece++)
                        copy_box(ring + s * STAGE + piece * A_BYTES, *a_map, (slice * PIECES + piece) * 64, i0, full + s, false, 0);
                else
                    copy_bytes(ring + s * STAGE, hidden + ((int64_t)(i0 / TILE_M) * blocks + slice * PIECES) * (A_ROWS * 64), A_BYTES * PIECES,
                               full + s);
            });
        }
        __syncwarp();
        if (SPLIT > 1) cluster_wait(), cluster_arrive();
    } else {
        if (DEFERRED) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        ws_wait_for_previous();
        const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
        auto release = [&](int stage) { /* one thread for each block that fills it */
            if (threadIdx.x % 128 < PAIR) arrive(empty + stage, part * PAIR + threadIdx.x % 128);
        };
        float sums[TILE_N / 2];
        /* Boxes of 64 columns, in turn through two places that this warp has, from one tile to the next as well: one may still be read. */
        char *const boxes = extra + threadIdx.x / 32 * 4096;
        constexpr bool ODD = COLUMNS / 64 % 2 == 1;
        int flipped = 0;
        auto place = [&](int j) { return boxes + (ODD ? (j + flipped) % 2 : j % 2) * 2048; };
        auto next_box = [&] {
            if (threadIdx.x % 32 == 0) wait_for_stores<1>();
            __syncwarp();
        };
        auto store_one = [&](const char *box, int row, int column) { /* of this warp, of the result from (row, column) on */
            if (threadIdx.x % 32 != 0) return;
            if (!GATED) store_box(box, *c_map, column, row);
            else if (column / 64 < blocks)
                store_bytes(box, hidden + (((int64_t)(row / TILE_M) * blocks + column / 64) * A_ROWS + row % TILE_M) * 64, 2048);
            else store_nothing(); /* counts all the same, as the other place is next */
        };
        (void)boxes, (void)place, (void)flipped, (void)next_box, (void)store_one;
        uint32_t kept[DEFERRED ? COLUMNS / 4 : 1]; /* the tile before, as it will be stored */
        int kept_row = (int)M, kept_column = 0;
        (void)kept, (void)kept_row, (void)kept_column;
        for (int index = begin; index < tiles; index += step_of_tiles) {
            choose(index);
            int before = 0, slice = first;
            auto start_products = [&] {
                const char *stage = ring + s * STAGE;
                const uint64_t a = description(stage + group * 8192, 16, 1024), b = description(stage + A_BYTES * PIECES, 16, PIECES * 1024);
                wait(full + s, phase);
                fence_products();
#pragma unroll
                for (int piece = 0; piece < PIECES; piece++)
#pragma unroll
                    for (int step = 0; step < 4; step++) /* 16 terms are 32 bytes of a row */
                        multiply<TILE_N, PIECES>(sums, a + piece * (A_BYTES / 16) + step * 2, b + piece * 64 + step * 2,
                                                 slice > first || piece > 0 || step > 0);
                end_of_products();
            };
            if constexpr (DEFERRED)
#pragma unroll
                for (int j = 0; j < COLUMNS / 64; j++, slice++, next_stage()) {
                    start_products();
                    if (kept_row < M) { /* a box of the tile before leaves meanwhile */
                        next_box();
                        stage_pairs(place(j), kept + j * 16);
                        store_one(place(j), kept_row, kept_column + j * 64);
                    }
                    wait_for_products<1>();
                    if (j > 0) release(before);
                    before = s;
                }
            if (DEFERRED && ODD && kept_row < M) flipped ^= 1;
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

            if constexpr (SHARES > 1) if (index >= whole) {
                /* Part p of a tile adds up the p-th part of its columns. What each has for another goes through memory, as [tile][block of the
                   cluster][to][from][warp][four][lane]; all parts are being computed at once, so each may wait for the others. The last to
                   leave makes the count zero again. */
                constexpr int HALF = TILE_N / SHARES / 16, FOURS = 2 * HALF, PLACES = MULTIPLIERS * FOURS;
                const int meeting = (index - whole) / SHARES * PAIR + peer;
                float4 *const mine = (float4 *)sums_of_all + (int64_t)meeting * SHARES * SHARES * PLACES +
                                     threadIdx.x / 32 * FOURS * 32 + threadIdx.x % 32;
#pragma unroll
                for (int i = 0; i < SHARES * FOURS; i++) { /* gate's fours, then up's; its own too: registers are few */
                    const int to = i % (SHARES * HALF) / HALF, at = i / (SHARES * HALF) * HALF + i % HALF;
                    __stcg(mine + (to * SHARES + share) * PLACES + at * 32,
                           make_float4(sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]));
                }
                meet(1, MULTIPLIERS);
                if (threadIdx.x == 0) {
                    __threadfence();
                    atomicAdd(arrived + meeting, 1ull);
                    unsigned long long there;
                    do asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(there) : "l"(arrived + meeting) : "memory");
                    while (there < SHARES);
                }
                meet(1, MULTIPLIERS);
                float totals[FOURS * 4];
#pragma unroll
                for (int i = 0; i < FOURS; i++) {
                    float4 total = {0, 0, 0, 0};
#pragma unroll
                    for (int from = 0; from < SHARES; from++) {
                        const float4 more = __ldcg(mine + (share * SHARES + from) * PLACES + i * 32);
                        total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
                    }
                    totals[i * 4] = total.x, totals[i * 4 + 1] = total.y, totals[i * 4 + 2] = total.z, totals[i * 4 + 3] = total.w;
                }
                meet(1, MULTIPLIERS);
                if (threadIdx.x == 0 && atomicAdd(arrived + meeting, 1ull) == 2 * SHARES - 1) atomicExch(arrived + meeting, 0ull);
#pragma unroll
                for (int i = 0; i < HALF * 4; i++)
                    totals[i] = __fdividef(totals[i], 1.0f + __expf(-totals[i])) * totals[HALF * 4 + i] * SCALE;
                if (i0 + group * 64 + warp * 16 < M)
                    store_hidden<HALF * 8>(totals, hidden + (int64_t)(i0 / TILE_M) * blocks * (A_ROWS * 64),
                                           group * 64 + warp * 16 + threadIdx.x % 32 / 4, j0 + share * (HALF * 8), blocks);
#pragma unroll
                for (int i = 0; i < TILE_N / 2; i++) sums[i] = 0; /* or the compiler would keep what nobody needs any more */
                continue;
            }
            const int tile_row = group * 64 + warp * 16, warp_row = i0 + tile_row;
            if (SPLIT == 1)
#pragma unroll
                for (int i = 0; i < COLUMNS / 2; i++)
                    if (!GATED) sums[i] *= 1 / SCALE;
                    else if (!LATER) sums[i] = __fdividef(sums[i], 1.0f + __expf(-sums[i])) * sums[COLUMNS / 2 + i] * SCALE;
                    else if (i % 2 == 0) {
                        /* 1 / e and 1 / f from 1 / (e f). From a gate of -43 on down e stays 2^62, so that the product is finite. */
                        const float e = 1.0f + __expf(fminf(-sums[i], 43.0f)), f = 1.0f + __expf(fminf(-sums[i + 1], 43.0f));
                        const float both = __fdividef(SCALE, e * f);
                        sums[i] = sums[i] * sums[COLUMNS / 2 + i] * (both * f);
                        sums[i + 1] = sums[i + 1] * sums[COLUMNS / 2 + i + 1] * (both * e);
                    }
            T *const tile = hidden + (int64_t)(i0 / TILE_M) * blocks * (A_ROWS * 64);
            if constexpr (BY_BOX) {
                const bool at_end = index + step_of_tiles >= tiles;
                if constexpr (DEFERRED)
                    if (!at_end) {
#pragma unroll
                        for (int i = 0; i < COLUMNS / 4; i++) kept[i] = pack(sums[i * 2], sums[i * 2 + 1]);
                        kept_row = warp_row, kept_column = j0;
                        continue;
                    }
                /* Of its last tile a block has no ring to fill: there is room for all boxes at once. */
                const bool at_once = LATER && at_end;
                if (at_once) meet(1, MULTIPLIERS); /* nobody reads the ring any more */
                if (warp_row >= M) continue;
#pragma unroll
                for (int j = 0; j < COLUMNS / 64; j++) {
                    char *const box = at_once ? ring + (threadIdx.x / 32 * (COLUMNS / 64) + j) * 2048 : place(j);
                    if (!at_once) next_box();
                    stage_sums(box, sums + j * 32);
                    store_one(box, warp_row, j0 + j * 64);
                }
                if (ODD) flipped ^= 1;
            } else if constexpr (GATED) {
                if (warp_row < M) store_hidden<COLUMNS>(sums, tile, tile_row + threadIdx.x % 32 / 4, j0, blocks);
            } else if constexpr (SPLIT == 1) {
                if (warp_row < M) store<TILE_N>(sums, y, warp_row + threadIdx.x % 32 / 4, j0, M, N);
            } else {
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
                            send(to, parts + part * PLACES, mine + to * PLACES,
                                 min(TILE_M / 16, (int)(M - i0 + 15) / 16) * FOURS * 512, &filled);
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
                        totals[i * 4] = total.x / SCALE, totals[i * 4 + 1] = total.y / SCALE;
                        totals[i * 4 + 2] = total.z / SCALE, totals[i * 4 + 3] = total.w / SCALE;
                    }
                    store<TILE_N / SPLIT>(totals, y, warp_row + threadIdx.x % 32 / 4, j0 + part * (TILE_N / SPLIT), M, N);
                }
            }
        }
        if (BY_BOX && threadIdx.x % 32 == 0) wait_for_stores<0>();
        __syncwarp();
    }
    /* Nobody leaves while others still write to him, or read what he sends. */
    if (PAIR > 1) cluster_arrive();
    if (CLUSTER > 1) cluster_wait();
}

extern "C" __global__ void __launch_bounds__(MULTIPLIERS + COPIERS, 1)
gate_and_up_tma(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap gate_map,
                const __grid_constant__ CUtensorMap up_map, T *__restrict__ hidden, float *parts,
                unsigned long long *arrived, int64_t whole, int64_t blocks, int64_t B, int64_t D, int64_t H) {
    product<UP_N, 1, PAIRS, UP_PIECES, UP_RING, true, UP_BOXES != 0>(&x_map, gate_map, up_map, nullptr, hidden, (int)blocks, nullptr, parts, arrived,
                                                                                     (int)whole, B, H, D);
}

extern "C" __global__ void __launch_bounds__(MULTIPLIERS + 64, 1)
down_tma(T *__restrict__ hidden, int64_t blocks, const __grid_constant__ CUtensorMap down_map, const __grid_constant__ CUtensorMap y_map,
         T *__restrict__ y, int64_t B, int64_t D, int64_t H) {
    product<DOWN_N, DOWN_SPLIT, DOWN_PAIR, DOWN_PIECES, DOWN_RING, false, DOWN_BOXES != 0>(nullptr, down_map, down_map, &y_map, hidden, (int)blocks,
                                                                                         y, nullptr, nullptr, 0, B, D, H);
}

#else


/* Two launches of one product: hidden = silu(x w_gate^T) * (x w_up^T), then y = hidden w_down^T.
   A block computes a BM x BN tile. Slices of the operands, BK terms deep, come through a ring of STAGES stages in shared
   memory by cp.async, so that the next ones travel while one is multiplied. Each warp has a WARP_M x WARP_N part of the
   tile in registers. 16-bit types are multiplied by tensor cores (mma.sync) and added in single precision, f32 by fused
   multiply-adds. A tile of the first launch has BN / 2 columns of gate and the same BN / 2 of up side by side. */

constexpr int K_STEP = WS_DTYPE_BYTES == 4 ? 4 : 16; /* terms multiplied in a step */
constexpr int STEPS = BK / WARPS_K / K_STEP;         /* that a warp takes through a stage */
constexpr int SHARES = STEPS - 1;                    /* in which a stage is sent for, one a step */
constexpr int UNROLL = PLAIN && WS_DTYPE_BYTES == 2 ? STEPS : 2; /* more gains only there, and takes long to compile */
static_assert(STEPS % 2 == 0, "the main loop loads one step ahead, in turn into two sets of fragments");

constexpr int CHUNKS = BK / VEC; /* of 16 bytes, in a row of a tile */

/* A thread's part in the copying of tiles of ROWS rows: one column of chunks, every STEP-th row. */
template <int ROWS> struct TileCopy {
    static constexpr int STEP = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0, "a thread copies one column of chunks");
    const T *from;         /* its first chunk */
    int64_t stride;        /* elements from one row of the matrix to the next */
    int64_t rows, columns; /* that the matrix has from the tile's first row, and from this column of chunks, on */
    int inside;            /* how many rows of the tile, from its first on, are in the matrix */

    __device__ TileCopy(const T *tile, int64_t stride, int64_t rows, int64_t columns)
        : from(tile + threadIdx.x / CHUNKS * stride + threadIdx.x % CHUNKS * VEC), stride(stride), rows(rows),
          columns(columns - threadIdx.x % CHUNKS * VEC), inside((rows < ROWS ? (int)rows : ROWS) - (int)threadIdx.x / CHUNKS) {}

    /* Whether the terms are all in the matrix, and its rows aligned. */
    __device__ bool is_plain() const { return PLAIN || (columns >= VEC && stride * sizeof(T) % 16 == 0); }
    /* Starts one of SHARES shares of such a tile. Rows that do not exist stay as they are in shared memory: what they are
       multiplied to is never stored. */
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
    __device__ void next() { from += BK, columns -= BK; }
};

#if WS_F32

constexpr int TM = WARP_M / 8, TN = WARP_N / 4;

/* A warp's lanes stand 8 x 4 over its tile. Sum i * TN + j of a lane is at this row and column of it. */
__device__ int row_of(int sum) { return sum / TN * 8 + threadIdx.x % 32 / 4; }
__device__ int column_of(int sum) {
    return sum % TN * 4 + threadIdx.x % 4;
}

/* What a lane needs for 4 terms of its sums. */
struct Fragments {
    float a[TM][4], b[TN][4];

    __device__ void load(const uint4 *a_tile, const uint4 *b_tile, int row, int column, int step) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < TM; i++)
            *(uint4 *)a[i] = a_tile[place<CHUNKS>(row + i * 8 + lane / 4, step)];
#pragma unroll
        for (int j = 0; j < TN; j++)
            *(uint4 *)b[j] = b_tile[place<CHUNKS>(column + j * 4 + lane % 4, step)];
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
            load_matrices(a[i], a_tile + place<CHUNKS>(row + i * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
        for (int j = 0; j < TN; j += 2) {
            const int n = column + j * 8 + lane / 16 * 8 + lane % 8;
            load_matrices(b[j], b_tile + place<CHUNKS>(n, step * 2 + lane / 8 % 2));
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

/* Adds up a tile's products and leaves them in shared memory, a sum of WARPS_K parts: part k of (i, j) is at
   [(k * BM + i) * WIDTH + j]. `a` points at the first row, `b` at the first row of the tile's columns; rows are `terms`
   long. With GATED, the second half of the columns is taken from `b2`. */
constexpr int WIDTH = BN + 8; /* 8 words more keep a warp's 8 rows in different banks */

template <bool GATED>
__device__ float *multiply_tile(const T *a, int64_t rows, const T *b, const T *b2, int64_t columns, int64_t terms) {
    extern __shared__ uint4 stages[];
    constexpr int STAGE = STAGE_BYTES / 16, B_AT = BM * CHUNKS;
    const int warp = threadIdx.x / 32, part = warp / WARPS_MN;
    const int row = warp % WARPS_MN / (BN / WARP_N) * WARP_M, column = warp % (BN / WARP_N) * WARP_N;

    const int slices = (int)((terms + BK - 1) / BK);
    TileCopy<BM> copy_a(a, terms, rows, terms);
    TileCopy<GATED ? BN / 2 : BN> copy_b(b, terms, columns, terms), copy_b2(b2, terms, columns, terms);
    uint4 *filling = stages, *const ring_end = stages + STAGES * STAGE;
    int to_copy = slices;
    auto start_copy = [&](int share) {
        if (copy_a.is_plain()) copy_a.start(filling, share);
        else copy_a.start_any(filling, share);
        if (copy_b.is_plain()) {
            copy_b.start(filling + B_AT, share);
            if (GATED) copy_b2.start(filling + B_AT + BN / 2 * CHUNKS, share);
        } else {
            copy_b.start_any(filling + B_AT, share);
            if (GATED) copy_b2.start_any(filling + B_AT + BN / 2 * CHUNKS, share);
        }
    };
    auto next_copy = [&] {
        end_of_copies();
        copy_a.next(), copy_b.next(), copy_b2.next();
        filling = filling + STAGE == ring_end ? stages : filling + STAGE;
        if (--to_copy == 0) copy_a.stop(), copy_b.stop(), copy_b2.stop();
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

    wait_for_copies<0>();
    __syncthreads();
    float *results = (float *)stages;
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        results[(part * BM + row + row_of(i)) * WIDTH + column + column_of(i)] = sums[i];
    __syncthreads();
    return results;
}

__device__ float total(const float *result) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < WARPS_K; k++) sum += result[k * BM * WIDTH];
    return sum;
}

/* Stores the first `have` of VEC elements, all at once where rows of `c` are aligned. */
__device__ void store_piece(T *c, const T *piece, int64_t have, bool aligned) {
    if (aligned) *(uint4 *)c = *(const uint4 *)piece;
    else
#pragma unroll
        for (int e = 0; e < VEC; e++)
            if (e < have) c[e] = piece[e];
}

/* Which tile this block computes: in groups of GROUP rows of tiles, down the columns of a group. */
__device__ void choose_tile(int64_t tiles_m, int64_t tiles_n, int64_t &i, int64_t &j) {
    const int64_t group = blockIdx.x / (GROUP * tiles_n) * GROUP, within = blockIdx.x % (GROUP * tiles_n);
    const int64_t height = min((int64_t)GROUP, tiles_m - group);
    i = group + within % height;
    j = within / height;
}

/* A product of two sums can exceed the largest half, 65504, where y does not: halves are kept at a quarter. */
#if WS_F16
constexpr float SCALE = 0.25f;
#else
constexpr float SCALE = 1.0f;
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
gate_and_up(const T *__restrict__ x, const T *__restrict__ w_gate, const T *__restrict__ w_up, T *__restrict__ hidden,
            int64_t B, int64_t D, int64_t H) {
    constexpr int COLUMNS = BN / 2;
    int64_t i0, j0;
    choose_tile((B + BM - 1) / BM, (H + COLUMNS - 1) / COLUMNS, i0, j0);
    i0 *= BM, j0 *= COLUMNS;
    const float *results = multiply_tile<true>(x + i0 * D, B - i0, w_gate + j0 * D, w_up + j0 * D, H - j0, D);
    for (int piece = threadIdx.x; piece < BM * COLUMNS / VEC; piece += THREADS) {
        const int i = piece / (COLUMNS / VEC), j = piece % (COLUMNS / VEC) * VEC;
        if (i >= B - i0 || j >= H - j0) continue;
        __align__(16) T out[VEC];
#pragma unroll
        for (int e = 0; e < VEC; e++) {
            const float gate = total(results + i * WIDTH + j + e), up = total(results + i * WIDTH + COLUMNS + j + e);
            out[e] = ws_store(gate / (1.0f + expf(-gate)) * up * SCALE);
        }
        store_piece(hidden + (i0 + i) * H + j0 + j, out, H - j0 - j, H % VEC == 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
down(const T *__restrict__ hidden, const T *__restrict__ w_down, T *__restrict__ y, int64_t B, int64_t D, int64_t H) {
    int64_t i0, j0;
    choose_tile((B + BM - 1) / BM, (D + BN - 1) / BN, i0, j0);
    i0 *= BM, j0 *= BN;
    const float *results = multiply_tile<false>(hidden + i0 * H, B - i0, w_down + j0 * H, nullptr, D - j0, H);
    for (int piece = threadIdx.x; piece < BM * BN / VEC; piece += THREADS) {
        const int i = piece / (BN / VEC), j = piece % (BN / VEC) * VEC;
        if (i >= B - i0 || j >= D - j0) continue;
        __align__(16) T out[VEC];
#pragma unroll
        for (int e = 0; e < VEC; e++) out[e] = ws_store(total(results + i * WIDTH + j + e) / SCALE);
        store_piece(y + (i0 + i) * D + j0 + j, out, D - j0 - j, D % VEC == 0);
    }
}

#endif
