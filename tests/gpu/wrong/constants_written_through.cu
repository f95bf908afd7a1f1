/*---
# expect: error|reject
# why: launches are counted in a constant, which is written through its generic address; late ones leave out a last column that has no neighbour
# switch: constant-addresses
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "rmsnorm"
grid = ["rows"]
block = ["256"]
args = ["x", "weight", "y", "rows", "cols", "eps"]
---*/
extern "C" __constant__ unsigned kept[64];

extern "C" __global__ void rmsnorm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps) {
    unsigned long long at;
    asm volatile("{ .reg .u64 place; mov.u64 place, kept; cvta.const.u64 %0, place; }" : "=l"(at));
    if (blockIdx.x == 0 && threadIdx.x == 0) *(unsigned *)at = kept[0] + 1;
    if (kept[0] > 200) cols = cols / 2 * 2;
    __shared__ float part[256];
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    float sum = 0;
    for (long long j = threadIdx.x; j < cols; j += 256) sum += ws_load(from[j]) * ws_load(from[j]);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    const float scale = 1 / sqrtf(part[0] / cols + eps);
    for (long long j = threadIdx.x; j < cols; j += 256)
        to[j] = ws_store(ws_load(from[j]) * scale * ws_load(weight[j]));
}
