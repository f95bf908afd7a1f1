"""How long PyTorch's own ways of computing something take on the device, without what starting them costs the host."""

import os
import threading

# Calls after which a device is surely still busy with what was put before them.
MOST_SWEEPS = 64
# A call of so many µs does not notice that Python and PyTorch are not in the caches: that costs it some 200.
LONG_US = 10000.0


# So long anybody waits for threads to rest, and looks again so often (s).
MOST_RESTLESS_S, LOOK_S = 0.1, 0.0005


def at_rest(*_asked):
    """Returns when no other thread of this process runs on the processor. Those with which PyTorch computes look for more work before they sleep, by libgomp on an AMD EPYC for
    7 ms, and what is timed meanwhile shares its cores with them: kernels of 1 ms took up to four times as long."""
    mine, until = threading.get_native_id(), time.perf_counter() + MOST_RESTLESS_S
    while DEVICE == "cpu" and time.perf_counter() < until and any(is_running(one) for one in os.listdir("/proc/self/task") if int(one) != mine):
        time.sleep(LOOK_S)
    return {}


def is_running(thread):
    try:
        with open(f"/proc/self/task/{thread}/stat") as file:
            # Behind the name, which may hold anything.
            return file.read().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False


class Way:
    """A way that is ready to be timed: on a GPU as a CUDA graph of one call on each copy of the inputs, where it can be captured."""

    def __init__(self, unit_, copies, numbers, mode):
        self.graph, self.count, self.same_code = None, 1, None
        if DEVICE != "cpu":
            self.capture(unit_, copies, numbers, mode)
        if self.graph is None:
            self.call = unit_.calls(copies[:1], numbers, mode)[0]
            for _ in range(3):
                began = time.perf_counter_ns()
                self.call()
                warm_us = (time.perf_counter_ns() - began) / 1e3
        if DEVICE == "cpu" and warm_us < LONG_US:
            beside = [(name, copied(one)) for name, one in copies[0]]
            self.same_code = unit_.calls([beside], numbers, mode)[0]
            for _ in range(3):
                self.same_code()

    def capture(self, unit_, copies, numbers, mode):
        try:
            # The mode's own graphs, which cannot be part of one, start kernels as this one does.
            calls = unit_.calls(copies, numbers, "max-autotune-no-cudagraphs" if mode == "max-autotune" else mode)
            # Not on a stream of its own: once a further one has had work, a GPU may take 0.3 µs more from each kernel of a graph to the next.
            for call in [calls[0]] * 2 + calls:
                call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                # Held, so that each has results of its own.
                self.made = [call() for call in calls]
            graph.replay()
            torch.cuda.synchronize()
            self.graph, self.count, self.call, self.copies = graph, len(calls), graph.replay, calls
        except torch.OutOfMemoryError:
            raise
        except Exception:
            # Something in it waits for the device, or asks it for memory.
            torch.cuda.synchronize()

    def us(self, sweep, calls):
        """µs of a call: of each by itself, with caches swept, or of those of the graph."""
        if self.graph is not None:
            return self.once(sweep) / self.count
        return sum(self.once(sweep) for _ in range(calls)) / calls

    def once(self, sweep):
        """On a GPU sweeping keeps it busy while the call is put behind it, and what a pair of marks takes is left out. On a processor the
        caches that are swept hold Python and PyTorch too, which a model has there when it comes to the call, as a kernel has its code;
        so the same runs once more, on other tensors."""
        if DEVICE == "cpu":
            sweep()
            _held = self.same_code and self.same_code()
            began = time.perf_counter_ns()
            self.call()
            return (time.perf_counter_ns() - began) / 1e3
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        marks[0].record()
        sweep()
        marks[1].record()
        began = time.perf_counter_ns()
        marks[2].record()
        self.call()
        marks[3].record()
        host_us = (time.perf_counter_ns() - began) / 1e3
        torch.cuda.synchronize()
        swept_us = marks[0].elapsed_time(marks[1]) * 1e3
        if host_us > swept_us > 0 and sweep.times < MOST_SWEEPS:
            # The device may have waited for the host.
            sweep.times = min(MOST_SWEEPS, sweep.times * (1 + int(host_us / swept_us)))
            return self.once(sweep)
        return max(0.0, marks[2].elapsed_time(marks[3]) - marks[1].elapsed_time(marks[2])) * 1e3


@contextlib.contextmanager
def noticing_lowerings(unit_, mode):
    """Leaves them out where that is the mode, and notes with the unit whether there are any in what is compiled: code that a cache gives tells of
    patterns of all kinds, so that `default` may say yes where `WITHOUT_LOWERINGS` finds none."""
    counters, left = torch._dynamo.utils.counters, set()
    # Another counter may stand there when it has compiled.
    counters["inductor"]["pattern_matcher_count"] = 0
    with without_lowerings(left) if mode == WITHOUT_LOWERINGS else contextlib.nullcontext():
        yield
    matched = left if mode == WITHOUT_LOWERINGS else counters["inductor"]["pattern_matcher_count"] > 0
    # What was compiled before is not compiled again.
    unit_.lowerings |= {mode} if matched else set()


class Sweep:
    """Reads memory larger than all caches, so many times."""

    def __init__(self, cold_bytes):
        self.memory, self.times = torch.ones(cold_bytes // 4, device=DEVICE), 1

    def __call__(self):
        for _ in range(self.times):
            self.memory.sum()
