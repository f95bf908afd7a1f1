/*---
op = "cross_entropy"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 256,  choices = [128, 256, 512] }       # threads in a block
HELD    = { value = 4,    choices = [1, 2, 4, 8] }          # 16-byte pieces a thread loads before it uses them
LONG    = { value = 4096, choices = [1024, 4096, 16384] }   # rows of more bytes have a block each, others a warp
[let]
VEC  = "16 / dtype_bytes"
MEAN = "1024"                                               # threads that add up the losses
[[launch]]
kernel = "rows_of_logits"
grid   = ["ceil_div(batch, vocab * dtype_bytes > LONG ? 1 : THREADS / 32)"]
block  = ["vocab * dtype_bytes > LONG ? THREADS : 32", "vocab * dtype_bytes > LONG ? 1 : THREADS / 32"]
args   = ["logits", "targets", "losses", "batch", "vocab"]
[[launch]]
kernel = "mean_of_losses"
grid   = ["1"]
block  = ["MEAN"]
args   = ["losses", "loss", "batch"]
pdl    = true
---*/

/* blockDim.x threads share a row, a warp or the whole block; blockDim.y rows share a block. A row is read once: each
   thread keeps the largest logit it has seen and the sum of the exponentials relative to it (online softmax: Milakov and
   Gimelshein 2018), and these pairs are merged. Rows of odd length start at any address, so the elements before the first
   and after the last aligned piece, at most 2 VEC - 2 of them, are taken one by one. The second launch takes the mean, in
   an order that is always the same. */

#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

#include "ws/ampere.cuh"

struct __align__(16) Piece {
    T of[VEC];
};

/* 2^x for x <= 0, within 2 units in the last place; results below the normal range are zero. The shift is a product as it is rounded,
   which of a mask of -1e30 is off by 1e22: without a limit that would be infinity. */
__device__ float power_of_two(float x) {
    float y;
    asm("min.NaN.f32 %0, %1, 1.0;\n\tex2.approx.ftz.f32 %0, %0;" : "=&f"(y) : "f"(x));
    return y;
}

/* What was seen of a row, in base two: the largest x log2(e), rounded, and the sum of 2^(x log2(e) - top). */
struct Seen {
    float top, sum;

    /* Where every logit so far is -infinity any finite shift will do, and that one would not. */
    __device__ float shift() const { return top == -INFINITY ? 0.0f : top; }

    /* The product is rounded by itself: the terms are relative to it as it is kept. */
    __device__ void raise_to(float logit) {
        const float to = __fmul_rn(logit, LOG2_E);
        if (to > top) {
            sum *= power_of_two(top - to);
            top = to;
        }
    }

    __device__ void take(float logit) {
        raise_to(logit);
        sum += power_of_two(fmaf(logit, LOG2_E, -shift()));
    }

    __device__ void take(const Piece &piece) {
        raise_to(ws::highest((const uint4 &)piece));
        const float by = shift();
        float values[VEC];
        ws::unpack(values, (const uint4 &)piece);
#pragma unroll
        for (int i = 0; i < VEC; i++) sum += power_of_two(fmaf(values[i], LOG2_E, -by));
    }

    __device__ void merge(float other_top, float other_sum) {
        const float mine = top;
        top = fmaxf(top, other_top);
        sum = sum * power_of_two(mine - shift()) + other_sum * power_of_two(other_top - shift());
    }
};

/* Merges what the threads of a row have seen. Every thread of the block comes by; the first of each row has the whole. */
__device__ Seen over_row(Seen seen) {
    for (int step = 16; step > 0; step /= 2) {
        const float top = __shfl_xor_sync(0xffffffff, seen.top, step), sum = __shfl_xor_sync(0xffffffff, seen.sum, step);
        seen.merge(top, sum);
    }
    if (blockDim.y > 1) return seen; /* the row is a warp's */
    __shared__ float tops[THREADS / 32], sums[THREADS / 32];
    if (threadIdx.x % 32 == 0) {
        tops[threadIdx.x / 32] = seen.top;
        sums[threadIdx.x / 32] = seen.sum;
    }
    __syncthreads();
    if (threadIdx.x == 0)
#pragma unroll 1
        for (int warp = 1; warp < THREADS / 32; warp++) seen.merge(tops[warp], sums[warp]);
    return seen;
}

extern "C" __global__ void __launch_bounds__(THREADS)
rows_of_logits(const T *__restrict__ logits, const int64_t *__restrict__ targets, float *__restrict__ losses, int64_t batch,
               int64_t vocab) {
    const int lane = threadIdx.x, lanes = blockDim.x;
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const bool live = row < batch; /* the others still take part in the barrier */
    if (live) logits += row * vocab;

    const int misaligned = (int)((size_t)logits % 16 / sizeof(T));
    const int64_t before = min((int64_t)(misaligned ? VEC - misaligned : 0), vocab);
    const int64_t pieces = live ? (vocab - before) / VEC : 0;
    const int64_t singles = live ? vocab - pieces * VEC : 0;
    const Piece *at = (const Piece *)(logits + before) + lane;

    Seen seen = {-INFINITY, 0};
#pragma unroll 1
    for (int64_t left = pieces - lane; left > 0; left -= HELD * lanes, at += HELD * lanes) {
        const int there = (int)min(left, (int64_t)(HELD * lanes));
        Piece held[HELD];
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (i * lanes < there) held[i] = at[i * lanes];
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (i * lanes < there) seen.take(held[i]);
    }
#pragma unroll 1
    for (int64_t i = lane; i < singles; i += lanes) seen.take(ws_load(logits[i < before ? i : i + pieces * VEC]));

    /* Loaded before the barrier, so that the two latencies overlap. */
    const bool first = live && lane == 0;
    const float wanted = first ? ws_load(logits[targets[row]]) : 0;
    seen = over_row(seen);
    if (first) losses[row] = fmaf(seen.top, LN_2, -wanted) + logf(seen.sum);
}

extern "C" __global__ void __launch_bounds__(MEAN) mean_of_losses(const float *losses, float *loss, int64_t batch) {
    __shared__ float of_warp[MEAN / 32];
#if WS_SM >= 90
    asm volatile("griddepcontrol.wait;" ::: "memory"); /* the losses are there, all of them */
#endif
    float sum = 0;
#pragma unroll 1
    for (int64_t at = threadIdx.x; at < batch; at += 8 * MEAN) {
        float held[8];
#pragma unroll
        for (int i = 0; i < 8; i++) held[i] = at + i * MEAN < batch ? losses[at + i * MEAN] : 0;
#pragma unroll
        for (int i = 0; i < 8; i++) sum += held[i];
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    sum = of_warp[threadIdx.x];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (threadIdx.x == 0) *loss = sum / (float)batch;
}
