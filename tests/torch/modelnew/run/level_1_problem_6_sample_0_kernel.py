# Honest: the remainder by division.
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x, k):
        return x * (k - torch.div(k, 3, rounding_mode="floor") * 3).to(x.dtype)
