"""The process in which Triton compiles: started by Warpsmith with the user's Python, kept warm, with no GPU and no network.

It speaks in frames over standard input and output: two lengths of 32 bits, JSON, bytes. Each kernel is compiled in a process of its own
that is forked for it, so that whatever the text does to Triton ends with it; the text is read (reader.py) before anything of it runs.
"""

import json
import os
import select
import shutil
import signal
import struct
import sys


def refused(source):
    said = refusal(source)
    if said is None:
        return None
    line, what = said
    return f"line {line}: {what}" if line else what


def read_exactly(file, count):
    parts = b""
    while len(parts) < count:
        part = os.read(file, count - len(parts))
        if not part:
            return None
        parts += part
    return parts


def read_frame(file):
    head = read_exactly(file, 8)
    if head is None:
        return None
    lengths = struct.unpack("<II", head)
    parts = [read_exactly(file, length) for length in lengths]
    return None if None in parts else (json.loads(parts[0]), parts[1])


def write_frame(file, message, contents=b""):
    text = json.dumps(message).encode()
    frame = memoryview(struct.pack("<II", len(text), len(contents)) + text + contents)
    while frame:
        frame = frame[os.write(file, frame):]


def words(error):
    """What went wrong, for whoever wrote the kernel: where Triton met it, which says the reason too, and the reason itself."""
    place, reason = None, None
    while error is not None:
        text = str(error).strip() or type(error).__name__
        if hasattr(error, "node") and hasattr(error, "error_message"):
            # The innermost is the line itself, those around it are the calls that led there.
            place = text
        else:
            reason = text if type(error).__name__ in text else f"{type(error).__name__}: {text}"
        error = error.__cause__ or error.__context__
    said = place or reason
    if place and reason and reason.split(": ", 1)[-1] not in place:
        said = f"{place}\n{reason}"
    return said[:6000]


def compile_kernel(request, source, scratch):
    """Compiles one kernel of a text that was read before."""
    import linecache

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    name = request["file"]
    text = source.decode()
    # Triton asks Python for a function's lines.
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    module = {"__name__": "kernels", "__file__": name}
    exec(compile(text, name, "exec"), module)
    function = module.get(request["kernel"])
    if not isinstance(function, triton.runtime.JITFunction):
        return {"refused": f"there is no @triton.jit function `{request['kernel']}` in the text"}, b""
    constants = dict(request["constexprs"])
    parameters = [parameter.name for parameter in function.params]
    wanted = {parameter.name for parameter in function.params if parameter.is_constexpr}
    extra = sorted(set(constants) - set(parameters))
    if extra:
        return {"refused": f"`{function.__name__}` has no parameter `{extra[0]}`, which the launch's constexprs give"}, b""
    left = sorted(wanted - set(constants))
    if left:
        return {"refused": f"the launch's constexprs do not give `{left[0]}`, a tl.constexpr of `{function.__name__}`"}, b""
    runtime = [parameter for parameter in parameters if parameter not in constants]
    told = request["arguments"]
    if len(runtime) != len(told):
        takes = ", ".join(runtime) or "none"
        return {"refused": f"`{function.__name__}` takes {len(runtime)} arguments beside its constexprs ({takes}), and the launch gives {len(told)}"}, b""
    signature = {parameter: "constexpr" for parameter in constants}
    signature.update({parameter: kind for parameter, (kind, _) in zip(runtime, told)})
    signature = {parameter: signature[parameter] for parameter in parameters}
    places = {parameter: place for place, parameter in enumerate(parameters)}
    attributes = {(places[parameter],): [["tt.divisibility", 16]] for parameter, (_, divisible) in zip(runtime, told) if divisible}
    constants = {(places[parameter],): value for parameter, value in constants.items()}
    made = ASTSource(function, signature, constants, attributes)
    compiled = triton.compile(made, target=GPUTarget("cuda", request["capability"], 32), options=request["options"])
    meta = compiled.metadata
    facts = {
        "name": meta.name,
        "shared": meta.shared,
        "num_warps": meta.num_warps,
        "global_scratch": getattr(meta, "global_scratch_size", 0),
        "global_scratch_align": getattr(meta, "global_scratch_align", 1),
        "profile_scratch": getattr(meta, "profile_scratch_size", 0),
        "tensor_memory": getattr(meta, "tmem_size", 0) or 0,
    }
    cubin, ptx = compiled.asm["cubin"], compiled.asm["ptx"].encode()
    return facts | {"cubin": len(cubin)}, cubin + ptx


def in_child(request, source, scratch, answer):
    """Compiles, says what came of it, and ends."""
    said = os.path.join(scratch, "said")
    out = os.open(said, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    contents = b""
    try:
        text = source.decode()
        message = {"refused": refused(text)}
        if message["refused"] is None:
            os.environ["TRITON_CACHE_DIR"] = os.environ["TMPDIR"] = scratch
            import tempfile

            tempfile.tempdir = scratch
            message, contents = compile_kernel(request, source, scratch)
    except BaseException as error:
        message = {"refused": "the compiler refuses it:\n" + words(error)}
    sys.stdout.flush()
    sys.stderr.flush()
    with open(said, errors="replace") as file:
        message["log"] = file.read(256 << 10)
    write_frame(answer, message, contents)
    os._exit(0)


def answer(request, source, folder):
    """Has it compiled by a process of its own; ends with whoever asked."""
    scratch = os.path.join(folder, "job")
    shutil.rmtree(scratch, ignore_errors=True)
    os.makedirs(scratch)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        # What asked is the parent's to hear.
        os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        in_child(request, source, scratch, theirs)
    os.close(theirs)
    parts = []
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    poll.register(0, 0)
    while True:
        ready = dict(poll.poll())
        if 0 in ready and not ours in ready:
            os.killpg(0, signal.SIGKILL)
        part = os.read(ours, 1 << 20)
        if not part:
            break
        parts.append(part)
    os.close(ours)
    _, status = os.waitpid(child, 0)
    shutil.rmtree(scratch, ignore_errors=True)
    frame = b"".join(parts)
    if not frame:
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
        write_frame(OUT, {"refused": f"the compiler died of it ({how})", "log": ""})
    else:
        while frame:
            frame = frame[os.write(OUT, frame):]


def without_own_key():
    """Triton names what it keeps by a hash of all its files, libraries of hundreds of megabytes among them: half a second in each process.

    What is kept here is kept by a hash of this program's own, and each job's folder begins empty.
    """
    import importlib

    for name in ("triton.runtime.cache", "triton.compiler.compiler"):
        module = importlib.import_module(name)
        if hasattr(module, "triton_key"):
            module.triton_key = lambda: "one job, one folder"


def main(folder):
    sys.path = [path for path in sys.path if path]
    sys.setrecursionlimit(20000)
    try:
        import triton
        import triton.language
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from triton.language.extra import libdevice

        # What the assembler says of registers and spills; and no lines of the source in the code, which is read as code.
        knobs = getattr(triton, "knobs", None)
        for part, name in (("nvidia", "dump_ptxas_log"), ("compilation", "disable_line_info")):
            if hasattr(getattr(knobs, part, None), name):
                setattr(getattr(knobs, part), name, True)
        triton.runtime.JITFunction
        without_own_key()
        # What each job would import anew.
        import triton.compiler.code_generator
    except BaseException as error:
        write_frame(OUT, {"error": f"{type(error).__name__}: {error}"[:400]})
        return
    write_frame(OUT, {"triton": triton.__version__, "python": sys.version.split()[0]})
    while True:
        frame = read_frame(0)
        if frame is None:
            return
        answer(*frame, folder)


if __name__ == "__main__":
    # Nothing that anything prints may come between frames.
    OUT = os.dup(1)
    os.dup2(os.open("/dev/null", os.O_RDWR), 1)
    main(os.environ["TMPDIR"])
