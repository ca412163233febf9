"""The words that each field of text can hold, and how errors speak of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import get_args

from gemmill.library.arch import ArchName
from gemmill.library.config import (
    BatchingName,
    DecompositionName,
    EpilogueName,
    MajorAB,
    MajorCD,
    RasterName,
    ScaleName,
    ScheduleName,
)
from gemmill.library.dtypes import DTypeName

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
        "epilogue": get_args(EpilogueName),
    }
)
"""What each field of text can hold. All other fields are integers."""


def suggest(word: str, allowed: Iterable[str]) -> str:
    """``", did you mean x?"`` where one of the allowed words is close, else nothing."""
    close = difflib.get_close_matches(word, allowed, n=1)
    return f", did you mean {close[0]}?" if close else ""


def one_of(values: Sequence[object]) -> str:
    """``x, y or z``."""
    return " or ".join(filter(None, (", ".join(map(str, values[:-1])), str(values[-1]))))
