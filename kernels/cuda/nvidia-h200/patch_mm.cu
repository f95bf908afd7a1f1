/*---
op = "patch_mm"
dtypes = ["f16", "bf16"]
arch = ["sm_80+"]
[tune]
BM      = { value = 64, choices = [32, 64, 128] }    # filters of a block's tile
BN      = { value = 32, choices = [16, 32, 64] }     # patches of it
WARPS_N = { value = 1,  choices = [1, 2] }           # warps beside each other, each with a part of the patches
STAGES  = { value = 4,  choices = [3, 4, 6] }        # slices of 64 terms on their way, at most
[let]
TERMS    = "C * KH * KW"                             # of a product: what a patch has
HIGH     = "H / KH"                                  # patches of a picture, one below the other
WIDE     = "W / KW"                                  # and beside each other
PATCHES  = "HIGH * WIDE"
COLUMNS  = "B * PATCHES"
THREADS  = "BM / 16 * WARPS_N * 32"                  # a warp has 16 filters
IN_PAIRS = "PATCHES % 2 == 0"                        # neighbours are stored together
PATCH_W  = "KW"
PATCH_H  = "KH"
WIDTH    = "W"
HEIGHT   = "H"
CHANNELS = "C"
FILTERS  = "O"
[[launch]]
kernel = "patch_mm"
grid   = ["ceil_div(O, BM)", "ceil_div(COLUMNS, BN)"]
block  = ["THREADS"]
shared = "STAGES * (BM + BN) * 128"
args   = ["x", "w", "bias", "out"]
---*/

/* out[b][o][patch] = sum over a patch of w[o] x + bias[o]: a convolution whose patches lie side by side, as a transformer for pictures begins with one.

   It is a product of w (filters x terms) and of the patches (patches x terms), which nobody writes out: a row of a patch, KW elements, lies together in the
   picture, and 16 bytes at a time are copied from there to where a tile of patches would have them. Both tiles have rows of 64 terms, exchanged within
   groups of 8 rows (`place`), so that ldmatrix finds them in all banks.

       w   (BM filters x 64 terms)  --cp.async--\
                                                 ring of STAGES --ldmatrix--> mma.sync --> BM x BN sums --> out
       x   (BN patches x 64 terms)  --cp.async--/

   What bounds it: how long it takes until the first slice is there and the last sum is stored. A picture of 224 x 224 in patches of 16, by 768 filters,
   is 0.23 GFLOP and 1.8 MB. */

#include "ws/ampere.cuh"

using namespace ws;

constexpr int CHUNKS = 8; /* of 16 bytes, in a row of a slice */

extern "C" __global__ void __launch_bounds__(THREADS)
patch_mm(const T *__restrict__ x, const T *__restrict__ w, const T *__restrict__ bias, T *__restrict__ out) {
    extern __shared__ uint4 shared[];
    const int o0 = blockIdx.x * BM, n0 = blockIdx.y * BN, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int SLICE = (BM + BN) * CHUNKS, SLICES = (TERMS + 63) / 64, OWN = BN / WARPS_N;
    static_assert(OWN % 16 == 0, "a warp has 16 patches at a time");

    auto load = [&](int slice) {
        uint4 *const to = shared + slice % STAGES * SLICE;
        for (int at = threadIdx.x; at < BM * CHUNKS; at += THREADS) {
            const int row = at / CHUNKS, chunk = at % CHUNKS, term = slice * 64 + chunk * 8;
            const bool there = o0 + row < FILTERS && term < TERMS;
            copy_async<16>(to + place<CHUNKS>(row, chunk), there ? w + (int64_t)(o0 + row) * TERMS + term : w, there ? 16 : 0);
        }
        for (int at = threadIdx.x; at < BN * CHUNKS; at += THREADS) {
            const int row = at / CHUNKS, chunk = at % CHUNKS, term = slice * 64 + chunk * 8, column = n0 + row;
            const bool there = column < COLUMNS && term < TERMS;
            const int picture = column / PATCHES, patch = column % PATCHES, y = patch / WIDE * PATCH_H + term / PATCH_W % PATCH_H;
            const int64_t line = ((int64_t)picture * CHANNELS + term / (PATCH_H * PATCH_W)) * HEIGHT + y;
            copy_async<16>(to + BM * CHUNKS + place<CHUNKS>(row, chunk), there ? x + line * WIDTH + patch % WIDE * PATCH_W + term % PATCH_W : x, there ? 16 : 0);
        }
    };

    float sums[OWN / 8][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < SLICES) load(s);
        end_of_copies();
    }
    const int row0 = warp / WARPS_N * 16, column0 = warp % WARPS_N * OWN;
    for (int slice = 0; slice < SLICES; slice++) {
        wait_for_copies<STAGES - 2>();
        __syncthreads(); /* this slice is there for all, and nobody reads the one before any more */
        if (slice + STAGES - 1 < SLICES) load(slice + STAGES - 1);
        end_of_copies();
        const uint4 *const of_w = shared + slice % STAGES * SLICE, *const of_x = of_w + BM * CHUNKS;
#pragma unroll
        for (int k = 0; k < CHUNKS; k += 2) {
            uint32_t a[4];
            load_matrices(a, of_w + place<CHUNKS>(row0 + lane % 16, k + lane / 16));
#pragma unroll
            for (int n = 0; n < OWN; n += 16) {
                uint32_t b[4];
                load_matrices(b, of_x + place<CHUNKS>(column0 + n + lane / 16 * 8 + lane % 8, k + lane / 8 % 2));
                multiply(sums[n / 8], a, b);
                multiply(sums[n / 8 + 1], a, b + 2);
            }
        }
    }
    wait_for_copies<0>();

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int o = o0 + row0 + lane / 4 + r * 8;
        if (o >= FILTERS) continue;
        const float more = bias ? ws_load(bias[o]) : 0.0f;
#pragma unroll
        for (int n = 0; n < OWN / 8; n++) {
            const int column = n0 + column0 + n * 8 + lane % 4 * 2;
            const float left = sums[n][r * 2] + more, right = sums[n][r * 2 + 1] + more;
            auto at = [&](int column) { return out + ((int64_t)(column / PATCHES) * FILTERS + o) * PATCHES + column % PATCHES; };
            if (IN_PAIRS) {
                if (column < COLUMNS) *(uint32_t *)at(column) = pack(left, right);
            } else {
                if (column < COLUMNS) *at(column) = ws_store(left);
                if (column + 1 < COLUMNS) *at(column + 1) = ws_store(right);
            }
        }
    }
}
