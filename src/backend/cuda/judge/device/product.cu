// The trusted product in double precision, where no library is found; and what surrounds it.

// Every element as a double, and its absolute value.
extern "C" __global__ void ws_decode(const void *from, int stored, i64 count, double *values, double *terms) {
    for (i64 i = first_thread(); i < count; i += all_threads()) {
        const double value = decode(from, stored, i);
        if (values) values[i] = value;
        if (terms) terms[i] = fabs(value);
    }
}

struct Matrices {
    const double *a, *b;
    double *c;
    i64 m, n, k;
    i64 a_step, b_step, c_step;    // between rows as they are stored
    i64 a_next, b_next, c_next;    // between matrices
    int trans_b;
};

#define TILE 64
#define DEEP 16

// c = a b for blockIdx.z-many matrices; a block makes 64 x 64 elements, a thread 4 x 4 of them.
extern "C" __global__ void __launch_bounds__(256) ws_product(const __grid_constant__ Matrices p) {
    __shared__ double left[DEEP][TILE + 1], right[DEEP][TILE + 1];
    const double *a = p.a + blockIdx.z * p.a_next, *b = p.b + blockIdx.z * p.b_next;
    double *c = p.c + blockIdx.z * p.c_next;
    const i64 tiles_n = (p.n + TILE - 1) / TILE;
    const i64 row0 = blockIdx.x / tiles_n * TILE, column0 = blockIdx.x % tiles_n * TILE;
    const int across = threadIdx.x % 16, down = threadIdx.x / 16;
    double sums[4][4] = {};
    for (i64 k0 = 0; k0 < p.k; k0 += DEEP) {
        for (int i = threadIdx.x; i < TILE * DEEP; i += 256) {
            const int l = i % DEEP, r = i / DEEP;
            const bool inside = row0 + r < p.m && k0 + l < p.k;
            left[l][r] = inside ? a[(row0 + r) * p.a_step + k0 + l] : 0;
        }
        for (int i = threadIdx.x; i < TILE * DEEP; i += 256) {
            const int l = p.trans_b ? i % DEEP : i / TILE, j = p.trans_b ? i / DEEP : i % TILE;
            const bool inside = column0 + j < p.n && k0 + l < p.k;
            const i64 at = p.trans_b ? (column0 + j) * p.b_step + k0 + l : (k0 + l) * p.b_step + column0 + j;
            right[l][j] = inside ? b[at] : 0;
        }
        __syncthreads();
        // Padding would turn 0 * inf into NaN: only what is there is added.
        const int depth = (int)min((i64)DEEP, p.k - k0);
        for (int l = 0; l < depth; l++) {
            double x[4], y[4];
            for (int i = 0; i < 4; i++) x[i] = left[l][down + 16 * i];
            for (int j = 0; j < 4; j++) y[j] = right[l][across + 16 * j];
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sums[i][j] += x[i] * y[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const i64 row = row0 + down + 16 * i, column = column0 + across + 16 * j;
            if (row < p.m && column < p.n) c[row * p.c_step + column] = sums[i][j];
        }
}

#define SAMPLE 64

struct Sample {
    u64 at[SAMPLE];
};

struct Disagreement {
    u64 one_more; // number of the sample's element, plus one; 0 where all agree
    double product, plain;
};

// Compares a product with what its checker found for a sample of its elements (one block). Two sums of k terms in different
// orders differ by at most 2k roundings of their terms.
extern "C" __global__ void ws_agree(const double *values, const double *terms, const double *plain, const double *plain_terms,
                                    const __grid_constant__ Sample sample, u32 count, double slack, Disagreement *result) {
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        const double limit = slack * plain_terms[i];
        const double a = values[sample.at[i]], b = plain[i];
        double c = plain_terms[i], d = plain_terms[i];
        if (terms) c = terms[sample.at[i]];
        const bool value = a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= limit;
        const bool term = c == d || (isnan(c) && isnan(d)) || fabs(c - d) <= limit;
        if (value && term) continue;
        if (atomicCAS(&result->one_more, 0ull, (u64)i + 1) == 0) {
            result->product = value ? c : a;
            result->plain = value ? d : b;
        }
    }
}
