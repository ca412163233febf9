"""Reads streams as handles, and allocates D on a stream with the library of A."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Protocol

from gemmill.library.dtypes import COMPLEX, DTYPES, DTypeName
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.tensors import TensorView, is_torch


class SupportsCudaStream(Protocol):
    """A stream with the protocol of cuda.core, as in CuPy."""

    def __cuda_stream__(self) -> Any: ...


class HasCudaStream(Protocol):
    """A stream of PyTorch."""

    @property
    def cuda_stream(self) -> int:
        """Handle of the stream."""


Stream = int | SupportsCudaStream | HasCudaStream
"""A handle as an int (0: the legacy default stream), a ``torch.cuda.Stream``, or an object with ``__cuda_stream__``."""


def stream_handle(stream: Stream) -> int:
    """Return the ``CUstream`` handle of a stream as an int."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    if hasattr(stream, "cuda_stream"):
        return int(stream.cuda_stream)
    raise OperandError(
        f"stream is {stream!r}; it must be a CUstream handle as an int, a torch.cuda.Stream, or an object with "
        "__cuda_stream__"
    )


def handle_of(a: Any, stream: Stream | None) -> int:
    """Return the handle of the stream of a call: ``stream``, or PyTorch's current stream where ``a`` is a PyTorch
    tensor."""
    if stream is not None:
        return stream_handle(stream)
    return torch_stream()(a.get_device()) if is_torch(a) and a.is_cuda else 0


def stream_to_follow(a: TensorView, handle: int, stream: Stream | None) -> Callable[[], int]:
    """Return a function that gives the stream of each later launch: that of the first, ``handle``, or PyTorch's current
    one, where no stream was named and A is a PyTorch tensor."""
    if stream is None and is_torch(a.owner):
        return functools.partial(torch_stream(), a.device)
    return functools.partial(_fixed_stream, handle, stream)


def _fixed_stream(handle: int, _stream: Stream | None) -> int:
    """Return a plan's stream. The stream object is bound as well, since it may destroy the stream when it is freed."""
    return handle


@functools.cache
def torch_stream() -> Callable[[int], int]:
    """Return the function that gives PyTorch's current stream on a GPU. It is private to PyTorch, and 35 times as fast
    as ``torch.cuda.current_stream``, which is the fallback."""
    torch = importlib.import_module("torch")
    get: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return get or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


def _is_cupy(a: Any) -> bool:
    return type(a).__module__.partition(".")[0] == "cupy"


def allocate(a: Any, shape: tuple[int, ...], dtype: str, device: int, stream: Stream | None) -> Any:
    """Allocate a packed tensor with the library of ``a``, PyTorch or CuPy, for a stream that will write it;
    OperandError for other libraries."""
    if is_torch(a):
        empty = _torch_empty(dtype)
        if stream is None or (handle := stream_handle(stream)) == torch_stream()(device):
            return empty(shape, device=a.device)
        # PyTorch reuses memory in the order of the stream on which it was allocated.
        cuda = importlib.import_module("torch").cuda
        with cuda.stream(cuda.ExternalStream(handle, device=a.device)):
            return empty(shape, device=a.device)
    typestr = (COMPLEX.get(dtype) or DTYPES[dtype]).typestr
    if _is_cupy(a) and typestr is not None:
        cupy = importlib.import_module("cupy")
        # CuPy also reuses memory in stream order: allocate on the stream that will write it.
        with a.device, cupy.cuda.ExternalStream(handle_of(a, stream)):
            return cupy.empty(shape, dtype=typestr)
    raise OperandError(f"out is missing, and gemmill cannot allocate {dtype} for a {type(a).__qualname__}: pass out=")


def allocate_between(
    function: str, x: Any, shape: tuple[int, ...], dtype: DTypeName, device: int, stream: Stream | None
) -> Any:
    """Allocate as :func:`allocate` does, for a function that needs memory between its launches."""
    if not (is_torch(x) or _is_cupy(x)):
        raise OperandError(
            f"x is a {type(x).__qualname__}; {function} allocates memory with the library of x, which must be PyTorch "
            "or CuPy: pass its tensors"
        )
    return allocate(x, shape, dtype, device, stream)


@functools.cache
def _torch_empty(dtype: str) -> Callable[..., Any]:
    """Return ``torch.empty`` for one dtype."""
    torch = importlib.import_module("torch")
    return functools.partial(torch.empty, dtype=getattr(torch, (COMPLEX.get(dtype) or DTYPES[dtype]).torch))


def allocator(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, like: Any) -> Callable[[], Any]:
    """Return a function that allocates PyTorch tensors like another one, on its current stream.

    It uses a function private to PyTorch where there is one, which takes a third of the time of the public one but
    allocates only on the current GPU.
    """
    device, ordinal = like.device, like.get_device()
    empty_strided, quick, get_device = _private_allocators(like.is_cuda)
    public = functools.partial(empty_strided, shape, strides, dtype=dtype, device=device)
    if quick is None:
        return public
    on_current = functools.partial(quick, shape, strides, dtype)
    return on_current if get_device is None else lambda: on_current() if get_device() == ordinal else public()


@functools.cache
def _private_allocators(on_gpu: bool) -> tuple[Callable[..., Any], Callable[..., Any] | None, Callable[[], int] | None]:
    """Return PyTorch's allocator of strided tensors, its fast private allocator for the current GPU or the CPU, and a
    function that returns the current GPU, where there are several. None for those that a version does not have."""
    torch = importlib.import_module("torch")
    guards = importlib.import_module("torch._C._dynamo.guards")
    quick = getattr(guards, "_empty_strided_cuda" if on_gpu else "_empty_strided_cpu", None)
    several = on_gpu and torch.cuda.device_count() > 1
    return torch.empty_strided, quick, getattr(torch._C, "_cuda_getDevice", None) if several else None
