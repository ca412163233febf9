"""Epilogues as text: read, spelled in the one way, as parts of kernel names, and what can be asked of them.

``d = silu(alpha * acc * scale_a[m] * scale_b[n] + beta * c + bias.bf16[n])``: assignments between semicolons or line
ends. ``acc`` is the sum of products, ``c`` the added matrix, ``gate`` and ``up`` the sums of an even column and the odd
one after it; ``alpha`` and ``beta`` are the caller's factors. Any other name is an operand that the caller passes: its
index says what it has one value for, an attribute its element type (f32 without one), and of matrices a further one
that TMA moves them (``x.bf16.n[m, n]``: N is contiguous). Of the assigned names ``d`` is
D, in the caller's type; one that is read later is a local value; any other, and any with an index or a type, is an
output, a matrix unless its value is ``max``, ``min`` or ``sum`` of one argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues import grammar
from gemmill.library.epilogues.tree import Epilogue, Major, with_majors
from gemmill.library.errors import ExpressionError

LINEAR = "linear"
"""Canonical text of ``d = alpha * acc + beta * c``; where there is no C, of ``d = alpha * acc``."""


@lru_cache(1024)
def parse(text: str) -> Epilogue:
    """The epilogue that a text says.

    Raises:
        ExpressionError: the text is not an epilogue; the column says where.
    """
    try:
        return parse("d = alpha * acc + beta * c") if text == LINEAR else grammar.read(text)
    except RecursionError:
        raise ExpressionError("the epilogue is nested too deeply") from None


@lru_cache(1024)
def is_gated(text: str) -> bool:
    """Whether the epilogue that a text says is gated: asked once for each of millions of candidates."""
    return parse(text).gated


@lru_cache(1024)
def is_repeatable(text: str) -> bool:
    """Whether elements may be computed and written twice: no matrix, which D may overwrite, is read, nothing is added
    up, and nothing but D is written."""
    if text == LINEAR:
        return True
    found = parse(text)
    return not (found.reads_c or found.outputs or any(operand.kind == "matrix" for operand in found.operands))


@lru_cache(1024)
def staged_formats(text: str) -> tuple[tuple[tuple[DTypeName, Major], ...], tuple[tuple[DTypeName, Major], ...]]:
    """Dtype and major of the matrices that TMA moves for the epilogue that a text says: operands, outputs."""
    inputs, outputs = parse(text).staged
    return tuple((x.dtype, x.major) for x in inputs), tuple((x.dtype, x.major) for x in outputs)


@lru_cache(1024)
def unstaged(text: str) -> str:
    """The text of the same epilogue with matrices at any strides, which every kernel takes that takes epilogues."""
    return spelling(with_majors(parse(text), {}))


@lru_cache(1024)
def serves(kernel: str, requested: str) -> bool:
    """Whether a kernel's epilogue is the one that is wanted, or the same with fewer matrices that TMA moves."""
    if kernel == requested:
        return True
    demands, offers = parse(kernel).majors, parse(requested).majors
    return demands.items() <= offers.items() and spelling(with_majors(parse(requested), demands)) == kernel


@lru_cache(1024)
def canonical(text: str) -> str:
    """The one spelling of an epilogue: ``linear``, or the text of its tree. ExpressionError as for :func:`parse`."""
    return spelling(parse(text))


def spelling(epilogue: Epilogue) -> str:
    """The canonical text of a parsed epilogue."""
    text = str(epilogue)
    return LINEAR if text in ("d = alpha * acc + beta * c", "d = alpha * acc") else text


_PREFIX = "x"
PATTERN = f"{LINEAR}|{_PREFIX}[a-zA-Z0-9]+"
"""The regular expression that such parts match."""
CAPITALS: Mapping[str, str] = dict(zip(" _.,;=()[]+-*/<>!", "SUDKZEPQBJAMTVLGN", strict=True))
"""The letter that a character becomes."""
_CHARACTERS = {capital: character for character, capital in CAPITALS.items()}


def encode(text: str) -> str:
    """A canonical text as part of a kernel name, which is a C identifier. Spaces go, but those between words."""
    if text == LINEAR:
        return text
    packed = re.sub(r"(?<![a-z0-9_]) +| +(?![a-z0-9_])", "", text)
    return _PREFIX + "".join(CAPITALS.get(character, character) for character in packed)


def decode(part: str) -> str:
    """The canonical text of a part of a kernel name; ExpressionError where it is none."""
    if not part.startswith(_PREFIX):
        return part
    text = canonical("".join(_CHARACTERS.get(character, character) for character in part[len(_PREFIX) :]))
    if encode(text) != part:
        raise ExpressionError(f"is spelled {encode(text)}")
    return text


PLAIN = parse(LINEAR)
"""What is done where nothing is said."""
