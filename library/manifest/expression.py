"""The ``where`` language: comparisons and integer arithmetic over field names in Python's syntax, without ``eval``.

``tile.m * tile.n <= 128 * 256 and schedule == 'pingpong'`` · ``cluster.m in [1, 2]`` · ``c.dtype == d.dtype``
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from gemmill.library.config.domains import OPEN, WORDS, meant
from gemmill.library.config.field_table import FORMER
from gemmill.library.config.fields import FIELD_NAMES, READERS, Value
from gemmill.library.config.model import GemmConfig
from gemmill.library.epilogues.parse import canonical
from gemmill.library.errors import ExpressionError
from gemmill.library.manifest.renamed import warn
from gemmill.library.wording import one_of, suggest

MAX_CHARACTERS = 10_000
"""Most characters of a filter."""
Type = Literal["int", "str", "bool"]

_COMPARE: Mapping[type[ast.cmpop], Callable[[Value, Value], bool]] = MappingProxyType(
    {
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
    }
)
_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
    }
)


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked filter: names exist, types agree, and fields are compared with values that they can have."""

    text: str
    """The filter as written."""
    fields: tuple[str, ...]
    """The fields that it reads. After a division by zero, ``check`` also reads those of earlier operands of ``and``."""
    check: Callable[[GemmConfig], bool]
    """Whether a config passes. Raises ExpressionError if it divides by zero and all earlier operands of ``and``
    hold."""


def parse(text: str) -> tuple[Expression, ...]:
    """The filters of a ``where``: one for each operand of its outermost ``and``.

    Raises:
        ExpressionError: the text is not a filter; the column points at the error.
    """
    if not text.strip():
        raise ExpressionError("the filter is empty")
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(f"the filter has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}")
    if "#" in text:
        raise ExpressionError("comments are not allowed in a filter", text.index("#"))
    if "\0" in text:  # versions of Python raise different errors
        raise ExpressionError("null bytes are not allowed in a filter", text.index("\0"))
    offset = len(text) - len(text.lstrip())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            body = ast.parse(text.strip().replace("\n", " "), mode="eval").body
        terms: list[Expression] = []
        for term in body.values if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And) else [body]:
            expression = _compile(text, term, offset)
            terms.append(replace(expression, check=guarded(expression.check, [earlier.check for earlier in terms])))
        return tuple(terms)
    except SyntaxError as error:
        raise ExpressionError(error.msg, offset + error.offset - 1 if error.offset else len(text)) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"cannot be read: {error}", offset) from None


def guarded(
    check: Callable[[GemmConfig], bool], guards: Sequence[Callable[[GemmConfig], bool]]
) -> Callable[[GemmConfig], bool]:
    """A filter that returns False instead of a division by zero if an earlier filter (``guards``) is False.

    The guards are evaluated only after a division by zero, so that a grid can evaluate the filter independently.
    """

    def ask(config: GemmConfig) -> bool:
        try:
            return check(config)
        except ExpressionError:
            if all(guard(config) for guard in guards):
                raise
            return False

    return ask if guards else check


def _compile(text: str, term: ast.expr, offset: int) -> Expression:
    compiler = _Compiler(text.strip(), offset)
    evaluate = compiler.boolean(term)
    if not compiler.fields:
        raise compiler.error(term, f"{ast.unparse(term)!r} reads no field")

    def check(config: GemmConfig) -> bool:
        try:
            return bool(evaluate(config))
        except ZeroDivisionError:
            values = ", ".join(f"{name} = {READERS[name](config)}" for name in compiler.fields)
            raise ExpressionError(f"{ast.unparse(term)!r} divides by zero for {values}", offset) from None
        except RecursionError:
            raise ExpressionError("the filter is nested too deeply", offset) from None

    return Expression(text, tuple(compiler.fields), check)


class _Compiler:
    """Converts syntax nodes to functions of a config, and checks their types."""

    def __init__(self, source: str, offset: int) -> None:
        self.source = source.encode()
        self.offset = offset
        self.fields: dict[str, None] = {}

    def error(self, node: ast.expr, message: str) -> ExpressionError:
        prefix = self.source[: node.col_offset]  # ast counts bytes
        return ExpressionError(message, len(prefix.decode()) + self.offset)

    def boolean(self, node: ast.expr) -> Callable[[GemmConfig], bool]:
        match node:
            case ast.BoolOp(op, values):
                terms = [self.boolean(value) for value in values]
                every = all if isinstance(op, ast.And) else any
                return lambda f: every(term(f) for term in terms)
            case ast.UnaryOp(ast.Not(), operand):
                term = self.boolean(operand)
                return lambda f: not term(f)
            case ast.Compare(left, ops, comparators):
                lefts = [left, *comparators[:-1]]
                pairs = [self.comparison(*pair) for pair in zip(lefts, ops, comparators, strict=True)]
                return lambda f: all(pair(f) for pair in pairs)
        raise self.error(node, f"{ast.unparse(node)!r} is not a comparison; combine comparisons with and, or, not")

    def comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Callable[[GemmConfig], bool]:
        if isinstance(op, ast.In | ast.NotIn):
            return self.membership(left, right, isinstance(op, ast.In))
        if type(op) not in _COMPARE:
            raise self.error(left, "the comparison must be ==, !=, <, <=, >, >=, in or not in")
        (left_type, left_value), (right_type, right_value) = self.value(left), self.value(right)
        if left_type != right_type:
            raise self.error(
                right,
                f"{ast.unparse(left)!r} is {_kind(left_type)}, but {ast.unparse(right)!r} is {_kind(right_type)}",
            )
        if left_type == "str" and not isinstance(op, ast.Eq | ast.NotEq):
            raise self.error(left, f"{ast.unparse(left)!r} is text; compare it with ==, !=, in or not in")
        self.check_word(left, right)
        self.check_word(right, left)
        compare = _COMPARE[type(op)]
        return lambda f: compare(left_value(f), right_value(f))

    def membership(self, left: ast.expr, right: ast.expr, is_member: bool) -> Callable[[GemmConfig], bool]:
        if not isinstance(right, ast.List | ast.Tuple) or not right.elts:
            raise self.error(right, "`in` needs a list of values, for example `tile.m in [64, 128]`")
        left_type, left_value = self.value(left)
        values = []
        for element in right.elts:
            element_type, element_value = self.value(element)
            if element_type != left_type:
                raise self.error(
                    element,
                    f"{ast.unparse(left)!r} is {_kind(left_type)}, but {ast.unparse(element)!r} is "
                    f"{_kind(element_type)}",
                )
            self.check_word(left, element)
            self.check_word(element, left)
            values.append(element_value)
        return lambda f: any(left_value(f) == value(f) for value in values) is is_member

    def value(self, node: ast.expr) -> tuple[Type, Callable[[GemmConfig], Value]]:
        match node:
            case ast.Constant(str(text)):
                return "str", lambda f: text
            case ast.Constant(int(number)) if not isinstance(number, bool):
                return "int", lambda f: number
            case ast.Name() | ast.Attribute():
                name = self.field(node)
                return ("str" if name in WORDS else "int"), READERS[name]
            case ast.UnaryOp(ast.USub(), operand):
                negated = self.integer(operand)
                return "int", lambda f: -negated(f)
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                first, second, apply = self.integer(left), self.integer(right), _ARITHMETIC[type(op)]
                return "int", lambda f: apply(first(f), second(f))
        raise self.error(node, f"{ast.unparse(node)!r} is not allowed here; use fields, integers, text, and + - * // %")

    def integer(self, node: ast.expr) -> Callable[[GemmConfig], int]:
        kind, value = self.value(node)
        if kind != "int":
            raise self.error(node, f"{ast.unparse(node)!r} is {_kind(kind)}, not an integer")
        return value  # type: ignore[return-value]  # value() says "int" for it

    def field(self, node: ast.Name | ast.Attribute) -> str:
        name = ast.unparse(node)
        if name in FORMER:
            warn(f"{name} in {self.source.decode()!r} is now called {FORMER[name]}")
            name = FORMER[name]
        if name not in FIELD_NAMES:
            if any(name in words for words in WORDS.values()):
                raise self.error(node, f"{name!r} is not a field; quote text: '{name}'")
            leaves = tuple(field for field in FIELD_NAMES if field.startswith(f"{name}."))
            hint = f", did you mean {' or '.join(leaves)}?" if leaves else suggest(name, FIELD_NAMES)
            raise self.error(node, f"unknown field {name!r}{hint or '; fields: ' + ', '.join(FIELD_NAMES)}")
        self.fields[name] = None
        return name

    def check_word(self, field: ast.expr, word: ast.expr) -> None:
        """Raise ExpressionError for a text constant that the field on the other side cannot have."""
        if isinstance(field, ast.Name | ast.Attribute) and isinstance(word, ast.Constant):
            name, value = ast.unparse(field), word.value
            allowed = WORDS.get(name)
            if name in OPEN:
                self.check_epilogue(word, str(value))
            elif allowed and value not in allowed:
                hint = meant(name, str(value), allowed)
                raise self.error(word, f"{name} is never {value!r}{hint or ';'} allowed: {one_of(allowed)}")

    def check_epilogue(self, word: ast.expr, text: str) -> None:
        try:
            spelling = canonical(text)
        except ExpressionError as error:
            raise self.error(word, f"epilogue is never {text!r}: {error}") from None
        if spelling != text:
            raise self.error(word, f"epilogue is never {text!r}; write the canonical {spelling!r}")


def _kind(kind: Type) -> str:
    return {"int": "an integer", "str": "text", "bool": "a comparison"}[kind]
