/*---
op = "softmax"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 128, choices = [64, 128, 256, 512] }   # threads in a block, where a row needs no more
HELD    = { value = 8,   choices = [1, 2, 4, 8] }          # 16-byte pieces a thread keeps; as many threads share a row as it needs
WIDE    = { value = 512, choices = [256, 384, 512, 640] }  # threads of a block whose row is kept in shared memory
STAY    = { value = 0,   choices = [0, 1] }                # whether x is marked to stay in the L2 cache there
LEAST   = { value = 49152, choices = [16384, 32767, 49152] } # bytes of such a row, at least
[let]
LONG   = "cols % VEC == 0 && cols * dtype_bytes > LEAST && cols * dtype_bytes <= 75264 && rows >= 2 * SMS"
VEC    = "16 / dtype_bytes"
PIECES = "ceil_div(cols, VEC)"
# Threads of a row; of a long one so many that, where there are rows enough, two blocks share a multiprocessor.
LANES  = "min(rows >= 2 * SMS ? 512 : 1024, PIECES <= 8 * HELD ? 8 : PIECES <= 16 * HELD ? 16 : ceil_div(PIECES, 32 * HELD) * 32)"
ROWS   = "max(1, THREADS / LANES)"                         # rows of a block
[[variant]]    # short rows: fewer pieces a thread, so that there are enough threads; several share a warp
when = "cols * dtype_bytes <= 1024"
tune = { HELD = 2, THREADS = 256 }
[[variant]]
when = "cols * dtype_bytes <= 2048"
tune = { HELD = 4, THREADS = 256 }
[[launch]]
kernel = "long_rows"
when   = "LONG"
block  = ["WIDE"]
grid   = ["rows"]
shared = "cols * dtype_bytes"
args   = ["x", "y", "rows", "cols"]
[[launch]]
kernel = "softmax"
when   = "!LONG"
block  = ["LANES", "ROWS"]
grid   = ["ceil_div(rows, ROWS)"]
args   = ["x", "y", "rows", "cols"]
---*/

/* Bound by memory, and by exponentials where a block reads, computes and writes with nobody beside it: so a thread keeps as much
   of a row as 64 registers allow (128 bytes), and several blocks share a multiprocessor. Of a row of more than 64 KB, 512 threads keep what they
   can and read the rest twice, from the L2 cache: on an H200 4096 rows of 50257 columns take 258 us so, and 280 by 1024 threads that keep it all,
   with nobody beside them who reads while they compute.
   The threads of a row load it 16 bytes at a time and keep it; maximum and sum are found in one go (online softmax: Milakov
   and Gimelshein 2018). Rows of odd length start at any address, so the elements before the first and after the last
   aligned piece, at most 2 VEC - 2 of them, are taken one by one. */

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

__device__ float highest_of(const Piece &piece, float top) {
#pragma unroll
    for (int i = 0; i < VEC; i++) top = fmaxf(top, ws_load(piece.of[i]));
    return top;
}

__device__ float sum_of(const Piece &piece, float shift) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < VEC; i++) sum += exponential(ws_load(piece.of[i]) - shift);
    return sum;
}

__device__ Piece weighed(const Piece &piece, float shift, float share) {
    Piece out;
#pragma unroll
    for (int i = 0; i < VEC; i++) out.of[i] = ws_store(exponential(ws_load(piece.of[i]) - shift) * share);
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


/* Begins to bring a piece into shared memory, to a place that this thread alone will read: no barrier is needed for it. */
__device__ void bring(uint4 *to, const Piece *from) {
#if STAY
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "l"(policy));
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from));
#endif
}

/* Rows of up to 73 KB, a block each: three of them fit a multiprocessor's shared memory, where registers hold two, so that one computes and one writes
   while one reads. A thread reads only what it brought. */
extern "C" __global__ void __launch_bounds__(WIDE, 1536 / WIDE)
long_rows(const T *__restrict__ x, T *__restrict__ y, int64_t rows, int64_t cols) {
    extern __shared__ uint4 shared[];
    const int64_t row = blockIdx.x;
    const int pieces = (int)cols / VEC;
    const Piece *const from = (const Piece *)(x + row * cols), *const kept = (const Piece *)shared;
    Piece *const to = (Piece *)(y + row * cols);
#pragma unroll 4
    for (int i = threadIdx.x; i < pieces; i += WIDE) bring(shared + i, from + i);
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
