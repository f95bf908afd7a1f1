/*---
# expect: reject
# why: the sum over K is split among blocks, which add their parts in any order, and does not say so
op = "matmul"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
SPLITS = { value = 4, choices = [2, 4, 8] }
[[scratch]]
name = "sums"
dtype = "f32"
shape = ["batch", "M", "N"]
init = "zero"
[[launch]]
kernel = "product"
grid = ["SPLITS", "ceil_div(N, 64)", "batch * ceil_div(M, 64)"]
block = ["256"]
args = ["a", "b", "sums", "M", "N", "K", "trans_b"]
[[launch]]
kernel = "finish"
grid = ["ceil_div(batch * M * N, 256)"]
block = ["256"]
args = ["sums", "bias", "c", "batch", "M", "N", "has_bias"]
---*/
constexpr int TILE = 64, DEPTH = 16, EACH = 4;

// The blocks of one tile run side by side, and whoever is first adds first. A block makes its share of the sums of 64 x 64 elements, a thread 4 x 4 of them.
extern "C" __global__ void product(const T *a, const T *b, float *sums, long long M, long long N, long long K,
                                   long long trans_b) {
    __shared__ float as[DEPTH][TILE], bs[DEPTH][TILE];
    const long long rows = (M + TILE - 1) / TILE, z = blockIdx.z / rows, part = blockIdx.x;
    const long long i0 = (long long)(blockIdx.z % rows) * TILE, j0 = (long long)blockIdx.y * TILE;
    const int ti = threadIdx.x / 16, tj = threadIdx.x % 16;
    float sum[EACH][EACH] = {};
    for (long long k0 = part * DEPTH; k0 < K; k0 += SPLITS * DEPTH) {
        for (int e = threadIdx.x; e < TILE * DEPTH; e += 256) {
            const int i = e / DEPTH, ka = e % DEPTH;
            const int j = trans_b ? e / DEPTH : e % TILE, kb = trans_b ? e % DEPTH : e / TILE;
            const bool in_a = i0 + i < M && k0 + ka < K, in_b = j0 + j < N && k0 + kb < K;
            as[ka][i] = in_a ? ws_load(a[(z * M + i0 + i) * K + k0 + ka]) : 0;
            bs[kb][j] = in_b ? ws_load(b[z * N * K + (trans_b ? (j0 + j) * K + k0 + kb : (k0 + kb) * N + j0 + j)]) : 0;
        }
        __syncthreads();
        for (int k = 0; k < DEPTH; k++)
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++) sum[i][j] += as[k][ti + 16 * i] * bs[k][tj + 16 * j];
        __syncthreads();
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            const long long row = i0 + ti + 16 * i, column = j0 + tj + 16 * j;
            if (row >= M || column >= N) continue;
            atomicAdd(sums + (z * M + row) * N + column, sum[i][j]);
        }
}

extern "C" __global__ void finish(const float *sums, const T *bias, T *c, long long batch, long long M, long long N,
                                  long long has_bias) {
    const long long at = blockIdx.x * 256LL + threadIdx.x;
    if (at < batch * M * N) c[at] = ws_store(sums[at] + (has_bias ? ws_load(bias[at % N]) : 0));
}
