"""What a launch computes: a problem, and where in memory all that it reads and writes is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from gemmill.library.config.model import BatchingName
from gemmill.library.problem import GemmProblem
from gemmill.runtime.operands.bound_arguments import BoundArgument
from gemmill.runtime.operands.call_keywords import OPERANDS, PLACES
from gemmill.runtime.operands.matrices import Operand, Scale

Addresses = tuple[int, ...]
"""Addresses of :data:`~gemmill.runtime.operands.call_keywords.OPERANDS`, 0 where a GEMM lacks one; then of the
arguments of its epilogue."""

FOUND_BY: Mapping[BatchingName, str] = MappingProxyType(
    {"grouped": "offsets", "kgrouped": "offsets", "masked": "counts", "array": "addresses"}
)
"""What the matrices of a batch are found by, other than strides."""


class Table(NamedTuple):
    """Offsets or counts of groups, or addresses of matrices."""

    name: str
    """What the caller calls it."""
    ptr: int
    stride: int
    """From one of the offsets or counts to the next, in words of 32 bits."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """A problem and the memory it is solved on, as a kernel takes them; each operand has the name that the caller calls
    it by. Kernels upconvert A alone: with a narrow B the transpose is computed."""

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
    """Their zero points."""
    groups: Table | None = None
    """What the matrices of a batch are found by; None where that is strides."""
    nested: tuple[int, ...] = ()
    """Extents of a nested batch, the outermost first."""
    arguments: tuple[BoundArgument, ...] = ()
    """Operands and outputs of the epilogue."""
    alpha: float = 1.0
    beta: float = 0.0
    is_transposed: bool = False
    """Whether it computes the transpose of what the caller asked for: its A is the caller's b."""

    @property
    def is_empty(self) -> bool:
        """Whether D has no elements, so that nothing is to be launched."""
        return 0 in (self.problem.m, self.problem.n, self.problem.batch)

    @property
    def operands(self) -> dict[str, Operand | Scale]:
        """Those that it has, by what the kernel calls them."""
        names = ("a", "b", "c", "d", "a_scale", "b_scale", "scale", "zero")
        return {name: x for name in names if (x := getattr(self, name)) is not None}

    @property
    def located(self) -> dict[str, Operand | Scale | Table]:
        """All but the epilogue's that lies at an address."""
        return {**self.operands, **({} if self.groups is None else {"groups": self.groups})}

    @property
    def addresses(self) -> Addresses:
        """Where it lies in memory."""
        found = [0] * len(OPERANDS)
        for operand in self.located.values():
            found[PLACES[operand.name]] = operand.ptr
        return (*found, *[argument.address for argument in self.arguments])

    @property
    def transposed(self) -> Gemm:
        """The same work as D^T = B^T A^T: see :attr:`GemmProblem.transposed`."""
        return replace(
            self,
            problem=self.problem.transposed,
            a=self.b.transposed,
            b=self.a.transposed,
            c=self.c.transposed if self.c else None,
            d=self.d.transposed,
            arguments=tuple(argument.transposed for argument in self.arguments),
            is_transposed=not self.is_transposed,
        )
