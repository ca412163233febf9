"""The typed tree of an epilogue, its canonical text, and its transposition (M and N swapped)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from gemmill.library.dtypes import DTYPES, FP8, INT8, DTypeName
from gemmill.library.epilogues.function_table import FUNCTIONS

Kind = Literal["scalar", "row", "column", "batch", "matrix", "block"]
"""The shape of an operand or output: one value for the problem, per row, per column, per matrix of the batch, per
element, or per row and block of columns. Only scales have blocks."""

BLOCK = 128
"""Columns of D that share a scale."""

INDEX: Mapping[Kind, str] = {
    "scalar": "",
    "row": "[m]",
    "column": "[n]",
    "batch": "[batch]",
    "matrix": "[m, n]",
    "block": f"[m, n/{BLOCK}]",
}
"""The index of each kind in the text of an epilogue."""

Major = Literal["any", "n", "m"]
"""How a kernel reads or writes a matrix of an epilogue. ``any``: element by element, at any strides. ``n`` and ``m``:
by TMA; the matrix is contiguous along N or M, and its address and other strides are multiples of 16 bytes."""

OUTPUT_DTYPES: tuple[DTypeName, ...] = ("f32", "bf16", "f16")
"""Element types of outputs; the first is the default."""

SCALE_DTYPES: tuple[DTypeName, ...] = (*OUTPUT_DTYPES, "ue8m0")
"""Element types of ``a_scale`` and ``b_scale``."""

OPERAND_DTYPES: tuple[DTypeName, ...] = (*SCALE_DTYPES, "f64", "s32", *FP8, *INT8)
"""Element types of operands: all types of D, and ue8m0. TMA supports only matrices of :data:`OUTPUT_DTYPES`."""


BLOCK_SCALE_DTYPES: tuple[DTypeName, ...] = ("f32", "ue8m0")
"""Element types of scales of blocks that an epilogue computes; the first is the default."""

REDUCTIONS = ("max", "min", "sum")
"""The reductions, which compute outputs that are smaller than D."""

SCALE = "scale"
"""The function that computes the scales of blocks of columns."""


class Number(NamedTuple):
    """A constant."""

    value: float


class Operand(NamedTuple):
    """A tensor or scalar that the caller passes, including ``alpha`` and ``beta``."""

    name: str
    kind: Kind
    dtype: DTypeName
    major: Major = "any"
    """Of a matrix."""


class Value(NamedTuple):
    """``acc``, ``c``, one of :data:`GATES`, or the result of an earlier assignment."""

    name: str


class Call(NamedTuple):
    """A call of a function or operator."""

    function: str
    arguments: tuple[Node, ...]


Node = Number | Operand | Value | Call

HALVES = "_half"
"""The end of the names of a gate and up that are the halves of N."""
GATES: Mapping[str, int] = MappingProxyType(
    {"gate": 1, "up": 1, "gate8": 8, "up8": 8, f"gate{HALVES}": 8, f"up{HALVES}": 8, "gate8.m": 8, "up8.m": 8}
)
"""The sums of gated epilogues, with the columns of each run: N holds so many columns of the gate, then as many of up,
and so on. With ``.m`` they are rows, and M holds them: the transposes of those of columns. Of halves, N holds all
columns of the gate, then all of up; kernels load runs of 8 of them, so that tiles are as those of ``gate8``."""
_TRANSPOSED_GATES: Mapping[str, str] = MappingProxyType(
    {x: y for name in ("gate8", "up8") for x, y in ((name, f"{name}.m"), (f"{name}.m", name))}
)

SUMS: Set[Node] = frozenset(map(Value, ("acc", *GATES)))
"""The sums of products."""

Role = Literal["d", "local", "store", "max", "min", "sum", "scale"]


class Assignment(NamedTuple):
    """One statement."""

    name: str
    role: Role
    """``d``, a local value, an output matrix (``store``), or the reduction or ``scale`` that computes an output."""
    kind: Kind
    """The shape of an output; ``matrix`` for D and locals."""
    dtype: DTypeName
    """Element type of an output; f32 for locals and for D, whose type is in the config."""
    value: Node
    major: Major = "any"
    """Of an output matrix."""

    @property
    def is_reduction(self) -> bool:
        """Whether it reduces many elements to one."""
        return self.role in REDUCTIONS

    @property
    def is_output(self) -> bool:
        """Whether it writes a tensor other than D that the caller passes."""
        return self.role not in ("d", "local")

    @property
    def dtypes(self) -> tuple[DTypeName, ...]:
        """The element types that the output can have."""
        if self.role == SCALE:
            return BLOCK_SCALE_DTYPES
        return ("f32",) if self.is_reduction else OUTPUT_DTYPES

    def __str__(self) -> str:
        target = _reference(self.name, self.kind, self.dtype, self.major) if self.is_output else self.name
        is_call = self.is_reduction or self.role == SCALE
        value = f"{self.role}({expression(self.value)})" if is_call else expression(self.value)
        return f"{target} = {value}"


@dataclass(frozen=True)
class Epilogue:
    """A checked epilogue: names exist, types agree, and D is assigned once.

    Its properties are cached, because every call of ``matmul`` reads them.
    """

    assignments: tuple[Assignment, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.assignments))

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The operands that the caller passes, without ``alpha`` and ``beta``, in the order of first use."""
        named = {node.name: node for node in self._nodes() if isinstance(node, Operand)}
        return tuple(operand for operand in named.values() if operand.name not in ("alpha", "beta"))

    @cached_property
    def outputs(self) -> tuple[Assignment, ...]:
        """The outputs other than D."""
        return tuple(assignment for assignment in self.assignments if assignment.is_output)

    @cached_property
    def arguments(self) -> tuple[Operand | Assignment, ...]:
        """Everything that the caller passes by name: operands, then outputs."""
        return (*self.operands, *self.outputs)

    @cached_property
    def staged(self) -> tuple[tuple[Operand, ...], tuple[Assignment, ...]]:
        """Matrices that TMA moves through shared memory: operands, outputs."""
        inputs = tuple(operand for operand in self.operands if operand.major != "any")
        return inputs, tuple(output for output in self.outputs if output.major != "any")

    @cached_property
    def majors(self) -> dict[str, Major]:
        """Majors of these matrices by name, operands first."""
        inputs, outputs = self.staged
        return {x.name: x.major for x in inputs} | {x.name: x.major for x in outputs}

    @cached_property
    def factors(self) -> frozenset[str]:
        """The ones of ``alpha`` and ``beta`` that it reads."""
        return frozenset(n.name for n in self._nodes() if isinstance(n, Operand)) & {"alpha", "beta"}

    @cached_property
    def functions(self) -> frozenset[str]:
        """Names of the functions and operators that it calls."""
        return frozenset(node.function for node in self._nodes() if isinstance(node, Call))

    @cached_property
    def is_integral(self) -> bool:
        """Whether it gives integers for integer sums and computes nothing else, so that it can compute in int32."""
        return not self.outputs and all(map(_is_integral, self._nodes()))

    @cached_property
    def gated(self) -> bool:
        """Whether it combines pairs of columns, so that D has N / 2 columns."""
        return self.gate_columns > 0

    @cached_property
    def gate_columns(self) -> int:
        """Columns of each run of the gate and of up in a tile (:data:`GATES`); 0 if it pairs no columns."""
        return 0 if self._pairs_rows else self._run_of_gate

    @cached_property
    def gate_rows(self) -> int:
        """Rows of each run of the gate and of up, so that D has M / 2 rows; 0 if it pairs no rows."""
        return self._run_of_gate if self._pairs_rows else 0

    @cached_property
    def gates_halves(self) -> bool:
        """Whether the gate and up are the halves of N."""
        return any(isinstance(node, Value) and node.name.endswith(HALVES) for node in self._nodes())

    @cached_property
    def _run_of_gate(self) -> int:
        return max((GATES.get(node.name, 0) for node in self._nodes() if isinstance(node, Value)), default=0)

    @cached_property
    def _pairs_rows(self) -> bool:
        return any(isinstance(node, Value) and node.name.endswith(".m") for node in self._nodes())

    def shape_of_d(self, m: int, n: int) -> tuple[int, int]:
        """The extents of D for sums (M, N)."""
        return m // 2 if self.gate_rows else m, n // 2 if self.gate_columns else n

    @cached_property
    def scale(self) -> Assignment | None:
        """The scale by which it divides D; None without one."""
        return next((a for a in self.assignments if a.role == SCALE), None)

    @cached_property
    def unit_columns(self) -> int:
        """Columns of B of which N must be a multiple: those of a pair of runs of a gate, or of a block of scales."""
        if self.scale:
            return BLOCK * (2 if self.gated else 1)
        return max(1, 2 * self.gate_columns)

    @cached_property
    def has_transpose(self) -> bool:
        """Whether :func:`transposed` exists: neither are columns scaled in blocks, nor does it pair any but those of
        ``gate8`` and ``up8``."""
        return self.gate_columns != 1 and not self.gates_halves and self.scale is None

    @cached_property
    def reads_c(self) -> bool:
        """Whether it reads C."""
        return Value("c") in self._nodes()

    @cached_property
    def c_is_scaled(self) -> bool:
        """Whether C occurs only as ``beta * c``, so that a kernel need not read it if beta is 0."""
        return self._is_scaled("beta", {Value("c")})

    @cached_property
    def sums_are_scaled(self) -> bool:
        """Whether sums of products occur only as ``alpha * sum``, so that they need not be computed if alpha is 0."""
        return self._is_scaled("alpha", SUMS)

    def _is_scaled(self, factor: str, values: Set[Node]) -> bool:
        """Whether the values occur only in products with ``factor``."""
        by = Operand(factor, "scalar", "f32")
        pairs = [node.arguments for node in self._nodes() if isinstance(node, Call) and node.function == "mul"]
        scaled = sum(by in pair and not values.isdisjoint(pair) for pair in pairs)
        return scaled == sum(node in values for node in self._nodes())

    def _nodes(self) -> list[Node]:
        return [node for assignment in self.assignments for node in walk(assignment.value)]


def fault_of_n(epilogue: Epilogue, n: int, scaled_b: bool = False) -> str:
    """Why an epilogue does not apply to sums of N columns; empty if it does. ``scaled_b``: B has scales of blocks."""
    if scaled_b and epilogue.gates_halves and n % (2 * BLOCK):
        return f"each half of N must have whole blocks of the scales of B, so N must be a multiple of {2 * BLOCK}"
    unit = epilogue.unit_columns
    if n % unit == 0:
        return ""
    if epilogue.scale:
        return f"the epilogue scales blocks of {BLOCK} columns of D, so N must be a multiple of {unit}"
    if unit == 2:
        return "a gated epilogue combines pairs of columns, so N must be even"
    return f"a gated epilogue combines runs of {unit // 2} columns, so N must be a multiple of {unit}"


def fault_of_m(epilogue: Epilogue, m: int) -> str:
    """Why an epilogue does not apply to sums of M rows; empty if it does."""
    rows = epilogue.gate_rows
    if not rows or m % (2 * rows) == 0:
        return ""
    return f"the epilogue combines runs of {rows} rows, so M must be a multiple of {2 * rows}"


def sums_by_name(epilogue: Epilogue, sums: Any) -> dict[str, Any]:
    """The sums (..., N) by the names under which an epilogue reads them: ``acc``, or a gate and up of N / 2 columns.
    Where it pairs rows, sums (..., M, N) give a gate and up of M / 2 rows."""
    if rows := epilogue.gate_rows:
        *batch, m, n = sums.shape
        runs = sums.reshape(*batch, m // (2 * rows), 2, rows, n)
        return {f"{name}8.m": runs[..., i, :, :].reshape(*batch, m // 2, n) for i, name in enumerate(("gate", "up"))}
    columns = epilogue.gate_columns
    if not columns:
        return {"acc": sums}
    *rows, n = sums.shape
    end, run = (HALVES, n // 2) if epilogue.gates_halves else ("8" if columns == 8 else "", columns)
    runs = sums.reshape(*rows, n // (2 * run) if run else 0, 2, run)
    return {f"{name}{end}": runs[..., i, :].reshape(*rows, n // 2) for i, name in enumerate(("gate", "up"))}


_FINENESS: tuple[DTypeName, ...] = ("e4m3", "bf16", "f16", "f32")


def roundings(epilogue: Epilogue, d_dtype: DTypeName) -> dict[str, DTypeName]:
    """By name, the type to which the value of each assignment is eventually rounded.

    It is ``bf16`` or ``f16`` (the finer one, if both apply) if every use of the value is rounded to one of them and
    passes only through functions that do not amplify errors; ``e4m3`` in the same way where blocks are scaled. It is
    ``f32`` otherwise: in reductions, in other functions, and if the value is rounded to 8 bits without such scales.
    """
    dtype_by_name: dict[str, DTypeName] = {}
    quantised = ("d", SCALE) if epilogue.scale else ()

    def want(name: str, dtype: DTypeName) -> None:
        finest = max(_fineness(dtype_by_name.get(name, _FINENESS[0])), _fineness(dtype))
        dtype_by_name[name] = _FINENESS[finest]

    def read(node: Node, dtype: DTypeName) -> None:
        if isinstance(node, Value):
            want(node.name, dtype)
        if isinstance(node, Call):
            for argument in node.arguments:
                read(argument, dtype if FUNCTIONS[node.function].passes_error else "f32")

    for a in reversed(epilogue.assignments):
        if a.role in quantised:
            want(a.name, "e4m3")
        elif a.role != "local":
            stored = d_dtype if a.role == "d" else a.dtype
            want(a.name, "f32" if stored == "e4m3" else stored)
        read(a.value, dtype_by_name[a.name])
    return {a.name: dtype_by_name[a.name] for a in epilogue.assignments}


def _fineness(dtype: DTypeName) -> int:
    """Rank by precision. Other 8-bit types count as f32, so that values are precise before they are quantised."""
    return _FINENESS.index(dtype) if dtype in _FINENESS else len(_FINENESS) - 1


def _is_integral(node: Node) -> bool:
    match node:
        case Number(value):
            return value.is_integer() and abs(value) < 2**31
        case Operand():
            return DTYPES[node.dtype].is_integer
        case Call(name):
            return FUNCTIONS[name].keeps_integers
        case _:
            return True


def walk(node: Node) -> Iterator[Node]:
    """A node and all its descendants, from left to right."""
    yield node
    if isinstance(node, Call):
        for argument in node.arguments:
            yield from walk(argument)


def expression(node: Node) -> str:
    """The canonical text of a node: single spaces, and only the necessary parentheses."""
    match node:
        case Number(value):
            return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
        case Operand(name, kind, dtype, major):
            return _reference(name, kind, dtype, major)
        case Value(name):
            return name
        case Call(name, arguments):
            function = FUNCTIONS[name]
            if not function.symbol:
                return f"{name}({', '.join(map(expression, arguments))})"
            if len(arguments) == 1:
                return ("not " if name == "not" else "-") + _within(arguments[0], function.precedence)
            # Comparisons do not chain; the other operators are left-associative.
            left_precedence = function.precedence + (function.precedence == 4)
            first, second = _within(arguments[0], left_precedence), _within(arguments[1], function.precedence + 1)
            return f"{first} {function.symbol} {second}"


def _within(node: Node, precedence: int) -> str:
    """The text of a node as an operand of an operator, in parentheses if necessary."""
    text = expression(node)
    binding = FUNCTIONS[node.function].precedence if isinstance(node, Call) else 0
    return f"({text})" if 0 < binding < precedence else text


def _reference(name: str, kind: Kind, dtype: DTypeName, major: Major) -> str:
    dotted = f"{name}{'' if dtype == OPERAND_DTYPES[0] else '.' + dtype}{'' if major == 'any' else '.' + major}"
    return f"{dotted}{INDEX[kind]}"


Argument = TypeVar("Argument", Operand, Assignment)


def with_dtypes(epilogue: Epilogue, dtypes: Mapping[str, DTypeName]) -> Epilogue:
    """The epilogue with other element types of some operands and outputs."""

    def change(x: Argument) -> Argument:
        return x._replace(dtype=dtypes.get(x.name, x.dtype))

    return _changed(epilogue, change, change)


def with_majors(epilogue: Epilogue, majors: Mapping[str, Major]) -> Epilogue:
    """The epilogue with other majors of its matrices; ``any`` for matrices that are not named."""

    def change(x: Argument) -> Argument:
        return x._replace(major=majors.get(x.name, "any"))

    return _changed(epilogue, change, change)


def with_kinds(epilogue: Epilogue, kinds: Mapping[str, Kind]) -> Epilogue:
    """The epilogue with other kinds of some operands."""
    return _changed(epilogue, lambda x: x._replace(kind=kinds.get(x.name, x.kind)), lambda x: x)


def with_operands(epilogue: Epilogue, names: Mapping[str, str]) -> Epilogue:
    """The epilogue with other names of some operands, ``alpha`` and ``beta`` included."""
    return _changed(epilogue, lambda x: x._replace(name=names.get(x.name, x.name)), lambda x: x)


def scaled(epilogue: Epilogue, factors: Sequence[Operand]) -> Epilogue:
    """The epilogue with each sum of products multiplied by ``factors``, after a factor that it already has."""

    def changed(node: Node) -> Node:
        if node in SUMS or (isinstance(node, Call) and node.function == "mul" and _is_simple(node.arguments)):
            for factor in factors:
                node = Call("mul", (node, factor))
            return node
        return node._replace(arguments=tuple(map(changed, node.arguments))) if isinstance(node, Call) else node

    return Epilogue(tuple(a._replace(value=changed(a.value)) for a in epilogue.assignments))


def _is_simple(arguments: tuple[Node, ...]) -> bool:
    """Whether a product has one sum of products and a number or operand."""
    return sum(x in SUMS for x in arguments) == 1 and any(isinstance(x, Number | Operand) for x in arguments)


def transposed(epilogue: Epilogue) -> Epilogue:
    """The epilogue of the problem with M and N swapped: rows become columns. ValueError if it has a scale or pairs each
    column with the next."""
    if epilogue.gate_columns == 1:
        raise ValueError("an epilogue with gate and up cannot be transposed; use gate8 and up8")
    if epilogue.scale:
        raise ValueError("an epilogue that scales blocks of columns cannot be transposed")
    kinds: dict[Kind, Kind] = {"row": "column", "column": "row"}
    majors: dict[Major, Major] = {"n": "m", "m": "n"}

    def change(x: Argument) -> Argument:
        return x._replace(kind=kinds.get(x.kind, x.kind), major=majors.get(x.major, x.major))

    return _changed(epilogue, change, change, _TRANSPOSED_GATES)


def _changed(
    epilogue: Epilogue,
    operand: Callable[[Operand], Operand],
    output: Callable[[Assignment], Assignment],
    values: Mapping[str, str] = MappingProxyType({}),
) -> Epilogue:
    """The epilogue with ``operand`` applied to its operands, ``output`` to its outputs, and other names of values."""

    def changed(node: Node) -> Node:
        if isinstance(node, Operand):
            return operand(node)
        if isinstance(node, Value):
            return Value(values.get(node.name, node.name))
        return node._replace(arguments=tuple(map(changed, node.arguments))) if isinstance(node, Call) else node

    changed_values = (a._replace(value=changed(a.value)) for a in epilogue.assignments)
    return Epilogue(tuple(output(a) if a.is_output else a for a in changed_values))
