"""The text of an expression of layouts as a tree: ``composition((8,(2,2)):(2,(1,16)), 4:1) o 2:1``.

    expression := term { "o" term }
    term       := primary [ ":" primary ] { "(" [ expression { "," expression } ] ")" }
    primary    := integer | "_" | name [ "<" primary { "," primary } ">" ] | "(" [ expression { "," expression } ] ")"

Parentheses around integers make a tuple, of one as of many, as CuTe prints it; around anything else, one groups.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from gemmill.library.errors import LayoutError

MOST_CHARACTERS = 4_000
MOST_NESTED = 40
"""How deep parentheses are nested, at most."""
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
    """A function, an atom, or what CUTLASS has as a template."""

    name: str
    parameters: tuple[Node, ...] | None
    """What stands between angle brackets; None without any."""
    column: int


@dataclass(frozen=True)
class Pair:
    """``shape:stride``."""

    shape: Node
    stride: Node
    column: int


@dataclass(frozen=True)
class Call:
    """``f(a,b)``, or a layout at a coordinate."""

    called: Node
    arguments: tuple[Node, ...]
    column: int


@dataclass(frozen=True)
class Composition:
    """``a o b o c``."""

    terms: tuple[Node, ...]
    column: int
    """Of the first ``o``."""


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
    found: list[_Token] = []
    end = 0
    while text[end:].strip():
        if not (token := _TOKEN.match(text, end)):
            column = end + len(text[end:]) - len(text[end:].lstrip())
            raise LayoutError(
                f"{text[column]!r} is nothing here; there are integers, names, '_', 'o' and ( ) , : < >", column
            )
        kind = token.lastgroup or ""
        if kind == "number" and len(token[kind]) > _MOST_DIGITS:
            raise LayoutError(f"an integer has at most {_MOST_DIGITS} digits", token.start(kind))
        found.append(_Token(kind, token[kind], token.start(kind)))
        end = token.end()
    return [*found, _Token("end", "", len(text.rstrip()))]


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = _tokens(text)
        self.at = 0
        self.nested = 0

    @property
    def next(self) -> _Token:
        return self.tokens[self.at]

    def take(self, mark: str) -> _Token | None:
        """The next token, if it is this one; then the one behind it is next."""
        token = self.next
        if token.kind in ("mark", "name") and token.text == mark:
            self.at += 1
            return token
        return None

    def expect(self, mark: str, opened: _Token) -> None:
        if not self.take(mark):
            text = self.next.text or "the end"
            raise LayoutError(
                f"{text!r} where {mark!r} or ',' belongs: {opened.text!r} at column {opened.column + 1} is still open",
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
        found = self.primary()
        if self.take(":"):
            found = Pair(found, self.primary(), found.column)
        while opened := self.take("("):
            found = Call(found, self.listed(opened, ")"), found.column)
        return found

    def listed(self, opened: _Token, closing: str) -> tuple[Node, ...]:
        """Expressions between brackets, of which the opening one was taken."""
        self.nested += 1
        if self.nested > MOST_NESTED:
            raise LayoutError(f"brackets are nested at most {MOST_NESTED} deep", opened.column)
        items: list[Node] = []
        while not self.take(closing):
            if items:
                self.expect(",", opened)
                if self.take(closing):  # behind a comma, as Python writes a tuple of one
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
        subject = f"{token.text!r} is in the place of" if token.text else "the text ends before"
        raise LayoutError(f"{subject} a layout, as in (4,2):(2,1), an integer, a tuple or a name", token.column)


def parse(text: str) -> Node:
    """The tree of an expression.

    Raises:
        LayoutError: the text is none; the column says where.
    """
    if len(text) > MOST_CHARACTERS:
        raise LayoutError(f"the text has {len(text):,} characters; at most {MOST_CHARACTERS:,} are read", 0)
    parser = _Parser(text)
    tree = parser.expression()
    if parser.next.kind != "end":
        raise LayoutError(
            f"{parser.next.text!r} follows a whole expression; 'o' composes two, ',' stands between arguments",
            parser.next.column,
        )
    return tree
