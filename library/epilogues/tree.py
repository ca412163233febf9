"""The typed tree of an epilogue, its one canonical text, and the problem it becomes when M and N are swapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeVar

from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.function_table import FUNCTIONS

Kind = Literal["scalar", "row", "column", "batch", "matrix"]
"""What an operand or output has one value for: the problem, a row, a column, a matrix of the batch, an element."""

INDEX: Mapping[Kind, str] = {"scalar": "", "row": "[m]", "column": "[n]", "batch": "[batch]", "matrix": "[m, n]"}
"""How each kind is written."""

Major = Literal["any", "n", "m"]
"""How an epilogue's matrices are read or written: element by element, at any strides; or by TMA, like C and D, in which
case N or M is contiguous and all else of the tensor a multiple of 16 bytes."""

OUTPUT_DTYPES: tuple[DTypeName, ...] = ("f32", "bf16", "f16")
"""Element types of outputs; the first is what a name without one has."""

OPERAND_DTYPES: tuple[DTypeName, ...] = (*OUTPUT_DTYPES, "ue8m0")
"""Element types of operands. TMA moves matrices of those that outputs have."""


REDUCTIONS = ("max", "min", "sum")
"""What an output of fewer values than D has is made with."""


@dataclass(frozen=True, slots=True)
class Number:
    """A constant."""

    value: float


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor or scalar that the caller passes; ``alpha`` and ``beta`` among them."""

    name: str
    kind: Kind
    dtype: DTypeName
    major: Major = "any"
    """Of a matrix."""


@dataclass(frozen=True, slots=True)
class Value:
    """``acc``, ``c``, ``gate``, ``up``, or what an earlier assignment has computed."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function or operator applied."""

    function: str
    arguments: tuple[Node, ...]


Node = Number | Operand | Value | Call

SUMS: Set[Node] = frozenset((Value("acc"), Value("gate"), Value("up")))
"""The sums of products."""

Role = Literal["d", "local", "store", "max", "min", "sum"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """One statement."""

    name: str
    role: Role
    """``d``; a local value; an output matrix; or the reduction that an output is made with."""
    kind: Kind
    """What an output has one value for; ``matrix`` for D and locals."""
    dtype: DTypeName
    """Element type of an output; f32 for D, whose type the config says, and locals."""
    value: Node
    major: Major = "any"
    """Of an output matrix."""

    @property
    def is_reduction(self) -> bool:
        """Whether it is made of many elements."""
        return self.role in REDUCTIONS

    @property
    def is_output(self) -> bool:
        """Whether the caller passes a tensor that it is written to; D aside."""
        return self.role not in ("d", "local")

    def __str__(self) -> str:
        target = _reference(self.name, self.kind, self.dtype, self.major) if self.is_output else self.name
        value = f"{self.role}({expression(self.value)})" if self.is_reduction else expression(self.value)
        return f"{target} = {value}"


@dataclass(frozen=True)
class Epilogue:
    """An epilogue that has been checked: names exist, types agree, D is assigned once. What follows from its
    assignments is worked out once, as every call asks."""

    assignments: tuple[Assignment, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.assignments))

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """What the caller passes, less ``alpha`` and ``beta``, in the order of first use."""
        named = {node.name: node for node in self._nodes() if isinstance(node, Operand)}
        return tuple(operand for operand in named.values() if operand.name not in ("alpha", "beta"))

    @cached_property
    def outputs(self) -> tuple[Assignment, ...]:
        """What is written beside D."""
        return tuple(assignment for assignment in self.assignments if assignment.is_output)

    @cached_property
    def arguments(self) -> tuple[Operand | Assignment, ...]:
        """Operands, then outputs: whatever the caller gives by name."""
        return (*self.operands, *self.outputs)

    @cached_property
    def staged(self) -> tuple[tuple[Operand, ...], tuple[Assignment, ...]]:
        """Matrices that pass through shared memory: operands, outputs."""
        inputs = tuple(operand for operand in self.operands if operand.major != "any")
        return inputs, tuple(output for output in self.outputs if output.major != "any")

    @cached_property
    def majors(self) -> dict[str, Major]:
        """Majors of these matrices by name, operands first."""
        inputs, outputs = self.staged
        return {x.name: x.major for x in inputs} | {x.name: x.major for x in outputs}

    @cached_property
    def factors(self) -> frozenset[str]:
        """Which of ``alpha`` and ``beta`` are read."""
        return frozenset(n.name for n in self._nodes() if isinstance(n, Operand)) & {"alpha", "beta"}

    @cached_property
    def functions(self) -> frozenset[str]:
        """Names of the functions and operators that it applies."""
        return frozenset(node.function for node in self._nodes() if isinstance(node, Call))

    @cached_property
    def gated(self) -> bool:
        """Whether pairs of neighbouring columns, ``gate`` and ``up``, become one, so that D has N / 2 columns."""
        return bool({Value("gate"), Value("up")} & set(self._nodes()))

    @cached_property
    def reads_c(self) -> bool:
        """Whether C is read."""
        return Value("c") in self._nodes()

    @cached_property
    def c_is_scaled(self) -> bool:
        """Whether C stands nowhere but in ``beta * c``, so that it need not be read where beta is 0."""
        return self._is_scaled("beta", {Value("c")})

    @cached_property
    def sums_are_scaled(self) -> bool:
        """Whether sums of products stand nowhere but beside ``alpha *``, so that none need be made where it is 0."""
        return self._is_scaled("alpha", SUMS)

    def _is_scaled(self, factor: str, values: Set[Node]) -> bool:
        """Whether some values stand nowhere but in products with ``alpha`` or ``beta``."""
        by = Operand(factor, "scalar", "f32")
        pairs = [node.arguments for node in self._nodes() if isinstance(node, Call) and node.function == "mul"]
        scaled = sum(by in pair and not values.isdisjoint(pair) for pair in pairs)
        return scaled == sum(node in values for node in self._nodes())

    def _nodes(self) -> list[Node]:
        return [node for assignment in self.assignments for node in walk(assignment.value)]


_FINENESS = ("bf16", "f16", "f32")


def roundings(epilogue: Epilogue, d_dtype: DTypeName) -> dict[str, DTypeName]:
    """What the value of each assignment is on its way to, by name.

    ``bf16`` or ``f16`` where all that is made of it is rounded to one of them (the finer, where to both) after nothing
    but functions that pass errors on; ``f32`` else, as in reductions, under other functions, and where it is rounded
    to 8 bits.
    """
    dtype_by_name: dict[str, DTypeName] = {}

    def want(name: str, dtype: DTypeName) -> None:
        finest = max(_fineness(dtype_by_name.get(name, "bf16")), _fineness(dtype))
        dtype_by_name[name] = _FINENESS[finest]  # type: ignore[assignment]

    def read(node: Node, dtype: DTypeName) -> None:
        if isinstance(node, Value):
            want(node.name, dtype)
        if isinstance(node, Call):
            for argument in node.arguments:
                read(argument, dtype if FUNCTIONS[node.function].passes_error else "f32")

    for a in reversed(epilogue.assignments):
        if a.role != "local":
            want(a.name, d_dtype if a.role == "d" else a.dtype)
        read(a.value, dtype_by_name[a.name])
    return {a.name: dtype_by_name[a.name] for a in epilogue.assignments}


def _fineness(dtype: DTypeName) -> int:
    """Place in the order of fineness. Types of 8 bits count as f32: what is quantised is made as exact as it can be."""
    return _FINENESS.index(dtype) if dtype in _FINENESS else len(_FINENESS) - 1


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it, from left to right."""
    yield node
    if isinstance(node, Call):
        for argument in node.arguments:
            yield from walk(argument)


def expression(node: Node) -> str:
    """The canonical text of a node: single spaces, no parentheses but those that change the meaning."""
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
            # Comparisons do not chain; the others are left-associative.
            left = function.precedence + (function.precedence == 4)
            first, second = _within(arguments[0], left), _within(arguments[1], function.precedence + 1)
            return f"{first} {function.symbol} {second}"


def _within(node: Node, precedence: int) -> str:
    """A node as an operand of an operator."""
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
        return replace(x, dtype=dtypes.get(x.name, x.dtype))

    return _changed(epilogue, change, change)


def with_majors(epilogue: Epilogue, majors: Mapping[str, Major]) -> Epilogue:
    """The epilogue with other majors of its matrices; ``any`` for those that are not named."""

    def change(x: Argument) -> Argument:
        return replace(x, major=majors.get(x.name, "any"))

    return _changed(epilogue, change, change)


def with_kinds(epilogue: Epilogue, kinds: Mapping[str, Kind]) -> Epilogue:
    """The epilogue with other kinds of some operands."""
    return _changed(epilogue, lambda x: replace(x, kind=kinds.get(x.name, x.kind)), lambda x: x)


def scaled(epilogue: Epilogue, factors: Sequence[Operand]) -> Epilogue:
    """The epilogue with each sum of products multiplied by some operands, behind a factor that it has."""

    def changed(node: Node) -> Node:
        if node in SUMS or (isinstance(node, Call) and node.function == "mul" and _is_simple(node.arguments)):
            for factor in factors:
                node = Call("mul", (node, factor))
            return node
        return replace(node, arguments=tuple(map(changed, node.arguments))) if isinstance(node, Call) else node

    return Epilogue(tuple(replace(a, value=changed(a.value)) for a in epilogue.assignments))


def _is_simple(arguments: tuple[Node, ...]) -> bool:
    """Whether a product is of one sum and a number or operand."""
    return sum(x in SUMS for x in arguments) == 1 and any(isinstance(x, Number | Operand) for x in arguments)


def transposed(epilogue: Epilogue) -> Epilogue:
    """The epilogue of the problem with M and N swapped: rows become columns. ValueError for a gated one."""
    if epilogue.gated:
        raise ValueError("a gated epilogue pairs columns, which a transposed problem has as rows")
    kinds: dict[Kind, Kind] = {"row": "column", "column": "row"}
    majors: dict[Major, Major] = {"n": "m", "m": "n"}

    def change(x: Argument) -> Argument:
        return replace(x, kind=kinds.get(x.kind, x.kind), major=majors.get(x.major, x.major))

    return _changed(epilogue, change, change)


def _changed(
    epilogue: Epilogue, operand: Callable[[Operand], Operand], output: Callable[[Assignment], Assignment]
) -> Epilogue:
    """The epilogue with its operands and outputs changed."""

    def changed(node: Node) -> Node:
        if isinstance(node, Operand):
            return operand(node)
        return replace(node, arguments=tuple(map(changed, node.arguments))) if isinstance(node, Call) else node

    changed_values = (replace(a, value=changed(a.value)) for a in epilogue.assignments)
    return Epilogue(tuple(output(a) if a.is_output else a for a in changed_values))
