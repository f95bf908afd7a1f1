/*---
# expect: reject
# why: a row of minus infinities only is made zero, where 0/0 is asked for
op = "softmax"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = ["256"]
args = ["x", "y", "rows", "cols"]
---*/
// One block a row: its maximum, the sum of its exponentials, then the row again.
extern "C" __global__ void softmax(const T *x, T *y, long long rows, long long cols) {
    __shared__ float part[256];
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    float top = -INFINITY, sum = 0;
    for (long long j = threadIdx.x; j < cols; j += 256) top = fmaxf(top, ws_load(from[j]));
    part[threadIdx.x] = top;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + half]);
        __syncthreads();
    }
    top = part[0];
    __syncthreads();
    for (long long j = threadIdx.x; j < cols; j += 256) sum += expf(ws_load(from[j]) - top);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    const float share = top == -INFINITY ? 0 : 1 / part[0];
    for (long long j = threadIdx.x; j < cols; j += 256)
        to[j] = ws_store(top == -INFINITY ? 0 : expf(ws_load(from[j]) - top) * share);
}
