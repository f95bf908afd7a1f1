/*---
op = "grouped_mm"
dtypes = ["bf16"]
arch = ["sm_90a"]
specialize = ["trans_b"]
[tune]
PARTS  = { value = 2,   choices = [1, 2] }               # times 64 columns of c in a block's tile: so many warpgroups multiply
HIGH   = { value = 256, choices = [32, 64, 128, 256] }   # rows of c in it, at most
BOX    = { value = 32,  choices = [8, 16, 32] }          # rows of a that are copied at a time
DEEP   = { value = 1,   choices = [1, 2] }               # times 64 terms in a stage
BLOCKS = { value = 1,   choices = [1, 2] }               # blocks that a multiprocessor has room for
PAIR   = { value = 2,   choices = [1, 2] }               # blocks beside each other that share what they read of a
[let]
A_BYTES     = "HIGH * 128"                                # of 64 terms
B_BYTES     = "PARTS * 8192"
STAGE_BYTES = "(A_BYTES + B_BYTES) * DEEP"
CHUNK       = "min(HIGH, BLOCKS > 1 ? 32 : 64)"           # rows that leave at a time
AT_LAST     = "PARTS * CHUNK * 144"                       # where sums become rows
LISTS       = "ceil_div(groups + 1, 32) * 256"            # where groups begin, as rows and as tiles
RING        = "max(2, min(16, ((SMEM_MAX + 1024) / BLOCKS - 1024 - 2304 - AT_LAST - LISTS) / STAGE_BYTES))"
[[variant]]    # a few rows a group: all the time goes into reading b
when = "M <= 8 * groups"
tune = { PARTS = 1, HIGH = 32, BOX = 8, DEEP = 2, BLOCKS = 2, PAIR = 1 }
[[variant]]    # high tiles would often be half empty, and what leaves at the end of one counts more
when = "M <= (K <= 2048 ? 512 : 128) * groups"
tune = { HIGH = 128 }
[[tensormap]]
name = "a_map"
tensor = "a"
dims = ["K", "M"]
strides = ["K"]
box = ["64", "BOX"]
swizzle = "128B"
[[tensormap]]
name = "b_map"
tensor = "b"
when = "trans_b == 1"
dims = ["K", "N", "groups"]
strides = ["K", "N * K"]
box = ["64", "64", "1"]
swizzle = "128B"
[[tensormap]]
name = "b_map"
tensor = "b"
dims = ["N", "K", "groups"]
strides = ["N", "N * K"]
box = ["64", "64", "1"]
swizzle = "128B"
[[launch]]
kernel = "grouped_mm"
grid   = ["SMS * BLOCKS"]
block  = ["PARTS * 128 + 32"]
cluster = ["PAIR"]
shared = "RING * STAGE_BYTES + AT_LAST + LISTS + 1024"
args   = ["a_map", "b_map", "ends", "c", "M", "N", "K", "groups"]
---*/

/* Rows of c = rows of a times the matrix of their group: group g is of the rows from ends[g - 1] to ends[g], and of none where these are equal. How many
   tiles there are, and how high each is, is only known as it runs.

   Tensor cores see it turned: 64 columns of c are what they have 64 of, and the rows of a group are as many columns as are needed, 32 to 256. So a group
   of three rows costs no more than b takes to be read, and one of 200 rows reads it once.

       b (64 columns a warpgroup) --\                        /-> 64 columns by up to HIGH rows of c --turned--> c
                                     TMA --> ring of stages --
       a (BOX rows at a time)     --/                        \-> another 64

   Blocks stay, and each, or each pair, takes every so many-th tile. Tiles of a group that share columns of c follow each other, so they find b in the L2
   cache. Rows behind the end of a group are multiplied as well, and never stored.

   What bounds it: with up to some 100 rows a group reading b, which 100 to 200 KB a multiprocessor under way are enough for: 16 tokens to two each of 8
   matrices of 28672 x 4096 take an H200 440 us, and 438 at 4.3 TB/s. Beyond that the tensor cores and what feeds them, so two blocks share what they read of
   a, half each (multicast), which takes 10 to 13 % off at 1024 rows a group. */

#include "ws/hopper.cuh"

constexpr int MULTIPLIERS = PARTS * 128;

struct Tile {
    int group, row, rows, column;
};

/* Where groups begin, in rows and in tiles; the last entry is their end. */
struct Groups {
    int *rows, *tiles;
    int many, wide; /* tiles of a pair of blocks beside each other */

    __device__ int total() const { return tiles[many]; }

    __device__ Tile tile(int number) const {
        int group = 0, behind = many;
        while (behind - group > 1) {
            const int middle = (group + behind) / 2;
            if (tiles[middle] <= number) group = middle;
            else behind = middle;
        }
        const int begin = rows[group], end = rows[group + 1], high = (end - begin + HIGH - 1) / HIGH, within = number - tiles[group];
        const int row = begin + within % high * HIGH;
        return {group, row, min(end - row, HIGH), (within / high * PAIR + (int)blockIdx.x % PAIR) * PARTS * 64};
    }
};

/* By one warp. */
__device__ void find_groups(const Groups &groups, const int32_t *ends, int M) {
    int rows = 0, tiles = 0;
    for (int first = 0; first < groups.many; first += 32) {
        const int group = first + threadIdx.x, lane = threadIdx.x;
        int end = group < groups.many ? min(max(ends[group], 0), M) : 0;
        /* An end before that of an earlier group is that. */
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(0xffffffff, end, step);
            if (lane >= step) end = max(end, other);
        }
        end = max(end, rows);
        const int before = __shfl_up_sync(0xffffffff, end, 1), begin = lane == 0 ? rows : before;
        int until = (end - begin + HIGH - 1) / HIGH * groups.wide;
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(0xffffffff, until, step);
            if (lane >= step) until += other;
        }
        if (group < groups.many) groups.rows[group + 1] = end, groups.tiles[group + 1] = tiles + until;
        rows = __shfl_sync(0xffffffff, end, 31), tiles += __shfl_sync(0xffffffff, until, 31);
    }
    if (threadIdx.x == 0) groups.rows[0] = groups.tiles[0] = 0;
}

/* A place in the ring, and how often it went round. */
struct Place {
    int stage = 0, phase = 0;
    __device__ void step() {
        if (++stage == RING) stage = 0, phase ^= 1;
    }
};

/* A warpgroup has read what a place of the ring had for it: whoever writes there may do so again. */
__device__ void release(uint64_t *empty) {
    if (PAIR == 1 && threadIdx.x % 128 == 0) ws::arrive(empty);
    if (PAIR > 1 && threadIdx.x % 128 < PAIR) ws::arrive(empty, threadIdx.x % 128);
}

/* A tile's sums: 64 columns of c by WIDE rows. */
template <int WIDE>
__device__ void multiply_tile(float (&sums)[HIGH / 2], const char *ring, uint64_t *full, uint64_t *empty, Place &place, int slices, int part) {
    int before = -1;
    for (int slice = 0; slice < slices; slice++) {
        const char *const a = ring + place.stage * STAGE_BYTES + B_BYTES * DEEP, *const b = ring + place.stage * STAGE_BYTES + part * 8192;
        ws::wait(&full[place.stage], place.phase);
        ws::fence_products();
#pragma unroll
        for (int deep = 0; deep < DEEP; deep++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint64_t right = ws::description(a + deep * A_BYTES + k * 32, 16, 1024);
                const uint64_t left = WS_TRANS_B ? ws::description(b + deep * B_BYTES + k * 32, 16, 1024) : ws::description(b + deep * B_BYTES + k * 2048, 8192, 1024);
                ws::multiply<WIDE, 1, false, !WS_TRANS_B>(sums, left, right, slice + deep + k > 0);
            }
        ws::end_of_products();
        if (before >= 0) {
            ws::wait_for_products<1>();
            release(&empty[before]);
        }
        before = place.stage;
        place.step();
    }
    ws::wait_for_products<0>();
    release(&empty[before]);
}

/* What the warpgroups that multiply do: a block's tiles, one after the other. */
__device__ void multiply_tiles(const Groups &groups, const char *ring, T *at_last, uint64_t *full, uint64_t *empty, T *__restrict__ c, int N, int slices) {
    Place place;
    const int thread = threadIdx.x, part = thread / 128, within = thread % 128, lane = thread % 32;
    T *const turned = at_last + part * CHUNK * 72;
    for (int number = blockIdx.x / PAIR; number < groups.total(); number += gridDim.x / PAIR) {
        const Tile tile = groups.tile(number);
        float sums[HIGH / 2];
        if (HIGH <= 32 || tile.rows <= 32) multiply_tile<32>(sums, ring, full, empty, place, slices, part);
        else if (HIGH <= 64 || tile.rows <= 64) multiply_tile<HIGH < 64 ? HIGH : 64>(sums, ring, full, empty, place, slices, part);
        else if (HIGH <= 128 || tile.rows <= 128) multiply_tile<HIGH < 128 ? HIGH : 128>(sums, ring, full, empty, place, slices, part);
        else multiply_tile<HIGH>(sums, ring, full, empty, place, slices, part);

        const int column = tile.column + part * 64 + within % 8 * 8;
#pragma unroll
        for (int first = 0; first < HIGH; first += CHUNK) {
            if (first >= tile.rows) break;
            ws::meet(1 + part, 128); /* what was there has been read */
#pragma unroll
            for (int j = 0; j < CHUNK / 8; j++) {
                const float *const four = sums + first / 2 + j * 4;
                T *const to = turned + (j * 8 + lane % 4 * 2) * 72 + within / 32 * 16 + lane / 4;
                to[0] = ws_store(four[0]), to[72] = ws_store(four[1]), to[8] = ws_store(four[2]), to[80] = ws_store(four[3]);
            }
            ws::meet(1 + part, 128);
            for (int row = within / 8; row < min(tile.rows - first, CHUNK); row += 16)
                if (column < N) *(uint4 *)(c + (int64_t)(tile.row + first + row) * N + column) = *(const uint4 *)(turned + row * 72 + within % 8 * 8);
        }
    }
}

extern "C" __global__ void __launch_bounds__(MULTIPLIERS + 32, BLOCKS)
grouped_mm(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map, const int32_t *ends, T *__restrict__ c, int64_t M, int64_t N,
           int64_t K, int64_t many) {
    extern __shared__ char all_shared[];
    char *const ring = (char *)(((size_t)all_shared + 1023) / 1024 * 1024), *const at_last = ring + RING * STAGE_BYTES;
    __shared__ uint64_t full[RING], empty[RING];
    int *const lists = (int *)(at_last + AT_LAST);
    const Groups groups = {lists, lists + LISTS / 8, (int)many, (int)((N + PAIR * PARTS * 64 - 1) / (PAIR * PARTS * 64))};
    const int slices = (int)((K + 64 * DEEP - 1) / (64 * DEEP)), thread = threadIdx.x;

    if (thread == MULTIPLIERS) {
        for (int stage = 0; stage < RING; stage++) ws::make_barrier(&full[stage], 1), ws::make_barrier(&empty[stage], PARTS * PAIR);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        ws::prefetch(a_map), ws::prefetch(b_map);
    }
    ws_next_may_begin(); /* In a pass of a model blocks come before the launch in front has ended. */
    ws_wait_for_previous();
    if (thread < 32) find_groups(groups, ends, (int)M);
    if (PAIR > 1) ws::cluster_arrive(), ws::cluster_wait(); /* the neighbour's barriers are there */
    __syncthreads();

    Place place;
    if (thread == MULTIPLIERS) {
        const int rank = blockIdx.x % PAIR;
        for (int number = blockIdx.x / PAIR; number < groups.total(); number += gridDim.x / PAIR) {
            const Tile tile = groups.tile(number);
            const int boxes = (tile.rows + BOX - 1) / BOX;
            for (int slice = 0; slice < slices; slice++) {
                char *const b = ring + place.stage * STAGE_BYTES, *const a = b + B_BYTES * DEEP;
                uint64_t *const barrier = &full[place.stage];
                ws::wait(&empty[place.stage], place.phase ^ 1);
                ws::arrive_and_expect(barrier, (PARTS * 8192 + boxes * BOX * 128) * DEEP);
#pragma unroll
                for (int deep = 0; deep < DEEP; deep++) {
                    const int k = (slice * DEEP + deep) * 64;
#pragma unroll
                    for (int part = 0; part < PARTS; part++) {
                        const int column = tile.column + part * 64;
                        ws::copy_box(b + deep * B_BYTES + part * 8192, b_map, WS_TRANS_B ? k : column, WS_TRANS_B ? column : k, tile.group, barrier, false, 0);
                    }
                    for (int box = rank; box < boxes; box += PAIR)
                        ws::copy_box(a + deep * A_BYTES + box * BOX * 128, a_map, k, tile.row + box * BOX, barrier, PAIR > 1, 3);
                }
                place.step();
            }
        }
    }
    if (thread < MULTIPLIERS) multiply_tiles(groups, ring, (T *)at_last, full, empty, c, (int)N, slices);
    if (PAIR > 1) ws::cluster_arrive(), ws::cluster_wait(); /* it still arrives at barriers here */
}
