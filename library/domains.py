"""The words that each field of text can hold."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import get_args

from gemmill.library.arch import ArchName
from gemmill.library.config import (
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
from gemmill.library.fields import FIELD_NAMES, Fields
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

_CLOSED = tuple((name, frozenset(words)) for name, words in WORDS.items() if name not in OPEN)
_COUNTS = tuple(name for name in FIELD_NAMES if name not in WORDS and name not in ("promote", "c.align"))


def are_valid(fields: Fields) -> bool:
    """Whether fields have values that they can have; what pydantic finds, told without it."""
    has_c = fields["c.dtype"] != "none"
    counts = (*_COUNTS, "c.align") if has_c else _COUNTS
    try:
        return (
            all(fields[name] in words for name, words in _CLOSED)
            and has_c == (fields["c.major"] != "none")
            and all(type(count := fields[name]) is int and count > 0 for name in counts)
            and fields["promote"] in get_args(Promotion)
            and canonical(str(fields["epilogue"])) == fields["epilogue"]
        )
    except ExpressionError:
        return False
