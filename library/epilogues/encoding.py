"""Epilogues as parts of kernel names, which are C identifiers: what is no letter or digit becomes a capital letter."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gemmill.library.epilogues.parse import LINEAR, canonical
from gemmill.library.errors import ExpressionError

_PREFIX = "x"
PATTERN = f"{LINEAR}|{_PREFIX}[a-zA-Z0-9]+"
"""The regular expression that such parts match."""
CAPITALS: Mapping[str, str] = {
    " ": "S",
    "_": "U",
    ".": "D",
    ",": "K",
    ";": "Z",
    "=": "E",
    "(": "P",
    ")": "Q",
    "[": "B",
    "]": "J",
    "+": "A",
    "-": "M",
    "*": "T",
    "/": "V",
    "<": "L",
    ">": "G",
    "!": "N",
}
"""The letter that a character becomes."""
_CHARACTERS = {capital: character for character, capital in CAPITALS.items()}


def encode(text: str) -> str:
    """A canonical text as part of a kernel name. Spaces go, but those between words."""
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
