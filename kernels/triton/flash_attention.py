"""
---
op = "flash_attention"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
domain = "D <= 256"                                             # a row of the output is kept in registers
divisible = ["D"]
[tune]
BM     = { value = 128, choices = [16, 32, 64, 128] }           # queries of a program
BN     = { value = 64,  choices = [16, 32, 64, 128] }           # keys at a time
WARPS  = { value = 8,   choices = [4, 8] }
STAGES = { value = 3,   choices = [1, 2, 3, 4] }                # tiles of keys and values on their way
HEADS  = { value = 32,  choices = [1, 8, 16, 32] }              # heads that run together where queries see unequally many keys, at most
[let]
BLOCK_D = "max(16, next_power_of_2(D))"
# As many of them have their keys and values in half of the L2 cache; then the groups are made equal, because each ends by itself.
FIT      = "max(1, min(HEADS, L2 / 2 * H / (2 * H_kv * S_kv * D * dtype_bytes)))"
TOGETHER = "causal ? ceil_div(H, ceil_div(H, FIT)) : 1"
[[variant]]    # f32 is multiplied by ordinary instructions, in registers
when = "dtype_bytes == 4 && D > 128"
tune = { BM = 16, BN = 16, WARPS = 4, STAGES = 1 }
[[variant]]
when = "dtype_bytes == 4"
tune = { BM = 32, BN = 32, WARPS = 4, STAGES = 1 }
[[variant]]    # few queries (decoding)
when = "S_q <= 16"
tune = { BM = 16, BN = 64, WARPS = 4, STAGES = 3 }
[[variant]]    # registers, or shared memory, do not suffice for more
when = "D > 128 || SMEM_MAX < 140000"
tune = { BM = 64, BN = 32, WARPS = 4, STAGES = 2 }
[[variant]]    # few tiles that take unequally long: smaller ones leave less to wait for at the end
when = "CC >= 90 && causal && D <= 64 && B * H * ceil_div(S_q, 128) <= 4 * SMS"
tune = { BM = 64, BN = 64, WARPS = 4, STAGES = 3 }
[[launch]]
kernel = "attend"
grid   = ["ceil_div(S_q, BM) * H", "B"]
num_warps = "WARPS"
num_stages = "STAGES"
constexprs = { BM = "BM", BN = "BN", BLOCK_D = "BLOCK_D", CAUSAL = "causal", BSHD = "bshd", WHOLE_D = "BLOCK_D == D" }
args   = ["q", "k", "v", "o", "H", "H_kv", "S_q", "S_kv", "D", "TOGETHER", "scale"]
---

A program has BM queries of one head and goes over the keys a tile at a time, with a running maximum and sum (FlashAttention-2: Dao 2023).
Tiles that all queries see whole need no mask; those on the diagonal and at the end come last. f32 is multiplied as IEEE says.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def larger(a, b):
    """The maximum in which a NaN is not lost."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def over_keys(
    total, sums, top, queries, k_at, v_at, step, first, last, seen, S_kv, inside_d, log2_scale,
    BN: tl.constexpr, MASKED: tl.constexpr, WHOLE_D: tl.constexpr,
):
    """Adds keys `first` to `last`, a multiple of BN further: where MASKED, query i sees those below seen[i]."""
    key = tl.arange(0, BN)
    for start in range(first, last, BN):
        at = start + key
        there = at < S_kv
        if MASKED:
            keys = tl.load(k_at + at[None, :] * step, mask=there[None, :] & inside_d[:, None], other=0.0)
        elif WHOLE_D:
            keys = tl.load(k_at + at[None, :] * step)
        else:
            keys = tl.load(k_at + at[None, :] * step, mask=inside_d[:, None], other=0.0)
        scores = tl.dot(queries, keys, input_precision="ieee") * log2_scale
        if MASKED:
            scores = tl.where(at[None, :] < seen[:, None], scores, -float("inf"))
        higher = larger(top, tl.reduce(scores, 1, larger))
        # Where a query has seen nothing but minus infinity any finite shift will do, and that would not.
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        weights = tl.exp2(scores - shift[:, None])
        fade = tl.exp2(top - shift)
        sums = sums * fade + tl.sum(weights, 1)
        total = total * fade[:, None]
        if MASKED:
            values = tl.load(v_at + at[:, None] * step, mask=there[:, None] & inside_d[None, :], other=0.0)
        elif WHOLE_D:
            values = tl.load(v_at + at[:, None] * step)
        else:
            values = tl.load(v_at + at[:, None] * step, mask=inside_d[None, :], other=0.0)
        total = tl.dot(weights.to(values.dtype), values, total, input_precision="ieee")
        top = higher
    return total, sums, top


@triton.jit
def tile_of(S_q, H, together, BM: tl.constexpr):
    """Which queries of which head a program has. Of the heads that run together, the tiles that see most come first, so that none of them is begun
    when all others are done."""
    pid = tl.program_id(0)
    tiles = tl.cdiv(S_q, BM).to(tl.int32)
    heads = together.to(tl.int32)
    group = pid // (heads * tiles)
    inside = pid % (heads * tiles)
    width = min(H.to(tl.int32) - group * heads, heads)
    return tiles - 1 - inside // width, (group * heads + inside % width).to(tl.int64)


@triton.jit
def attend(
    q, k, v, o, H, H_kv, S_q, S_kv, D, together, scale,
    BM: tl.constexpr, BN: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, BSHD: tl.constexpr, WHOLE_D: tl.constexpr,
):
    tile, head = tile_of(S_q, H, together, BM)
    item = tl.program_id(1).to(tl.int64)
    shared = head // (H // H_kv)
    if BSHD:
        q_base, q_step = (item * S_q * H + head) * D, H * D
        kv_base, kv_step = (item * S_kv * H_kv + shared) * D, H_kv * D
    else:
        q_base, q_step = (item * H + head) * S_q * D, D
        kv_base, kv_step = (item * H_kv + shared) * S_kv * D, D
    first = tile * BM
    query = first.to(tl.int64) + tl.arange(0, BM)
    d = tl.arange(0, BLOCK_D)
    inside_d = d < D
    there = (query[:, None] < S_q) & inside_d[None, :]
    queries = tl.load(q + q_base + query[:, None] * q_step + d[None, :], mask=there, other=0.0)
    k_at = k + kv_base + d[:, None]
    v_at = v + kv_base + d[None, :]
    keys = S_kv.to(tl.int32)
    if CAUSAL:
        offset = (S_kv - S_q).to(tl.int32)
        seen = tl.minimum(query + offset + 1, S_kv)
        # All queries of the tile see what the first one sees; none sees more than the last one.
        whole = tl.maximum(tl.minimum(first + offset + 1, keys), 0) // BN * BN
        last = tl.maximum(tl.minimum(first + BM + offset, keys), 0)
    else:
        seen = tl.zeros([BM], tl.int64) + S_kv
        whole = keys // BN * BN
        last = keys
    top = tl.full([BM], -float("inf"), tl.float32)
    sums = tl.zeros([BM], tl.float32)
    total = tl.zeros([BM, BLOCK_D], tl.float32)
    log2_scale = scale * LOG2E
    total, sums, top = over_keys(
        total, sums, top, queries, k_at, v_at, kv_step, 0, whole, seen, S_kv, inside_d, log2_scale, BN, False, WHOLE_D
    )
    total, sums, top = over_keys(
        total, sums, top, queries, k_at, v_at, kv_step, whole, last, seen, S_kv, inside_d, log2_scale, BN, True, WHOLE_D
    )
    # A query that sees nothing gives zero; a sum that is no number stays none.
    total = tl.where((sums == 0.0)[:, None], 0.0, total / sums[:, None])
    tl.store(o + q_base + query[:, None] * q_step + d[None, :], total.to(o.dtype.element_ty), mask=there)
