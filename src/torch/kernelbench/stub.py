"""What runs a candidate, or the problem's own `Model` to compare its time with: in a process of its own, which is stopped but while a
call is being timed. Nothing that it says is believed but that it is done: results are the bytes that it leaves in its slot."""


class Empty:
    """Does nothing, and gives tensors of the right form: what a call costs by itself."""

    def __init__(self, outputs):
        self.outputs = outputs

    def __call__(self, *given):
        return [torch.empty(one["shape"], dtype=TYPES[one["dtype"]], device=DEVICE) for one in self.outputs]


class Stub:
    def __init__(self):
        self.units, self.arena = {}, None

    def arena_of(self, request, files):
        """Memory in which slots lie."""
        if DEVICE.type == "cuda":
            address, handle = ctypes.c_void_p(), IpcHandle()
            ctypes.memmove(ctypes.byref(handle), bytes.fromhex(request["handle"]), 64)
            device_call("opening the judge's memory", cudart().cudaIpcOpenMemHandle(ctypes.byref(address), handle, 1))
            self.arena = torch.as_tensor(DeviceBytes(address.value, request["bytes"]), device=DEVICE)
        else:
            self.arena = torch.frombuffer(mmap.mmap(files[0], request["bytes"]), dtype=torch.uint8)
        self.inputs, self.outputs = request["inputs"], request["outputs"]
        # Where tensors lie among the arguments; the rest is given as it is.
        self.pattern = request["pattern"]
        return {}

    def load(self, request, files):
        """A unit by its name: the candidate's `ModelNew`, or the problem's `Model` in a way that PyTorch has."""
        way = request["way"]
        if way == "empty":
            self.units[request["unit"]] = Empty(self.outputs)
            return {}
        module = module_of(request["problem"], request["file"])
        arguments = initial(module, request["seed"])
        if way == "candidate":
            model_class = candidate_of(request["source"], {}, request["folder"])
            if model_class is None:
                raise Refused("raised", "the file defines no ModelNew")
        else:
            model_class = module.Model
        with torch.no_grad():
            torch.manual_seed(request["seed"])
            model = model_class(*arguments).to(device=DEVICE, dtype=PRECISION)
            if way not in ("candidate", "eager"):
                model = torch.compile(model, dynamic=False, mode=None if way == "default" else way)
        settle()
        self.units[request["unit"]] = model
        return {}

    def go(self, request, files):
        """One call in a slot."""
        slot = request["slot"]
        given = slices(self.arena, slot, self.inputs)
        arguments = [given[one["tensor"]] if "tensor" in one else one["value"] for one in self.pattern]
        with torch.no_grad():
            made = results(self.units[request["unit"]](*arguments))
            rooms = slices(self.arena, slot, self.outputs)
            forms = [list(one.shape) for one in made]
            if forms != [list(room.shape) for room in rooms]:
                raise Refused("shape", f"it gives tensors of {forms}, not of {[list(room.shape) for room in rooms]}")
            for room, value in zip(rooms, made):
                room.copy_(value)
        settle()
        return {}

    def clock(self, request, files):
        """A unit by the benchmark's own timing."""
        inputs = drawn(module_of(request["problem"], request["file"]).get_inputs, 42)
        return {"stats": statistics(benchmark_times(self.units[request["unit"]], inputs, request["trials"]))}


def serve():
    channel, setup = begin()
    if setup["alone"]:
        # What a first run has built is used; no compiler can be started here.
        import torch.utils.cpp_extension as extension

        extension._write_ninja_file_and_build_library = lambda *given, **named: None
    stub = Stub()
    channel.send({"torch": torch.__version__})
    asked = {"arena": stub.arena_of, "load": stub.load, "go": stub.go, "clock": stub.clock, "protocol": protocol}
    answer_all(channel, asked)


serve()
