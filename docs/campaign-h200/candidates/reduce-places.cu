/*---
op = "reduce"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 256,  choices = [128, 256, 512] }              # threads in a block
HELD    = { value = 4,    choices = [1, 2, 4, 8] }                 # 16-byte pieces a thread loads before it adds them
LONG    = { value = 4096, choices = [1024, 4096, 16384, 65536] }   # rows of more bytes have a block each, others a warp
# Of the kernel whose rows are brought by bulk copies.
WORKERS = { value = 13,    choices = [1, 2, 3, 4, 6, 13, 26] }     # warps of a block, each with a row at a time and a place for it
PLACE   = { value = 16384, choices = [4096, 8192, 16384] }         # bytes of a place: as much of a row comes at once
STAY    = { value = 2,     choices = [0, 1, 2] }                   # 0: a row for each warp, then the block ends; 1: blocks stay, rows dealt out; 2: warps draw rows
MOST    = { value = 16,    choices = [1, 2, 16] }                  # blocks of a multiprocessor, at most
ONCE    = { value = 0,     choices = [0, 1] }                      # 1: x is marked to leave the L2 cache first
[let]
VEC       = "16 / dtype_bytes"
ROW_BYTES = "cols * dtype_bytes"
PLACED    = "CC >= 90 && ROW_BYTES % 16 == 0 && ROW_BYTES > LONG && ROW_BYTES <= 65536 && rows >= SMS * 8"
BLOCKS    = "max(1, min(MOST, (SMEM_MAX + 1024) / (WORKERS * PLACE + 1280)))" # that a multiprocessor has room for
[[scratch]]    # rows that have been drawn, blocks that have ended
name  = "drawn"
dtype = "i64"
shape = ["2"]
init  = "zero_kept"
[[launch]]
kernel = "placed"
when   = "PLACED"
grid   = ["STAY == 0 ? ceil_div(rows, WORKERS) : min(ceil_div(rows, WORKERS), SMS * BLOCKS)"]
block  = ["WORKERS * 32"]
shared = "WORKERS * PLACE"
args   = ["x", "y", "drawn", "rows", "cols"]
[[launch]]
kernel = "reduce"
when   = "!PLACED"
grid   = ["ceil_div(rows, cols * dtype_bytes > LONG ? 1 : THREADS / 32)"]
block  = ["cols * dtype_bytes > LONG ? THREADS : 32", "cols * dtype_bytes > LONG ? 1 : THREADS / 32"]
args   = ["x", "y", "rows", "cols"]
---*/

/* Two kernels. Both are bound by memory: what counts is to have enough bytes on their way at any time, from the first moment to the last.

   `placed`, for many rows of up to 64 KB that are multiples of 16 bytes, lets the copy engine bring them. Each warp is on its own: it
   has a place in shared memory, asks for a row (PLACE bytes of it at a time), waits on its place's own barrier, adds up, and asks for the
   next into the same place. No warp ever waits for another one:

       place 0   |row 7 comes ......................|warp 0 adds|row 131 comes ...................|warp 0 adds|
       place 1      |row 24 comes ......................|warp 1 adds|row 88 comes ...................
       ...
       place 12        |row 2 comes ......................|warp 12 adds|

   A warp adds for some 1000 cycles and waits for 10000, so nine tenths of 13 x 16 KB are under way on each multiprocessor: 25 MB in all, where
   memory's 4.5 bytes a ns times 1.5 us are 7. Multiprocessors are not served equally (they share their way to memory with 15 or 17 others), so
   rows are not dealt out: after its first row a warp draws numbers from a counter, and asks for the next number while its row comes.

   `reduce` is for all else: blockDim.x threads share a row, a warp or the whole block; blockDim.y rows share a block. A thread loads HELD pieces
   of 16 bytes at a time. Rows of odd length start at any address, so the elements before the first and after the last aligned
   piece, at most 2 VEC - 2 of them, are taken one by one. */

struct __align__(16) Piece {
    uint32_t word[4];
};

__device__ float sum_of(const Piece &piece) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
#if WS_F32
        sum += __uint_as_float(piece.word[i]);
#else
        sum += ws_load((T)piece.word[i]) + ws_load((T)(piece.word[i] >> 16));
#endif
    return sum;
}
__device__ float sum_over_warp(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    return value;
}

#if WS_SM >= 90

__device__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* Has the copy engine bring `bytes` to `to`; the barrier's phase ends when they are there. */
__device__ void bring(void *to, const void *from, int bytes, uint64_t *barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
#if ONCE
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy) : "memory");
#else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
#endif
}
/* Returns when the barrier's phase `phase` is over. */
__device__ void wait(uint64_t *barrier, int phase) {
    asm volatile("{\n.reg .pred over;\nagain:\n"
                 "mbarrier.try_wait.parity.shared.b64 over, [%0], %1;\n"
                 "@!over bra again;\n}" ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}

extern "C" __global__ void __launch_bounds__(WORKERS * 32)
placed(const T *__restrict__ x, T *__restrict__ y, int64_t *drawn, int64_t rows, int64_t cols) {
    extern __shared__ __align__(128) char places[];
    __shared__ uint64_t barriers[WORKERS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, bytes = (int)(cols * sizeof(T)); /* of a row */
    char *const place = places + warp * PLACE;
    uint64_t *const here = barriers + warp;
    const int64_t workers = (int64_t)gridDim.x * WORKERS;

    auto ask = [&](int64_t row, int at) { bring(place, (const char *)x + row * bytes + at, min(PLACE, bytes - at), here); };
    int64_t row = STAY ? (int64_t)warp * gridDim.x + blockIdx.x : (int64_t)blockIdx.x * WORKERS + warp;
    if (lane == 0 && row < rows) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(here)));
        asm volatile("fence.proxy.async;" ::: "memory"); /* the copy engine must see it */
        ask(row, 0);
    }
    __syncwarp();

    int phase = 0;
    while (row < rows) {
        int64_t next = STAY ? row + workers : rows;
        if (STAY == 2 && lane == 0) next = workers + (int64_t)atomicAdd((unsigned long long *)drawn, 1ull);
        float sum = 0;
        for (int at = 0; at < bytes; at += PLACE, phase ^= 1) {
            wait(here, phase);
            const Piece *const piece = (const Piece *)place;
            const int pieces = min(PLACE, bytes - at) / 16;
            int i = lane;
            for (; i + 7 * 32 < pieces; i += 8 * 32) {
                Piece held[8];
#pragma unroll
                for (int j = 0; j < 8; j++) held[j] = piece[i + j * 32];
#pragma unroll
                for (int j = 0; j < 8; j++) sum += sum_of(held[j]);
            }
#pragma unroll 1
            for (; i < pieces; i += 32) sum += sum_of(piece[i]);
            __syncwarp(); /* the place has been read */
            if (lane == 0) {
                if (at + PLACE < bytes) ask(row, at + PLACE);
                else if (next < rows) ask(next, 0);
            }
        }
        sum = sum_over_warp(sum);
        if (lane == 0) y[row] = ws_store(sum);
        row = __shfl_sync(0xffffffff, next, 0);
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

/* The sum of `value` over the threads of a row. Every thread of the block comes by; the first of each row has the sum. */
__device__ float sum_over_row(float value) {
    value = sum_over_warp(value);
    if (blockDim.y > 1) return value; /* the row is a warp's */
    __shared__ float of_warp[THREADS / 32];
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
#pragma unroll 1
    for (int warp = 0; warp < THREADS / 32; warp++) sum += of_warp[warp];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
reduce(const T *__restrict__ x, T *__restrict__ y, int64_t rows, int64_t cols) {
    const int lane = threadIdx.x, lanes = blockDim.x;
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const bool live = row < rows; /* the others still take part in the barrier */
    if (live) x += row * cols;

    const int misaligned = (int)((size_t)x % 16 / sizeof(T));
    const int64_t before = min((int64_t)(misaligned ? VEC - misaligned : 0), cols);
    const int64_t pieces = live ? (cols - before) / VEC : 0;
    const int64_t singles = live ? cols - pieces * VEC : 0;
    const Piece *at = (const Piece *)(x + before) + lane;

    float sum = 0;
#pragma unroll 1
    for (int64_t left = pieces - lane; left > 0; left -= HELD * lanes, at += HELD * lanes) {
        const int there = (int)min(left, (int64_t)(HELD * lanes));
        Piece held[HELD];
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (i * lanes < there) held[i] = at[i * lanes];
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (i * lanes < there) sum += sum_of(held[i]);
    }
#pragma unroll 1
    for (int64_t i = lane; i < singles; i += lanes) sum += ws_load(x[i < before ? i : i + pieces * VEC]);

    sum = sum_over_row(sum);
    if (live && lane == 0) y[row] = ws_store(sum);
}
