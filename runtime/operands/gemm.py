"""A GEMM in memory: a problem, and its operands as a kernel takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gemmill.library.problem import GemmProblem
from gemmill.runtime.operands.matrices import Operand
from gemmill.runtime.operands.scales import Scale

OPERANDS = ("a", "b", "c", "out", "a_scale", "b_scale", "a_zero", "b_zero", "offsets", "counts", "addresses")
"""What the caller calls the tensors of a GEMM, in the order in which a launch takes their addresses."""
PLACES = {name: place for place, name in enumerate(OPERANDS)}

_CALLED: tuple[Mapping[str, str], Mapping[str, str]] = (
    {"d": "out", "scale": "a_scale", "zero": "a_zero"},
    {"d": "out", "scale": "b_scale", "zero": "b_zero", "a": "b", "b": "a"},
)
"""What the caller calls operands of a kernel, as it is and transposed; others have the same name."""

Addresses = tuple[int, ...]
"""Addresses of :data:`OPERANDS`, 0 where a GEMM lacks one; then of the arguments of its epilogue."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """A problem and the tensors it is solved on. Kernels upconvert A alone: with a narrow B the
    transpose is computed."""

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
    is_transposed: bool = False
    """Whether it computes the transpose of what the caller asked for: its A is the caller's b."""
    groups: int = 0
    """Address of the offsets or counts of groups or of the addresses of matrices; 0 where strides find them."""
    groups_stride: int = 1
    """From one of the offsets or counts to the next, in words of 32 bits."""
    nested: tuple[int, ...] = ()
    """Extents of a nested batch, the outermost first."""

    def name(self, operand: str) -> str:
        """What the caller calls the operand in an attribute of this class."""
        return _CALLED[self.is_transposed].get(operand, operand)

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
            is_transposed=not self.is_transposed,
        )
