/*---
# why: honest, and slow enough that whatever is tried against it is faster
op = "softmax"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = ["256"]
args = ["x", "y", "rows", "cols"]
---*/
// One block a row: its maximum, the sum of its exponentials, then the row again, divided by that.
extern "C" __global__ void softmax(const T *x, T *y, long long rows, long long cols) {
    __shared__ float part[256];
    __nanosleep(20000);
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    float largest = 0;
    {
        largest = __int_as_float(0xff800000);
        for (long long j = threadIdx.x; j < cols; j += 256) {
            const float score = ws_load(from[j]);
            largest = score == score ? fmaxf(largest, score) : score;
            if (score != score) break;
        }
        part[threadIdx.x] = largest;
        __syncthreads();
        for (int half = 128; half > 0; half /= 2) {
            if (threadIdx.x < half) {
                const float a = part[threadIdx.x], b = part[threadIdx.x + half];
                part[threadIdx.x] = a != a ? a : b != b ? b : fmaxf(a, b);
            }
            __syncthreads();
        }
        largest = part[0];
        __syncthreads();
    }
    float sum = 0;
    for (long long j = threadIdx.x; j < cols; j += 256) sum += expf(ws_load(from[j]) - largest);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    for (long long j = threadIdx.x; j < cols; j += 256) to[j] = ws_store(expf(ws_load(from[j]) - largest) / part[0]);
}
