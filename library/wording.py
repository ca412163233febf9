"""Parts of error messages: suggestions and lists of allowed words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_LONGEST = 200
"""Most characters of a word for which a suggestion is searched."""


def suggest(word: str, allowed: Iterable[str], prefix: str = "") -> str:
    """``", did you mean x?"`` if an allowed word is similar, otherwise ``""``. ``prefix`` is added to the
    suggestion."""
    if len(word) > _LONGEST:
        return ""
    import difflib  # imported here, because only errors need it

    close = difflib.get_close_matches(word, allowed, n=1)
    return f", did you mean {prefix}{close[0]}?" if close else ""


def one_of(values: Sequence[object]) -> str:
    """``x, y or z``."""
    return " or ".join(filter(None, (", ".join(map(str, values[:-1])), str(values[-1]))))
