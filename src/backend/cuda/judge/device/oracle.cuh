// What an operation's header may use. An item is the threads of a block that share `threadIdx.y`: a warp, or a whole block where there are too few
// items to fill the device.

typedef long long int64_t;
typedef unsigned long long ws_word;

#ifndef INFINITY
#define INFINITY (__longlong_as_double(0x7ff0000000000000ll))
#endif
#ifndef NAN
#define NAN (__longlong_as_double(0x7ff8000000000000ll))
#endif

struct ws_all {
    const void *inputs[WS_INPUTS];
    double *values[WS_ARRAYS];
    double *terms[WS_ARRAYS];
    int64_t symbols[WS_SYMBOLS];
    double scalars[WS_SCALARS];
    int64_t stored; // what the case's tensors hold
};

// Element types, in the order of `op::Stored`. Chosen when the kernel runs: one for each type would take three times as long to
// compile, and these kernels wait for memory.
__device__ __forceinline__ double ws_element(const int ws_stored, const void *ws_data, int64_t ws_i) {
    if (ws_stored == 0) {
        float ws_value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(ws_value) : "h"(((const unsigned short *)ws_data)[ws_i]));
        return (double)ws_value;
    }
    if (ws_stored == 1) return (double)__uint_as_float((unsigned)((const unsigned short *)ws_data)[ws_i] << 16);
    if (ws_stored == 2) return (double)((const float *)ws_data)[ws_i];
    return (double)((const int64_t *)ws_data)[ws_i];
}

__device__ __forceinline__ int64_t ws_lane() { return threadIdx.x; }
__device__ __forceinline__ int64_t ws_lanes() { return blockDim.x; }
__device__ __forceinline__ int64_t ws_team() { return (int64_t)blockIdx.x * blockDim.y + threadIdx.y; }
__device__ __forceinline__ int64_t ws_teams() { return (int64_t)gridDim.x * blockDim.y; }

__device__ __forceinline__ double ws_added(double ws_a, double ws_b) { return ws_a + ws_b; }
// As a sequence of `if (v > top) top = v` would: NaN is never the largest, unless there is nothing else.
__device__ __forceinline__ double ws_larger(double ws_a, double ws_b) { return ws_b > ws_a || ws_a != ws_a ? ws_b : ws_a; }

// What the lanes of an item have, as one value; all get the same bits: an exchange adds a to b where its partner adds b to a, and the warps'
// values are combined in one order by all.
template <double (*ws_both)(double, double)> __device__ __forceinline__ double ws_combined(double ws_v) {
    for (int ws_step = 16; ws_step > 0; ws_step /= 2) ws_v = ws_both(ws_v, __shfl_xor_sync(~0u, ws_v, ws_step));
    if (blockDim.x == 32) return ws_v;
    __shared__ double ws_parts[32];
    __syncthreads(); // the last ones have been read
    if (threadIdx.x % 32 == 0) ws_parts[threadIdx.x / 32] = ws_v;
    __syncthreads();
    ws_v = ws_parts[0];
    for (int ws_warp = 1; ws_warp < blockDim.x / 32; ws_warp++) ws_v = ws_both(ws_v, ws_parts[ws_warp]);
    return ws_v;
}
__device__ __forceinline__ double ws_sum(double ws_v) { return ws_combined<ws_added>(ws_v); }
__device__ __forceinline__ double ws_max(double ws_v) { return ws_combined<ws_larger>(ws_v); }

#define WS_PASS(name) \
    __device__ __forceinline__ void ws_pass_##name(const ws_all &ws_context, const int64_t WS_ITEM, const int64_t ws_slot)
// Several at a time, so that a warp does not wait for each by itself.
#define WS_EACH(j, n) _Pragma("unroll 4") for (int64_t j = ws_lane(), ws_end_##j = (n); j < ws_end_##j; j += ws_lanes())
// `Dtype::underflow` of the case's dtype.
#define WS_UNDERFLOW (ws_context.stored == 0 ? 2.98023223876953125e-8 : 1.1754943508222875e-38)
#define ws_get(h, i) (ws_values_##h[i])
#define ws_get_abs(h, i) (ws_terms_##h[i])
// Checkers write to the slot of their item instead; terms that nobody asks for have no array.
#define ws_put(h, i, value, abs)                          \
    do {                                                  \
        const int64_t ws_at = ws_slot < 0 ? (i) : ws_slot; \
        ws_values_##h[ws_at] = (value);                   \
        if (ws_terms_##h) ws_terms_##h[ws_at] = (abs);      \
    } while (0)

struct ws_places {
    ws_word at[64];
};

// Item number `ws_n` of ranges: pairs of a range's first item and how many items are before it, all ones where there is none.
__device__ __forceinline__ int64_t ws_nth(const ws_places &ws_ranges, int64_t ws_n) {
    int ws_range = 0;
    while (ws_range < 31 && ws_ranges.at[2 * ws_range + 3] <= (ws_word)ws_n) ws_range++;
    return (int64_t)ws_ranges.at[2 * ws_range] + ws_n - (int64_t)ws_ranges.at[2 * ws_range + 1];
}

// The items of some ranges.
#define WS_RUN(entry, pass)                                                                                            \
    extern "C" __global__ void entry(const __grid_constant__ ws_all ws_context, const __grid_constant__ ws_places ws_ranges, \
                                     int64_t ws_count) {                                                               \
        for (int64_t ws_n = ws_team(); ws_n < ws_count; ws_n += ws_teams())                                            \
            ws_pass_##pass(ws_context, ws_nth(ws_ranges, ws_n), -1);                                                   \
    }

// For a pass that checks a product, an item a warp. 0: a sample of its elements, each into a slot of its own. 1: those of its elements that are
// not finite, in place (the context's arrays of the pass are then the product's). 2: the elements of some ranges, in place.
#define WS_CHECK(entry, pass)                                                                                          \
    extern "C" __global__ void entry(const __grid_constant__ ws_all ws_context, const __grid_constant__ ws_places ws_sample, \
                                     const int ws_mode, const double *ws_product, int64_t ws_count) {                  \
        const int64_t ws_each = ws_mode == 1 ? 32 : 1; /* items that a warp looks at together */                       \
        for (int64_t ws_base = ws_team() * ws_each; ws_base < ws_count; ws_base += ws_teams() * ws_each) {             \
            const int64_t ws_own = ws_base + ws_lane();                                                                \
            const bool ws_inside = ws_own < ws_count && ws_lane() < ws_each;                                           \
            unsigned ws_left = __ballot_sync(                                                                          \
                ~0u, ws_inside && (ws_mode != 1 || !(::fabs(ws_product[ws_own]) <= 1.7976931348623157e308)));          \
            while (ws_left != 0) {                                                                                     \
                const int64_t ws_place = ws_base + __ffs(ws_left) - 1;                                                 \
                ws_left &= ws_left - 1;                                                                                \
                const int64_t ws_item = ws_mode == 0   ? (int64_t)ws_sample.at[ws_place]                               \
                                        : ws_mode == 1 ? ws_place                                                      \
                                                       : ws_nth(ws_sample, ws_place);                                  \
                ws_pass_##pass(ws_context, ws_item, ws_mode == 2 ? -1 : ws_place);                                     \
            }                                                                                                          \
        }                                                                                                              \
    }
