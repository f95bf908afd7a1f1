// Candidate against oracle: the rules of `backend::cpu::compare`, every element. A warp takes a run of whole rows, or a part
// of a long row; what it finds goes to a place of its own, and one block adds these up in a fixed order, so the result is the
// same each time.

struct Rules {
    double u, s, largest;
    double sums;      // B 2^-24
    double row_term;  // 6u, or 0
    double row_bound; // 2L
    double many;      // from so many elements on terms do not loosen an rms bound
    double rounds;    // whether wrong roundings are counted
    double sides;     // `Sides`: of which elements it is counted to which side they are off
};

struct Sums {
    double count, error, value, terms;
};

struct Found {
    u64 outside, worst_at;
    double worst, got, want, row_ratio;
    Sums sums;
    u64 misrounded;
    u64 nearer, further; // to zero than the oracle's
    u64 unused; // what follows an array of these lies on 16 bytes
};

struct Layout {
    u64 rows, row;
    u64 rows_each; // rows a warp takes, where a row is one part
    u64 parts;     // parts of a row
    u64 part;      // elements of a part
};

__device__ __forceinline__ double warp_sum(double v) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

__device__ __forceinline__ double element_ratio(const Rules &rules, double y, double r, double terms, double row_term) {
    if (isnan(r)) return isnan(y) ? 0 : MOST;
    if (isinf(r)) return y == r ? 0 : MOST;
    if (isnan(y)) return MOST;
    const double near = 0.001; // of the largest value: within it infinity and a finite value are both right
    const double bound = 2 * rules.u * fabs(r) + rules.s + rules.sums * terms + row_term;
    if (fabs(r) + bound >= (1 - near) * rules.largest && signbit(y) == signbit(r)) {
        if (isinf(y)) return 0;
        if (fabs(r) - bound > (1 + near) * rules.largest) return MOST;
        if (fabs(r) >= (1 - near) * rules.largest && fabs(y) > (1 - near) * rules.largest) return 0;
    }
    if (isinf(y)) return MOST;
    const double ratio = fabs(y - r) / bound;
    return ratio <= MOST ? ratio : MOST;
}

// `Stored::nearest`: the number of a 16-bit type nearest to a finite double. What single precision loses goes to its last bit, so
// that rounding once more is right.
__device__ __forceinline__ double nearest(int stored, double r) {
    float single = __double2float_rz(r);
    if ((double)single != r) single = __uint_as_float(__float_as_uint(single) | 1u);
    if (stored == F16) {
        u16 half;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(single));
        return decode(&half, F16, 0);
    }
    if (stored == BF16) {
        const u32 word = __float_as_uint(single);
        const u16 half = (u16)((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
        return decode(&half, BF16, 0);
    }
    return stored == F32 ? (double)__double2float_rn(r) : r;
}

// `is_misrounded`: whether another number of the type is nearer by more than single precision may be off, of a finite double.
__device__ __forceinline__ bool misrounded(int stored, double y, double r) {
    const double middle = 0x1p-21, by = nearest(stored, r);
    return y != by && !(fabs(y - r) - fabs(by - r) <= middle * fabs(r));
}

// An rms error as a multiple of its bound, `level` being the L in force.
__device__ __forceinline__ double rms_ratio(const Rules &rules, const Sums &sums, double level) {
    if (sums.count == 0) return 0;
    const double value = sqrt(sums.value / sums.count), terms = sqrt(sums.terms / sums.count);
    const double bound = (level + rules.u / sqrt(sums.count)) * value + rules.s + (sums.count >= rules.many ? 0 : rules.sums / 4) * terms;
    const double ratio = sqrt(sums.error / sums.count) / bound;
    return ratio <= MOST ? ratio : MOST;
}

// The worse of two; of equals the one with the lower index.
__device__ __forceinline__ void take_worse(Found &into, double worst, u64 at, double got, double want) {
    if (worst > into.worst || (worst == into.worst && worst > 0 && at < into.worst_at)) {
        into.worst = worst;
        into.worst_at = at;
        into.got = got;
        into.want = want;
    }
}

__device__ __forceinline__ void merge(Found &into, const Found &part) {
    into.outside += part.outside;
    into.misrounded += part.misrounded;
    into.nearer += part.nearer;
    into.further += part.further;
    into.row_ratio = fmax(into.row_ratio, part.row_ratio);
    into.sums.count += part.sums.count;
    into.sums.error += part.sums.error;
    into.sums.value += part.sums.value;
    into.sums.terms += part.sums.terms;
    take_worse(into, part.worst, part.worst_at, part.got, part.want);
}

// Count and squares of the finite values of each part of a row, for rows of several parts.
extern "C" __global__ void ws_row_squares(const __grid_constant__ Layout layout, const double *want, double2 *squares) {
    const u64 warp = first_thread() / 32, lane = threadIdx.x % 32;
    if (warp >= layout.rows * layout.parts) return;
    const u64 row = warp / layout.parts, part = warp % layout.parts;
    const u64 end = row * layout.row + min((part + 1) * layout.part, layout.row);
    double2 own = make_double2(0, 0);
    for (u64 i = row * layout.row + part * layout.part + lane; i < end; i += 32) {
        const double r = want[i];
        if (is_finite(r)) {
            own.x += 1;
            own.y += r * r;
        }
    }
    own.x = warp_sum(own.x);
    own.y = warp_sum(own.y);
    if (lane == 0) squares[warp] = own;
}

__device__ __forceinline__ double row_term_of(const Rules &rules, double count, double squares) {
    return count == 0 ? 0 : rules.row_term * sqrt(squares / count);
}

// Judges the elements from `begin` to `end`, all of one row, and adds what it finds to `found` (this lane's own elements);
// returns the sums, the same in all lanes.
__device__ __forceinline__ Sums judge_run(const Rules &rules, int stored, const void *got, const double *want, const double *all_terms,
                                          u64 begin, u64 end, double row_term, Found &found) {
    Sums sums = {0, 0, 0, 0};
    for (u64 i = begin + threadIdx.x % 32; i < end; i += 32) {
        const double y = decode(got, stored, (i64)i), r = want[i];
        // The oracle's terms of a finite value are finite; were they not, any value would pass.
        const double terms = is_finite(all_terms[i]) ? all_terms[i] : fabs(r);
        const double ratio = element_ratio(rules, y, r, terms, row_term);
        if (is_finite(y) && fabs(r) <= rules.largest) {
            const double error = y - r;
            sums.count += 1;
            sums.error += error * error;
            sums.value += r * r;
            sums.terms += terms * terms;
        }
        found.outside += !(ratio <= 1);
        if (rules.rounds != 0 && is_finite(r) && fabs(r) >= 2048 * rules.s) found.misrounded += misrounded(stored, y, r);
        if (rules.sides != 0 && is_finite(r) && is_finite(y) && (rules.sides == 2 ? misrounded(stored, y, r) : y != r)
            && fabs(r) >= 2048 * rules.s) {
            found.nearer += fabs(y) <= fabs(r);
            found.further += fabs(y) > fabs(r);
        }
        take_worse(found, ratio, i, y, r);
    }
    sums.count = warp_sum(sums.count);
    sums.error = warp_sum(sums.error);
    sums.value = warp_sum(sums.value);
    sums.terms = warp_sum(sums.terms);
    return sums;
}

extern "C" __global__ void ws_compare(const __grid_constant__ Rules rules, const __grid_constant__ Layout layout, int stored,
                                      const void *got, const double *want, const double *terms, const double2 *squares, Found *parts) {
    const u64 warp = first_thread() / 32, lane = threadIdx.x % 32;
    const bool split = layout.parts > 1;
    const u64 warps = split ? layout.rows * layout.parts : (layout.rows + layout.rows_each - 1) / layout.rows_each;
    if (warp >= warps) return;
    Found found = {0, 0, 0, 0, 0, 0, {0, 0, 0, 0}};
    Sums all = {0, 0, 0, 0};
    if (split) {
        const u64 row = warp / layout.parts, part = warp % layout.parts;
        double row_term = 0;
        if (rules.row_term > 0) {
            double count = 0, sum = 0;
            for (u64 p = 0; p < layout.parts; p++) {
                const double2 one = squares[row * layout.parts + p];
                count += one.x;
                sum += one.y;
            }
            row_term = row_term_of(rules, count, sum);
        }
        const u64 begin = row * layout.row + part * layout.part;
        all = judge_run(rules, stored, got, want, terms, begin, row * layout.row + min((part + 1) * layout.part, layout.row), row_term, found);
    } else {
        const u64 last = min((warp + 1) * layout.rows_each, layout.rows);
        for (u64 row = warp * layout.rows_each; row < last; row++) {
            const u64 begin = row * layout.row, end = begin + layout.row;
            double row_term = 0;
            if (rules.row_term > 0) {
                double count = 0, sum = 0;
                for (u64 i = begin + lane; i < end; i += 32) {
                    const double r = want[i];
                    if (is_finite(r)) {
                        count += 1;
                        sum += r * r;
                    }
                }
                row_term = row_term_of(rules, warp_sum(count), warp_sum(sum));
            }
            const Sums one = judge_run(rules, stored, got, want, terms, begin, end, row_term, found);
            found.row_ratio = fmax(found.row_ratio, rms_ratio(rules, one, rules.row_bound));
            all.count += one.count;
            all.error += one.error;
            all.value += one.value;
            all.terms += one.terms;
        }
    }
    for (int step = 16; step > 0; step /= 2) {
        found.outside += __shfl_xor_sync(~0u, found.outside, step);
        found.misrounded += __shfl_xor_sync(~0u, found.misrounded, step);
        found.nearer += __shfl_xor_sync(~0u, found.nearer, step);
        found.further += __shfl_xor_sync(~0u, found.further, step);
        const double worst = __shfl_xor_sync(~0u, found.worst, step);
        const u64 at = __shfl_xor_sync(~0u, found.worst_at, step);
        const double y = __shfl_xor_sync(~0u, found.got, step), r = __shfl_xor_sync(~0u, found.want, step);
        take_worse(found, worst, at, y, r);
    }
    found.sums = all;
    if (lane == 0) parts[warp] = found;
}

// Adds up what the warps found: one block of 256 threads, each over places of its own in order, then pairwise.
extern "C" __global__ void ws_compare_all(const __grid_constant__ Rules rules, const __grid_constant__ Layout layout, const Found *parts,
                                          Found *result) {
    __shared__ Found shared[256];
    const bool split = layout.parts > 1;
    const u64 units = split ? layout.rows : (layout.rows + layout.rows_each - 1) / layout.rows_each;
    Found own = {0, 0, 0, 0, 0, 0, {0, 0, 0, 0}};
    for (u64 unit = threadIdx.x; unit < units; unit += 256) {
        if (!split) {
            merge(own, parts[unit]);
            continue;
        }
        Found row = {0, 0, 0, 0, 0, 0, {0, 0, 0, 0}};
        for (u64 p = 0; p < layout.parts; p++) merge(row, parts[unit * layout.parts + p]);
        row.row_ratio = rms_ratio(rules, row.sums, rules.row_bound);
        merge(own, row);
    }
    shared[threadIdx.x] = own;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (threadIdx.x < step) merge(shared[threadIdx.x], shared[threadIdx.x + step]);
        __syncthreads();
    }
    if (threadIdx.x == 0) *result = shared[0];
}
