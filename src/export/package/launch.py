"""A kernel on tensors: what it was judged for is looked at on every call, and nothing is copied but what begins where no buffer of
the judge's would."""

import torch

from .plans import PLANS, say

if "capability" in PLANS:
    from .cuda import Code, empty

    KIND = "cuda"
else:
    from .cpu import Code, empty, prepare

    KIND = "cpu"

# The attribute of a tensor that says whether it lies on that kind of device.
IS_OURS = f"is_{KIND}"

# Scratch buffers lie in one allocation, each on so many bytes.
APART = 256
# Scratch of so many bytes stays where it is, one place for each thread and stream; of more, and in CUDA graphs, only what a kernel leaves as zeros does.
LARGE = 1 << 20


def ready():
    """Whatever is needed before the first call."""
    if KIND == "cpu":
        prepare()


class Kernel:
    """One kernel: tensors in, tensors out."""

    def __init__(self, plan):
        self.plan, self.name = plan, plan["name"]
        self.calls = 0
        kind = lambda one: getattr(torch, one["dtype"])
        self.forms = [(tuple(one["shape"]), tuple(one["stride"]), kind(one)) for one in plan["inputs"]]
        self.made = [(tuple(one["shape"]), tuple(one["stride"]), kind(one)) for one in plan["outputs"]]
        self.single = len(self.made) == 1
        # Buffers that a kernel leaves as zeros lie behind all others: they need clearing only where there are none that have been.
        size_of = lambda one: -(-one["bytes"] // APART) * APART
        self.kept = sum(size_of(one) for one in plan["scratch"] if one["kept"])
        self.scratch = sum(map(size_of, plan["scratch"]))
        self.others = self.scratch - self.kept
        self.places, self.zeroed, next_at = [], [], {False: 0, True: self.others}
        for one in plan["scratch"]:
            place = next_at[one["kept"]]
            self.places.append(place)
            if one["zero"] and not one["kept"]:
                self.zeroed.append((place, one["bytes"]))
            next_at[one["kept"]] += size_of(one)
        self.code = Code(plan, len(self.forms) + len(self.made) + len(self.places))

    def why_not(self, device, unjudged=False):
        """Why it is not for this device; none where it is, or was compiled for it and may be used without a judge's word."""
        return self.code.why_not(device, unjudged)

    def notice(self, device):
        """What is to be said where it is used without one."""
        return self.code.notice(device)

    def check(self, tensors):
        """Everything that was judged, or an error: never a kernel on what it was not judged for."""
        for at, (one, (shape, stride, dtype)) in enumerate(zip(tensors, self.forms)):
            if one.shape != shape or one.dtype is not dtype or not getattr(one, IS_OURS) or one.stride() != stride and not alike(one, stride):
                raise RuntimeError(
                    f"{self.name}: argument {at} is {one.dtype} {tuple(one.shape)} strides {one.stride()} on {one.device}; "
                    f"judged was {dtype} {shape} strides {stride} on {KIND}"
                )

    def __call__(self, *tensors):
        self.check(tensors)
        return self.call(tensors)

    def call(self, tensors, look=None):
        """`look` is called with the tensors where there is something to prepare, as for new addresses: code made for one graph, in which a call always
        has tensors of the same form, is looked at no more often."""
        device, code = tensors[0].device, self.code
        stream = code.stream(device)
        if stream is None:
            with torch.cuda.device(device):
                return self.call(tensors, look)
        addresses = [one.data_ptr() for one in tensors]
        for at, address in enumerate(addresses):
            if address % code.alignment:
                # The judge's buffers are aligned, and a slice may begin anywhere.
                say(f"{self.name}: argument {at} does not begin at a multiple of {code.alignment} bytes, so that every call copies it")
                tensors = [self.aligned(one) for one in tensors]
                addresses = [one.data_ptr() for one in tensors]
                break
        outputs = [empty(*made, device) for made in self.made]
        addresses += [one.data_ptr() for one in outputs]
        # What is held lives until the kernel is in the stream.
        zeroed, held = self.with_scratch(device, stream, addresses) if self.scratch else ((), None)
        code.run(device, stream, addresses, zeroed, look, tensors)
        self.calls += 1
        return outputs[0] if self.single else tuple(outputs)

    def with_scratch(self, device, stream, addresses):
        """Adds the addresses of scratch buffers; what is to be cleared of them, and what is to be held."""
        capturing = self.code.is_capturing()
        size = self.kept if capturing or self.scratch > LARGE else self.scratch
        ask = lambda size: self.code.lasting(device, stream, size, self.kept, capturing) if size else None
        lasting = ask(size)
        if lasting is None and size != self.kept:
            size = self.kept
            lasting = ask(size)
        if lasting is not None and size == self.scratch:
            addresses += [lasting + place for place in self.places]
            return [(lasting + place, size) for place, size in self.zeroed], None
        size, kept = (self.scratch, None) if lasting is None else (self.others, lasting - self.others)
        held = empty((size + APART,), (1,), torch.uint8, device)
        first = -(-held.data_ptr() // APART) * APART
        addresses += [(kept if kept is not None and place >= self.others else first) + place for place in self.places]
        zeroed = [(first + place, size) for place, size in self.zeroed]
        if self.kept and kept is None:
            zeroed.append((first + self.others, self.kept))
        return zeroed, held

    def aligned(self, one):
        if one.data_ptr() % self.code.alignment == 0:
            return one
        return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device).copy_(one)


def alike(tensor, stride):
    """Strides that lead to the same places: those of dimensions of one element do not matter."""
    return all(size == 1 or own == judged for size, own, judged in zip(tensor.shape, tensor.stride(), stride))
