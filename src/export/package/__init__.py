"""Kernels for one PyTorch model, made and judged by Warpsmith.

    import PACKAGE
    PACKAGE.enable()                  # from now on torch.compile places them
    model = torch.compile(model)

    model = PACKAGE.patch(model)      # the same without torch.compile; PACKAGE.unpatch(model) takes it back
    PACKAGE.disable()                 # everything as it was

    PACKAGE.enable(only=["NAME"])     # some of the kernels alone; patch(model, only=[...]) takes names too
    PACKAGE.enable(unjudged=True)     # on a GPU that they were compiled for and nobody has judged them on, too

What was not judged (another shape, type, stride or device, anything that requires gradients) is computed the original way, and that
is said once. `status()` tells what was placed and how often it was called.
"""

from .place import Pass, disable, enable, is_enabled, patch, status, unpatch
from .plans import KERNELS, VERSION

__all__ = ["KERNELS", "VERSION", "Pass", "disable", "enable", "is_enabled", "patch", "status", "unpatch"]
__version__ = VERSION
