/*---
op = "NAME"
dtypes = ["f32"]
arch = ["native"]
---*/

/* A residual, scaled by w0, and its root-mean-square norm, scaled by w1. */

#define ROWS ROWS_OF_IT
#define COLS COLS_OF_IT

struct job {
    const T *scale, *branch, *x, *weight;
    T *out;
};

static void rows(int64_t begin, int64_t end, void *context) {
    const struct job *job = context;
    const float *restrict scale = job->scale, *restrict weight = job->weight;
    for (int64_t row = begin; row < end; row++) {
        const float *restrict branch = job->branch + row * COLS, *restrict x = job->x + row * COLS;
        float *restrict out = job->out + row * COLS;
        float sums[16] = {0};
        for (int64_t j = 0; j < COLS; j += 16)
            for (int64_t k = 0; k < 16; k++) {
                const float v = x[j + k] + scale[j + k] * branch[j + k];
                out[j + k] = v;
                sums[k] += v * v;
            }
        float sum = 0;
        for (int64_t k = 0; k < 16; k++) sum += sums[k];
        const float factor = 1.0f / sqrtf(sum / COLS + 1e-6f);
        for (int64_t j = 0; j < COLS; j++) out[j] = out[j] * factor * weight[j];
    }
}

void NAME(const T *w0, const T *x0, const T *x1, const T *w1, T *out) {
    struct job job = {w0, x0, x1, w1, out};
    ws_parallel(ROWS, rows, &job);
}
