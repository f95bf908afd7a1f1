/*---
# expect: reject
# why: sums under an earlier maximum are added to those under a later one as they are
op = "softmax"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = ["256"]
args = ["x", "y", "rows", "cols"]
---*/
// One block a row: a running maximum and sum in every thread, joined by one of them.
extern "C" __global__ void softmax(const T *x, T *y, long long rows, long long cols) {
    __shared__ float tops[256], sums[256];
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    float top = -INFINITY, sum = 0;
    for (long long j = threadIdx.x; j < cols; j += 256) {
        const float v = ws_load(from[j]);
        // What was summed so far belongs to the maximum before.
        if (!(v <= top)) top = v;
        sum += top == -INFINITY ? 0 : expf(v - top);
    }
    tops[threadIdx.x] = top, sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < 256; i++) top = fmaxf(top, tops[i]);
        sum = 0;
        for (int i = 0; i < 256; i++) sum += tops[i] == -INFINITY ? 0 : sums[i] * expf(tops[i] - top);
        tops[0] = top, sums[0] = sum;
    }
    __syncthreads();
    for (long long j = threadIdx.x; j < cols; j += 256) to[j] = ws_store(expf(ws_load(from[j]) - tops[0]) / sums[0]);
}
