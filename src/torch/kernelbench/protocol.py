"""The benchmark's own protocol, as its `eval.py` and `timing.py` have it at 423217d (MIT), written anew: one process for the reference
and the candidate, seed 42, five trials, allclose at its tolerances, its timing. It can be fooled, and that is what this column shows."""

import importlib.util

TOLERANCES = {"f32": 1e-4, "f16": 1e-2, "bf16": 1e-2}


def cast(one):
    """Inputs as the benchmark has them: every tensor, integers too, in the precision."""
    return one.to(dtype=PRECISION).to(device=DEVICE) if isinstance(one, torch.Tensor) else one


def seed_all(seed):
    torch.manual_seed(seed)
    if DEVICE.type == "cuda":
        torch.cuda.manual_seed(seed)


def drawn(get_inputs, seed):
    seed_all(seed)
    return [cast(one) for one in get_inputs()]


def candidate_of(source, context, folder):
    """`ModelNew` of a candidate's text. Triton reads its kernels from a file; other text shares the reference's names, as there."""
    if "triton" in source or "cute" in source:
        path = os.path.join(folder, "candidate.py")
        with open(path, "w") as file:
            file.write(source)
        spec = importlib.util.spec_from_file_location("temp_module", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, "ModelNew", None)
    exec(compile(source, "<string>", "exec"), context)
    return context.get("ModelNew")


def statistics(times):
    """Of milliseconds, to three digits."""
    mean = sum(times) / len(times)
    spread = (sum((one - mean) ** 2 for one in times) / len(times)) ** 0.5

    def short(value):
        return float(f"{value:.3g}")

    found = {"mean": short(mean), "std": short(spread), "min": short(min(times)), "max": short(max(times)), "num_trials": len(times)}
    hardware = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    return {**found, "hardware": hardware, "device": str(DEVICE)}


def benchmark_times(model, inputs, trials):
    """Milliseconds of each trial: events on the current stream, a cold cache. On a processor, which the benchmark does not know, its
    host_time without the flush."""
    times = []
    with torch.no_grad():
        for _ in range(3):
            model(*inputs)
            settle()
        for trial in range(trials + 1):
            settle()
            if DEVICE.type == "cuda":
                begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                flush = torch.empty((32, 1024, 1024), dtype=torch.int64, device=DEVICE)
                flush.fill_(42)
                del flush
                begun.record()
                model(*inputs)
                ended.record()
                torch.cuda.synchronize()
                took = begun.elapsed_time(ended)
            else:
                began = time.perf_counter()
                model(*inputs)
                took = (time.perf_counter() - began) * 1e3
            if trial >= 1:
                times.append(took)
    return times


def named(error):
    return f"{error.__class__.__module__}.{error.__class__.__name__}"


def compare(reference, candidate, get_inputs, seeds, metadata):
    """Whether all trials pass."""
    tolerance, passed = TOLERANCES[NAMES[PRECISION]], 0
    for seed in seeds:
        inputs = drawn(get_inputs, seed)
        seed_all(seed)
        model = reference.to(device=DEVICE, dtype=PRECISION)
        seed_all(seed)
        new = candidate.to(device=DEVICE, dtype=PRECISION)
        output = model(*inputs)
        settle()
        try:
            output_new = new(*inputs)
            settle()
            if output.shape != output_new.shape:
                metadata["correctness_issue"] = f"Output shape mismatch: Expected {output.shape}, got {output_new.shape}"
                metadata["correctness_issue_name"] = "correctness_issue"
                return False
            if torch.allclose(output, output_new, atol=tolerance, rtol=tolerance):
                passed += 1
            else:
                off = torch.abs(output - output_new)
                metadata.setdefault("max_difference", []).append(f"{torch.max(off).item():.6f}")
                metadata.setdefault("avg_difference", []).append(f"{torch.mean(off).item():.6f}")
                metadata["correctness_issue"] = "Output mismatch"
        except Exception as error:
            metadata["runtime_error"] = str(error)[:200]
            metadata["runtime_error_name"] = named(error)
            return False
    metadata["correctness_trials"] = f"({passed} / {len(seeds)})"
    return passed == len(seeds)


def protocol(request, files):
    """A sample through the protocol: `compiled`, `correctness`, `metadata`, `runtime` and `runtime_stats` as its scripts write them."""
    metadata = {"hardware": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu", "device": str(DEVICE)}
    if DEVICE.type != "cuda":
        metadata["timing_method"] = "host_time"
    found = {"compiled": False, "correctness": False, "metadata": metadata, "runtime": -1.0, "runtime_stats": {}}
    context = {}
    exec(compile(request["problem"], request["file"], "exec"), context)
    get_inputs = context["get_inputs"]
    seed_all(42)
    arguments = [cast(one) for one in context.get("get_init_inputs", list)()]
    with torch.no_grad():
        seed_all(42)
        reference = context["Model"](*arguments)
    try:
        model_class = candidate_of(request["source"], context, request["folder"])
        settle()
    except BaseException as error:
        metadata["compilation_error_name"] = named(error)
        metadata["compilation_error"] = str(error)[:2000]
        return found
    if model_class is None:
        metadata["compilation_error_name"] = "SyntaxError"
        metadata["compilation_error"] = "Syntax error in custom generated code or ModelNew not found"
        return found
    found["compiled"] = True
    try:
        with torch.no_grad():
            seed_all(42)
            candidate = model_class(*arguments)
            reference = reference.to(device=DEVICE, dtype=PRECISION)
            candidate = candidate.to(device=DEVICE, dtype=PRECISION)
            settle()
        torch.manual_seed(42)
        seeds = [torch.randint(0, 2**32 - 1, (1,)).item() for _ in range(request["trials"])]
        with torch.no_grad():
            found["correctness"] = compare(reference, candidate, get_inputs, seeds, metadata)
    except Exception as error:
        metadata["runtime_error"] = str(error)[:2000]
        metadata["runtime_error_name"] = named(error)
    if found["correctness"]:
        try:
            stats = statistics(benchmark_times(candidate, drawn(get_inputs, 42), request["timed"]))
            found["runtime"], found["runtime_stats"] = stats["mean"], stats
            ours = statistics(benchmark_times(reference, drawn(get_inputs, 42), request["timed"]))
            if ours["mean"] / stats["mean"] > 10:
                metadata["excessive_speedup"] = True
        except Exception as error:
            metadata["error_during_performance"] = str(error)[:2000]
    return found
