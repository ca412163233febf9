"""Split a problem into single matrix products: the matrices of a batch, or the groups, of any layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from gemmill.library.config.scales import scale_block
from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.operands import OperandSet, torch


@dataclass(frozen=True, slots=True)
class Part:
    """One matrix product, and its place in D (matrices, M, columns)."""

    index: int
    """Index of the matrix in the batch, or of the group."""
    at: int
    """Index of the matrix in D."""
    rows: slice
    """Rows of that matrix."""
    a: Any
    """(rows, K)."""
    b: Any
    """(K, N)."""
    a_scale: Any = None
    """Block scales of A, (row blocks, K blocks)."""
    b_scale: Any = None
    """Block scales of B, (K blocks, column blocks)."""
    columns: slice = field(default_factory=lambda: slice(None))
    """Columns of D's matrix."""

    def matrix_of(self, kind: str) -> int:
        """Index of the matrix, or of the group, whose values of an operand of the epilogue this product needs."""
        shared = "row" if self.columns.stop is None else "column"
        return self.at if kind in ("matrix", "block", shared) else self.index

    def scaled(self, problem: GemmProblem, rows: slice) -> tuple[Any, Any]:
        """Copies of some rows of A, and of B, in float64, multiplied by their block scales."""
        left, right = (x.to(torch().float64, copy=True) for x in (self.a[rows], self.b))
        k, n = self.b.shape
        if self.a_scale is not None:
            across, along_k = scale_block(problem.a_scale)
            scales = self.a_scale.to(torch().float32).repeat_interleave(across, 0)[rows]
            left *= scales.repeat_interleave(along_k, 1)[:, :k]
        if self.b_scale is not None:
            across, along_k = scale_block(problem.b_scale)
            scales = self.b_scale.to(torch().float32).repeat_interleave(across, 1)
            right *= scales.repeat_interleave(along_k, 0)[:k, :n]
        return left, right


def parts(problem: GemmProblem, operands: OperandSet) -> Iterator[Part]:
    """The products of a problem, without empty groups. Narrow operands must be upconverted before."""
    o, batch = operands, problem.batch
    ends = [*accumulate(o.sizes)]
    for i in range(batch):
        size = o.sizes[i] if o.sizes else 0
        b, b_scale = _matrix(o.b, i), _matrix(o.b_scale, i)
        match problem.batching:
            case "grouped":
                rows = slice(ends[i] - size, ends[i])
                of_a = o.groups["rows"][rows] if problem.rows == "gathered" else rows
                part = Part(i, 0, rows, o.a[of_a], b, None if o.a_scale is None else o.a_scale[of_a], b_scale)
            case "masked":
                rows, a_scale = slice(0, size), _matrix(o.a_scale, i)
                a_scale = None if a_scale is None else a_scale[rows]
                part = Part(i, i, rows, _matrix(o.a, i)[rows], b, a_scale, b_scale)
            case "ngrouped":
                columns = slice(ends[i] - size, ends[i])
                of_b = o.groups["rows"][columns] if problem.rows == "gathered" else columns
                part = Part(i, 0, slice(0, problem.m), _matrix(o.a, i), o.b[:, of_b], columns=columns)
            case "nmasked":
                columns = slice(0, size)
                part = Part(i, i, slice(0, problem.m), _matrix(o.a, i), b[:, columns], columns=columns)
            case "kgrouped":
                along_k = slice(ends[i] - size, ends[i])
                of_a = o.groups["rows"][along_k] if problem.rows == "gathered" else along_k
                part = Part(i, i, slice(0, problem.m), o.a[:, of_a], o.b[along_k])
            case _:
                part = Part(i, i, slice(0, problem.m), _matrix(o.a, i), b, _matrix(o.a_scale, i), b_scale)
        if part.rows.start < part.rows.stop and part.b.shape[1] > 0:
            yield part


def _matrix(tensor: Any, index: int) -> Any:
    """A matrix of a batch; the tensor itself if it has no batch extent."""
    return None if tensor is None else tensor[index] if tensor.dim() == 3 else tensor
