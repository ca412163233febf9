"""One GEMM to be solved: D (M x N) = alpha * A (M x K) @ B (K x N) + beta * C, for each of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, get_args

from gemmill.library.config.model import BatchingName, MajorAB, MajorCD, ScaleName
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.epilogues.parse import LINEAR, is_gated, parse, spelling
from gemmill.library.epilogues.tree import transposed
from gemmill.library.errors import ExpressionError, ProblemError
from gemmill.library.input import problem_words
from gemmill.library.input.problem_words import MAX_EXTENT as MAX_EXTENT

MIN_US, MAX_US = 1e-3, 1e12
"""Microseconds between which measured times of a launch are."""
Regime = Literal["sustained", "burst"]
"""How a GPU is kept at work, in what is measured and in what a kernel is to be the fastest in. ``burst``: a lone launch
at full clock, measured as a millisecond of one candidate and then of the next, so that all share a clock.
``sustained``: a program that runs for seconds, which the power limit may hold, measured as each candidate alone for a
fraction of a second, whose second half counts. Times of two regimes do not compare."""
REGIMES: tuple[Regime, ...] = get_args(Regime)
"""Both."""
ASSUMED_ROWS = 128
"""Rows of a masked group that are taken to be in use where nobody says how many. Over 32 problems that use 20 to 1,024
rows of 4,096 it loses 1 to 9%; taking groups for full loses 4 to 35% (H200)."""
_TRANSPOSED: Mapping[MajorCD, MajorCD] = MappingProxyType({"n": "m", "m": "n", "any": "any"})
"""The major of C and D once their rows are called columns."""


def upconverts_a(a: str, b: str) -> bool:
    """Whether operands of types ``a`` and ``b`` are a narrower A, which is upconverted, and a B of 16 bits."""
    return DTYPES[a].bits <= 8 and DTYPES[b].bits == 16


def is_mixed(a: DTypeName, b: DTypeName) -> bool:
    """Whether one operand is upconverted to the other's type."""
    return upconverts_a(a, b) or upconverts_a(b, a)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class GemmProblem:
    """Extents and operand formats of a GEMM.

    ``GemmProblem(m=4096, n=4096, k=7168)`` is one of bf16; keywords say what else differs: the fields below, and for
    ``a_dtype`` and so on also ``a``, ``b``, ``c``, ``d`` and ``acc``; ``groups`` for ``batch`` where ``batching`` says
    what groups are. Types may be written as PyTorch, NumPy and CUTLASS write them. Defaults: A's type for B; f32, s32
    or f64 for sums; D as wide as A and B, of 8 bits and fewer bf16 or s32; D's major for C; the alignment of operands
    without padding; two-level accumulation with block scales only.

    Raises:
        ProblemError: names a keyword, its value and what is allowed.
    """

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
    """The least two-level accumulation that the caller accepts; see
    :class:`~gemmill.library.config.model.GemmConfig`."""
    batching: BatchingName = "strided"
    """How the matrices of the batch are found; see :class:`~gemmill.library.config.model.Scheduler`. ``m`` is the rows
    of all groups for ``grouped``, and of one group for ``masked``; ``k`` is that of all groups for ``kgrouped``."""
    epilogue: str = LINEAR
    """What is done to each sum before it is stored: the canonical text of an epilogue. Gated ones halve D's columns."""
    expected_rows: int | None = None
    """Rows of a masked group that are in use on average, for ``masked``: a kernel is chosen for so many, and any other
    number comes out right as well. None: :data:`ASSUMED_ROWS`, or all of fewer."""

    def __init__(self, m: int, n: int, k: int, *positional: Any, **words: Any) -> None:
        for name, value in zip(_REST, positional, strict=False):
            if name in words:
                raise ProblemError(f"{name} is given twice")
            words[name] = value
        if len(positional) > len(_REST):
            raise ProblemError(f"a problem has {3 + len(_REST)} fields; {3 + len(positional)} were given")
        for name, value in problem_words.checked({"m": m, "n": n, "k": k, **words}).items():
            _SET[name](self, value)

    @classmethod
    def unchecked(cls, **fields: Any) -> GemmProblem:
        """A problem of fields that need no check: how the API makes one for each new signature. Fields that are left
        out have the defaults of the class, above."""
        problem = object.__new__(cls)
        for name, put in _SET.items():
            put(problem, fields[name] if name in fields else _DEFAULTS[name])
        return problem

    def but(self, **changes: Any) -> GemmProblem:
        """The same problem with other fields, which need no check."""
        problem = object.__new__(GemmProblem)
        for name, put in _SET.items():
            put(problem, changes[name] if name in changes else getattr(self, name))
        return problem

    @classmethod
    def from_text(cls, text: str) -> GemmProblem:
        """The problem of a line such as ``4096x7168x2048 e4m3 tn grouped=64``: what ``str`` gives (problem_words.py).

        Raises:
            ProblemError: names the part that cannot be.
        """
        return cls(**problem_words.read_text(text))

    @classmethod
    def from_dict(cls, words: Mapping[str, Any]) -> GemmProblem:
        """The problem of a mapping of keywords; ProblemError as for the class."""
        if missing := [name for name in ("m", "n", "k") if name not in words]:
            raise ProblemError(f"{', '.join(missing)} missing of a problem's extents m, n and k")
        return cls(**words)

    def to_dict(self) -> dict[str, Any]:
        """Keywords that make this problem, without those that have their defaults; all can be written as JSON."""
        return problem_words.words_of(self)

    def check(self) -> None:
        """ValueError where extents, epilogue or expected rows cannot be those of a measurement."""
        for name in ("m", "n", "k", "batch"):
            if not 1 <= (extent := getattr(self, name)) <= MAX_EXTENT:
                written = extent if extent.bit_length() <= 128 else f"a number of {extent.bit_length()} bits"
                raise ValueError(f"{name} is {written}; it must be from 1 to {MAX_EXTENT:,}")
        try:
            problem_words.check_expected_rows(self.expected_rows, self.batching, self.m)
            parse(self.epilogue)
        except ProblemError as error:
            raise ValueError(error) from None
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
        return problem_words.text_of(self)

    def __repr__(self) -> str:
        return f"GemmProblem({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

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

    @property
    def expected_flops(self) -> int:
        """:attr:`flops`, but of masked groups those of the rows that are expected to be in use."""
        return self.typical().flops if self.batching == "masked" else self.flops

    def typical(self) -> GemmProblem:
        """The strided batch of equal matrices that costs about as much: groups as large as they are on average,
        masked ones of the rows that are expected to be in use."""
        if self.batching == "masked":
            rows = self.expected_rows or min(self.m, ASSUMED_ROWS)
            return self.but(m=rows, batching="strided", expected_rows=None)
        if self.batching == "grouped":
            return self.but(m=-(-self.m // max(self.batch, 1)), batching="strided")
        if self.batching == "kgrouped":
            return self.but(k=-(-self.k // max(self.batch, 1)), batching="strided")
        return self

    @property
    def with_narrow_a(self) -> GemmProblem:
        """Its transpose where B is narrow and has scales of groups: kernels upconvert A alone, and apply its scales.
        Itself where there is no such thing: groups and gates have no transpose."""
        has_transpose = self.batching == "strided" and not is_gated(self.epilogue)
        if upconverts_a(self.b_dtype, self.a_dtype) and self.b_scale != "none" and has_transpose:
            return self.transposed
        return self

    @property
    def can_transpose(self) -> bool:
        """Whether :attr:`transposed` can stand in for it: groups, block scales and gates have no transpose."""
        plain = self.batching in ("strided", "nested") and self.a_scale == self.b_scale == "none"
        return plain and not is_gated(self.epilogue)

    @property
    def transposed(self) -> GemmProblem:
        """The same work as D^T = B^T A^T: A and B change places, as do M and N, and with them the majors of C and D.

        The majors of A and B stay, being named relative to K.
        """
        return self.but(
            m=self.n,
            n=self.m,
            a_dtype=self.b_dtype,
            a_major=self.b_major,
            a_align=self.b_align,
            b_dtype=self.a_dtype,
            b_major=self.a_major,
            b_align=self.a_align,
            a_scale=self.b_scale,
            b_scale=self.a_scale,
            c_major=_TRANSPOSED[self.c_major] if self.c_major else None,
            d_major=_TRANSPOSED[self.d_major],
            epilogue=LINEAR if self.epilogue == LINEAR else spelling(transposed(parse(self.epilogue))),
        )


_SET = MappingProxyType({name: getattr(GemmProblem, name).__set__ for name in problem_words.FIELDS})
"""Sets a field of a problem that is being made: for a frozen class, what ``object.__setattr__`` does, but faster."""
_REST = problem_words.FIELDS[3:]
_DEFAULTS = MappingProxyType(
    {field.name: field.default for field in fields(GemmProblem) if field.default is not MISSING}
)
