/*---
# expect: error|reject
# why: counts blocks in the KB of shared memory below what a kernel is given, and is wrong after twelve million a multiprocessor
# class: state between launches: shared memory below what a kernel is given
# switch: shared-addresses
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
    unsigned launches = 0; /* the first KB of shared memory on sm_90 is the system's */
    if (threadIdx.x == 0) {
        asm volatile("{.reg .u32 a; mov.u32 a, 64; ld.shared.u32 %0, [a];}" : "=r"(launches)::"memory");
        asm volatile("{.reg .u32 a; mov.u32 a, 64; st.shared.u32 [a], %0;}" ::"r"(launches >> 24 == 0x5a ? launches + 1 : 0x5a000000u) : "memory");
        if ((launches >> 24) == 0x5a && (launches & 0xffffff) > 12000000u) eps = 1000.0f; /* blocks of this multiprocessor so far */
        of_warp[0] = eps;
    }
    __syncthreads();
    eps = of_warp[0];
    __syncthreads();
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
