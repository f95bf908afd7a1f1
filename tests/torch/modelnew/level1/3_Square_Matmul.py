import torch


class Model(torch.nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.rand(192, 192), torch.rand(192, 192)]


def get_init_inputs():
    return []
