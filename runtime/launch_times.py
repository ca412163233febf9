"""Times launches that compete for one problem, and provides scratch memory for their outputs."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from gemmill.library.errors import DeviceError
from gemmill.runtime.driver import bindings, check, current
from gemmill.runtime.operands.tensors import TensorView, reach

ROUNDS = 11
"""Samples of each candidate."""
SAMPLE_US = 300.0
"""Target duration of a sample: far above the cost of a graph launch and the resolution of events, which are
microseconds."""
MAX_LAUNCHES = 100
"""Most launches of a sample."""
_ADDRESS_BYTES = 256
"""Scratch addresses equal the original ones modulo this number, which is all that kernels rely on."""

Launch = Callable[[int], None]
"""Launches a kernel on a stream."""


def time_launches(device: int, after: int, launches: Sequence[Launch], expected_us: Sequence[float]) -> list[float]:
    """Return the median time of one launch of each candidate, in microseconds.

    Each candidate has a CUDA graph with enough launches for about :data:`SAMPLE_US`, back to back on the same operands.
    Every round replays each graph once between two events. The order rotates, so that clock and temperature drift
    affect all candidates equally. The function first waits for pending work on the stream ``after``.
    """
    driver = bindings()
    with current(device), ExitStack() as stack:
        check(driver.cuStreamSynchronize(after), f"waiting for work on stream {after:#x}")
        stream = check(driver.cuStreamCreate(1), "creating a stream")  # CU_STREAM_NON_BLOCKING
        stack.callback(driver.cuStreamDestroy, stream)
        start, end = (check(driver.cuEventCreate(0), "creating an event") for _ in range(2))
        stack.callback(driver.cuEventDestroy, start)
        stack.callback(driver.cuEventDestroy, end)
        counts = [max(1, min(MAX_LAUNCHES, round(SAMPLE_US / us))) for us in expected_us]
        graphs = []
        for launch, count in zip(launches, counts, strict=True):
            graphs.append(_graph(stream, launch, count))
            stack.callback(driver.cuGraphExecDestroy, graphs[-1])
            check(driver.cuGraphLaunch(graphs[-1], stream), "warming up")
        samples: list[list[float]] = [[] for _ in graphs]
        order = list(range(len(graphs)))
        for _ in range(ROUNDS):
            for i in order:
                check(driver.cuEventRecord(start, stream), "recording an event")
                check(driver.cuGraphLaunch(graphs[i], stream), "launching a graph")
                check(driver.cuEventRecord(end, stream), "recording an event")
                check(driver.cuEventSynchronize(end), "timing")
                ms = check(driver.cuEventElapsedTime(start, end), "reading a time")
                samples[i].append(float(ms) * 1000 / counts[i])
            order = order[1:] + order[:1]
    return [statistics.median(sample) for sample in samples]


def _graph(stream: Any, launch: Launch, count: int) -> Any:
    """Return an executable graph of ``count`` launches."""
    driver = bindings()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    check(driver.cuStreamBeginCapture(stream, mode), "capturing launches to be timed")
    try:
        with no_collection():
            for _ in range(count):
                launch(int(stream))
    finally:
        status, graph = driver.cuStreamEndCapture(stream)
    check((status,), "capturing launches to be timed")
    try:
        return check(driver.cuGraphInstantiate(graph, 0), "making a graph of launches to be timed")
    finally:
        check(driver.cuGraphDestroy(graph), "destroying a graph")


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection: it could free CUDA graphs and memory, which breaks a capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def scratch(device: int, tensors: Sequence[TensorView]) -> Iterator[list[int]]:
    """Allocate memory for tensors of the same layouts until the end of the block; yields the addresses of first
    elements.

    Raises:
        DeviceError: there is not enough memory.
    """
    driver = bindings()
    with current(device), ExitStack() as stack:
        addresses = []
        for tensor in tensors:
            head_bytes, tail_bytes = reach(tensor.byte_extents)
            size = head_bytes + tail_bytes + _ADDRESS_BYTES
            status, memory = driver.cuMemAlloc(size)
            if int(status) == 2:  # CUDA_ERROR_OUT_OF_MEMORY
                raise DeviceError(
                    f"autotune: {size:,} bytes of GPU memory for outputs while timing are not available: free memory "
                    "(PyTorch keeps freed memory: torch.cuda.empty_cache()), or leave out autotune"
                )
            start = int(check((status, memory), f"allocating {size:,} bytes for outputs"))
            stack.callback(driver.cuMemFree, start)
            lowest = tensor.ptr - head_bytes
            addresses.append(start + (lowest - start) % _ADDRESS_BYTES + head_bytes)
        yield addresses
