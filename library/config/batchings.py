"""What the batchings with groups have in common: the extent that the groups divide, and their transposes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from gemmill.library.config.model import BatchingName

GROUPED_EXTENT: Mapping[str, Literal["m", "n", "k"]] = MappingProxyType(
    {"grouped": "m", "masked": "m", "kgrouped": "k", "ngrouped": "n", "nmasked": "n"}
)
"""The extent along which groups can differ in size, by batching."""
MASKED: tuple[BatchingName, ...] = ("masked", "nmasked")
"""Batchings whose groups have equal capacity: the grouped extent is the capacity of one group, not the total of all."""
OFFSETS: tuple[BatchingName, ...] = ("grouped", "ngrouped", "kgrouped")
"""Batchings whose groups follow each other: the grouped extent is the total of all groups."""
TRANSPOSED: Mapping[BatchingName, BatchingName] = MappingProxyType(
    {"grouped": "ngrouped", "masked": "nmasked", "ngrouped": "grouped", "nmasked": "masked"}
)
"""The batching after transposition, for batchings that change."""
