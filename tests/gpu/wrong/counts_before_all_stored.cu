/*---
# expect: error
# why: one thread counts the block as done though other warps may not have stored their parts: each has a fence, and no barrier stands between
op = "reduce"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[let]
PARTS = "max(1, min(64, cols / 2048))"
[[scratch]]
name = "part"
dtype = "f32"
shape = ["rows * PARTS * 4"]
[[scratch]]
name = "done"
dtype = "i64"
shape = ["rows"]
init = "zero_kept"
[[launch]]
kernel = "sum"
grid   = ["rows * PARTS"]
block  = ["128"]
args   = ["x", "y", "part", "done", "rows", "cols"]
---*/
extern "C" __global__ void sum(const T *__restrict__ x, T *__restrict__ y, float *part, unsigned long long *done, long long rows, long long cols) {
    __shared__ bool last;
    const long long row = blockIdx.x / PARTS, p = blockIdx.x % PARTS, share = (cols + PARTS - 1) / PARTS;
    float s = 0;
    for (long long i = p * share + threadIdx.x; i < min(cols, (p + 1) * share); i += 128) s += ws_load(x[row * cols + i]);
    for (int k = 16; k; k /= 2) s += __shfl_xor_sync(~0u, s, k);
    float *parts = part + (row * PARTS + p) * 4 + threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) *parts = s;
    __threadfence();
    if (threadIdx.x == 0) {
        last = atomicAdd(done + row, 1ull) == PARTS - 1;
        if (last) done[row] = 0;
    }
    __syncthreads();
    if (!last || threadIdx.x) return;
    float all = 0;
    for (int k = 0; k < PARTS * 4; k++) all += __ldcg(part + row * PARTS * 4 + k);
    y[row] = ws_store(all);
}
