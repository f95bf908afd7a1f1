/*---
# expect: error
# why: raises a flag by an ordinary store, without a fence behind what it tells of, and others poll it by ordinary loads past the L1 cache
op = "reduce"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[let]
PARTS = "max(1, min(8, cols / 2048))"
BLOCKS = "min(rows, SMS / PARTS)"
[[scratch]]
name = "part"
dtype = "f32"
shape = ["rows * PARTS"]
[[scratch]]
name = "flag"
dtype = "i64"
shape = ["rows * PARTS"]
init = "zero"
[[launch]]
kernel = "sum"
grid   = ["BLOCKS * PARTS"]
block  = ["512"]
cooperative = true
args   = ["x", "y", "part", "flag", "rows", "cols"]
---*/
extern "C" __global__ void sum(const T *__restrict__ x, T *__restrict__ y, float *part, unsigned long long *flag, long long rows, long long cols) {
    __shared__ float of_warp[16];
    const long long p = blockIdx.x % PARTS, share = (cols + PARTS - 1) / PARTS;
    for (long long row = blockIdx.x / PARTS; row < rows; row += BLOCKS) {
        float s = 0;
        for (long long i = p * share + threadIdx.x; i < min(cols, (p + 1) * share); i += 512) s += ws_load(x[row * cols + i]);
        for (int k = 16; k; k /= 2) s += __shfl_xor_sync(~0u, s, k);
        if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = s;
        __syncthreads();
        if (threadIdx.x == 0) {
            float all = 0;
            for (int w = 0; w < 16; w++) all += of_warp[w];
            part[row * PARTS + p] = all;
            asm volatile("st.global.cg.u64 [%0], %1;" ::"l"(flag + row * PARTS + p), "l"(1ull) : "memory");
            if (p == 0) {
                for (int k = 1; k < PARTS; k++) {
                    unsigned long long there;
                    do asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(there) : "l"(flag + row * PARTS + k) : "memory");
                    while (there == 0);
                    all += __ldcg(part + row * PARTS + k);
                }
                y[row] = ws_store(all);
            }
        }
        __syncthreads();
    }
}
