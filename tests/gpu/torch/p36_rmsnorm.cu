/*---
op = "p36_rmsnorm"
dtypes = ["f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 128, choices = [64, 128, 256] }
[let]
INNER = "512 * 512"
PAIRS = "INNER / 2"
[[launch]]
kernel = "rms"
grid   = ["ceil_div(PAIRS, THREADS)", "112"]
block  = ["THREADS"]
args   = ["x", "out"]
---*/

/* Features lie 1 MB apart. A thread keeps all 64 of two neighbouring places in its registers, so that x is read once and all loads are
   under way before the first is used; a warp reads 256 bytes of each feature. */
extern "C" __global__ void __launch_bounds__(THREADS) rms(const float *__restrict__ x, float *__restrict__ out) {
    constexpr int FEATURES = 64;
    const int64_t place = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (place >= PAIRS) return;
    const int64_t base = (int64_t)blockIdx.y * FEATURES * INNER + 2 * place;
    float2 held[FEATURES];
#pragma unroll
    for (int c = 0; c < FEATURES; c++) held[c] = __ldcs((const float2 *)(x + base + (int64_t)c * INNER));
    float a[4] = {}, b[4] = {};
#pragma unroll
    for (int c = 0; c < FEATURES; c++) {
        a[c % 4] = fmaf(held[c].x, held[c].x, a[c % 4]);
        b[c % 4] = fmaf(held[c].y, held[c].y, b[c % 4]);
    }
    const float first = 1.0f / sqrtf(((a[0] + a[1]) + (a[2] + a[3])) / FEATURES + 1e-5f);
    const float second = 1.0f / sqrtf(((b[0] + b[1]) + (b[2] + b[3])) / FEATURES + 1e-5f);
#pragma unroll
    for (int c = 0; c < FEATURES; c++)
        __stcs((float2 *)(out + base + (int64_t)c * INNER), make_float2(held[c].x * first, held[c].y * second));
}
