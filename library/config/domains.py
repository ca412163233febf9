"""What each field can hold, and whether fields have values that they can have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from gemmill.library import arch, dtypes
from gemmill.library.config.field import Value
from gemmill.library.config.field_table import TABLE
from gemmill.library.config.fields import Fields
from gemmill.library.epilogues.parse import canonical
from gemmill.library.errors import ExpressionError
from gemmill.library.wording import one_of as one_of
from gemmill.library.wording import suggest as suggest

WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        row.name: (*(() if row.absent is None else (str(row.absent),)), *map(str, row.values))
        for row in TABLE.values()
        if row.type is str
    }
)
"""What each field of text can hold. All other fields are integers."""

OPEN = frozenset(row.name for row in TABLE.values() if row.is_open)
"""Fields whose words are only the usual ones: an epilogue may be any expression."""

_LISTED = {row.name: frozenset(row.values) for row in TABLE.values() if row.values and not row.is_open}


def meant(field: str, word: str, allowed: Iterable[str]) -> str:
    """What an error adds where a field can never hold a word: what was meant, or nothing."""
    if field == "arch":
        return arch.unknown(word)
    return dtypes.unknown(word) if field.endswith(("dtype", "accumulator")) else suggest(word, allowed)


def are_valid(fields: Fields) -> bool:
    """Whether fields, all or some of a config's, have values that they can have; what pydantic finds, told without it.

    C's are not looked at where there is no C.
    """
    has_c = fields.get("c.dtype") != "none"
    return all(_is_valid(name, value) for name, value in fields.items() if has_c or not name.startswith("c."))


def _is_valid(name: str, value: Value) -> bool:
    if type(value) is not TABLE[name].type:
        return False
    if name in _LISTED:
        return value in _LISTED[name]
    if isinstance(value, int):
        return value > 0
    try:
        return canonical(value) == value
    except ExpressionError:
        return False
