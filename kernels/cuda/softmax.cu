/*---
op = "softmax"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 128, choices = [64, 128, 256, 512] }   # threads in a block, where a row needs no more
HELD    = { value = 8,   choices = [1, 2, 4, 8] }          # 16-byte pieces a thread keeps; as many threads share a row as it needs
# Of rows in shared memory, a block each (`shared_rows`).
WIDE    = { value = 512, choices = [256, 384, 512, 640] }  # threads of a block
STAY    = { value = 0,   choices = [0, 1] }                # whether x is marked to stay in the L2 cache
LEAST   = { value = 49152, choices = [16384, 32767, 49152] }   # bytes of such a row, at least
# Of rows that bulk copies bring, two or more on a multiprocessor (`placed_rows`).
LONGEST = { value = 80000, choices = [75264, 80000] }      # bytes of a row from which it is so
PARTS   = { value = 2,   choices = [1, 2, 4, 8] }          # parts of a row that come, and make room for the next one, by themselves
[let]
VEC    = "16 / dtype_bytes"
PIECES = "ceil_div(cols, VEC)"
SHARED = "cols % VEC == 0 && cols * dtype_bytes > LEAST && cols * dtype_bytes <= 75264 && rows >= 2 * SMS"
BROAD  = "CC >= 90 && cols * dtype_bytes > LONGEST && rows >= 2 * SMS"
PART   = "BROAD ? ceil_div(PIECES, PARTS * 8) * 8 : 8"     # 16-byte pieces of a part
PLACE  = "PART * PARTS * 16"
FIT    = "(SMEM_MAX - 2048) / PLACE"                       # rows that shared memory has room for
PLACED = "BROAD && FIT >= 2"
GROUPS = "PLACED && FIT >= 3 ? 3 : 2"                      # of a block's warps, each with a row of its own
WARPS  = "32 / GROUPS"                                     # of a group
# Threads of a row; of a long one so many that, where there are rows enough, two blocks share a multiprocessor.
LANES  = "min(rows >= 2 * SMS ? 512 : 1024, PIECES <= 8 * HELD ? 8 : PIECES <= 16 * HELD ? 16 : ceil_div(PIECES, 32 * HELD) * 32)"
ROWS   = "max(1, THREADS / LANES)"                         # rows of a block
[[variant]]    # short rows: fewer pieces a thread, so that there are enough threads; several share a warp
when = "cols * dtype_bytes <= 1024"
tune = { HELD = 2, THREADS = 256 }
[[variant]]
when = "cols * dtype_bytes <= 2048"
tune = { HELD = 4, THREADS = 256 }
[[scratch]]    # rows that have been drawn, blocks that have ended
name  = "drawn"
dtype = "i64"
shape = ["2"]
init  = "zero_kept"
[[launch]]
kernel = "placed_rows"
when   = "PLACED"
grid   = ["min(ceil_div(rows, GROUPS), SMS)"]
block  = ["GROUPS * WARPS * 32"]
shared = "GROUPS * PLACE"
args   = ["x", "y", "drawn", "rows", "cols"]
[[launch]]
kernel = "shared_rows"
when   = "SHARED"
grid   = ["rows"]
block  = ["WIDE"]
shared = "cols * dtype_bytes"
args   = ["x", "y", "rows", "cols"]
[[launch]]
kernel = "softmax"
when   = "!PLACED && !SHARED"
block  = ["LANES", "ROWS"]
grid   = ["ceil_div(rows, ROWS)"]
args   = ["x", "y", "rows", "cols"]
---*/

/* Bound by memory, and by exponentials where a block reads, computes and writes with nobody beside it: so a thread keeps as much
   of a row as 64 registers allow (128 bytes), and several blocks share a multiprocessor. Of a row of more than 64 KB, 512 threads keep what they
   can and read the rest twice, from the L2 cache.
   The threads of a row load it 16 bytes at a time and keep it; maximum and sum are found in one go (online softmax: Milakov
   and Gimelshein 2018). Rows of odd length start at any address, so the elements before the first and after the last
   aligned piece, at most 2 VEC - 2 of them, are taken one by one.

   Where there are many long rows, shared memory keeps more of them than registers do, so that more is read while something is computed. On an H200
   2048 rows of 32768 halves take 68 us so (72 in registers), and 4096 of 50257 take 220 (256):
   - up to 73 KB: a block a row, three of them on a multiprocessor (`shared_rows`);
   - from 80 KB: the copy engine brings rows for groups of warps, each of which waits for nobody but its row (`placed_rows`). A row comes in PARTS
     parts: as one is there, it is taken into maximum and sum, and as one has been written, that part of the next row is asked for:

       group 0   |0 1 2 3 come|max, sum of 0 1 2 3|write 0   1   2   3|max, sum ...
                                                    row 264: 0   1   2   3 come
       group 1            |0 1 2 3 come|max, sum of 0 1 2 3|write 0   1   2   3|

     Multiprocessors are not served equally, so a group draws the number of its next row from a counter, a row ahead. */

#include "ws/ampere.cuh"

struct __align__(16) Piece {
    T of[VEC];
};

/* Lets the compiler unpack a piece anew: unpacked from one use to the next, it would take twice the registers. */
__device__ void keep_packed(Piece &piece) {
    uint4 &words = *(uint4 *)&piece;
    asm("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
}

/* e^x for x <= 0. What is below the normal range, 2^-126 of a row's largest, becomes zero. */
__device__ float exponential(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
    return power;
}

/* What is subtracted where `top` is the maximum: where all is minus infinity any finite number will do, and that would not. */
__device__ float shift_for(float top) { return top == -INFINITY ? 0.0f : top; }

__device__ float highest_of(const Piece &piece, float top) { return fmaxf(top, ws::highest((const uint4 &)piece)); }

__device__ float sum_of(const Piece &piece, float shift) {
    float values[VEC], sum = 0;
    ws::unpack(values, (const uint4 &)piece);
#pragma unroll
    for (int i = 0; i < VEC; i++) sum += exponential(values[i] - shift);
    return sum;
}

__device__ Piece weighed(const Piece &piece, float shift, float share) {
    float values[VEC];
    ws::unpack(values, (const uint4 &)piece);
    Piece out;
#pragma unroll
    for (int i = 0; i < VEC; i++) out.of[i] = ws_store(exponential(values[i] - shift) * share);
    return out;
}

/* From each thread's maximum, and sum of exponentials below it, to those of the row: the same bits in all its threads. */
__device__ void join_row(float &top, float &sum) {
    const int lanes = blockDim.x, warps = lanes / 32;
    float highest = top;
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        if (step < lanes) highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, step));
    sum *= exponential(top - shift_for(highest));
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        if (step < lanes) sum += __shfl_xor_sync(0xffffffff, sum, step);
    top = highest;
    if (warps <= 1) return;
    __shared__ float tops[32], sums[32];
    const int first = threadIdx.y * warps;
    if (threadIdx.x % 32 == 0) {
        tops[first + threadIdx.x / 32] = top;
        sums[first + threadIdx.x / 32] = sum;
    }
    __syncthreads();
    for (int warp = 0; warp < warps; warp++) top = fmaxf(top, tops[first + warp]);
    sum = 0;
    for (int warp = 0; warp < warps; warp++) sum += sums[first + warp] * exponential(tops[first + warp] - shift_for(top));
}

#if SHARED

/* Begins to bring a piece into shared memory, to a place that this thread alone will read: no barrier is needed for it. */
__device__ void bring_piece(uint4 *to, const Piece *from) {
#if STAY
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "l"(policy));
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from));
#endif
}

/* Three rows fit a multiprocessor's shared memory, where registers hold two, so that one computes and one writes while one reads. A thread reads only
   what it brought. */
extern "C" __global__ void __launch_bounds__(WIDE, 1536 / WIDE)
shared_rows(const T *__restrict__ x, T *__restrict__ y, int64_t rows, int64_t cols) {
    extern __shared__ uint4 shared[];
    const int64_t row = blockIdx.x;
    const int pieces = (int)cols / VEC;
    const Piece *const from = (const Piece *)(x + row * cols), *const kept = (const Piece *)shared;
    Piece *const to = (Piece *)(y + row * cols);
#pragma unroll 4
    for (int i = threadIdx.x; i < pieces; i += WIDE) bring_piece(shared + i, from + i);
    asm volatile("cp.async.wait_all;" ::: "memory");
    float top = -INFINITY, sum = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < pieces; i += WIDE) top = highest_of(kept[i], top);
    const float so_far = shift_for(top);
#pragma unroll 2
    for (int i = threadIdx.x; i < pieces; i += WIDE) sum += sum_of(kept[i], so_far);
    join_row(top, sum);
    const float shift = shift_for(top), share = 1.0f / sum;
#pragma unroll 2
    for (int i = threadIdx.x; i < pieces; i += WIDE) to[i] = weighed(kept[i], shift, share);
}

#endif

#if PLACED

__device__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
/* Has the copy engine bring `bytes` to `to`; the barrier's phase ends when they are there. */
__device__ void bring(void *to, const void *from, int bytes, uint64_t *barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
    if (bytes > 0)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
/* Returns when the barrier's phase `phase` is over. */
__device__ void wait(uint64_t *barrier, int phase) {
    asm volatile("{\n.reg .pred over;\nagain:\n"
                 "mbarrier.try_wait.parity.shared.b64 over, [%0], %1;\n"
                 "@!over bra again;\n}" ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}

extern "C" __global__ void __launch_bounds__(GROUPS * WARPS * 32)
placed_rows(const T *__restrict__ x, T *__restrict__ y, int64_t *drawn, int64_t rows, int64_t cols) {
    constexpr int SHARE = WARPS * 32; /* threads of a group */
    extern __shared__ __align__(128) char places[];
    __shared__ uint64_t barriers[GROUPS][PARTS];
    __shared__ float tops[2][GROUPS][WARPS], sums[2][GROUPS][WARPS];
    __shared__ int64_t nexts[2][GROUPS];
    const int group = threadIdx.x / SHARE, lane = threadIdx.x % SHARE;
    Piece *const place = (Piece *)(places + group * PLACE);
    const int64_t workers = (int64_t)gridDim.x * GROUPS;
    auto meet = [&] { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(SHARE) : "memory"); };

    /* Of a row: elements before its first aligned piece, and pieces. */
    auto before_of = [&](int64_t row) {
        const int misaligned = (int)((size_t)(x + row * cols) % 16 / sizeof(T));
        return misaligned ? VEC - misaligned : 0;
    };
    auto pieces_of = [&](int64_t row) { return (int)(cols - before_of(row)) / VEC; };
    auto ask = [&](int64_t row, int part) {
        const int have = min(max(pieces_of(row) - part * PART, 0), PART);
        bring(place + part * PART, (const Piece *)(x + row * cols + before_of(row)) + part * PART, have * 16, barriers[group] + part);
    };
    /* The element of a row that is in no piece and that this lane has. */
    auto single_at = [&](int64_t row) { return lane < before_of(row) ? lane : lane + pieces_of(row) * VEC; };
    auto has_single = [&](int64_t row) { return lane < (int)cols - pieces_of(row) * VEC; };
    auto load_single = [&](int64_t row) { return has_single(row) ? ws_load(x[row * cols + single_at(row)]) : -INFINITY; };

    int64_t row = (int64_t)group * gridDim.x + blockIdx.x;
    if (lane == 0) {
        for (int part = 0; part < PARTS; part++) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(barriers[group] + part)));
        asm volatile("fence.proxy.async;" ::: "memory"); /* the copy engine must see them */
        if (row < rows)
            for (int part = 0; part < PARTS; part++) ask(row, part);
    }
    meet();
    float single = row < rows ? load_single(row) : 0.0f;

    for (int phase = 0; row < rows; phase ^= 1) {
        int64_t next = 0;
        if (lane == 0) {
            __threadfence(); /* costs nothing here, where the row is waited for */
            next = workers + (int64_t)atomicAdd((unsigned long long *)drawn, 1ull);
        }
        const int pieces = pieces_of(row);

        float top = single, sum = has_single(row) ? exponential(single - shift_for(single)) : 0.0f;
        for (int part = 0; part < PARTS; part++) {
            wait(barriers[group] + part, phase);
            const int end = min(pieces, (part + 1) * PART);
#pragma unroll 2
            for (int i = part * PART + lane; i < end; i += SHARE) {
                Piece piece = place[i];
                const float highest = highest_of(piece, top);
                if (highest > top) sum *= exponential(top - highest);
                top = highest;
                keep_packed(piece);
                sum += sum_of(piece, shift_for(top));
            }
        }

        /* The group's maximum and sum: the same bits in all its threads. */
        float highest = top;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, step));
        sum *= exponential(top - shift_for(highest));
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
        if (lane % 32 == 0) tops[phase][group][lane / 32] = highest, sums[phase][group][lane / 32] = sum;
        if (lane == 0) nexts[phase][group] = next;
        meet();
        next = nexts[phase][group];
        top = -INFINITY, sum = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) top = fmaxf(top, tops[phase][group][warp]);
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) sum += sums[phase][group][warp] * exponential(tops[phase][group][warp] - shift_for(top));
        const float shift = shift_for(top), share = 1.0f / sum;

        const float coming = next < rows ? load_single(next) : 0.0f;
        Piece *const to = (Piece *)(y + row * cols + before_of(row));
        for (int part = 0; part < PARTS; part++) {
            const int end = min(pieces, (part + 1) * PART);
#pragma unroll 2
            for (int i = part * PART + lane; i < end; i += SHARE) to[i] = weighed(place[i], shift, share);
            meet(); /* this part has been read */
            if (lane == 0 && next < rows) ask(next, part);
        }
        if (has_single(row)) y[row * cols + single_at(row)] = ws_store(exponential(single - shift) * share);
        row = next, single = coming;
    }
    __syncthreads(); /* this block draws no more; the last one leaves the counters as they were */
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd((unsigned long long *)drawn + 1, 1ull) == gridDim.x - 1) drawn[0] = drawn[1] = 0;
    }
}

#endif

extern "C" __global__ void __launch_bounds__(1024)
softmax(const T *__restrict__ x, T *__restrict__ y, int64_t rows, int64_t cols) {
    const int lane = threadIdx.x, lanes = blockDim.x;
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const bool live = row < rows; /* the others still take part in the barrier */
    if (live) x += row * cols, y += row * cols;

    const int misaligned = (int)((size_t)x % 16 / sizeof(T));
    const int64_t before = min((int64_t)(misaligned ? VEC - misaligned : 0), cols);
    const int64_t pieces = live ? (cols - before) / VEC : 0;
    const int singles = live ? (int)(cols - pieces * VEC) : 0;
    const int kept = (int)min(pieces, (int64_t)(HELD * lanes));
    const Piece *from = (const Piece *)(x + before);
    Piece *to = (Piece *)(y + before);

    Piece held[HELD];
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (lane + i * lanes < kept) held[i] = from[lane + i * lanes];
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (lane + i * lanes < kept) top = highest_of(held[i], top);
#pragma unroll 1
    for (int i = lane; i < singles; i += lanes) top = fmaxf(top, ws_load(x[i < before ? i : i + pieces * VEC]));

    const float so_far = shift_for(top);
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (lane + i * lanes < kept) {
            keep_packed(held[i]);
            sum += sum_of(held[i], so_far);
            keep_packed(held[i]);
        }
#pragma unroll 1
    for (int i = lane; i < singles; i += lanes)
        sum += exponential(ws_load(x[i < before ? i : i + pieces * VEC]) - so_far);
#pragma unroll 1
    for (int64_t at = lane + HELD * lanes; at < pieces; at += lanes) {
        const Piece piece = from[at];
        const float highest = highest_of(piece, top);
        if (highest > top) sum *= exponential(top - highest);
        top = highest;
        sum += sum_of(piece, shift_for(top));
    }

    join_row(top, sum);
    const float shift = shift_for(top), share = 1.0f / sum;
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (lane + i * lanes < kept) to[lane + i * lanes] = weighed(held[i], shift, share);
#pragma unroll 1
    for (int64_t at = lane + HELD * lanes; at < pieces; at += lanes) to[at] = weighed(from[at], shift, share);
#pragma unroll 1
    for (int i = lane; i < singles; i += lanes) {
        const int64_t j = i < before ? i : i + pieces * VEC;
        y[j] = ws_store(exponential(ws_load(x[j]) - shift) * share);
    }
}
