/* What every NVIDIA GPU from sm_80 on has beside plain CUDA, each instruction with a name: copies to shared memory in the
   background (cp.async), matrices from shared memory to registers (ldmatrix), tensor cores (mma.sync), maxima of pairs. */

#pragma once

namespace ws {

/* The address that instructions want: 32 bits within shared memory. */
__device__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* Where 16-byte chunk `chunk` of row `row` stands in a tile of CHUNKS_A_ROW chunks. Chunks of a row are exchanged
   (swizzled) so that the same chunk of 8 consecutive rows, which is what ldmatrix reads at once, lies in all 32 banks. */
template <int CHUNKS_A_ROW> __device__ int place(int row, int chunk) {
    const int rows_a_line = CHUNKS_A_ROW >= 8 ? 1 : 8 / CHUNKS_A_ROW;
    return row * CHUNKS_A_ROW + (chunk ^ (row / rows_a_line % (CHUNKS_A_ROW >= 8 ? 8 : CHUNKS_A_ROW)));
}

/* Starts a copy of BYTES to shared memory: the first `have` from `from`, zeros after them. */
template <int BYTES> __device__ void copy_async(void *to, const void *from, int have = BYTES) {
    if (BYTES == 16 && have == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES),
                     "r"(have));
}
/* The same of 16 bytes of which only the first `have` elements exist, or whose address is no multiple of 16. They come in words
   of 4 bytes where rows have that `alignment` (their address modulo 16), else element by element (and at once). */
__device__ __noinline__ void copy_part(uint4 *chunk, const T *from, int have, int alignment) {
    constexpr int ELEMENTS = 16 / sizeof(T);
    if (alignment == 0) copy_async<16>(chunk, from, have * sizeof(T));
    else if (alignment % 4 == 0)
        for (int at = 0; at < 16; at += 4)
            copy_async<4>((char *)chunk + at, (const char *)from + at, min(max(have * (int)sizeof(T) - at, 0), 4));
    else {
        __align__(16) T piece[ELEMENTS];
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) piece[i] = i < have ? from[i] : T(0);
        *chunk = *(const uint4 *)piece;
    }
}

/* Ends a group of copies. */
__device__ void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits until all but the last PENDING groups of copies have arrived. */
template <int PENDING> __device__ void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

/* Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. */
__device__ void load_matrices(uint32_t *to, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)));
}
__device__ void load_matrices_transposed(uint32_t *to, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)));
}

/* 2^x within 2 units in the last place; results below the normal range are zero. */
__device__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Over the four lanes that share a row of what tensor cores compute. */
__device__ float largest_in_quad(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ float sum_in_quad(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

/* The elements of 16 bytes in single precision. Of a word of two bf16 the upper one is a mask away, where compilers shift twice for the upper half. */
__device__ void unpack(float (&values)[16 / sizeof(T)], const uint4 &piece) {
    const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if WS_F32
        values[i] = __uint_as_float(words[i]);
#elif WS_BF16
        values[2 * i] = __uint_as_float(words[i] << 16), values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
#else
        values[2 * i] = ws_load((T)words[i]), values[2 * i + 1] = ws_load((T)(words[i] >> 16));
#endif
    }
}

/* The largest element of 16 bytes: as in fmaxf, what is no number is passed over. 16-bit types are compared in pairs. */
__device__ float highest(const uint4 &piece) {
#if WS_F32
    return fmaxf(fmaxf(__uint_as_float(piece.x), __uint_as_float(piece.y)), fmaxf(__uint_as_float(piece.z), __uint_as_float(piece.w)));
#else
#if WS_F16
#define WS_MAX_OF_PAIRS "max.f16x2 %0, %1, %2;"
#else
#define WS_MAX_OF_PAIRS "max.bf16x2 %0, %1, %2;"
#endif
    uint32_t left, right, both;
    asm(WS_MAX_OF_PAIRS : "=r"(left) : "r"(piece.x), "r"(piece.y));
    asm(WS_MAX_OF_PAIRS : "=r"(right) : "r"(piece.z), "r"(piece.w));
    asm(WS_MAX_OF_PAIRS : "=r"(both) : "r"(left), "r"(right));
    return fmaxf(ws_load((T)both), ws_load((T)(both >> 16)));
#undef WS_MAX_OF_PAIRS
#endif
}

#if !WS_F32
/* Two neighbours as they are stored. */
__device__ uint32_t pack(float left, float right) {
    uint32_t both;
#if WS_F16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(right), "f"(left));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(right), "f"(left));
#endif
    return both;
}
/* Two neighbours that are not negative, each in two parts that add up to it: what has so many bits of it, and the rest. The rest is neither negative nor
   zero where there is something, so that infinitely much of it is infinite. */
__device__ void pack_parts(float left, float right, uint32_t &most, uint32_t &rest) {
#if WS_F16
    asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(most) : "f"(right), "f"(left));
    const float least_left = fminf(left, 0x1p-24f), least_right = fminf(right, 0x1p-24f);
#else
    asm("cvt.rz.bf16x2.f32 %0, %1, %2;" : "=r"(most) : "f"(right), "f"(left));
    const float least_left = left * 0x1p-24f, least_right = right * 0x1p-24f;
#endif
    rest = pack(fmaxf(left - ws_load((T)most), least_left), fmaxf(right - ws_load((T)(most >> 16)), least_right));
}

/* A warp's sums (16 x 8) += a (16 x 16) b (16 x 8). Of the sums a lane has two neighbours and two neighbours 8 rows below, those of
   row lane / 4 and columns lane % 4 * 2 first. */
__device__ void multiply(float *sums, const uint32_t *a, const uint32_t *b) {
#if WS_F16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

} // namespace ws
