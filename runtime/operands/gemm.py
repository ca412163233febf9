"""A GEMM as a launch computes it: a problem, and the place in memory of everything that the kernel reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from gemmill.library.config.batchings import MASKED, OFFSETS
from gemmill.library.config.model import BatchingName
from gemmill.library.dtypes import SPLIT
from gemmill.library.problem import GemmProblem
from gemmill.runtime.operands.bound_arguments import BoundArgument
from gemmill.runtime.operands.call_keywords import OPERANDS, PLACES
from gemmill.runtime.operands.matrices import Operand, Scale

Addresses = tuple[int, ...]
"""Addresses of :data:`~gemmill.runtime.operands.call_keywords.OPERANDS`, 0 for those that a GEMM does not have; then of
the arguments of its epilogue."""

FOUND_BY: Mapping[BatchingName, str] = MappingProxyType(
    {
        **dict.fromkeys(OFFSETS, "offsets"),
        **dict.fromkeys(MASKED, "counts"),
        "array": "addresses",
    }
)
"""The operand that locates the matrices of a batch, where that is not strides."""


class Table(NamedTuple):
    """Offsets or counts of groups, or addresses of matrices."""

    name: str
    """The caller's keyword for it."""
    ptr: int
    stride: int
    """From one offset or count to the next, in 32-bit words."""


class RowIndex(NamedTuple):
    """The row of A for each row of D."""

    name: str
    """The caller's keyword for it."""
    ptr: int
    stride: int
    """From one entry to the next, in 32-bit words."""
    extent: int
    """Rows of A."""


class Gemm(NamedTuple):
    """A problem and the memory of its operands, as a kernel takes them; each operand carries the caller's name for it.

    Kernels can upconvert only A: with a narrow B, the GEMM is the transposed one.
    """

    problem: GemmProblem
    a: Operand
    b: Operand
    c: Operand | None
    d: Operand
    a_scale: Scale | None = None
    b_scale: Scale | None = None
    scale: Operand | None = None
    """Scales of groups of narrow A: a matrix, M by K / group."""
    zero: Operand | None = None
    """Zero points of groups of narrow A."""
    groups: Table | None = None
    """The table that locates the matrices of a batch; None for strides."""
    rows: RowIndex | None = None
    """Where the rows of A, or the columns of B for groups along N, are gathered."""
    nested: tuple[int, ...] = ()
    """Extents of a nested batch, the outermost first."""
    arguments: tuple[BoundArgument, ...] = ()
    """Operands and outputs of the epilogue."""
    alpha: float = 1.0
    beta: float = 0.0
    is_transposed: bool = False
    """Whether it computes the transpose of the caller's operation: its A is the caller's b."""

    @property
    def is_empty(self) -> bool:
        """Whether D has no elements, so that there is nothing to launch."""
        return 0 in (self.problem.m, self.problem.n, self.problem.batch)

    @property
    def is_prepared(self) -> bool:
        """Whether an operand is f32 that was split into components before (:func:`gemmill.prepare`)."""
        return self.a.dtype in SPLIT or self.b.dtype in SPLIT

    @property
    def operands(self) -> dict[str, Operand | Scale]:
        """The operands that it has, by the kernel's names."""
        names = ("a", "b", "c", "d", "a_scale", "b_scale", "scale", "zero")
        return {name: x for name in names if (x := getattr(self, name)) is not None}

    @property
    def located(self) -> dict[str, Operand | Scale | Table | RowIndex]:
        """Everything that has an address, except the arguments of the epilogue."""
        tables = {"groups": self.groups, "rows": self.rows}
        return {**self.operands, **{name: x for name, x in tables.items() if x is not None}}

    @property
    def addresses(self) -> Addresses:
        """Addresses of its operands."""
        pointers = [0] * len(OPERANDS)
        for operand in self.located.values():
            pointers[PLACES[operand.name]] = operand.ptr
        return (*pointers, *[argument.address for argument in self.arguments])

    @property
    def transposed(self) -> Gemm:
        """The same operation as D^T = B^T A^T: see :attr:`GemmProblem.transposed`."""
        return self._replace(
            problem=self.problem.transposed,
            a=self.b.transposed,
            b=self.a.transposed,
            c=self.c.transposed if self.c else None,
            d=self.d.transposed,
            arguments=tuple(argument.transposed for argument in self.arguments),
            is_transposed=not self.is_transposed,
        )
