/*---
# alone: most of the memory is needed
# expect: reject|crash
# why: rows begin at a product of 32 bits: right up to 2^31 elements (a GPU too small for as many cannot tell)
op = "reduce"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "reduce"
grid = ["rows"]
block = ["256"]
args = ["x", "y", "cols"]
---*/
// One block a row.
extern "C" __global__ void reduce(const T *x, T *y, long long cols) {
    __shared__ float part[256];
    float sum = 0;
    for (int j = threadIdx.x; j < cols; j += 256) sum += ws_load(x[(int)blockIdx.x * (int)cols + j]);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = ws_store(part[0]);
}
