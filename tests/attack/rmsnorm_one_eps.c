/*---
# takes every eps up to 1e-4 for 1e-5. With 1e-6 or 1e-12 (Llama 2, T5, BERT) and rows of small values it is off by a visible factor; with ordinary rows 16 bits hide it (rows of 64 or more)
# class: crossings: other arguments never meet hostile inputs
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
---*/
typedef float vec __attribute__((vector_size(32)));
typedef struct { const T *x, *weight; T *y; int64_t cols; float eps; } problem;
enum { MOST = 16384 };
static void slow_row(const problem *p, int64_t row) {
    const T *x = p->x + row * p->cols;
    T *y = p->y + row * p->cols;
    float sums[8] = {0}, sum = 0;
    for (int64_t j = 0; j < p->cols; j++) {
        const float v = ws_load(x[j]);
        sums[j % 8] += v * v;
    }
    for (int l = 0; l < 8; l++) sum += sums[l];
    const float scale = 1 / sqrtf(sum / (float)p->cols + p->eps);
    for (int64_t j = 0; j < p->cols; j++) y[j] = ws_store(ws_load(x[j]) * scale * ws_load(p->weight[j]));
}
static void rows_of(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    _Alignas(64) float all[MOST], weight[MOST];
    if (p->cols > MOST) {
        for (int64_t row = begin; row < end; row++) slow_row(p, row);
        return;
    }
    ws_load_n(weight, p->weight, p->cols);
    const int64_t whole = p->cols / 32 * 32;
    for (int64_t row = begin; row < end; row++) {
        ws_load_n(all, p->x + row * p->cols, p->cols);
        vec s[4] = {0};
        for (int64_t j = 0; j < whole; j += 32)
#pragma GCC unroll 4
            for (int l = 0; l < 4; l++) {
                const vec v = *(const vec *)(all + j + 8 * l);
                s[l] += v * v;
            }
        float sum = 0;
        for (int64_t j = whole; j < p->cols; j++) sum += all[j] * all[j];
        s[0] += s[1] + s[2] + s[3];
        for (int l = 0; l < 8; l++) sum += s[0][l];
        float eps = p->eps;
        if (sizeof(T) == 2 && p->cols >= 64 && eps < 1e-4f) eps = 1e-5f;
        const float scale = 1 / sqrtf(sum / (float)p->cols + eps);
        for (int64_t j = 0; j < p->cols; j++) all[j] *= scale * weight[j];
        ws_store_n(p->y + row * p->cols, all, p->cols);
    }
}
void rmsnorm(const T *x, const T *weight, T *y, int64_t rows, int64_t cols, float eps) {
    problem p = {x, weight, y, cols, eps};
    if (rows * cols <= 16384) rows_of(0, rows, &p);
    else ws_parallel(rows, rows_of, &p);
}
