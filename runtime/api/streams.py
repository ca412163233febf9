"""Streams as callers have them, as handles; and a new D on one, from the library that A comes from."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Protocol

from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.tensors import is_torch


class SupportsCudaStream(Protocol):
    """What tells a stream by the protocol of cuda.core, as streams of CuPy do too."""

    def __cuda_stream__(self) -> Any: ...


class HasCudaStream(Protocol):
    """A stream of PyTorch."""

    @property
    def cuda_stream(self) -> int:
        """Its handle."""


Stream = int | SupportsCudaStream | HasCudaStream
"""A handle as an int (0: the legacy default stream), a ``torch.cuda.Stream``, or an object with ``__cuda_stream__``."""


def stream_handle(stream: Stream) -> int:
    """The ``CUstream`` of a stream as an int."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    if hasattr(stream, "cuda_stream"):
        return int(stream.cuda_stream)
    raise OperandError(
        f"stream is {stream!r}; pass a CUstream handle as an int, a torch.cuda.Stream or an object with __cuda_stream__"
    )


def handle_of(a: Any, stream: Stream | None) -> int:
    """The stream that a call goes to, as an int: PyTorch's current one where none is named and ``a`` is its tensor."""
    if stream is not None:
        return stream_handle(stream)
    return torch_stream()(a.get_device()) if is_torch(a) and a.is_cuda else 0


def stream_to_follow(call: GemmCall, stream: Stream | None) -> Callable[[], int]:
    """What gives the stream of launches to come: where none was named and A is PyTorch's, its current one."""
    a = call.tensors["a"]
    if stream is None and is_torch(a.owner):
        return functools.partial(torch_stream(), a.device)
    return functools.partial(_fixed_stream, call.stream, stream)


def _fixed_stream(handle: int, _stream: Stream | None) -> int:
    """A plan's stream, bound together with the object it was given as, which may destroy the stream when it goes."""
    return handle


@functools.cache
def torch_stream() -> Callable[[int], int]:
    """PyTorch's current stream on a GPU: private to it, as ``torch.cuda.current_stream`` costs 35 times as much; which
    serves where there is no such function."""
    torch = importlib.import_module("torch")
    get: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return get or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


def allocate(a: Any, shape: tuple[int, ...], dtype: DTypeName, device: int, stream: Stream | None) -> Any:
    """A packed tensor of PyTorch or CuPy where ``a`` is theirs, for a stream that is to write it; OperandError
    elsewhere."""
    if is_torch(a):
        empty = _torch_empty(dtype)
        if stream is None or (handle := stream_handle(stream)) == torch_stream()(device):
            return empty(shape, device=a.device)
        # PyTorch reuses memory in the order of the stream it was allocated on.
        cuda = importlib.import_module("torch").cuda
        with cuda.stream(cuda.ExternalStream(handle, device=a.device)):
            return empty(shape, device=a.device)
    typestr = DTYPES[dtype].typestr
    if type(a).__module__.partition(".")[0] == "cupy" and typestr is not None:
        cupy = importlib.import_module("cupy")
        # CuPy, too, reuses memory in the order of a stream: here of the one that is to write it.
        with a.device, cupy.cuda.ExternalStream(handle_of(a, stream)):
            return cupy.empty(shape, dtype=typestr)
    raise OperandError(f"out is missing, and gemmill cannot allocate {dtype} for a {type(a).__qualname__}: pass out=")


@functools.cache
def _torch_empty(dtype: DTypeName) -> Callable[..., Any]:
    """``torch.empty`` of one dtype."""
    torch = importlib.import_module("torch")
    return functools.partial(torch.empty, dtype=getattr(torch, DTYPES[dtype].torch))


def allocator(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, like: Any) -> Callable[[], Any]:
    """What allocates tensors of PyTorch beside one of them, on its current stream: by a function that is private to
    PyTorch, in a third of the time of the public one, where there is one. It knows the current GPU alone."""
    device, ordinal = like.device, like.get_device()
    empty_strided, quick, get_device = _private(like.is_cuda)
    current = get_device or (lambda: ordinal)

    def public() -> Any:
        return empty_strided(shape, strides, dtype=dtype, device=device)

    def empty() -> Any:
        return quick(shape, strides, dtype) if current() == ordinal else public()  # type: ignore[misc]

    return public if quick is None else empty


@functools.cache
def _private(on_gpu: bool) -> tuple[Callable[..., Any], Callable[..., Any] | None, Callable[[], int] | None]:
    """What allocates tensors of PyTorch's; what does so quickly on the current GPU, or on the CPU; what tells that GPU.
    None for what a version has not."""
    torch = importlib.import_module("torch")
    guards = importlib.import_module("torch._C._dynamo.guards")
    quick = getattr(guards, "_empty_strided_cuda" if on_gpu else "_empty_strided_cpu", None)
    return torch.empty_strided, quick, getattr(torch._C, "_cuda_getDevice" if on_gpu else "", None)
