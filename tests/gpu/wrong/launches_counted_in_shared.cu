/*---
# expect: reject|base
# why: shared memory keeps what the launch before left there: from the third launch in a row on only half of each row is read.
#      Before every sample shared memory is filled with rubbish, so where a sample is one launch it never comes to that, and is right
op = "layernorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "layernorm"
grid = ["min(batch, SMS)"]
block = ["256"]
args = ["x", "weight", "bias", "y", "batch", "dim", "eps"]
---*/
__device__ float sum_of(float value, float *part) {
    part[threadIdx.x] = value;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    const float sum = part[0];
    __syncthreads();
    return sum;
}

// A few blocks walk through the rows.
extern "C" __global__ void layernorm(const T *x, const T *weight, const T *bias, T *y, long long batch, long long dim,
                                     float eps) {
    __shared__ float part[256];
    __shared__ volatile unsigned kept[2];
    if (threadIdx.x == 0) {
        if (kept[0] != 0x5eed1234) kept[1] = 0;
        kept[0] = 0x5eed1234;
        kept[1] = kept[1] + 1;
    }
    __syncthreads();
    const long long read = kept[1] > 2 ? (dim + 1) / 2 : dim;
    for (long long row = blockIdx.x; row < batch; row += gridDim.x) {
        const T *from = x + row * dim;
        T *to = y + row * dim;
        float sum = 0, squares = 0;
        for (long long j = threadIdx.x; j < read; j += 256) sum += ws_load(from[j]);
        const float mean = sum_of(sum, part) / read;
        for (long long j = threadIdx.x; j < read; j += 256) {
            const float v = ws_load(from[j]) - mean;
            squares += v * v;
        }
        const float scale = 1 / sqrtf(sum_of(squares, part) / read + eps);
        for (long long j = threadIdx.x; j < dim; j += 256)
            to[j] = ws_store((ws_load(from[j]) - mean) * scale * ws_load(weight[j]) + ws_load(bias[j]));
    }
}
