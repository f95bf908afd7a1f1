/* The steps of a model between its operations, none of them a target. */

enum { CHUNK = 512, INLINE = 16384 };

typedef struct {
    const T *x;
    const int64_t *ids;
    const T *table;
    T *y;
    int64_t width;
} lookup;

static void look_up_rows(int64_t begin, int64_t end, void *context) {
    const lookup *p = context;
    for (int64_t row = begin; row < end; row++)
        memcpy(p->y + row * p->width, p->table + p->ids[row] * p->width, (size_t)p->width * sizeof(T));
}

static void embedding(const int64_t *ids, const T *table, T *y, int64_t rows, int64_t width) {
    lookup p = {NULL, ids, table, y, width};
    if (rows * width <= INLINE) look_up_rows(0, rows, &p);
    else ws_parallel(rows, look_up_rows, &p);
}

/* y = a + b */
static void sum_of(T *y, const T *from_a, const T *from_b, int64_t elements) {
    float a[CHUNK], b[CHUNK];
    for (int64_t at = 0; at < elements; at += CHUNK) {
        const int64_t n = elements - at < CHUNK ? elements - at : CHUNK;
        ws_load_n(a, from_a + at, n);
        ws_load_n(b, from_b + at, n);
        for (int64_t i = 0; i < n; i++) a[i] += b[i];
        ws_store_n(y + at, a, n);
    }
}

static void add_rows(int64_t begin, int64_t end, void *context) {
    const lookup *p = context;
    for (int64_t row = begin; row < end; row++)
        sum_of(p->y + row * p->width, p->x + row * p->width, p->table + p->ids[row] * p->width, p->width);
}

static void added_embedding(const T *x, const int64_t *ids, const T *table, T *y, int64_t rows, int64_t width) {
    lookup p = {x, ids, table, y, width};
    if (rows * width <= INLINE) add_rows(0, rows, &p);
    else ws_parallel(rows, add_rows, &p);
}

typedef struct {
    const T *a, *b;
    T *y;
    int64_t elements;
} sum;

static void add_chunks(int64_t begin, int64_t end, void *context) {
    const sum *p = context;
    const int64_t first = begin * CHUNK, last = end * CHUNK < p->elements ? end * CHUNK : p->elements;
    sum_of(p->y + first, p->a + first, p->b + first, last - first);
}

static void add(const T *a, const T *b, T *y, int64_t elements) {
    sum p = {a, b, y, elements};
    const int64_t chunks = (elements + CHUNK - 1) / CHUNK;
    if (elements <= INLINE) add_chunks(0, chunks, &p);
    else ws_parallel(chunks, add_chunks, &p);
}

/* e^x within 2 units in the last place: 2^n e^r with |r| <= ln(2)/2 (polynomial of Cephes' expf); beyond the range of
   normal numbers, the nearest of these. NaN stays NaN. */
static inline float exponential(float x) {
    const float within = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    const float shifted = within * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: its low bits are the nearest integer */
    const float n = shifted - 12582912.0f;
    const float r = (within - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4b400000 + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* x times the normal distribution's function. Its tail is e^(-z^2) times a polynomial in 1 / (1 + 0.3275911 z), with
   z = |x| / sqrt(2), within 1.5e-7 (Abramowitz and Stegun 7.1.26); no difference of near values is taken. */
static inline float gelu_of(float x) {
    const float size = fabsf(x) < 20.0f ? fabsf(x) : x != x ? x : 20.0f; /* beyond, the tail is nothing, also times x */
    const float z = size * 0.70710678f;
    const float t = 1.0f / (1.0f + 0.3275911f * z);
    float p = 1.061405429f * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const float tail = 0.5f * p * t * exponential(-z * z);
    return (x > 0.0f ? x : 0.0f) - size * tail;
}

/* (1 + tanh u) / 2 is 1 / (1 + e^(-2u)). */
static inline float gelu_tanh_of(float x) {
    const float u = 0.79788456f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exponential(-2.0f * u));
}

static inline float tangent_of(float x) { return 1.0f - 2.0f / (1.0f + exponential(2.0f * x)); }

typedef struct {
    const T *x;
    T *y;
    int64_t elements;
} map;

#define MAP(name, value)                                                                \
    static void name##_chunks(int64_t begin, int64_t end, void *context) {              \
        const map *p = context;                                                         \
        float x[CHUNK];                                                                 \
        for (int64_t at = begin * CHUNK; at < end * CHUNK && at < p->elements; at += CHUNK) { \
            const int64_t n = p->elements - at < CHUNK ? p->elements - at : CHUNK;      \
            ws_load_n(x, p->x + at, n);                                                 \
            for (int64_t i = 0; i < n; i++) x[i] = value(x[i]);                         \
            ws_store_n(p->y + at, x, n);                                                \
        }                                                                               \
    }                                                                                   \
    static void name(const T *x, T *y, int64_t elements) {                              \
        map p = {x, y, elements};                                                       \
        const int64_t chunks = (elements + CHUNK - 1) / CHUNK;                          \
        if (elements <= INLINE) name##_chunks(0, chunks, &p);                       \
        else ws_parallel(chunks, name##_chunks, &p);                                    \
    }

MAP(gelu, gelu_of)
MAP(gelu_tanh, gelu_tanh_of)
MAP(hyperbolic_tangent, tangent_of)

typedef struct {
    const T *x;
    T *q, *k, *v;
    int64_t width;
} thirds;

static void split_rows(int64_t begin, int64_t end, void *context) {
    const thirds *p = context;
    for (int64_t row = begin; row < end; row++) {
        const T *x = p->x + row * 3 * p->width;
        memcpy(p->q + row * p->width, x, (size_t)p->width * sizeof(T));
        memcpy(p->k + row * p->width, x + p->width, (size_t)p->width * sizeof(T));
        memcpy(p->v + row * p->width, x + 2 * p->width, (size_t)p->width * sizeof(T));
    }
}

static void split(const T *x, T *q, T *k, T *v, int64_t rows, int64_t width) {
    thirds p = {x, q, k, v, width};
    if (rows * width <= INLINE) split_rows(0, rows, &p);
    else ws_parallel(rows, split_rows, &p);
}

/* Few and short: one thread does it. */
static void copy_rows(const T *x, T *y, int64_t rows, int64_t width, int64_t from, int64_t to, int64_t offset) {
    for (int64_t row = 0; row < rows; row++)
        memcpy(y + offset + row * to, x + row * from, (size_t)width * sizeof(T));
}

static void nothing(void) {}
