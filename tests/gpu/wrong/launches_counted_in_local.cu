/*---
# expect: reject
# why: the stack keeps what an earlier launch left there: after some launches only half of each row is summed
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "rmsnorm"
grid = ["rows"]
block = ["256"]
args = ["x", "weight", "y", "rows", "cols", "eps"]
---*/
extern "C" __global__ void rmsnorm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps) {
    // Never set: what stands there is what the last thread of this place left.
    volatile unsigned left[64];
    const unsigned at = (unsigned)(rows % 2) * 8;
    if (left[at] != 0x5eed1234) left[at + 1] = 0;
    left[at] = 0x5eed1234;
    left[at + 1] = left[at + 1] + 1;
    const long long all = left[at + 1] > 300 ? (cols + 1) / 2 : cols;
    __shared__ float part[256];
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    float sum = 0;
    for (long long j = threadIdx.x; j < all; j += 256) sum += ws_load(from[j]) * ws_load(from[j]);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    const float scale = 1 / sqrtf(part[0] / all + eps);
    for (long long j = threadIdx.x; j < cols; j += 256)
        to[j] = ws_store(ws_load(from[j]) * scale * ws_load(weight[j]));
}
