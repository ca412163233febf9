"""TMA + WGMMA (sm_90a): cooperative and pingpong."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.arch import ARCHS
from gemmill.library.config.fields import Fields, Value
from gemmill.library.families.family import Family
from gemmill.library.families.wgmma import operands, registers, ring, shared_memory, tiles, warpgroups
from gemmill.library.families.wgmma.operands import ALIGNS
from gemmill.library.families.wgmma.tiles import CLUSTER, MIN_STAGES, TILE_K_BYTES, TILE_M, TILE_N
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.legality.rule import Rule, rule

AUTO_STAGES_FIELDS = (
    *("tile.n", "tile.k", "tile.m", "schedule"),
    *("d.dtype", "d.major", "c.dtype", "c.major", "a.dtype", "a.major", "a.scale", "b.dtype", "b.major", "arch"),
    *("scheduler.decomposition", "scheduler.splits", "accumulator", "epilogue"),
)
"""The fields that :func:`gemmill.library.families.wgmma.shared_memory.auto_stages` reads."""


@rule(
    "shared-memory",
    ("stages", *AUTO_STAGES_FIELDS),
    "CUDA Programming Guide, Compute Capabilities: 227 KiB of shared memory a CTA on 9.0",
    "wgmma",
)
def memory_of_a_cta(f: Fields) -> str | None:
    """Stages, subtiles of the epilogue and mbarriers fit the shared memory that a CTA can have."""
    needed, capacity = shared_memory.shared_bytes(f), ARCHS[str(f["arch"])].shared_bytes
    if needed <= capacity:
        return None
    return (
        f"{f['stages']} x {sum(ring.stage_bytes(f)):,} bytes of stages and the epilogue take {needed:,} bytes of "
        f"shared memory; a CTA has {capacity:,}"
    )


RULES: tuple[Rule, ...] = (
    operands.MMA_TYPES,
    operands.majors,
    operands.mma_majors,
    operands.EPILOGUE_TYPES,
    operands.row_groups,
    operands.k_groups,
    operands.array,
    operands.descriptor_start,
    operands.mixed_batching,
    operands.alignment,
    operands.reduction_alignment,
    operands.sums,
    operands.parts_batching,
    operands.mixed_parts,
    tiles.tile_m,
    tiles.tile_n,
    tiles.tile_k,
    tiles.promote,
    tiles.block_scales,
    tiles.cluster,
    tiles.cluster_splits,
    tiles.min_stages,
    tiles.tma_box,
    tiles.epilogue_box,
    registers.epilogue_matrices,
    tiles.multicast_slice,
    registers.accumulator_registers,
    memory_of_a_cta,
)
"""The rules of the family, in the order of reports: single choices first, what several add up to last."""

DOMAINS: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {
        **{f"{operand}.align": (TMA_ALIGN,) for operand in "ab"},
        **{f"{operand}.align": ALIGNS for operand in "cd"},
        "tile.m": tuple(sorted({m for rows in TILE_M.values() for m in rows})),
        "tile.n": TILE_N,
        "tile.k": tuple(sorted({depth // size for depth in TILE_K_BYTES for size in (1, 2, 4)})),
        "cluster.m": CLUSTER,
        "cluster.n": CLUSTER,
        "stages": tuple(range(MIN_STAGES, ring.MAX_AUTO_STAGES + 1)),
    }
)
"""The values that the family takes, of the fields that have no words."""
_DECOMPOSITIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cooperative": ("tiles", "splitk", "stream", "cluster"),
        "pingpong": ("tiles", "splitk", "cluster"),
    }
)


def _lacks_nothing(f: Fields) -> None:
    return None


def _explained(f: Fields) -> dict[str, int]:
    producer, consumer = warpgroups.register_budget(f)
    return {
        "registers a producer thread": producer,
        "registers a consumer thread": consumer,
        "D subtiles a warpgroup": shared_memory.d_buffers(f),
    }


FAMILY = Family(
    archs=("sm90a",),
    rules=RULES,
    domains=DOMAINS,
    threads=warpgroups.threads,
    stage_bytes=ring.stage_bytes,
    shared_bytes=shared_memory.shared_bytes,
    accumulator_registers=warpgroups.accumulator_registers,
    auto_stages=shared_memory.auto_stages,
    max_auto_stages=ring.max_auto_stages,
    lacks_for_epilogue=_lacks_nothing,
    decompositions=_DECOMPOSITIONS.__getitem__,
    batchings=("strided", "nested", "array", "grouped", "masked", "kgrouped"),
    explained=_explained,
)
