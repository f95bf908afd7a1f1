"""A package against the model it was made for, in a process that knows nothing else: same results? how fast?

Reads a request from standard input and writes its answer, JSON both, to the file that the request names. The text of `load.py` stands
before this one, and that of `diagnose.py`.
"""

import copy
import ctypes
import importlib.util
import json
import math
import signal
import warnings

# A result may be off from double precision by so many times what PyTorch's own is, and by so many units of roundoff more.
TIMES, UNITS = 4.0, 32.0
ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def tell(what):
    print(f"@{what}", file=sys.stderr, flush=True)


def package_of(folder):
    """The package in a folder, imported as a user would: by its name, with nothing compiled."""
    name = os.path.basename(os.path.normpath(folder))
    spec = importlib.util.spec_from_file_location(name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def off(given, wanted):
    """rms(given - wanted) / rms(wanted), over what is finite in `wanted`; whether the rest is where it should be."""
    given, wanted = given.to(torch.float64), wanted.to(torch.float64)
    finite = wanted.isfinite()
    same = bool((given.isfinite() == finite).all()) and bool((given.isnan() == wanted.isnan()).all())
    difference, scale = (given - wanted)[finite], wanted[finite]
    size = float(scale.pow(2).mean().sqrt()) if scale.numel() else 0.0
    error = float(difference.pow(2).mean().sqrt()) if scale.numel() else 0.0
    return (error / size if size > 0 else (0.0 if error == 0 else float("inf"))), same


class Kept:
    """A model's buffers as they were, to be put back before each pass: running averages and caches change in one, by their values or by another
    tensor in their place."""

    def __init__(self, model):
        places = [(module, name) for module in model.modules() for name in module._buffers]
        self.buffers = [(module, name, module._buffers[name]) for module, name in places if module._buffers[name] is not None]
        self.values = [one.clone() for _, _, one in self.buffers]

    def back(self):
        with torch.no_grad():
            for (module, name, one), kept in zip(self.buffers, self.values):
                if not isinstance(module, torch.jit.ScriptModule):
                    module._buffers[name] = one
                one.copy_(kept)

    def results(self, call, arguments):
        """What a call gives for arguments, which it may change, in the model's first state."""
        self.back()
        with torch.no_grad():
            return [one.clone() for one in tensors_of(call(*copy.deepcopy(arguments)))]


def exact(model, arguments, kept):
    """The same in double precision, where the model can do that."""
    from torch.utils._pytree import tree_map

    wide = tree_map(lambda one: one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one, arguments)
    kept.back()
    try:
        with torch.no_grad():
            made = tensors_of(copy.deepcopy(model).double()(*copy.deepcopy(wide)))
        if any(one.dtype not in (torch.float64, torch.complex128) for one in made if one.is_floating_point() or one.is_complex()):
            return None
        return made
    except Exception:
        return None


def as_real(one):
    """Complex numbers as pairs."""
    return torch.view_as_real(one.resolve_conj()) if one.is_complex() else one


def compare(name, ours, eager, right, known=None):
    """Each result that is floating-point on its own scale; others must be equal. `known` are errors that the original has as well, by result."""
    found = []
    if len(ours) != len(eager):
        return [{"way": name, "output": 0, "error": None, "limit": None, "wrong": f"{len(ours)} results instead of {len(eager)}"}]
    for at, (own, theirs) in enumerate(zip(ours, eager)):
        if own.shape != theirs.shape or own.dtype != theirs.dtype:
            found.append({"way": name, "output": at, "error": None, "limit": None, "wrong": f"{own.dtype} {list(own.shape)} instead of {theirs.dtype} {list(theirs.shape)}"})
            continue
        reference = right[at] if right is not None else theirs
        own, theirs, reference = as_real(own), as_real(theirs), as_real(reference)
        if not own.is_floating_point():
            share = float((own != theirs).double().mean()) if own.numel() else 0.0
            found.append({"way": name, "output": at, "error": share, "limit": 0.0, "wrong": f"{share:.1%} of its integers differ" if share else None})
            continue
        base = max(off(theirs, reference)[0] if right is not None else 0.0, (known or {}).get(at, 0.0))
        limit = TIMES * base + UNITS * ROUNDOFF[own.dtype]
        error, same = off(own, reference)
        wrong = None
        if not same:
            wrong = "NaN or infinity where the original has none, or the other way round"
        elif not error <= limit:
            wrong = f"off by {error:.2e}, and {limit:.2e} is allowed"
        # JSON has no word for a number that is none.
        error = error if math.isfinite(error) else None
        found.append({"way": name, "output": at, "error": error, "limit": limit, "wrong": wrong})
    return found


def with_one(model, arguments, other):
    """One element of the first floating-point input, or of the first parameter where there is none, is what `other` says of its tensor."""
    changed = copy.deepcopy(arguments)
    for one in changed:
        if isinstance(one, torch.Tensor) and one.is_floating_point() and one.numel():
            # Its elements may lie anywhere: turned, or one for several.
            place = torch.unravel_index(torch.tensor(one.numel() // 3), one.shape)
            one[tuple(int(at) for at in place)] = other(one)
            return changed, "an input", lambda: None
    for name, one in model.named_parameters():
        if one.is_floating_point() and one.dim() == 1 and one.numel():
            at = one.numel() // 3
            kept = one.data[at].clone()
            one.data[at] = other(one.data)

            def back():
                one.data[at] = kept

            return changed, f"the parameter {name}", back
    return None, "", lambda: None


def with_nan(model, arguments):
    return with_one(model, arguments, lambda one: float("nan"))


def nan_places(results):
    return [one.isnan() if one.is_floating_point() or one.is_complex() else None for one in results]


def original_of(model):
    """A patched model as it was."""
    patched = vars(model).get("_warpsmith")
    # What packages of before have there.
    return getattr(model, "_warpsmith_forward", model) if patched is None else patched.original(model)


def needed(model, arguments, kept):
    """What another number in the place of a NaN moves: there the NaN has to end as well. A masked value of attention is zero times NaN, or
    nothing where a kernel steps over what is masked, and both are right."""
    before, moved = kept.results(model, arguments), []
    for sign in (1, -1):
        changed, _, back = with_one(model, arguments, lambda one: sign * (2 * float(torch.nan_to_num(one).abs().max()) + 1))
        now = kept.results(model, changed)
        back()
        if any(one.shape != other.shape for one, other in zip(now, before)):
            return None
        moved.append([one != other for one, other in zip(now, before)])
    return [one | other for one, other in zip(*moved)]


def spread(model, arguments, kept):
    """Where a NaN may end at most: attention as products of matrices multiplies all that is masked by zero, a kernel some of it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    changed, _, back = with_nan(model, arguments)
    try:
        with sdpa_kernel([SDPBackend.MATH]):
            return nan_places(kept.results(model, changed))
    finally:
        back()


def stays_within(given, wanted, model, arguments, kept):
    """Whether NaNs that are not in all of the `wanted` places, or in others, are where some right way of computing it has them."""
    if any(one.shape != other.shape for one, other in zip(given, wanted) if one is not None and other is not None):
        return False
    least, most = needed(model, arguments, kept), spread(model, arguments, kept)
    fits = lambda one, must, may, all_: not bool((all_ & must & ~one | one & ~(all_ | may)).any())
    return least is not None and all(row[0] is None or fits(*row) for row in zip(given, least, most, wanted))


def check_nan(name, call, model, arguments, kept, wanted=None):
    """Whether a NaN ends where it does eagerly, or in the `wanted` places; and where it ended."""
    changed, where, back = with_nan(model, arguments)
    if changed is None:
        return {"way": name, "where": "", "wrong": None}, None
    # A patched model would be held against itself.
    original = original_of(model)
    wanted = wanted or nan_places(kept.results(original, changed))
    given = nan_places(kept.results(call, changed))
    back()
    same = all(one is None or torch.equal(one, other) for one, other in zip(given, wanted))
    right = same or stays_within(given, wanted, original, arguments, kept)
    kept.back()
    return {"way": name, "where": where, "wrong": None if right else f"a NaN in {where} does not end where the original's does"}, given


def errors_of(found):
    """By result, of those that have one."""
    return {one["output"]: one["error"] for one in found if one["limit"] and one["error"] is not None}


def prepared(request):
    """The model, its state, some inputs, and what it gives for each: eagerly, and in double precision."""
    # As its users have it: by itself PyTorch takes a thread a physical core, or as many as $OMP_NUM_THREADS says.
    torch.set_num_threads(min(request["threads"], torch.get_num_threads()))
    model, draw = load(request["folder"], request["device"], request["dtype"], request["seed"], request["load"])
    draws = [draw(request["seed"] + at) for at in range(request["draws"])]
    kept = Kept(model)
    eager = [kept.results(model, arguments) for arguments in draws]
    if not all(eager):
        raise SystemExit("the model gives no tensor that could be compared, alone or in lists, tuples, dictionaries or dataclasses")
    for one, again in zip(eager[0], kept.results(model, draws[0])):
        if changes(one, again):
            raise SystemExit("the model gives something else when it gets the same again (dropout that is always on? random numbers?): nothing can be compared")
    return model, kept, draws, eager, [exact(model, arguments, kept) for arguments in draws]


def changes(one, again):
    """Whether a result is another one than roundings in another order make it."""
    if one.shape != again.shape:
        return True
    one, again = as_real(one), as_real(again)
    if one.is_floating_point():
        error, same = off(again, one)
        return not same or error > UNITS * ROUNDOFF[one.dtype]
    # What is nearest to two may be told either way.
    return one.numel() > 0 and float((one != again).double().mean()) > 0.01


def passes_us(call, arguments, device, seconds):
    """µs of a pass as it comes, and as a CUDA graph where it can be one."""
    arguments = copy.deepcopy(arguments)
    once = lambda: call(*arguments)
    with torch.no_grad():
        found = [quartile(clock(once, device, seconds))]
        replay = graphed(once, device)
        if replay is not None:
            found.append(quartile(clock(replay, device, seconds)))
    return found


def verify(request):
    device, seconds = request["device"], request["seconds"]
    model, kept, draws, eager, right = prepared(request)
    tell("importing the package")
    package = package_of(request["package"])
    answer = {
        "reference": "double precision" if right[0] is not None else "the original, eagerly (the model cannot be run in double precision)",
        "outputs": [],
        "nan": [],
        "unusable": package.status()["unusable"],
        "kernels": len(package.KERNELS),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "notes": [],
    }

    def judged(name, call, known=None, places=None):
        """The errors of each draw, and where a NaN ended."""
        errors = []
        for at, (arguments, theirs, wide) in enumerate(zip(draws, eager, right)):
            found = compare(name, kept.results(call, arguments), theirs, wide, known and known[at])
            answer["outputs"] += found
            errors.append(errors_of(found))
        row, ended = check_nan(name, call, model, draws[0], kept, places)
        answer["nan"].append(row)
        return errors, ended

    sessions = {}

    def timed(name, call):
        for way, us in zip((name, f"{name}, replayed"), passes_us(call, draws[0], device, seconds)):
            sessions.setdefault(way, []).append(us)

    called, failed = {}, set()

    def counted(name, call, known=None, places=None):
        before = dict(package.status()["called"])
        judged(name, call, known, places)
        after = package.status()["called"]
        called[name] = {kernel: after[kernel] - before[kernel] for kernel in after}

    for session in range(request["sessions"]):
        first = session == 0
        tell(f"session {session + 1} of {request['sessions']}: as it was")
        torch._dynamo.reset()
        timed("eager", model)
        compiled = torch.compile(model, dynamic=False)
        if first:
            # What torch.compile does by itself is no kernel's fault.
            known, places = judged("compiled", compiled)
        timed("compiled", compiled)
        if request["max_autotune"] and "max-autotune" not in failed:
            tell("max-autotune")
            torch._dynamo.reset()
            try:
                timed("max-autotune", torch.compile(model, dynamic=False, mode="max-autotune"))
            except Exception as error:
                answer["notes"].append(f"max-autotune failed: {type(error).__name__}")
                failed.add("max-autotune")
                sessions.pop("max-autotune", None)
        tell(f"session {session + 1} of {request['sessions']}: with the kernels")
        torch._dynamo.reset()
        package.patch(model)
        if first:
            counted("patched", model)
        timed("patched", model)
        package.unpatch(model)
        package.enable()
        ours = torch.compile(model, dynamic=False)
        if first:
            counted("patched and compiled", ours, known, places)
        timed("patched and compiled", ours)
        if first:
            tell("another shape")
            answer["second_shape"] = second(package, ours, draws[0])
        package.disable()
    answer["us"] = sessions
    answer["called"] = called
    answer["places"] = package.status()["placed"]
    return answer


def second(package, ours, arguments):
    """Whether, after a call with half of the first dimension, the first shape still runs on the kernels."""
    halves = [one[: one.shape[0] // 2] if isinstance(one, torch.Tensor) and one.dim() and one.shape[0] > 1 else one for one in arguments]
    if all(one is other for one, other in zip(halves, arguments)):
        return None
    try:
        with torch.no_grad():
            ours(*copy.deepcopy(halves))
    except Exception as error:
        return {"tried": f"the model does not take half of its first dimension ({type(error).__name__})", "still": None}
    before = sum(package.status()["called"].values())
    with torch.no_grad():
        ours(*copy.deepcopy(arguments))
    return {"tried": "half of the first dimension", "still": sum(package.status()["called"].values()) > before}


def main():
    request = json.loads(sys.stdin.read())
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    warnings.simplefilter("ignore")
    try:
        answer = verify(request) if request["alone"] is None else diagnose(request)
    except BaseException as error:
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:300]
        answer = {"error": text if isinstance(error, SystemExit) else f"{type(error).__name__}: {text}"}
        if os.environ.get("WARPSMITH_TRACEBACK"):
            import traceback

            traceback.print_exc()
    with open(request["answer"], "w") as file:
        json.dump(answer, file)
    os._exit(0)


if __name__ == "__main__":
    main()
