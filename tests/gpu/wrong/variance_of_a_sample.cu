/*---
# expect: reject
# why: squared deviations are divided by one less than their number
op = "layernorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "layernorm"
grid = ["batch"]
block = ["256"]
args = ["x", "weight", "bias", "y", "batch", "dim", "eps"]
---*/
// The sum over the block, in all its threads.
__device__ float sum_over_block(float value, float *part) {
    part[threadIdx.x] = value;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    return part[0];
}

// One block a row: its mean, its variance, then the row again, scaled.
extern "C" __global__ void layernorm(const T *x, const T *weight, const T *bias, T *y, long long batch, long long dim,
                                     float eps) {
    __shared__ float first[256], second[256];
    const T *from = x + blockIdx.x * dim;
    T *to = y + blockIdx.x * dim;
    float sum = 0, squares = 0;
    for (long long j = threadIdx.x; j < dim; j += 256) sum += ws_load(from[j]);
    const float mean = sum_over_block(sum, first) / dim;
    for (long long j = threadIdx.x; j < dim; j += 256) {
        const float deviation = ws_load(from[j]) - mean;
        squares += deviation * deviation;
    }
    const float scale = 1 / sqrtf(sum_over_block(squares, second) / (dim - 1) + eps);
    for (long long j = threadIdx.x; j < dim; j += 256)
        to[j] = ws_store((ws_load(from[j]) - mean) * scale * ws_load(weight[j]) + ws_load(bias[j]));
}
