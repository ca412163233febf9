"""The parser of epilogues. It uses Python's grammar through ``ast``, never ``eval``, and checks names and types."""

from __future__ import annotations

import ast
import math
import re
import struct
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from gemmill.library.dtypes import MAX_FLOAT32, DTypeName
from gemmill.library.epilogues.function_table import FUNCTIONS, Type
from gemmill.library.epilogues.tree import (
    BLOCK,
    BLOCK_SCALE_DTYPES,
    GATES,
    HALVES,
    OPERAND_DTYPES,
    OUTPUT_DTYPES,
    REDUCTIONS,
    SCALE,
    Assignment,
    Call,
    Epilogue,
    Kind,
    Major,
    Node,
    Number,
    Operand,
    Role,
    Value,
    expression,
    walk,
)
from gemmill.library.errors import ExpressionError
from gemmill.library.wording import one_of, suggest

MAX_NODES, MAX_DEPTH = 512, 64
"""Most operators, functions and names of an epilogue, and most levels of nesting."""
RESERVED = frozenset(
    (
        *("a", "b", "c", "d", "m", "n", "k", "batch", "acc", *GATES, "alpha", "beta", "out", "inf", "nan"),
        "self",
        *(
            "out_dtype",
            "accumulator",
            "stream",
            "registry",
            "kernel",
            "epilogue",
            "a_scale",
            "b_scale",
            "a_zero",
            "b_zero",
            "a_dtype",
            "b_dtype",
            "addresses",
        ),
        *(
            "promote",
            "tf32",
            "precision",
            "fast_accumulation",
            "symmetric",
            "sm_count",
            "slices",
            "bits",
            "batch_invariant",
            "autotune",
            "quick",
            "objective",
            "offsets",
            "counts",
            "rows",
            "expected_rows",
            "batching",
            "groups",
            "deterministic",
            "explain",
            "workspace",
        ),
    )
)
"""Names that operands (except :data:`SCALES`), local values and outputs cannot have, because they have a meaning in
epilogues or are arguments of ``matmul``."""

_KINDS: Mapping[tuple[str, ...], Kind] = MappingProxyType(
    {
        ("m",): "row",
        ("n",): "column",
        ("batch",): "batch",
        ("m", "n"): "matrix",
        ("m", f"n/{BLOCK}"): "block",
    }
)
_SYMBOLS: Mapping[type[ast.AST], str] = MappingProxyType(
    {
        ast.Add: "+",
        ast.Sub: "-",
        ast.Mult: "*",
        ast.Div: "/",
        ast.And: "and",
        ast.Or: "or",
        ast.Lt: "<",
        ast.LtE: "<=",
        ast.Gt: ">",
        ast.GtE: ">=",
        ast.Eq: "==",
        ast.NotEq: "!=",
    }
)
_OPERATORS = {f.symbol: name for name, f in FUNCTIONS.items() if f.symbol and len(f.takes) == 2}
_BINARY = {kind: _OPERATORS[symbol] for kind, symbol in _SYMBOLS.items()}
_MAJORS: Mapping[str, Major] = MappingProxyType({"n": "n", "m": "m"})
_NAME = re.compile("[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
SCALES = ("a_scale", "b_scale")
"""The scales of A and B, both as arguments of ``matmul`` and as operands of an expression."""
_FACTORS = ("alpha", "beta")
SUMS = ("acc", *GATES)
"""The sums of products: ``acc`` of an element; ``gate`` and ``up`` of an even column and the odd column after it;
``gate8`` and ``up8`` of a column and the one eight columns after it; ``gate_half`` and ``up_half``
of a column and the one N / 2 after it; ``gate8.m`` and ``up8.m`` of a row and the one eight rows after it."""
_SUMS_OF = {
    "acc": "acc",
    **{f"{name}{run}": f"gate{run} or up{run}" for run in ("", "8", HALVES, "8.m") for name in ("gate", "up")},
}
"""The names of the sums that go together, in messages."""
_EXAMPLE = f"`h = silu(gate) * up; s[m, n/{BLOCK}] = scale(h); d = h / s`"
GIVEN = (*SUMS, "c", *_FACTORS)
"""Names with a fixed meaning in every epilogue. Callers do not pass them as operands."""


def read(text: str) -> Epilogue:
    """Parse the statements of an epilogue.

    Raises:
        ExpressionError: the text is not an epilogue; the column points at the error.
        RecursionError: the text is nested too deeply.
    """
    strange = next((i for i, x in enumerate(text) if not ((x.isascii() and x.isprintable()) or x == "\n")), None)
    if strange is not None:
        raise ExpressionError(f"the character {text[strange]!r} is not allowed in an epilogue", strange)
    if "#" in text:
        raise ExpressionError("comments are not allowed in an epilogue", text.index("#"))
    statements = [(_statement(source, start), source, start) for start, source in _split(text)]
    if not statements:
        raise ExpressionError("the epilogue is empty; it must assign to d, for example `d = acc`")
    read = [{node.id for node in ast.walk(s.value) if isinstance(node, ast.Name)} for s, *_ in statements]
    parser = _Parser()
    for index, (statement, source, start) in enumerate(statements):
        later = frozenset[str]().union(*read[index + 1 :])
        parser.source, parser.start = source, start
        parser.assignment(statement, later)
    if not any(a.role == "d" for a in parser.assignments):
        raise ExpressionError("d is not assigned; add an assignment such as `d = acc`", len(text.rstrip()))
    if not parser.read & {*SUMS}:
        near = next(filter(None, (suggest(name, SUMS) for name in parser.operands)), "")
        raise ExpressionError(f"the epilogue must read the sums of products: acc, or gate and up{near}")
    epilogue = Epilogue(tuple(parser.assignments))
    if epilogue.scale and epilogue.gate_rows:
        raise ExpressionError("an epilogue that scales blocks of columns cannot pair rows; use gate8 and up8")
    return epilogue


def _split(text: str) -> Iterator[tuple[int, str]]:
    """The statements and their start columns. Semicolons, and line ends outside brackets, separate statements."""
    start, depth = 0, 0
    for index, character in enumerate(f"{text};"):
        depth += (character in "([{") - (character in ")]}")
        if character == ";" or (character == "\n" and depth <= 0):
            statement = text[start:index]
            if statement.strip():
                yield start + len(statement) - len(statement.lstrip()), statement.strip().replace("\n", " ")
            start, depth = index + 1, 0


def _is_function(name: str) -> bool:
    """Whether an epilogue can call a name. It cannot call the internal names of operators."""
    return name in REDUCTIONS or (name in FUNCTIONS and not FUNCTIONS[name].symbol)


def _statement(source: str, start: int) -> ast.Assign:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            (statement,) = ast.parse(source).body
    except SyntaxError as error:
        raise ExpressionError(error.msg, start + (error.offset or 1) - 1) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"cannot be read: {error}", start) from None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        raise ExpressionError(f"{source!r} is not an assignment; write for example `d = acc`", start)
    return statement


def _as_float32(value: float) -> float:
    """A number rounded to float32; infinite if it is too large."""
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", float(value)))
    except OverflowError:
        return math.inf
    return float(rounded)


class _Parser:
    """Converts Python's syntax tree to the tree of an epilogue, statement by statement."""

    def __init__(self) -> None:
        self.source, self.start = "", 0
        self.assignments: list[Assignment] = []
        self.operands: dict[str, Operand] = {}
        self.read: set[str] = set()
        self.nodes = self.depth = 0

    def error(self, node: ast.AST, message: str) -> ExpressionError:
        return ExpressionError(message, self.start + getattr(node, "col_offset", 0))

    def assignment(self, statement: ast.Assign, later: frozenset[str]) -> None:
        target = statement.targets[0]
        name, dtype, kind, major = self.reference(target)
        if name == "d":
            if dtype or kind or major:
                raise self.error(target, "write d without an index or type: it has the type and shape of D")
        elif name in RESERVED or _is_function(name):
            raise self.error(target, f"{name!r} is a reserved name; choose another")
        if any(a.name == name for a in self.assignments):
            raise self.error(target, f"{name!r} is assigned twice")
        if name in self.operands:
            raise self.error(target, f"{name!r} is read before it is assigned; move the assignment to the front")
        value, role = statement.value, "local"
        match value:
            case ast.Call(ast.Name(reduction), [argument], []) if reduction in REDUCTIONS and (
                reduction == "sum" or len(value.args) == 1
            ):
                value, role = argument, reduction
            case ast.Call(ast.Name(function), [argument], []) if function == SCALE:
                value, role = argument, SCALE
            case _ if name == "d":
                role = "d"
            case _ if dtype or kind or major or name not in later:
                role = "store"
        if role in REDUCTIONS:
            self.check_reduction(statement, name, dtype, kind, later)
            kind = kind or "scalar"
            if major:
                raise self.error(target, f"{name} is a reduction; only a matrix can be {major}-major")
        elif role == SCALE:
            self.check_scale(statement, name, dtype, kind, major)
        elif kind == "block":
            raise self.error(target, f"{name}[m, n/{BLOCK}] must be a scale: {_EXAMPLE}")
        elif kind not in (None, "matrix"):
            raise self.error(target, f"an output smaller than D must be a reduction, such as `{name}[m] = sum(acc)`")
        if role != SCALE and dtype not in (None, *OUTPUT_DTYPES):
            raise self.error(target, f"{name} is {dtype}; the type of an output must be {one_of(OUTPUT_DTYPES)}")
        tree = self.number(value)
        self.check_beside_scale(value, name, tree)
        kind, dtype = kind or "matrix", dtype or OPERAND_DTYPES[0]
        self.assignments.append(Assignment(name, _role(role), kind, dtype, tree, major or "any"))

    def check_reduction(
        self, statement: ast.Assign, name: str, dtype: DTypeName | None, kind: Kind | None, later: frozenset[str]
    ) -> None:
        if name == "d":
            raise self.error(statement.value, "d must not be a reduction; assign the reduction to another name")
        if dtype not in (None, "f32"):
            raise self.error(statement.targets[0], f"{name} is {dtype}; the type of a reduction must be f32")
        if kind in ("matrix", "block"):
            raise self.error(
                statement.targets[0], f"{name} is a reduction; its index must be [m], [n] or [batch], or omitted"
            )
        if name in later:
            raise self.error(statement.targets[0], f"{name} is a reduction; the epilogue cannot read its result")

    def check_scale(
        self, statement: ast.Assign, name: str, dtype: DTypeName | None, kind: Kind | None, major: Major | None
    ) -> None:
        target, names = statement.targets[0], {a.name for a in self.assignments}
        if name == "d":
            raise self.error(statement.value, f"d must not be a scale; assign the scale to another name: {_EXAMPLE}")
        if kind != "block" or major:
            raise self.error(target, f"{name} is a scale; its index must be [m, n/{BLOCK}], without a major")
        if dtype not in (None, *BLOCK_SCALE_DTYPES):
            raise self.error(target, f"{name} is {dtype}; the type of a scale must be {one_of(BLOCK_SCALE_DTYPES)}")
        if other := self.scale:
            raise self.error(target, f"{name} and {other.name} are scales; an epilogue can have only one")
        if "d" in names:
            raise self.error(target, f"d is assigned before the scale {name}; it must come after: {_EXAMPLE}")
        match statement.value:
            case ast.Call(_, [ast.Name(argument)]) if argument in self.names_of_sums():
                return
        raise self.error(statement.value, f"scale takes a name that is assigned the sums or their function: {_EXAMPLE}")

    def check_beside_scale(self, at: ast.expr, name: str, tree: Node) -> None:
        """Beside a scale, D is a function of it, its argument and values that no element differs in."""
        if (scale := self.scale) is None:
            return
        argument, nodes = scale.value, [*walk(tree)]
        if name != "d":
            if Value(scale.name) in nodes:
                raise self.error(at, f"{name} reads the scale {scale.name}; only d can read it")
            if Value("d") in nodes:
                raise self.error(at, f"{name} reads d, which is divided by the scale {scale.name}; it must not")
        else:
            for node in nodes:
                is_element = isinstance(node, Operand) and node.kind not in ("scalar", "batch")
                if is_element or (isinstance(node, Value) and node not in (argument, Value(scale.name))):
                    raise self.error(
                        at,
                        f"beside a scale, d can read only {expression(argument)}, {scale.name} and scalars: {_EXAMPLE}",
                    )

    @property
    def scale(self) -> Assignment | None:
        """The scale that is assigned so far."""
        return next((a for a in self.assignments if a.role == SCALE), None)

    def names_of_sums(self) -> set[str]:
        """The names of values that the sums of products determine."""
        names: set[str] = set()
        for a in self.assignments:
            if any(isinstance(x, Value) and x.name in (*SUMS, *names) for x in walk(a.value)):
                names.add(a.name)
        return names

    def reference(self, node: ast.expr) -> tuple[str, DTypeName | None, Kind | None, Major | None]:
        """Name, element type, kind and major of ``name.dtype.major[index]``."""
        kind: Kind | None = None
        dtype: DTypeName | None = None
        major: Major | None = None
        if isinstance(node, ast.Subscript):
            index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            names = tuple(ast.unparse(part).replace(" ", "") for part in index)
            if names not in _KINDS:
                raise self.error(
                    node.slice,
                    f"the index is [{', '.join(map(ast.unparse, index))}]; it must be [m], [n], [m, n] or [batch], or "
                    f"of a scale [m, n/{BLOCK}]",
                )
            kind, node = _KINDS[names], node.value
        if isinstance(node, ast.Attribute) and node.attr in _MAJORS:
            major, node = _MAJORS[node.attr], node.value
        if isinstance(node, ast.Attribute):
            if node.attr not in OPERAND_DTYPES:
                raise self.error(node, f"the type is {node.attr!r}; it must be {one_of(OPERAND_DTYPES)}")
            dtype, node = node.attr, node.value
        if not isinstance(node, ast.Name):
            raise self.error(node, f"{ast.unparse(node)!r} is not a name")
        if not _NAME.fullmatch(node.id):
            raise self.error(
                node, f"the name {node.id!r} must consist of lower-case letters, digits and single underscores"
            )
        return node.id, dtype, kind, major

    def number(self, node: ast.expr) -> Node:
        return self.typed(node, "number")

    def typed(self, node: ast.expr, expected: Type) -> Node:
        tree = self.node(node)
        kind = FUNCTIONS[tree.function].gives if isinstance(tree, Call) else "number"
        if kind != expected:
            has, needs = ("a condition", "a number") if expected == "number" else ("a number", "a condition")
            raise self.error(node, f"{ast.unparse(node)!r} is {has}; expected {needs}. Use where(condition, x, y)")
        return tree

    def is_zero(self, node: ast.Constant) -> bool:
        """Whether the text of a number is 0."""
        mantissa, *_ = re.split("[eE]", ast.get_source_segment(self.source, node) or "")
        return not re.search("[1-9]", mantissa)

    def node(self, node: ast.expr) -> Node:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self.error(node, f"the epilogue has more than {MAX_NODES} operators, functions and names")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(node, f"operators and functions are nested more than {MAX_DEPTH} deep")
        tree = self.tree(node)
        self.depth -= 1
        return tree

    def tree(self, node: ast.expr) -> Node:
        match node:
            case ast.Constant(int() | float() as value) if not isinstance(value, bool):
                rounded = _as_float32(value)
                if math.isinf(rounded):
                    raise self.error(
                        node, f"the number exceeds float32; its magnitude must be at most {MAX_FLOAT32:.4g}"
                    )
                if rounded == 0 and not self.is_zero(node):
                    raise self.error(
                        node, "the number is too small for float32; its magnitude must be 0 or at least 1.4e-45"
                    )
                return Number(float(value))
            case ast.UnaryOp(ast.USub(), operand):
                tree = self.number(operand)
                return Number(0.0 - tree.value) if isinstance(tree, Number) else Call("neg", (tree,))
            case ast.UnaryOp(ast.UAdd(), operand):
                return self.number(operand)
            case ast.UnaryOp(ast.Not(), operand):
                return Call("not", (self.typed(operand, "condition"),))
            case ast.BinOp(left, operator, right) if type(operator) in _BINARY:
                return Call(_BINARY[type(operator)], (self.number(left), self.number(right)))
            case ast.BoolOp(operator, [first, *others]):
                tree = self.typed(first, "condition")
                for other in others:
                    tree = Call(_BINARY[type(operator)], (tree, self.typed(other, "condition")))
                return tree
            case ast.Compare(left, [comparison], [right]) if type(comparison) in _BINARY:
                return Call(_BINARY[type(comparison)], (self.number(left), self.number(right)))
            case ast.Compare(_, [_, _, *_]):
                raise self.error(node, "chained comparisons are not supported; join comparisons with `and`")
            case ast.Call(ast.Name(name), arguments, []):
                return self.call(node, name, arguments)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self.value(node)
            case ast.BinOp(_, ast.Pow(), _):
                raise self.error(node, "the power operator is not supported; use x * x, sqrt(x) or exp(y * log(x))")
            case ast.IfExp():
                raise self.error(node, "`if` is not supported; use where(condition, x, y)")
        raise self.error(
            node, f"{ast.unparse(node)!r} is not allowed; use numbers, names, operators and function calls"
        )

    def call(self, node: ast.Call, name: str, arguments: list[ast.expr]) -> Node:
        function = FUNCTIONS.get(name)
        if function is None or function.symbol:
            names = [*(name for name, f in FUNCTIONS.items() if not f.symbol), "sum", SCALE]
            if name == SCALE:
                raise self.error(node, f"scale takes a name and must be the whole right side: {_EXAMPLE}")
            if name == "sum":
                raise self.error(
                    node, "sum must be the whole right side of an assignment, for example `total = sum(acc)`"
                )
            raise self.error(
                node,
                f"unknown function {name!r}{suggest(name, names) or '; functions: ' + ', '.join(names)}",
            )
        expected = function.takes
        if name in REDUCTIONS and len(arguments) == 1:
            raise self.error(
                node,
                f"{name} of one argument is a reduction; it must be the whole right side of an assignment, for example "
                f"`top = {name}(acc)`",
            )
        if len(arguments) < len(expected) or (len(arguments) > len(expected) and not function.is_variadic):
            count = f"{len(expected)}{' or more' if function.is_variadic else ''}"
            raise self.error(node, f"{name} takes {count} argument{'s'[: count != '1']}, not {len(arguments)}")
        types = expected + expected[-1:] * (len(arguments) - len(expected))
        return Call(name, tuple(self.typed(a, kind) for a, kind in zip(arguments, types, strict=True)))

    def value(self, node: ast.Name | ast.Attribute | ast.Subscript) -> Node:
        name, dtype, kind, major = self.reference(node)
        assigned = next((a for a in self.assignments if a.name == name), None)
        if name in (*SUMS, "c") or assigned is not None:
            if major and f"{name}.{major}" in GATES:
                name, major = f"{name}.{major}", None
            if dtype or kind or major:
                raise self.error(node, f"{name!r} is the value of an element; write it without an index or type")
            self.read.add(name)
            read = [*dict.fromkeys(_SUMS_OF[name] for name in SUMS if name in self.read)]
            if len(read) > 1:
                raise self.error(node, f"an epilogue cannot read both {' and '.join(read)}")
            return Value(name)
        if name in _FACTORS and (dtype or kind or major):
            raise self.error(node, f"{name!r} is a scalar that the caller passes; write it without an index or type")
        if name == "d":
            raise self.error(node, "d is read before it is assigned")
        if name in ("m", "n", "batch"):
            raise self.error(node, f"{name!r} is an index; use it in brackets, for example bias[n]")
        if _is_function(name):
            raise self.error(node, f"{name!r} is a function; call it, for example {name}(acc)")
        if name in RESERVED and name not in (*_FACTORS, *SCALES):
            raise self.error(node, f"{name!r} is a reserved name and cannot name an operand; choose another")
        if kind == "block":
            raise self.error(node, f"{name!r} has the index of a scale, which an epilogue can only compute: {_EXAMPLE}")
        if major and dtype not in (None, *OUTPUT_DTYPES):
            raise self.error(node, f"{name!r} is {dtype}; TMA does not support it here, so omit the major")
        if major and kind != "matrix":
            raise self.error(node, f"{name!r} has no index [m, n]; only a matrix can be {major}-major")
        operand = Operand(name, kind or "scalar", dtype or OPERAND_DTYPES[0], major or "any")
        if self.operands.setdefault(name, operand) != operand:
            raise self.error(
                node, f"{name!r} has another index, type or major earlier; use the same one in every place"
            )
        return operand


def _role(role: str) -> Role:
    return role  # type: ignore[return-value]  # assignment() makes no others
