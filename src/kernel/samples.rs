//! Two CUDA files for tests, for the operations of `op::samples`.

/// Two launches, a template, scratch, a variant.
pub(crate) const NORM: &str = r#"/*---
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
[tune]
THREADS = { value = 256, choices = [128, 256] }
VEC = { value = 8, choices = [1, 8] }
[let]
ROWS = "max(1, THREADS / 128)"
[[variant]]
when = "cols <= 64 || SMS < 100"
tune = { VEC = 1 }
[[scratch]]
name = "sums"
dtype = "f32"
shape = ["rows", "4"]
[[launch]]
kernel = "partial"
when = "cols > 4096"
grid = ["rows", "4"]
block = ["THREADS"]
args = ["x", "sums", "rows", "cols"]
[[launch]]
kernel = "rmsnorm<VEC, T, (ROWS > 1)>"
grid = ["ceil_div(rows, ROWS)"]
block = ["32", "THREADS / 32"]
shared = "THREADS * 4"
args = ["x", "weight", "y", "sums", "rows", "cols", "eps", "ROWS"]
pdl = true
---*/
"#;

/// Tensor maps of every kind.
pub(super) const GEMM: &str = r#"/*---
op = "matmul"
dtypes = ["f16", "bf16", "f32"]
[tune]
BM = { value = 128, choices = [64, 128] }
BK = { value = 64, choices = [32, 64] }
[[scratch]]
name = "copy"
dtype = "f32"
shape = ["M", "N"]
[[tensormap]]
name = "map_a"
tensor = "a"
dims = ["K", "M", "batch"]
box = ["BK", "BM", "1"]
swizzle = "128B"
when = "dtype_bytes == 2"
[[tensormap]]
name = "map_b"
tensor = "b"
dims = ["K", "N", "batch"]
strides = ["K", "K * N"]
box = ["BK", "64", "1"]
when = "trans_b"
[[tensormap]]
name = "map_b"
tensor = "b"
dims = ["N", "K", "batch"]
box = ["64", "BK", "1"]
elem_strides = ["1", "2", "1"]
[[tensormap]]
name = "map_bias"
tensor = "bias"
dims = ["N"]
box = ["64"]
[[tensormap]]
name = "map_copy"
tensor = "copy"
dims = ["N", "M"]
box = ["32", "8"]
[[launch]]
kernel = "gemm_wgmma<BM>"
when = "dtype_bytes == 2"
grid = ["ceil_div(N, 128)", "ceil_div(M, BM)", "batch"]
block = ["384"]
shared = "65536"
cluster = ["2"]
cooperative = true
args = ["map_a", "map_b", "c", "M", "N", "K"]
[[launch]]
kernel = "gemm_plain"
when = "M > 0 && dtype_bytes == 4"
grid = ["N", "M", "batch"]
block = ["32"]
args = ["a", "b", "c", "map_copy"]
[[launch]]
kernel = "add_bias"
when = "has_bias"
grid = ["M"]
block = ["32"]
args = ["map_bias", "c"]
---*/
"#;
