/*---
# why: blocks take their rows from a counter, one after the other; nothing is read that another block wrote, so no fence is needed
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[scratch]]
name = "next"
dtype = "i64"
shape = ["1"]
init = "zero"
[[launch]]
kernel = "rmsnorm"
grid = ["min(rows, SMS)"]
block = ["256"]
args = ["x", "weight", "y", "next", "rows", "cols", "eps"]
---*/
extern "C" __global__ void rmsnorm(const T *x, const T *weight, T *y, unsigned long long *next, long long rows,
                                   long long cols, float eps) {
    __shared__ float part[256];
    __shared__ long long mine;
    for (;;) {
        if (threadIdx.x == 0) mine = (long long)atomicAdd(next, 1ull);
        __syncthreads();
        const long long row = mine;
        if (row >= rows) return;
        const T *from = x + row * cols;
        T *to = y + row * cols;
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
        __syncthreads();
    }
}
