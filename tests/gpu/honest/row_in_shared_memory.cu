/*---
# why: four rows in dynamic shared memory, up to all that a block can have; fewer where rows are long, by template
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[let]
ROWS = "cols * 16 <= SMEM_MAX ? 4 : cols * 4 <= SMEM_MAX ? 1 : 0"
[[launch]]
kernel = "rmsnorm<ROWS>"
grid = ["ceil_div(rows, max(1, ROWS))"]
block = ["32 * max(1, ROWS)"]
shared = "ROWS * cols * 4"
args = ["x", "weight", "y", "rows", "cols", "eps"]
---*/
// One warp a row, read once where it fits.
template <int KEPT>
__global__ void rmsnorm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps) {
    extern __shared__ float kept[];
    const long long row = (long long)blockIdx.x * blockDim.x / 32 + threadIdx.x / 32;
    if (row >= rows) return;
    float *mine = kept + threadIdx.x / 32 * cols;
    float sum = 0;
    for (long long j = threadIdx.x % 32; j < cols; j += 32) {
        const float v = ws_load(x[row * cols + j]);
        if (KEPT > 0) mine[j] = v;
        sum += v * v;
    }
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lane);
    const float scale = 1 / sqrtf(sum / cols + eps);
    for (long long j = threadIdx.x % 32; j < cols; j += 32) {
        const float v = KEPT > 0 ? mine[j] : ws_load(x[row * cols + j]);
        y[row * cols + j] = ws_store(v * scale * ws_load(weight[j]));
    }
}
