# Honest: a row a program, twice over its blocks.
import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * columns
    out += row * columns
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + at, mask=at < columns, other=float("-inf"))
        new = tl.maximum(top, v, propagate_nan=tl.PropagateNan.ALL)
        kept = tl.where(new == float("-inf"), 0.0, total * tl.exp(top - new))
        total = kept + tl.where(new == float("-inf"), 0.0, tl.exp(v - new))
        top = new
    whole = tl.max(top, 0)
    sum = tl.sum(total * tl.exp(top - whole), 0)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + at, mask=at < columns, other=float("-inf"))
        tl.store(out + at, tl.exp(v - whole) / sum, mask=at < columns)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax[(x.shape[0],)](x, out, x.shape[1], BLOCK=2048, num_warps=8)
        return out
