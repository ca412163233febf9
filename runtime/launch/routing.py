"""The launches of the kernels that sort the slots of tokens by experts (emitters/routing.py) and add up the rows of
each token (emitters/combining.py)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from gemmill.emitters import combining, routing
from gemmill.library.errors import CaptureError, DeviceError
from gemmill.library.legality.quantities import align_up
from gemmill.runtime import driver
from gemmill.runtime.launch.kernel import PreparedLaunch
from gemmill.runtime.launch.parameters import ParameterBlock
from gemmill.runtime.operands.routing import BoundCombine, BoundRoute, strides_of

_kernels: dict[tuple[int, combining.Combination | None], Any] = {}
"""Loaded kernels by GPU and kind; None is the kernel that routes. If two threads load one at once, the second does no
harm."""


class RouteLaunch:
    """The launch that routes the tokens of some tensors, or of others like them. Use it from one thread at a time."""

    def __init__(self, bound: BoundRoute, stream: int) -> None:
        """Load the kernel, unless ``stream`` is being captured."""
        device = bound.ids.device
        function = _loaded(device, None, stream, routing.ENTRY, routing.emit_routing)
        job, ctas = route_job(bound)
        self._block = _block_of(job)  # the prepared launch points into it
        arguments = self._block.arguments
        self._prepared = PreparedLaunch(device, routing.ENTRY, function, ctas, routing.THREADS, 0, arguments)

    def launch(self, stream: int, addresses: Sequence[int] = ()) -> None:
        """Launch on a stream of the GPU. Other tensors than the first have ``addresses``: those of the ids, the
        offsets, the rows and the places."""
        if addresses:
            self._block.put(0, struct.pack("<4Q", *addresses))
        self._prepared.launch(stream)


class CombineLaunch:
    """The launch that adds up the rows of some tensors, or of others like them. Use it from one thread at a time."""

    def __init__(self, bound: BoundCombine, stream: int) -> None:
        """Load the kernel, unless ``stream`` is being captured."""
        self._prepared = None
        if 0 in bound.out.shape:
            return
        device, kind = bound.y.device, bound.kind
        function = _loaded(device, kind, stream, combining.ENTRY, lambda: combining.emit_combining(kind))
        job, ctas = combine_job(bound)
        self._block = _block_of(job)  # the prepared launch points into it
        arguments = self._block.arguments
        self._prepared = PreparedLaunch(device, combining.ENTRY, function, ctas, combining.THREADS, 0, arguments)

    def launch(self, stream: int, addresses: Sequence[int] = ()) -> None:
        """Launch on a stream of the GPU, unless ``out`` is empty. Other tensors than the first have ``addresses``:
        those of y, the places, the weights, ``add`` and ``out``, or 0."""
        if self._prepared is None:
            return
        if addresses:
            self._block.put(0, struct.pack("<5Q", *addresses))
        self._prepared.launch(stream)


def route_job(bound: BoundRoute) -> tuple[bytes, int]:
    """Return the parameters of the kernel that routes, and its number of CTAs."""
    experts, slots = bound.offsets.shape[0], bound.ids.shape[1]
    addresses = bound.ids.ptr, bound.offsets.ptr, bound.rows.ptr, bound.places.ptr
    segment = align_up(-(-bound.count // routing.WARPS), routing.STEP)
    return routing.JOB.pack(*addresses, bound.count, slots, experts, bound.step, segment, 0), experts + 1


def combine_job(bound: BoundCombine) -> tuple[bytes, int]:
    """Return the parameters of the kernel that adds up rows, and its number of CTAs."""
    addresses = (x.ptr if x else 0 for x in (bound.y, bound.places, bound.weights, bound.add, bound.out))
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


def _block_of(job: bytes) -> ParameterBlock:
    block = ParameterBlock(len(job))
    block.put(0, job)
    return block


def _loaded(device: int, kind: combining.Combination | None, stream: int, entry: str, emit: Callable[[], str]) -> Any:
    """Return a kernel on a GPU.

    Raises:
        DeviceError: the GPU cannot run it.
        CaptureError: it is not loaded yet and the stream is being captured.
    """
    if (device, kind) not in _kernels:
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
        _kernels[device, kind] = driver.compiled(device, emit(), entry, "a kernel for the tokens of experts")
    return _kernels[device, kind]
