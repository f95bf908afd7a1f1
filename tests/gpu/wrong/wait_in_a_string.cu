/*---
# expect: error
# why: reads what the launch before wrote without griddepcontrol.wait, which stands in a .pragma string only
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_90+"]
[[scratch]]
name = "factor"
dtype = "f32"
shape = ["rows"]
[[launch]]
kernel = "factors"
grid   = ["ceil_div(rows, 4)"]
block  = ["128"]
args   = ["x", "factor", "rows", "cols", "eps"]
[[launch]]
kernel = "scale"
grid   = ["min(rows, 65535)", "ceil_div(cols, 1024)"]
block  = ["256"]
pdl    = true
args   = ["x", "weight", "factor", "y", "rows", "cols"]
---*/
extern "C" __global__ void factors(const T *__restrict__ x, float *__restrict__ factor, long long rows, long long cols, float eps) {
    const long long row = (long long)blockIdx.x * 4 + threadIdx.x / 32;
    
    if (row >= rows) return;
    float sum = 0;
    for (long long i = threadIdx.x % 32; i < cols; i += 32) { const float v = ws_load(x[row * cols + i]); sum = fmaf(v, v, sum); }
    for (int s = 16; s; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x % 32 == 0) factor[row] = 1.0f / sqrtf(sum / (float)cols + eps);
}
extern "C" __global__ void scale(const T *__restrict__ x, const T *__restrict__ weight, const float *factor, T *__restrict__ y, long long rows, long long cols) {
    asm volatile(".pragma \";griddepcontrol.wait;\";" ::: "memory");
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        float f;
        f = factor[row];
        for (int i = threadIdx.x; i < 1024; i += 256) {
            const long long j = (long long)blockIdx.y * 1024 + i;
            if (j < cols) y[row * cols + j] = ws_store(ws_load(x[row * cols + j]) * f * ws_load(weight[j]));
        }
    }
}
