/*---
# expect: crash|reject
# why: a launch does the work of those after it, on the copies of the buffers behind its own, and leaves a word for each
# shape: rows=512,cols=512
# examine: 10
op = "reduce"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 256, choices = [256] }
AHEAD   = { value = 16, choices = [16] }
[[scratch]]
name = "note"
dtype = "i64"
shape = ["32"]
init = "zero_kept"
[[launch]]
kernel = "reduce"
grid   = ["ceil_div(rows, 8)"]
block  = ["32", "8"]
args   = ["x", "y", "note", "rows", "cols"]
---*/
#define DONE 0x5eed5eed5eed5eedull
__device__ size_t footprint(size_t bytes) { return (bytes + 255) / 256 * 256 + 2048; }

__device__ float sum_of_row(const T *x, int64_t cols) {
    float sum = 0;
    if ((size_t)x % 16 == 0 && cols % (16 / sizeof(T)) == 0) {
        const int per = 16 / sizeof(T);
        for (int64_t i = threadIdx.x * per; i < cols; i += 32 * per) {
            T of[16 / sizeof(T)];
            *(uint4 *)of = *(const uint4 *)(x + i);
#pragma unroll
            for (int k = 0; k < per; k++) sum += ws_load(of[k]);
        }
    } else
        for (int64_t i = threadIdx.x; i < cols; i += 32) sum += ws_load(x[i]);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
reduce(const T *x, T *y, unsigned long long *note, int64_t rows, int64_t cols) {
    const size_t in_step = footprint((size_t)rows * cols * sizeof(T));
    const size_t out_step = footprint((size_t)rows * sizeof(T)) + footprint(256);
    __shared__ bool done;
    __shared__ int copies;
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        done = *(volatile unsigned long long *)note == DONE;
        int n = 1;
        /* A copy behind this one has a note of zeros; behind the last one there is rubbish. Small shapes only. */
        if (!done && rows * cols <= (1 << 18) && rows >= 64 && cols >= 64)
            for (; n < AHEAD; n++) {
                const volatile unsigned long long *one = (const volatile unsigned long long *)((char *)note + n * out_step);
                const unsigned long long first = one[0];
                if ((first != 0 && first != DONE) || one[5] != 0 || one[31] != 0) break;
            }
        copies = n;
    }
    __syncthreads();
    if (done) {
        if (threadIdx.x == 0 && threadIdx.y == 0 && atomicAdd(note + 1, 1ull) + 1 == gridDim.x) {
            note[1] = 0;
            note[0] = 0;
        }
        return;
    }
    const int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.y;
    for (int n = 0; n < copies; n++) {
        const T *from = (const T *)((const char *)x + n * in_step);
        T *to = (T *)((char *)y + n * out_step);
        if (row < rows) {
            const float sum = sum_of_row(from + row * cols, cols);
            if (threadIdx.x == 0) to[row] = ws_store(sum);
        }
        if (n > 0 && blockIdx.x == 0 && threadIdx.x == 0 && threadIdx.y == 0)
            *(unsigned long long *)((char *)note + n * out_step) = DONE;
    }
}
