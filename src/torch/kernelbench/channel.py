"""What every process of the benchmark has: lines of JSON over the socket that is its standard input, with files beside them."""

import sys

# Python looks into the folder that it is started in before it looks anywhere else, and a candidate has written there.
sys.path[:] = [folder for folder in sys.path if folder]

import ctypes
import gc
import json
import mmap
import os
import signal
import socket
import time
import types


class Refused(Exception):
    """Something that is told in a sentence: `kind` says whose fault it is."""

    def __init__(self, kind, what):
        super().__init__(what)
        self.kind = kind


class Channel:
    def __init__(self):
        self.socket = socket.socket(fileno=os.dup(0))
        self.rest = b""

    def receive(self):
        files = []
        while b"\n" not in self.rest:
            part, some, _, _ = socket.recv_fds(self.socket, 1 << 16, 2)
            files += some
            if not part:
                os._exit(0)
            self.rest += part
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line), files

    def send(self, answer):
        self.socket.sendall(json.dumps(answer).encode() + b"\n")


def sentence(error):
    """`ValueError: no inputs today`, in one line."""
    text = str(error).strip().splitlines()
    return type(error).__name__ + (f": {text[0][:300]}" if text else "")


def begin():
    """Takes the socket from standard input and imports PyTorch. Whatever is printed afterwards goes nowhere."""
    global torch, TYPES, NAMES, DEVICE, PRECISION
    channel = Channel()
    setup, _ = channel.receive()
    # Dies with whoever started it, also while user code is running.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != setup["parent"]:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        import torch as imported
    except BaseException as error:
        channel.send({"error": {"kind": "torch", "what": f"{sys.executable} has no PyTorch: {sentence(error)}"}})
        os._exit(1)
    torch = imported
    TYPES = {
        "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "i64": torch.int64,
        "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
    }
    NAMES = {dtype: name for name, dtype in TYPES.items()}
    PRECISION = TYPES[setup["precision"]]
    if setup["device"] != "cpu" and not torch.cuda.is_available():
        channel.send({"error": {"kind": "torch", "what": f"PyTorch {torch.__version__} sees no GPU"}})
        os._exit(1)
    DEVICE = torch.device(setup["device"])
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
        torch.cuda.init()
        torch.zeros(1, device=DEVICE)
    return channel, setup


def settle():
    """Waits for the device, all streams of it."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def answer_all(channel, asked):
    """Answers requests until the other side is gone; what is wrong with user code ends no process."""
    while True:
        request, files = channel.receive()
        try:
            answer = asked[request["ask"]](request, files)
        except Refused as error:
            answer = {"error": {"kind": error.kind, "what": str(error)}}
        except BaseException as error:
            answer = {"error": {"kind": "raised", "what": sentence(error)}}
        for file in files:
            os.close(file)
        channel.send(answer)
        gc.collect(0)


class DeviceBytes:
    """Memory of a GPU at an address, as PyTorch can look at it."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def cudart():
    """The runtime that PyTorch itself has loaded."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "libcudart" in line}
    return ctypes.CDLL(sorted(paths)[0] if paths else "libcudart.so")


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


def device_call(what, status):
    if status != 0:
        raise Refused("machine", f"{what} gave CUDA error {status}")


def slices(arena, slot, places):
    """Tensors of a slot: `places` has the first byte within the slot, type and shape of each."""
    made = []
    for place in places:
        at, count = slot + place["at"], place["bytes"]
        made.append(arena[at : at + count].view(TYPES[place["dtype"]]).reshape(place["shape"]))
    return made


def results(value):
    """The tensors that a call gave."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)) and value and all(isinstance(one, torch.Tensor) for one in value):
        return list(value)
    raise Refused("raised", f"it gives {type(value).__name__}, and not a tensor or a tuple of tensors")


def module_of(source, file):
    """A problem file as a module."""
    module = types.ModuleType("problem")
    module.__file__ = file
    sys.modules["problem"] = module
    exec(compile(source, file, "exec"), module.__dict__)
    missing = [name for name in ("Model", "get_inputs") if not hasattr(module, name)]
    if missing:
        raise Refused("raised", f"{file}: it defines no `{missing[0]}`")
    return module


def initial(module, seed):
    """Constructor arguments, as the benchmark makes them."""
    torch.manual_seed(seed)
    given = list(getattr(module, "get_init_inputs", list)())
    return [one.to(device=DEVICE, dtype=PRECISION) if isinstance(one, torch.Tensor) else one for one in given]


def as_drawn(module, seed):
    """As `get_inputs` draws them, floating ones in the precision, on the device. Integers stay what they are."""
    torch.manual_seed(seed)
    # Where they are wanted: a processor takes seconds for what a GPU draws in milliseconds.
    with DEVICE:
        given = list(module.get_inputs())

    def placed(one):
        if not isinstance(one, torch.Tensor):
            return one
        one = one.to(DEVICE, PRECISION if one.is_floating_point() else one.dtype)
        return one.contiguous()

    return [placed(one) for one in given]
