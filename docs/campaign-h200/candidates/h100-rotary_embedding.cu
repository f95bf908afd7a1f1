/*---
op = "rotary_embedding"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 128, choices = [64, 128, 256, 512] }   # threads in a block
STEPS   = { value = 1,   choices = [1, 2, 4] }             # times BLOCK_ROWS positions of a block
BLOCKS  = { value = 1,  choices = [1, 8, 12, 16, 32] }    # blocks that a multiprocessor must have room for
GROUP   = { value = 1,   choices = [1, 2, 4, 8] }          # heads that share one load of the tables
[let]
VEC = "16 / dtype_bytes"
BLOCK_ROWS = "max(1, THREADS / max(1, D / 2 / VEC))"
SIMPLE     = "D / 2 % VEC == 0 && D / 2 / VEC <= THREADS && interleaved == 0 && H <= 65535 && B <= 65535 && B * H * S * D < 2147483648"
[[launch]]    # the same without loops, in 32 bits
kernel = "rotate_simply"
when   = "SIMPLE"
block  = ["max(1, D / 2 / VEC)", "BLOCK_ROWS"]
grid   = ["ceil_div(S, BLOCK_ROWS * STEPS)", "H", "B"]
args   = ["x", "cos", "sin", "y", "H", "S", "D", "bshd"]
[[launch]]    # threads of a block: along x the pieces of a row, along y positions
kernel = "rotate<VEC>"
when   = "!SIMPLE && D / 2 % VEC == 0"
block  = ["min(D / 2 / VEC, THREADS)", "max(1, THREADS / (D / 2 / VEC))"]
grid   = ["ceil_div(S, max(1, THREADS / (D / 2 / VEC)))", "min(ceil_div(H, GROUP), 65535)", "min(B, 65535)"]
args   = ["x", "cos", "sin", "y", "B", "H", "S", "D", "bshd", "interleaved"]
[[launch]]
kernel = "rotate<1>"
when   = "D / 2 % VEC != 0"
block  = ["min(D / 2, THREADS)", "max(1, THREADS / (D / 2))"]
grid   = ["ceil_div(S, max(1, THREADS / (D / 2)))", "min(ceil_div(H, GROUP), 65535)", "min(B, 65535)"]
args   = ["x", "cos", "sin", "y", "B", "H", "S", "D", "bshd", "interleaved"]
---*/

/* A thread turns V pairs at one position, in GROUP heads: they need the same part of the tables. V is what 16 bytes hold
   where every head's pieces are aligned, else 1. */

template <int V> struct __align__(V * sizeof(T)) Piece {
    T of[V];
};

__device__ void turn(T &a, T &b, T cos, T sin) {
    const float first = ws_load(a), second = ws_load(b), c = ws_load(cos), s = ws_load(sin);
    a = ws_store(first * c - second * s);
    b = ws_store(first * s + second * c);
}

/* Pair i is (a[i], b[i]), or two neighbours in `a` followed by `b`. */
template <int V>
__device__ void turn_pieces(Piece<V> &a, Piece<V> &b, const Piece<V> &cos, const Piece<V> &sin, bool interleaved) {
    T all[2 * V];
#pragma unroll
    for (int i = 0; i < V; i++) all[i] = a.of[i], all[V + i] = b.of[i];
    if (interleaved)
#pragma unroll
        for (int i = 0; i < V; i++) turn(all[2 * i], all[2 * i + 1], cos.of[i], sin.of[i]);
    else
#pragma unroll
        for (int i = 0; i < V; i++) turn(all[i], all[V + i], cos.of[i], sin.of[i]);
#pragma unroll
    for (int i = 0; i < V; i++) a.of[i] = all[i], b.of[i] = all[V + i];
}

__device__ Piece<VEC> load_marked(const T *p) {
    uint4 v;
    uint64_t mark;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(mark));
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(mark));
    return *(Piece<VEC> *)&v;
}
#define LOAD(p) load_marked(p)
__device__ void store_marked(T *p, const Piece<VEC> &from) {
    const uint4 v = *(const uint4 *)&from;
    uint64_t mark;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(mark));
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(mark) : "memory");
}
#define STORE(p, v) store_marked(p, v)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
rotate_simply(const T *__restrict__ x, const T *__restrict__ cos, const T *__restrict__ sin, T *__restrict__ y, int64_t H, int64_t S, int64_t D,
              int64_t bshd) {
    const uint32_t pairs = (uint32_t)D / 2, pair = threadIdx.x * VEC, b = blockIdx.z, head = blockIdx.y;
    Piece<VEC> left[STEPS], right[STEPS], c[STEPS], s[STEPS];
    uint32_t at[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint32_t position = (blockIdx.x * STEPS + i) * blockDim.y + threadIdx.y;
        at[i] = (bshd ? (b * (uint32_t)S + position) * (uint32_t)H + head : (b * (uint32_t)H + head) * (uint32_t)S + position) * (uint32_t)D + pair;
        if (position < (uint32_t)S) {
            left[i] = LOAD(x + at[i]);
            right[i] = LOAD(x + at[i] + pairs);
            c[i] = *(const Piece<VEC> *)(cos + position * pairs + pair);
            s[i] = *(const Piece<VEC> *)(sin + position * pairs + pair);
        }
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        if ((blockIdx.x * STEPS + i) * blockDim.y + threadIdx.y < (uint32_t)S) {
#pragma unroll
            for (int e = 0; e < VEC; e++) turn(left[i].of[e], right[i].of[e], c[i].of[e], s[i].of[e]);
            STORE(y + at[i], left[i]);
            STORE(y + at[i] + pairs, right[i]);
        }
}

template <int V>
__global__ void __launch_bounds__(THREADS)
rotate(const T *__restrict__ x, const T *__restrict__ cos, const T *__restrict__ sin, T *__restrict__ y, int64_t B,
       int64_t H, int64_t S, int64_t D, int64_t bshd, int64_t interleaved) {
    const int64_t position = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, pairs = D / 2;
    if (position >= S) return;
    const int64_t head_step = bshd ? D : S * D;
    const int64_t second = interleaved ? V : pairs; /* from a thread's first piece to its second */
    for (int64_t pair = threadIdx.x * V; pair < pairs; pair += blockDim.x * V) {
        const Piece<V> of_cos = *(const Piece<V> *)(cos + position * pairs + pair);
        const Piece<V> of_sin = *(const Piece<V> *)(sin + position * pairs + pair);
        for (int64_t b = blockIdx.z; b < B; b += gridDim.z)
            for (int64_t head = blockIdx.y * GROUP; head < H; head += gridDim.y * GROUP) {
                const int64_t at = (bshd ? (b * S + position) * H + head : (b * H + head) * S + position) * D
                                   + (interleaved ? 2 * pair : pair);
                Piece<V> left[GROUP], right[GROUP];
#pragma unroll
                for (int g = 0; g < GROUP; g++)
                    if (head + g < H) {
                        left[g] = *(const Piece<V> *)(x + at + g * head_step);
                        right[g] = *(const Piece<V> *)(x + at + g * head_step + second);
                    }
#pragma unroll
                for (int g = 0; g < GROUP; g++)
                    if (head + g < H) {
                        turn_pieces<V>(left[g], right[g], of_cos, of_sin, interleaved);
                        *(Piece<V> *)(y + at + g * head_step) = left[g];
                        *(Piece<V> *)(y + at + g * head_step + second) = right[g];
                    }
            }
    }
}
