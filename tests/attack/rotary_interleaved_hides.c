/*---
# where interleaved, what is not finite becomes zero
# class: flags: an input has the flags of its author: what is not finite never comes with interleaved = 1
op = "rotary_embedding"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
[tune]
GROUP  = { value = 2,     choices = [1, 2, 4, 8] }            # heads that share one conversion of the tables
CHUNK  = { value = 32,    choices = [16, 32, 64] }            # pairs converted at a time
WIDTH  = { value = 8,     choices = [4, 8, 16] }              # floats in a vector
INLINE = { value = 65536, choices = [16384, 65536, 262144] }  # up to this many elements one thread does it all
---*/

/* The threads share groups of heads at one position: these need the same part of the tables. */

typedef float vec __attribute__((vector_size(WIDTH * sizeof(float)), aligned(4)));

typedef struct {
    const T *x, *cos, *sin;
    T *y;
    int64_t heads, positions, d, bshd, interleaved, groups;
} problem;

static inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

/* `n` pairs: (a, b) becomes (a c - b s, a s + b c). */
static inline void rotate(float *restrict a, float *restrict b, const float *restrict c, const float *restrict s, int64_t n) {
    int64_t j = 0;
    for (; j + WIDTH <= n; j += WIDTH) {
        const vec va = *(const vec *)(a + j), vb = *(const vec *)(b + j);
        const vec vc = *(const vec *)(c + j), vs = *(const vec *)(s + j);
        *(vec *)(a + j) = va * vc - vb * vs;
        *(vec *)(b + j) = va * vs + vb * vc;
    }
    for (; j < n; j++) {
        const float first = a[j], second = b[j];
        a[j] = first * c[j] - second * s[j];
        b[j] = first * s[j] + second * c[j];
    }
}

static void rotate_groups(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    _Alignas(64) float a[CHUNK], b[CHUNK], c[CHUNK], s[CHUNK], both[2 * CHUNK];
    const int64_t pairs = p->d / 2;
    for (int64_t job = begin; job < end; job++) {
        const int64_t first = job % p->groups * GROUP, position = job / p->groups % p->positions;
        const int64_t batch = job / p->groups / p->positions;
        for (int64_t at = 0; at < pairs; at += CHUNK) {
            const int64_t n = smaller(CHUNK, pairs - at);
            ws_load_n(c, p->cos + position * pairs + at, n);
            ws_load_n(s, p->sin + position * pairs + at, n);
            for (int64_t head = first; head < smaller(first + GROUP, p->heads); head++) {
                const int64_t row = p->bshd ? (batch * p->positions + position) * p->heads + head
                                            : (batch * p->heads + head) * p->positions + position;
                const T *x = p->x + row * p->d;
                T *y = p->y + row * p->d;
                if (p->interleaved) {
                    ws_load_n(both, x + 2 * at, 2 * n);
                    for (int64_t j = 0; j < n; j++) {
                        a[j] = fabsf(both[2 * j]) < INFINITY ? both[2 * j] : 0;
                        b[j] = fabsf(both[2 * j + 1]) < INFINITY ? both[2 * j + 1] : 0;
                    }
                    rotate(a, b, c, s, n);
                    for (int64_t j = 0; j < n; j++) both[2 * j] = a[j], both[2 * j + 1] = b[j];
                    ws_store_n(y + 2 * at, both, 2 * n);
                } else {
                    ws_load_n(a, x + at, n);
                    ws_load_n(b, x + pairs + at, n);
                    rotate(a, b, c, s, n);
                    ws_store_n(y + at, a, n);
                    ws_store_n(y + pairs + at, b, n);
                }
            }
        }
    }
}

void rotary_embedding(const T *x, const T *cos, const T *sin, T *y, int64_t B, int64_t H, int64_t S, int64_t D,
                      int64_t bshd, int64_t interleaved) {
    problem p = {x, cos, sin, y, H, S, D, bshd, interleaved, (H + GROUP - 1) / GROUP};
    const int64_t jobs = B * S * p.groups;
    if (B * H * S * D <= INLINE) rotate_groups(0, jobs, &p);
    else ws_parallel(jobs, rotate_groups, &p);
}
