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

// What the word at byte `i` of a stretch adds to its digest.
__device__ __forceinline__ void add_word(u64 &one, u64 &two, u64 key, u64 i, u64 word) {
    const u64 mixed = mix(word ^ mix(key + i));
    one += mixed;
    two += mix(mixed ^ key);
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
        add_word(one, two, s.key, i, word);
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

// Puts `bits` under `mask` into the word at byte `i` of a buffer of `bytes` bytes, and what that changes of its digest into
// `sums` where there are any. Nothing else of the buffer is read: what somebody changed there stays different from its digest.
__device__ __forceinline__ void change_word(u8 *buffer, u64 bytes, u64 i, u64 bits, u64 mask, u64 *sums, u64 key) {
    u64 *word = (u64 *)(buffer + i);
    u64 before = *word, seen;
    // Other threads may change other bytes of the same word.
    do {
        seen = before;
        before = atomicCAS(word, seen, (seen & ~mask) | (bits & mask));
    } while (before != seen);
    if (sums == nullptr) return;
    // A digest takes the bytes behind a buffer's last for zeros.
    const u64 inside = bytes - i >= 8 ? ~0ull : (1ull << (bytes - i) * 8) - 1;
    u64 one = 0, two = 0, old_one = 0, old_two = 0;
    add_word(old_one, old_two, key, i, before & inside);
    add_word(one, two, key, i, ((before & ~mask) | (bits & mask)) & inside);
    atomicAdd(&sums[0], one - old_one);
    atomicAdd(&sums[1], two - old_two);
}

#define POKED 256

struct Bytes {
    u8 at[POKED];
};

// Overwrites `count` bytes from byte `from` of a buffer on.
extern "C" __global__ void ws_poke(u8 *buffer, u64 bytes, u64 from, u32 count, const __grid_constant__ Bytes data, u64 *sums, u64 key) {
    for (u64 i = from / 8 * 8 + threadIdx.x * 8; i < from + count; i += blockDim.x * 8) {
        u64 bits = 0, mask = 0;
        for (u64 b = 0; b < 8; b++) {
            if (i + b < from || i + b >= from + count) continue;
            bits |= (u64)data.at[i + b - from] << b * 8;
            mask |= 0xffull << b * 8;
        }
        change_word(buffer, bytes, i, bits, mask, sums, key);
    }
}

#define EXCHANGES 96

struct Exchange {
    u64 buffer, bytes;
    u64 from, to;  // bytes
    u32 size;      // of an element, a divisor of 8
    u32 slot;      // where the buffer's digest is, or all ones
};

struct Exchanges {
    u64 count;
    Exchange of[EXCHANGES];
};

// Copies elements over others of the same buffer.
extern "C" __global__ void ws_exchange(const __grid_constant__ Exchanges all, u64 *recorded, u64 key) {
    for (u64 n = threadIdx.x; n < all.count; n += blockDim.x) {
        const Exchange e = all.of[n];
        u8 *buffer = (u8 *)e.buffer;
        const u64 ones = e.size == 8 ? ~0ull : (1ull << e.size * 8) - 1;
        const u64 value = *(const volatile u64 *)(buffer + e.from / 8 * 8) >> e.from % 8 * 8 & ones;
        u64 *sums = e.slot == ~0u ? nullptr : recorded + 2 * (u64)e.slot;
        change_word(buffer, e.bytes, e.to / 8 * 8, value << e.to % 8 * 8, ones << e.to % 8 * 8, sums, key);
    }
}

#define PLACES 256

struct Places {
    u64 at[PLACES]; // an address, and above it in the highest byte how many bytes (at most 8)
};

// Copies these bytes, each to a word of its own.
extern "C" __global__ void ws_gather(u32 count, const __grid_constant__ Places places, u64 *to) {
    for (u32 n = threadIdx.x; n < count; n += blockDim.x) {
        const u8 *from = (const u8 *)(places.at[n] & ~(0xffull << 56));
        u64 word = 0;
        for (u64 b = 0; b < places.at[n] >> 56; b++) word |= (u64)from[b] << b * 8;
        to[n] = word;
    }
}

// NaN in all three types.
__device__ __forceinline__ u32 rubbish(u64 key, u32 i) { return (u32)mix(key + i + ((u64)blockIdx.x << 32)) | 0x7f807c00u; }

// Leaves rubbish in a block's shared memory, and in what lies below it for the system (1 KB from sm_80 on), which a candidate's address can
// reach as well; on an H200 nothing came of writing there.
__device__ __forceinline__ void litter_shared(u32 *shared, u64 key, u32 words) {
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) shared[i] = rubbish(key, i);
    u32 below, end;
    asm volatile("mov.u32 %0, %%reserved_smem_offset_begin; mov.u32 %1, %%reserved_smem_offset_end;" : "=r"(below), "=r"(end));
    for (u32 at = below + 4 * threadIdx.x; at < end; at += 4 * blockDim.x)
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(rubbish(~key, at)) : "memory");
}

// Reads a buffer and writes nothing to device memory: what stood in the caches is gone, and no dirty lines remain. Leaves
// rubbish in shared memory. There never is a `sink`, but the compiler cannot know.
extern "C" __global__ void __launch_bounds__(1024) ws_flush(const uint4 *buffer, u64 vectors, u64 key, u32 words, u32 *sink) {
    extern __shared__ u32 shared[];
    litter_shared(shared, key, words);
    u32 all = 0;
#pragma unroll 8
    for (u64 i = first_thread(); i < vectors; i += all_threads()) {
        const uint4 v = __ldcg(buffer + i);
        all |= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sink != nullptr) *sink = shared[all % words];
}

// Leaves rubbish in the shared memory of every multiprocessor.
extern "C" __global__ void ws_dirty(u64 key, u32 words, u32 *sink) {
    extern __shared__ u32 shared[];
    litter_shared(shared, key, words);
    __syncthreads();
    u32 all = 0;
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) all ^= shared[words - 1 - i];
    if (sink != nullptr) *sink = all;
}

// Leaves rubbish in the registers: a block takes all of a multiprocessor's.
extern "C" __global__ void __launch_bounds__(256, 1) ws_registers(u64 key, u32 turns, u32 *sink) {
    u32 all[192];
#pragma unroll
    for (u32 i = 0; i < 192; i++) all[i] = rubbish(key + threadIdx.x, i);
    // Each needs another, so that all are there at the same time.
    for (u32 turn = 0; turn < turns; turn++)
#pragma unroll
        for (u32 i = 0; i < 192; i++) all[i] = (all[i] ^ all[(i + 97) % 192] >> 9) | 0x7f807c00u;
    u32 sum = 0;
#pragma unroll
    for (u32 i = 0; i < 192; i++) sum ^= all[i];
    if (sink != nullptr) *sink = sum;
}

#define STACK 256

// Leaves rubbish where threads keep their stacks.
extern "C" __global__ void ws_stack(u64 key, u32 words, u32 *sink) {
    u32 all[STACK];
    for (u32 i = 0; i < words; i++) all[i] = rubbish(key + threadIdx.x, i);
    // Read at places that are known only now: they must be in memory.
    u32 sum = 0;
    for (u32 i = 0; i < words; i++) sum ^= all[(i * 7 + (u32)key) % STACK];
    if (sink != nullptr) *sink = sum;
}

extern "C" __global__ void ws_nothing() {}
