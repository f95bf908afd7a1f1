/*---
op = "p4_matrix_vector_multiplication"
dtypes = ["f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 256, choices = [128, 256, 512] }
ROWS    = { value = 4,   choices = [2, 4, 8] }       # rows of a block: what is read of B serves them all
PARTS   = { value = 8,   choices = [4, 8, 16, 32] }  # blocks that share a row
[let]
M = "2048"
K = "1048576"
PART = "K / PARTS"
[[scratch]]
name = "parts"
shape = ["PARTS", "M"]
dtype = "f32"
init = "poison"
[[launch]]
kernel = "products"
grid   = ["PARTS", "M / ROWS"]
block  = ["THREADS"]
args   = ["A", "B", "parts"]
[[launch]]
kernel = "totals"
grid   = ["ceil_div(M, 256)"]
block  = ["256"]
args   = ["parts", "out"]
---*/

/* Bound by the memory that A is in. B, 4 MB, stays in the L2 cache; a block reads it once for ROWS rows. */
extern "C" __global__ void __launch_bounds__(THREADS) products(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ parts) {
    const int64_t row = (int64_t)blockIdx.y * ROWS, begin = (int64_t)blockIdx.x * PART;
    const float4 *const b = (const float4 *)(B + begin);
    float4 sum[ROWS] = {};
#pragma unroll 4
    for (int i = threadIdx.x; i < PART / 4; i += THREADS) {
        const float4 v = __ldg(b + i);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 a = __ldcs((const float4 *)(A + (row + r) * K + begin) + i);
            sum[r].x = fmaf(a.x, v.x, sum[r].x), sum[r].y = fmaf(a.y, v.y, sum[r].y);
            sum[r].z = fmaf(a.z, v.z, sum[r].z), sum[r].w = fmaf(a.w, v.w, sum[r].w);
        }
    }
    __shared__ float of_warp[ROWS][THREADS / 32];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float s = (sum[r].x + sum[r].y) + (sum[r].z + sum[r].w);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(0xffffffff, s, step);
        if (threadIdx.x % 32 == 0) of_warp[r][threadIdx.x / 32] = s;
    }
    __syncthreads();
    if (threadIdx.x < ROWS) {
        float s = 0;
        for (int w = 0; w < THREADS / 32; w++) s += of_warp[threadIdx.x][w];
        parts[(int64_t)blockIdx.x * M + row + threadIdx.x] = s;
    }
}

extern "C" __global__ void totals(const float *__restrict__ parts, float *__restrict__ out) {
    const int row = blockIdx.x * 256 + threadIdx.x;
    if (row >= M) return;
    float s = 0;
    for (int p = 0; p < PARTS; p++) s += parts[(int64_t)p * M + row];
    out[row] = s;
}
