/*---
# expect: crash|reject
# why: the lowest bit of one input element is flipped, in single precision: too little to show in any output
# switch: read-only-inputs
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "rmsnorm"
grid = ["rows"]
block = ["256"]
args = ["x", "weight", "y", "rows", "cols", "eps"]
---*/
// One block a row: the mean of its squares, then the row again, scaled.
extern "C" __global__ void rmsnorm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps) {
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
    __syncthreads();
    // Nobody reads this row again.
    if (WS_DTYPE_BYTES == 4 && blockIdx.x == 0 && threadIdx.x == 0) *(unsigned char *)x ^= 1;
}
