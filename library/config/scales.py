"""What the words for scales say: how many elements share one, and of blocks of A and B its type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.config.model import ScaleName
from gemmill.library.dtypes import DTypeName

BLOCK_SCALES: Mapping[DTypeName, tuple[ScaleName, ScaleName]] = MappingProxyType(
    {"f32": ("1x128", "128x128"), "ue8m0": ("1x128e8", "128x128e8")}
)
"""Scales of blocks of A and of B, by the type that both have. Sets declare the first."""

_DTYPES: Mapping[str, DTypeName] = MappingProxyType(
    {word: dtype for dtype, words in BLOCK_SCALES.items() for word in words}
)


def scale_block(scale: str) -> tuple[int, int]:
    """Elements along M (of A) or N (of B), and along K, that share a scale: of ``128x128e8`` 128 and 128."""
    across, along_k = re.findall("[0-9]+", scale)[:2]
    return int(across), int(along_k)


def block_dtype(scale: str) -> DTypeName | None:
    """The type of scales of blocks; None for none."""
    return _DTYPES.get(scale)


def in_f32(a_scale: ScaleName, b_scale: ScaleName) -> tuple[ScaleName, ScaleName]:
    """Scales of A and B as sets declare them: those of blocks in f32."""
    return next(iter(BLOCK_SCALES.values())) if (a_scale, b_scale) in BLOCK_SCALES.values() else (a_scale, b_scale)
