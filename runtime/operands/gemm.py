"""A GEMM in memory: a problem, and its operands as a kernel takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from gemmill.library.config.model import BatchingName
from gemmill.library.config.scales import BLOCK_SCALES
from gemmill.library.dtypes import DTypeName
from gemmill.library.errors import OperandError
from gemmill.library.problem import MAX_EXTENT, GemmProblem
from gemmill.runtime.operands.scales import Scale
from gemmill.runtime.operands.strided import Matrices, Operand, operand, refuse_overlap

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


def assemble(
    extents: tuple[int, int, int, int],
    a: Matrices,
    b: Matrices,
    c: Matrices | None,
    d: Matrices,
    accumulator: DTypeName,
    *,
    tf32: bool = False,
    promote: Literal[0, 4] = 0,
    scales: tuple[Scale, Scale] | None = None,
    batching: BatchingName = "strided",
    nested: tuple[int, ...] = (),
) -> Gemm:
    """The GEMM of matrices; ``extents`` are M, N, K and batch, as :class:`GemmProblem` has them, ``nested`` those that
    a batch has of several."""
    m, n, k, batch = extents
    each = nested or (batch,)
    for name, value in (("M", m), ("N", n), ("K", k), ("batch", batch)):
        if value > MAX_EXTENT:
            raise OperandError(f"{name} is {value}; kernels count up to {MAX_EXTENT}: split the problem")
    operand_d = operand(d, each, "n", "m", first="n")
    first = "mn" if batching == "kgrouped" else "k"  # kernels with groups along K take no other
    operand_a = operand(a, each, "k", "mn", first)
    operand_b = operand(b, each, "mn", "k", first)
    operand_c = operand(c, each, "n", "m", first=operand_d.major) if c else None
    refuse_overlap(d, each[: len(d.batch_strides)])
    of_a, of_b = BLOCK_SCALES[scales[0].dtype] if scales else ("none", "none")
    problem = GemmProblem.known(
        m=m,
        n=n,
        k=k,
        batch=batch,
        a_dtype=_multiplied(operand_a.dtype, tf32),
        a_major=_literal(operand_a.major),
        b_dtype=_multiplied(operand_b.dtype, tf32),
        b_major=_literal(operand_b.major),
        accumulator=accumulator,
        d_dtype=operand_d.dtype,
        d_major=_literal(operand_d.major),
        c_dtype=operand_c.dtype if operand_c else None,
        c_major=_literal(operand_c.major) if operand_c else None,
        a_align=operand_a.align,
        b_align=operand_b.align,
        c_align=operand_c.align if operand_c else 16,
        d_align=operand_d.align,
        a_scale=of_a,
        b_scale=of_b,
        promote=4 if scales else promote,
        batching="nested" if nested else batching,
    )
    a_scale, b_scale = scales or (None, None)
    return Gemm(problem, operand_a, operand_b, operand_c, operand_d, a_scale, b_scale, nested=nested)


def _multiplied(dtype: DTypeName, tf32: bool) -> DTypeName:
    """What the tensor cores take a tensor for."""
    return "tf32" if tf32 and dtype == "f32" else dtype


def _literal(major: str) -> Any:
    """A major as the literal type that the problem declares."""
    return major
