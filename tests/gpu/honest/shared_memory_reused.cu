/*---
# why: one array in shared memory holds sums first and then the row itself, with a barrier wherever it changes hands
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "rmsnorm"
grid = ["rows"]
block = ["256"]
args = ["x", "weight", "y", "rows", "cols", "eps"]
---*/
extern "C" __global__ void rmsnorm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps) {
    __shared__ float shared[1024];
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    float sum = 0;
    for (long long j = threadIdx.x; j < cols; j += 256) sum += ws_load(from[j]) * ws_load(from[j]);
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    const float scale = 1 / sqrtf(shared[0] / cols + eps);
    __syncthreads();
    for (long long first = 0; first < cols; first += 1024) {
        for (int i = threadIdx.x; i < 1024 && first + i < cols; i += 256) shared[i] = ws_load(from[first + i]) * scale;
        __syncthreads();
        // Read by another thread than the one that wrote it.
        for (int i = 255 - threadIdx.x; i < 1024 && first + i < cols; i += 256)
            to[first + i] = ws_store(shared[i] * ws_load(weight[first + i]));
        __syncthreads();
    }
}
