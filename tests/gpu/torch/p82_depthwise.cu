/*---
op = "p82_depthwise"
dtypes = ["f32"]
arch = ["sm_80+"]
[tune]
STRIP = { value = 34, choices = [17, 34, 51, 102] }  # rows of the output that a block goes down
[let]
SIDE = "512"
GIVEN = "510"
[[launch]]
kernel = "depthwise"
grid   = ["GIVEN / STRIP", "16 * 64"]
block  = ["128"]
args   = ["x", "conv_weight", "out"]
---*/

/* Bound by memory: each input is read once and each output written once. A thread has four columns and goes down a strip; three rows of
   the output are under way at a time, and the next row of the input is loaded while this one is used. */
struct Row {
    float v[6];
};

__device__ Row load(const float *__restrict__ at, bool whole) {
    const float4 a = *(const float4 *)at;
    const float2 b = whole ? *(const float2 *)(at + 4) : make_float2(0, 0);
    return {{a.x, a.y, a.z, a.w, b.x, b.y}};
}

extern "C" __global__ void __launch_bounds__(128) depthwise(const float *__restrict__ x, const float *__restrict__ weight, float *__restrict__ out) {
    const int column = 4 * threadIdx.x, first = blockIdx.x * STRIP, plane = blockIdx.y;
    const bool whole = column + 4 < SIDE;
    float w[9];
#pragma unroll
    for (int i = 0; i < 9; i++) w[i] = weight[(plane % 64) * 9 + i];
    const float *from = x + ((int64_t)plane * SIDE + first) * SIDE + column;
    float *to = out + ((int64_t)plane * GIVEN + first) * GIVEN + column;
    Row a = load(from, whole), b = load(from + SIDE, whole);
    from += 2 * SIDE;
    Row c = load(from, whole);
#pragma unroll 2
    for (int r = 0; r < STRIP; r++) {
        from += SIDE;
        Row next = c;
        if (r + 1 < STRIP) next = load(from, whole);
        float y[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float s = 0;
#pragma unroll
            for (int k = 0; k < 3; k++) s = fmaf(a.v[j + k], w[k], s);
#pragma unroll
            for (int k = 0; k < 3; k++) s = fmaf(b.v[j + k], w[3 + k], s);
#pragma unroll
            for (int k = 0; k < 3; k++) s = fmaf(c.v[j + k], w[6 + k], s);
            y[j] = s;
        }
        __stcs((float2 *)to, make_float2(y[0], y[1]));
        if (whole) __stcs((float2 *)(to + 2), make_float2(y[2], y[3]));
        to += GIVEN;
        a = b, b = c, c = next;
    }
}
