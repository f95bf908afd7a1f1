"""Has code that torch.compile writes call the kernels themselves: a call by way of PyTorch's dispatcher costs the host more than the launch."""

from .operators import LOADED, NAMESPACE, operator_of

_done = False


def function_of(kernel):
    """The kernel's direct call as a function of its own, which a graph can hold by its name."""

    run, check = kernel.call, kernel.check

    def call(*tensors):
        return run(tensors, check)

    call.__name__ = call.__qualname__ = f"{NAMESPACE}_{kernel.name}"
    return call


FUNCTIONS = {key: function_of(kernel) for key, kernel in LOADED.items()}


def prepare():
    """Tells Inductor, once. Where this PyTorch's Inductor has no such place, its code calls the operators, which is the same but slower."""
    global _done
    if _done:
        return
    _done = True
    try:
        from torch._inductor.lowering import lowerings
        from torch._inductor.select_algorithm import extern_kernels
    except ImportError:
        return
    for key, function in FUNCTIONS.items():
        setattr(extern_kernels, function.__name__, function)
        operator = operator_of(key)
        lowerings[operator] = lowering(operator, f"extern_kernels.{function.__name__}")


def lowering(operator, name):
    """What Inductor does with any operator that it does not know, but for the name that its code calls."""
    from torch._inductor.ir import FallbackKernel
    from torch._inductor.lowering import fallback_handler
    from torch._inductor.virtualized import V

    known = fallback_handler(operator)

    def lower(*tensors):
        made = known(*tensors)
        # Code in C++ asks for the operator by its own name.
        if not V.graph.cpp_wrapper:
            for call in V.graph.operations:
                if isinstance(call, FallbackKernel) and call.op_overload is operator:
                    call.python_kernel_name = name
        return made

    # Inductor's processes for compiling know operators by this.
    lower._is_fallback_handler = True
    return lower
