"""Epilogues as text: parsing, canonical spelling, encoding in kernel names, and queries.

An epilogue such as ``d = silu(alpha * acc * scale_a[m] * scale_b[n] + beta * c + bias.bf16[n])`` is a list of
assignments separated by semicolons or line ends.

- ``acc`` is the sum of products and ``c`` the added matrix. ``gate`` and ``up`` are the sums of an even column and of
  the odd column after it, ``gate8`` and ``up8`` those of a column and the one eight columns after it, ``gate8.m`` and
  ``up8.m`` those of rows. ``alpha`` and ``beta`` are factors that the caller passes.
- Any other name is an operand that the caller passes. Its index states whether it has a value per row, column, matrix
  or element. An attribute gives the element type (default f32). A second attribute of a matrix makes TMA move it
  (``x.bf16.n[m, n]``: contiguous along N).
- An assignment to ``d`` defines D. A name that is read later is a local value. Any other name, and any name with an
  index or a type, is an output: a matrix, or a reduction if its value is ``max``, ``min`` or ``sum`` of one argument.
- ``s[m, n/128] = scale(h)`` computes the scales of blocks of 128 columns of D, which ``d = h / s`` then quantises.
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
"""Canonical text of ``d = alpha * acc + beta * c``; without C, of ``d = alpha * acc``."""


@lru_cache(1024)
def parse(text: str) -> Epilogue:
    """Parse an epilogue.

    Raises:
        ExpressionError: the text is not an epilogue; the column points at the error.
    """
    try:
        return parse("d = alpha * acc + beta * c") if text == LINEAR else grammar.read(text)
    except RecursionError:
        raise ExpressionError("the epilogue is nested too deeply") from None


@lru_cache(1024)
def is_gated(text: str) -> bool:
    """Whether the epilogue pairs columns, so that D has N / 2. Cached, because it is queried for millions of
    candidates."""
    return parse(text).gated


@lru_cache(1024)
def gates_halves(text: str) -> bool:
    """Whether the epilogue pairs columns of the two halves of N."""
    return parse(text).gates_halves


@lru_cache(1024)
def pairs_rows(text: str) -> bool:
    """Whether the epilogue pairs rows, so that D has M / 2 rows."""
    return parse(text).gate_rows > 0


@lru_cache(1024)
def has_transpose(text: str) -> bool:
    """Whether the problem with M and N swapped has an epilogue too: see :func:`tree.transposed`."""
    return parse(text).has_transpose


@lru_cache(1024)
def scales_blocks(text: str) -> bool:
    """Whether the epilogue computes scales of blocks of columns."""
    return parse(text).scale is not None


@lru_cache(1024)
def is_repeatable(text: str) -> bool:
    """Whether a kernel can compute and store elements twice: the epilogue reads no matrix, since D can overwrite it,
    has no reduction, and writes only D."""
    if text == LINEAR:
        return True
    tree = parse(text)
    return not (tree.reads_c or tree.outputs or any(operand.kind == "matrix" for operand in tree.operands))


@lru_cache(1024)
def staged_formats(text: str) -> tuple[tuple[tuple[DTypeName, Major], ...], tuple[tuple[DTypeName, Major], ...]]:
    """Dtype and major of the matrices that TMA moves for an epilogue: operands, outputs."""
    inputs, outputs = parse(text).staged
    return tuple((x.dtype, x.major) for x in inputs), tuple((x.dtype, x.major) for x in outputs)


@lru_cache(1024)
def unstaged(text: str) -> str:
    """The text of the same epilogue without TMA for its matrices, which every kernel with an epilogue supports."""
    return spelling(with_majors(parse(text), {}))


@lru_cache(1024)
def serves(kernel: str, requested: str) -> bool:
    """Whether a kernel's epilogue equals the requested one, except that TMA can move fewer of its matrices."""
    if kernel == requested:
        return True
    demands, offers = parse(kernel).majors, parse(requested).majors
    return demands.items() <= offers.items() and spelling(with_majors(parse(requested), demands)) == kernel


@lru_cache(1024)
def canonical(text: str) -> str:
    """The canonical spelling of an epilogue: ``linear`` or the text of its tree. ExpressionError as for
    :func:`parse`."""
    return spelling(parse(text))


def spelling(epilogue: Epilogue) -> str:
    """The canonical text of a parsed epilogue."""
    text = str(epilogue)
    return LINEAR if text in ("d = alpha * acc + beta * c", "d = alpha * acc") else text


_PREFIX = "x"
PATTERN = f"{LINEAR}|{_PREFIX}[a-zA-Z0-9]+"
"""The regular expression of an epilogue in a kernel name."""
CAPITALS: Mapping[str, str] = dict(zip(" _.,;=()[]+-*/<>!", "SUDKZEPQBJAMTVLGN", strict=True))
"""The capital letter that stands for each character in a kernel name."""
_CHARACTERS = {capital: character for character, capital in CAPITALS.items()}


def encode(text: str) -> str:
    """Encode a canonical text as part of a kernel name, which is a C identifier. Only spaces between words remain."""
    if text == LINEAR:
        return text
    packed = re.sub(r"(?<![a-z0-9_]) +| +(?![a-z0-9_])", "", text)
    return _PREFIX + "".join(CAPITALS.get(character, character) for character in packed)


def decode(part: str) -> str:
    """The canonical text of a part of a kernel name; ExpressionError if the part is not an epilogue."""
    if not part.startswith(_PREFIX):
        return part
    text = canonical("".join(_CHARACTERS.get(character, character) for character in part[len(_PREFIX) :]))
    if encode(text) != part:
        raise ExpressionError(f"must be spelled {encode(text)}")
    return text


PLAIN = parse(LINEAR)
"""The default epilogue."""
