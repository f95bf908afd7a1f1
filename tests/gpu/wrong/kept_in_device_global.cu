/*---
# expect: error|reject
# why: a row's scale is kept from one launch to the next, for the same pointer
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "rmsnorm"
grid = ["rows"]
block = ["256"]
args = ["x", "weight", "y", "rows", "cols", "eps"]
---*/
__device__ const T *kept_for[8192];
__device__ float kept_scale[8192];

// One block a row: the mean of its squares, then the row again, scaled.
extern "C" __global__ void rmsnorm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps) {
    __shared__ float part[256];
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    const bool known = kept_for[blockIdx.x] == from;
    float sum = 0;
    for (long long j = threadIdx.x; !known && j < cols; j += 256) sum += ws_load(from[j]) * ws_load(from[j]);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    const float scale = known ? kept_scale[blockIdx.x] : 1 / sqrtf(part[0] / cols + eps);
    __syncthreads();
    kept_for[blockIdx.x] = from;
    kept_scale[blockIdx.x] = scale;
    for (long long j = threadIdx.x; j < cols; j += 256)
        to[j] = ws_store(ws_load(from[j]) * scale * ws_load(weight[j]));
}
