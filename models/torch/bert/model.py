"""BERT (base) with random weights: one pass over 128 tokens."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output, self.output_norm = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.up, self.down, self.norm = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width, eps=1e-12)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (one(x).view(batch, length, self.heads, -1).transpose(1, 2) for one in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = self.output_norm(x + self.output(mixed))
        return self.norm(x + self.down(F.gelu(self.up(x))))


class Model(nn.Module):
    def __init__(self, layers=12, width=768, heads=12, vocabulary=30522, positions=512):
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(vocabulary, width), nn.Embedding(positions, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def forward(self, tokens, kinds):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)) + self.kinds(kinds)
        x = self.norm(x)
        for block in self.blocks:
            x = block(x)
        return x, torch.tanh(self.pooler(x[:, 0]))


def get_inputs():
    return [torch.randint(0, 30522, (1, 128)), torch.randint(0, 2, (1, 128))]
