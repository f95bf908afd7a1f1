"""Inductor's kernels without Inductor: functions that need Triton alone, with what they are launched with."""

import inspect
import linecache


def tuner_of(name, source):
    """What Inductor makes of a kernel's text: an object that has its configurations."""
    from torch._inductor.runtime import triton_helpers

    triton_helpers.set_driver_to_gpu = lambda: None
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    module = {"__name__": name, "__file__": file}
    exec(compile(source, file, "exec"), module)
    return module[name]


def at_name(parameter):
    """The constant that says how far into its memory a parameter begins."""
    return f"{parameter.upper()}_AT"


def config_form(config):
    return {"blocks": dict(config.kwargs), "num_warps": config.num_warps, "num_stages": config.num_stages}


# The constant by which a kernel's last loop over what it has read before begins with what it read last: that is in the L2 cache still, where
# a row as a whole is longer than what the cache holds of all rows that are under way.
BACKWARDS = "BACKWARDS"


def last_over_again(function):
    """The last loop of a function, where it goes over the range of one before it, and each of its rounds is by itself; none else."""
    loops = [node for node in function.body if isinstance(node, ast.For)]
    ranges = [ast.unparse(one.iter) for one in loops]
    if not loops or ranges[-1] not in ranges[:-1]:
        return None
    last = loops[-1]
    plain = isinstance(last.iter, ast.Call) and dotted(last.iter.func) in ("range", "tl.range") and len(last.iter.args) == 3 and isinstance(last.target, ast.Name)
    return last if plain and ast.unparse(last.iter.args[0]) == "0" and not carries(last.body) else None


def carries(body):
    """Whether a round of a loop reads a name that the round before has set."""
    names = lambda node, way: {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, way)}
    later = set().union(*(names(one, ast.Store) for one in body))
    for one in body:
        # What is added to is read, too.
        read = names(one, ast.Load) | (names(one.target, ast.Store) if isinstance(one, ast.AugAssign) else set())
        if read & later:
            return True
        later -= names(one, ast.Store)
    return False


def may_turn(loop):
    """Has a loop begin at its end where the constant is 1."""
    _, end, step = map(ast.unparse, loop.iter.args)
    name, forward = loop.target.id, f"{loop.target.id}_forward"
    loop.target = ast.Name(id=forward, ctx=ast.Store())
    loop.body.insert(0, ast.parse(f"{name} = {forward} + {BACKWARDS} * (({end} - 1) // {step} * {step} - 2 * {forward})").body[0])


class Kernel:
    """One kernel: its function, and what it may be launched with."""

    def __init__(self, name, source):
        tuner = tuner_of(name, source)
        meta = tuner.inductor_meta
        self.name, self.grid, self.tiles = name, meta.get("grid_type"), {}
        if is_template(meta):
            self.tiles = meta["config_args"]
        elif self.grid not in ("Grid1D", "Grid2D", "Grid3D", "Grid2DWithYZOverflow"):
            raise NoStart(f"`{name}` is launched in a way that no launch plan has ({self.grid})")
        self.signature, self.constants = tuner.triton_meta["signature"], tuner.triton_meta.get("constants", {})
        self.configs = []
        for one in map(config_form, tuner.configs):
            if one not in self.configs:
                self.configs.append(one)
        self.function = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name)
        self.function.decorator_list = [ast.parse("triton.jit", mode="eval").body]
        if self.tiles:
            self.take_tiles()
        self.parameters = [one.arg for one in self.function.args.args]
        self.blocks = [one.arg for one in self.function.args.args if one.annotation is not None]
        self.offsets = set()
        self.fixed = {}
        self.set_inside = {node.targets[0].id for node in self.function.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant)}
        lacking = [block for block in self.blocks if any(block not in one["blocks"] for one in self.configs)]
        if lacking or not self.configs:
            raise NoStart(f"no configuration of `{name}` has its {lacking[0] if lacking else 'block sizes'}")
        self.loops = any(isinstance(node, (ast.For, ast.While)) for node in ast.walk(self.function))
        self.turns = last_over_again(self.function) is not None

    def take_tiles(self):
        """Has a template's block sizes handed in, which it has as constants."""
        own = lambda node: isinstance(node, ast.AnnAssign) and node.target.id in TILES and node.target.id in self.tiles
        self.known = numbers_in(self.function)
        self.function.body = [node for node in self.function.body if not own(node)]
        constant = ast.parse("tl.constexpr", mode="eval").body
        self.function.args.args += [ast.arg(arg=name, annotation=constant) for name in TILES if name in self.tiles]
        for one in self.configs:
            one["blocks"] = {name: self.tiles[name] for name in TILES if name in self.tiles}

    def text(self, helpers):
        """The function as a kernel file may have it."""
        function = Alone(helpers, self.name).visit(self.function)
        if self.turns:
            may_turn(last_over_again(function))
        body = without_dead(function.body)
        moved = [ast.parse(f"{name} = {name} + {at_name(name)}").body[0] for name in sorted(self.offsets)]
        function.body = moved + body
        kept = [one for one in function.args.args if one.arg not in self.set_inside]
        for one in kept:
            if one.arg in self.fixed:
                one.annotation = ast.parse("tl.constexpr", mode="eval").body
        if self.turns:
            kept.append(ast.arg(arg=BACKWARDS, annotation=ast.parse("tl.constexpr", mode="eval").body))
        kept += [ast.arg(arg=at_name(name), annotation=ast.parse("tl.constexpr", mode="eval").body) for name in sorted(self.offsets)]
        function.args.args = kept
        return ast.unparse(ast.fix_missing_locations(function))


class Alone(ast.NodeTransformer):
    """Names helpers by themselves, and leaves out what a kernel under judgement may not do."""

    def __init__(self, helpers, where):
        self.helpers, self.where = helpers, where

    def visit_Attribute(self, node):
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "triton_helpers":
            self.helpers.want(node.attr, self.where)
            return ast.copy_location(ast.Name(id=node.attr, ctx=ast.Load()), node)
        return node

    def visit_Expr(self, node):
        self.generic_visit(node)
        if isinstance(node.value, ast.Call) and dotted(node.value.func).endswith("device_assert"):
            return None
        return node


def without_dead(body):
    """A body without names for other names, or numbers, that nobody reads."""
    while True:
        read = {node.id for one in body for node in ast.walk(one) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}

        class Dropped(ast.NodeTransformer):
            found = False

            def drop(self, node, target):
                plain = isinstance(node.value, (ast.Name, ast.Constant)) and isinstance(target, ast.Name)
                if plain and target.id not in read:
                    self.found = True
                    return None
                return node

            def visit_Assign(self, node):
                return self.drop(node, node.targets[0])

            def visit_AnnAssign(self, node):
                return self.drop(node, node.target)

        dropped = Dropped()
        body = [one for one in (dropped.visit(one) for one in body) if one is not None]
        if not dropped.found:
            return body


class Helpers:
    """Functions of `triton_helpers` that kernels use, with those that these use."""

    def __init__(self):
        from torch._inductor.runtime import triton_helpers

        self.module = triton_helpers
        tree = ast.parse(inspect.getsource(triton_helpers))
        self.known = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.texts, self.constants = {}, {}

    def want(self, name, where):
        if name in self.texts:
            return
        node = self.known.get(name)
        plain = node is not None and [dotted(one) for one in node.decorator_list] == ["triton.jit"]
        if not plain:
            raise NoStart(f"`{where}` uses `triton_helpers.{name}`, which is no kernel's text")
        # Its place is behind those that it uses.
        self.texts[name] = None
        own = {one.arg for one in node.args.args} | {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        for one in ast.walk(node):
            if not isinstance(one, ast.Name) or one.id in own or one.id in ("tl", "libdevice", "math", "triton"):
                continue
            value = getattr(self.module, one.id, None)
            if one.id in self.known:
                self.want(one.id, where)
            elif hasattr(value, "value") and isinstance(value.value, (int, float)):
                self.constants[one.id] = value.value
        del self.texts[name]
        self.texts[name] = ast.unparse(without_docstring(node))


def without_docstring(node):
    if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant) and len(node.body) > 1:
        node.body = node.body[1:]
    return node


IMPORTS = {
    "tl": "import triton.language as tl",
    "math": "from triton.language import math",
    "tl_math": "from triton.language import math as tl_math",
    "libdevice": "from triton.language.extra import libdevice",
}


def text_of(functions, helpers):
    """The code of a kernel file: imports, helpers, kernels."""
    parts = []
    if helpers.texts:
        parts.append(
            "# Helpers of Inductor's, from torch/_inductor/runtime/triton_helpers.py (PyTorch; BSD-3-Clause, Copyright (c) 2016-\n"
            "# Facebook, Inc and the other contributors named in PyTorch's LICENSE)."
        )
        parts += [f"{name} = tl.constexpr({value!r})" for name, value in sorted(helpers.constants.items())]
    parts += list(helpers.texts.values()) + functions
    names = {node.id for part in parts for node in ast.walk(ast.parse(part)) if isinstance(node, ast.Name)}
    imports = ["import triton"] + [line for name, line in IMPORTS.items() if name in names]
    return "\n".join(imports) + "\n\n\n" + "\n\n\n".join(parts) + "\n"
