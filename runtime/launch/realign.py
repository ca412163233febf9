"""Realigned operands: operands that TMA cannot load in place, their rows, the layout of their copies in aligned memory,
and the launch of the kernel that copies them (emitters/copies.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemmill.emitters.copies import BLOCK, ENTRY, JOB, JOBS, THREADS, VECTOR, emit_copies
from gemmill.library.dtypes import DTYPES
from gemmill.library.legality.quantities import align_up
from gemmill.runtime import driver
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.kernel import PreparedLaunch
from gemmill.runtime.launch.parameters import ParameterBlock
from gemmill.runtime.operands.gemm import Gemm

BEGIN = 256
"""Copies start at multiples of this many bytes."""


@dataclass(frozen=True, slots=True)
class RealignedOperand:
    """Matrices of an operand in bytes, in place and as copied."""

    name: str
    """``a``, ``b`` or ``c`` of the GEMM."""
    matrices: int
    matrix_stride: int
    rows: int
    row_bytes: int
    stride: int
    """From a row to the next."""
    offset: int
    """Offset of the copy in its memory."""

    @property
    def realigned_stride(self) -> int:
        """From a row of the copy to the next: whole L2 lines, since rows of boxes should not cross lines."""
        return align_up(self.row_bytes, tma.LINE)

    @property
    def end(self) -> int:
        """End of the copy in its memory."""
        return self.offset + self.matrices * self.rows * self.realigned_stride

    @property
    def vectors(self) -> int:
        """Vectors per row of the copy."""
        return -(-self.row_bytes // VECTOR)

    def job(self, begin: int) -> bytes:
        """Return the job of the kernel for this operand, except for two addresses; ``begin`` is the first of its CTAs.
        Offsets are relative to the operand and to the memory of the copies."""
        strides = self.stride, self.realigned_stride, self.matrix_stride
        counts = self.matrices * self.rows, self.rows, self.vectors
        return JOB.pack(0, self.offset, *strides, self.row_bytes, *counts, begin)


class RealignLaunch:
    """The launch that copies operands, by their index in the addresses. Use it from one thread at a time."""

    def __init__(self, device: int, copies: Mapping[int, RealignedOperand]) -> None:
        block = ParameterBlock(JOBS * JOB.size)
        ctas = 0
        self._sources = []
        self._destinations = []
        for at, (place, copy) in zip(range(0, JOBS * JOB.size, JOB.size), copies.items(), strict=False):
            block.put(at, copy.job(ctas))
            ctas += -(-copy.matrices * copy.rows * copy.vectors // BLOCK)
            self._sources.append((place, block.integer(at)))
            self._destinations.append((copy.offset, block.integer(at + 8)))
        for at in range(len(copies) * JOB.size, JOBS * JOB.size, JOB.size):
            block.put(at, JOB.pack(*(0,) * 9, ctas))
        self._block = block  # the prepared launch points into it
        self._prepared = PreparedLaunch(device, ENTRY, _kernel(device), ctas, THREADS, 0, block.arguments)

    def move(self, memory: int) -> None:
        """Copy into this memory from now on."""
        for offset, destination in self._destinations:
            destination.value = memory + offset

    def launch(self, stream: int, addresses: Sequence[int]) -> None:
        """Copy the operands at some addresses, on a stream of the GPU."""
        for place, source in self._sources:
            source.value = addresses[place]
        self._prepared.launch(stream)


_kernels: dict[int, Any] = {}
"""The copy kernel on each GPU that needed it. If two threads load it at once, the second does no harm."""


def is_loaded(device: int) -> bool:
    """Whether the copy kernel is loaded on a GPU, so that a launch can be prepared during a stream capture."""
    return device in _kernels


def _kernel(device: int) -> Any:
    """Return the copy kernel on a GPU."""
    if device not in _kernels:
        purpose = f"which copies operands that are not aligned to {tma.ALIGNMENT} bytes"
        _kernels[device] = driver.compiled(device, emit_copies(driver.overlaps(device)), ENTRY, purpose)
    return _kernels[device]


def realign(gemm: Gemm, names: Iterable[str]) -> tuple[Gemm, tuple[RealignedOperand, ...]]:
    """Return the GEMM with some operands as they will lie in aligned memory, which starts at :data:`tma.ALIGNMENT`, and
    the copies that move them there."""
    turned = {"a": "mn", "b": "k", "c": "m"}
    copies: list[RealignedOperand] = []
    for name in names:
        operand, (columns, rows) = getattr(gemm, name), gemm.problem.extents_of(name)
        size = DTYPES[operand.dtype].bytes
        copy = RealignedOperand(
            name=name,
            matrices=gemm.problem.batch if operand.batch_stride else 1,
            matrix_stride=operand.batch_stride * size,
            rows=rows,
            row_bytes=columns * size,
            stride=operand.stride * size if rows > 1 else columns * size,
            offset=align_up(copies[-1].end, BEGIN) if copies else 0,
        )
        copies.append(copy)
        stride = copy.realigned_stride // size
        steps, is_turned = (stride if rows > 1 else 0, 1 if columns > 1 else 0), operand.major == turned[name]
        there = replace(
            operand,
            ptr=tma.ALIGNMENT,
            stride=steps[0],
            batch_stride=rows * stride if operand.batch_stride else 0,
            align=tma.ALIGNMENT,
            row_stride=steps[is_turned],
            column_stride=steps[not is_turned],
        )
        gemm = replace(gemm, **{name: there})
    return gemm, tuple(copies)
