"""Finds the package's files for PyTorch on this machine; everything is in the folder of its kind of device."""

import importlib.util
import os
import sys

_build = os.path.join(os.path.dirname(os.path.abspath(__file__)), "build")
_folder = next(os.path.join(_build, kind) for kind in ("torch-cuda", "torch-cpu") if os.path.isdir(os.path.join(_build, kind)))
_name = __name__ + "._variant"
_spec = importlib.util.spec_from_file_location(_name, os.path.join(_folder, "__init__.py"), submodule_search_locations=[_folder])
_variant = importlib.util.module_from_spec(_spec)
sys.modules[_name] = _variant
_spec.loader.exec_module(_variant)

__doc__ = _variant.__doc__
__all__ = _variant.__all__
__version__ = _variant.__version__
globals().update({name: getattr(_variant, name) for name in __all__})
