"""What tests/gpu/table.py measures: the README's rows, those of a Llama, and sweeps. A row is an operation, a shape and a type."""

import tomllib


def attention(b, h, s_q, s_kv, d, causal=0, h_kv=None):
    shape = dict(B=b, H=h, S_q=s_q, S_kv=s_kv, D=d, causal=causal)
    return dict(op="flash_attention", shape=shape | ({"H_kv": h_kv} if h_kv else {}))


def product(m, n, k, trans_b=0):
    return dict(op="matmul", shape=dict(M=m, N=n, K=k) | ({"trans_b": 1} if trans_b else {}))


def rows_of(op, first, second, dtype="f16"):
    names = dict(layernorm=("batch", "dim"), cross_entropy=("batch", "vocab")).get(op, ("rows", "cols"))
    return dict(op=op, shape=dict(zip(names, (first, second))), dtype=dtype)


def swiglu(b, d, h):
    return dict(op="fused_mlp", shape=dict(B=b, D=d, H=h))


def rotary(b, h, s, d, dtype="f16"):
    return dict(op="rotary_embedding", shape=dict(B=b, H=h, S=s, D=d), dtype=dtype)


README = [
    ("softmax 4096²", rows_of("softmax", 4096, 4096)), ("softmax 8192²", rows_of("softmax", 8192, 8192)),
    ("softmax 4096×50257", rows_of("softmax", 4096, 50257)), ("cross entropy 4096×32000", rows_of("cross_entropy", 4096, 32000)),
    ("layernorm 4096×2048", rows_of("layernorm", 4096, 2048)), ("layernorm 8192×4096", rows_of("layernorm", 8192, 4096)),
    ("rmsnorm 4096²", rows_of("rmsnorm", 4096, 4096)), ("rmsnorm 16384×8192", rows_of("rmsnorm", 16384, 8192)),
    ("rotary 2,32,1024,128", rotary(2, 32, 1024, 128)), ("reduce 8192²", rows_of("reduce", 8192, 8192)),
    ("matmul 2048³", product(2048, 2048, 2048)), ("matmul 4096³", product(4096, 4096, 4096)),
    ("matmul 4096·11008·4096", product(4096, 11008, 4096)), ("linear 128·4096·4096", product(128, 4096, 4096, 1)),
    ("attention causal 2,32,1024,64", attention(2, 32, 1024, 1024, 64, 1)),
    ("attention causal 1,32,2048,128", attention(1, 32, 2048, 2048, 128, 1)), ("SwiGLU 2048,2048,5504", swiglu(2048, 2048, 5504)),
]
LLAMA = [("matmul 8192·1024·1024", product(8192, 1024, 1024))] + [
    (f"linear {m}·{n}·{k}", product(m, n, k, 1)) for n, k in ((4096, 4096), (11008, 4096), (4096, 11008), (32000, 4096))
    for m in (1, 16, 64, 128)] + [
    ("SwiGLU 1,4096,11008", swiglu(1, 4096, 11008)), ("SwiGLU 128,4096,11008", swiglu(128, 4096, 11008)),
    ("SwiGLU 2048,4096,11008", swiglu(2048, 4096, 11008)),
    ("attention causal 1,32,128,128", attention(1, 32, 128, 128, 128, 1)), ("attention causal 1,32,4096,128", attention(1, 32, 4096, 4096, 128, 1)),
    ("attention 2,32,1024,128", attention(2, 32, 1024, 1024, 128)),
    ("attention causal 2,32/8,1024,128", attention(2, 32, 1024, 1024, 128, 1, 8)),
] + [(f"decode {b},{h},{s} keys,128", attention(b, 32, 1, s, 128, 0, 8 if h == "32/8" else None))
     for s in (2048, 8192) for b in (1, 16) for h in ("32", "32/8")]


def sweep_rows(path):
    """(label, row, Helion's us) for the shapes of which the file gives times, and all of rotary."""
    for op, entry in tomllib.loads(path.read_text()).items():
        dtype = entry["dtype"]
        if op == "rotary_embedding":
            for part in entry["shapes"].split(";"):
                hidden, tokens = part.split(" x ")
                for s in tokens.split():
                    for h in (32, 8):
                        yield f"rotary {h} heads, hidden {hidden.strip()}, {s} tokens", rotary(1, h, int(s), int(hidden) // 32, dtype), None
            continue
        for part in entry["h200_us"].split(";"):
            shape, _, helion = part.split()
            first, second = map(int, shape.split("x"))
            yield f"{op} {first}×{second}", rows_of(op, first, second, dtype), float(helion)
