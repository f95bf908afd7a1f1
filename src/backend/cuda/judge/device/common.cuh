// What the judge's kernels share. No headers: NVRTC compiles this where none are installed.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// Element types, in the order of `op::Stored`.
enum { F16 = 0, BF16 = 1, F32 = 2, I64 = 3, I32 = 4 };

#define INFINITE __longlong_as_double(0x7ff0000000000000ll)
#define MOST __longlong_as_double(0x7fefffffffffffffll)

// The SplitMix64 finaliser of `rng::mix`.
__device__ __forceinline__ u64 mix(u64 z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// `rng::Stream` with this key.
__device__ __forceinline__ u64 bits(u64 key, u64 index) { return mix(key ^ mix(index)); }
__device__ __forceinline__ u64 below(u64 key, u64 index, u64 bound) { return __umul64hi(bits(key, index), bound); }
__device__ __forceinline__ double uniform(u64 key, u64 index) {
    return __dmul_rn((double)(bits(key, index) >> 40), 1.0 / 16777216.0);
}

// Any element as a double, exactly (integers beyond 2^53 to nearest).
__device__ __forceinline__ double decode(const void *data, int stored, i64 i) {
    if (stored == F16) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(((const u16 *)data)[i]));
        return (double)value;
    }
    if (stored == BF16) return (double)__uint_as_float((u32)((const u16 *)data)[i] << 16);
    if (stored == F32) return (double)((const float *)data)[i];
    return (double)((const i64 *)data)[i];
}

__device__ __forceinline__ bool is_finite(double v) { return fabs(v) <= MOST; }

__device__ __forceinline__ i64 first_thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ i64 all_threads() { return (i64)gridDim.x * blockDim.x; }

// Stretches of memory that one launch works on, each cut in chunks of CHUNK bytes; a block takes a chunk.
#define CHUNK 65536
#define STRETCHES 64

struct Stretch {
    u64 at;       // address of its first byte
    u64 bytes;
    u64 exponent; // bits that are always set in a word of poison
    u64 key;      // what the words are drawn from
    u64 first;    // number of its first chunk
};

struct Stretches {
    u64 count;
    Stretch of[STRETCHES];
};

// The stretch that this block's chunk belongs to.
__device__ __forceinline__ u32 own_stretch(const Stretches &all) {
    u32 low = 0, high = (u32)all.count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (all.of[middle].first <= blockIdx.x) low = middle;
        else high = middle;
    }
    return low;
}
