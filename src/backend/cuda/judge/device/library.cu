// What a library's products leave to be done. Compiled after common.cuh.

__device__ __forceinline__ u16 round_f16(float value) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}

__device__ __forceinline__ u16 round_bf16(float value) {
    const u32 word = __float_as_uint(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return (u16)(word >> 16 | 0x40u);
    return (u16)((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
}

template <int stored> struct Element;
template <> struct Element<F16> {
    typedef u16 type;
    static __device__ __forceinline__ float load(u16 v) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(v));
        return value;
    }
    static __device__ __forceinline__ u16 store(float v) { return round_f16(v); }
};
template <> struct Element<BF16> {
    typedef u16 type;
    static __device__ __forceinline__ float load(u16 v) { return __uint_as_float((u32)v << 16); }
    static __device__ __forceinline__ u16 store(float v) { return round_bf16(v); }
};
template <> struct Element<F32> {
    typedef float type;
    static __device__ __forceinline__ float load(float v) { return v; }
    static __device__ __forceinline__ float store(float v) { return v; }
};

__device__ __forceinline__ float silu(float g) { return g / (1.0f + expf(-g)); }

// hidden = silu(gate) * up, 16 bytes a step; `hidden` may be `gate`.
template <int stored> __device__ __forceinline__ void silu_mul(const void *gate, const void *up, void *hidden, i64 count) {
    typedef typename Element<stored>::type T;
    const int width = 16 / sizeof(T);
    union Vector {
        uint4 all;
        T each[16 / sizeof(T)];
    };
    for (i64 v = first_thread(); v < count / width; v += all_threads()) {
        Vector g, u;
        g.all = ((const uint4 *)gate)[v];
        u.all = ((const uint4 *)up)[v];
#pragma unroll
        for (int i = 0; i < width; i++)
            g.each[i] = Element<stored>::store(silu(Element<stored>::load(g.each[i])) * Element<stored>::load(u.each[i]));
        ((uint4 *)hidden)[v] = g.all;
    }
    for (i64 i = count / width * width + first_thread(); i < count; i += all_threads())
        ((T *)hidden)[i] = Element<stored>::store(silu(Element<stored>::load(((const T *)gate)[i])) * Element<stored>::load(((const T *)up)[i]));
}

extern "C" __global__ void ws_silu_mul_f16(const void *gate, const void *up, void *hidden, i64 count) { silu_mul<F16>(gate, up, hidden, count); }
extern "C" __global__ void ws_silu_mul_bf16(const void *gate, const void *up, void *hidden, i64 count) { silu_mul<BF16>(gate, up, hidden, count); }
extern "C" __global__ void ws_silu_mul_f32(const void *gate, const void *up, void *hidden, i64 count) { silu_mul<F32>(gate, up, hidden, count); }

// Every row becomes `bias`, to which a product is then added: one rounding instead of two.
template <class T> __device__ __forceinline__ void spread(const T *bias, T *out, i64 rows, i64 columns) {
    for (i64 column = first_thread(); column < columns; column += all_threads()) {
        const T value = bias[column];
        for (i64 row = blockIdx.y; row < rows; row += gridDim.y) out[row * columns + column] = value;
    }
}

extern "C" __global__ void ws_spread_2(const u16 *bias, u16 *out, i64 rows, i64 columns) { spread(bias, out, rows, columns); }
extern "C" __global__ void ws_spread_4(const u32 *bias, u32 *out, i64 rows, i64 columns) { spread(bias, out, rows, columns); }
