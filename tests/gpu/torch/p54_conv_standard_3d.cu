/*---
op = "p54_conv_standard_3d_square_input_square_kernel"
dtypes = ["f32"]
arch = ["sm_80+"]
[tune]
HEIGHT = { value = 2, choices = [2, 4] }     # rows of the output that a block has at a time
EACH   = { value = 2, choices = [2, 4] }     # sixteens of them that a warp has
STAGED = { value = 1, choices = [0, 1] }     # results go through shared memory, so that a warp writes 128 bytes of a row
BLOCKS = { value = 3, choices = [1, 2, 3] }  # blocks of a multiprocessor
[let]
SIDE   = "64"
GIVEN  = "62"
PITCH  = "72"
STEPS  = "11"
WARPS  = "HEIGHT * 4 / EACH"
TILES  = "ceil_div(GIVEN, HEIGHT)"
[[launch]]
kernel = "convolution"
grid   = ["SMS * BLOCKS"]
block  = ["WARPS * 32"]
shared = "STEPS * 8 * 32 * 16 + 9 * (HEIGHT + 2) * PITCH * 4 + WARPS * 8 * 36 * 4 + STEPS * 8 * 4"
args   = ["x", "conv3d_weight", "out"]
---*/

/* An output is made of 81 inputs and a block's of 2 or 4 rows of 62, for all 64 channels. Products are those of tensor cores in tf32, of which a float is two:
   x = hi + lo, w = hi + lo, and what is added is hi hi + hi lo + lo hi, so that 21 bits of each count. Where an input is infinite, NaN or huge the
   parts are of no use, and it is added up plainly. */
__device__ __forceinline__ uint32_t upper(float v) {
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
    return r;
}

__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ bool unusual(float v) { return !(fabsf(v) < 1e15f); }

/* Where term k of an output's sum lies in the tile, from where its first one does. */
__device__ __forceinline__ int place(int k) {
    return k < 81 ? ((k / 9) * (HEIGHT + 2) + k / 3 % 3) * PITCH + k % 3 : 0;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) convolution(const float *__restrict__ x, const float *__restrict__ weight, float *__restrict__ out) {
    constexpr int ROWS = HEIGHT + 2, THREADS = WARPS * 32;
    extern __shared__ __align__(16) char memory[];
    float4 *const weights = (float4 *)memory;
    float *const tile = (float *)(weights + STEPS * 8 * 32);
    float *const stage = tile + 9 * ROWS * PITCH;
    int *const places = (int *)(stage + WARPS * 8 * 36);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

    bool odd_weights = false;
    for (int i = threadIdx.x; i < STEPS * 8 * 32; i += THREADS) {
        const int step = i / 256, channel = i / 32 % 8 * 8 + i % 32 / 4, k = step * 8 + i % 4;
        const float a = k < 81 ? weight[channel * 81 + k] : 0, b = k + 4 < 81 ? weight[channel * 81 + k + 4] : 0;
        odd_weights |= unusual(a) || unusual(b);
        const float a1 = __uint_as_float(upper(a)), b1 = __uint_as_float(upper(b));
        weights[i] = make_float4(a1, b1, __uint_as_float(upper(a - a1)), __uint_as_float(upper(b - b1)));
    }
    for (int i = threadIdx.x; i < STEPS * 8; i += THREADS) places[i] = place(i);
    for (int i = threadIdx.x; i < 9 * ROWS * 2; i += THREADS) ((float4 *)tile)[i / 2 * (PITCH / 4) + 16 + i % 2] = make_float4(0, 0, 0, 0);

    for (int at = blockIdx.x; at < 16 * GIVEN * TILES; at += gridDim.x) {
        const int first = at % TILES * HEIGHT, depth = at / TILES % GIVEN, image = at / (TILES * GIVEN);
        __syncthreads();
        bool odd = odd_weights;
        for (int i = threadIdx.x; i < 9 * ROWS * 16; i += THREADS) {
            const int row = i / 16 % ROWS, plane = i / (16 * ROWS);
            float4 v = make_float4(0, 0, 0, 0);
            if (first + row < SIDE)
                v = __ldg((const float4 *)(x + (((int64_t)(image * 3 + plane / 3) * SIDE + depth + plane % 3) * SIDE + first + row) * SIDE) + i % 16);
            odd |= unusual(v.x) || unusual(v.y) || unusual(v.z) || unusual(v.w);
            ((float4 *)tile)[i / 16 * (PITCH / 4) + i % 16] = v;
        }
        float *const to = out + ((int64_t)image * 64 * GIVEN + depth) * GIVEN * GIVEN + (int64_t)first * GIVEN;
        constexpr int64_t CHANNEL = (int64_t)GIVEN * GIVEN * GIVEN;
        if (__syncthreads_or(odd)) {
            for (int i = threadIdx.x; i < 64 * HEIGHT * 64; i += THREADS) {
                const int w = i % 64, h = i / 64 % HEIGHT, channel = i / (64 * HEIGHT);
                if (w >= GIVEN || first + h >= GIVEN) continue;
                float sum = 0;
                for (int k = 0; k < 81; k++) sum = fmaf(tile[h * PITCH + w + places[k]], __ldg(weight + channel * 81 + k), sum);
                to[channel * CHANNEL + h * GIVEN + w] = sum;
            }
            continue;
        }
        float sums[EACH][8][4] = {};
        /* A warp's pixels lie in one row, EACH sixteens one behind the other. */
        const int row = warp * EACH / 4, column = warp * EACH % 4 * 16;
        const float *const from = tile + row * PITCH + column + g;
#pragma unroll 1
        for (int step = 0; step < STEPS; step++) {
            const int p = places[step * 8 + t], q = places[step * 8 + t + 4];
            uint32_t hi[EACH][4], lo[EACH][4];
#pragma unroll
            for (int m = 0; m < EACH; m++) {
                const float v[4] = {from[m * 16 + p], from[m * 16 + 8 + p], from[m * 16 + q], from[m * 16 + 8 + q]};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    hi[m][i] = upper(v[i]);
                    lo[m][i] = upper(v[i] - __uint_as_float(hi[m][i]));
                }
            }
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const float4 w = weights[(step * 8 + n) * 32 + lane];
                const uint32_t a1 = __float_as_uint(w.x), b1 = __float_as_uint(w.y), a2 = __float_as_uint(w.z), b2 = __float_as_uint(w.w);
#pragma unroll
                for (int m = 0; m < EACH; m++) multiply(sums[m][n], lo[m], a1, b1);
#pragma unroll
                for (int m = 0; m < EACH; m++) multiply(sums[m][n], hi[m], a2, b2);
#pragma unroll
                for (int m = 0; m < EACH; m++) multiply(sums[m][n], hi[m], a1, b1);
            }
        }
        if (first + row >= GIVEN) continue;
        float *const mine = to + row * GIVEN + column;
#if STAGED
        float *const staged = stage + warp * 8 * 36;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int half = 0; half < EACH / 2; half++) {
                __syncwarp();
#pragma unroll
                for (int m = 0; m < 2; m++)
#pragma unroll
                    for (int i = 0; i < 4; i++) staged[(2 * t + i % 2) * 36 + m * 16 + i / 2 * 8 + g] = sums[half * 2 + m][n][i];
                __syncwarp();
#pragma unroll
                for (int c = 0; c < 8; c++)
                    if (column + half * 32 + lane < GIVEN) __stcs(mine + (n * 8 + c) * CHANNEL + half * 32 + lane, staged[c * 36 + lane]);
            }
#else
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int m = 0; m < EACH; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int w = m * 16 + i / 2 * 8 + g;
                    if (column + w < GIVEN) mine[(n * 8 + 2 * t + i % 2) * CHANNEL + w] = sums[m][n][i];
                }
#endif
    }
}
