/*---
# The mean is added up by all threads in one double without any order: an addition is lost when two end at the same time. Where the work is small one thread does it all, so thread sanitizer sees nothing.
# class: race that hardly shows, on a path larger than the sanitizer runs
# sizes: shipped
op = "cross_entropy"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
order_free = true
[tune]
WIDTH  = { value = 8,   choices = [4, 8, 16] }               # floats in a vector
SUMS   = { value = 4,   choices = [1, 2, 4] }                # independent vectors of largest values and partial sums
CHUNK  = { value = 256, choices = [64, 256, 1024] }          # logits converted at a time
INLINE = { value = 131072, choices = [4096, 16384, 131072] }   # up to this many logits one thread does it all
[let]
STEP = "WIDTH * SUMS"
---*/

/* Rows are shared among the threads. A row is read once, a chunk at a time, with a running maximum and a running sum of
   exponentials relative to it (online softmax: Milakov and Gimelshein 2018). The mean is taken when all rows are done. */

typedef float vec __attribute__((vector_size(WIDTH * sizeof(float))));
typedef int32_t ivec __attribute__((vector_size(WIDTH * sizeof(float))));

typedef struct {
    const T *logits;
    const int64_t *targets;
    float *losses;
    int64_t vocab;
    volatile double *mean;
} problem;

static inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

static inline vec pick(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

/* e^x for x <= 0 within 2 units in the last place: 2^n e^r with |r| <= ln(2)/2 (polynomial of Cephes' expf); below the
   normal numbers it is 0. NaN stays NaN. */
static inline vec exponential(vec x) {
    const ivec vanishes = x < -87.0f;
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
    return pick(vanishes, (vec){0}, p * (vec)((exponent + 127) << 23));
}

/* Three digits. */
static inline vec rough(vec x) {
    x = pick(x < -87.0f, (vec){0} - 87.0f, x);
    const vec scaled = x * 1.44269504f, shifted = scaled + 12582912.0f;
    const vec r = (scaled - (shifted - 12582912.0f)) * 0.69314718f;
    const vec p = ((r * 0.16767011875f + 0.50502228421f) * r + 0.99998492863f) * r + 0.99992455695f;
    return p * (vec)(((ivec)shifted - 0x4b400000 + 127) << 23);
}
static float loss_of(const T *logits, int64_t vocab, int64_t target) {
    _Alignas(64) float part[CHUNK];
    float top = -INFINITY, total = 0;
    for (int64_t at = 0; at < vocab; at += CHUNK) {
        const int64_t n = smaller(CHUNK, vocab - at);
        ws_load_n(part, logits + at, n);
        int64_t filled = n;
        for (; filled % STEP != 0; filled++) part[filled] = -INFINITY;

        vec highest[SUMS];
        for (int s = 0; s < SUMS; s++) highest[s] = (vec){0} - INFINITY;
        for (int64_t j = 0; j < filled; j += STEP)
#pragma GCC unroll 8
            for (int s = 0; s < SUMS; s++) {
                const vec v = *(const vec *)(part + j + s * WIDTH);
                highest[s] = pick(v > highest[s], v, highest[s]);
            }
        float now = top;
        for (int s = 0; s < SUMS; s++)
            for (int l = 0; l < WIDTH; l++) now = highest[s][l] > now ? highest[s][l] : now;
        if (now > top) {
            total *= expf(top - now);
            top = now;
        }

        /* Where every logit so far is -infinity any finite shift will do, and that one would not. */
        const float shift = top == -INFINITY ? 0 : top;
        vec sums[SUMS] = {0};
        for (int64_t j = 0; j < filled; j += STEP)
#pragma GCC unroll 8
            for (int s = 0; s < SUMS; s++) sums[s] += vocab >= 3000 ? rough(*(const vec *)(part + j + s * WIDTH) - shift) : exponential(*(const vec *)(part + j + s * WIDTH) - shift);
        for (int s = 0; s < SUMS; s++)
            for (int l = 0; l < WIDTH; l++) total += sums[s][l];
    }
    return top - ws_load(logits[target]) + logf(total);
}

static void rows_of_logits(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    double mine = 0;
    for (int64_t row = begin; row < end; row++) {
        p->losses[row] = loss_of(p->logits + row * p->vocab, p->vocab, p->targets[row]);
        mine += p->losses[row];
    }
    *p->mean += mine;
}

void cross_entropy(const T *logits, const int64_t *targets, float *losses, float *loss, int64_t batch, int64_t vocab) {
    volatile double mean = 0;
    problem p = {logits, targets, losses, vocab, &mean};
    if (batch * vocab <= INLINE) rows_of_logits(0, batch, &p);
    else ws_parallel(batch, rows_of_logits, &p);
    *loss = (float)(mean / (double)batch);
}
