"""A user's model: `model.py`, a function that is named, or a Hugging Face checkpoint."""

import os
import sys
import types
from collections.abc import Mapping

import torch

# What names no function, but a checkpoint of whichever kind.
TRANSFORMERS = "transformers"
# Tokens of a checkpoint's input, where it takes as many, and samples of speech: a second.
TOKENS, SAMPLES = 128, 16000


def load(folder, device, dtype, seed, named=None):
    """The model in evaluation mode, and a function that draws inputs, both on the device."""
    sys.path.insert(0, folder)
    model, given, place = made(folder, device, seed, named)
    model = model.eval().to(device)
    if dtype:
        model = model.to(getattr(torch, dtype))

    def moved(one):
        if not isinstance(one, torch.Tensor):
            return one
        # Nobody computes gradients here, and what has some of its own cannot be copied.
        one = one.detach().to(device)
        return one.to(getattr(torch, dtype)) if dtype and one.is_floating_point() else one

    def draw(number):
        from torch.utils._pytree import tree_map

        seeded(number)
        with place:
            return [tree_map(moved, one) for one in given()]

    return model, draw


def seeded(number):
    """All that a model's text may draw from: sizes come from Python's numbers, too."""
    import random

    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number % 2**32)


def made(folder, device, seed, named):
    """The model, what gives its inputs, and where both are made. Random weights of billions are drawn where they will be, if the model's own
    text can do that."""
    import contextlib

    def make():
        seeded(seed)
        if named == TRANSFORMERS:
            return of_checkpoint(folder)
        if named:
            return of_function(named)
        if os.path.isfile(os.path.join(folder, "model.py")):
            return of_file(os.path.join(folder, "model.py"))
        return of_checkpoint(folder)

    if torch.device(device).type != "cpu":
        try:
            with torch.device(device):
                return *make(), torch.device(device)
        except Exception:
            torch.cuda.empty_cache()
    return *make(), contextlib.nullcontext()


def of_file(file):
    with open(file) as opened:
        text = opened.read()
    module = types.ModuleType("warpsmith_model")
    module.__file__ = file
    sys.modules["warpsmith_model"] = module
    try:
        exec(compile(text, file, "exec"), module.__dict__)
    except ImportError as error:
        if "relative import" not in str(error):
            raise
        raise SystemExit(
            f"{file} is no part of a package, so `from .name import` finds nothing; write `from name import` for a file beside it, or name a "
            "function of the package with --load package.module:function"
        ) from None
    for name in ("Model", "get_inputs"):
        if not hasattr(module, name):
            raise SystemExit(f"{file} has no `{name}`; it needs `Model` and `get_inputs()`, and may have `get_init_inputs()`")
    return called(module.Model(*getattr(module, "get_init_inputs", list)()), module.get_inputs)


def called(model, draw, first=None):
    """A model that takes what `draw` gives as a list: a list or tuple, one tensor, or a dictionary by its names."""
    first = draw() if first is None else first
    # What a tokenizer gives is a mapping, and no dictionary.
    if isinstance(first, Mapping):
        names = list(first)
        return Named(model, names), lambda: list(map(draw().__getitem__, names))
    return model, lambda: listed(draw())


def of_function(named):
    """`package.module:function`, which gives (module, inputs), and is called again for other inputs."""
    import importlib

    place, _, name = named.partition(":")
    if not place or not name:
        raise SystemExit(f"--load {named} names no function; write package.module:function")
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(error.name + ".")):
            raise SystemExit(f"--load {named}: there is no module {error.name}, neither in the model's directory nor in this Python") from None
        raise
    function = getattr(module, name, None)
    if not callable(function):
        raise SystemExit(f"--load {named}: {place} has no function `{name}`")

    def fresh():
        result = function()
        if not (isinstance(result, (list, tuple)) and len(result) == 2 and isinstance(result[0], torch.nn.Module)):
            raise SystemExit(f"--load {named}: {name}() is to give (module, inputs), and gave a {type(result).__name__}")
        return result

    model, inputs = fresh()
    draw = inputs if callable(inputs) else lambda: fresh()[1]
    return called(model, draw, None if callable(inputs) else inputs)


def listed(inputs):
    return list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]


class Named(torch.nn.Module):
    """A module that takes its inputs by their names."""

    def __init__(self, model, names, first=False):
        super().__init__()
        self.model, self.names, self.first = model, names, first

    def forward(self, *values):
        result = self.model(**dict(zip(self.names, values)))
        return result[0] if self.first and not isinstance(result, torch.Tensor) else result


def of_checkpoint(folder):
    """A folder with a `config.json`, by `transformers`: with its weights, or random ones where it has none. Its first result counts."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise SystemExit(
            f"{folder} is a Hugging Face checkpoint that `transformers` is to run, and {sys.executable} has none; install it there, or give the folder a model.py"
        ) from None
    config = transformers.AutoConfig.from_pretrained(folder)
    config.use_cache = False
    wanted = (getattr(config, "architectures", None) or [""])[0]
    kind = getattr(transformers, wanted, None) if wanted else None
    has_weights = any(name.endswith((".safetensors", ".bin")) for name in os.listdir(folder))
    if has_weights:
        model = (kind or transformers.AutoModel).from_pretrained(folder, config=config, local_files_only=True)
    else:
        model = kind(config) if kind else transformers.AutoModel.from_config(config)
    given = checkpoint_inputs(config, model)
    return Named(model, list(given()), first=True), lambda: list(given().values())


def checkpoint_inputs(config, model):
    """Draws inputs by their names: what the model is for, what its decoder begins with, and pictures beside text where it compares the two."""
    import inspect

    main, takes = getattr(model, "main_input_name", "input_ids"), inspect.signature(model.forward).parameters
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kind = getattr(model, "dtype", torch.float32)

    def tokens():
        most = getattr(text, "max_position_embeddings", None) or getattr(text, "max_target_positions", None) or TOKENS
        return torch.randint(0, text.vocab_size, (1, min(TOKENS, most)))

    def sizes():
        if main == "input_features" and hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
            # Whisper halves the length.
            return (1, config.num_mel_bins, 2 * config.max_source_positions)
        if main == "input_values" and hasattr(config, "conv_stride"):
            return (1, SAMPLES)
        if main == "input_values" and hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
            return (1, config.max_length, config.num_mel_bins)
        return None

    def picture():
        parts = [getattr(config, name, None) for name in ("vision_config", "encoder")]
        seen = next((one for one in parts if hasattr(one, "image_size")), config)
        size = getattr(seen, "image_size", 224)
        sides = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
        frames = (seen.num_frames,) if isinstance(getattr(seen, "num_frames", None), int) else ()
        return torch.randn(1, *frames, getattr(seen, "num_channels", 3), *sides, dtype=kind)

    draws = {}
    if main == "input_ids":
        draws[main] = tokens
        if hasattr(model, "get_text_features") and hasattr(model, "get_image_features") and "pixel_values" in takes:
            draws["pixel_values"] = picture
    elif main == "pixel_values":
        draws[main] = picture
    elif shape := sizes():
        draws[main] = lambda: torch.randn(shape, dtype=kind)
    else:
        raise SystemExit(
            f"{type(model).__name__} takes `{main}`, and only token ids, pictures and speech are drawn; --load names a function that gives the model and "
            "its inputs"
        )
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        draws["decoder_input_ids"] = tokens
    return lambda: {name: draw() for name, draw in draws.items()}


def tensors_of(value):
    """The tensors in what a model gives, in order."""
    import dataclasses
    from torch.utils._pytree import tree_leaves

    found = []
    for one in tree_leaves(value):
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif dataclasses.is_dataclass(one) and not isinstance(one, type):
            found += tensors_of([getattr(one, field.name) for field in dataclasses.fields(one)])
    return found


def wait(device):
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def quartile(times):
    """The lower quartile: what others do on the machine only adds."""
    return sorted(times)[len(times) // 4]


class Replay:
    """A graph that is replayed, with what it works on: memory of a call that is gone would be given to others, or back to the device."""

    def __init__(self, call, graph):
        self.call, self.graph = call, graph

    def __call__(self):
        self.graph.replay()


def graphed(call, device):
    """The same as a CUDA graph that is replayed: what the device takes, without what starting it costs. None where it cannot be captured."""
    if torch.device(device).type != "cuda":
        return None
    try:
        with torch.no_grad():
            # Where the model runs anyway: once a further stream has had work, every graph of a process may be slower (`timed_first`).
            for _ in range(3):
                call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
        torch.cuda.synchronize()
        return Replay(call, graph)
    except Exception:
        torch.cuda.synchronize()
        # A capture that failed leaves the generator as one that is being captured, and it draws no more numbers.
        torch.cuda.default_generators[torch.cuda.current_device()].graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
        return None


def settled():
    """Waits for the processes that compile for torch.compile: they start in the background, and would be timed as well."""
    module = sys.modules.get("torch._inductor.async_compile")
    if module is not None:
        try:
            module.AsyncCompile.wait_pool_ready()
        except Exception:
            pass


def clock(call, device, seconds, least=5):
    """µs of calls, one by one."""
    import time

    settled()
    times = []
    for _ in range(3):
        call()
    wait(device)
    end = time.perf_counter() + seconds
    if torch.device(device).type != "cuda":
        while len(times) < least or (time.perf_counter() < end and len(times) < 20000):
            began = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - began) / 1e3)
    else:
        # Bursts between two events: what one launch costs the host is hidden where the device is what takes time.
        while len(times) < least or (time.perf_counter() < end and len(times) < 2000):
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            for _ in range(10):
                call()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) * 100.0)
    return times
