"""One GEMM to be solved: D (M x N) = alpha * A (M x K) @ B (K x N) + beta * C, for each of a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from operator import index
from types import MappingProxyType
from typing import Literal, SupportsIndex, get_args

from gemmill.library.config.model import BatchingName, MajorAB, MajorCD, ScaleName
from gemmill.library.dtypes import DTYPES, DTypeName, unknown
from gemmill.library.epilogues.parse import LINEAR, is_gated, parse, spelling
from gemmill.library.epilogues.tree import transposed
from gemmill.library.errors import ExpressionError, ProblemError
from gemmill.library.wording import one_of

MAX_EXTENT = (1 << 31) - 4096
"""Largest extent: kernels count in int32, and round up to whole clusters of tiles."""
MIN_US, MAX_US = 1e-3, 1e12
"""Microseconds between which measured times of a launch are."""
_TRANSPOSED: Mapping[MajorCD, MajorCD] = MappingProxyType({"n": "m", "m": "n", "any": "any"})
"""The major of C and D once their rows are called columns."""


def upconverts_a(a: str, b: str) -> bool:
    """Whether operands of types ``a`` and ``b`` are a narrower A, which is upconverted, and a B of 16 bits."""
    return DTYPES[a].bits <= 8 and DTYPES[b].bits == 16


def is_mixed(a: DTypeName, b: DTypeName) -> bool:
    """Whether one operand is upconverted to the other's type."""
    return upconverts_a(a, b) or upconverts_a(b, a)


def _extents(given: object) -> tuple[int, ...]:
    """M, N, K and batch of a sequence of them, whatever integers it holds."""
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 4:
        raise ProblemError(f"extents is {given!r}; it must be the four extents (M, N, K, batch), batch 1 for one GEMM")
    for name, value in zip(("M", "N", "K", "batch"), given, strict=True):
        whole = isinstance(value, SupportsIndex) and not isinstance(value, bool)
        if not whole or not 0 <= index(value) <= MAX_EXTENT:
            raise ProblemError(f"{name} of extents is {value!r}; it must be a whole number from 0 to {MAX_EXTENT:,}")
    return tuple(map(index, given))


def _check_operand(name: str, given: object, majors: Sequence[str]) -> None:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ProblemError(f"{name} is {given!r}; it must be dtype and major, such as ('bf16', {majors[0]!r})")
    _check_word(f"the dtype of {name}", given[0], DTYPES)
    _check_word(f"the major of {name}", given[1], majors)


def _check_word(what: str, given: object, allowed: Collection[str]) -> None:
    if not isinstance(given, str) or given not in allowed:
        hint = unknown(str(given)) if allowed is DTYPES else ""
        raise ProblemError(f"{what} is {given!r}{hint or ';'} it must be {one_of([*allowed])}")


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """Extents and operand formats of a GEMM. A plain dataclass: the API makes one for each new signature."""

    m: int
    n: int
    k: int
    batch: int
    a_dtype: DTypeName
    a_major: MajorAB
    b_dtype: DTypeName
    b_major: MajorAB
    accumulator: DTypeName
    d_dtype: DTypeName
    d_major: MajorCD
    c_dtype: DTypeName | None = None
    """None for a GEMM without C."""
    c_major: MajorCD | None = None
    a_align: int = 16
    """Largest power of two up to 16, in bytes, that divides base address and strides of A."""
    b_align: int = 16
    c_align: int = 16
    d_align: int = 16
    a_scale: ScaleName = "none"
    """Block scales of A; see :class:`~gemmill.library.config.model.InputOperand`."""
    b_scale: ScaleName = "none"
    promote: Literal[0, 4] = 0
    """The least promotion that the caller accepts; see :class:`~gemmill.library.config.model.GemmConfig`."""
    batching: BatchingName = "strided"
    """How the matrices of the batch are found; see :class:`~gemmill.library.config.model.Scheduler`. ``m`` is the rows
    of all groups for ``grouped``, and of a slot for ``masked``; ``k`` is that of all groups for ``kgrouped``."""
    epilogue: str = LINEAR
    """What is done to each sum before it is stored: the canonical text of an epilogue. Gated ones halve D's columns."""

    def check(self) -> None:
        """ValueError where extents or epilogue cannot be those of a measurement."""
        for name in ("m", "n", "k", "batch"):
            if not 1 <= (extent := getattr(self, name)) <= MAX_EXTENT:
                written = extent if extent.bit_length() <= 128 else f"a number of {extent.bit_length()} bits"
                raise ValueError(f"{name} is {written}; it must be from 1 to {MAX_EXTENT:,}")
        try:
            parse(self.epilogue)
        except ExpressionError as error:
            raise ValueError(f"epilogue: {error}") from None

    @property
    def d_columns(self) -> int:
        """Columns of D: N, or half of it where the epilogue is gated."""
        return self.n // 2 if is_gated(self.epilogue) else self.n

    @property
    def extents(self) -> str:
        """M, N, K and the batch, as in ``4096x4096x4096``."""
        return f"{self.m}x{self.n}x{self.k}" + (f"x{self.batch}" if self.batch != 1 else "")

    def __str__(self) -> str:
        extents = self.extents
        if self.batching != "strided":
            extents = f"{self.m}x{self.n}x{self.k} in {self.batch} groups ({self.batching})"
        epilogue = "" if self.epilogue == LINEAR else f", {self.epilogue}"
        c = f"C {self.c_dtype} {self.c_major}-major, " if self.c_dtype else ""
        return (
            f"{extents} (A {self.a_dtype} {self.a_major}-major, B {self.b_dtype} "
            f"{self.b_major}-major, {c}D {self.d_dtype} {self.d_major}-major, accumulated in {self.accumulator}"
            f"{epilogue})"
        )

    @classmethod
    def packed(
        cls,
        extents: tuple[int, int, int, int],
        a: tuple[DTypeName, MajorAB],
        b: tuple[DTypeName, MajorAB],
        accumulator: DTypeName,
        c: tuple[DTypeName, MajorCD] | None,
        d: tuple[DTypeName, MajorCD],
    ) -> GemmProblem:
        """The problem on operands without padding, given as dtype and majorness; ``extents`` are M, N, K and batch.

        Raises:
            ProblemError: an argument has a wrong type, range or count; names it and what may stand there.
        """
        m, n, k, batch = _extents(extents)
        _check_operand("a", a, get_args(MajorAB))
        _check_operand("b", b, get_args(MajorAB))
        _check_operand("d", d, get_args(MajorCD))
        if c is not None:
            _check_operand("c", c, get_args(MajorCD))
        _check_word("accumulator", accumulator, DTYPES)
        problem = cls(
            m=m,
            n=n,
            k=k,
            batch=batch,
            a_dtype=a[0],
            a_major=a[1],
            b_dtype=b[0],
            b_major=b[1],
            accumulator=accumulator,
            d_dtype=d[0],
            d_major=d[1],
            c_dtype=c[0] if c else None,
            c_major=c[1] if c else None,
        )

        def align(operand: str, dtype: DTypeName) -> int:
            contiguous, strided = problem.extents_of(operand)
            return gcd(16, contiguous * DTYPES[dtype].bits // 8 if strided > 1 or batch > 1 else 0)

        return replace(
            problem,
            a_align=align("a", a[0]),
            b_align=align("b", b[0]),
            c_align=align("c", c[0]) if c else 16,
            d_align=align("d", d[0]),
        )

    def extents_of(self, operand: str) -> tuple[int, int]:
        """The contiguous extent of ``a``, ``b``, ``c`` or ``d``, and the other one; for any strides in either order."""
        row, column = {"a": (self.m, self.k), "b": (self.n, self.k)}.get(operand, (self.m, self.d_columns))
        major = getattr(self, f"{operand}_major")
        return (column, row) if major in ("k", "n") else (row, column)

    @property
    def flops(self) -> int:
        """Floating-point operations: 2 M N K, for each of a batch but where its matrices share the M or K rows."""
        each = 1 if self.batching in ("grouped", "kgrouped") else self.batch
        return 2 * self.m * self.n * self.k * each

    def typical(self) -> GemmProblem:
        """The strided batch of equal matrices that costs about as much: groups as large as they are on average."""
        m, k = (-(-extent // max(self.batch, 1)) for extent in (self.m, self.k))
        if self.batching == "grouped":
            return replace(self, m=m, batching="strided")
        return replace(self, k=k, batching="strided") if self.batching == "kgrouped" else self

    @property
    def can_transpose(self) -> bool:
        """Whether :attr:`transposed` can stand in for it: groups, block scales and gates have no transpose."""
        plain = self.batching == "strided" and self.a_scale == self.b_scale == "none"
        return plain and not is_gated(self.epilogue)

    @property
    def transposed(self) -> GemmProblem:
        """The same work as D^T = B^T A^T: A and B change places, as do M and N, and with them the majors of C and D.

        The majors of A and B stay, being named relative to K.
        """
        return replace(
            self,
            m=self.n,
            n=self.m,
            a_dtype=self.b_dtype,
            a_major=self.b_major,
            a_align=self.b_align,
            b_dtype=self.a_dtype,
            b_major=self.a_major,
            b_align=self.a_align,
            c_major=_TRANSPOSED[self.c_major] if self.c_major else None,
            d_major=_TRANSPOSED[self.d_major],
            epilogue=LINEAR if self.epilogue == LINEAR else spelling(transposed(parse(self.epilogue))),
        )
