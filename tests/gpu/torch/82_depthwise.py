"""A depthwise convolution of the sizes of KernelBench's level 1, problem 82."""

import torch


class Model(torch.nn.Module):
    def __init__(self, channels, size):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, channels, size, groups=channels, bias=False)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.rand(16, 64, 512, 512)]


def get_init_inputs():
    return [64, 3]
