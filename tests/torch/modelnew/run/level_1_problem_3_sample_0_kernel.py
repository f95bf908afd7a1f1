# Honest: the inner dimension in four parts.
import torch


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        return sum(one @ other for one, other in zip(a.split(48, dim=1), b.split(48, dim=0)))
