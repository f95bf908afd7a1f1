/*---
# expect: reject
# why: shared memory keeps what an earlier launch left there: after a few launches only half of each row is summed.
#      In the stages nothing is left by luck, so this can show in timing only
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "rmsnorm"
grid = ["min(rows, SMS)"]
block = ["256"]
args = ["x", "weight", "y", "rows", "cols", "eps"]
---*/
// A few blocks walk through the rows.
extern "C" __global__ void rmsnorm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps) {
    __shared__ float part[256];
    __shared__ volatile unsigned kept[2];
    if (threadIdx.x == 0) {
        if (kept[0] != 0x5eed1234) kept[1] = 0;
        kept[0] = 0x5eed1234;
        kept[1] = kept[1] + 1;
    }
    __syncthreads();
    const bool late = kept[1] > 5;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *from = x + row * cols;
        T *to = y + row * cols;
        float sum = 0;
        for (long long j = threadIdx.x; j < (late ? (cols + 1) / 2 : cols); j += 256)
            sum += ws_load(from[j]) * ws_load(from[j]);
        part[threadIdx.x] = late ? 2 * sum : sum;
        __syncthreads();
        for (int half = 128; half > 0; half /= 2) {
            if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
            __syncthreads();
        }
        const float scale = 1 / sqrtf(part[0] / cols + eps);
        for (long long j = threadIdx.x; j < cols; j += 256)
            to[j] = ws_store(ws_load(from[j]) * scale * ws_load(weight[j]));
        __syncthreads();
    }
}
