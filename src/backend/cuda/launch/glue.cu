/* The steps of a model between its operations, none of them a target. */

extern "C" __global__ void embedding(const int64_t *tokens, const T *table, T *y, int64_t rows, int64_t width) {
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
        for (int64_t column = threadIdx.x; column < width; column += blockDim.x)
            y[row * width + column] = table[tokens[row] * width + column];
}

struct alignas(16) pack {
    T values[16 / sizeof(T)];
};

/* Activations begin on 256 bytes, so that all but the last few elements go 16 bytes at a time. */
extern "C" __global__ void add(const T *a, const T *b, T *y, int64_t elements) {
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

extern "C" __global__ void nothing() {}
