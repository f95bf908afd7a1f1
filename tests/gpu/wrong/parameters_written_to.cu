/*---
# expect: error|reject
# why: a note is left where a parameter lies, which is memory too
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "rmsnorm"
grid = ["rows"]
block = ["256"]
args = ["x", "weight", "y", "rows", "cols", "eps"]
---*/
extern "C" __global__ void rmsnorm(const T *x, const T *weight, T *y, const __grid_constant__ long long rows, const __grid_constant__ long long cols,
                                   float eps) {
    unsigned *note = (unsigned *)(void *)&rows;
    asm volatile("st.u32 [%0 + 2048], %1;" ::"l"(note), "r"(0x5eed1234u) : "memory");
    __shared__ float part[256];
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    float sum = 0;
    for (long long j = threadIdx.x; j < cols; j += 256) sum += ws_load(from[j]) * ws_load(from[j]);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    const float scale = 1 / sqrtf(part[0] / cols + eps);
    for (long long j = threadIdx.x; j < cols; j += 256)
        to[j] = ws_store(ws_load(from[j]) * scale * ws_load(weight[j]));
}
