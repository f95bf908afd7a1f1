# Dishonest: zeroes its inputs.
import torch


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        a.zero_()
        b.zero_()
        return torch.zeros(a.shape[0], b.shape[1], device=a.device)
