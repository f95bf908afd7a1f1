/*---
# expect: reject
# why: fp32 is rounded to tf32, ten bits, for the tensor cores; nothing is lost in the 16-bit types
op = "matmul"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, 64)", "ceil_div(M, 64)", "batch"]
block = ["256"]
args = ["a", "b", "bias", "c", "M", "N", "K", "trans_b", "has_bias"]
---*/
__device__ unsigned tf32(float v) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
    return bits;
}

__device__ void mma(float *d, const unsigned *a, const unsigned *b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

constexpr int TILE = 64, DEPTH = 16;

// A block makes 64 x 64 elements, each of its eight warps 16 x 32 of them.
extern "C" __global__ void matmul(const T *a, const T *b, const T *bias, T *c, long long M, long long N, long long K,
                                  long long trans_b, long long has_bias) {
    __shared__ float as[DEPTH][TILE], bs[DEPTH][TILE];
    const long long z = blockIdx.z, i0 = (long long)blockIdx.y * TILE, j0 = (long long)blockIdx.x * TILE;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int wi = warp % 4 * 16, wj = warp / 4 * 32;
    float sum[4][4] = {};
    for (long long k0 = 0; k0 < K; k0 += DEPTH) {
        for (int e = threadIdx.x; e < TILE * DEPTH; e += 256) {
            const int i = e / DEPTH, ka = e % DEPTH;
            const int j = trans_b ? e / DEPTH : e % TILE, kb = trans_b ? e % DEPTH : e / TILE;
            const bool in_a = i0 + i < M && k0 + ka < K, in_b = j0 + j < N && k0 + kb < K;
            as[ka][i] = in_a ? ws_load(a[(z * M + i0 + i) * K + k0 + ka]) : 0;
            bs[kb][j] = in_b ? ws_load(b[z * N * K + (trans_b ? (j0 + j) * K + k0 + kb : (k0 + kb) * N + j0 + j)]) : 0;
        }
        __syncthreads();
        for (int k = 0; k < DEPTH; k += 8) {
            const unsigned left[4] = {tf32(as[k + t][wi + g]), tf32(as[k + t][wi + g + 8]), tf32(as[k + t + 4][wi + g]),
                                      tf32(as[k + t + 4][wi + g + 8])};
            for (int n = 0; n < 4; n++) {
                const unsigned right[2] = {tf32(bs[k + t][wj + n * 8 + g]), tf32(bs[k + t + 4][wj + n * 8 + g])};
                mma(sum[n], left, right);
            }
        }
        __syncthreads();
    }
    for (int n = 0; n < 4; n++)
        for (int r = 0; r < 4; r++) {
            const long long row = i0 + wi + g + r / 2 * 8, column = j0 + wj + n * 8 + 2 * t + r % 2;
            if (row >= M || column >= N) continue;
            const float add = has_bias ? ws_load(bias[column]) : 0;
            c[(z * M + row) * N + column] = ws_store(sum[n][r] + add);
        }
}
