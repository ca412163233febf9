"""How errors speak of words: what was meant, and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_LONGEST = 200
"""Characters of what can be meant for another word."""


def suggest(word: str, allowed: Iterable[str], prefix: str = "") -> str:
    """``", did you mean x?"`` where one of the allowed words is close, else nothing; all lack a prefix."""
    if len(word) > _LONGEST:
        return ""
    import difflib  # where nothing is wrong, it is left alone

    close = difflib.get_close_matches(word, allowed, n=1)
    return f", did you mean {prefix}{close[0]}?" if close else ""


def one_of(values: Sequence[object]) -> str:
    """``x, y or z``."""
    return " or ".join(filter(None, (", ".join(map(str, values[:-1])), str(values[-1]))))
