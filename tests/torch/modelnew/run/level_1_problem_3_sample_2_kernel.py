# Honest: rows in threads, which are joined before the result is given.
import threading

import torch


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
        half = a.shape[0] // 2

        def part(rows):
            out[rows] = a[rows] @ b

        threads = [threading.Thread(target=part, args=(rows,)) for rows in (slice(0, half), slice(half, None))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return out
