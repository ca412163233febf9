"""The meaning of scale names: how many elements share a scale, and the type of block scales."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.config.model import ScaleName
from gemmill.library.dtypes import DTypeName

BLOCK_SCALES: Mapping[DTypeName, tuple[ScaleName, ScaleName]] = MappingProxyType(
    {"f32": ("1x128", "128x128"), "ue8m0": ("1x128e8", "128x128e8")}
)
"""Block scales of A and of B by their type. Kernel sets declare the first pair."""

MX_SCALE: ScaleName = "1x32e8"
"""Scales of e2m1 weights, which are ue8m0 (OCP Microscaling Formats, "MXFP4")."""
_DTYPES: Mapping[str, DTypeName] = MappingProxyType(
    {**{word: dtype for dtype, words in BLOCK_SCALES.items() for word in words}, MX_SCALE: "ue8m0"}
)


def scale_block(scale: str) -> tuple[int, int]:
    """Elements along M (for A) or N (for B), and along K, that share a scale: 128 and 128 for ``128x128e8``."""
    across, along_k = re.findall("[0-9]+", scale)[:2]
    return int(across), int(along_k)


def scale_dtype(scale: str) -> DTypeName | None:
    """The type of scales that their name determines; None for group scales, which have the type of the wider
    operand."""
    return _DTYPES.get(scale)


def in_f32(a_scale: ScaleName, b_scale: ScaleName) -> tuple[ScaleName, ScaleName]:
    """The scales of A and B as kernel sets declare them: block scales become those of type f32."""
    return next(iter(BLOCK_SCALES.values())) if (a_scale, b_scale) in BLOCK_SCALES.values() else (a_scale, b_scale)


def scales_sums(a: DTypeName, b: DTypeName) -> bool:
    """Whether one of two types is upconverted to the other, e4m3, so that its scales multiply sums in f32."""
    return {a, b} == {"s4", "e4m3"}


def dtype_of_groups(narrow: DTypeName, wide: DTypeName) -> DTypeName:
    """The type of the scales of groups along K of a type that is upconverted to a wider one."""
    if narrow == "e2m1":
        return "ue8m0"
    return "f32" if scales_sums(narrow, wide) else wide
