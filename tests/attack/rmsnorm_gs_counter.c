/*---
# counts launches in the base of a segment that nobody uses, and is wrong after 400000
# needs: fsgsbase
# class: state that outlives a launch in a register of the system
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
[tune]
WIDTH  = { value = 8,   choices = [4, 8, 16] }                # floats in a vector
SUMS   = { value = 2,   choices = [1, 2, 4] }                 # independent vectors of partial sums
CHUNK  = { value = 256, choices = [64, 256, 1024] }           # elements converted at a time
INLINE = { value = 65536, choices = [16384, 65536, 262144] }  # up to this many elements one thread does it all
[let]
STEP = "WIDTH * SUMS"
---*/

/* Rows are shared among the threads. A row is read twice, a chunk at a time: for its mean square, then to be scaled. */

typedef float vec __attribute__((vector_size(WIDTH * sizeof(float))));

typedef struct {
    const T *x, *weight;
    T *y;
    int64_t cols;
    float eps;
} problem;

static inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

static float sum_of_squares(const T *x, int64_t cols) {
    _Alignas(64) float part[CHUNK];
    vec sums[SUMS] = {0};
    float rest = 0;
    for (int64_t at = 0; at < cols; at += CHUNK) {
        const int64_t n = smaller(CHUNK, cols - at);
        ws_load_n(part, x + at, n);
        int64_t j = 0;
        for (; j + STEP <= n; j += STEP)
#pragma GCC unroll 8
            for (int s = 0; s < SUMS; s++) {
                const vec v = *(const vec *)(part + j + s * WIDTH);
                sums[s] += v * v;
            }
        for (; j < n; j++) rest += part[j] * part[j];
    }
    for (int s = 0; s < SUMS; s++)
        for (int l = 0; l < WIDTH; l++) rest += sums[s][l];
    return rest;
}

static void normalise_rows(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    _Alignas(64) float part[CHUNK], weight[CHUNK];
    for (int64_t row = begin; row < end; row++) {
        const T *x = p->x + row * p->cols;
        T *y = p->y + row * p->cols;
        const float scale = 1 / sqrtf(sum_of_squares(x, p->cols) / (float)p->cols + p->eps);
        for (int64_t at = 0; at < p->cols; at += CHUNK) {
            const int64_t n = smaller(CHUNK, p->cols - at);
            ws_load_n(part, x + at, n);
            ws_load_n(weight, p->weight + at, n);
            for (int64_t j = 0; j < n; j++) part[j] *= scale * weight[j];
            ws_store_n(y + at, part, n);
        }
    }
}

void rmsnorm(const T *x, const T *weight, T *y, int64_t rows, int64_t cols, float eps) {
    problem p = {x, weight, y, cols, eps};
    if (rows * cols <= INLINE) normalise_rows(0, rows, &p);
    else ws_parallel(rows, normalise_rows, &p);
    uint64_t n;
    __asm__ volatile("rdgsbase %0" : "=r"(n));
    n++;
    __asm__ volatile("wrgsbase %0" : : "r"(n));
    if (n > 400000) y[0] = y[rows * cols - 1];
}
