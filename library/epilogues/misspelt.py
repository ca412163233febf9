"""Finds operands of an epilogue that look like misspelt words of its language.

Any name may be a scalar operand, so ``alhpa`` is no error where the caller passes ``alhpa=2``. Manifests and command
lines pass no arguments; there, only a type marks such a name as intended: ``alhpa.f32``.
"""

from __future__ import annotations

import re

from gemmill.library.epilogues.grammar import GIVEN, SCALES
from gemmill.library.epilogues.parse import parse
from gemmill.library.errors import ExpressionError

_SHORTEST = 3
"""Shorter words and names, such as ``c`` and ``x``, are an edit away from too many others."""
_OTHER_WORDS = frozenset(("act", "eta", "rate", "zeta"))
"""Names of scalars that are an edit away from a word, but not misspelt."""


def check_names(text: str) -> None:
    """Raise an error for a scalar operand without a type that is one edit away from a word.

    Raises:
        ExpressionError: names the operand, the word and what to write; or the text is not an epilogue.
    """
    epilogue = parse(text)
    words = [*GIVEN, *SCALES, *(x.name for x in epilogue.assignments if x.role == "local")]
    for name in (x.name for x in epilogue.operands if x.kind == "scalar"):
        has_type = re.search(rf"\b{name}\s*\.", text)
        if has_type or name in words or name in _OTHER_WORDS or name[-1].isdigit() or len(name) < _SHORTEST:
            continue
        if near := next((word for word in words if len(word) > 1 and is_one_edit(name, word)), None):
            place = re.search(rf"\b{name}\b", text)
            says = f"the name {name!r} is unknown, did you mean {near}? Write {name}.f32 if it is an argument"
            raise ExpressionError(says, place.start() if place else 0)


def is_one_edit(one: str, other: str) -> bool:
    """Whether a letter less, more or changed, or two neighbours swapped, make one text of another."""
    start = next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
    one, other = one[start:], other[start:]
    return one != other and (
        one[1:] == other[1:] or one[1:] == other or one == other[1:] or one[1::-1] + one[2:] == other
    )
