# Honest: keys in blocks, with a running maximum.
import torch


class ModelNew(torch.nn.Module):
    def forward(self, q, k):
        blocks = [q @ block.transpose(0, 1) / 8 for block in k.split(4096)]
        top = torch.stack([block.amax(dim=-1) for block in blocks]).amax(dim=0).unsqueeze(-1)
        powers = [(block - top).exp() for block in blocks]
        total = sum(block.sum(dim=-1, keepdim=True) for block in powers)
        return torch.cat(powers, dim=-1) / total
