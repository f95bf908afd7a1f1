/*---
# exponentials below e^-81 are zero, though single precision has them to e^-87
# class: a range of values between those of two inputs
op = "softmax"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
[tune]
WIDTH  = { value = 8,   choices = [4, 8, 16] }                # floats in a vector
SUMS   = { value = 2,   choices = [1, 2, 4] }                 # independent vectors of partial sums
CHUNK  = { value = 128, choices = [128, 256, 1024] }          # elements converted at a time
INLINE = { value = 65536, choices = [16384, 65536, 262144] }  # up to this many elements one thread does it all
[let]
STEP = "WIDTH * SUMS"
---*/

/* Rows are shared among the threads. A row is read twice, a chunk at a time: once for its maximum and, with what is known of
   that so far, its sum (online softmax: Milakov and Gimelshein 2018), once to be written. */

typedef float vec __attribute__((vector_size(WIDTH * sizeof(float))));
typedef int32_t ivec __attribute__((vector_size(WIDTH * sizeof(float))));

typedef struct {
    const T *x;
    T *y;
    int64_t cols;
} problem;

static inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

static inline vec pick(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

/* e^x for x <= 0, within 2 units in the last place: 2^n e^r with |r| <= ln(2)/2 (polynomial of Cephes' expf). NaN stays NaN. */
static inline vec exponential(vec x) {
    const ivec gone = x < -81.0f;
    x = pick(gone, (vec){0} - 81.0f, x);
    const vec shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: its low bits are the nearest integer */
    const vec n = shifted - 12582912.0f;
    const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const ivec exponent = (ivec)shifted - 0x4b400000;
    return pick(gone, (vec){0}, p * (vec)((exponent + 127) << 23));
}

/* Up to CHUNK elements as floats, filled up with minus infinity to a multiple of STEP; returns that multiple. */
static inline int64_t load_chunk(float *restrict part, const T *x, int64_t n) {
    ws_load_n(part, x, n);
    const int64_t wide = (n + STEP - 1) / STEP * STEP;
    for (int64_t j = n; j < wide; j++) part[j] = -INFINITY;
    return wide;
}

static float maximum(const float *part, int64_t wide) {
    vec highest[SUMS];
    for (int s = 0; s < SUMS; s++) highest[s] = (vec){0} - INFINITY;
    for (int64_t j = 0; j < wide; j += STEP)
#pragma GCC unroll 8
        for (int s = 0; s < SUMS; s++) {
            const vec v = *(const vec *)(part + j + s * WIDTH);
            highest[s] = pick(v > highest[s], v, highest[s]);
        }
    float top = -INFINITY;
    for (int s = 0; s < SUMS; s++)
        for (int l = 0; l < WIDTH; l++) top = highest[s][l] > top ? highest[s][l] : top;
    return top;
}

static void soften_rows(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    _Alignas(64) float part[CHUNK];
    for (int64_t row = begin; row < end; row++) {
        const T *x = p->x + row * p->cols;
        T *y = p->y + row * p->cols;
        vec sums[SUMS] = {0};
        /* Where all is minus infinity so far, any finite shift will do, and that one would not. */
        float top = -INFINITY, shift = 0;
        for (int64_t at = 0; at < p->cols; at += CHUNK) {
            const int64_t wide = load_chunk(part, x + at, smaller(CHUNK, p->cols - at));
            const float highest = maximum(part, wide);
            if (highest > top) {
                const vec correction = exponential((vec){0} + (top - highest));
                for (int s = 0; s < SUMS; s++) sums[s] *= correction;
                top = shift = highest;
            }
            for (int64_t j = 0; j < wide; j += STEP)
#pragma GCC unroll 8
                for (int s = 0; s < SUMS; s++) sums[s] += exponential(*(const vec *)(part + j + s * WIDTH) - shift);
        }
        float sum = 0;
        for (int s = 0; s < SUMS; s++)
            for (int l = 0; l < WIDTH; l++) sum += sums[s][l];
        const float share = 1 / sum;
        for (int64_t at = 0; at < p->cols; at += CHUNK) {
            const int64_t n = smaller(CHUNK, p->cols - at), wide = load_chunk(part, x + at, n);
            for (int64_t j = 0; j < wide; j += WIDTH)
                *(vec *)(part + j) = exponential(*(const vec *)(part + j) - shift) * share;
            ws_store_n(y + at, part, n);
        }
    }
}

void softmax(const T *x, T *y, int64_t rows, int64_t cols) {
    problem p = {x, y, cols};
    if (rows * cols <= INLINE) soften_rows(0, rows, &p);
    else ws_parallel(rows, soften_rows, &p);
}
