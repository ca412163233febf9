"""The description of a GEMM: D (M x N) = alpha * A (M x K) @ B (K x N) + beta * C, for each matrix of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, get_args

from gemmill.library.config import batchings
from gemmill.library.config.model import BatchingName, MajorAB, MajorCD, RowsName, ScaleName, SymmetryName
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.epilogues.parse import LINEAR, has_transpose, is_gated, pairs_rows, parse, spelling
from gemmill.library.epilogues.tree import transposed
from gemmill.library.errors import ExpressionError, ProblemError
from gemmill.library.input import problem_words
from gemmill.library.input.problem_words import MAX_EXTENT as MAX_EXTENT

MIN_US, MAX_US = 1e-3, 1e12
"""Bounds in microseconds of measured times of a launch."""
Regime = Literal["sustained", "burst"]
"""The load of the GPU during a measurement, or the load for which a kernel is selected. ``burst``: short launches at
full clock; candidates run in turn for a millisecond, each after a pause. ``sustained``: the GPU is busy
for seconds, and the power limit can throttle it; each candidate runs alone for a fraction of a second, and the second
half counts. Times of different regimes are not comparable."""
REGIMES: tuple[Regime, ...] = get_args(Regime)
"""Both regimes."""
ASSUMED_ROWS = 128
"""Rows (nmasked: columns) of a masked group that are assumed to be in use if the caller does not pass
``expected_rows``. Over 32 problems that use 20 to 1,024 of 4,096 rows, this assumption costs 1 to 9%; the assumption
that groups are full costs 4 to 35%."""
_TRANSPOSED: Mapping[MajorCD, MajorCD] = MappingProxyType({"n": "m", "m": "n", "any": "any"})
"""The major of C and D after transposition."""


def upconverts_a(a: str, b: str) -> bool:
    """Whether a kernel upconverts A for operands of types ``a`` and ``b``: A has at most 8 bits and B has 16, or A is
    s4 and B is e4m3."""
    return (DTYPES[a].bits <= 8 and DTYPES[b].bits == 16) or (a, b) == ("s4", "e4m3")


def is_mixed(a: DTypeName, b: DTypeName) -> bool:
    """Whether a GEMM of these types is mixed-input: one operand is upconverted to the type of the other."""
    return upconverts_a(a, b) or upconverts_a(b, a)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class GemmProblem:
    """Extents and operand formats of a GEMM.

    ``GemmProblem(m=4096, n=4096, k=7168)`` is a bf16 GEMM. Keywords set the fields below. ``a``, ``b``, ``c``, ``d``
    and ``acc`` are short for ``a_dtype``, ..., ``accumulator``; ``groups`` replaces ``batch`` for batchings with
    groups. Types can have the names that PyTorch, NumPy and CUTLASS use. Defaults: B has the type of A; the accumulator
    is f32, s32 or f64; D is as wide as A and B (bf16 or s32 for operands of at most 8 bits); C has the major of D;
    alignments are those of operands without padding; two-level accumulation is used only with block scales.

    Raises:
        ProblemError: names the keyword, its value and the allowed values.
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
    """Largest power of two up to 16, in bytes, that divides the base address and the strides of A."""
    b_align: int = 16
    c_align: int = 16
    d_align: int = 16
    a_scale: ScaleName = "none"
    """Block scales of A; see :class:`~gemmill.library.config.model.InputOperand`."""
    b_scale: ScaleName = "none"
    promote: Literal[0, 2, 4] = 0
    """Two-level accumulation that the caller requires at least; see
    :class:`~gemmill.library.config.model.GemmConfig`."""
    batching: BatchingName = "strided"
    """How the kernel finds the matrices of the batch; see :class:`~gemmill.library.config.model.Scheduler`. ``m`` is
    the total number of rows of all groups for ``grouped``, and the capacity of one group for ``masked``; ``k`` is the
    total of all groups for ``kgrouped``. ``n`` is that total or capacity for ``ngrouped`` and ``nmasked``."""
    epilogue: str = LINEAR
    """The canonical text of the operation on each sum before it is stored. A gated epilogue halves the columns of D, or
    its rows."""
    expected_rows: int | None = None
    """For ``masked``: the average number of rows in use per group, for which the selector picks a kernel. Results are
    correct for any number. None: :data:`ASSUMED_ROWS`, or the capacity if it is smaller. For ``nmasked``: columns."""
    rows: RowsName = "stored"
    """How the kernel finds the rows of A; see :class:`~gemmill.library.config.model.Scheduler`. With ``gathered``, A
    may have any number of rows, or of columns for ``kgrouped``; B any number of
    columns for ``ngrouped``."""
    symmetry: SymmetryName = "general"
    """``symmetric``: D equals its transpose, so that kernels multiply half of it; see
    :class:`~gemmill.library.config.model.Scheduler`."""

    def __init__(self, m: int, n: int, k: int, *positional: Any, **words: Any) -> None:
        for name, value in zip(_REST, positional, strict=False):
            if name in words:
                raise ProblemError(f"{name} is passed twice")
            words[name] = value
        if len(positional) > len(_REST):
            raise ProblemError(f"a problem has {3 + len(_REST)} fields, but {3 + len(positional)} values were passed")
        for name, value in problem_words.checked({"m": m, "n": n, "k": k, **words}).items():
            _SET[name](self, value)

    @classmethod
    def unchecked(cls, **fields: Any) -> GemmProblem:
        """A problem from fields that need no check, which the API creates for each new signature. Omitted fields have
        the defaults of the class."""
        problem = object.__new__(cls)
        for name, put in _SET.items():
            put(problem, fields[name] if name in fields else _DEFAULTS[name])
        return problem

    def but(self, **changes: Any) -> GemmProblem:
        """The same problem with changed fields, which are not checked."""
        problem = object.__new__(GemmProblem)
        for name, put in _SET.items():
            put(problem, changes[name] if name in changes else getattr(self, name))
        return problem

    @classmethod
    def from_text(cls, text: str) -> GemmProblem:
        """The problem of a line such as ``4096x7168x2048 e4m3 tn grouped=64``, as ``str`` returns it
        (problem_words.py).

        Raises:
            ProblemError: names the invalid part.
        """
        return cls(**problem_words.read_text(text))

    @classmethod
    def from_dict(cls, words: Mapping[str, Any]) -> GemmProblem:
        """The problem with the keywords of a mapping; ProblemError as for the class."""
        if missing := [name for name in ("m", "n", "k") if name not in words]:
            raise ProblemError(f"missing {', '.join(missing)}: a problem needs the extents m, n and k")
        return cls(**words)

    def to_dict(self) -> dict[str, Any]:
        """The keywords of this problem without those that have their default; all values can be written as JSON."""
        return problem_words.words_of(self)

    def check(self) -> None:
        """Raises ValueError if extents, epilogue or expected rows are invalid for a measurement."""
        for name in ("m", "n", "k", "batch"):
            if not 1 <= (extent := getattr(self, name)) <= MAX_EXTENT:
                value_text = extent if extent.bit_length() <= 128 else f"a number of {extent.bit_length()} bits"
                raise ValueError(f"{name} is {value_text}; it must be from 1 to {MAX_EXTENT:,}")
        try:
            problem_words.check_expected_rows(self.expected_rows, self.batching, self.m, self.n)
            parse(self.epilogue)
        except ProblemError as error:
            raise ValueError(error) from None
        except ExpressionError as error:
            raise ValueError(f"epilogue: {error}") from None

    @property
    def d_rows(self) -> int:
        """Rows of D: M, or M / 2 if the epilogue pairs rows."""
        return self.m // 2 if pairs_rows(self.epilogue) else self.m

    @property
    def d_columns(self) -> int:
        """Columns of D: N, or N / 2 if the epilogue is gated."""
        return self.n // 2 if is_gated(self.epilogue) else self.n

    @property
    def extents(self) -> str:
        """M, N, K and the batch if it is not 1, as in ``4096x4096x4096``."""
        return f"{self.m}x{self.n}x{self.k}" + (f"x{self.batch}" if self.batch != 1 else "")

    def __str__(self) -> str:
        return problem_words.text_of(self)

    def __repr__(self) -> str:
        return f"GemmProblem({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    def extents_of(self, operand: str) -> tuple[int, int]:
        """The contiguous and the other extent of ``a``, ``b``, ``c`` or ``d``; in any order for major ``any``."""
        row, column = {"a": (self.m, self.k), "b": (self.n, self.k)}.get(operand, (self.d_rows, self.d_columns))
        major = getattr(self, f"{operand}_major")
        return (column, row) if major in ("k", "n") else (row, column)

    @property
    def flops(self) -> int:
        """Floating-point operations: 2 M N K for each matrix of the batch; grouped matrices share an extent in
        total. A symmetric D has M (M + 1) K."""
        matrices = 1 if self.batching in batchings.OFFSETS else self.batch
        columns = 2 * self.n if self.symmetry == "general" else self.n + 1
        return self.m * columns * self.k * matrices

    @property
    def expected_flops(self) -> int:
        """:attr:`flops`; for masked groups only those of the rows that are expected to be in use."""
        return self.typical().flops if self.batching in batchings.MASKED else self.flops

    def typical(self) -> GemmProblem:
        """A strided batch of equal matrices with about the same cost: groups have their average size, and masked groups
        the rows that are expected to be in use."""
        if (along := batchings.GROUPED_EXTENT.get(self.batching)) is None:
            return self
        size = -(-getattr(self, along) // max(self.batch, 1))
        if self.batching in batchings.MASKED:
            size = self.expected_rows or min(getattr(self, along), ASSUMED_ROWS)
        return self.but(**{along: size}, batching="strided", expected_rows=None, rows="stored")

    @property
    def of_components(self) -> GemmProblem:
        """The problem with what kernels load for split f32: the components as if one after another along K. For other
        types the problem itself."""
        split = DTYPES[self.a_dtype]
        if split.component is None:
            return self
        k, dtype = split.components * self.k, split.component
        return self.but(k=k, a_dtype=dtype, b_dtype=dtype, a_align=16, b_align=16)

    @property
    def products(self) -> float:
        """Products of each loaded element of :attr:`of_components`: more than one for split f32."""
        split = DTYPES[self.a_dtype]
        return len(split.terms) / split.components

    @property
    def with_narrow_a(self) -> GemmProblem:
        """The transpose if B is narrow and has group scales or groups of rows, because kernels upconvert and scale only
        A. Otherwise, and for epilogues that cannot be transposed, the problem itself."""
        needs_swap = self.b_scale != "none" if self.batching == "strided" else self.batching in batchings.TRANSPOSED
        if upconverts_a(self.b_dtype, self.a_dtype) and needs_swap and has_transpose(self.epilogue):
            return self.transposed
        return self

    @property
    def can_transpose(self) -> bool:
        """Whether kernels may compute :attr:`transposed` instead: not for groups, block scales, a symmetric D,
        quantising epilogues, and gates where no operand is upconverted, since the model of speed was not fitted to
        gates of rows."""
        is_scaled = self.a_scale != "none" or self.b_scale != "none"
        plain = self.batching in ("strided", "nested") and not is_scaled and self.symmetry == "general"
        gates = is_gated(self.epilogue) or pairs_rows(self.epilogue)
        return plain and has_transpose(self.epilogue) and (not gates or is_mixed(self.a_dtype, self.b_dtype))

    @property
    def transposed(self) -> GemmProblem:
        """The same work as D^T = B^T A^T: A and B are swapped, as are M and N, the majors of C and D, and groups along
        M and N.

        The majors of A and B remain, because they are named relative to K.
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
            batching=batchings.TRANSPOSED.get(self.batching, self.batching),
            epilogue=LINEAR if self.epilogue == LINEAR else spelling(transposed(parse(self.epilogue))),
        )


_SET = MappingProxyType({name: getattr(GemmProblem, name).__set__ for name in problem_words.FIELDS})
"""Sets a field during construction of a frozen problem; faster than ``object.__setattr__``."""
_REST = problem_words.FIELDS[3:]
_DEFAULTS = MappingProxyType(
    {field.name: field.default for field in fields(GemmProblem) if field.default is not MISSING}
)
