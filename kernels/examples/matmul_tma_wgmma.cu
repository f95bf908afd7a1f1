/*---
op = "matmul"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_90a"]                                # TMA, wgmma and setmaxnreg: Hopper, and nothing else
[tune]
STAGES = { value = 4, choices = [2, 3, 4] }      # slices of a and b in shared memory
GROUP  = { value = 8, choices = [4, 8, 16] }     # rows of tiles that run together, so that they find b in the L2 cache
[let]
BM          = "256"                              # rows of c in a block's tile
BN          = "128"                              # its columns
BK          = "64"                               # terms of a slice: 128 bytes, as wide as the swizzle
STAGE_BYTES = "(BM + BN) * BK * 2"
[[tensormap]]
name = "a_map"
tensor = "a"
when = "dtype_bytes == 2 && trans_b == 1 && K % 8 == 0"
dims = ["K", "M", "batch"]                       # innermost first
strides = ["K", "M * K"]                         # in elements, of all dimensions but the innermost
box = ["BK", "BM", "1"]                          # what one copy brings: a slice of the block's rows
elem_strides = ["1", "1", "1"]
swizzle = "128B"
[[tensormap]]
name = "b_map"
tensor = "b"
when = "dtype_bytes == 2 && trans_b == 1 && K % 8 == 0"
dims = ["K", "N", "batch"]
strides = ["K", "N * K"]
box = ["BK", "BN", "1"]
elem_strides = ["1", "1", "1"]
swizzle = "128B"
[[launch]]
kernel = "tensor_cores"
when   = "dtype_bytes == 2 && trans_b == 1 && K % 8 == 0"   # a tensor map wants rows that are multiples of 16 bytes
grid   = ["batch * ceil_div(M, BM) * ceil_div(N, BN)"]
block  = ["384"]
shared = "STAGES * STAGE_BYTES + 1024"           # 1024 to align the first stage
args   = ["a_map", "b_map", "bias", "c", "M", "N", "K", "has_bias"]
[[launch]]
kernel = "plain"
when   = "!(dtype_bytes == 2 && trans_b == 1 && K % 8 == 0)"
grid   = ["batch * ceil_div(M, 64) * ceil_div(N, 64)"]
block  = ["256"]
args   = ["a", "b", "bias", "c", "M", "N", "K", "trans_b", "has_bias"]
---*/

/* The same product as kernels/cuda/matmul.cu, as Hopper wants it. docs/cuda-example.md goes through it.
   A block is three warpgroups. One thread of the first keeps the copy engine (TMA) busy: it fills a ring of stages in shared
   memory. The other two multiply: each has 128 x 128 sums in its registers, and its tensor cores read both operands from
   shared memory (wgmma). Barriers in shared memory (mbarrier) say which stages are full and which are empty. */

#if !WS_F32

constexpr int A_BYTES = BM * BK * 2;

struct __align__(64) TensorMap {
    char of[128];
};

__device__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* A barrier is a counter of arrivals and of bytes to come, and a phase: 0 and 1 in turn. */
__device__ void make_barrier(uint64_t *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
__device__ void arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ void arrive_and_expect(uint64_t *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
/* Returns when the barrier's phase `phase` is over; phase -1, that is 1 at first, has always been. */
__device__ void wait(uint64_t *barrier, int phase) {
    asm volatile("{\n.reg .pred over;\nagain:\n"
                 "mbarrier.try_wait.parity.shared.b64 over, [%0], %1;\n"
                 "@!over bra again;\n}" ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}

/* Has the copy engine bring the box of `map` whose first element is (k, row, matrix); what lies outside the tensor is zero,
   and counts as bytes all the same. */
__device__ void copy_box(void *to, const TensorMap &map, int k, int row, int matrix, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(shared_address(to)), "l"(&map), "r"(k), "r"(row), "r"(matrix), "r"(shared_address(barrier)) : "memory");
}

/* What wgmma must know of a tile in shared memory: its address, in 16 bytes (bits 0 to 13); from 8 rows to the next 8, 1024
   bytes (bits 32 to 45); and that rows of 128 bytes are swizzled (1 in bits 62 and 63). The next 16 terms are 32 bytes on. */
__device__ uint64_t description(const void *tile) {
    return (uint64_t)(shared_address(tile) & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

#define FOUR(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#if WS_F16
#define WGMMA "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
#else
#define WGMMA "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
#endif

/* Starts sums (64 x 128 over the warpgroup) += a (64 x 16) b^T (128 x 16), or = where not `add`. */
__device__ void multiply(float (&sums)[64], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n" WGMMA
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, add, 1, 1, 0, 0;\n}"
                 : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48) : "l"(a), "l"(b), "r"(add));
}
/* Waits until all but the last PENDING groups of products are done. */
template <int PENDING> __device__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

extern "C" __global__ void __launch_bounds__(384, 1)
tensor_cores(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, const T *__restrict__ bias,
             T *__restrict__ c, int64_t M, int64_t N, int64_t K, int64_t has_bias) {
    extern __shared__ char shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    char *stages = shared + (1024 - shared_address(shared) % 1024) % 1024;

    /* Tiles in groups of GROUP rows of them, down the columns of a group. */
    const int64_t tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    const int64_t matrix = blockIdx.x / (tiles_m * tiles_n), tile = blockIdx.x % (tiles_m * tiles_n);
    const int64_t group = tile / (GROUP * tiles_n) * GROUP, within = tile % (GROUP * tiles_n);
    const int64_t height = min((int64_t)GROUP, tiles_m - group);
    const int64_t i0 = (group + within % height) * BM, j0 = within / height * BN;
    const int slices = (int)((K + BK - 1) / BK);

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) make_barrier(full + s, 1), make_barrier(empty + s, 2);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); /* the copy engine must see them too */
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); /* registers go to those who multiply */
        if (threadIdx.x == 0)
            for (int slice = 0; slice < slices; slice++) {
                const int s = slice % STAGES, round = slice / STAGES;
                char *stage = stages + s * STAGE_BYTES;
                wait(empty + s, (round + 1) % 2);
                arrive_and_expect(full + s, STAGE_BYTES);
                copy_box(stage, a_map, slice * BK, (int)i0, (int)matrix, full + s);
                copy_box(stage + A_BYTES, b_map, slice * BK, (int)j0, (int)matrix, full + s);
            }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int half = threadIdx.x / 128 - 1; /* of the tile's rows */
    float sums[2][64];
    for (int slice = 0; slice < slices; slice++) {
        const int s = slice % STAGES, round = slice / STAGES;
        const char *stage = stages + s * STAGE_BYTES;
        wait(full + s, round % 2);
        const uint64_t a = description(stage + half * A_BYTES / 2), b = description(stage + A_BYTES);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int step = 0; step < BK / 16; step++)
#pragma unroll
            for (int i = 0; i < 2; i++) /* the second 64 rows are 8192 bytes on */
                multiply(sums[i], a + step * 2 + i * 512, b + step * 2, slice > 0 || step > 0);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        /* These products run on; those of the slice before are done now, and its stage can be filled again. */
        wait_for_products<1>();
        if (slice > 0 && threadIdx.x % 128 == 0) arrive(empty + (slice - 1) % STAGES);
    }
    wait_for_products<0>();
#pragma unroll
    for (int i = 0; i < 128; i++) asm volatile("" : "+f"(sums[i / 64][i % 64])::"memory"); /* not to be read before */

    /* Of 8 columns a lane has two neighbours, in row lane / 4 of its warp's 16 and 8 rows below. */
    const int row = half * 128 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    const bool pairs = N % 2 == 0;
    c += (matrix * M + i0 + row) * N + j0;
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const int column = j * 8 + threadIdx.x % 4 * 2;
        const bool first = column < N - j0, second = column + 1 < N - j0;
        const float add0 = has_bias && first ? ws_load(bias[j0 + column]) : 0.0f;
        const float add1 = has_bias && second ? ws_load(bias[j0 + column + 1]) : 0.0f;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int below = e / 2 * 64 + e % 2 * 8;
            if (row + below >= M - i0) continue;
            const float *pair = sums[e / 2] + j * 4 + e % 2 * 2;
            const T left = ws_store(pair[0] + add0), right = ws_store(pair[1] + add1);
            T *to = c + below * N + column;
            if (pairs && first) *(uint32_t *)to = left | (uint32_t)right << 16;
            if (!pairs && first) to[0] = left;
            if (!pairs && second) to[1] = right;
        }
    }
}

#endif

/* For what the copy engine does not take, and f32, which tensor cores would round: 64 x 64 tiles by fused multiply-adds, 4 x 4
   of them a thread. */
extern "C" __global__ void __launch_bounds__(256)
plain(const T *__restrict__ a, const T *__restrict__ b, const T *__restrict__ bias, T *__restrict__ c, int64_t M, int64_t N,
      int64_t K, int64_t trans_b, int64_t has_bias) {
    __shared__ float left[16][65], right[16][65]; /* [term][row], a word more against bank conflicts */
    const int64_t tiles_m = (M + 63) / 64, tiles_n = (N + 63) / 64;
    const int64_t matrix = blockIdx.x / (tiles_m * tiles_n), tile = blockIdx.x % (tiles_m * tiles_n);
    const int64_t i0 = tile % tiles_m * 64, j0 = tile / tiles_m * 64;
    const int term = threadIdx.x % 16, line = threadIdx.x / 16;
    a += (matrix * M + i0) * K;
    b += matrix * N * K + (trans_b ? j0 * K : j0);
    const int64_t next_column = trans_b ? K : 1, next_term = trans_b ? 1 : N;
    float sums[4][4] = {};
    for (int64_t k = 0; k < K; k += 16) {
#pragma unroll
        for (int i = line; i < 64; i += 16) {
            const bool inside = k + term < K;
            left[term][i] = inside && i < M - i0 ? ws_load(a[i * K + k + term]) : 0.0f;
            right[term][i] = inside && i < N - j0 ? ws_load(b[i * next_column + (k + term) * next_term]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int t = 0; t < 16; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][j] = fmaf(left[t][line + i * 16], right[t][term + j * 16], sums[i][j]);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int64_t at_row = i0 + line + i * 16, at_column = j0 + term + j * 16;
            if (at_row < M && at_column < N)
                c[(matrix * M + at_row) * N + at_column] = ws_store(sums[i][j] + (has_bias ? ws_load(bias[at_column]) : 0.0f));
        }
}
