"""Reads a Triton kernel file before anything of it is executed: what is not plainly a kernel is refused.

Executing a module runs its imports, decorators, defaults, annotations and whatever stands between functions; and while a kernel is
compiled, Triton's front end calls what the kernel's text names, in Python. So only this is let through: imports of Triton, constants,
and functions with `@triton.jit` whose bodies name nothing but their own variables, the file's constants and functions, and what
Triton's language offers to kernels. This file needs Python's own `ast` and nothing else.
"""

import ast


class Refused(Exception):
    """Why a text is refused, with its line."""

    def __init__(self, node, what):
        super().__init__(what)
        self.line = getattr(node, "lineno", 0)


# Modules that may be imported, and how they may be gone through from there: what is not a module is a name for kernels.
MODULES = {
    "triton": {"language"},
    "triton.language": {"math", "extra"},
    "triton.language.math": set(),
    "triton.language.extra": {"cuda", "libdevice"},
    "triton.language.extra.cuda": {"libdevice"},
    "triton.language.extra.libdevice": set(),
    "triton.language.extra.cuda.libdevice": set(),
}

# What each offers to kernels. Everything else in them is the compiler's own affair, or some other module that its files import.
OFFERED = {
    "triton": {"cdiv", "next_power_of_2"},
    "triton.language": set(
        "PropagateNan abs add advance arange argmax argmin associative_scan assume atomic_add atomic_and atomic_cas atomic_max "
        "atomic_min atomic_or atomic_xchg atomic_xor bfloat16 broadcast broadcast_to cast cat cdiv ceil clamp condition constexpr cos "
        "cumprod cumsum debug_barrier div_rn dot dot_scaled dtype erf exp exp2 expand_dims fdiv flip float16 float32 float64 "
        "float8e4b15 float8e4b8 float8e4nv float8e5 float8e5b16 floor fma full gather histogram inline_asm_elementwise int1 int16 "
        "int32 int64 int8 interleave join load load_tensor_descriptor log log2 make_block_ptr make_tensor_descriptor map_elementwise "
        "max max_constancy max_contiguous maximum min minimum mul multiple_of num_programs permute pointer_type program_id rand "
        "rand4x randint randint4x randn randn4x range ravel reduce reduce_or reshape rsqrt sigmoid sin softmax sort split sqrt sqrt_rn "
        "static_assert static_range store store_tensor_descriptor sub sum swizzle2d tensor_descriptor topk trans tuple uint16 uint32 "
        "uint64 uint8 umulhi view where xor_sum zeros zeros_like".split()
    ),
    "triton.language.math": set(
        "abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi".split()
    ),
    "triton.language.extra.cuda": {"num_threads", "num_warps", "smid"},
}
# A module of nothing but functions for kernels.
LIBDEVICE = ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice")

# Why, where there is more to say.
INSTEAD = {
    "autotune": "a sweep belongs into the front matter: write the choices as `[tune]` and give them to the launch's constexprs, num_warps "
    "and num_stages; Warpsmith's tuner sweeps them",
    "heuristics": "a value that depends on the shape belongs into the front matter: a `[let]`, or an expression among the launch's "
    "constexprs",
    "Config": "a configuration belongs into the front matter: `[tune]` for the choices, num_warps and num_stages at the launch",
    "device_print": "a kernel under judgement prints nothing",
    "static_print": "a kernel under judgement prints nothing",
    "device_assert": "it needs the host's support, which a kernel under judgement does not have; use a mask",
    "globaltimer": "a kernel under judgement reads no clock",
}

# What the language itself offers beyond the modules.
BUILTINS = {"range", "min", "max", "float", "int", "len"}

# What a body may consist of.
STATEMENTS = (ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Expr, ast.Pass)
EXPRESSIONS = (
    ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.Call, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice,
    ast.Name, ast.Tuple, ast.List, ast.ListComp,
)
PARTS = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.keyword, ast.comprehension)

# Methods and properties of values; a module's names are looked at by themselves.
METHODS = {
    "to", "T", "dtype", "element_ty", "shape", "type", "cast", "value", "reshape", "trans", "permute", "broadcast_to",
    "expand_dims", "sum", "max", "min", "argmax", "argmin", "reduce", "associative_scan", "cumsum", "cumprod", "sort", "split", "join",
    "view", "ravel", "flip", "gather", "histogram", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "abs", "ceil", "floor",
    "sigmoid", "softmax", "xor_sum", "load", "store", "advance", "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or",
    "atomic_xor", "atomic_cas", "atomic_xchg", "logical_and", "logical_or", "primitive_bitwidth", "is_floating", "is_fp16", "is_bf16",
    "is_fp32", "is_fp8", "is_int", "is_ptr", "is_block", "scalar", "numel", "item", "ALL", "NONE",
}

MOST_NODES = 20000
MOST_DEPTH = 150


class Reader:
    """Reads one module."""

    def __init__(self):
        # Names of modules and of what was imported from them, by the name they have in the file.
        self.imported = {}
        self.constants = set()
        self.functions = set()

    def module(self, tree):
        nodes = list(ast.walk(tree))
        if len(nodes) > MOST_NODES:
            raise Refused(None, "it is longer than any kernel")
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self.take(node, node.name, self.functions)
        for number, node in enumerate(tree.body):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.import_(node)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                pass
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                self.constant(node)
            elif isinstance(node, ast.FunctionDef):
                self.head(node)
            else:
                raise Refused(
                    node,
                    "a Triton kernel file has imports of triton, constants and @triton.jit functions, and nothing else runs in it: no "
                    f"`{type(node).__name__.lower()}` outside of a kernel",
                )
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self.body(node)

    def take(self, node, name, into):
        if name.startswith("__"):
            raise Refused(node, f"`{name}` is a name of Python's own")
        if name in self.imported or name in self.constants or name in self.functions:
            raise Refused(node, f"`{name}` stands for two things")
        into.add(name)

    def import_(self, node):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name not in MODULES:
                    raise Refused(node, f"`import {alias.name}`: a kernel file imports triton and triton.language, and nothing else")
                # Without a name of its own it is `triton` that it makes known.
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                self.imported[self.free(node, alias.asname or whole)] = whole
            return
        if node.level or node.module not in MODULES:
            raise Refused(node, f"`from {node.module} import`: a kernel file imports triton and triton.language, and nothing else")
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if alias.name == "*" or alias.name.startswith("_"):
                raise Refused(node, f"`{alias.name}` cannot be imported; name what the kernels use")
            if whole not in MODULES:
                # What a kernel could not reach through the module either.
                if whole != "triton.jit":
                    self.offered(node, node.module, alias.name)
            self.imported[self.free(node, alias.asname or alias.name)] = whole

    def free(self, node, name):
        # Imported once more as the same is no harm; as anything else it is.
        if name in self.constants or name in self.functions or name.startswith("__") or name in BUILTINS:
            raise Refused(node, f"`{name}` stands for two things")
        return name

    def constant(self, node):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if len(targets) != 1 or not isinstance(targets[0], ast.Name) or node.value is None:
            raise Refused(node, "outside of kernels a constant is one name and one value: NAME = tl.constexpr(8)")
        if isinstance(node, ast.AnnAssign) and self.path(node.annotation) != "triton.language.constexpr":
            raise Refused(node, "a constant's annotation is tl.constexpr")
        value = node.value
        if isinstance(value, ast.Call):
            if self.path(value.func) != "triton.language.constexpr" or len(value.args) != 1 or value.keywords:
                raise Refused(node, "nothing is called outside of kernels, but tl.constexpr(8) for a constant")
            value = value.args[0]
        self.literal(value)
        self.take(node, targets[0].id, self.constants)

    def literal(self, node):
        if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, (bool, int, float, str))):
            if isinstance(node.value, int) and abs(node.value) >= 1 << 64 or isinstance(node.value, str) and len(node.value) > 4096:
                raise Refused(node, "a constant that is too long")
            return
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            return self.literal(node.operand)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float":
            if len(node.args) == 1 and not node.keywords and isinstance(node.args[0], ast.Constant):
                return self.literal(node.args[0])
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
            if all(isinstance(side, ast.Constant) and isinstance(side.value, (int, float)) for side in (node.left, node.right)):
                return self.literal(node.left) or self.literal(node.right)
        raise Refused(node, "a constant is a number, a text or True and False, written out")

    def path(self, node):
        """The dotted name of a module or of something in one, as Triton has it; None where it is neither."""
        if isinstance(node, ast.Name):
            return self.imported.get(node.id)
        if isinstance(node, ast.Attribute):
            before = self.path(node.value)
            return before and f"{before}.{node.attr}"
        return None

    def head(self, node):
        for decorator in node.decorator_list:
            plain = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = self.path(plain)
            last = (name or "").split(".")[-1]
            if last in INSTEAD:
                raise Refused(decorator, f"`@triton.{last}`: {INSTEAD[last]}")
            if name != "triton.jit" or plain is not decorator:
                raise Refused(decorator, f"`{node.name}` has a decorator that is not `@triton.jit`, as it stands")
        if len(node.decorator_list) != 1:
            raise Refused(node, f"`{node.name}` is no kernel: every function of a Triton file has `@triton.jit`, once")
        every = node.args
        if every.vararg or every.kwarg or every.posonlyargs or every.kwonlyargs:
            raise Refused(node, f"`{node.name}` takes arguments in a way that a kernel does not; name them one by one")
        for default in every.defaults:
            self.literal(default)
        for argument in every.args:
            if argument.annotation is not None and self.path(argument.annotation) != "triton.language.constexpr":
                raise Refused(argument, f"`{argument.arg}`: the only annotation in a kernel's head is tl.constexpr")
        if node.returns is not None or getattr(node, "type_params", None):
            raise Refused(node, f"`{node.name}`: a kernel's head has no annotation but tl.constexpr")

    def body(self, function):
        own = {argument.arg for argument in function.args.args}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
        for name in own:
            if name.startswith("__") or name in self.imported or name in self.functions or name in BUILTINS:
                raise Refused(function, f"`{name}` in `{function.name}` hides something else of that name")
        for statement in function.body:
            self.statement(statement, own, 0)

    def statement(self, node, own, depth):
        if depth > MOST_DEPTH:
            raise Refused(node, "nested too deeply")
        if not isinstance(node, STATEMENTS):
            raise Refused(node, f"`{type(node).__name__.lower()}` has no place in a kernel")
        if isinstance(node, ast.AnnAssign) and self.path(node.annotation) != "triton.language.constexpr":
            raise Refused(node, "the only annotation in a kernel is tl.constexpr")
        for child in ast.iter_child_nodes(node):
            if isinstance(node, ast.AnnAssign) and child is node.annotation:
                continue
            if isinstance(child, ast.stmt):
                self.statement(child, own, depth + 1)
            else:
                self.expression(child, own, depth + 1)

    def expression(self, node, own, depth):
        if depth > MOST_DEPTH:
            raise Refused(node, "nested too deeply")
        if isinstance(node, PARTS):
            if isinstance(node, ast.keyword) and (node.arg is None or node.arg.startswith("_")):
                raise Refused(node.value, "a keyword that is not a kernel's to give")
        elif not isinstance(node, EXPRESSIONS):
            raise Refused(node, f"`{type(node).__name__.lower()}` has no place in a kernel")
        if isinstance(node, ast.Constant) and not (
            node.value is None or node.value is Ellipsis or isinstance(node.value, (bool, int, float, str))
        ):
            raise Refused(node, "a constant that a kernel does not have")
        if isinstance(node, ast.Name):
            known = own | self.constants | self.functions | BUILTINS
            if node.id in self.imported:
                if self.imported[node.id] in MODULES:
                    raise Refused(node, f"`{node.id}` by itself is a module, and no value")
                return
            if node.id not in known:
                raise Refused(node, f"`{node.id}` is nothing that a kernel knows")
            return
        if isinstance(node, ast.Attribute):
            if not isinstance(node.ctx, ast.Load):
                raise Refused(node, f"`.{node.attr}` cannot be set")
            module = self.path(node.value)
            if module is not None and module in MODULES:
                if f"{module}.{node.attr}" in MODULES:
                    raise Refused(node, f"`{node.attr}` by itself is a module, and no value")
                return self.offered(node, module, node.attr)
            if node.attr not in METHODS:
                raise Refused(node, f"`.{node.attr}` is nothing that a kernel's values have")
            return self.expression(node.value, own, depth + 1)
        for child in ast.iter_child_nodes(node):
            self.expression(child, own, depth + 1)

    def offered(self, node, module, name):
        if name in INSTEAD:
            raise Refused(node, f"`{name}`: {INSTEAD[name]}")
        known = not name.startswith("_") if module in LIBDEVICE else name in OFFERED.get(module, ())
        if not known:
            raise Refused(node, f"`{name}` of {module} is not for kernels")


def refusal(source):
    """Why a text is refused, as (line, sentence); None where it is not."""
    try:
        tree = ast.parse(source)
        Reader().module(tree)
    except Refused as refused:
        return refused.line, str(refused)
    except SyntaxError as error:
        return error.lineno or 0, f"it is not Python: {error.msg}"
    except (RecursionError, MemoryError, ValueError) as error:
        return 0, f"it cannot be read as Python: {type(error).__name__}"
    return None
