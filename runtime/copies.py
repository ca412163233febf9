"""Copies of operands that TMA cannot move into aligned memory: where rows lie, and where they are copied to.

The driver copies them (``cuMemcpy2DAsync``) in the order of the stream, on an H200 at 1.4 to 1.6 TB/s, read and written
(docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gemmill.library.dtypes import DTYPES
from gemmill.library.resources import align_up
from gemmill.runtime import driver, tma
from gemmill.runtime.operands import Gemm

BEGIN = 256
"""Copies begin at multiples of this many bytes."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One operand: matrices of rows, in bytes, as they are and as they are copied."""

    name: str
    """``a``, ``b`` or ``c`` of the GEMM."""
    matrices: int
    matrix_stride: int
    rows: int
    row_bytes: int
    stride: int
    """From a row to the next: no less than a row is long."""
    offset: int
    """Where the copy begins in its memory."""

    @property
    def copied_stride(self) -> int:
        """From a row of the copy to the next: whole lines of L2, as rows of boxes should not lie across two."""
        return align_up(max(self.row_bytes, 1), tma.LINE)

    @property
    def end(self) -> int:
        """Where the copy ends in its memory."""
        return self.offset + self.matrices * self.rows * self.copied_stride

    def moves(self, source: int, memory: int) -> Iterator[tuple[int, int]]:
        """Addresses of each matrix and of its copy, where the operand is at ``source`` and goes to ``memory``; none
        where there is nothing to copy."""
        if self.row_bytes * self.rows:
            for i in range(self.matrices):
                yield source + i * self.matrix_stride, memory + self.offset + i * self.rows * self.copied_stride

    def launch(self, device: int, stream: int, source: int, memory: int) -> None:
        """Copy the operand at ``source`` into ``memory`` on a stream of a GPU."""
        for begins, to in self.moves(source, memory):
            driver.copy_rows(device, stream, begins, self.stride, to, self.copied_stride, self.row_bytes, self.rows)


def aligned(gemm: Gemm, names: Iterable[str]) -> tuple[Gemm, tuple[Copy, ...]]:
    """The GEMM with some operands as they will be in aligned memory that begins at :data:`tma.ALIGNMENT`, and the
    copies that bring them there."""
    turned = {"a": "mn", "b": "k", "c": "m"}
    copies: list[Copy] = []
    for name in names:
        operand, (columns, rows) = getattr(gemm, name), gemm.problem.extents_of(name)
        size = DTYPES[operand.dtype].bytes
        copy = Copy(
            name=name,
            matrices=gemm.problem.batch if operand.batch_stride else 1,
            matrix_stride=operand.batch_stride * size,
            rows=rows,
            row_bytes=columns * size,
            stride=operand.stride * size if rows > 1 else columns * size,
            offset=align_up(copies[-1].end, BEGIN) if copies else 0,
        )
        copies.append(copy)
        stride = copy.copied_stride // size
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
