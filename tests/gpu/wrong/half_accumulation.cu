/*---
# expect: reject
# why: sixteen products at a time are added in single precision, the rest in the storage type,
#      as tensor cores do where the accumulator is half precision
op = "matmul"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, 64)", "ceil_div(M, 64)", "batch"]
block = ["256"]
args = ["a", "b", "bias", "c", "M", "N", "K", "trans_b", "has_bias"]
---*/
constexpr int TILE = 64, DEPTH = 16, EACH = 4;

// A block makes 64 x 64 elements, a thread 4 x 4 of them.
extern "C" __global__ void matmul(const T *a, const T *b, const T *bias, T *c, long long M, long long N, long long K,
                                  long long trans_b, long long has_bias) {
    __shared__ float as[DEPTH][TILE], bs[DEPTH][TILE];
    const long long z = blockIdx.z, i0 = (long long)blockIdx.y * TILE, j0 = (long long)blockIdx.x * TILE;
    const int ti = threadIdx.x / 16, tj = threadIdx.x % 16;
    float sum[EACH][EACH] = {};
    for (long long k0 = 0; k0 < K; k0 += DEPTH) {
        for (int e = threadIdx.x; e < TILE * DEPTH; e += 256) {
            const int i = e / DEPTH, ka = e % DEPTH;
            const int j = trans_b ? e / DEPTH : e % TILE, kb = trans_b ? e % DEPTH : e / TILE;
            const bool in_a = i0 + i < M && k0 + ka < K, in_b = j0 + j < N && k0 + kb < K;
            as[ka][i] = in_a ? ws_load(a[(z * M + i0 + i) * K + k0 + ka]) : 0;
            bs[kb][j] = in_b ? ws_load(b[z * N * K + (trans_b ? (j0 + j) * K + k0 + kb : (k0 + kb) * N + j0 + j)]) : 0;
        }
        __syncthreads();
        for (int i = 0; i < EACH; i++)
            for (int j = 0; j < EACH; j++) {
                float step = 0;
                for (int k = 0; k < DEPTH; k++) step += as[k][ti + 16 * i] * bs[k][tj + 16 * j];
                sum[i][j] = ws_load(ws_store(sum[i][j] + step));
            }
        __syncthreads();
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            const long long row = i0 + ti + 16 * i, column = j0 + tj + 16 * j;
            if (row >= M || column >= N) continue;
            const float add = has_bias ? ws_load(bias[column]) : 0;
            c[(z * M + row) * N + column] = ws_store(sum[i][j] + add);
        }
}
