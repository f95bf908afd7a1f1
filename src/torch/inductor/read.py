"""Inductor's module as a launch plan: its kernels' texts, and `call`, which is read and not run."""

import ast


class NoStart(Exception):
    """Why Inductor's kernels cannot be taken, in a sentence."""


def numbers(node):
    """A tuple of whole numbers that is written out."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        raise NoStart("sizes are not known beforehand") from None
    return [value] if isinstance(value, int) else list(value)


class Number:
    """A number that a kernel takes by value, by the name that Inductor gives its tensor."""

    def __init__(self, whose):
        self.whose = whose


def dotted(node):
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "something"


class Plan:
    """What `call` does: memory, kernels, results."""

    def __init__(self, code):
        self.kernels = {}
        # Each piece of memory: an input's place, or a buffer's elements and type.
        self.inputs, self.buffers, self.launches, self.results = {}, {}, [], []
        # Names of views: whose memory, and how many elements into it.
        self.views = {}
        call = None
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                self.take_kernel(node)
            if isinstance(node, ast.FunctionDef) and node.name == "call":
                call = node
        if call is None:
            raise NoStart("Inductor's code has no `call`")
        self.body(call.body)

    def take_kernel(self, node):
        if dotted(node.value.func) == "async_compile.triton":
            self.kernels[node.targets[0].id] = ast.literal_eval(node.value.args[1])

    def body(self, statements):
        for node in statements:
            if isinstance(node, ast.With):
                self.body(node.body)
            elif isinstance(node, ast.Assign):
                self.assign(node)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                self.does(node.value)
            elif isinstance(node, ast.Return):
                parts = node.value.elts if isinstance(node.value, (ast.Tuple, ast.List)) else [node.value]
                self.results = [self.place(one) for one in parts]
            elif not isinstance(node, (ast.Delete, ast.Pass)):
                raise NoStart(f"Inductor's `call` has a `{type(node).__name__.lower()}`, which is no launch")

    def assign(self, node):
        target, value = node.targets[0], node.value
        if isinstance(value, ast.Name) and value.id == "args":
            names = [target] if isinstance(target, ast.Name) else target.elts
            self.inputs = {one.id: place for place, one in enumerate(names)}
            return
        if not isinstance(target, ast.Name):
            raise NoStart(f"Inductor calls `{dotted(getattr(value, 'func', value))}`, which is no kernel of its own")
        if isinstance(value, ast.Call):
            called = dotted(value.func)
            if called == "empty_strided_cuda":
                shape, stride, dtype = numbers(value.args[0]), numbers(value.args[1]), dotted(value.args[2])
                elements = 1 + sum((size - 1) * step for size, step in zip(shape, stride)) if 0 not in shape else 0
                self.buffers[target.id] = {"elements": elements, "dtype": dtype.removeprefix("torch."), "dense": is_dense(shape, stride)}
                return
            if called.endswith("get_raw_stream"):
                return
            if called != "reinterpret_tensor":
                raise NoStart(f"Inductor calls `{called}`, which is no kernel of its own")
        self.views[target.id] = self.place(value)

    def does(self, node):
        called = dotted(node.func)
        name, _, method = called.rpartition(".")
        if called == "args.clear" or called.startswith(("torch.cuda.", "assert_")):
            return
        if method != "run" or name not in self.kernels:
            raise NoStart(f"Inductor calls `{called}`, which is no kernel of its own")
        self.launches.append((name, [self.argument(one) for one in node.args]))

    def argument(self, node):
        try:
            return ast.literal_eval(node)
        except ValueError:
            return self.number(node) or self.place(node)

    def number(self, node):
        """The input of which a kernel is handed the one number that it holds; None where it is anything else."""
        is_item = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args
        inside = node.func.value if is_item else None
        return Number(inside.id) if isinstance(inside, ast.Name) and inside.id in self.inputs else None

    def place(self, node):
        """Whose memory something is, how many elements into it, and whether it is row-major there without gaps."""
        if isinstance(node, ast.Name):
            if node.id in self.views:
                return self.views[node.id]
            if node.id in self.inputs:
                return node.id, 0, True
            if node.id in self.buffers:
                return node.id, 0, self.buffers[node.id]["dense"]
            raise NoStart(f"Inductor's code reads `{node.id}`, a constant tensor, which a kernel file has no place for")
        if isinstance(node, ast.Call) and dotted(node.func) == "reinterpret_tensor":
            whose, offset, _ = self.place(node.args[0])
            shape, stride = numbers(node.args[1]), numbers(node.args[2])
            further = numbers(node.args[3])[0] if len(node.args) > 3 else 0
            return whose, offset + further, is_dense(shape, stride)
        raise NoStart("Inductor's code hands a kernel something else than a tensor or a number")


def is_dense(shape, stride):
    """Whether it is row-major without gaps."""
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride)):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True
