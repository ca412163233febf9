"""Streams as callers have them, as handles."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Protocol

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
