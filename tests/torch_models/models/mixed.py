"""What kernels can be had for beside what they cannot: a graph break, an operator of one's own, whole numbers, a size that only the run knows."""

import torch
from torch import nn
from torch.nn import functional as F


@torch.library.custom_op("mixed::fold", mutates_args=())
def fold(x: torch.Tensor) -> torch.Tensor:
    return x.flip(-1) + x


@fold.register_fake
def _(x):
    return torch.empty_like(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.gain = nn.Parameter(torch.ones(64))
        self.up, self.down = nn.Linear(64, 128, bias=False), nn.Linear(128, 64, bias=False)

    def norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain

    def forward(self, tokens):
        x = self.norm(self.words(tokens))
        # torch.compile has to run this to know where it goes on.
        if x.sum() > 1e9:
            return x, tokens
        x = fold(x)
        hidden = F.silu(self.up(x))
        x = self.norm(self.down(hidden))
        # How many rows there are, only the values tell.
        chosen = x[tokens % 2 == 0]
        return x, F.gelu(chosen).sum(0), tokens % 7


def get_inputs():
    return [torch.randint(0, 100, (96,))]
