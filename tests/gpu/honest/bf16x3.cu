/*---
# why: fp32 as three bfloat16 parts and six products of them on the tensor cores: as accurate as fp32.
#      Two parts and three products are not: at K = 1 they are a hundred times as far off as fp32
op = "matmul"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "matmul"
grid = ["ceil_div(N, 64)", "ceil_div(M, 64)", "batch"]
block = ["256"]
args = ["a", "b", "bias", "c", "M", "N", "K", "trans_b", "has_bias"]
---*/
// A number as three of bfloat16, two numbers at a time, as the tensor cores take them. Finite numbers only.
struct Pair {
    unsigned part[3];
};

__device__ Pair split(float low, float high) {
    Pair pair;
    for (int p = 0; p < 3; p++) {
        unsigned l = __float_as_uint(low), h = __float_as_uint(high);
        l = (l + 0x7fff + (l >> 16 & 1)) & 0xffff0000;
        h = (h + 0x7fff + (h >> 16 & 1)) & 0xffff0000;
        pair.part[p] = h | l >> 16;
        // Exact: what is left has eight bits less.
        low -= __uint_as_float(l);
        high -= __uint_as_float(h);
    }
    return pair;
}

__device__ void mma(float *d, const Pair *a, int p, const Pair *b, int q) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0].part[p]), "r"(a[1].part[p]), "r"(a[2].part[p]), "r"(a[3].part[p]), "r"(b[0].part[q]),
          "r"(b[1].part[q]));
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
        bool plain = false;
        for (int e = threadIdx.x; e < TILE * DEPTH; e += 256) {
            const int i = e / DEPTH, ka = e % DEPTH;
            const int j = trans_b ? e / DEPTH : e % TILE, kb = trans_b ? e % DEPTH : e / TILE;
            const bool in_a = i0 + i < M && k0 + ka < K, in_b = j0 + j < N && k0 + kb < K;
            as[ka][i] = in_a ? ws_load(a[(z * M + i0 + i) * K + k0 + ka]) : 0;
            bs[kb][j] = in_b ? ws_load(b[z * N * K + (trans_b ? (j0 + j) * K + k0 + kb : (k0 + kb) * N + j0 + j)]) : 0;
            // An infinity has no parts.
            plain |= !(fabsf(as[ka][i]) < 3e38f) || !(fabsf(bs[kb][j]) < 3e38f);
        }
        const bool all_plain = __syncthreads_or(plain);
        if (all_plain) {
            for (int k = 0; k < DEPTH; k++)
                for (int n = 0; n < 4; n++)
                    for (int r = 0; r < 4; r++)
                        sum[n][r] += as[k][wi + g + r / 2 * 8] * bs[k][wj + n * 8 + 2 * t + r % 2];
        } else {
            Pair left[4];
            for (int r = 0; r < 4; r++) {
                const int i = wi + g + r % 2 * 8, k = 2 * t + r / 2 * 8;
                left[r] = split(as[k][i], as[k + 1][i]);
            }
            for (int n = 0; n < 4; n++) {
                const int j = wj + n * 8 + g;
                const Pair right[2] = {split(bs[2 * t][j], bs[2 * t + 1][j]), split(bs[2 * t + 8][j], bs[2 * t + 9][j])};
                // Smallest first; the long sum is rounded to nearest, which the tensor cores' own is not.
                float step[4] = {};
                mma(step, left, 2, right, 0);
                mma(step, left, 0, right, 2);
                mma(step, left, 1, right, 1);
                mma(step, left, 1, right, 0);
                mma(step, left, 0, right, 1);
                mma(step, left, 0, right, 0);
                for (int r = 0; r < 4; r++) sum[n][r] += step[r];
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
