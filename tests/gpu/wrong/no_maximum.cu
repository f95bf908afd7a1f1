/*---
# expect: reject
# why: exp without subtracting the maximum overflows where scores are large
op = "softmax"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = ["256"]
args = ["x", "y", "rows", "cols"]
---*/
// One block a row: the sum of its exponentials, then the row again, divided by it.
extern "C" __global__ void softmax(const T *x, T *y, long long rows, long long cols) {
    __shared__ float part[256];
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    float sum = 0;
    for (long long j = threadIdx.x; j < cols; j += 256) sum += expf(ws_load(from[j]));
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    for (long long j = threadIdx.x; j < cols; j += 256) to[j] = ws_store(expf(ws_load(from[j])) / part[0]);
}
