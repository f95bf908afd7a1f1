/*---
op = "matmul"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_90a"]                                # TMA and wgmma: Hopper, and nothing else
specialize = ["trans_b"]                         # the code reads WS_TRANS_B
[tune]
STAGES = { value = 4, choices = [2, 3, 4] }      # slices of a and b in shared memory
GROUP  = { value = 16, choices = [4, 8, 16] }    # rows of tiles that run together, so that they find b in the L2 cache
[let]
BM          = "128"                              # rows of c in a block's tile
BN          = "256"                              # its columns
BK          = "64"                               # terms of a slice: 128 bytes, as wide as the swizzle
STAGE_BYTES = "(BM + BN) * BK * 2"
TILES       = "batch * ceil_div(M, BM) * ceil_div(N, BN)"
FAST        = "dtype_bytes == 2 && K % 8 == 0 && N % 8 == 0"     # a tensor map wants rows that are multiples of 16 bytes
[[tensormap]]
name = "a_map"
tensor = "a"
dims = ["K", "M", "batch"]                       # innermost first
strides = ["K", "M * K"]                         # in elements, of all dimensions but the innermost
box = ["BK", "BM", "1"]                          # what one copy brings: a slice of the block's rows
swizzle = "128B"
[[tensormap]]
name = "b_map"
tensor = "b"
when = "trans_b == 1"
dims = ["K", "N", "batch"]
strides = ["K", "N * K"]
box = ["BK", "BN", "1"]
swizzle = "128B"
[[tensormap]]
name = "b_map"                                   # of b as it is in a @ b: a quarter of a slice
tensor = "b"
dims = ["N", "K", "batch"]
strides = ["N", "K * N"]
box = ["64", "BK", "1"]
swizzle = "128B"
[[tensormap]]
name = "c_map"
tensor = "c"
dims = ["N", "M", "batch"]
strides = ["N", "M * N"]
box = ["64", "16", "1"]                          # what a warp stores at once
swizzle = "128B"
[[launch]]
kernel = "tensor_cores"
when   = "FAST"
grid   = ["min(TILES, SMS)"]                     # a block for each multiprocessor; each works through tiles
block  = ["288"]
shared = "STAGES * STAGE_BYTES + 8 * 4096 + 1024"     # two boxes for each warp; 1024 to align the first stage
args   = ["a_map", "b_map", "c_map", "bias", "batch", "M", "N", "K", "has_bias"]
[[launch]]
kernel = "plain"
when   = "!FAST"
grid   = ["batch * ceil_div(M, 64) * ceil_div(N, 64)"]
block  = ["256"]
args   = ["a", "b", "bias", "c", "M", "N", "K", "trans_b", "has_bias"]
---*/

/* The same product as kernels/cuda/matmul.cu, as Hopper wants it. docs/cuda-example.md goes through it.

       a, b --copy engine (TMA)--> ring of STAGES stages --tensor cores (wgmma)--> sums --> boxes --TMA--> c
            one thread asks                                eight warps multiply       the same warps

   A block is nine warps. One thread of the last keeps the copy engine busy: it fills a ring of stages in shared memory, also
   while the others store. Eight warps, two warpgroups, multiply: each group has 64 x 256 sums in its registers, 128 a thread,
   and its tensor cores read both operands from shared memory. Barriers in shared memory (mbarrier) say which stages are full
   and which are empty. */

#if FAST

constexpr int A_BYTES = BM * BK * 2;
constexpr int MULTIPLIERS = 256; /* threads that multiply */

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

/* Has the copy engine bring the box of `map` whose first element is (x, y, matrix); what lies outside the tensor is zero,
   and counts as bytes all the same. */
__device__ void copy_box(void *to, const TensorMap &map, int x, int y, int matrix, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(matrix), "r"(shared_address(barrier)) : "memory");
}
/* And back; what lies outside is left out. */
__device__ void store_box(const void *from, const TensorMap &map, int x, int y, int matrix) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];\n"
                 "cp.async.bulk.commit_group;" ::"l"(&map), "r"(x), "r"(y), "r"(matrix), "r"(shared_address(from)) : "memory");
}
/* Waits until all but the last PENDING copies that this thread asked for have read what they store. */
template <int PENDING> __device__ void wait_for_stores() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

/* What wgmma must know of a tile in shared memory: its address, in 16 bytes (bits 0 to 13); two distances, in 16 bytes too (bits
   16 to 29 and 32 to 45); and that rows of 128 bytes are swizzled (1 in bits 62 and 63). From 8 rows to the next 8 are 1024
   bytes. The other distance matters where columns are contiguous: from 64 of them to the next 64 are 8192 bytes. */
__device__ uint64_t description(const void *tile) {
    return (uint64_t)(shared_address(tile) & 0x3ffff) >> 4 | 512ull << 16 | 64ull << 32 | 1ull << 62;
}

#define FOUR(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define SIXTY_FOUR(i) SIXTEEN(i), SIXTEEN(i + 16), SIXTEEN(i + 32), SIXTEEN(i + 48)
#if WS_F16
#define WGMMA "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
#else
#define WGMMA "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
#endif
#if WS_TRANS_B
constexpr int STEP_OF_B = 2; /* 16 terms further are 32 bytes, in units of 16 */
#define TRANSPOSED "0"
#else
constexpr int STEP_OF_B = 128; /* 16 rows of 128 bytes */
#define TRANSPOSED "1"
#endif

/* Starts sums (64 x 256 over the warpgroup) += a (64 x 16) b (16 x 256), or = where not `add`. */
__device__ void multiply(float (&sums)[128], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n" WGMMA
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                 "%128, %129, add, 1, 1, 0, " TRANSPOSED ";\n}"
                 : SIXTY_FOUR(0), SIXTY_FOUR(64) : "l"(a), "l"(b), "r"(add));
}
/* Waits until all but the last PENDING groups of products are done. */
template <int PENDING> __device__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Two neighbours as they are stored. */
__device__ uint32_t pack(float left, float right) { return ws_store(left) | (uint32_t)ws_store(right) << 16; }

/* Lays a warp's sums of 16 rows and 64 columns out in shared memory, swizzled as the copy engine expects: pieces of 16 bytes of a
   row are exchanged by the row's number. One instruction takes 16 x 16 of them: four 8 x 8 matrices, and lane l gives the address
   of row l % 8 of matrix l / 8. */
__device__ void lay_out(char *box, const float *sums) {
    const int lane = threadIdx.x % 32, row = lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2) { /* two of 8 columns */
        const float *s = sums + j * 4;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                     ::"r"(shared_address(box + row * 128 + ((j + lane / 16) ^ row % 8) * 16)), "r"(pack(s[0], s[1])),
                     "r"(pack(s[2], s[3])), "r"(pack(s[4], s[5])), "r"(pack(s[6], s[7])) : "memory");
    }
}

extern "C" __global__ void __launch_bounds__(MULTIPLIERS + 32, 1)
tensor_cores(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
             const __grid_constant__ TensorMap c_map, const T *__restrict__ bias, int64_t batch, int64_t M, int64_t N, int64_t K,
             int64_t has_bias) {
    extern __shared__ char shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    char *stages = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char *boxes = stages + STAGES * STAGE_BYTES + threadIdx.x / 32 * 4096; /* this warp's */

    /* Tiles in groups of GROUP rows of them, down the columns of a group. */
    const int tiles_m = (int)((M + BM - 1) / BM), tiles_n = (int)((N + BN - 1) / BN), tiles = (int)batch * tiles_m * tiles_n;
    const int slices = (int)((K + BK - 1) / BK);
    int matrix, i0, j0; /* where a tile begins */
    auto choose = [&](int index) {
        matrix = index / (tiles_m * tiles_n);
        const int tile = index % (tiles_m * tiles_n);
        const int group = tile / (GROUP * tiles_n) * GROUP, within = tile % (GROUP * tiles_n);
        const int height = min(GROUP, tiles_m - group);
        i0 = (group + within % height) * BM, j0 = within / height * BN;
    };

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) make_barrier(full + s, 1), make_barrier(empty + s, 2);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); /* the copy engine must see them too */
    }
    __syncthreads();

    int s = 0, phase = 0; /* the next stage, and in which round */
    auto next_stage = [&] {
        if (++s == STAGES) s = 0, phase ^= 1;
    };
    if (threadIdx.x >= MULTIPLIERS) {
        if (threadIdx.x == MULTIPLIERS)
            for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
                choose(index);
                for (int slice = 0; slice < slices; slice++, next_stage()) {
                    char *a = stages + s * STAGE_BYTES, *b = a + A_BYTES;
                    wait(empty + s, phase ^ 1);
                    arrive_and_expect(full + s, STAGE_BYTES);
                    copy_box(a, a_map, slice * BK, i0, matrix, full + s);
                    if (WS_TRANS_B) copy_box(b, b_map, slice * BK, j0, matrix, full + s);
                    else
                        for (int j = 0; j < BN / 64; j++) copy_box(b + j * 8192, b_map, j0 + j * 64, slice * BK, matrix, full + s);
                }
            }
        return;
    }
    const int half = threadIdx.x / 128; /* of the tile's rows */
    float sums[128];
    for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
        choose(index);
        int before = 0; /* the stage of the slice before */
        for (int slice = 0; slice < slices; slice++, next_stage()) {
            const char *stage = stages + s * STAGE_BYTES;
            const uint64_t a = description(stage + half * A_BYTES / 2), b = description(stage + A_BYTES);
            wait(full + s, phase);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int step = 0; step < BK / 16; step++) multiply(sums, a + step * 2, b + step * STEP_OF_B, slice > 0 || step > 0);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            /* These products run on; those of the slice before are done now, and its stage can be filled again. */
            wait_for_products<1>();
            if (slice > 0 && threadIdx.x % 128 == 0) arrive(empty + before);
            before = s;
        }
        wait_for_products<0>();
#pragma unroll
        for (int i = 0; i < 128; i++) asm volatile("" : "+f"(sums[i])::"memory"); /* not to be read before */
        if (threadIdx.x % 128 == 0) arrive(empty + before);

        /* Of 8 columns a lane has two neighbours, in row lane / 4 of its warp's 16 and 8 rows below. */
        if (has_bias)
#pragma unroll
            for (int j = 0; j < 32; j++) {
                const int64_t column = j0 + j * 8 + threadIdx.x % 4 * 2;
                const uint32_t two = column < N ? *(const uint32_t *)(bias + column) : 0;
                const float left = ws_load((T)two), right = ws_load((T)(two >> 16));
                sums[j * 4] += left, sums[j * 4 + 1] += right, sums[j * 4 + 2] += left, sums[j * 4 + 3] += right;
            }
#pragma unroll
        for (int j = 0; j < BN / 64; j++) { /* boxes of 64 columns, in turn through two places */
            char *box = boxes + j % 2 * 2048;
            if (threadIdx.x % 32 == 0) wait_for_stores<1>();
            __syncwarp();
            lay_out(box, sums + j * 32);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* the copy engine will read it */
            __syncwarp();
            if (threadIdx.x % 32 == 0) store_box(box, c_map, j0 + j * 64, i0 + threadIdx.x / 32 * 16, matrix);
        }
    }
    if (threadIdx.x % 32 == 0) wait_for_stores<0>(); /* shared memory goes with the block */
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
