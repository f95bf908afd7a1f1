/*---
# why: few rows are shared among several blocks that wait for each other, which a cooperative launch allows;
#      many rows are not: two launches, of which one is taken
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[scratch]]
name = "sums"
dtype = "f32"
shape = ["rows * 4"]
[[scratch]]
name = "arrived"
dtype = "i64"
shape = ["1"]
init = "zero"
[[launch]]
when = "rows >= SMS"
kernel = "whole_rows"
grid = ["rows"]
block = ["256"]
args = ["x", "weight", "y", "cols", "eps"]
[[launch]]
when = "rows < SMS"
kernel = "shared_rows"
grid = ["rows * 4"]
block = ["256"]
args = ["x", "weight", "y", "sums", "arrived", "cols", "eps"]
cooperative = true
---*/
constexpr int PARTS = 4;

__device__ float block_sum(float v) {
    __shared__ float part[256];
    part[threadIdx.x] = v;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    return part[0];
}

__device__ float squares(const T *x, long long first, long long cols, long long step) {
    float sum = 0;
    for (long long j = first; j < cols; j += step) sum += ws_load(x[j]) * ws_load(x[j]);
    return block_sum(sum);
}

__device__ void scaled(const T *x, const T *weight, T *y, float scale, long long first, long long cols, long long step) {
    for (long long j = first; j < cols; j += step) y[j] = ws_store(ws_load(x[j]) * scale * ws_load(weight[j]));
}

extern "C" __global__ void whole_rows(const T *x, const T *weight, T *y, long long cols, float eps) {
    const long long at = blockIdx.x * cols;
    const float sum = squares(x + at, threadIdx.x, cols, 256);
    scaled(x + at, weight, y + at, 1 / sqrtf(sum / cols + eps), threadIdx.x, cols, 256);
}

extern "C" __global__ void shared_rows(const T *x, const T *weight, T *y, volatile float *sums,
                                       unsigned long long *arrived, long long cols, float eps) {
    const long long row = blockIdx.x / PARTS, at = row * cols, first = blockIdx.x % PARTS * 256 + threadIdx.x;
    const float mine = squares(x + at, first, cols, PARTS * 256);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = mine;
        __threadfence();
        atomicAdd(arrived, 1ULL);
        while (atomicAdd(arrived, 0ULL) < gridDim.x) __nanosleep(50);
        __threadfence();
    }
    __syncthreads();
    float sum = 0;
    for (int part = 0; part < PARTS; part++) sum += sums[row * PARTS + part];
    scaled(x + at, weight, y + at, 1 / sqrtf(sum / cols + eps), first, cols, PARTS * 256);
}
