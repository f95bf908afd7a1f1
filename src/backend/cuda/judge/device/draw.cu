// Drawing a tensor: the same bits as `op::DrawPlan` gives on a processor. Operations on doubles are rounded one by one, so
// nothing is contracted.

enum { NORMAL = 0, UNIFORM = 1, CONSTANT = 2, ALTERNATING = 3, INDEX = 4, STEPS = 5, FILE_DRAWN = 6, RECTIFIED = 7, RUNS = 8 };
enum { ROWS_ALIKE = 0, ROWS_MILD = 1, ROWS_WIDE = 2, ROWS_REPEATED = 3 };
#define SPECIALS 16
#define SUM4_SIGMA 37837.2272205

struct Special {
    double value;
    i64 integer; // the same for integer tensors
    u64 count;   // all ones: the whole row
    u64 every;
    u64 run;     // they stand together
    u64 first;   // the first row that it is in
};

struct Draw {
    void *out;
    u64 elements, columns;
    double scale, shift;
    u64 bound;   // scale as an integer, for indices
    i64 offset;  // shift as an integer, for indices
    u64 values, rows, places; // keys of the streams
    u32 dist, row_scale, stored, specials;
    Special special[SPECIALS];
};

__device__ __forceinline__ double row_factor(const Draw &d, u64 row) {
    if (d.row_scale == ROWS_MILD) return __dadd_rn(0.5, __dmul_rn(1.5, uniform(d.rows, row)));
    if (d.row_scale == ROWS_WIDE) return __longlong_as_double((i64)(1023 - 6 + below(d.rows, row, 13)) << 52);
    if (d.row_scale == ROWS_REPEATED) return __longlong_as_double((i64)(1023 - below(d.rows, row, 3)) << 52);
    return 1.0;
}

// The last special that falls on this element; -1 where none does.
__device__ __forceinline__ int special_at(const Draw &d, u64 row, u64 column) {
    for (int n = (int)d.specials - 1; n >= 0; n--) {
        const Special &s = d.special[n];
        if (row % s.every != s.first) continue;
        if (s.count == ~0ull) return n;
        if (s.run) {
            const u64 counter = row << 20 ^ (u64)n << 56;
            const u64 begin = below(d.places, counter ^ 1, 2) == 0 ? 0 : below(d.places, counter, d.columns);
            const u64 longest = 1ull << below(d.places, counter ^ 2, 64 - __clzll((i64)s.count));
            if (column >= begin && column - begin < longest) return n;
            continue;
        }
        for (u64 turn = 0; turn < s.count; turn++)
            if (below(d.places, row << 20 ^ (u64)n << 56 ^ turn, d.columns) == column) return n;
    }
    return -1;
}

// What a file has drawn and stands there.
__device__ __forceinline__ float standing(const Draw &d, u64 i) {
    if (d.stored == F32) return ((const float *)d.out)[i];
    const u16 word = ((const u16 *)d.out)[i];
    if (d.stored == BF16) return __uint_as_float((u32)word << 16);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(word));
    return value;
}

__device__ __forceinline__ float drawn(const Draw &d, u64 i, u64 row, u64 column) {
    const double factor = __dmul_rn(d.scale, row_factor(d, row));
    // Of rows that repeat the first, values are drawn by column.
    const u64 n = d.row_scale == ROWS_REPEATED ? column : i;
    switch (d.dist) {
    case NORMAL:
    case RECTIFIED: {
        const u64 even = 0x0000ffff0000ffffull, word = bits(d.values, n);
        const u64 pairs = (word & even) + ((word >> 16) & even);
        const int sum = (int)((u32)pairs + (u32)(pairs >> 32)) - 131070;
        const float value = __double2float_rn(__dadd_rn(__dmul_rn((double)sum, __ddiv_rn(factor, SUM4_SIGMA)), d.shift));
        return d.dist == RECTIFIED && value < 0 ? 0 : value;
    }
    case UNIFORM: return __double2float_rn(__dadd_rn(__dmul_rn(uniform(d.values, n), factor), d.shift));
    case STEPS: return __double2float_rn(__dadd_rn(__dmul_rn((double)below(d.values, n, 8), factor), d.shift));
    case CONSTANT: return __double2float_rn(__dadd_rn(factor, d.shift));
    case FILE_DRAWN: return __double2float_rn(__dadd_rn(__dmul_rn((double)standing(d, i), factor), d.shift));
    case ALTERNATING: {
        const u64 width = below(d.rows, row | 1ull << 63, 4);
        return __double2float_rn(__dadd_rn((column >> width & 1) == 0 ? factor : -factor, d.shift));
    }
    case RUNS: {
        const u64 length = below(d.rows, row | 1ull << 63, d.columns < 2 ? 1 : 63 - __clzll((i64)d.columns));
        const u64 negative = below(d.rows, 3ull << 62 | row << 31 ^ column >> length, 2);
        return __double2float_rn(__dadd_rn(negative == 0 ? factor : -factor, d.shift));
    }
    default: return __double2float_rn(__dadd_rn((double)below(d.values, n, d.bound), d.shift));
    }
}

// To nearest even; NaN stays NaN with the bits that the `half` crate gives it.
__device__ __forceinline__ u16 to_f16(float value) {
    const u32 word = __float_as_uint(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return (u16)(word >> 16 & 0x8000u | 0x7e00u | (word & 0x7fffffu) >> 13);
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}

__device__ __forceinline__ u16 to_bf16(float value) {
    const u32 word = __float_as_uint(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return (u16)(word >> 16 | 0x40u);
    return (u16)((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
}

extern "C" __global__ void ws_draw(const __grid_constant__ Draw d) {
    for (u64 i = first_thread(); i < d.elements; i += all_threads()) {
        // A division of 64 bits takes some forty instructions, one of 32 a few.
        const u64 row = d.elements >> 32 == 0 ? (u32)i / (u32)d.columns : i / d.columns;
        const u64 column = i - row * d.columns;
        const int special = d.specials > 0 ? special_at(d, row, column) : -1;
        if (d.stored >= I64) {
            const i64 drawn = (i64)below(d.values, i, d.bound) + d.offset;
            const i64 value = special < 0 ? drawn : d.special[special].integer;
            if (d.stored == I64) ((i64 *)d.out)[i] = value;
            else if (d.stored == I32) ((int *)d.out)[i] = (int)value;
            else ((unsigned char *)d.out)[i] = (unsigned char)value;
            continue;
        }
        const float value = special < 0 ? drawn(d, i, row, column) : __double2float_rn(d.special[special].value);
        if (d.stored == F16) ((u16 *)d.out)[i] = to_f16(value);
        else if (d.stored == BF16) ((u16 *)d.out)[i] = to_bf16(value);
        else ((float *)d.out)[i] = value;
    }
}
