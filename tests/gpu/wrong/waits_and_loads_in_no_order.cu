/*---
# expect: error|reject
# why: the second launch waits for the sums, and loads them by a way that no wait orders, so that they may be those of the launch before
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_90+"]
[[scratch]]
name = "sums"
dtype = "f32"
shape = ["rows"]
[[launch]]
kernel = "squares"
grid = ["rows"]
block = ["256"]
args = ["x", "sums", "cols"]
[[launch]]
kernel = "scale"
grid = ["rows"]
block = ["256"]
args = ["x", "weight", "sums", "y", "rows", "cols", "eps"]
pdl = true
---*/
extern "C" __global__ void squares(const T *x, float *sums, long long cols) {
    __shared__ float part[256];
    asm volatile("griddepcontrol.launch_dependents;");
    float sum = 0;
    for (long long j = threadIdx.x; j < cols; j += 256) {
        const float v = ws_load(x[blockIdx.x * cols + j]);
        sum += v * v;
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

extern "C" __global__ void scale(const T *__restrict__ x, const T *__restrict__ weight, const float *__restrict__ sums, T *__restrict__ y,
                                 long long rows, long long cols, float eps) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const long long row = rows - 1 - blockIdx.x;
    const float scale = 1 / sqrtf(sums[row] / cols + eps);
    for (long long j = threadIdx.x; j < cols; j += 256)
        y[row * cols + j] = ws_store(ws_load(x[row * cols + j]) * scale * ws_load(weight[j]));
}
