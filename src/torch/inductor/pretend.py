"""A GPU that is not there: enough of one for Inductor to write its kernels, and for nothing else.

Tests have no GPU and should take the way that a run takes. Inductor asks the device a few things while it writes, and those are
answered here: an H100's or H200's for 9.0, an A100's for 8.0. Nothing is compiled, allocated or started.
"""


def pretend(capability):
    """Has Inductor write for a GPU of this compute capability, as 90 for 9.0."""
    import collections

    import torch._dynamo.device_interface as interfaces
    import torch._subclasses.fake_tensor as fake_tensor
    import triton
    from torch._inductor import config
    from torch._inductor.fx_passes import joint_graph
    from triton.backends.compiler import GPUTarget

    names = "name major minor multi_processor_count warp_size max_threads_per_multi_processor regs_per_multiprocessor shared_memory_per_block"
    names += " shared_memory_per_block_optin shared_memory_per_multiprocessor total_memory L2_cache_size gcnArchName"
    Properties = collections.namedtuple("Properties", names)
    major, minor = divmod(capability, 10)
    many, optin, l2 = (132, 232448, 50 << 20) if capability >= 90 else (108, 166912, 40 << 20)
    it = Properties("pretended", major, minor, many, 32, 2048, 65536, 49152, optin, optin + 1024, 80 << 30, l2, "")

    class Guard:
        def __init__(self, *_):
            self.idx = 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

    class Driver:
        def get_current_target(self):
            return GPUTarget("cuda", capability, 32)

        def get_current_device(self):
            return 0

        def get_active_torch_device(self):
            return torch.device("cuda", 0)

    stream = object()
    answers = {
        "is_available": lambda *_: True,
        "device_count": lambda *_: 1,
        "current_device": lambda *_: 0,
        "get_device_properties": lambda *_: it,
        "get_device_capability": lambda *_: (major, minor),
        "get_device_name": lambda *_: it.name,
        "_lazy_init": lambda *_: None,
        "synchronize": lambda *_: None,
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *_: None,
        "current_stream": lambda *_: stream,
        "device": Guard,
        "_DeviceGuard": Guard,
        "_exchange_device": lambda *_: 0,
        "_maybe_exchange_device": lambda *_: 0,
        "mem_get_info": lambda *_: (70 << 30, 80 << 30),
        "is_bf16_supported": lambda *_, **__: True,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    interface = interfaces.CudaInterface
    for name in ("is_available", "device_count", "current_device", "get_device_properties", "synchronize", "current_stream", "exchange_device", "maybe_exchange_device"):
        setattr(interface, name, staticmethod(answers.get(name, lambda *_: 0)))
    interface.get_compute_capability = staticmethod(lambda *_: capability)
    interface.is_triton_capable = staticmethod(lambda *_: True)
    interface.raise_if_triton_unavailable = staticmethod(lambda *_: None)
    interface.is_bf16_supported = staticmethod(lambda *_, **__: True)
    interface.get_raw_stream = staticmethod(lambda *_: 0)
    interface.Worker.get_device_properties = staticmethod(lambda *_: it)
    interface.Worker.current_device = staticmethod(lambda *_: 0)
    interfaces.caching_worker_device_properties["cuda"] = [it]
    torch._C._accelerator_getDeviceIndex = lambda *_: 0
    torch._C._cuda_getCurrentRawStream = lambda *_: 0
    fake_tensor.init_gpu_context = lambda *_: None
    triton.runtime.driver.set_active(Driver())
    # It would be set up by asking the device.
    joint_graph.lazy_init(torch.device("cpu"))
    joint_graph.lazy_init = lambda *_: None
    config.joint_graph_constant_folding = False
