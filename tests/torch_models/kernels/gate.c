/*---
op = "NAME"
dtypes = ["f32"]
arch = ["native"]
---*/

/* mish(x) * y. With e = exp(x): tanh(log(1 + e)) = (e e + 2 e) / (e e + 2 e + 2), which takes one exponential instead of an exponential,
   a logarithm and a hyperbolic tangent. */

#define ROWS ROWS_OF_IT
#define COLS COLS_OF_IT

struct job {
    const T *x0, *x1;
    T *out;
};

static inline float exponential(float x) {
    const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const int32_t bits = ((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

static void rows(int64_t begin, int64_t end, void *context) {
    const struct job *job = context;
    const float *restrict x = job->x0, *restrict y = job->x1;
    float *restrict out = job->out;
    for (int64_t i = begin * COLS; i < end * COLS; i++) {
        const float v = x[i];
        /* Beyond these the result is v, or nothing; NaN is neither. */
        const float inside = v > 20.0f ? 20.0f : v < -80.0f ? -80.0f : v;
        const float e = exponential(inside);
        const float n = e * (e + 2.0f);
        const float gate = v < -80.0f ? v * 0.0f : v * (n / (n + 2.0f));
        out[i] = gate * y[i];
    }
}

void NAME(const T *x0, const T *x1, T *out) {
    struct job job = {x0, x1, out};
    ws_parallel(ROWS, rows, &job);
}
