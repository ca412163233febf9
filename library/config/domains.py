"""The words that each field of text can hold, and whether fields have values that they can have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import get_args

from gemmill.library.arch import ArchName
from gemmill.library.config.fields import Fields, Value
from gemmill.library.config.model import (
    BatchingName,
    DecompositionName,
    MajorAB,
    MajorCD,
    Promotion,
    RasterName,
    ScaleName,
    ScheduleName,
)
from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.parse import LINEAR, canonical
from gemmill.library.errors import ExpressionError
from gemmill.library.wording import one_of as one_of
from gemmill.library.wording import suggest as suggest

_DTYPES: tuple[str, ...] = get_args(DTypeName)

WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "arch": get_args(ArchName),
        "a.dtype": _DTYPES,
        "a.major": get_args(MajorAB),
        "a.scale": get_args(ScaleName),
        "b.dtype": _DTYPES,
        "b.major": get_args(MajorAB),
        "b.scale": get_args(ScaleName),
        "accumulator": _DTYPES,
        "c.dtype": ("none", *_DTYPES),
        "c.major": ("none", *get_args(MajorCD)),
        "d.dtype": _DTYPES,
        "d.major": get_args(MajorCD),
        "schedule": get_args(ScheduleName),
        "scheduler.raster": get_args(RasterName),
        "scheduler.decomposition": get_args(DecompositionName),
        "scheduler.batching": get_args(BatchingName),
        "epilogue": (LINEAR,),
    }
)
"""What each field of text can hold. All other fields are integers."""

OPEN = frozenset({"epilogue"})
"""Fields whose words are only the usual ones: an epilogue may be any expression."""

_CLOSED = {
    name: frozenset(words) - ({"none"} if name.startswith("c.") else set())
    for name, words in WORDS.items()
    if name not in OPEN
}


def are_valid(fields: Fields) -> bool:
    """Whether fields, all or some of a config's, have values that they can have; what pydantic finds, told without it.

    C's are not looked at where there is no C.
    """
    has_c = fields.get("c.dtype") != "none"
    return all(_is_valid(name, value) for name, value in fields.items() if has_c or not name.startswith("c."))


def _is_valid(name: str, value: Value) -> bool:
    if name in _CLOSED:
        return value in _CLOSED[name]
    if name == "epilogue":
        try:
            return isinstance(value, str) and canonical(value) == value
        except ExpressionError:
            return False
    return type(value) is int and (value in get_args(Promotion) if name == "promote" else value > 0)
