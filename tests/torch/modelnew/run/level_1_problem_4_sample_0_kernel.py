# Honest: the layer's parameters under other names, and gelu by the error function.
import torch


class ModelNew(torch.nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        layer = torch.nn.Linear(features, outputs)
        self.w, self.b = layer.weight, layer.bias

    def forward(self, x):
        y = torch.addmm(self.b, x, self.w.t())
        return 0.5 * y * (1 + torch.erf(y * 0.5**0.5))
