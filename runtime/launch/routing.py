"""The launches of the kernels that sort the slots of tokens by experts (emitters/routing.py), copy rows into their
order (emitters/gathering.py) and add up the rows of each token (emitters/combining.py)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

from gemmill.emitters import combining, gathering, routing
from gemmill.library.dtypes import DTYPES
from gemmill.library.errors import CaptureError, DeviceError
from gemmill.runtime import driver
from gemmill.runtime.launch.kernel import PreparedLaunch
from gemmill.runtime.launch.parameters import ParameterBlock
from gemmill.runtime.operands.routing import BoundCombine, BoundGather, BoundRoute, strides_of
from gemmill.runtime.operands.tensors import TensorView

_kernels: dict[tuple[int, str, Hashable], Any] = {}
"""Loaded kernels by GPU, symbol and kind. If two threads load one at once, the second does no harm."""


class Kernel(NamedTuple):
    """A kernel as PTX."""

    entry: str
    """Its symbol."""
    kind: Hashable
    """What it is made for."""
    emit: Callable[[], str]
    threads: int
    """Threads of a CTA."""


class TokenLaunch:
    """A launch of a kernel on some tensors, or on others like them. Use it from one thread at a time."""

    def __init__(self, device: int, stream: int, kernel: Kernel, job: bytes, ctas: int) -> None:
        """Load the kernel, unless ``stream`` is being captured. ``job`` begins with addresses."""
        self._prepared = None
        if ctas:
            function = _loaded(device, kernel, stream)
            self._block = ParameterBlock(len(job))  # the prepared launch points into it
            self._block.put(0, job)
            arguments = self._block.arguments
            self._prepared = PreparedLaunch(device, kernel.entry, function, ctas, kernel.threads, 0, arguments)

    def launch(self, stream: int, addresses: Sequence[int] = ()) -> None:
        """Launch on a stream of the GPU, unless there is nothing to do. Other tensors than the first have
        ``addresses``, in the order of the job, 0 for one that is not there."""
        if self._prepared is None:
            return
        if addresses:
            self._block.put(0, struct.pack(f"<{len(addresses)}Q", *addresses))
        self._prepared.launch(stream)


class RouteLaunch(TokenLaunch):
    """Routes tokens. Addresses: those of the ids, the offsets, the rows and the places."""

    def __init__(self, bound: BoundRoute, stream: int) -> None:
        kernel = Kernel(routing.ENTRY, bound.kind, partial(routing.emit_routing, *bound.kind), routing.THREADS)
        super().__init__(bound.ids.device, stream, kernel, *route_job(bound))


class GatherLaunch(TokenLaunch):
    """Copies rows, or the scales of rows. Addresses: those of the rows, the index and the copies."""

    def __init__(self, bound: BoundGather, stream: int) -> None:
        if bound.is_turned:
            size = DTYPES[bound.out.dtype].bytes
            emit = partial(gathering.emit_gathering_scales, size)
            kernel = Kernel(gathering.SCALES_ENTRY, size, emit, gathering.THREADS)
        else:
            emit = partial(gathering.emit_gathering_rows, bound.width)
            kernel = Kernel(gathering.ROWS_ENTRY, bound.width, emit, gathering.THREADS)
        super().__init__(bound.source.device, stream, kernel, *gather_job(bound))


class CombineLaunch(TokenLaunch):
    """Adds up rows. Addresses: those of y, the places, the weights, ``add`` and ``out``."""

    def __init__(self, bound: BoundCombine, stream: int) -> None:
        kind = bound.kind
        emit = partial(combining.emit_combining, kind)
        kernel = Kernel(combining.ENTRY, kind, emit, combining.THREADS)
        super().__init__(bound.y.device, stream, kernel, *combine_job(bound))


def route_job(bound: BoundRoute) -> tuple[bytes, int]:
    """Return the parameters of the kernel that routes, and its number of CTAs."""
    experts, (_, ctas) = bound.offsets.shape[0], bound.kind
    addresses = bound.ids.ptr, bound.offsets.ptr, bound.rows.ptr, bound.places.ptr
    segment = routing.segment_for(bound.count)
    division = routing.division(max(1, bound.ids.shape[1]))
    return routing.JOB.pack(*addresses, bound.count, experts, segment, *division, 0), ctas * routing.clusters(experts)


def combine_job(bound: BoundCombine) -> tuple[bytes, int]:
    """Return the parameters of the kernel that adds up rows, and its number of CTAs."""
    addresses = addresses_of(bound.y, bound.places, bound.weights, bound.add, bound.out)
    strides = (
        strides_of(bound.y).row,
        *strides_of(bound.places),
        *strides_of(bound.weights),
        strides_of(bound.add).row,
        strides_of(bound.out).row,
    )
    tokens, columns = bound.out.shape
    vectors = columns // bound.kind.elements
    parts = -(-vectors // combining.THREADS)
    counts = bound.y.shape[0], bound.places.shape[1], vectors, parts
    return combining.JOB.pack(*addresses, *strides, *counts), tokens * parts


def gather_job(bound: BoundGather) -> tuple[bytes, int]:
    """Return the parameters of the kernel that copies rows or scales, and its number of CTAs."""
    addresses = bound.source.ptr, bound.index.ptr, bound.out.ptr
    source, out = strides_of(bound.source), strides_of(bound.out)
    rows, columns = bound.out.shape
    if bound.is_turned:
        ctas = -(-rows // gathering.THREADS) if columns else 0
        return gathering.SCALES_JOB.pack(*addresses, source.row, source.element, out.element, rows, columns), ctas
    vectors = bound.row_bytes // bound.width
    parts = -(-vectors // gathering.THREADS)
    job = gathering.ROWS_JOB.pack(*addresses, source.row, out.row, vectors, parts, rows, 0)
    return job, -(-rows // gathering.ROWS) * parts


def addresses_of(*tensors: TensorView | None) -> list[int]:
    """Return the addresses of tensors; 0 for one that is not there."""
    return [x.ptr if x else 0 for x in tensors]


def _loaded(device: int, kernel: Kernel, stream: int) -> Any:
    """Return a kernel on a GPU.

    Raises:
        DeviceError: the GPU cannot run it.
        CaptureError: it is not loaded yet and the stream is being captured.
    """
    key, entry = (device, kernel.entry, kernel.kind), kernel.entry
    if key not in _kernels:
        if not driver.overlaps(device):
            major, minor = driver.capability(device)
            raise DeviceError(
                f"{entry} needs compute capability 9.0; GPU {device}, {driver.device_name(device)}, has "
                f"{major}.{minor}: use a newer GPU"
            )
        if driver.is_capturing(device, stream):
            raise CaptureError(
                f"{entry} is not loaded on GPU {device} and cannot be loaded while the stream is captured into a CUDA "
                "graph: before the capture, make the same call once with tensors of the same dtypes and shapes"
            )
        _kernels[key] = driver.compiled(device, kernel.emit(), entry, "a kernel for the tokens of experts")
    return _kernels[key]
