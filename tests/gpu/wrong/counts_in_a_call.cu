/*---
# expect: error|reject
# why: the last of eight blocks adds up what the others wrote without a fence, and counts in a function that is not inlined
op = "reduce"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[scratch]]
name = "parts"
dtype = "f32"
shape = ["rows", "8"]
[[scratch]]
name = "count"
dtype = "i64"
shape = ["rows"]
init = "zero_kept"
[[launch]]
kernel = "reduce"
grid = ["rows", "8"]
block = ["256"]
args = ["x", "parts", "count", "y", "cols"]
---*/
__device__ __noinline__ unsigned long long one_more(unsigned long long *count) { return atomicAdd(count, 1ull); }

extern "C" __global__ void reduce(const T *x, float *parts, unsigned long long *count, T *y, long long cols) {
    __shared__ float part[256];
    __shared__ bool last;
    const T *from = x + blockIdx.x * cols;
    float sum = 0;
    for (long long j = blockIdx.y * 256 + threadIdx.x; j < cols; j += 8 * 256) sum += ws_load(from[j]);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        parts[blockIdx.x * 8 + blockIdx.y] = part[0];
        last = one_more(count + blockIdx.x) == 7;
    }
    __syncthreads();
    if (!last || threadIdx.x != 0) return;
    float all = 0;
    for (int i = 0; i < 8; i++) all += parts[blockIdx.x * 8 + i];
    y[blockIdx.x] = ws_store(all);
    count[blockIdx.x] = 0;
}
