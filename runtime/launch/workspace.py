"""Workspaces: GPU memory for partial sums and for copies of operands, one for each stream and for each capture of it.

Launches on one stream run in sequence, so they share a workspace, which grows on demand and is never freed. A CUDA
graph may be replayed at any time, concurrently with anything. A captured launch therefore has another workspace, one
for each stream of the capture, which the graph keeps as a user object; later captures reuse it when the graph is gone.
Callers that allocate memory for their launches, such as XLA, lend it.

Flags in a workspace are 0 between launches; kernels reset them.

Streams are distinguished by their handles. Do not destroy a stream with pending work, since the next stream may get the
same handle.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gemmill.library.decompositions.workspace_layout import WorkspaceSize
from gemmill.library.errors import DeviceError
from gemmill.library.legality.quantities import align_up
from gemmill.runtime.driver import CAPTURE_ERRORS, bindings, check, current, fill

_GRANULE = 2 << 20
"""Sizes of workspaces are multiples of this many bytes."""
_FLAGS_ALIGN = 256
"""Flags in lent memory start at multiples of this many bytes."""
_SEMAPHORE_BYTES = 64
"""At least the size of a ``sem_t``."""
_PER_THREAD_STREAM = 2
"""``CU_STREAM_PER_THREAD``: a handle for a different stream in every thread."""

_lock = threading.Lock()
_of_stream: dict[tuple[int, int, int], Workspace] = {}
_leases: list[_Lease] = []
_idle: list[Workspace] = []
_thread = threading.local()


class Workspace:
    """Two buffers on one GPU. Hold :attr:`lock` from :meth:`reserve` until after the launch that uses the addresses."""

    def __init__(self, device: int, stream: int | None = None) -> None:
        self.device = device
        self.stream = stream
        """The stream whose launches use it; None where a graph holds it, which rules out waiting."""
        self.lock = threading.Lock()
        self.buffer = 0
        """Address of the memory for partial sums and copies of operands; 0 before it is allocated."""
        self.flags = 0
        """Address of the flags; 0 before they are allocated."""
        self._has = WorkspaceSize(0, 0)

    def holds(self, needed: WorkspaceSize) -> bool:
        """Whether it is large enough."""
        return needed.buffer <= self._has.buffer and needed.flags <= self._has.flags

    def reserve(self, needed: WorkspaceSize, what: str) -> None:
        """Make it large enough, after waiting for earlier launches; DeviceError where there is not enough memory."""
        if self.holds(needed):
            return
        with current(self.device), while_capturing():
            if self.stream is not None and self._has.buffer:
                check(bindings().cuStreamSynchronize(self.stream), f"waiting for work on stream {self.stream:#x}")
            if needed.buffer > self._has.buffer:
                old, self.buffer, self._has = self.buffer, 0, WorkspaceSize(0, self._has.flags)
                self.buffer, size = _reallocate(old, needed.buffer, what)
                self._has = WorkspaceSize(size, self._has.flags)
            if needed.flags > self._has.flags:
                old, self.flags, self._has = self.flags, 0, WorkspaceSize(self._has.buffer, 0)
                self.flags, size = _reallocate(old, needed.flags, what)
                _clear(self.flags, size)
                self._has = WorkspaceSize(self._has.buffer, size)


@contextmanager
def lent(device: int, stream: int, address: int, size: WorkspaceSize) -> Iterator[None]:
    """Let launches of this thread on a stream use memory that the caller allocated, if it is large enough. The flags
    follow the buffer at a multiple of 256 bytes; this function clears them."""
    space = Workspace(device, stream)
    space.buffer, space.flags, space._has = address, address + align_up(size.buffer, _FLAGS_ALIGN), size
    if size.flags:
        fill(device, stream, space.flags, 0, size.flags // 4)
    _thread.lent = space
    try:
        yield
    finally:
        _thread.lent = None


def lent_bytes(size: WorkspaceSize) -> int:
    """Return the bytes of memory to lend."""
    return align_up(size.buffer, _FLAGS_ALIGN) + size.flags


class _Lease:
    """A graph's hold on a workspace.

    CUDA posts a semaphore when the graph and everything made from it are gone. Its callbacks may run at any time, even
    after Python has ended, so they must not be Python code.
    """

    def __init__(self, workspace: Workspace, capture: tuple[int, int], graph: int) -> None:
        self.workspace = workspace
        self.capture = capture
        """Id of the capture, and the stream."""
        libc, cuda = _libc(), _libcuda()
        self._semaphore = libc.calloc(1, _SEMAPHORE_BYTES)
        libc.sem_init(self._semaphore, 0, 0)
        held, post = ctypes.c_void_p(), ctypes.cast(libc.sem_post, ctypes.c_void_p)
        # CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CU_GRAPH_USER_OBJECT_MOVE
        status = cuda.cuUserObjectCreate(ctypes.byref(held), self._semaphore, post, 1, 1)
        status = status or cuda.cuGraphRetainUserObject(graph, held, 1, 1)
        if status:
            raise DeviceError(f"attaching a workspace to a CUDA graph failed with status {status}")

    def is_over(self) -> bool:
        """Whether the graph is gone. Call it only until it returns True."""
        over = bool(_libc().sem_trywait(self._semaphore) == 0)
        if over:
            _libc().free(self._semaphore)
        return over


def workspace(device: int, stream: int, needed: WorkspaceSize) -> Workspace:
    """Return the workspace that the caller lends, or that of the stream, or that of the graph into which the stream is
    being captured. It may still be too small."""
    own: Workspace | None = getattr(_thread, "lent", None)
    if own is not None and own.holds(needed):
        return own
    capture = _capture(device, stream)
    with _lock:
        if capture is not None:
            return _captured(device, (capture[0], stream), capture[1], needed)
        thread = threading.get_ident() if stream == _PER_THREAD_STREAM else 0
        return _of_stream.setdefault((device, stream, thread), Workspace(device, stream))


def _captured(device: int, capture: tuple[int, int], graph: int, needed: WorkspaceSize) -> Workspace:
    """Return the workspace of a stream in a capture. It must not grow, since launches captured earlier use it too."""
    for lease in _leases:
        if lease.capture == capture and lease.workspace.holds(needed):
            return lease.workspace
    for lease in [lease for lease in _leases if lease.is_over()]:
        _leases.remove(lease)
        _idle.append(lease.workspace)
    # Prefer an idle workspace that is large enough.
    idle = sorted((free for free in _idle if free.device == device), key=lambda free: not free.holds(needed))
    chosen = idle[0] if idle else Workspace(device)
    lease = _Lease(chosen, capture, graph)
    _leases.append(lease)
    if idle:
        _idle.remove(chosen)
    return chosen


def _capture(device: int, stream: int) -> tuple[int, int] | None:
    """Return the id of the running capture of a stream, and the graph; None where there is none."""
    driver = bindings()
    status, capturing = driver.cuStreamIsCapturing(stream)
    if int(status) in CAPTURE_ERRORS:
        return None  # another stream is being captured, in a mode that will refuse the launch
    if status:  # the legacy stream, in a thread that has no context yet
        with current(device):
            capturing = check(driver.cuStreamIsCapturing(stream), f"reading whether stream {stream:#x} is captured")
    if not capturing:
        return None
    status, _, identity, graph, *_ = driver.cuStreamGetCaptureInfo(stream)
    check((status,), f"reading the graph that stream {stream:#x} is captured into")
    return int(identity), int(graph)


@contextmanager
def while_capturing() -> Iterator[None]:
    """Let this thread allocate memory while any stream is being captured; the allocation is not part of a capture."""
    driver = bindings()
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = check(driver.cuThreadExchangeStreamCaptureMode(relaxed), "relaxing the capture mode")
    try:
        yield
    finally:
        check(driver.cuThreadExchangeStreamCaptureMode(before), "restoring the capture mode")


def _reallocate(address: int, size: int, what: str) -> tuple[int, int]:
    """Free a buffer, if there is one, and allocate another of at least ``size`` bytes; return its address and size."""
    driver = bindings()
    if address:
        check(driver.cuMemFree(address), "freeing a workspace")
    size = -(-size // _GRANULE) * _GRANULE
    status, pointer = driver.cuMemAlloc(size)
    if int(status) == 2:  # CUDA_ERROR_OUT_OF_MEMORY
        raise DeviceError(
            f"{what}: {size:,} bytes of GPU memory for partial sums or copies of operands are not available: use a "
            "kernel with fewer slices, align operands to 16 bytes, or free memory (PyTorch keeps freed memory: "
            "torch.cuda.empty_cache())"
        )
    return int(check((status, pointer), f"allocating a workspace of {size:,} bytes")), size


def _clear(address: int, size: int) -> None:
    """Set a buffer to zeros on a new stream, since the legacy stream may not be used during a capture."""
    driver = bindings()
    stream = check(driver.cuStreamCreate(1), "creating a stream")  # CU_STREAM_NON_BLOCKING
    try:
        check(driver.cuMemsetD32Async(address, 0, size // 4, stream), "clearing flags")
        check(driver.cuStreamSynchronize(stream), "clearing flags")
    finally:
        check(driver.cuStreamDestroy(stream), "destroying a stream")


@functools.cache
def _libc() -> Any:
    """Return the C library, for memory and semaphores that outlive Python."""
    libc = ctypes.CDLL(None)
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    libc.calloc.argtypes, libc.calloc.restype = [size, size], pointer
    libc.free.argtypes = libc.sem_trywait.argtypes = [pointer]
    libc.sem_init.argtypes = [pointer, ctypes.c_int, ctypes.c_uint]
    return libc


@functools.cache
def _libcuda() -> Any:
    """Return libcuda with the calls that take a C function, which ``cuda.bindings`` wraps in Python."""
    cuda = ctypes.CDLL("libcuda.so.1")
    pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
    cuda.cuUserObjectCreate.argtypes = [pointer, pointer, pointer, u32, u32]
    cuda.cuGraphRetainUserObject.argtypes = [pointer, pointer, u32, u32]
    return cuda
