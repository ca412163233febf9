"""The rules of WGMMA kernels in the order of reports, and the values that the family supports."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.config.field import Value
from gemmill.library.families.shared_rules import converted, multiplied
from gemmill.library.families.wgmma import operand_rules, tile_rules
from gemmill.library.families.wgmma.wgmma_plan import MAX_AUTO_STAGES, MIN_STAGES, WgmmaPlan
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.legality.rule import Rule

RULES: tuple[Rule, ...] = (
    multiplied(
        "mma-types",
        WgmmaPlan,
        "WGMMA",
        operand_rules.ACCUMULATORS,
        "PTX ISA, wgmma.mma_async: types of A, B and D; CUTLASS include/cute/arch/mma_sm90.hpp",
    ),
    operand_rules.majors,
    operand_rules.output_majors,
    operand_rules.mma_majors,
    converted("epilogue-types", WgmmaPlan),
    tile_rules.scaled_groups,
    operand_rules.row_groups,
    operand_rules.k_groups,
    operand_rules.array,
    operand_rules.descriptor_start,
    operand_rules.mixed_batching,
    operand_rules.alignment,
    operand_rules.unaligned_a,
    operand_rules.unaligned_tile,
    operand_rules.reduction_alignment,
    operand_rules.sums,
    operand_rules.parts_batching,
    operand_rules.gathered_rows,
    operand_rules.symmetric_d,
    operand_rules.mixed_parts,
    tile_rules.tile_m,
    tile_rules.tile_n,
    tile_rules.tile_k,
    operand_rules.promote,
    operand_rules.split_batching,
    operand_rules.block_scales,
    tile_rules.scaled_tile,
    tile_rules.cluster,
    tile_rules.cluster_splits,
    tile_rules.min_stages,
    tile_rules.tma_box,
    tile_rules.epilogue_box,
    tile_rules.epilogue_matrices,
    tile_rules.gated_halves,
    tile_rules.quantised_d,
    tile_rules.multicast_slice,
    tile_rules.multicast_panels,
    tile_rules.accumulator_registers,
    tile_rules.memory_of_a_cta,
)
"""The rules of the family in the order of reports: first those on single fields, then those on totals."""

DOMAINS: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {
        "a.align": (1, 2, 4, TMA_ALIGN),
        "b.align": (TMA_ALIGN,),
        **{f"{operand}.align": operand_rules.ALIGNS for operand in "cd"},
        "tile.m": tuple(sorted({m for rows in tile_rules.TILE_M.values() for m in rows})),
        "tile.n": tile_rules.TILE_N,
        "tile.k": tuple(sorted({depth // size for depth in tile_rules.TILE_K_BYTES for size in (1, 2, 4)})),
        "cluster.m": tile_rules.CLUSTER,
        "cluster.n": tile_rules.CLUSTER,
        "stages": tuple(range(MIN_STAGES, MAX_AUTO_STAGES + 1)),
    }
)
"""The values that the family supports, for each integer field."""
