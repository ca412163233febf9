"""The parser of layout expressions such as ``composition((8,(2,2)):(2,(1,16)), 4:1) o 2:1``.

    expression := term { "o" term }
    term       := primary [ ":" primary ] { "(" [ expression { "," expression } ] ")" }
    primary    := integer | "_" | name [ "<" primary { "," primary } ">" ] | "(" [ expression { "," expression } ] ")"

Parentheses around integers make a tuple, even of one integer, as CuTe prints it. Around a single other expression they
only group.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from gemmill.library.errors import LayoutError

MOST_CHARACTERS = 4_000
MOST_NESTED = 40
"""Most levels of nested brackets."""
_MOST_DIGITS = 18


@dataclass(frozen=True)
class Number:
    """An integer, ``8`` or ``_8``."""

    value: int
    column: int


@dataclass(frozen=True)
class Everything:
    """``_``: all of a mode."""

    column: int


@dataclass(frozen=True)
class Tuple:
    """``(a,b)``."""

    items: tuple[Node, ...]
    column: int


@dataclass(frozen=True)
class Name:
    """The name of a function, an atom, or a CUTLASS template."""

    name: str
    parameters: tuple[Node, ...] | None
    """The arguments in angle brackets; None without brackets."""
    column: int


@dataclass(frozen=True)
class Pair:
    """``shape:stride``."""

    shape: Node
    stride: Node
    column: int


@dataclass(frozen=True)
class Call:
    """``f(a,b)``, or a layout applied to a coordinate."""

    called: Node
    arguments: tuple[Node, ...]
    column: int


@dataclass(frozen=True)
class Composition:
    """``a o b o c``."""

    terms: tuple[Node, ...]
    column: int
    """The column of the first ``o``."""


Node: TypeAlias = "Number | Everything | Tuple | Name | Pair | Call | Composition"

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?_?\d+(?!\w))|(?P<name>[A-Za-z]\w*(?:::[A-Za-z]\w*)*)|(?P<mark>_(?!\w)|[(),:<>\u2218]))"
)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    end = 0
    while text[end:].strip():
        if not (token := _TOKEN.match(text, end)):
            column = end + len(text[end:]) - len(text[end:].lstrip())
            raise LayoutError(
                f"{text[column]!r} is not allowed here; use integers, names, '_', 'o' and ( ) , : < >", column
            )
        kind = token.lastgroup or ""
        if kind == "number" and len(token[kind]) > _MOST_DIGITS:
            raise LayoutError(f"an integer must have at most {_MOST_DIGITS} digits", token.start(kind))
        tokens.append(_Token(kind, token[kind], token.start(kind)))
        end = token.end()
    return [*tokens, _Token("end", "", len(text.rstrip()))]


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = _tokens(text)
        self.at = 0
        self.nested = 0

    @property
    def next(self) -> _Token:
        return self.tokens[self.at]

    def take(self, mark: str) -> _Token | None:
        """The next token, which is consumed, if it is ``mark``; otherwise None."""
        token = self.next
        if token.kind in ("mark", "name") and token.text == mark:
            self.at += 1
            return token
        return None

    def expect(self, mark: str, opened: _Token) -> None:
        if not self.take(mark):
            text = self.next.text or "the end"
            raise LayoutError(
                f"{text!r} instead of {mark!r} or ',': {opened.text!r} at column {opened.column + 1} is not closed",
                self.next.column,
            )

    def expression(self) -> Node:
        terms = [self.term()]
        columns = []
        while operator := self.take("o") or self.take("\u2218"):
            columns.append(operator.column)
            terms.append(self.term())
        return Composition(tuple(terms), columns[0]) if columns else terms[0]

    def term(self) -> Node:
        node = self.primary()
        if self.take(":"):
            node = Pair(node, self.primary(), node.column)
        while opened := self.take("("):
            node = Call(node, self.listed(opened, ")"), node.column)
        return node

    def listed(self, opened: _Token, closing: str) -> tuple[Node, ...]:
        """The expressions between brackets, after the opening bracket was consumed."""
        self.nested += 1
        if self.nested > MOST_NESTED:
            raise LayoutError(f"brackets are nested more than {MOST_NESTED} deep", opened.column)
        items: list[Node] = []
        while not self.take(closing):
            if items:
                self.expect(",", opened)
                if self.take(closing):  # after a comma, as in Python's tuple of one item
                    break
            items.append(self.expression())
            if self.next.text not in (",", closing):
                self.expect(closing, opened)
        self.nested -= 1
        return tuple(items)

    def primary(self) -> Node:
        token = self.next
        self.at += 1
        if token.kind == "number":
            return Number(int(token.text.replace("_", "")), token.column)
        if token.kind == "name" and token.text != "o":
            opened = self.take("<")
            return Name(token.text, self.listed(opened, ">") if opened else None, token.column)
        if token.text == "_":
            return Everything(token.column)
        if token.text == "(":
            items = self.listed(token, ")")
            one = items[0] if len(items) == 1 else None
            return one if isinstance(one, Pair | Call | Composition | Name) else Tuple(items, token.column)
        subject = f"found {token.text!r}" if token.text else "the text ends"
        raise LayoutError(
            f"{subject}; expected a layout such as (4,2):(2,1), an integer, a tuple or a name", token.column
        )


def parse(text: str) -> Node:
    """Parse an expression.

    Raises:
        LayoutError: the text is not an expression; the column points at the error.
    """
    if len(text) > MOST_CHARACTERS:
        raise LayoutError(f"the text has {len(text):,} characters; the limit is {MOST_CHARACTERS:,}", 0)
    parser = _Parser(text)
    tree = parser.expression()
    if parser.next.kind != "end":
        raise LayoutError(
            f"{parser.next.text!r} follows a complete expression; write 'o' between layouts, or ',' between arguments",
            parser.next.column,
        )
    return tree
