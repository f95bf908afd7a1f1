"""What was judged: shapes, strides and types of every kernel, and the file that it is in."""

import hashlib
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

with open(os.path.join(HERE, "plans.json")) as _file:
    PLANS = json.load(_file)

NAME = PLANS["name"]
VERSION = PLANS["version"]
TORCH = PLANS["torch"]
KERNELS = PLANS["kernels"]
BY_KEY = {kernel["key"]: kernel for kernel in KERNELS}


class Unusable(Exception):
    """Why a kernel cannot run here."""


def read(file):
    """The path of a file of the package, where it is what the package says it is."""
    full = os.path.join(HERE, file["path"])
    with open(full, "rb") as opened:
        found = hashlib.sha256(opened.read()).hexdigest()
    if found != file["sha256"]:
        raise Unusable(f"{file['path']} is not the file that was exported: its digest differs from plans.json")
    return full

_said = set()


def say(text):
    """To standard error, once."""
    if text not in _said:
        _said.add(text)
        print(f"{NAME}: {text}", file=sys.stderr, flush=True)
