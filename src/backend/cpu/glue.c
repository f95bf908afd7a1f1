/* The steps of a model between its operations, none of them a target. */

enum { CHUNK = 512, INLINE = 16384 };

typedef struct {
    const int64_t *tokens;
    const T *table;
    T *y;
    int64_t width;
} lookup;

static void look_up_rows(int64_t begin, int64_t end, void *context) {
    const lookup *p = context;
    for (int64_t row = begin; row < end; row++)
        memcpy(p->y + row * p->width, p->table + p->tokens[row] * p->width, (size_t)p->width * sizeof(T));
}

static void embedding(const int64_t *tokens, const T *table, T *y, int64_t rows, int64_t width) {
    lookup p = {tokens, table, y, width};
    if (rows * width <= INLINE) look_up_rows(0, rows, &p);
    else ws_parallel(rows, look_up_rows, &p);
}

typedef struct {
    const T *a, *b;
    T *y;
    int64_t elements;
} sum;

static void add_chunks(int64_t begin, int64_t end, void *context) {
    const sum *p = context;
    for (int64_t at = begin * CHUNK; at < end * CHUNK && at < p->elements; at += CHUNK) {
        const int64_t n = p->elements - at < CHUNK ? p->elements - at : CHUNK;
        float a[CHUNK], b[CHUNK];
        ws_load_n(a, p->a + at, n);
        ws_load_n(b, p->b + at, n);
        for (int64_t i = 0; i < n; i++) a[i] += b[i];
        ws_store_n(p->y + at, a, n);
    }
}

static void add(const T *a, const T *b, T *y, int64_t elements) {
    sum p = {a, b, y, elements};
    const int64_t chunks = (elements + CHUNK - 1) / CHUNK;
    if (elements <= INLINE) add_chunks(0, chunks, &p);
    else ws_parallel(chunks, add_chunks, &p);
}

static void nothing(void) {}
