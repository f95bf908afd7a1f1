"""The judge's memory, mapped: files of the machine's memory, or of a GPU's."""


class Region:
    """A region of the judge's memory, mapped as long as a question is answered: read-only, unless inputs are to be drawn there."""

    def __init__(self, form, files, to_write=False):
        self.pieces, self.on_gpu = form["pieces"], form["device"]
        mine = [files.pop(0) for _ in self.pieces]
        self.at, self.end = 0, max((at + count for at, count in self.pieces), default=0)
        if not self.on_gpu:
            self.view = mmap.mmap(mine[0], 0, prot=mmap.PROT_READ | mmap.PROT_WRITE if to_write else mmap.PROT_READ)
            return
        at = ctypes.c_uint64()
        driver("cuMemAddressReserve", ctypes.byref(at), ctypes.c_size_t(self.end), ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
        self.at, self.mapped = at.value, []
        for file, (place, count) in zip(mine, self.pieces):
            handle = ctypes.c_uint64()
            driver("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(file), ctypes.c_int(1))
            where = ctypes.c_uint64(self.at + place)
            driver("cuMemMap", where, ctypes.c_size_t(count), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
            self.mapped.append((where, ctypes.c_size_t(count)))
            driver("cuMemRelease", handle)
            # A device, its number, and reading, or writing too.
            may = (ctypes.c_int * 3)(1, GPU, 3 if to_write else 1)
            driver("cuMemSetAccess", where, ctypes.c_size_t(count), may, ctypes.c_size_t(1))

    def tensor(self, at, dtype, shape):
        """What stands there, by its type and sizes."""
        count = 1
        for size in shape:
            count *= size
        if not self.on_gpu:
            return torch.frombuffer(self.view, dtype=TYPES[dtype], count=count, offset=at).reshape(shape)
        size = count * TYPES[dtype].itemsize
        if at + size > self.end:
            raise Refused("raised", "a tensor that is not in the memory that was lent")
        if count == 0:
            return torch.empty(shape, dtype=TYPES[dtype], device=DEVICE)
        held = types.SimpleNamespace(
            __cuda_array_interface__={"shape": (size,), "typestr": "|u1", "data": (self.at + at, False), "version": 3, "strides": None}
        )
        return torch.as_tensor(held, device=DEVICE).view(TYPES[dtype]).reshape(shape)

    def tensors(self, forms):
        """The inputs as they are, each by its name."""
        return [(one["name"], None if one["shape"] is None else self.tensor(one["at"], one["dtype"], one["shape"])) for one in forms]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.on_gpu:
            torch.cuda.synchronize()
            for where, count in self.mapped:
                driver("cuMemUnmap", where, count)
            driver("cuMemAddressFree", ctypes.c_uint64(self.at), ctypes.c_size_t(self.end))


def driver(name, *arguments):
    """A call of the GPU's driver."""
    result = getattr(LIBCUDA, name)(*arguments)
    if result != 0:
        raise Refused("machine", f"PyTorch's process cannot map the judge's memory: {name} gives error {result}")


