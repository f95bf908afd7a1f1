/*---
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 128, choices = [64, 128, 256, 512] }           # threads in a block, where a row needs no more
HELD    = { value = 4,   choices = [1, 2, 3, 4, 5, 6, 7, 8] }      # 16-byte pieces of a row that a thread keeps
# Of the kernel whose rows are brought by bulk copies.
WORKERS = { value = 12, choices = [1, 2, 3, 4, 6, 8, 10, 12, 13] } # groups of warps of a block, each with a row at a time and a place for it
WARPS   = { value = 1,  choices = [1, 2, 4] }   # of a group
OUT     = { value = 0,  choices = [0, 1] }      # 0: y leaves from registers; 1: from where x came, by the copy engine
STAY    = { value = 2,  choices = [0, 1, 2] }   # 0: a row for each group, then the block ends; 1: blocks stay, rows dealt out; 2: groups draw rows
MARK_X  = { value = 0,  choices = [0, 1, 2] }   # in the L2 cache x is not marked, to leave first, or to stay
MARK_Y  = { value = 0,  choices = [0, 1, 2] }   # the same of y
[let]
VEC    = "16 / dtype_bytes"
PIECES = "ceil_div(cols, VEC)"
PLACE  = "PLACED ? ceil_div(cols * dtype_bytes, 128) * 128 : 1024"
GROUPS = "PLACED ? max(1, min(WORKERS, (SMEM_MAX - 1024) / PLACE - 1)) : 1"
OWN    = "PLACED ? ceil_div(PIECES, WARPS * 32) : 1"
PLACED = "CC >= 90 && cols % VEC == 0 && cols * dtype_bytes > 8192 && PIECES <= min(WARPS, 2) * 1024 && PIECES <= 4096 / WARPS && rows >= SMS * 8"
BLOCKS = "max(1, (SMEM_MAX + 1024) / ((GROUPS + 1) * PLACE + 1792))" # that a multiprocessor has room for
LANES  = "min(1024, PIECES <= 8 * HELD ? 8 : PIECES <= 16 * HELD ? 16 : ceil_div(PIECES, 32 * HELD) * 32)"   # threads that share a row
ROWS   = "max(1, THREADS / LANES)"                                 # rows of a block
BOUND  = "LANES * ROWS <= 128 ? 128 : LANES * ROWS <= 256 ? 256 : LANES * ROWS <= 512 ? 512 : 1024"
[[variant]]    # few rows: more threads for each
when = "rows <= 256 && cols * dtype_bytes <= 16384"
tune = { HELD = 2 }
[[variant]]    # 384 columns are 16 threads' three pieces each
when = "cols * dtype_bytes <= 1024"
tune = { HELD = 3, THREADS = 256 }
[[variant]]    # long rows: two blocks still fit a multiprocessor, and one reads while the other writes
when = "cols * dtype_bytes > 32768"
tune = { HELD = 8 }
[[scratch]]    # rows that have been drawn, blocks that have ended
name  = "drawn"
dtype = "i64"
shape = ["2"]
init  = "zero_kept"
[[launch]]
kernel = "placed"
when   = "PLACED"
grid   = ["STAY == 0 ? ceil_div(rows, GROUPS) : min(ceil_div(rows, GROUPS), SMS * BLOCKS)"]
block  = ["GROUPS * WARPS * 32"]
shared = "(STAY == 0 ? GROUPS : GROUPS + 1) * PLACE"
args   = ["x", "weight", "y", "drawn", "rows", "cols", "eps"]
[[launch]]
kernel = "aligned"
when   = "!PLACED && cols % VEC == 0 && PIECES <= HELD * LANES"
grid   = ["ceil_div(rows, ROWS)"]
block  = ["LANES", "ROWS"]
args   = ["x", "weight", "y", "rows", "cols", "eps"]
[[launch]]
kernel = "ragged"
when   = "!PLACED && !(cols % VEC == 0 && PIECES <= HELD * LANES)"
grid   = ["ceil_div(rows, max(1, THREADS / max(32, LANES)))"]
block  = ["max(32, LANES)", "max(1, THREADS / max(32, LANES))"]
args   = ["x", "weight", "y", "rows", "cols", "eps"]
---*/

/* Bound by memory: x is read once, y written once, and the weights stay in the caches. What counts is to have enough bytes on
   their way at any time. So a row is dealt out to just as many threads as keep it in their registers, HELD pieces each; all
   loads, those of the weights too, are under way before the first is used; and blocks are small, 64 registers a thread at most, so
   that some read while others write:

       x: load load load load |                                   of a thread: HELD pieces of 16 bytes
       weights: load ... load |  squares, sum over the row  |  scale, store ... store

   A row of 512 columns or less is shared by 8, 16 or 32 lanes, and a warp has several.

   Many rows of more than 8 KB are brought by the copy engine (`placed`). A group of WARPS warps is on its own: it has a place in shared memory,
   waits on its place's own barrier, scales the row, and asks for the next into the same place. No group ever waits for another one:

       place 0   |row 7 comes ........|group 0: sum, scale, store|row 131 comes ........
       place 1      |row 24 comes .......|group 1: sum, scale, store|row 88 comes ......
       ...
       place 11        |row 2 comes .........|group 11: sum, scale, store|row 140 comes ..

   The weights come once, into a place of their own. Multiprocessors are not served equally (they share their way to memory with 15 or 17
   others), so rows are not dealt out: after its first row a group draws numbers from a counter, and asks for the next number while its row comes. */

struct __align__(16) Piece {
    uint32_t word[4];
};

__device__ void unpack(float (&v)[VEC], const Piece &piece) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if WS_F32
        v[i] = __uint_as_float(piece.word[i]);
#else
        v[2 * i] = ws_load((T)piece.word[i]), v[2 * i + 1] = ws_load((T)(piece.word[i] >> 16));
#endif
    }
}
__device__ Piece pack(const float (&v)[VEC]) {
    Piece piece;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if WS_F32
        piece.word[i] = __float_as_uint(v[i]);
#else
        piece.word[i] = ws_store(v[2 * i]) | (uint32_t)ws_store(v[2 * i + 1]) << 16;
#endif
    }
    return piece;
}
/* Lets the compiler unpack a piece anew: unpacked from one use to the next, it would take twice the registers. */
__device__ void keep_packed(Piece &p) { asm("" : "+r"(p.word[0]), "+r"(p.word[1]), "+r"(p.word[2]), "+r"(p.word[3])); }

__device__ float sum_of_squares(const Piece &piece) {
    float v[VEC], sum = 0;
    unpack(v, piece);
#pragma unroll
    for (int i = 0; i < VEC; i++) sum = fmaf(v[i], v[i], sum);
    return sum;
}
__device__ Piece scaled(const Piece &piece, const Piece &weight, float scale) {
    float v[VEC], w[VEC];
    unpack(v, piece), unpack(w, weight);
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = v[i] * scale * w[i];
    return pack(v);
}

__device__ float sum_over_warp(float value, int lanes) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        if (step < lanes) value += __shfl_xor_sync(0xffffffff, value, step);
    return value;
}
/* The factor of a row whose `lanes` threads have these parts of its sum of squares: the same bits in each of them. */
__device__ float scale_of_row(float sum, int lanes, int64_t cols, float eps) {
    __shared__ float of_warp[32];
    sum = sum_over_warp(sum, lanes);
    if (lanes > 32) {
        const int warps = lanes / 32, lane = threadIdx.x % 32, first = threadIdx.y * warps;
        if (lane == 0) of_warp[first + threadIdx.x / 32] = sum;
        __syncthreads();
        sum = sum_over_warp(lane < warps ? of_warp[first + lane] : 0.0f, 32);
    }
    return 1.0f / sqrtf(sum / (float)cols + eps);
}

extern "C" __global__ void __launch_bounds__(BOUND, 1024 / BOUND)
aligned(const T *__restrict__ x, const T *__restrict__ weight, T *__restrict__ y, int64_t rows, int64_t cols, float eps) {
    constexpr bool EARLY = HELD <= 4; /* of more weights the registers have no room */
    const int lane = threadIdx.x, lanes = blockDim.x, pieces = (int)cols / VEC;
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const int have = row < rows ? pieces : 0; /* the others still take part in the barrier */
    const Piece *const from = (const Piece *)(x + row * cols), *const weights = (const Piece *)weight;
    Piece *const to = (Piece *)(y + row * cols);

    Piece held[HELD], by[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        held[i] = {};
        if (lane + i * lanes < have) held[i] = from[lane + i * lanes];
    }
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (EARLY && lane + i * lanes < have) by[i] = weights[lane + i * lanes];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++) sum += sum_of_squares(held[i]);
    const float scale = scale_of_row(sum, lanes, cols, eps);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        keep_packed(held[i]);
        if (lane + i * lanes >= have) continue;
        if (!EARLY) by[i] = weights[lane + i * lanes];
        to[lane + i * lanes] = scaled(held[i], by[i], scale);
    }
}

#if PLACED

__device__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
template <int MARK> __device__ uint64_t policy() {
    uint64_t policy;
    if (MARK == 2) asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    else asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
/* Has the copy engine bring `bytes` to `to`; the barrier's phase ends when they are there. */
template <int MARK> __device__ void bring(void *to, const void *from, int bytes, uint64_t *barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
    if (MARK)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                     ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy<MARK>()) : "memory");
    else
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
/* And take them away; returns when they have been read. */
template <int MARK> __device__ void take_away(void *to, const void *from, int bytes) {
    if (MARK)
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;"
                     ::"l"(to), "r"(shared_address(from)), "r"(bytes), "l"(policy<MARK>()) : "memory");
    else
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
template <int MARK> __device__ void store(Piece *to, const Piece &p) {
    if (MARK)
        asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(p.word[0]), "r"(p.word[1]), "r"(p.word[2]),
                     "r"(p.word[3]), "l"(policy<MARK>()) : "memory");
    else *to = p;
}
/* Returns when the barrier's phase `phase` is over. */
__device__ void wait(uint64_t *barrier, int phase) {
    asm volatile("{\n.reg .pred over;\nagain:\n"
                 "mbarrier.try_wait.parity.shared.b64 over, [%0], %1;\n"
                 "@!over bra again;\n}" ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}
/* For the warps of a group. */
__device__ void meet(int group) {
    if (WARPS == 1) __syncwarp();
    else asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(WARPS * 32) : "memory");
}

extern "C" __global__ void __launch_bounds__(GROUPS * WARPS * 32)
placed(const T *__restrict__ x, const T *__restrict__ weight, T *__restrict__ y, int64_t *drawn, int64_t rows, int64_t cols, float eps) {
    constexpr int SHARE = WARPS * 32; /* threads of a group */
    extern __shared__ __align__(128) char places[];
    __shared__ uint64_t barriers[GROUPS + 1];
    __shared__ float parts[2][GROUPS][WARPS];
    __shared__ int64_t nexts[2][GROUPS];
    const int group = threadIdx.x / SHARE, lane = threadIdx.x % SHARE, pieces = (int)cols / VEC, bytes = pieces * 16; /* of a row */
    Piece *const place = (Piece *)(places + group * PLACE);
    uint64_t *const here = barriers + group, *const weights_here = barriers + GROUPS;
    const int64_t workers = (int64_t)gridDim.x * GROUPS;
    int64_t row = STAY ? (int64_t)group * gridDim.x + blockIdx.x : (int64_t)blockIdx.x * GROUPS + group;

    if (threadIdx.x == 0) {
        for (int i = 0; i <= GROUPS; i++) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(barriers + i)));
        asm volatile("fence.proxy.async;" ::: "memory"); /* the copy engine must see them */
    }
    __syncthreads();
    if (lane == 0 && row < rows) bring<MARK_X>(place, x + row * cols, bytes, here);
#if STAY
    const Piece *const weights = (const Piece *)(places + GROUPS * PLACE);
    if (threadIdx.x == 0) bring<0>((void *)weights, weight, bytes, weights_here);
#else
    const Piece *const weights = (const Piece *)weight;
#endif

    for (int phase = 0; row < rows; phase ^= 1) {
        int64_t next = STAY ? row + workers : rows;
        if (STAY == 2 && lane == 0) next = workers + (int64_t)atomicAdd((unsigned long long *)drawn, 1ull);
        wait(here, phase);
        float sum = 0;
#if OUT
#pragma unroll 8
        for (int i = lane; i < pieces; i += SHARE) sum += sum_of_squares(place[i]);
#else
        Piece held[OWN];
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            held[i] = {};
            if (lane + i * SHARE < pieces) held[i] = place[lane + i * SHARE];
        }
        if (WARPS == 1) {
            __syncwarp(); /* the place has been read */
            if (lane == 0 && next < rows) bring<MARK_X>(place, x + next * cols, bytes, here);
        }
#pragma unroll
        for (int i = 0; i < OWN; i++) sum += sum_of_squares(held[i]);
#endif
        sum = sum_over_warp(sum, 32);
        if (WARPS > 1) {
            if (lane % 32 == 0) parts[phase][group][lane / 32] = sum;
            if (lane == 0) nexts[phase][group] = next;
            meet(group); /* and the place has been read */
            if (!OUT && lane == 0 && next < rows) bring<MARK_X>(place, x + next * cols, bytes, here);
            sum = 0;
#pragma unroll
            for (int i = 0; i < WARPS; i++) sum += parts[phase][group][i];
            next = nexts[phase][group];
        }
        const float scale = 1.0f / sqrtf(sum / (float)cols + eps);
        if (STAY) wait(weights_here, 0);
#if OUT
#pragma unroll 4
        for (int i = lane; i < pieces; i += SHARE) place[i] = scaled(place[i], weights[i], scale);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* the copy engine will read it */
        meet(group);
        if (lane == 0) {
            take_away<MARK_Y>(y + row * cols, place, bytes);
            if (next < rows) bring<MARK_X>(place, x + next * cols, bytes, here);
        }
#else
        Piece *const to = (Piece *)(y + row * cols);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            keep_packed(held[i]);
            if (lane + i * SHARE < pieces) store<MARK_Y>(to + lane + i * SHARE, scaled(held[i], weights[lane + i * SHARE], scale));
        }
#endif
        row = WARPS > 1 ? next : __shfl_sync(0xffffffff, next, 0);
    }
#if STAY == 2
    __syncthreads(); /* this block draws no more; the last one leaves the counters as they were */
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd((unsigned long long *)drawn + 1, 1ull) == gridDim.x - 1) drawn[0] = drawn[1] = 0;
    }
#endif
}

#endif

/* Rows of any length start at any address: the elements before the first and after the last aligned piece, at most 2 VEC - 2 of
   them, are taken one by one. What is beyond HELD pieces a thread is read twice. */
extern "C" __global__ void __launch_bounds__(1024)
ragged(const T *__restrict__ x, const T *__restrict__ weight, T *__restrict__ y, int64_t rows, int64_t cols, float eps) {
    const int lane = threadIdx.x, lanes = blockDim.x;
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const bool live = row < rows;
    if (live) x += row * cols, y += row * cols;
    const int misaligned = (int)((size_t)x % 16 / sizeof(T));
    const int64_t before = min((int64_t)(misaligned ? VEC - misaligned : 0), cols);
    const int64_t pieces = live ? (cols - before) / VEC : 0;
    const int singles = live ? (int)(cols - pieces * VEC) : 0;
    const Piece *const from = (const Piece *)(x + before);
    Piece *const to = (Piece *)(y + before);

    constexpr int KEPT = HELD < 4 ? HELD : 4;
    Piece held[KEPT];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        held[i] = {};
        if (lane + i * lanes < pieces) held[i] = from[lane + i * lanes];
    }
#pragma unroll
    for (int i = 0; i < KEPT; i++) sum += sum_of_squares(held[i]);
#pragma unroll 1
    for (int64_t at = lane + KEPT * lanes; at < pieces; at += lanes) sum += sum_of_squares(from[at]);
    for (int i = lane; i < singles; i += lanes) {
        const float v = ws_load(x[i < before ? i : i + pieces * VEC]);
        sum += v * v;
    }
    const float scale = scale_of_row(sum, lanes, cols, eps);
    auto store = [&](int64_t at, const Piece &piece) {
        float v[VEC];
        unpack(v, piece);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = v[i] * scale * ws_load(weight[before + at * VEC + i]);
        to[at] = pack(v);
    };
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        keep_packed(held[i]);
        if (lane + i * lanes < pieces) store(lane + i * lanes, held[i]);
    }
#pragma unroll 1
    for (int64_t at = lane + KEPT * lanes; at < pieces; at += lanes) store(at, from[at]);
    for (int i = lane; i < singles; i += lanes) {
        const int64_t j = i < before ? i : i + pieces * VEC;
        y[j] = ws_store(ws_load(x[j]) * scale * ws_load(weight[j]));
    }
}
