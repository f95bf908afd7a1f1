"""A small block of two regions that torch.compile fuses: bias and GELU, then residual and RMSNorm."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, width=256, hidden=512):
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.bias = nn.Parameter(torch.randn(hidden) * 0.1)
        self.down = nn.Linear(hidden, width, bias=False)
        self.scale = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        hidden = F.gelu(self.up(x) + self.bias)
        x = x + self.down(hidden)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale


def get_inputs():
    return [torch.randn(512, 256)]
