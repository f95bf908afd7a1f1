// The ceilings' kernels. Compiled after common.cuh.

// Four loads of 16 bytes in flight for each thread.
extern "C" __global__ void __launch_bounds__(512) ws_read(const uint4 *from, uint4 *to, i64 vectors) {
    u32 all = 0;
    const i64 stride = all_threads();
    for (i64 i = first_thread(); i < vectors; i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int n = 0; n < 4; n++) v[n] = i + n * stride < vectors ? __ldcs(from + i + n * stride) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int n = 0; n < 4; n++) all ^= v[n].x ^ v[n].y ^ v[n].z ^ v[n].w;
    }
    // Never so: the compiler does not know.
    if (all == 0x9e3779b9u) to[0].x = all;
}

extern "C" __global__ void __launch_bounds__(512) ws_write(const uint4 *from, uint4 *to, i64 vectors) {
    const uint4 value = make_uint4(1, 2, 3, (u32)vectors);
    for (i64 i = first_thread(); i < vectors; i += all_threads()) __stcs(to + i, value);
}

extern "C" __global__ void __launch_bounds__(512) ws_copy(const uint4 *from, uint4 *to, i64 vectors) {
    const i64 stride = all_threads();
    for (i64 i = first_thread(); i < vectors; i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (i + n * stride < vectors) v[n] = __ldcs(from + i + n * stride);
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (i + n * stride < vectors) __stcs(to + i + n * stride, v[n]);
    }
}

// Chains of multiply-adds, enough to hide their latency: CHAINS of them a thread. They settle at one half.
#define CHAINS 16

template <class F> __device__ __forceinline__ void chains(F *sink, i64 turns) {
    F chain[CHAINS];
#pragma unroll
    for (int n = 0; n < CHAINS; n++) chain[n] = (F)(threadIdx.x + n);
    for (i64 turn = 0; turn < turns; turn++)
#pragma unroll
        for (int n = 0; n < CHAINS; n++) chain[n] = chain[n] * (F)0.5 + (F)0.25;
    F sum = 0;
#pragma unroll
    for (int n = 0; n < CHAINS; n++) sum += chain[n];
    if (sum == (F)-1) *sink = sum;
}

extern "C" __global__ void __launch_bounds__(256) ws_fma_32(float *sink, i64 turns) { chains(sink, turns); }
extern "C" __global__ void __launch_bounds__(256) ws_fma_64(double *sink, i64 turns) { chains(sink, turns); }

// The matrix units, by the instruction that every architecture since 8.0 has (newer ones have faster ones too): eight products
// in turn for each warp. Zeros are as fast as anything to count with, but draw less power, so the factors are ones.
#define TILES 8

extern "C" __global__ void __launch_bounds__(256) ws_mma_f16(float *sink, i64 turns) {
    float c[TILES][4] = {};
    const u32 one = 0x3c003c00u;
    for (i64 turn = 0; turn < turns; turn++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
                         : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3]) : "r"(one));
    float sum = 0;
    for (int n = 0; n < TILES; n++) sum += c[n][0] + c[n][1] + c[n][2] + c[n][3];
    if (sum == -1) *sink = sum;
}

extern "C" __global__ void __launch_bounds__(256) ws_mma_bf16(float *sink, i64 turns) {
    float c[TILES][4] = {};
    const u32 one = 0x3f803f80u;
    for (i64 turn = 0; turn < turns; turn++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
                         : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3]) : "r"(one));
    float sum = 0;
    for (int n = 0; n < TILES; n++) sum += c[n][0] + c[n][1] + c[n][2] + c[n][3];
    if (sum == -1) *sink = sum;
}

extern "C" __global__ void __launch_bounds__(256) ws_mma_tf32(float *sink, i64 turns) {
    float c[TILES][4] = {};
    const u32 one = 0x3f800000u;
    for (i64 turn = 0; turn < turns; turn++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
            asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
                         : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3]) : "r"(one));
    float sum = 0;
    for (int n = 0; n < TILES; n++) sum += c[n][0] + c[n][1] + c[n][2] + c[n][3];
    if (sum == -1) *sink = sum;
}
