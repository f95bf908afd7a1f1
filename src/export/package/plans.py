"""What was judged: shapes, strides and types of every kernel, and the file that it is in."""

import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))

with open(os.path.join(HERE, "plans.json")) as _file:
    PLANS = json.load(_file)

NAME = PLANS["name"]
VERSION = PLANS["version"]
TORCH = PLANS["torch"]
KERNELS = PLANS["kernels"]
BY_KEY = {kernel["key"]: kernel for kernel in KERNELS}
FAMILIES = {kernel["family"] for kernel in KERNELS}
