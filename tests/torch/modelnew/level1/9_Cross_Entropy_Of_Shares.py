import torch


# Its reference refuses what is no share of one: most of what a judge could try.
class Model(torch.nn.Module):
    def forward(self, shares, targets):
        return torch.nn.functional.binary_cross_entropy(shares, targets)


def get_inputs():
    return [torch.rand(64, 4096), torch.rand(64, 4096)]


def get_init_inputs():
    return []
