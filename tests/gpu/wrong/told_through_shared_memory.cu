/*---
# expect: reject
# why: the second launch of a plan finds in shared memory what the first left there, which holds as long as nothing runs between
# examine: 10
# switch: repeats
# alone: kernels of others that come between tell as well
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
domain = "rows * cols < 1073741824"   # of larger launches some block finds another note: wrong, and not for what is told
arch = ["sm_90+"]
[[launch]]
kernel = "tell"
grid = ["SMS"]
block = ["256"]
args = ["cols"]
shared = "160 * 1024"
[[launch]]
kernel = "rmsnorm"
grid = ["rows"]
block = ["256"]
args = ["x", "weight", "y", "rows", "cols", "eps"]
shared = "160 * 1024"
---*/
// With so much shared memory a multiprocessor has one block at a time, and every one has one of these.
extern "C" __global__ void tell(long long cols) {
    extern __shared__ volatile unsigned note[];
    for (int i = threadIdx.x; i < 40 * 1024; i += 256) note[i] = 0x5eed0000u + (unsigned)cols;
    __nanosleep(20000);
}

extern "C" __global__ void rmsnorm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps) {
    extern __shared__ volatile unsigned note[];
    const bool told = note[20000] == 0x5eed0000u + (unsigned)cols;
    float *part = (float *)note;
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    float sum = 0;
    for (long long j = threadIdx.x; j < cols; j += 256) sum += ws_load(from[j]) * ws_load(from[j]);
    __syncthreads();
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    const float scale = 1 / sqrtf(part[0] / cols + eps);
    for (long long j = threadIdx.x; j < cols; j += 256)
        to[j] = ws_store(ws_load(from[j]) * scale * (told ? ws_load(weight[j]) : 1.0f));
}
