"""A block of two regions that torch.compile fuses, as transformers have them: a gate, then a scaled residual and a norm. For trying things out."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, width=256, hidden=512):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.scale = nn.Parameter(torch.rand(width))
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        hidden = F.mish(self.gate(x)) * self.up(x)
        x = x + self.scale * self.down(hidden)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def get_inputs():
    return [torch.randn(512, 256)]
