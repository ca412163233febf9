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
    RasterName,
    ScaleName,
    ScheduleName,
)
from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.parse import LINEAR
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
