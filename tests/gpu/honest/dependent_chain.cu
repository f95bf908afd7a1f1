/*---
# why: three launches, each begun while the one in front of it runs; what does not depend on it is fetched before the wait
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_90+"]
[[scratch]]
name = "sums"
dtype = "f32"
shape = ["rows"]
[[scratch]]
name = "scales"
dtype = "f32"
shape = ["rows"]
[[launch]]
kernel = "squares"
grid = ["rows"]
block = ["256"]
args = ["x", "sums", "cols"]
[[launch]]
kernel = "roots"
grid = ["ceil_div(rows, 256)"]
block = ["256"]
args = ["sums", "scales", "rows", "cols", "eps"]
pdl = true
[[launch]]
kernel = "scale"
grid = ["rows"]
block = ["256"]
args = ["x", "weight", "scales", "y", "cols"]
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

extern "C" __global__ void roots(const float *sums, float *scales, long long rows, long long cols, float eps) {
    asm volatile("griddepcontrol.launch_dependents;");
    const long long row = blockIdx.x * 256LL + threadIdx.x;
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (row < rows) scales[row] = 1 / sqrtf(sums[row] / cols + eps);
}

// The weights and the row are inputs: they are fetched before the scales are there.
extern "C" __global__ void scale(const T *x, const T *weight, const float *scales, T *y, long long cols) {
    const long long at = blockIdx.x * cols + threadIdx.x;
    float first = 0, first_weight = 0;
    if (threadIdx.x < cols) {
        first = ws_load(x[at]);
        first_weight = ws_load(weight[threadIdx.x]);
    }
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const float scale = scales[blockIdx.x];
    if (threadIdx.x < cols) y[at] = ws_store(first * scale * first_weight);
    for (long long j = threadIdx.x + 256; j < cols; j += 256)
        y[blockIdx.x * cols + j] = ws_store(ws_load(x[blockIdx.x * cols + j]) * scale * ws_load(weight[j]));
}
