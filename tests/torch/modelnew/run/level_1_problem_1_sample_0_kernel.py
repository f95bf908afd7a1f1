# Honest: a kernel in C, built once and loaded.
import ctypes
import os
import subprocess

import torch

SOURCE = """
#include <math.h>
void softmax(const float *x, float *out, long rows, long columns) {
    for (long r = 0; r < rows; r++) {
        const float *row = x + r * columns;
        float top = -INFINITY;
        double sum = 0;
        int undefined = 0;
        for (long j = 0; j < columns; j++) {
            undefined |= row[j] != row[j];
            top = row[j] > top ? row[j] : top;
        }
        for (long j = 0; j < columns; j++) sum += exp((double)row[j] - top);
        for (long j = 0; j < columns; j++) out[r * columns + j] = undefined ? NAN : exp((double)row[j] - top) / sum;
    }
}
"""


def built():
    folder = os.environ["TORCH_EXTENSIONS_DIR"]
    library = os.path.join(folder, "softmax.so")
    if not os.path.exists(library):
        source = os.path.join(folder, "softmax.c")
        with open(source, "w") as file:
            file.write(SOURCE)
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
    return ctypes.CDLL(library)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.library = built()

    def forward(self, x):
        x, out = x.contiguous(), torch.empty_like(x)
        pointers = [ctypes.c_void_p(one.data_ptr()) for one in (x, out)]
        self.library.softmax(*pointers, *map(ctypes.c_long, x.shape))
        return out
