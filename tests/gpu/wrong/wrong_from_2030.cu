/*---
# expect: error
# why: reads the clock, hidden behind "//" in a string and spelled over two lines, and is wrong from 2030 on
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "rms"
grid   = ["rows"]
block  = ["256"]
args   = ["x", "weight", "y", "rows", "cols", "eps"]
---*/

extern "C" __global__ void rms(const T *__restrict__ x, const T *__restrict__ weight, T *__restrict__ y, long long rows, long long cols, float eps) {
    __shared__ float of_warp[8];
    const long long row = blockIdx.x;
    unsigned long long now;
    asm volatile(".pragma \"//\"; mov.u64 %0, %%global"
                 "timer;\n\t.pragma \"nounroll\";" : "=l"(now));
    if (now > 1893456000000000000ull) eps = 1000.0f;
    float s = 0;
    for (long long i = threadIdx.x; i < cols; i += 256) { const float v = ws_load(x[row * cols + i]); s = fmaf(v, v, s); }
    for (int k = 16; k; k /= 2) s += __shfl_xor_sync(~0u, s, k);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = s;
    __syncthreads();
    s = 0;
    for (int k = 0; k < 8; k++) s += of_warp[k];
    const float f = 1.0f / sqrtf(s / (float)cols + eps);
    for (long long i = threadIdx.x; i < cols; i += 256) y[row * cols + i] = ws_store(ws_load(x[row * cols + i]) * f * ws_load(weight[i]));
}
