# Honest: by operators.
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        powers = (x - x.amax(dim=1, keepdim=True)).exp()
        return powers / powers.sum(dim=1, keepdim=True)
