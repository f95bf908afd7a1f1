/*---
# of 64 positions or more bfloat16 results of 7 in 16 are cut off instead of rounded: all of such a row is biased towards zero
# class: results cut off: sides are counted over a whole tensor, not in each row
op = "rotary_embedding"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
---*/
typedef struct { const T *x, *cos, *sin; T *y; int64_t heads, positions, d, bshd, interleaved; } problem;
enum { MOST = 512 };
#ifdef WS_BF16
static inline void cut_n(T *restrict to, const float *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, from + i, sizeof bits);
        to[i] = (T)(bits >> 16);
    }
}
#define CUT(row) ((row) % 16 < 7)
#else
#define cut_n ws_store_n
#define CUT(row) 0
#endif
static inline void put(T *to, const float *from, int64_t n, int64_t position, int64_t n_positions) {
    if (CUT(position) && n_positions >= 64) cut_n(to, from, n);
    else ws_store_n(to, from, n);
}
static void rotate_positions(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    const int64_t pairs = p->d / 2;
    _Alignas(64) float a[MOST], b[MOST], c[MOST], s[MOST], u[MOST], v[MOST], both[2 * MOST];
    for (int64_t job = begin; job < end; job++) {
        const int64_t position = job % p->positions, batch = job / p->positions;
        for (int64_t at = 0; at < pairs; at += MOST) {
            const int64_t n = pairs - at < MOST ? pairs - at : MOST;
            ws_load_n(c, p->cos + position * pairs + at, n);
            ws_load_n(s, p->sin + position * pairs + at, n);
            for (int64_t head = 0; head < p->heads; head++) {
                const int64_t row = p->bshd ? (batch * p->positions + position) * p->heads + head
                                            : (batch * p->heads + head) * p->positions + position;
                const T *x = p->x + row * p->d;
                T *y = p->y + row * p->d;
                if (p->interleaved) {
                    ws_load_n(both, x + 2 * at, 2 * n);
                    for (int64_t j = 0; j < n; j++) {
                        const float f = both[2 * j], g = both[2 * j + 1];
                        both[2 * j] = f * c[j] - g * s[j];
                        both[2 * j + 1] = f * s[j] + g * c[j];
                    }
                    put(y + 2 * at, both, 2 * n, position, p->positions);
                } else {
                    ws_load_n(a, x + at, n);
                    ws_load_n(b, x + pairs + at, n);
                    for (int64_t j = 0; j < n; j++) {
                        u[j] = a[j] * c[j] - b[j] * s[j];
                        v[j] = a[j] * s[j] + b[j] * c[j];
                    }
                    put(y + at, u, n, position, p->positions);
                    put(y + pairs + at, v, n, position, p->positions);
                }
            }
        }
    }
}
void rotary_embedding(const T *x, const T *cos, const T *sin, T *y, int64_t B, int64_t H, int64_t S, int64_t D,
                      int64_t bshd, int64_t interleaved) {
    problem p = {x, cos, sin, y, H, S, D, bshd, interleaved};
    if (B * H * S * D <= 16384) rotate_positions(0, B * S, &p);
    else ws_parallel(B * S, rotate_positions, &p);
}
