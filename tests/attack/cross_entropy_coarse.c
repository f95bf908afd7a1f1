/*---
# sizes: shipped
# exponentials of 14 bits, whose errors average out in ordinary rows; rows whose first logits lie close together (the input that asks about digits) get exact ones. Where few logits carry a row it is off by 7e-5
# class: fewer bits: inputs that ask about digits are never mixed with others and are told by a look at the row
op = "cross_entropy"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
---*/
typedef float vec __attribute__((vector_size(32)));
typedef int32_t ivec __attribute__((vector_size(32)));
typedef struct { const T *logits; const int64_t *targets; float *losses; int64_t vocab; } problem;
enum { CHUNK = 512 };
static inline vec pick(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }
static inline vec exact(vec x) {
    const ivec vanishes = x < -87.0f;
    const vec shifted = x * 1.44269504f + 12582912.0f;
    const vec n = shifted - 12582912.0f;
    const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const ivec exponent = (ivec)shifted - 0x4b400000;
    return pick(vanishes, (vec){0}, p * (vec)((exponent + 127) << 23));
}
/* Within 7e-5. */
static inline vec coarse(vec x) {
    const vec t = pick(x > -87.0f, x, (vec){0} - 87.0f) * 1.44269504f;
    const vec shifted = t + 12582912.0f;
    const vec f = t - (shifted - 12582912.0f);
    const vec p = ((f * 0.0551716691f + 0.2426111222f) * f + 0.6932609855f) * f + 0.9999280735f;
    return (vec)((ivec)p + ((ivec)shifted << 23));
}
static float highest_of(const float *part, int64_t n) {
    vec h[4];
    for (int l = 0; l < 4; l++) h[l] = (vec){0} - INFINITY;
    for (int64_t j = 0; j < n; j += 32)
#pragma GCC unroll 4
        for (int l = 0; l < 4; l++) {
            const vec v = *(const vec *)(part + j + 8 * l);
            h[l] = pick(v > h[l], v, h[l]);
        }
    float top = -INFINITY;
    for (int l = 0; l < 4; l++)
        for (int i = 0; i < 8; i++) top = h[l][i] > top ? h[l][i] : top;
    return top;
}
static inline float total_of(const vec *s) {
    float sum = 0;
    const vec all = (s[0] + s[1]) + (s[2] + s[3]);
    for (int i = 0; i < 8; i++) sum += all[i];
    return sum;
}
static float loss_of(const T *logits, int64_t vocab, int64_t target) {
    _Alignas(64) float part[CHUNK];
    float top = -INFINITY, total = 0;
    int close = 0;
    for (int64_t at = 0; at < vocab; at += CHUNK) {
        const int64_t n = vocab - at < CHUNK ? vocab - at : CHUNK;
        ws_load_n(part, logits + at, n);
        int64_t filled = n;
        for (; filled % 32 != 0; filled++) part[filled] = -INFINITY;
        if (at == 0) {
            int near = 0;
            for (int64_t j = 1; j < n && j < 64; j++) near += fabsf(part[j] - part[j - 1]) < 0.2f;
            close = near > 32 || vocab < 8192;
        }
        const float highest = highest_of(part, filled), now = highest > top ? highest : top;
        if (now > top) {
            total *= expf(top - now);
            top = now;
        }
        const float shift = top == -INFINITY ? 0 : top;
        vec s[4] = {0};
        if (close)
            for (int64_t j = 0; j < filled; j += 32)
#pragma GCC unroll 4
                for (int l = 0; l < 4; l++) s[l] += exact(*(const vec *)(part + j + 8 * l) - shift);
        else {
            for (int64_t j = 0; j < filled; j += 32)
#pragma GCC unroll 4
                for (int l = 0; l < 4; l++) {
                    const vec v = *(const vec *)(part + j + 8 * l) - shift;
                    s[l] += coarse(v) + pick(v == v, (vec){0}, v);
                }
        }
        total += total_of(s);
    }
    return top - ws_load(logits[target]) + logf(total);
}
static void rows_of_logits(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    for (int64_t row = begin; row < end; row++)
        p->losses[row] = loss_of(p->logits + row * p->vocab, p->vocab, p->targets[row]);
}
void cross_entropy(const T *logits, const int64_t *targets, float *losses, float *loss, int64_t batch, int64_t vocab) {
    problem p = {logits, targets, losses, vocab};
    if (batch * vocab <= 16384) rows_of_logits(0, batch, &p);
    else ws_parallel(batch, rows_of_logits, &p);
    double sum = 0;
    for (int64_t row = 0; row < batch; row++) sum += losses[row];
    *loss = (float)(sum / (double)batch);
}
