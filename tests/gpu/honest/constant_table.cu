/*---
# why: the first guess at a root comes from a table of constants; three steps of Newton's make it exact enough
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "rmsnorm"
grid = ["rows"]
block = ["256"]
args = ["x", "weight", "y", "rows", "cols", "eps"]
---*/
// 1 / sqrt(m) in the middle of each sixteenth, for m from 1 to 2, then from 2 to 4.
__constant__ float guesses[32] = {
    0.984732f, 0.956183f, 0.929981f, 0.905822f, 0.883452f, 0.862662f, 0.843274f, 0.825137f,
    0.808122f, 0.792118f, 0.777029f, 0.762770f, 0.749269f, 0.736460f, 0.724286f, 0.712697f,
    0.696311f, 0.676123f, 0.657596f, 0.640513f, 0.624695f, 0.609994f, 0.596285f, 0.583460f,
    0.571429f, 0.560112f, 0.549442f, 0.539360f, 0.529813f, 0.520756f, 0.512148f, 0.503953f};

__device__ float inverse_root(float v) {
    if (!(v < 1e38f)) return 1 / sqrtf(v);
    const int bits = __float_as_int(v), exponent = (bits >> 23) - 127, odd = exponent & 1;
    float y = guesses[16 * odd + (bits >> 19 & 15)] * __int_as_float((127 - (exponent - odd) / 2) << 23);
    for (int step = 0; step < 3; step++) y *= 1.5f - 0.5f * v * y * y;
    return y;
}

// One block a row: the mean of its squares, then the row again, scaled.
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
