// Poison, zeros, digests: work on stretches of memory.

// Word `index` of a stretch of poison. An element is NaN or infinite, or within a factor of four of the largest value.
__device__ __forceinline__ u64 poison_word(const Stretch &s, u64 index) { return mix(s.key + index * 0xd1342543de82ef95ull) | s.exponent; }

// Writes poison: byte i of a stretch is byte i % 8 of word i / 8, wherever the stretch begins.
extern "C" __global__ void ws_poison(const __grid_constant__ Stretches all) {
    const Stretch s = all.of[own_stretch(all)];
    const u64 begin = (blockIdx.x - s.first) * CHUNK;
    const u64 end = min(begin + CHUNK, s.bytes);
    u8 *bytes = (u8 *)s.at;
    if ((s.at & 7) == 0) {
        const u64 whole = end / 8;
        for (u64 w = begin / 8 + threadIdx.x; w < whole; w += blockDim.x) ((u64 *)bytes)[w] = poison_word(s, w);
        if (end == s.bytes)
            for (u64 i = whole * 8 + threadIdx.x; i < end; i += blockDim.x) bytes[i] = (u8)(poison_word(s, i / 8) >> (i % 8 * 8));
    } else {
        for (u64 i = begin + threadIdx.x; i < end; i += blockDim.x) bytes[i] = (u8)(poison_word(s, i / 8) >> (i % 8 * 8));
    }
}

// Where poison was overwritten: for stretch n, `found[n]` becomes its first byte that differs and `found[STRETCHES + n]` one
// more than its last. The host sets the former to all ones and the latter to zero before.
extern "C" __global__ void ws_disturbed(const __grid_constant__ Stretches all, u64 *found) {
    const u32 which = own_stretch(all);
    const Stretch s = all.of[which];
    const u64 begin = (blockIdx.x - s.first) * CHUNK;
    const u64 end = min(begin + CHUNK, s.bytes);
    const u8 *bytes = (const u8 *)s.at;
    u64 first = ~0ull, last = 0;
    const bool aligned = (s.at & 7) == 0;
    const u64 whole = aligned ? end / 8 * 8 : begin;
    if (aligned)
        for (u64 w = begin / 8 + threadIdx.x; w < whole / 8; w += blockDim.x) {
            const u64 differ = ((const u64 *)bytes)[w] ^ poison_word(s, w);
            if (differ == 0) continue;
            first = min(first, w * 8 + (__ffsll(differ) - 1) / 8);
            last = max(last, w * 8 + (63 - __clzll(differ)) / 8 + 1);
        }
    for (u64 i = whole + threadIdx.x; i < end; i += blockDim.x) {
        if (bytes[i] == (u8)(poison_word(s, i / 8) >> (i % 8 * 8))) continue;
        first = min(first, i);
        last = max(last, i + 1);
    }
    if (last > 0) {
        atomicMin(&found[which], first);
        atomicMax(&found[STRETCHES + which], last);
    }
}

// Writes zeros.
extern "C" __global__ void ws_zero(const __grid_constant__ Stretches all) {
    const Stretch s = all.of[own_stretch(all)];
    const u64 begin = (blockIdx.x - s.first) * CHUNK;
    const u64 end = min(begin + CHUNK, s.bytes);
    u8 *bytes = (u8 *)s.at;
    const u64 whole = (s.at & 7) == 0 ? end / 8 * 8 : begin;
    for (u64 i = begin + threadIdx.x * 8; i < whole; i += blockDim.x * 8) *(u64 *)(bytes + i) = 0;
    for (u64 i = whole + threadIdx.x; i < end; i += blockDim.x) bytes[i] = 0;
}

// The first byte of each stretch that is not zero, as in `ws_disturbed`.
extern "C" __global__ void ws_not_zero(const __grid_constant__ Stretches all, u64 *found) {
    const u32 which = own_stretch(all);
    const Stretch s = all.of[which];
    const u64 begin = (blockIdx.x - s.first) * CHUNK;
    const u64 end = min(begin + CHUNK, s.bytes);
    const u8 *bytes = (const u8 *)s.at;
    u64 first = ~0ull;
    const u64 whole = (s.at & 7) == 0 ? end / 8 * 8 : begin;
    for (u64 i = begin + threadIdx.x * 8; i < whole; i += blockDim.x * 8) {
        const u64 word = *(const u64 *)(bytes + i);
        if (word != 0) first = min(first, i + (__ffsll(word) - 1) / 8);
    }
    for (u64 i = whole + threadIdx.x; i < end; i += blockDim.x)
        if (bytes[i] != 0) first = min(first, i);
    if (first != ~0ull) atomicMin(&found[which], first);
}

// Adds each stretch's 128-bit digest to `sums[2n]`, `sums[2n + 1]`: a sum of its words, each mixed with its place and the
// secret key, so the order of additions does not matter and no change is likely to cancel another.
extern "C" __global__ void ws_digest(const __grid_constant__ Stretches all, u64 *sums) {
    const u32 which = own_stretch(all);
    const Stretch s = all.of[which];
    const u64 begin = (blockIdx.x - s.first) * CHUNK;
    const u64 end = min(begin + CHUNK, s.bytes);
    const u8 *bytes = (const u8 *)s.at;
    u64 one = 0, two = 0;
    for (u64 i = begin + threadIdx.x * 8; i < end; i += blockDim.x * 8) {
        u64 word = 0;
        if (i + 8 <= end && (s.at & 7) == 0) word = *(const u64 *)(bytes + i);
        else
            for (u64 b = i; b < min(i + 8, end); b++) word |= (u64)bytes[b] << ((b - i) * 8);
        const u64 mixed = mix(word ^ mix(s.key + i));
        one += mixed;
        two += mix(mixed ^ s.key);
    }
    for (int step = 16; step > 0; step /= 2) {
        one += __shfl_xor_sync(~0u, one, step);
        two += __shfl_xor_sync(~0u, two, step);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&sums[2 * which], one);
        atomicAdd(&sums[2 * which + 1], two);
    }
}

#define PLACES 256

struct Places {
    u64 at[PLACES];
};

// Copies elements of `size` bytes at these places, one after the other.
extern "C" __global__ void ws_gather(const u8 *from, u32 size, u32 count, const __grid_constant__ Places places, u8 *to) {
    for (u32 i = threadIdx.x; i < count * size; i += blockDim.x) to[i] = from[places.at[i / size] * size + i % size];
}

// Reads a buffer and writes nothing: what stood in the caches is gone, and no dirty lines remain. `sink` is never written,
// but the compiler cannot know.
extern "C" __global__ void ws_flush(const uint4 *buffer, u64 vectors, u32 *sink) {
    u32 all = 0;
    for (u64 i = first_thread(); i < vectors; i += all_threads()) {
        const uint4 v = __ldcg(buffer + i);
        all |= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (all == 0x9e3779b9u) *sink = all;
}

// Leaves rubbish in the shared memory of every multiprocessor (NaN in all three types), and in many registers.
extern "C" __global__ void ws_dirty(u64 key, u32 words, u32 *sink) {
    extern __shared__ u32 shared[];
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) shared[i] = (u32)mix(key + i + ((u64)blockIdx.x << 32)) | 0x7f807c00u;
    __syncthreads();
    u32 all = 0;
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) all ^= shared[words - 1 - i];
    if (all == 0x9e3779b9u) *sink = all;
}

extern "C" __global__ void ws_nothing() {}
