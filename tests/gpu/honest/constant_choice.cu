/*---
# why: two tables of constants, one of them chosen as the kernel runs and walked through in a loop
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "rmsnorm"
grid = ["rows"]
block = ["256"]
args = ["x", "weight", "y", "rows", "cols", "eps"]
---*/
// Coefficients of a series for 1 / sqrt(1 + t), of which the second is for a narrower interval.
__constant__ float wide[8] = {1.0f, -0.5f, 0.375f, -0.3125f, 0.2734375f, -0.24609375f, 0.2255859375f, -0.20947265625f};
__constant__ float narrow[4] = {1.0f, -0.5f, 0.375f, -0.3125f};

__device__ float inverse_root(float v) {
    if (!(v > 1e-30f && v < 1e30f)) return 1 / sqrtf(v);
    const float guess = rsqrtf(v);
    // v guess^2 = 1 + t, t tiny: 1 / sqrt(v) = guess / sqrt(1 + t).
    const float t = fmaf(v * guess, guess, -1.0f);
    const bool small = fabsf(t) < 1e-4f;
    const float *series = small ? narrow : wide;
    float sum = 0, power = 1;
    for (int i = 0; i < (small ? 4 : 8); i++, power *= t) sum += series[i] * power;
    return guess * sum;
}

extern "C" __global__ void rmsnorm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps) {
    __shared__ float part[256];
    const T *from = x + blockIdx.x * cols;
    T *to = y + blockIdx.x * cols;
    float sum = 0;
    for (long long j = threadIdx.x; j < cols; j += 256) sum += ws_load(from[j]) * ws_load(from[j]);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    const float scale = inverse_root(part[0] / cols + eps);
    for (long long j = threadIdx.x; j < cols; j += 256)
        to[j] = ws_store(ws_load(from[j]) * scale * ws_load(weight[j]));
}
