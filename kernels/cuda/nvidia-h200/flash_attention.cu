/*---
op = "flash_attention"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_90a"]                                       # TMA, wgmma and setmaxnreg: Hopper, and nothing else
domain = "D <= 256"
[tune]
GROUPS   = { value = 2,   choices = [1, 2, 3, 4] }      # warpgroups that multiply, each with 64 queries
TILE     = { value = 128, choices = [64, 96, 128] }     # keys in a tile
STAGES   = { value = 2,   choices = [2, 3, 4] }         # tiles of keys, and of values, in shared memory
RESIDENT = { value = 1,   choices = [1, 2, 3] }         # blocks on a multiprocessor
READERS  = { value = 8,   choices = [4, 8] }            # decoding: warps of a block
CHUNKS   = { value = 1,   choices = [1, 2] }            # decoding: times 16 keys that a warp works on at once
WARPS    = { value = 4,   choices = [2, 4, 8] }         # the plain path: warps in a block
STRIPS   = { value = 2,   choices = [1, 2] }            # strips of 16 queries that a warp works on
BLOCK_KV = { value = 64,  choices = [32, 64, 128] }     # keys in a tile
BLOCKS   = { value = 1,   choices = [1, 2] }            # blocks that registers must suffice for on a multiprocessor
[let]
HEAD        = "D <= 64 ? 64 : 128"                          # columns of a row in registers and shared memory
QUERIES     = "S_q * (H / H_kv)"                            # of a sequence that share a head of keys
FITS        = "dtype_bytes == 2 && D % 8 == 0 && D <= 128"  # a tensor map wants rows that are multiples of 16 bytes
# 0: plain, 1: copy engine and wgmma, 2: few queries
PATH        = "!FITS ? 0 : S_q <= 16 && QUERIES <= 32 ? 2 : B * H * ceil_div(S_q, 64) * 2 <= SMS && S_kv >= 1024 ? 0 : 1"
ROWS_Q      = "GROUPS * 64"
Q_BYTES     = "ROWS_Q * HEAD * 2"
KV_BYTES    = "TILE * HEAD * 2"
REGISTERS   = "min(248, 65536 / (GROUPS * 128 + 128) / RESIDENT / 8 * 8)"            # a thread has at the start
LOADING     = "24"                                                                 # and then, if it is one of those that load
MULTIPLYING = "min(240, ((GROUPS + 1) * REGISTERS - LOADING) / GROUPS / 8 * 8)"       # or that multiply
UNITS       = "B * H_kv * ceil_div(QUERIES, 8)"             # decoding: of eight queries with all their keys
PARTS       = "PATH != 2 ? 1 : max(1, min(min(UNITS <= 16 ? 8 : 16, ceil_div(S_kv, 256)), SMS * 8 / READERS / UNITS))"   # blocks of a unit
CLUSTERED   = "PARTS > 1 && UNITS <= 16"                    # more clusters of this size do not find a place at once
VEC         = "16 / dtype_bytes"
D_PAD       = "PATH == 0 ? ceil_div(D, 16) * 16 : 16"
BLOCK_Q     = "WARPS * STRIPS * 16"
STRIDE      = "D_PAD + VEC"                                 # from one row to the next in shared memory
SPLITS      = "PATH == 0 && B * H * ceil_div(S_q, BLOCK_Q) * 2 <= SMS && S_kv >= 512 ? (S_q <= 16 ? 16 : 8) : 1"
# Rows of q, of k and of v may be parts of longer ones, as where one product gives all three. HEADS: heads of the longer row, or 0 where
# there is none; FIRST: the first of them that counts. Such rows lie as with bshd.
Q_HEADS     = "0"
Q_FIRST     = "0"
K_HEADS     = "0"
K_FIRST     = "0"
V_HEADS     = "0"
V_FIRST     = "0"
# q, k and v may lie otherwise than o (bshd): 1 where positions come before heads, 2 where heads do, and 0 where they lie as o. There may be several
# heads of k for one of v, where a model has written each for all queries that share it.
Q_LIES      = "0"
K_LIES      = "0"
V_LIES      = "0"
V_SHARE     = "1"
# 2: weights are multiplied in two parts of 16 bits, which is as good as single precision: for a model that has them so. Rounded once they are far
# enough from that to be told.
WEIGHT_PARTS = "1"
# What is added to scores when they are scaled. BIAS = 1: an element of a tensor of the kernel's type, SEEN = 1: a number in its place where a byte is 0,
# HIDDEN: -infinity (0), the lowest of the type (1), or any other. _B, _H, _Q, _K: elements from one sequence, head, query and key to the next.
BIAS   = "0"
BIAS_B = "0"
BIAS_H = "0"
BIAS_Q = "0"
BIAS_K = "1"
SEEN   = "0"
SEEN_B = "0"
SEEN_H = "0"
SEEN_Q = "0"
SEEN_K = "1"
HIDDEN = "0"
BIAS_TENSOR = "0"
SEEN_TENSOR = "0"
# Two neighbouring elements are loaded at once.
BIAS_PAIRS = "BIAS_K == 1 && S_kv % 2 == 0 && BIAS_B % 2 == 0 && BIAS_H % 2 == 0 && BIAS_Q % 2 == 0"
SEEN_PAIRS = "SEEN_K == 1 && S_kv % 2 == 0 && SEEN_B % 2 == 0 && SEEN_H % 2 == 0 && SEEN_Q % 2 == 0"
Q_BSHD      = "Q_LIES ? Q_LIES == 1 : bshd"
K_BSHD      = "K_LIES ? K_LIES == 1 : bshd"
V_BSHD      = "V_LIES ? V_LIES == 1 : bshd"
Q_ROW       = "Q_HEADS ? Q_HEADS : H"                       # heads of a row in memory
K_ROW       = "K_HEADS ? K_HEADS : H_kv"
V_ROW       = "V_HEADS ? V_HEADS : H_kv / V_SHARE"
[[variant]]    # few queries for the plain path: all the time goes into reading keys and values
when = "S_q <= 16 && dtype_bytes == 4 && D > 128"
tune = { WARPS = 2, STRIPS = 1, BLOCK_KV = 32 }
[[variant]]
when = "S_q <= 16 && (dtype_bytes == 4 || D > 128 || D % 8 != 0)"
tune = { WARPS = 2, STRIPS = 1 }
[[variant]]
when = "D > 128 && dtype_bytes == 4"
tune = { STRIPS = 1, BLOCK_KV = 32 }
[[variant]]
when = "D > 128"
tune = { STRIPS = 1 }
[[variant]]
when = "dtype_bytes == 4"
tune = { BLOCK_KV = 32 }
[[variant]]    # decoding with few heads of keys: more bytes on the way for each warp
when = "S_q <= 16 && B * H_kv <= 16"
tune = { CHUNKS = 2 }
[[variant]]    # decoding with many: smaller blocks end less together
when = "S_q <= 16 && B * H_kv >= 3 * SMS"
tune = { READERS = 4 }
[[variant]]    # short sequences: 64 queries a block, so that there are enough blocks
when = "D <= 64 && B * H * ceil_div(S_q, 256) <= SMS"
tune = { GROUPS = 1, RESIDENT = 2 }
[[variant]]
when = "D <= 64 && B * H * ceil_div(S_q, 256) * 2 <= SMS * 3"
tune = { GROUPS = 1, TILE = 64, RESIDENT = 3 }
[[variant]]    # little to multiply for each weight: more warpgroups to hide one another's exponentials
when = "D <= 64"
tune = { GROUPS = 4, TILE = 64, STAGES = 3 }
[[variant]]
when = "B * H * ceil_div(S_q, 128) <= SMS"
tune = { GROUPS = 1, TILE = 64, RESIDENT = 2 }
[[tensormap]]
name = "q_map"
tensor = "q"
dims = ["D", "S_q", "Q_ROW", "B"]
strides = ["Q_BSHD ? Q_ROW * D : D", "Q_BSHD ? D : S_q * D", "S_q * Q_ROW * D"]
box = ["64", "ROWS_Q", "1", "1"]
swizzle = "128B"
[[tensormap]]
name = "k_map"
tensor = "k"
dims = ["D", "S_kv", "K_ROW", "B"]
strides = ["K_BSHD ? K_ROW * D : D", "K_BSHD ? D : S_kv * D", "S_kv * K_ROW * D"]
box = ["64", "TILE", "1", "1"]
swizzle = "128B"
[[tensormap]]
name = "v_map"
tensor = "v"
dims = ["D", "S_kv", "V_ROW", "B"]
strides = ["V_BSHD ? V_ROW * D : D", "V_BSHD ? D : S_kv * D", "S_kv * V_ROW * D"]
box = ["64", "TILE", "1", "1"]
swizzle = "128B"
[[tensormap]]
name = "o_map"
tensor = "o"
dims = ["D", "S_q", "H", "B"]
strides = ["bshd ? H * D : D", "bshd ? D : S_q * D", "S_q * H * D"]
box = ["64", "64", "1", "1"]
swizzle = "128B"
[[scratch]]    # unfinished sums: for each query and part of the keys D columns, the largest score and the sum of weights
name = "partial"
dtype = "f32"
shape = ["PATH == 2 ? (PARTS == 1 || CLUSTERED ? 1 : UNITS * PARTS * 8) : SPLITS > 1 ? B * H * S_q * SPLITS : 1", "PATH == 2 ? HEAD + 2 : D + 2"]
[[scratch]]    # decoding: how many parts are done
name = "done"
dtype = "i64"
shape = ["PATH == 2 ? UNITS : 1"]
init = "zero_kept"
[[launch]]
kernel = "attend"
when   = "PATH == 1"
grid   = ["min(B * H * ceil_div(S_q, ROWS_Q), SMS * RESIDENT)"]
block  = ["GROUPS * 128 + 128"]
shared = "2 * Q_BYTES + 2 * STAGES * KV_BYTES + 1024"
args   = ["q_map", "k_map", "v_map", "o_map", "B", "H", "H_kv", "S_q", "S_kv", "causal", "scale", "BIAS_TENSOR", "SEEN_TENSOR"]
[[launch]]
kernel = "decode"
when   = "PATH == 2"
grid   = ["UNITS * PARTS"]
block  = ["READERS * 32"]
cluster = ["CLUSTERED ? PARTS : 1"]
args   = ["q", "k", "v", "o", "partial", "done", "B", "H", "H_kv", "S_q", "S_kv", "D", "causal", "bshd", "scale", "BIAS_TENSOR", "SEEN_TENSOR"]
[[launch]]
kernel = "plain"
when   = "PATH == 0"
grid   = ["B * H * ceil_div(S_q, BLOCK_Q) * SPLITS"]
block  = ["WARPS * 32"]
shared = "(BLOCK_Q + 2 * BLOCK_KV) * STRIDE * dtype_bytes"
args   = ["q", "k", "v", "o", "partial", "B", "H", "H_kv", "S_q", "S_kv", "D", "causal", "bshd", "scale", "BIAS_TENSOR", "SEEN_TENSOR"]
[[launch]]
kernel = "merge"
when   = "PATH == 0 && SPLITS > 1"
grid   = ["ceil_div(B * H * S_q, 4)"]
block  = ["128"]
args   = ["o", "partial", "B", "H", "S_q", "S_kv", "D", "causal", "bshd"]
---*/

/* o = softmax(q k^T scale) v in one pass over the keys (online softmax: Milakov and Gimelshein 2018; FlashAttention-2 and -3: Dao
   2023, Shah and others 2024). There are three kernels, and PATH says which of them a shape takes.

   `attend`, where there are many queries, is bound by the tensor cores: 2 D multiply-adds for each weight; with D = 64 the
   exponentials, 16 a cycle and multiprocessor, take as long. So the tensor cores should work on one thing while another is weighed.
   A block is one warpgroup that asks the copy engine (TMA) for tiles and GROUPS warpgroups that multiply (wgmma), each for 64
   queries of its own; they fall out of step, and one weighs while another multiplies. A warpgroup itself starts the next tile's
   scores and this tile's output together, so that the tensor cores have both without a gap (of two warpgroups, keys and values 3 to 0):

       copies    K3      K2 V3         K1 V2         K0 V1         V0    next queries ...
       first     |q K3| weigh |q K2, P3 V3| weigh |q K1, P2 V2| weigh |q K0, P1 V1| weigh |P0 V0| output
       second           |q K3| weigh |q K2, P3 V3| weigh |q K1, P2 V2| weigh |q K0, P1 V1| weigh |P0 V0| output

   Tiles come from the last to the first, since causal masks matter at the end only. Scores never leave the registers: rounded to 16
   bits they are the left operand of the second product, whose right one, values as they are stored, wgmma reads crosswise. Blocks
   stay: as many as fit work through the jobs, longest first, there and back (who had the longest of one row of jobs gets the
   shortest of the next), and the next job's queries and keys are on their way while the last one's output is stored.

   `decode`, where up to 16 queries meet many keys, is bound by memory: keys and values are read once, straight into registers, in the
   order in which mma.sync wants its operands. Which column is which matters as little to a product as the order of its terms: so
   each lane loads 16 bytes, and calls them the columns that it needs. Eight queries, of all heads that share the keys, go together.
   READERS warps of a block and PARTS blocks share the keys; what they have is added up in a fixed order, through the memory of a
   cluster where there are few, else by the block that is last.

   `plain` is kernels/cuda/flash_attention.cu: f32, which tensor cores would round; rows that the copy engine does not take; few queries
   of few heads, where the keys must be divided. */

#include "ws/hopper.cuh"

using namespace ws;

#define MINUS_INFINITY __int_as_float(0xff800000)

/* Heads of a row in memory. */
#define WITHIN(longer, own) (longer ? longer : own)
/* Whether positions come before heads. */
#define BSHD(lies) (lies ? lies == 1 : bshd)
/* Values lie as keys do, but for where they begin. */
#define V_AS_K (K_HEADS == V_HEADS && K_LIES == V_LIES && V_SHARE == 1)

/* What is added to the score of a key that is not seen. */
#if HIDDEN == 0
#define WHERE_HIDDEN MINUS_INFINITY
#elif HIDDEN != 1
#define WHERE_HIDDEN ((float)HIDDEN)
#elif WS_F16
#define WHERE_HIDDEN -65504.0f
#else /* what is so low takes every score in, and does not overflow when it is scaled */
#define WHERE_HIDDEN -0x1p100f
#endif
/* Where the element of a query and a key is. */
#define AT(of, b, head, query, key) ((b) * (int64_t)of##_B + (head) * (int64_t)of##_H + (query) * (int64_t)of##_Q + (key) * (int64_t)of##_K)

#if BIAS || SEEN
/* An element of the bias. What masks with the lowest number of a type is as good with one that does not overflow when it is scaled. */
__device__ float bias_of(T stored) {
    const float value = ws_load(stored);
    return value < -0x1p100f && value != MINUS_INFINITY ? -0x1p100f : value;
}
/* What is added to the score of a query and a key. */
__device__ float added_to(int64_t b, int64_t head, int64_t query, int64_t key, const T *bias, const uint8_t *seen) {
    if (SEEN && !seen[AT(SEEN, b, head, query, key)]) return WHERE_HIDDEN;
    return BIAS ? bias_of(bias[AT(BIAS, b, head, query, key)]) : 0.0f;
}
#endif

#if PATH == 1

#if WS_F16
#define TYPES ".f16.f16 "
#else
#define TYPES ".bf16.bf16 "
#endif
#define FOUR(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)

/* Starts sums (64 queries x TILE keys over the warpgroup) += a (64 x 16) b^T (TILE x 16), or = where not `add`; a and b are
   descriptions of shared memory. */
#if TILE == 64
__device__ void multiply_keys(float (&sums)[32], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32" TYPES "{"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, %32, %33, add, 1, 1, 0, 0;\n}"
                 : SIXTEEN(0), SIXTEEN(16) : "l"(a), "l"(b), "r"(add));
}
#endif
#if TILE == 96
__device__ void multiply_keys(float (&sums)[48], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %50, 0;\nwgmma.mma_async.sync.aligned.m64n96k16.f32" TYPES "{"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
                 "}, %48, %49, add, 1, 1, 0, 0;\n}"
                 : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32) : "l"(a), "l"(b), "r"(add));
}
#endif
#if TILE == 128
__device__ void multiply_keys(float (&sums)[64], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32" TYPES "{"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, %64, %65, add, 1, 1, 0, 0;\n}"
                 : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48) : "l"(a), "l"(b), "r"(add));
}
#endif

/* Starts sums (64 x HEAD) += a (64 x 16, in registers) b (16 x HEAD: values as they are stored, a key a row). */
#if HEAD == 64
__device__ void multiply_values(float (&sums)[32], const uint32_t *a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32" TYPES "{"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : SIXTEEN(0), SIXTEEN(16) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#endif
#if HEAD == 128
__device__ void multiply_values(float (&sums)[64], const uint32_t *a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32" TYPES "{"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#endif

#if BIAS || SEEN
/* Two neighbouring elements, of which `left` are in the row, as 16 bits each; together where they may be. */
__device__ uint32_t load_two(const T *from, int left) {
    if (left <= 0) return 0;
    if (BIAS_PAIRS) return *(const uint32_t *)from;
    return from[0] | (left > 1 ? (uint32_t)from[BIAS_K] << 16 : 0);
}
__device__ uint32_t load_two(const uint8_t *from, int left) {
    if (left <= 0) return 0;
    if (SEEN_PAIRS) return __byte_perm(*(const uint16_t *)from, 0, 0x4140);
    return from[0] | (left > 1 ? (uint32_t)from[SEEN_K] << 16 : 0);
}
#endif

/* Not to be read or written before. */
template <int N> __device__ void hold(float (&sums)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

__device__ void copy_box(char *to, const CUtensorMap &map, int column, int row, int head, int b, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
                 ::"r"(shared_address(to)), "l"(&map), "r"(column), "r"(row), "r"(head), "r"(b), "r"(shared_address(barrier)) : "memory");
}
__device__ void store_box(const char *from, const CUtensorMap &map, int column, int row, int head, int b) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
                 ::"l"(&map), "r"(column), "r"(row), "r"(head), "r"(b), "r"(shared_address(from)) : "memory");
}
template <int ROWS> __device__ void copy_rows(char *to, const CUtensorMap &map, int row, int head, int b, uint64_t *barrier) {
    arrive_and_expect(barrier, ROWS * HEAD * 2);
#pragma unroll
    for (int column = 0; column < HEAD; column += 64) copy_box(to + column * ROWS * 2, map, column, row, head, b, barrier);
}
/* A named barrier of the warpgroup. */
__device__ void meet(int name) { asm volatile("bar.sync %0, 128;" ::"r"(name) : "memory"); }

/* Which piece of 16 bytes is where: rows of 128 bytes, swizzled in groups of 8. */
__device__ uint64_t description(const char *tile, int group_bytes) {
    return (uint64_t)(shared_address(tile) & 0x3ffff) >> 4 | (uint64_t)(group_bytes >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

/* Where a stage of a ring stands. */
struct Place {
    int stage = 0, phase = 0;
    __device__ void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

/* What a block works on as its n-th: there and back over the blocks, so that who had the longest gets the shortest. */
__device__ bool job_of(int n, int jobs, int &job) {
    job = n * (int)gridDim.x + (n % 2 ? (int)gridDim.x - 1 - (int)blockIdx.x : (int)blockIdx.x);
    return job < jobs;
}

extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 128, RESIDENT)
attend(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap v_map,
       const __grid_constant__ CUtensorMap o_map, int64_t B, int64_t H, int64_t H_kv, int64_t S_q, int64_t S_kv, int64_t causal, float scale,
       const T *__restrict__ bias, const uint8_t *__restrict__ seen) {
    extern __shared__ char shared[];
    __shared__ uint64_t q_full, q_empty, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
    char *queries = shared + (1024 - shared_address(shared) % 1024) % 1024, *output = queries + Q_BYTES;
    char *keys = output + Q_BYTES, *values = keys + STAGES * KV_BYTES;

    const int heads = (int)(B * H), tiles = (int)((S_q + ROWS_Q - 1) / ROWS_Q), jobs = heads * tiles, H_ = (int)H, per = (int)(H / H_kv);
    const int first_sees = causal ? (int)(1 + S_kv - S_q) : (int)S_kv, more = causal ? 1 : 0; /* query i sees first_sees + i more keys */
    const int all_keys = (int)S_kv;

    if (threadIdx.x == 0) {
        make_barrier(&q_full, 1), make_barrier(&q_empty, GROUPS);
        for (int s = 0; s < STAGES; s++) {
            make_barrier(k_full + s, 1), make_barrier(k_empty + s, GROUPS);
            make_barrier(v_full + s, 1), make_barrier(v_empty + s, GROUPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    ws_next_may_begin();
    ws_wait_for_previous();

    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LOADING));
        if (threadIdx.x == 0) {
            Place k_at, v_at;
            int job;
            for (int n = 0; job_of(n, jobs, job); n++) {
                const int i0 = (tiles - 1 - job / heads) * ROWS_Q, head = job % heads % H_, b = job % heads / H_, kv_head = head / per;
                const int visible = max(0, min(all_keys, first_sees + (i0 + ROWS_Q - 1) * more)), count = (visible + TILE - 1) / TILE;
                wait(&q_empty, (n + 1) % 2);
                copy_rows<ROWS_Q>(queries, q_map, i0, Q_FIRST + head, b, &q_full);
                for (int j = count - 1; j >= -1; j--) {
                    if (j >= 0) {
                        wait(k_empty + k_at.stage, k_at.phase ^ 1);
                        copy_rows<TILE>(keys + k_at.stage * KV_BYTES, k_map, j * TILE, K_FIRST + kv_head, b, k_full + k_at.stage);
                        k_at.next();
                    }
                    if (j + 1 < count) { /* the values of the tile before */
                        wait(v_empty + v_at.stage, v_at.phase ^ 1);
                        copy_rows<TILE>(values + v_at.stage * KV_BYTES, v_map, (j + 1) * TILE, V_FIRST + kv_head / V_SHARE, b, v_full + v_at.stage);
                        v_at.next();
                    }
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MULTIPLYING));
        const int group = __shfl_sync(0xffffffff, (int)threadIdx.x / 128 - 1, 0), lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
        const bool speaks = threadIdx.x % 128 == 0;
        const float log2_scale = BIAS || SEEN ? 1.44269504f : scale * 1.44269504f;
        char *const own_output = output + group * 64 * 128;
        Place k_at, v_at;
        int job;
        for (int n = 0; job_of(n, jobs, job); n++) {
            const int i0 = (tiles - 1 - job / heads) * ROWS_Q, head = job % heads % H_, b = job % heads / H_;
            const int visible = max(0, min(all_keys, first_sees + (i0 + ROWS_Q - 1) * more)), count = (visible + TILE - 1) / TILE;
            const int mine = i0 + group * 64; /* of the warpgroup's first query */
            const int least = min(all_keys, first_sees + mine * more);          /* keys that all its queries see */
            const int most = max(0, min(all_keys, first_sees + (mine + 63) * more)); /* keys that one of them sees */
            const int own_count = (most + TILE - 1) / TILE;
            const int sees[2] = {min(all_keys, first_sees + (mine + row) * more), min(all_keys, first_sees + (mine + row + 8) * more)};

            float scores[TILE / 2], sums[HEAD / 2], shift[2] = {MINUS_INFINITY, MINUS_INFINITY}, total[2] = {0, 0}, correction[2];
            uint32_t weights[TILE / 4], rest[TILE / 4];
#pragma unroll
            for (int i = 0; i < HEAD / 2; i++) sums[i] = 0;

            auto start_scores = [&]() {
                fence_products();
                const char *const at = keys + k_at.stage * KV_BYTES;
                const uint64_t a = description(queries + group * 64 * 128, 16), k = description(at, 16);
#pragma unroll
                for (int d = 0; d < HEAD / 16; d++)
                    multiply_keys(scores, a + d / 4 * (ROWS_Q * 8) + d % 4 * 2, k + d / 4 * (TILE * 8) + d % 4 * 2, d > 0);
                end_of_products();
            };
            auto start_output = [&]() {
#pragma unroll
                for (int i = 0; i < TILE / 4; i++) {
                    asm volatile("" : "+r"(weights[i])::"memory");
                    if (WEIGHT_PARTS == 2) asm volatile("" : "+r"(rest[i])::"memory");
                }
                fence_products();
                const uint64_t v = description(values + v_at.stage * KV_BYTES, TILE * 128);
#pragma unroll
                for (int j = 0; j < TILE / 16; j++) {
                    multiply_values(sums, weights + j * 4, v + j * 128);
                    if (WEIGHT_PARTS == 2) multiply_values(sums, rest + j * 4, v + j * 128);
                }
                end_of_products();
            };
            auto free_keys = [&]() {
                if (speaks) arrive(k_empty + k_at.stage);
                k_at.next();
            };
            auto free_values = [&]() {
                if (speaks) arrive(v_empty + v_at.stage);
                v_at.next();
            };
#if BIAS || SEEN
            uint32_t of_bias[TILE / 4], of_seen[TILE / 4]; /* two neighbouring elements each */
            auto load_added = [&](int j) { /* on the way while scores are multiplied */
#pragma unroll
                for (int i = 0; i < TILE / 4; i++) {
                    const int query = min(mine + row + i % 2 * 8, (int)S_q - 1), key = j * TILE + i / 2 * 8 + lane % 4 * 2;
                    if (BIAS) of_bias[i] = load_two(bias + AT(BIAS, b, head, query, key), all_keys - key);
                    if (SEEN) of_seen[i] = load_two(seen + AT(SEEN, b, head, query, key), all_keys - key);
                }
            };
            auto add = [&]() {
#pragma unroll
                for (int i = 0; i < TILE / 2; i++) {
                    const float added = BIAS ? bias_of((T)(of_bias[i / 2] >> i % 2 * 16)) : 0.0f;
                    const bool hidden = SEEN && !(of_seen[i / 2] >> i % 2 * 16 & 0xffff);
                    scores[i] = fmaf(scores[i], scale, hidden ? WHERE_HIDDEN : added);
                }
            };
#else
            auto load_added = [](int) {};
            auto add = []() {};
#endif
            auto weigh = [&](int j) {
                add();
                if ((j + 1) * TILE > least) {
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const int limit = sees[r] - j * TILE - lane % 4 * 2;
#pragma unroll
                        for (int c = 0; c < TILE / 4; c++)
                            if (c / 2 * 8 + c % 2 >= limit) scores[c / 2 * 4 + r * 2 + c % 2] = MINUS_INFINITY;
                    }
                }
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float highest = scores[r * 2];
#pragma unroll
                    for (int c = 1; c < TILE / 4; c++) highest = fmaxf(highest, scores[c / 2 * 4 + r * 2 + c % 2]);
                    highest = fmaxf(shift[r], __fmul_rn(largest_in_quad(highest), log2_scale));
                    const float used = highest == MINUS_INFINITY ? 0.0f : highest;
                    correction[r] = power_of_two(shift[r] - used);
                    shift[r] = highest;
                    float sum = 0;
#pragma unroll
                    for (int c = 0; c < TILE / 4; c++) {
                        float &score = scores[c / 2 * 4 + r * 2 + c % 2];
                        score = power_of_two(fmaf(score, log2_scale, -used));
                        sum += score;
                    }
                    total[r] = fmaf(total[r], correction[r], sum);
                }
            };
            auto round_weights = [&]() {
#pragma unroll
                for (int i = 0; i < TILE / 4; i++) {
                    if (WEIGHT_PARTS == 2) pack_parts(scores[i * 2], scores[i * 2 + 1], weights[i], rest[i]);
                    else weights[i] = pack(scores[i * 2], scores[i * 2 + 1]);
                }
            };

            wait(&q_full, n % 2);
            int j = count - 1;
            for (; j >= own_count; j--) { /* tiles that the warpgroup does not see */
                wait(k_full + k_at.stage, k_at.phase);
                free_keys();
                wait(v_full + v_at.stage, v_at.phase);
                free_values();
            }
            if (j >= 0) {
                wait(k_full + k_at.stage, k_at.phase);
                start_scores();
                load_added(j);
                wait_for_products<0>();
                hold(scores);
                free_keys();
                weigh(j);
                round_weights();
                for (j--; j >= 0; j--) {
                    wait(k_full + k_at.stage, k_at.phase);
                    start_scores();
                    load_added(j);
                    wait(v_full + v_at.stage, v_at.phase);
                    start_output();
                    wait_for_products<1>();
                    hold(scores);
                    free_keys();
                    weigh(j);
                    wait_for_products<0>();
                    hold(sums);
                    free_values();
#pragma unroll
                    for (int i = 0; i < HEAD / 2; i++) sums[i] *= correction[i / 2 % 2];
                    round_weights();
                }
                if (speaks) arrive(&q_empty);
                wait(v_full + v_at.stage, v_at.phase);
                start_output();
                wait_for_products<0>();
                hold(sums);
                free_values();
            } else if (speaks) arrive(&q_empty);

            if (speaks) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); /* the last output is out */
            meet(1 + group);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float all = sum_in_quad(total[r]), factor = sees[r] <= 0 || ((BIAS || SEEN) && all == 0.0f) ? 0.0f : 1.0f / all;
                char *const to = own_output + (row + r * 8) * 128 + lane % 4 * 4;
#pragma unroll
                for (int c = 0; c < HEAD / 8; c++) {
                    const float low = sums[c * 4 + r * 2], high = sums[c * 4 + r * 2 + 1];
                    *(uint32_t *)(to + c / 8 * (ROWS_Q * 128) + ((c ^ row) % 8) * 16) =
                        factor == 0.0f ? 0u : pack(low * factor, high * factor);
                }
            }
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            meet(1 + group);
            if (speaks) {
#pragma unroll
                for (int column = 0; column < HEAD; column += 64)
                    store_box(own_output + column * ROWS_Q * 2, o_map, column, mine, head, b);
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            }
        }
        if (speaks) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

#elif PATH == 2

/* Sixteen bytes of a row that is read once; zeros where there is none. */
__device__ uint4 load_once(const T *from, bool there) {
    uint4 p = {0, 0, 0, 0};
    if (there)
        asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(p.x), "=r"(p.y), "=r"(p.z), "=r"(p.w) : "l"(from));
    return p;
}
__device__ uint32_t word(const uint4 &p, int i) { return i == 0 ? p.x : i == 1 ? p.y : i == 2 ? p.z : p.w; }

__device__ void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
#if WS_F16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The value at the same place in the shared memory of another block of the cluster. */
__device__ float load_of_block(const float *at, int block) {
    float value;
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %1, %2;\nld.shared::cluster.f32 %0, [there];\n}"
                 : "=f"(value) : "r"(shared_address(at)), "r"(block) : "memory");
    return value;
}
__device__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(READERS * 32)
decode(const T *__restrict__ q, const T *__restrict__ k, const T *__restrict__ v, T *__restrict__ o, float *__restrict__ partial,
       unsigned long long *__restrict__ done, int64_t B, int64_t H, int64_t H_kv,
       int64_t S_q, int64_t S_kv, int64_t D, int64_t causal, int64_t bshd, float scale, const T *__restrict__ bias, const uint8_t *__restrict__ seen) {
    /* What follows may come early. This does not: with blocks that come early and wait, decoding 16 sequences of llama-7b takes 6 % longer. */
    ws_next_may_begin();
    constexpr int PIECES = HEAD / 32, WIDTHS = HEAD / 64, KEYS = 16 * CHUNKS;
    __shared__ float of_warp[READERS][8][HEAD + 4]; /* sums, then the largest score and the sum of weights */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, place = lane % 4;
    const int part = blockIdx.x % PARTS, unit = blockIdx.x / PARTS, per = (int)H / (int)H_kv, queries = (int)S_q * per;
    const int octets = (queries + 7) / 8, octet = unit % octets, kv_head = unit / octets % (int)H_kv, b = unit / octets / (int)H_kv;

    /* Query `row` of the eight. */
    const int query = octet * 8 + row, keys = (int)S_kv, first_sees = causal ? 1 + keys - (int)S_q : keys, more_keys = causal ? 1 : 0;
    auto seen_by = [&](int query) { return max(0, min(keys, first_sees + query / per * more_keys)); };
    const bool there = query < queries;
    const int share = ((keys + PARTS - 1) / PARTS + 15) / 16 * 16, begin = part * share;
    const int end = min(seen_by(min(queries - 1, octet * 8 + 7)), begin + share), sees = there ? min(end, seen_by(query)) : 0;

    const int64_t H_v = H_kv / V_SHARE, v_head = kv_head / V_SHARE;
    const int64_t k_step = BSHD(K_LIES) ? WITHIN(K_HEADS, H_kv) * D : D, v_step = V_AS_K ? k_step : BSHD(V_LIES) ? WITHIN(V_HEADS, H_v) * D : D;
    const int64_t k_at = (BSHD(K_LIES) ? b * S_kv * WITHIN(K_HEADS, H_kv) + K_FIRST + kv_head : (b * H_kv + kv_head) * S_kv) * D;
    const int64_t v_at = V_AS_K         ? k_at + (V_FIRST - K_FIRST) * D
                         : BSHD(V_LIES) ? (b * S_kv * WITHIN(V_HEADS, H_v) + V_FIRST + v_head) * D
                                        : (b * H_v + v_head) * S_kv * D;
    k += k_at + place * 8, v += v_at + row * 8;
    auto row_of = [&](int query, int64_t heads, int first, bool bshd) {
        const int i = query / per, head = kv_head * per + query % per;
        return (bshd ? (b * S_q + i) * heads + first + head : (b * H + head) * S_q + i) * D;
    };

    uint4 of_q[PIECES], of_k[2 * CHUNKS][PIECES], of_v[4 * CHUNKS][WIDTHS];
    auto load_keys = [&](int at) {
#pragma unroll
        for (int h = 0; h < 2 * CHUNKS; h++)
#pragma unroll
            for (int p = 0; p < PIECES; p++)
                of_k[h][p] = load_once(k + (at + h * 8 + row) * k_step + p * 32, at + h * 8 + row < end && p * 32 + place * 8 < D);
    };
    auto load_values = [&](int at) {
#pragma unroll
        for (int e = 0; e < 4 * CHUNKS; e++)
#pragma unroll
            for (int g = 0; g < WIDTHS; g++) {
                const int key = at + e / 2 * 8 + place * 2 + e % 2;
                of_v[e][g] = load_once(v + key * v_step + g * 64, key < end && g * 64 + row * 8 < D);
            }
    };

    const float log2_scale = BIAS || SEEN ? 1.44269504f : scale * 1.44269504f;
    float sums[WIDTHS * 4][4] = {}, shift = MINUS_INFINITY, total = 0;
    int at = begin + warp * KEYS;
    if (at < end) load_keys(at), load_values(at);
    const T *const q_row = q + (there ? row_of(query, WITHIN(Q_HEADS, H), Q_FIRST, BSHD(Q_LIES)) : 0) + place * 8;
#pragma unroll
    for (int p = 0; p < PIECES; p++) of_q[p] = load_once(q_row + p * 32, there && p * 32 + place * 8 < D);
    for (; at < end; at += READERS * KEYS) {
        float scores[2 * CHUNKS][4] = {};
#pragma unroll
        for (int p = 0; p < PIECES; p++)
#pragma unroll
            for (int h = 0; h < 2 * CHUNKS; h++) {
                multiply(scores[h], of_q[p].x, 0, of_q[p].y, 0, of_k[h][p].x, of_k[h][p].y);
                multiply(scores[h], of_q[p].z, 0, of_q[p].w, 0, of_k[h][p].z, of_k[h][p].w);
            }
        const int next = at + READERS * KEYS;
        if (next < end) load_keys(next);
        float highest = MINUS_INFINITY;
#pragma unroll
        for (int h = 0; h < 2 * CHUNKS; h++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int key = at + h * 8 + place * 2 + e;
#if BIAS || SEEN
                if (key < sees) scores[h][e] = fmaf(scores[h][e], scale, added_to(b, kv_head * per + query % per, query / per, key, bias, seen));
#endif
                if (key >= sees) scores[h][e] = MINUS_INFINITY;
                highest = fmaxf(highest, scores[h][e]);
            }
        highest = fmaxf(shift, __fmul_rn(largest_in_quad(highest), log2_scale));
        const float used = highest == MINUS_INFINITY ? 0.0f : highest;
        if (__any_sync(0xffffffff, highest > shift)) {
            const float correction = power_of_two(shift - used);
            total *= correction;
            const float first = __shfl_sync(0xffffffff, correction, place * 8), second = __shfl_sync(0xffffffff, correction, place * 8 + 4);
#pragma unroll
            for (int m = 0; m < WIDTHS * 4; m++)
                sums[m][0] *= first, sums[m][1] *= second, sums[m][2] *= first, sums[m][3] *= second;
        }
        shift = highest;
#pragma unroll
        for (int h = 0; h < 2 * CHUNKS; h++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                scores[h][e] = power_of_two(fmaf(scores[h][e], log2_scale, -used));
                total += scores[h][e];
            }
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            uint32_t weights[2], rest[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float left = scores[2 * c + h][0], right = scores[2 * c + h][1];
                if (WEIGHT_PARTS == 2) pack_parts(left, right, weights[h], rest[h]);
                else weights[h] = pack(left, right);
            }
#pragma unroll
            for (int m = 0; m < WIDTHS * 4; m++) {
                const uint32_t x = word(of_v[4 * c][m / 4], m % 4), y = word(of_v[4 * c + 1][m / 4], m % 4);
                const uint32_t z = word(of_v[4 * c + 2][m / 4], m % 4), w = word(of_v[4 * c + 3][m / 4], m % 4);
                const uint32_t a[4] = {__byte_perm(x, y, 0x5410), __byte_perm(x, y, 0x7632), __byte_perm(z, w, 0x5410), __byte_perm(z, w, 0x7632)};
                multiply(sums[m], a[0], a[1], a[2], a[3], weights[0], weights[1]);
                if (WEIGHT_PARTS == 2) multiply(sums[m], a[0], a[1], a[2], a[3], rest[0], rest[1]);
            }
        }
        if (next < end) load_values(next);
    }
    total = sum_in_quad(total);

    /* The warps' parts are added up, then those of the cluster's blocks, in this order. */
    const int rows_here = min(8, queries - octet * 8);
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (place * 2 + e < rows_here)
#pragma unroll
            for (int m = 0; m < WIDTHS * 4; m++)
                *(float2 *)&of_warp[warp][place * 2 + e][m / 4 * 64 + row * 8 + m % 4 * 2] = make_float2(sums[m][e], sums[m][e + 2]);
    if (place == 0) of_warp[warp][row][HEAD] = shift, of_warp[warp][row][HEAD + 1] = total;
    __syncthreads();
    __shared__ float of_block[8][HEAD + 4];
    for (int at = threadIdx.x; at < rows_here * HEAD; at += READERS * 32) {
        const int r = at / HEAD, column = at % HEAD;
        float top = MINUS_INFINITY, sum = 0, all = 0;
#pragma unroll
        for (int w = 0; w < READERS; w++) top = fmaxf(top, of_warp[w][r][HEAD]);
        const float used = top == MINUS_INFINITY ? 0.0f : top;
#pragma unroll
        for (int w = 0; w < READERS; w++) {
            const float weight = power_of_two(of_warp[w][r][HEAD] - used);
            sum += weight * of_warp[w][r][column];
            all += weight * of_warp[w][r][HEAD + 1];
        }
        if (PARTS == 1 || CLUSTERED) {
            of_block[r][column] = sum;
            if (column == 0) of_block[r][HEAD] = top, of_block[r][HEAD + 1] = all;
        } else {
            float *to = partial + ((int64_t)(unit * PARTS + part) * 8 + r) * (HEAD + 2);
            to[column] = sum;
            if (column == 0) to[HEAD] = top, to[HEAD + 1] = all;
        }
    }
    int first = threadIdx.x, step = READERS * 32;
    if (PARTS == 1) __syncthreads();
    else if (CLUSTERED) {
        meet_cluster();
        first += part * step, step *= PARTS; /* each block has its share of the columns */
    } else {
        __shared__ bool is_last;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            is_last = atomicAdd(done + unit, 1ull) == PARTS - 1;
            if (is_last) done[unit] = 0;
        }
        __syncthreads();
        if (!is_last) return;
        __threadfence();
    }
    auto of_part = [&](int p, int r, int column) {
        return PARTS == 1 ? of_block[r][column] : CLUSTERED ? load_of_block(&of_block[r][column], p)
                          : __ldcg(partial + ((int64_t)(unit * PARTS + p) * 8 + r) * (HEAD + 2) + column);
    };
    for (int at = first; at < rows_here * HEAD; at += step) {
        const int r = at / HEAD, column = at % HEAD;
        float tops[PARTS], totals[PARTS], parts[PARTS], top = MINUS_INFINITY, sum = 0, all = 0;
#pragma unroll
        for (int p = 0; p < PARTS; p++) tops[p] = of_part(p, r, HEAD), totals[p] = of_part(p, r, HEAD + 1), parts[p] = of_part(p, r, column);
#pragma unroll
        for (int p = 0; p < PARTS; p++) top = fmaxf(top, tops[p]);
        if (top == MINUS_INFINITY) top = 0;
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            const float weight = power_of_two(tops[p] - top);
            sum += weight * parts[p], all += weight * totals[p];
        }
        if (column < D) o[row_of(octet * 8 + r, H, 0, bshd) + column] = ws_store(seen_by(octet * 8 + r) == 0 || ((BIAS || SEEN) && all == 0.0f) ? 0.0f : sum / all);
    }
    if (CLUSTERED) meet_cluster(); /* nobody leaves while others read its memory */
}

#else
/* A block has BLOCK_Q queries of one head and goes over the keys a tile at a time, with a running maximum and sum (online
   softmax: Milakov and Gimelshein 2018; FlashAttention-2: Dao 2023). Tiles of keys and values travel to shared memory by
   cp.async while the other is worked on. A warp has STRIPS strips of 16 queries: scores, weights and output stay in its
   registers. Where there are too few queries to fill the device, SPLITS blocks share the keys and `merge` adds up.

   A lane has 2 * STRIPS rows, row r being query 8 r + lane / 4 of the warp's; the 4 lanes of a quad share a row's columns.
   That is how tensor cores (mma.sync) deal out the products of 16-bit types; f32, multiplied by fused multiply-adds, does
   the same. */

constexpr int ROWS = 2 * STRIPS, KEYS = BLOCK_KV / 4, COLUMNS = D_PAD / 4; /* of a lane: rows, keys and columns of each */

/* A piece of 16 bytes of which only the first `have` elements exist, or whose address is no multiple of 16; zeros follow. */
__device__ __noinline__ void copy_part(T *to, const T *from, int have) {
    if (have == VEC && (size_t)from % 16 == 0) *(uint4 *)to = *(const uint4 *)from;
    else
        for (int i = 0; i < VEC; i++) to[i] = i < have ? from[i] : T(0);
}

__device__ constexpr int power_of_two_from(int n) { return n <= 1 ? 1 : 2 * power_of_two_from((n + 1) / 2); }

/* Starts the copy of COUNT rows, `rows` of them in the tensor and `step` elements apart there; the rest is zero. A thread
   copies one column of pieces. */
template <int COUNT> __device__ void copy_rows(T *to, const T *from, int64_t rows, int64_t step, int64_t D) {
    constexpr int ACROSS = power_of_two_from(D_PAD / VEC), ROWS_AT_ONCE = WARPS * 32 / ACROSS;
    static_assert(ROWS_AT_ONCE > 0, "there are too few threads for a row");
    const int column = threadIdx.x % ACROSS * VEC, first = threadIdx.x / ACROSS;
    if (column >= D_PAD) return;
    to += first * STRIDE + column;
    from += first * step + column;
    if (rows >= COUNT && D == D_PAD) {
#pragma unroll
        for (int i = 0; i < COUNT; i += ROWS_AT_ONCE)
            if (COUNT % ROWS_AT_ONCE == 0 || first + i < COUNT)
                asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to + i * STRIDE)),
                             "l"(from + i * step));
    } else {
#pragma unroll 1
        for (int i = 0; first + i < COUNT; i += ROWS_AT_ONCE)
            copy_part(to + i * STRIDE, from + i * step, first + i < rows ? (int)min((int64_t)VEC, D - column) : 0);
    }
}

#if WS_F32

/* Which key of a tile, or column of a row, is the lane's j-th. */
__device__ int key_of(int j) { return j * 4 + threadIdx.x % 4; }
__device__ int column_of(int j) { return j / 4 * 16 + threadIdx.x % 4 * 4 + j % 4; }

/* scores = queries keys^T; `queries` are the warp's. */
__device__ void multiply_keys(float (&scores)[ROWS][KEYS], const T *queries, const T *keys) {
    const int row = threadIdx.x % 32 / 4;
#pragma unroll 2
    for (int d = 0; d < D_PAD; d += 4) {
        float4 q[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) q[r] = *(const float4 *)(queries + (r * 8 + row) * STRIDE + d);
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const float4 k = *(const float4 *)(keys + key_of(j) * STRIDE + d);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                scores[r][j] = fmaf(q[r].w, k.w, fmaf(q[r].z, k.z, fmaf(q[r].y, k.y, fmaf(q[r].x, k.x, scores[r][j]))));
        }
    }
}

/* output += weights values */
__device__ void multiply_values(float (&output)[ROWS][COLUMNS], const float (&weights)[ROWS][KEYS], const T *values) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < KEYS; j++)
#pragma unroll 1
        for (int owner = 0; owner < 4; owner++) {
            float weight[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) weight[r] = __shfl_sync(0xffffffff, weights[r][j], lane / 4 * 4 + owner);
            const T *value = values + (j * 4 + owner) * STRIDE + lane % 4 * 4;
#pragma unroll
            for (int c = 0; c < COLUMNS; c += 4) {
                const float4 v = *(const float4 *)(value + c * 4);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    output[r][c] = fmaf(weight[r], v.x, output[r][c]);
                    output[r][c + 1] = fmaf(weight[r], v.y, output[r][c + 1]);
                    output[r][c + 2] = fmaf(weight[r], v.z, output[r][c + 2]);
                    output[r][c + 3] = fmaf(weight[r], v.w, output[r][c + 3]);
                }
            }
        }
}

#else

__device__ int key_of(int j) { return j / 2 * 8 + threadIdx.x % 4 * 2 + j % 2; }
__device__ int column_of(int j) { return key_of(j); }

/* Two rows of two neighbouring sums (16 x 8 over the warp) += a (16 x 16) b (16 x 8). */
__device__ void multiply(float *upper, float *lower, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if WS_F16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+f"(upper[0]), "+f"(upper[1]), "+f"(lower[0]), "+f"(lower[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* scores = queries keys^T; `queries` are the warp's. */
__device__ void multiply_keys(float (&scores)[ROWS][KEYS], const T *queries, const T *keys) {
    const int lane = threadIdx.x % 32;
#pragma unroll 4 /* of eight steps at D = 128: fewer registers are spilled than with all */
    for (int d = 0; d < D_PAD; d += 16) {
        uint32_t q[STRIPS][4];
#pragma unroll
        for (int s = 0; s < STRIPS; s++) load_matrices(q[s], queries + (s * 16 + lane % 16) * STRIDE + d + lane / 16 * 8);
#pragma unroll
        for (int j = 0; j < KEYS; j += 4) { /* 16 keys of the tile */
            uint32_t k[4];
            load_matrices(k, keys + (j * 4 + lane / 16 * 8 + lane % 8) * STRIDE + d + lane / 8 % 2 * 8);
#pragma unroll
            for (int s = 0; s < STRIPS; s++) {
                multiply(scores[2 * s] + j, scores[2 * s + 1] + j, q[s], k[0], k[1]);
                multiply(scores[2 * s] + j + 2, scores[2 * s + 1] + j + 2, q[s], k[2], k[3]);
            }
        }
    }
}

/* output += weights values */
__device__ void multiply_values(float (&output)[ROWS][COLUMNS], const float (&weights)[ROWS][KEYS], const T *values) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < KEYS; j += 4) {
        uint32_t p[STRIPS][4], rest[STRIPS][4];
#pragma unroll
        for (int i = 0; i < STRIPS * 4; i++) {
            const float *const two = &weights[i / 4 * 2 + i % 2][j + i % 4 / 2 * 2];
            if (WEIGHT_PARTS == 2) pack_parts(two[0], two[1], p[i / 4][i % 4], rest[i / 4][i % 4]);
            else p[i / 4][i % 4] = pack(two[0], two[1]);
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 4) { /* 16 columns of the row */
            uint32_t v[4];
            load_matrices_transposed(v, values + (j * 4 + lane % 16) * STRIDE + c * 4 + lane / 16 * 8);
#pragma unroll
            for (int s = 0; s < STRIPS; s++) {
                multiply(output[2 * s] + c, output[2 * s + 1] + c, p[s], v[0], v[1]);
                multiply(output[2 * s] + c + 2, output[2 * s + 1] + c + 2, p[s], v[2], v[3]);
                if (WEIGHT_PARTS == 2) {
                    multiply(output[2 * s] + c, output[2 * s + 1] + c, rest[s], v[0], v[1]);
                    multiply(output[2 * s] + c + 2, output[2 * s + 1] + c + 2, rest[s], v[2], v[3]);
                }
            }
        }
    }
}

#endif

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
plain(const T *__restrict__ q, const T *__restrict__ k, const T *__restrict__ v, T *__restrict__ o,
       float *__restrict__ partial, int64_t B, int64_t H, int64_t H_kv, int64_t S_q, int64_t S_kv, int64_t D,
       int64_t causal, int64_t bshd, float scale, const T *__restrict__ bias, const uint8_t *__restrict__ seen) {
    extern __shared__ uint4 shared[];
    T *queries = (T *)shared, *keys = queries + BLOCK_Q * STRIDE, *values = keys + BLOCK_KV * STRIDE;

    /* The last queries, which see the most keys where causal, are begun first. */
    const int64_t tiles = (S_q + BLOCK_Q - 1) / BLOCK_Q, jobs = B * H * SPLITS;
    const int64_t tile = tiles - 1 - blockIdx.x / jobs, job = blockIdx.x % jobs;
    const int64_t split = job % SPLITS, head = job / SPLITS % H, b = job / SPLITS / H;
    const int64_t kv_head = head / (H / H_kv), i0 = tile * BLOCK_Q;
    const int64_t q_step = BSHD(Q_LIES) ? WITHIN(Q_HEADS, H) * D : D, o_step = !Q_HEADS && !Q_LIES ? q_step : bshd ? H * D : D;
    const int64_t H_v = H_kv / V_SHARE, v_head = kv_head / V_SHARE;
    const int64_t k_step = BSHD(K_LIES) ? WITHIN(K_HEADS, H_kv) * D : D, v_step = V_AS_K ? k_step : BSHD(V_LIES) ? WITHIN(V_HEADS, H_v) * D : D;
    const int64_t q_at = (BSHD(Q_LIES) ? (b * S_q + i0) * WITHIN(Q_HEADS, H) + Q_FIRST + head : (b * H + head) * S_q + i0) * D;
    const int64_t o_at = !Q_HEADS && !Q_LIES ? q_at : (bshd ? (b * S_q + i0) * H + head : (b * H + head) * S_q + i0) * D;
    const int64_t k_at = (BSHD(K_LIES) ? b * S_kv * WITHIN(K_HEADS, H_kv) + K_FIRST + kv_head : (b * H_kv + kv_head) * S_kv) * D;
    const int64_t v_at = V_AS_K         ? k_at + (V_FIRST - K_FIRST) * D
                         : BSHD(V_LIES) ? (b * S_kv * WITHIN(V_HEADS, H_v) + V_FIRST + v_head) * D
                                        : (b * H_v + v_head) * S_kv * D;
    q += q_at, o += o_at, k += k_at, v += v_at;

    /* Query i0 + i sees `first + i` keys, or all. */
    const int64_t first = causal ? i0 + 1 + S_kv - S_q : S_kv;
    const int64_t visible = causal ? max((int64_t)0, min(S_kv, first + BLOCK_Q - 1)) : S_kv;
    const int64_t share = ((S_kv + BLOCK_KV - 1) / BLOCK_KV + SPLITS - 1) / SPLITS * BLOCK_KV;
    const int64_t begin = split * share, end = min(visible, begin + share);

    copy_rows<BLOCK_Q>(queries, q, S_q - i0, q_step, D);
    if (begin < end) copy_rows<BLOCK_KV>(keys, k + begin * k_step, end - begin, k_step, D);
    end_of_copies();
    if (begin < end) copy_rows<BLOCK_KV>(values, v + begin * v_step, end - begin, v_step, D);
    end_of_copies();

    const int row = threadIdx.x / 32 * STRIPS * 16 + threadIdx.x % 32 / 4; /* of the lane's first query */
    const float log2_scale = BIAS || SEEN ? 1.44269504f : scale * 1.44269504f;
    float output[ROWS][COLUMNS] = {}, top[ROWS], total[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) top[r] = MINUS_INFINITY;

    for (int64_t j0 = begin; j0 < end; j0 += BLOCK_KV) {
        if (j0 == begin) wait_for_copies<1>();
        else wait_for_copies<0>();
        __syncthreads(); /* these keys are there for all, and nobody reads the last values any more */
        if (j0 > begin) copy_rows<BLOCK_KV>(values, v + j0 * v_step, end - j0, v_step, D);
        end_of_copies();

        float scores[ROWS][KEYS] = {};
        multiply_keys(scores, queries + threadIdx.x / 32 * STRIPS * 16 * STRIDE, keys);
#if BIAS || SEEN
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int j = 0; j < KEYS; j++)
                scores[r][j] = fmaf(scores[r][j], scale, added_to(b, head, min(i0 + row + r * 8, S_q - 1), min(j0 + key_of(j), S_kv - 1), bias, seen));
#endif
        if (j0 + BLOCK_KV > end || j0 + BLOCK_KV > first) { /* not every query sees all of these keys */
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const int64_t keys_seen = min(end, causal ? first + row + r * 8 : end) - j0;
                const int sees = (int)max((int64_t)0, min((int64_t)BLOCK_KV, keys_seen));
#pragma unroll
                for (int j = 0; j < KEYS; j++)
                    if (key_of(j) >= sees) scores[r][j] = MINUS_INFINITY;
            }
        }

        wait_for_copies<0>();
        __syncthreads(); /* these values are there for all, and nobody reads these keys any more */
        const int64_t next = j0 + BLOCK_KV;
        if (next < end) copy_rows<BLOCK_KV>(keys, k + next * k_step, end - next, k_step, D);
        end_of_copies();

#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float highest = top[r];
#pragma unroll
            for (int j = 0; j < KEYS; j++) highest = fmaxf(highest, scores[r][j]);
            highest = largest_in_quad(highest);
            /* Where every score so far is -infinity any finite shift will do, and that one would not. */
            const float shift = highest == MINUS_INFINITY ? 0.0f : __fmul_rn(highest, log2_scale);
            /* The product is rounded by itself, as `shift` was: fused with the subtraction it would differ from an unchanged
               shift by its rounding, and every tile would be weighed a little more or less than the one before. */
            const float correction = power_of_two(__fmul_rn(top[r], log2_scale) - shift);
            top[r] = highest;
            float sum = 0;
#pragma unroll
            for (int j = 0; j < KEYS; j++) {
                scores[r][j] = power_of_two(fmaf(scores[r][j], log2_scale, -shift));
                sum += scores[r][j];
            }
            total[r] = total[r] * correction + sum;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) output[r][c] *= correction;
        }
        multiply_values(output, scores, values);
    }
    wait_for_copies<0>();
    __syncthreads(); /* where there were no keys at all, the queries may still be on their way to where the output goes */

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int64_t i = row + r * 8;
        const float all = sum_in_quad(total[r]);
        if (i >= S_q - i0) continue;
        if (SPLITS > 1) {
            float *to = partial + (((b * H + head) * S_q + i0 + i) * SPLITS + split) * (D + 2);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                if (column_of(c) < D) to[column_of(c)] = output[r][c];
            to[D] = __fmul_rn(top[r], log2_scale);
            to[D + 1] = all;
            continue;
        }
        /* By way of shared memory, in place of the warp's own queries, so that rows are stored in whole pieces. */
        const float factor = (causal && first + i <= 0) || ((BIAS || SEEN) && all == 0.0f) ? 0.0f : 1.0f / all;
        T *to = queries + i * STRIDE;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) to[column_of(c)] = ws_store(factor == 0.0f ? 0.0f : output[r][c] * factor);
    }
    if (SPLITS > 1) return;
    __syncwarp();
    constexpr int PIECES = D_PAD / VEC;
    const int warp_row = threadIdx.x / 32 * STRIPS * 16;
    for (int piece = threadIdx.x % 32; piece < STRIPS * 16 * PIECES; piece += 32) {
        const int i = warp_row + piece / PIECES, column = piece % PIECES * VEC;
        if (i >= S_q - i0 || column >= D) continue;
        const T *from = queries + i * STRIDE + column;
        T *to = o + i * o_step + column;
        if (D % VEC == 0) *(uint4 *)to = *(const uint4 *)from;
        else
            for (int e = 0; e < VEC && column + e < D; e++) to[e] = from[e];
    }
}

#if SPLITS > 1
/* Adds up the parts of SPLITS blocks: a warp has one query. */
extern "C" __global__ void __launch_bounds__(128)
merge(T *__restrict__ o, const float *__restrict__ partial, int64_t B, int64_t H, int64_t S_q, int64_t S_kv, int64_t D,
      int64_t causal, int64_t bshd) {
    const int64_t query = (int64_t)blockIdx.x * 4 + threadIdx.x / 32;
    if (query >= B * H * S_q) return;
    const int64_t i = query % S_q, head = query / S_q % H, b = query / S_q / H;
    const float *part = partial + query * SPLITS * (D + 2);
    float top = MINUS_INFINITY, total = 0, weights[SPLITS];
#pragma unroll
    for (int s = 0; s < SPLITS; s++) top = fmaxf(top, part[s * (D + 2) + D]);
    if (top == MINUS_INFINITY) top = 0;
#pragma unroll
    for (int s = 0; s < SPLITS; s++) {
        weights[s] = power_of_two(part[s * (D + 2) + D] - top);
        total += weights[s] * part[s * (D + 2) + D + 1];
    }
    const bool sees_nothing = (causal && i + 1 + S_kv - S_q <= 0) || ((BIAS || SEEN) && total == 0.0f);
    o += (bshd ? (b * S_q + i) * H + head : query) * D;
    for (int64_t d = threadIdx.x % 32; d < D; d += 32) {
        float sum = 0;
#pragma unroll
        for (int s = 0; s < SPLITS; s++) sum += weights[s] * part[s * (D + 2) + d];
        o[d] = ws_store(sees_nothing ? 0.0f : sum / total);
    }
}
#endif

#endif
