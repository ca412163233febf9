"""The ring of stages in shared memory: bytes of A, B, scales and mbarriers, and of the sums beside it."""

from __future__ import annotations

from gemmill.library.config.fields import Fields, part
from gemmill.library.families.wgmma.warpgroups import (
    cluster_splits,
    consumer_warpgroups,
    groups,
    has_block_scales,
    has_zeros,
    is_mixed,
    slices,
    transposes,
    warpgroup_m,
)
from gemmill.library.legality.quantities import element_bits, element_bytes, integer

MAX_AUTO_STAGES = 16
"""Deepest pipeline that ``stages: auto`` asks for; more hides no further latency."""
MAX_SCALED_STAGES = 12
"""The same with block scales: named barriers for stages (emitters/include/gemmill/pipeline/named_barrier.cuh)."""


def swizzle_bytes(contiguous_bytes: int) -> int:
    """The widest swizzle span (128, 64, 32; 16 means none) that divides a contiguous extent."""
    return next((span for span in (128, 64, 32) if contiguous_bytes % span == 0), 16)


def operand_swizzle(fields: Fields, operand: str) -> int:
    """Swizzle span in bytes of A's or B's stages."""
    mn = "tile.m" if operand == "a" else "tile.n"
    extent = mn if fields[f"{operand}.major"] == "mn" else "tile.k"
    return swizzle_bytes(integer(fields, extent) * element_bits(fields, operand) // 8)


@part
def stage_bytes(fields: Fields) -> tuple[int, int]:
    """Bytes of one stage of A and of B; one that is not transposed in its place lies there twice."""
    m, n, k = (integer(fields, f"tile.{extent}") for extent in "mnk")
    return (
        m * k * element_bits(fields, "a") // 8 * (2 if _is_copied(fields, "a") else 1),
        n * k * element_bits(fields, "b") // 8 * (2 if _is_copied(fields, "b") else 1),
    )


def _is_copied(fields: Fields, operand: str) -> bool:
    """Whether an operand is transposed to another place: its panels are not as deep along K as they are wide."""
    depth = integer(fields, "tile.k") * element_bits(fields, operand) // 8
    return transposes(fields, operand) and depth != operand_swizzle(fields, operand)


def scale_bytes(fields: Fields) -> int:
    """Bytes of the scales of one stage.

    Of blocks: one f32 for each row of A's tile, and four for B's blocks of columns. Of groups of narrow A: one of B's
    type for each row and group, and as many zero points.
    """
    if is_mixed(fields):
        return integer(fields, "tile.m") * groups(fields) * element_bytes(fields, "b") * (2 if has_zeros(fields) else 1)
    return (integer(fields, "tile.m") + 4) * 4 if has_block_scales(fields) else 0


@part
def bytes_per_stage(fields: Fields) -> int:
    """Shared memory that a stage takes: A, B, scales and mbarriers."""
    rings = 3 if transposes(fields, "a") or transposes(fields, "b") else 2
    return sum(stage_bytes(fields)) + scale_bytes(fields) + 8 * rings


@part
def sums_bytes(fields: Fields) -> int:
    """The same without C subtiles and their mbarriers."""
    turns = 2 if fields["schedule"] == "pingpong" else 0
    sums = (slices(fields) - 1) * integer(fields, "tile.m") * integer(fields, "tile.n") * 4
    return sums + _cluster_sums_bytes(fields) + 8 * turns


def _cluster_sums_bytes(fields: Fields) -> int:
    """Sums that the other CTAs of a cluster send of this one's share of a tile, and two mbarriers, by warpgroup."""
    parts = cluster_splits(fields)
    share = warpgroup_m(fields) * integer(fields, "tile.n") * 4 // parts
    return consumer_warpgroups(fields) * ((parts - 1) * share + 16) if parts > 1 else 0


def max_auto_stages(fields: Fields) -> int:
    """Deepest pipeline that ``stages: auto`` asks for."""
    return MAX_SCALED_STAGES if has_block_scales(fields) else MAX_AUTO_STAGES
