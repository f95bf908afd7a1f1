/*---
# expect: reject
# why: eight partial sums are added, of which only four were ever written
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "rmsnorm"
grid = ["rows"]
block = ["128"]
args = ["x", "weight", "y", "rows", "cols", "eps"]
---*/
// One block a row: the mean of its squares, then the row again, scaled.
extern "C" __global__ void rmsnorm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps) {
    __shared__ float part[8];
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    float sum = 0;
    for (long long j = threadIdx.x; j < cols; j += 128) sum += ws_load(from[j]) * ws_load(from[j]);
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lane);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    // Shared memory is zero at first, is it not?
    float squares = 0;
    for (int warp = 0; warp < 8; warp++) squares += part[warp];
    const float scale = 1 / sqrtf(squares / cols + eps);
    for (long long j = threadIdx.x; j < cols; j += 128)
        to[j] = ws_store(ws_load(from[j]) * scale * ws_load(weight[j]));
}
