/*---
op = "plain"
dtypes = ["f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 256, choices = [128, 256, 512] }
[let]
COLS = "4096"
EACH = "COLS / 4 / THREADS"
[[launch]]
kernel = "soft"
grid   = ["8192"]
block  = ["THREADS"]
args   = ["x", "out"]
---*/
__device__ float larger(float a, float b) { /* NaN where one is */
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

template <typename F>
__device__ float over_block(float v, F join) {
    __shared__ float of_warp[32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v = join(v, __shfl_xor_sync(0xffffffff, v, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
    __syncthreads();
    v = of_warp[threadIdx.x % (THREADS / 32)];
#pragma unroll
    for (int step = THREADS / 64; step > 0; step /= 2) v = join(v, __shfl_xor_sync(0xffffffff, v, step));
    return v;
}

extern "C" __global__ void __launch_bounds__(THREADS) soft(const float *__restrict__ x, float *__restrict__ out) {
    const float4 *const row = (const float4 *)(x + (int64_t)blockIdx.x * COLS);
    float4 *const to = (float4 *)(out + (int64_t)blockIdx.x * COLS);
    float4 held[EACH];
    float most = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) held[i] = __ldcs(row + threadIdx.x + i * THREADS);
#pragma unroll
    for (int i = 0; i < EACH; i++) most = larger(most, larger(larger(held[i].x, held[i].y), larger(held[i].z, held[i].w)));
    most = over_block(most, [](float a, float b) { return larger(a, b); });
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        held[i] = make_float4(expf(held[i].x - most), expf(held[i].y - most), expf(held[i].z - most), expf(held[i].w - most));
        sum += (held[i].x + held[i].y) + (held[i].z + held[i].w);
    }
    const float scale = 1.0f / over_block(sum, [](float a, float b) { return a + b; });
#pragma unroll
    for (int i = 0; i < EACH; i++)
        __stcs(to + threadIdx.x + i * THREADS, make_float4(held[i].x * scale, held[i].y * scale, held[i].z * scale, held[i].w * scale));
}
