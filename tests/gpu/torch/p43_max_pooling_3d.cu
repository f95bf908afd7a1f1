/*---
op = "p43_max_pooling_3d"
dtypes = ["f32"]
arch = ["sm_80+"]
[tune]
HEIGHT = { value = 4, choices = [2, 4, 8] }          # rows of a plane that a thread has
WARPS  = { value = 4, choices = [2, 4, 8] }          # two of them have a row of 62
CUTS   = { value = 2, choices = [1, 2, 4] }          # parts of the depth
[let]
SIDE = "128"
GIVEN = "62"
TALL = "HEIGHT * (WARPS / 2)"
[[launch]]
kernel = "pool"
grid   = ["ceil_div(GIVEN, TALL)", "CUTS", "16 * 32"]
block  = ["64", "WARPS / 2"]
args   = ["x", "out"]
---*/

/* Window 3, stride 2, padding 1, dilation 3: output o takes 2o - 1, 2o + 2 and 2o + 5 of each dimension. Even places are taken once, odd
   ones by o and by o + 3. A thread goes down the depth at some places of a plane: the maximum over a plane's window is taken once,
   and that of odd planes kept for three steps. */
__device__ float larger(float a, float b) { /* NaN where one is */
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

__device__ void plane(float (&most)[HEIGHT], const float *__restrict__ from, int oh, int ow) {
    const bool left = ow > 0;
#pragma unroll
    for (int h = 0; h < HEIGHT; h++) {
        float m = -INFINITY;
#pragma unroll
        for (int k = 0; k < 3; k++) {
            const int row = 2 * (oh + h) - 1 + 3 * k;
            if (oh + h < GIVEN && row >= 0) {
                const float *const at = from + row * SIDE + 2 * ow;
                if (left) m = larger(m, __ldg(at - 1));
                m = larger(m, larger(__ldg(at + 2), __ldg(at + 5)));
            }
        }
        most[h] = m;
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) pool(const float *__restrict__ x, float *__restrict__ out) {
    const int ow = threadIdx.x, oh = blockIdx.x * TALL + threadIdx.y * HEIGHT;
    if (ow >= GIVEN) return;
    constexpr int EACH = (GIVEN + CUTS - 1) / CUTS;
    const int first = blockIdx.y * EACH, end = min(first + EACH, GIVEN);
    const float *const from = x + (int64_t)blockIdx.z * SIDE * SIDE * SIDE;
    float *const to = out + (int64_t)blockIdx.z * GIVEN * GIVEN * GIVEN;
    float odd[4][HEIGHT]; /* of planes 2o - 1, 2o + 1, 2o + 3 and 2o + 5 */
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const int depth = 2 * first - 1 + 2 * i;
        if (depth >= 0) {
            plane(odd[i], from + (int64_t)depth * SIDE * SIDE, oh, ow);
        } else {
#pragma unroll
            for (int h = 0; h < HEIGHT; h++) odd[i][h] = -INFINITY;
        }
    }
    for (int o = first; o < end; o++) {
        float even[HEIGHT];
        plane(odd[3], from + (int64_t)(2 * o + 5) * SIDE * SIDE, oh, ow);
        plane(even, from + (int64_t)(2 * o + 2) * SIDE * SIDE, oh, ow);
#pragma unroll
        for (int h = 0; h < HEIGHT; h++) {
            if (oh + h < GIVEN)
                __stcs(to + ((int64_t)o * GIVEN + oh + h) * GIVEN + ow, larger(larger(odd[0][h], even[h]), odd[3][h]));
            odd[0][h] = odd[1][h], odd[1][h] = odd[2][h], odd[2][h] = odd[3][h];
        }
    }
}
