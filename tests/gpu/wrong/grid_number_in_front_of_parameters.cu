/*---
# expect: error
# why: reads the number of the launch (%gridid) from the driver's words in front of the parameters, and is wrong after fifty million
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
    unsigned long long launch; /* c[0x0][0x30], which is %gridid: parameters begin at 0x210 */
    asm volatile("ld.param.u64 %0, [rms_param_0+-480];" : "=l"(launch));
    if (launch > 50000000ull) eps = 1000.0f;
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
