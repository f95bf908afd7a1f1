"""Llama of 7 B with random weights: one pass over 2048 tokens. It wants 14 GB in 16 bits, so name `--dtype bf16` and a GPU.

`--load model:prompt` takes 128 tokens instead, `--load model:decode` one token after 511 others, whose keys and values are kept.
"""

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Block(nn.Module):
    def __init__(self, width, hidden, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.input_norm, self.mlp_norm = RMSNorm(width), RMSNorm(width)
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(width, kv_heads * self.size, bias=False)
        self.v, self.o = nn.Linear(width, kv_heads * self.size, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin, cache=None):
        batch, length, width = x.shape
        y = self.input_norm(x)
        q = rotate(self.q(y).view(batch, length, self.heads, self.size).transpose(1, 2), cos, sin)
        k = rotate(self.k(y).view(batch, length, self.kv_heads, self.size).transpose(1, 2), cos, sin)
        v = self.v(y).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        if cache is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads < self.heads)
        else:
            k, v = cache(k, v)
            mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=self.kv_heads < self.heads)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, layers=32, width=4096, hidden=11008, heads=32, kv_heads=32, vocabulary=32000, positions=2048):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, hidden, heads, kv_heads) for _ in range(layers))
        self.norm, self.head = RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        angle = torch.outer(torch.arange(positions).float(), 10000.0 ** (-torch.arange(0, size, 2).float() / size))
        angle = torch.cat((angle, angle), dim=-1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        cos, sin = self.cos[: tokens.shape[1]].to(x.dtype), self.sin[: tokens.shape[1]].to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


class Cache(nn.Module):
    """Keys and values of the tokens so far, in place; the newest token's come last."""

    def __init__(self, heads, length, size):
        super().__init__()
        self.register_buffer("k", torch.randn(1, heads, length, size), persistent=False)
        self.register_buffer("v", torch.randn(1, heads, length, size), persistent=False)

    def forward(self, k, v):
        self.k[:, :, -1:] = k
        self.v[:, :, -1:] = v
        return self.k, self.v


class Decoder(nn.Module):
    """The next token after `length - 1` others."""

    def __init__(self, model, length):
        super().__init__()
        self.model, self.length = model, length
        self.caches = nn.ModuleList(Cache(block.kv_heads, length, block.size) for block in model.blocks)

    def forward(self, token):
        model, last = self.model, slice(self.length - 1, self.length)
        x = model.embed(token)
        cos, sin = model.cos[last].to(x.dtype), model.sin[last].to(x.dtype)
        for block, cache in zip(model.blocks, self.caches):
            x = block(x, cos, sin, cache)
        return model.head(model.norm(x))


def get_inputs():
    return [torch.randint(0, 32000, (1, 2048))]


def prompt():
    return Model(), lambda: [torch.randint(0, 32000, (1, 128))]


def decode():
    return Decoder(Model(), 512), lambda: [torch.randint(0, 32000, (1, 1))]
