"""The allowed values of each field, and a check of fields against them."""

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
"""The allowed words of each text field. All other fields are integers."""

OPEN = frozenset(row.name for row in TABLE.values() if row.is_open)
"""Fields that allow texts other than those in :data:`WORDS`: an epilogue can be any expression."""

_LISTED = {row.name: frozenset(row.values) for row in TABLE.values() if row.values and not row.is_open}


def meant(field: str, word: str, allowed: Iterable[str]) -> str:
    """The hint of an error about an invalid word: the word that was probably meant, or an empty text."""
    if field == "arch":
        return arch.unknown(word)
    return dtypes.unknown(word) if field.endswith(("dtype", "accumulator")) else suggest(word, allowed)


def are_valid(fields: Fields) -> bool:
    """Whether some or all fields of a config have allowed values. Equivalent to pydantic's checks, without importing
    it.

    Fields of C are not checked if there is no C.
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
