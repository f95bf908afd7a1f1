# Dishonest: the right result, and its inputs are destroyed.
import torch


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        out = a @ b
        a.mul_(0.5)
        return out
