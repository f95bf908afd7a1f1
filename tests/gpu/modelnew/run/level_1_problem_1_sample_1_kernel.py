# Honest: a stream of its own, which the caller's stream waits for.
import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stream = torch.cuda.Stream()

    def forward(self, a, b):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            out = a @ b
        torch.cuda.current_stream().wait_stream(self.stream)
        return out
