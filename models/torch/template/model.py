"""A template: copy this folder, and put your model in.

`warpsmith profile FOLDER` takes it apart as torch.compile runs it; `warpsmith run FOLDER` improves its parts. Nothing here is changed.
Keep to torch alone, or import whatever your Python has: this folder is in `sys.path`.
"""

import torch
from torch import nn


class Model(nn.Module):
    """The whole that is to become faster. It is put into evaluation mode, so that dropout does nothing."""

    def __init__(self, width=512, classes=10):
        super().__init__()
        # Random weights will do: time does not depend on them. To load your own: self.load_state_dict(torch.load("weights.pt")).
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        # Plain tensors in, tensors out (one, or a tuple). Python that torch.compile cannot follow becomes a graph break, which the
        # profile shows as a row and which costs time of its own.
        return self.head(self.norm(x).relu())


def get_inputs():
    """What one pass takes, in the order of `forward`'s arguments: kernels are judged for these sizes and no others."""
    return [torch.randn(64, 512)]


def get_init_inputs():
    """What `Model` is made with; leave this out where there is nothing."""
    return [512, 10]
