"""JSON from files that somebody else may have written: a value, or a ValueError, whatever the bytes are."""

from __future__ import annotations

import json
from typing import Any


def parse(data: bytes) -> Any:
    """The value of a JSON text in UTF-8. Its size is for the caller to bound.

    Raises:
        ValueError: it is no JSON: the words NaN and Infinity are none, nor is what nests too deeply to be read.
    """
    try:
        return _DECODER.decode(data.decode())
    except RecursionError:
        raise ValueError("lists and mappings nest too deeply") from None


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
