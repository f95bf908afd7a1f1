# Dishonest: a stream of its own that nobody waits for, so that events on the caller's see nothing.
import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stream = torch.cuda.Stream()

    def forward(self, a, b):
        with torch.cuda.stream(self.stream):
            return a @ b
