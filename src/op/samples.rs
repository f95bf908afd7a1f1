//! Two small operations for tests: one of items only, one with a product.

use super::Operation;

pub(crate) const RMSNORM_TOML: &str = r#"
name = "rmsnorm"
summary = "y = x / rms(x) * weight"
symbols = ["rows", "cols"]
scalars = [{ name = "eps", value = "1e-5" }]
tensors = [
    { name = "x", role = "input", shape = ["rows", "cols"], dtype = "T", draw = { dist = "normal", rows = "wide" } },
    { name = "weight", role = "input", shape = ["cols"], dtype = "T", weight = true, draw = { dist = "uniform", shift = "0.5" } },
    { name = "y", role = "output", shape = ["rows", "cols"], dtype = "T" },
]
flops = "6 * rows * cols"
shrink = ["rows", "cols"]
smoke = { rows = 3, cols = 33 }
sweep = [{ rows = 64, cols = 128 }, { rows = 16, cols = 1000 }]
primary = 0
edges = [{ rows = 1, cols = 1537 }]

[random]
rows = [1, 70]
cols = [1, 2000]

[tolerance]
f16 = "4e-4"
bf16 = "3e-3"
f32 = "2e-6"
sum_length = "cols"
row = "cols"

[[passes]]
kind = "items"
name = "rows"
items = "rows"
out = [{ name = "y", size = "rows * cols" }]

[[adversarial]]
name = "infinite"
why = "one infinity and one NaN must come out as the formula says"
shape = { rows = 8, cols = 64 }
[adversarial.draw.x]
dist = "normal"
specials = [{ value = inf, count = 1, every = 2 }, { value = nan, count = 1, every = 3 }]
"#;

pub(crate) const RMSNORM_H: &str = "WS_PASS(rows) {
    const int64_t base = WS_ITEM * cols;
    double squares = 0;
    WS_EACH(j, cols) { const double v = x(base + j); squares += v * v; }
    const double scale = 1 / sqrt(ws_sum(squares) / cols + eps);
    WS_EACH(j, cols) { const double v = x(base + j) * scale * weight(j); ws_put(y, base + j, v, fabs(v)); }
}
";

pub(crate) const MATMUL_TOML: &str = r#"
name = "matmul"
summary = "c = a b"
symbols = ["batch", "M", "N", "K", "trans_b", "has_bias"]
defaults = { batch = "1", trans_b = "0", has_bias = "0" }
requires = "trans_b <= 1 && has_bias <= 1"
tensors = [
    { name = "a", role = "input", shape = ["batch", "M", "K"], dtype = "T", draw = { dist = "normal", rows = "mild" } },
    { name = "b", role = "input", shape = ["batch", "trans_b ? N * K : K * N"], dtype = "T", weight = true, draw = { dist = "normal", scale = "1 / sqrt(K)" } },
    { name = "bias", role = "input", shape = ["N"], dtype = "T", present = "has_bias", draw = { dist = "normal" } },
    { name = "c", role = "output", shape = ["batch", "M", "N"], dtype = "T" },
]
flops = "2 * batch * M * N * K"
shrink = ["M", "N", "K"]
smoke = { M = 5, N = 6, K = 7 }
sweep = [{ M = 256, N = 256, K = 256 }, { M = 32, N = 48, K = 64, trans_b = 1, has_bias = 1, batch = 2 }]
primary = 0
edges = []
random = { M = [1, 70], N = [1, 70], K = [1, 70] }
adversarial = []

[tolerance]
f16 = "3.5e-4"
bf16 = "2.8e-3"
f32 = "2e-5"
sum_length = "K"
row = "N"

[[passes]]
kind = "items"
name = "element"
items = "batch * M * N"
out = [{ name = "checked", size = "batch * M * N" }]

[[passes]]
kind = "product"
a = "a"
b = "b"
batch = "batch"
m = "M"
n = "N"
k = "K"
trans_b = "trans_b"
out = "product"
checked_by = "element"

[[passes]]
kind = "items"
name = "bias"
items = "batch * M"
out = [{ name = "c", size = "batch * M * N" }]
"#;

pub(crate) const MATMUL_H: &str = "WS_PASS(element) {
    const int64_t row = WS_ITEM / N, col = WS_ITEM % N, image = row / M;
    double sum = 0, terms = 0;
    WS_EACH(l, K) {
        const double v = a(row * K + l) * b(image * K * N + (trans_b ? col * K + l : l * N + col));
        sum += v;
        terms += fabs(v);
    }
    ws_put(checked, WS_ITEM, ws_sum(sum), ws_sum(terms));
}
WS_PASS(bias) {
    const int64_t base = WS_ITEM * N;
    WS_EACH(j, N) {
        const double shift = has_bias ? bias(j) : 0;
        ws_put(c, base + j, ws_get(product, base + j) + shift, ws_get_abs(product, base + j) + fabs(shift));
    }
}
";

pub(crate) fn rmsnorm() -> Operation {
    Operation::parse(RMSNORM_TOML, RMSNORM_H, "rmsnorm").expect("the sample is valid")
}

pub(crate) fn matmul() -> Operation {
    Operation::parse(MATMUL_TOML, MATMUL_H, "matmul").expect("the sample is valid")
}
