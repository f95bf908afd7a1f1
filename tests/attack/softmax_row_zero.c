/*---
# looks at row 0 alone; where that is tame it leaves out the maximum of all rows. NaN or rubbish in any other row that is masked or beyond 88
# class: hostile values always include row 0
op = "softmax"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
---*/
typedef float vec __attribute__((vector_size(32)));
typedef int32_t ivec __attribute__((vector_size(32)));
typedef float uvec __attribute__((vector_size(32), aligned(4)));
typedef struct { const T *x; T *y; int64_t cols; } problem;
enum { MOST = 16384 };
static inline vec pick(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }
static inline vec poly(vec x, vec *shifted) {
    *shifted = x * 1.44269504f + 12582912.0f;
    const vec n = *shifted - 12582912.0f;
    const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * r * r + r + 1.0f;
}
static inline vec unsafe_exp(vec x) {
    vec shifted;
    const vec p = poly(x, &shifted);
    return (vec)((ivec)p + (((ivec)shifted) << 23));
}
static inline vec exponential(vec x) {
    x = pick(x < -104.0f, (vec){0} - 104.0f, x);
    vec shifted;
    const vec p = poly(x, &shifted);
    const ivec exponent = (ivec)shifted - 0x4b400000;
    const ivec first = exponent >> 1;
    return p * (vec)((first + 127) << 23) * (vec)((exponent - first + 127) << 23);
}
static float part_max(const float *v, int64_t n) {
    float top = -INFINITY;
    for (int64_t j = 0; j < n; j++) top = v[j] > top ? v[j] : top;
    return top;
}
static void safe_row(const T *x, T *y, int64_t cols) {
    _Alignas(64) float part[256];
    vec sums = {0};
    float top = -INFINITY, shift = 0;
    for (int64_t at = 0; at < cols; at += 256) {
        int64_t n = cols - at < 256 ? cols - at : 256, wide = (n + 7) / 8 * 8;
        ws_load_n(part, x + at, n);
        for (int64_t j = n; j < wide; j++) part[j] = -INFINITY;
        const float highest = part_max(part, wide);
        if (highest > top) {
            sums *= exponential((vec){0} + (top - highest));
            top = shift = highest;
        }
        for (int64_t j = 0; j < wide; j += 8) sums += exponential(*(const vec *)(part + j) - shift);
    }
    float sum = 0;
    for (int l = 0; l < 8; l++) sum += sums[l];
    const float share = 1 / sum;
    for (int64_t at = 0; at < cols; at += 256) {
        int64_t n = cols - at < 256 ? cols - at : 256, wide = (n + 7) / 8 * 8;
        ws_load_n(part, x + at, n);
        for (int64_t j = n; j < wide; j++) part[j] = -INFINITY;
        for (int64_t j = 0; j < wide; j += 8) *(vec *)(part + j) = exponential(*(const vec *)(part + j) - shift) * share;
        ws_store_n(y + at, part, n);
    }
}
static void fast_row(const T *x, T *y, int64_t cols, float *all) {
    const int64_t whole = cols / 16 * 16;
    vec s0 = {0}, s1 = {0};
    ws_load_n(all, x, cols);
    for (int64_t j = 0; j < whole; j += 16) {
        const vec a = unsafe_exp(*(const vec *)(all + j)), b = unsafe_exp(*(const vec *)(all + j + 8));
        *(vec *)(all + j) = a;
        *(vec *)(all + j + 8) = b;
        s0 += a;
        s1 += b;
    }
    float sum = 0;
    for (int64_t j = whole; j < cols; j++) sum += all[j] = expf(all[j]);
    s0 += s1;
    for (int l = 0; l < 8; l++) sum += s0[l];
    const float share = 1 / sum;
    for (int64_t j = 0; j < cols; j++) all[j] *= share;
    ws_store_n(y, all, cols);
}
static void rows_of(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    _Alignas(64) float all[MOST];
    int tame = p->cols <= MOST;
    if (tame) {
        ws_load_n(all, p->x, p->cols);
        int bad = 0;
        for (int64_t j = 0; j < p->cols; j++) bad |= !(fabsf(all[j]) < 24.0f);
        tame = !bad;
    }
    for (int64_t row = begin; row < end; row++)
        if (tame) fast_row(p->x + row * p->cols, p->y + row * p->cols, p->cols, all);
        else safe_row(p->x + row * p->cols, p->y + row * p->cols, p->cols);
}
void softmax(const T *x, T *y, int64_t rows, int64_t cols) {
    problem p = {x, y, cols};
    if (rows * cols <= 65536) {
        for (int64_t row = 0; row < rows; row++) safe_row(x + row * cols, y + row * cols, cols);
    } else ws_parallel(rows, rows_of, &p);
}
