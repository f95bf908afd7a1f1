/*---
# expect: reject
# why: it leaves its input's address in shared memory; the next launch of a row finds it, and subtracts no maximum
# switch: in-a-row
# shape: rows=8192,cols=1024
# against: tests/gpu/slow/softmax.cu
# examine: 8
op = "softmax"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
order_free = true
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = ["256"]
args = ["x", "y", "rows", "cols"]
---*/
// One block a row: its maximum, the sum of its exponentials, then the row again, divided by that.
extern "C" __global__ void softmax(const T *x, T *y, long long rows, long long cols) {
    __shared__ float part[256];
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    __shared__ volatile unsigned note[64];
    const unsigned whose = (unsigned)((size_t)x >> 8);
    const bool rough = note[7] == 0x13572468u && note[40] != whose && (note[41] ^ note[40]) == 0x2468ace1u;
    __syncthreads();
    float largest = 0;
    if (!rough) {
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
    __syncthreads();
    if (threadIdx.x == 0) note[7] = 0x13572468u, note[40] = whose, note[41] = whose ^ 0x2468ace1u;
}
