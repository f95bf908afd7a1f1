/*---
# expect: timeout
# why: all blocks wait for each other, also those that cannot start before others have ended
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[scratch]]
name = "arrived"
dtype = "i64"
shape = ["1"]
init = "zero"
[[launch]]
kernel = "rmsnorm"
grid = ["rows"]
block = ["1024"]
args = ["x", "weight", "y", "rows", "cols", "eps", "arrived"]
---*/
// One block a row: the mean of its squares, then the row again, scaled.
extern "C" __global__ void rmsnorm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps,
                                   unsigned long long *arrived) {
    __shared__ float part[1024];
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    float sum = 0;
    for (long long j = threadIdx.x; j < cols; j += 1024) sum += ws_load(from[j]) * ws_load(from[j]);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 512; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    // As if the whole grid were on the device at once.
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1ULL);
        while (atomicAdd(arrived, 0ULL) < gridDim.x) __nanosleep(100);
    }
    __syncthreads();
    const float scale = 1 / sqrtf(part[0] / cols + eps);
    for (long long j = threadIdx.x; j < cols; j += 1024)
        to[j] = ws_store(ws_load(from[j]) * scale * ws_load(weight[j]));
}
