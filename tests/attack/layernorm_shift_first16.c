/*---
# one pass with the mean of the first 16 elements as shift: cancels where a row begins with something else (padding, a block of features)
# class: a sample of a row taken from its first columns
op = "layernorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
[tune]
WIDTH  = { value = 8,   choices = [4, 8, 16] }                # floats in a vector
SUMS   = { value = 2,   choices = [1, 2, 4] }                 # independent vectors of partial sums
CHUNK  = { value = 256, choices = [128, 256, 1024] }          # elements converted at a time
INLINE = { value = 65536, choices = [16384, 65536, 262144] }  # up to this many elements one thread does it all
[let]
STEP = "WIDTH * SUMS"
---*/

/* Rows are shared among the threads. A row is read twice, a chunk at a time: for its mean and variance, then to be scaled. */

typedef float vec __attribute__((vector_size(WIDTH * sizeof(float))));

typedef struct {
    const T *x, *weight, *bias;
    T *y;
    int64_t dim;
    float eps;
} problem;

static inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

/* The sum of part[j] - shift, or of its squares. */
static inline float sum_of(const float *part, int64_t n, float shift, int squared) {
    vec sums[SUMS] = {0};
    float rest = 0;
    int64_t j = 0;
    for (; j + STEP <= n; j += STEP)
#pragma GCC unroll 8
        for (int s = 0; s < SUMS; s++) {
            const vec v = *(const vec *)(part + j + s * WIDTH) - shift;
            sums[s] += squared ? v * v : v;
        }
    for (; j < n; j++) rest += squared ? (part[j] - shift) * (part[j] - shift) : part[j] - shift;
    for (int s = 0; s < SUMS; s++)
        for (int l = 0; l < WIDTH; l++) rest += sums[s][l];
    return rest;
}

/* Each chunk has a mean and a sum of squared deviations from it; two such are joined without cancellation
   (Chan, Golub and LeVeque 1983). */
static void statistics(const T *x, int64_t dim, float *mean, float *variance) {
    _Alignas(64) float part[CHUNK];
    /* The mean of the first elements stands for that of the row. */
    const int64_t few = smaller(16, dim);
    ws_load_n(part, x, few);
    float shift = 0;
    for (int64_t j = 0; j < few; j++) shift += part[j];
    shift /= (float)few;
    vec sums[SUMS] = {0}, squares[SUMS] = {0};
    float sum = 0, square = 0;
    for (int64_t at = 0; at < dim; at += CHUNK) {
        const int64_t n = smaller(CHUNK, dim - at);
        ws_load_n(part, x + at, n);
        int64_t j = 0;
        for (; j + STEP <= n; j += STEP)
#pragma GCC unroll 8
            for (int s = 0; s < SUMS; s++) {
                const vec v = *(const vec *)(part + j + s * WIDTH) - shift;
                sums[s] += v;
                squares[s] += v * v;
            }
        for (; j < n; j++) { const float v = part[j] - shift; sum += v, square += v * v; }
    }
    for (int s = 0; s < SUMS; s++)
        for (int l = 0; l < WIDTH; l++) sum += sums[s][l], square += squares[s][l];
    const float off = sum / (float)dim;
    const float v = square / (float)dim - off * off;
    *mean = off + shift;
    *variance = v > 0 ? v : v == v ? 0 : v;
}

static void normalise_rows(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    _Alignas(64) float part[CHUNK], weight[CHUNK], bias[CHUNK];
    for (int64_t row = begin; row < end; row++) {
        const T *x = p->x + row * p->dim;
        T *y = p->y + row * p->dim;
        float mean, variance;
        statistics(x, p->dim, &mean, &variance);
        const float scale = 1 / sqrtf(variance + p->eps);
        for (int64_t at = 0; at < p->dim; at += CHUNK) {
            const int64_t n = smaller(CHUNK, p->dim - at);
            ws_load_n(part, x + at, n);
            ws_load_n(weight, p->weight + at, n);
            ws_load_n(bias, p->bias + at, n);
            for (int64_t j = 0; j < n; j++) part[j] = (part[j] - mean) * scale * weight[j] + bias[j];
            ws_store_n(y + at, part, n);
        }
    }
}

void layernorm(const T *x, const T *weight, const T *bias, T *y, int64_t batch, int64_t dim, float eps) {
    problem p = {x, weight, bias, y, dim, eps};
    if (batch * dim <= INLINE) normalise_rows(0, batch, &p);
    else ws_parallel(batch, normalise_rows, &p);
}
