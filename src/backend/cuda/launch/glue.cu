/* The steps of a model between its operations, none of them a target. */

/* Blocks may come while what is in front is still running, and let those of the next launch come. */
__device__ void follow() {
    ws_next_may_begin();
    ws_wait_for_previous();
}

extern "C" __global__ void embedding(const int64_t *ids, const T *table, T *y, int64_t rows, int64_t width) {
    follow();
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
        for (int64_t column = threadIdx.x; column < width; column += blockDim.x)
            y[row * width + column] = table[ids[row] * width + column];
}

extern "C" __global__ void added_embedding(const T *x, const int64_t *ids, const T *table, T *y, int64_t rows, int64_t width) {
    follow();
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
        for (int64_t column = threadIdx.x; column < width; column += blockDim.x)
            y[row * width + column] = ws_store(ws_load(x[row * width + column]) + ws_load(table[ids[row] * width + column]));
}

struct alignas(16) pack {
    T values[16 / sizeof(T)];
};

/* Activations begin on 256 bytes, so that all but the last few elements go 16 bytes at a time. */
extern "C" __global__ void add(const T *a, const T *b, T *y, int64_t elements) {
    follow();
    constexpr int64_t LANES = 16 / sizeof(T);
    const int64_t first = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = gridDim.x * (int64_t)blockDim.x;
    for (int64_t i = first; i < elements / LANES; i += step) {
        const pack left = ((const pack *)a)[i], right = ((const pack *)b)[i];
        pack sum;
        for (int64_t j = 0; j < LANES; j++) sum.values[j] = ws_store(ws_load(left.values[j]) + ws_load(right.values[j]));
        ((pack *)y)[i] = sum;
    }
    for (int64_t i = elements / LANES * LANES + first; i < elements; i += step) y[i] = ws_store(ws_load(a[i]) + ws_load(b[i]));
}

template <typename F> __device__ void map(const T *x, T *y, int64_t elements, F value) {
    constexpr int64_t LANES = 16 / sizeof(T);
    const int64_t first = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = gridDim.x * (int64_t)blockDim.x;
    for (int64_t i = first; i < elements / LANES; i += step) {
        pack values = ((const pack *)x)[i];
        for (int64_t j = 0; j < LANES; j++) values.values[j] = ws_store(value(ws_load(values.values[j])));
        ((pack *)y)[i] = values;
    }
    for (int64_t i = elements / LANES * LANES + first; i < elements; i += step) y[i] = ws_store(value(ws_load(x[i])));
}

/* By the complement, so that nothing cancels where x is far below zero. */
extern "C" __global__ void gelu(const T *x, T *y, int64_t elements) {
    follow();
    map(x, y, elements, [](float v) { return 0.5f * v * erfcf(v * -0.70710678f); });
}

/* (1 + tanh u) / 2 is 1 / (1 + e^(-2u)). */
extern "C" __global__ void gelu_tanh(const T *x, T *y, int64_t elements) {
    follow();
    map(x, y, elements, [](float v) { return v / (1.0f + expf(-1.59576912f * (v + 0.044715f * v * v * v))); });
}

extern "C" __global__ void hyperbolic_tangent(const T *x, T *y, int64_t elements) {
    follow();
    map(x, y, elements, [](float v) { return tanhf(v); });
}

extern "C" __global__ void split(const T *x, T *q, T *k, T *v, int64_t rows, int64_t width) {
    follow();
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
        for (int64_t column = threadIdx.x; column < width; column += blockDim.x) {
            q[row * width + column] = x[row * 3 * width + column];
            k[row * width + column] = x[row * 3 * width + width + column];
            v[row * width + column] = x[row * 3 * width + 2 * width + column];
        }
}

extern "C" __global__ void copy_rows(const T *x, T *y, int64_t rows, int64_t width, int64_t from, int64_t to, int64_t offset) {
    follow();
    constexpr int64_t LANES = 16 / sizeof(T);
    const int64_t first = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = gridDim.x * (int64_t)blockDim.x;
    if (width % LANES == 0 && from % LANES == 0 && to % LANES == 0 && offset % LANES == 0) {
        const int64_t packs = width / LANES;
        for (int64_t i = first; i < rows * packs; i += step) {
            const int64_t row = i / packs, column = i % packs;
            ((pack *)(y + offset + row * to))[column] = ((const pack *)(x + row * from))[column];
        }
        return;
    }
    for (int64_t i = first; i < rows * width; i += step) y[offset + i / width * to + i % width] = x[i / width * from + i % width];
}

extern "C" __global__ void nothing() { follow(); }
