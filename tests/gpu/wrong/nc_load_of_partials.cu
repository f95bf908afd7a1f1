/*---
# expect: error
# why: reads what other blocks wrote in this launch by ld.global.nc, which may be stale
op = "reduce"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[let]
PARTS = "max(1, min(64, cols / 2048))"
[[scratch]]
name = "part"
dtype = "f32"
shape = ["rows * PARTS"]
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
    __shared__ float of_warp[4];
    __shared__ bool last;
    const long long row = blockIdx.x / PARTS, p = blockIdx.x % PARTS, share = (cols + PARTS - 1) / PARTS;
    float s = 0;
    for (long long i = p * share + threadIdx.x; i < min(cols, (p + 1) * share); i += 128) s += ws_load(x[row * cols + i]);
    for (int k = 16; k; k /= 2) s += __shfl_xor_sync(~0u, s, k);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x == 0) {
        part[row * PARTS + p] = of_warp[0] + of_warp[1] + of_warp[2] + of_warp[3];
        __threadfence();
        last = atomicAdd(done + row, 1ull) == PARTS - 1;
        if (last) done[row] = 0;
    }
    __syncthreads();
    if (!last || threadIdx.x) return;
    float all = 0;
    for (int k = 0; k < PARTS; k++) all += __ldg(part + row * PARTS + k);
    y[row] = ws_store(all);
}
