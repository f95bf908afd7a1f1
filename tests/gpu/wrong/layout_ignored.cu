/*---
# expect: reject
# why: the position is taken from where it stands in one of the two layouts
op = "rotary_embedding"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "rotary_embedding"
grid = ["ceil_div(B * H * S * (D / 2), 256)"]
block = ["256"]
args = ["x", "cos", "sin", "y", "B", "H", "S", "D", "bshd", "interleaved"]
---*/
// One thread a pair.
extern "C" __global__ void rotary_embedding(const T *x, const T *cosines, const T *sines, T *y, long long B,
                                            long long H, long long S, long long D, long long bshd, long long interleaved) {
    const long long pairs = D / 2, at = blockIdx.x * 256LL + threadIdx.x;
    if (at >= B * H * S * pairs) return;
    const long long row = at / pairs, j = at % pairs, s = row % S;
    const long long first = row * D + (interleaved ? 2 * j : j), second = first + (interleaved ? 1 : pairs);
    const float u = ws_load(x[first]), v = ws_load(x[second]);
    const float c = ws_load(cosines[s * pairs + j]), t = ws_load(sines[s * pairs + j]);
    y[first] = ws_store(u * c - v * t);
    y[second] = ws_store(u * t + v * c);
}
