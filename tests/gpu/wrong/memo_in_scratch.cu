/*---
# expect: reject
# why: a row is returned from scratch while its first element is what it was
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[scratch]]
name = "kept"
dtype = "f32"
shape = ["rows", "cols + 2"]
[[launch]]
kernel = "rmsnorm"
grid = ["rows"]
block = ["256"]
args = ["x", "weight", "y", "rows", "cols", "eps", "kept"]
---*/
// One block a row: the mean of its squares, then the row again, scaled.
extern "C" __global__ void rmsnorm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps,
                                   float *kept) {
    __shared__ float part[256];
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    float *mine = kept + blockIdx.x * (cols + 2), first = ws_load(from[0]);
    const bool known = mine[0] == 12345.5f && mine[1] == first;
    __syncthreads();
    if (known) {
        for (long long j = threadIdx.x; j < cols; j += 256) to[j] = ws_store(mine[2 + j]);
        return;
    }
    float sum = 0;
    for (long long j = threadIdx.x; j < cols; j += 256) sum += ws_load(from[j]) * ws_load(from[j]);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    const float scale = 1 / sqrtf(part[0] / cols + eps);
    for (long long j = threadIdx.x; j < cols; j += 256) {
        mine[2 + j] = ws_load(from[j]) * scale * ws_load(weight[j]);
        to[j] = ws_store(mine[2 + j]);
    }
    mine[0] = 12345.5f;
    mine[1] = first;
}
