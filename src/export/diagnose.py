"""Each kernel of a package alone in the model: the same results? how fast?

The texts of `load.py` and `verify.py` stand around this one, which uses what they have.
"""


def diagnose(request):
    """One trial after another, each added to the answer as soon as it is known: a kernel may end the process, and is to be found out by that."""
    model, kept, draws, eager, right = prepared(request)
    package = package_of(request["package"])
    case = Case(request, model, kept, draws, eager, right)
    case.allow(torch.compile(model, dynamic=False))
    trials = []
    keep(request, trials)
    for name in request["alone"]:
        tell(f"trying {name} alone")
        trials.append(trial(package, case, name))
        keep(request, trials)
    return {"trials": trials}


def keep(request, trials):
    """What is known so far, where the answer will be."""
    place = request["answer"]
    with open(place + ".new", "w") as file:
        json.dump({"trials": trials}, file)
    os.replace(place + ".new", place)


class Case:
    """The model with its inputs and what it says of them by itself."""

    def __init__(self, request, model, kept, draws, eager, right):
        self.device, self.seconds, self.sessions = request["device"], request["seconds"], request["sessions"]
        self.model, self.kept, self.draws, self.eager, self.right = model, kept, draws, eager, right
        self.known, self.places = [{} for _ in draws], None

    def outputs(self, way, call):
        """Every result of every draw beside the original's."""
        cases = zip(self.draws, self.eager, self.right, self.known)
        return [compare(way, self.kept.results(call, arguments), theirs, wide, known) for arguments, theirs, wide, known in cases]

    def allow(self, compiled):
        """No kernel is to blame for what torch.compile does by itself, which may be off by more than PyTorch's operators are."""
        for known, found in zip(self.known, self.outputs("compiled", compiled)):
            known.update(errors_of(found))
        _, self.places = check_nan("compiled", compiled, self.model, self.draws[0], self.kept)

    def worst(self, way, call):
        """The result that is off by the most of what is allowed, and what is wrong with it, if anything."""
        found = max((one for of in self.outputs(way, call) for one in of), key=badness)
        # A NaN that ends elsewhere is a fault of its own, to be told where no result is wrong.
        nan, _ = check_nan(way, call, self.model, self.draws[0], self.kept, self.places if way == "patched and compiled" else None)
        return found if found["wrong"] else {**found, "wrong": nan["wrong"]}


def badness(one):
    if one["error"] is None:
        return one["wrong"] is not None, float("inf")
    return one["wrong"] is not None, one["error"] / one["limit"] if one["limit"] else one["error"]


def trial(package, case, name):
    """One kernel alone: what both ways of running it say is compared, the compiled one is timed beside the original, in turns."""
    before, after, found, called = [], [], [], 0
    model, calls = case.model, lambda: package.status()["called"][name]

    def timed(call):
        return passes_us(call, case.draws[0], case.device, case.seconds)

    try:
        for session in range(case.sessions):
            torch._dynamo.reset()
            before.append(timed(torch.compile(model, dynamic=False)))
            package.enable(only=[name])
            ours = torch.compile(model, dynamic=False)
            if session == 0:
                count = calls()
                found.append(case.worst("patched and compiled", ours))
                called = calls() - count
            after.append(timed(ours))
            package.disable()
            if session == 0:
                package.patch(model, only=[name])
                found.append(case.worst("patched", model))
                package.unpatch(model)
    except Exception as error:
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:300]
        return {"op": name, "alone": {"failed": {"why": f"{type(error).__name__}: {text}"}}}
    finally:
        package.unpatch(model)
        package.disable()
    # Without CUDA graphs the host's time is in both, and may hide what the device takes.
    way = -1 if all(len(times) == 2 for times in before + after) else 0
    before_us, after_us = ([times[way] for times in side] for side in (before, after))
    return {"op": name, "alone": {"ran": {"before_us": before_us, "after_us": after_us, "called": called, "output": max(found, key=badness)}}}
