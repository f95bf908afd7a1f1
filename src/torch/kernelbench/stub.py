"""What runs a candidate, or the problem's own `Model` to compare its time with: in a process of its own, which is stopped but while a
call is being timed. Nothing that it says is believed but that it is done: results are the bytes that it leaves in its slot."""


class Empty:
    """Does nothing, and gives tensors of the right form: what a call costs by itself."""

    def __init__(self, outputs):
        self.outputs = outputs

    def __call__(self, *given):
        return [torch.empty(one["shape"], dtype=TYPES[one["dtype"]], device=DEVICE) for one in self.outputs]


def what_programs_say(path, alone):
    """Lets the process that can start no program hear what programs said while the sample was built. Triton asks `ptxas` for its version
    in every process, though all that it compiles is in its cache by then."""
    import subprocess

    ask, said = subprocess.check_output, {}
    if alone and os.path.exists(path):
        with open(path) as file:
            said = json.load(file)

    def check_output(*command, **named):
        question = repr(command)
        if alone and question in said:
            text, plain = said[question]
            return text if plain else text.encode("latin-1")
        answer = ask(*command, **named)
        if not alone:
            said[question] = (answer, True) if isinstance(answer, str) else (answer.decode("latin-1"), False)
            with open(path, "w") as file:
                json.dump(said, file)
        return answer

    subprocess.check_output = check_output


class Stub:
    def __init__(self):
        self.units, self.arena, self.drawn = {}, None, None

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

    def stir(self, request, files):
        """Uses a stream beside the current one, as a sample may."""
        one, stream = torch.ones(1024, 1024, device=DEVICE), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            made = one @ one
        torch.cuda.current_stream().wait_stream(stream)
        made += one
        settle()
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

    def build(self, request, files):
        """One call on inputs as the strict judge draws them, which the protocol's may not be like: a compiler that is asked then is asked while
        one can be started."""
        self.load(request, files)
        given = as_drawn(module_of(request["problem"], request["file"]), request["seed"])
        with torch.no_grad():
            self.units[request["unit"]](*given)
        settle()
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
        # A processor draws gigabytes for seconds: once for all units.
        self.drawn = self.drawn or drawn(module_of(request["problem"], request["file"]).get_inputs, 42)
        return {"stats": statistics(benchmark_times(self.units[request["unit"]], self.drawn, request["trials"]))}


def serve():
    channel, setup = begin()
    if setup["alone"]:
        # What a first run has built is used; no compiler can be started here.
        import torch.utils.cpp_extension as extension

        extension._write_ninja_file_and_build_library = lambda *given, **named: None
    if setup["folder"]:
        what_programs_say(os.path.join(setup["folder"], "said.json"), setup["alone"])
    stub = Stub()
    channel.send({"torch": torch.__version__})
    asked = {
        "arena": stub.arena_of, "stir": stub.stir, "load": stub.load, "build": stub.build, "go": stub.go, "clock": stub.clock, "protocol": protocol,
    }
    answer_all(channel, asked)


serve()
