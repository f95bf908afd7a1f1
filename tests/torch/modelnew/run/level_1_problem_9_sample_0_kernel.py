# Honest: by operators.
import torch


class ModelNew(torch.nn.Module):
    def forward(self, shares, targets):
        log = shares.log().clamp(min=-100)
        other = (-shares).log1p().clamp(min=-100)
        return -(targets * log + (1 - targets) * other).mean()
