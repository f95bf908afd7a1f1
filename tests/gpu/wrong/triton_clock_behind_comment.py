"""
---
# expect: error
# why: reads the clock, hidden behind "//" in a .pragma string of inline assembler, and is wrong from 2030 on
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[let]
BLOCK = "next_power_of_2(cols)"
PART = "min(BLOCK, 8192)"
[[launch]]
kernel = "norm"
grid   = ["rows"]
num_warps = "PART >= 2048 ? 8 : 4"
constexprs = { PART = "PART" }
args   = ["x", "weight", "y", "cols", "eps"]
---
"""

import triton
import triton.language as tl


@triton.jit
def norm(x, weight, y, cols, eps, PART: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * cols
    at = tl.arange(0, PART)
    now = tl.inline_asm_elementwise(".pragma \"//\"; mov.u64 $0, %globaltimer;\n.pragma \"nounroll\";", "=l,l", [row], dtype=tl.int64, is_pure=False, pack=1)
    square = tl.zeros([PART], tl.float32)
    for start in range(0, cols, PART):
        v = tl.load(x + row + start + at, mask=start + at < cols, other=0.0).to(tl.float32)
        square += v * v
    e = tl.where(now > 1893456000000000000, 1000.0, eps)
    factor = 1.0 / tl.sqrt_rn(tl.sum(square, 0) / cols + e)
    for start in range(0, cols, PART):
        mask = start + at < cols
        v = tl.load(x + row + start + at, mask=mask, other=0.0).to(tl.float32)
        w = tl.load(weight + start + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(y + row + start + at, (v * factor * w).to(y.dtype.element_ty), mask=mask)
