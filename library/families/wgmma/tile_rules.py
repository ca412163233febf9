"""The rules of WGMMA kernels on extents and memory: tiles, clusters, stages, TMA boxes, registers and shared memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from gemmill.library.config.batchings import GROUPED_EXTENT
from gemmill.library.config.domains import one_of
from gemmill.library.config.model import InputName
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.dtypes import INT8
from gemmill.library.epilogues.parse import LINEAR, gates_halves, is_gated, parse, scales_blocks, staged_formats
from gemmill.library.epilogues.tree import BLOCK
from gemmill.library.families.wgmma.registers import (
    COLUMNS_OF_A_MATRIX,
    EPILOGUE_WORDS,
    FRAGMENT_LIMIT,
    MOST_BESIDE_BLOCKS,
    MOST_COLUMNS,
    MOST_MATRICES,
    read_in_place,
    vectors_beside_blocks,
)
from gemmill.library.families.wgmma.wgmma_plan import (
    INSTRUCTION_K_BYTES,
    MAX_SCALED_STAGES,
    MIN_STAGES,
    SHALLOW_K_BYTES,
    SPANS,
    SUBTILE_M,
    WgmmaPlan,
)
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.legality.rule import rule

PROMOTION_K = 128
"""Tile K with two-level accumulation of fp8: the K extent of four WGMMAs, and of a block of scales."""
MIXED_TILE_K = (64, 128, 256)
"""Tile K of kernels with a narrow A."""
NARROW_ROW = 128
"""Most bytes of a row of a stage of a narrow A: one swizzle span."""
NARROW_CHUNK = 16
"""Bytes along K of such a row that a lane reads at a time."""
TILE_M: Mapping[str, tuple[int, ...]] = MappingProxyType({"cooperative": (128, 192, 256), "pingpong": (64, 128)})
"""Tile M by schedule: one or two WGMMAs of 64 rows for each consumer warpgroup."""
TILE_N = tuple(range(8, 257, 8))
TILE_K_BYTES = tuple(range(SHALLOW_K_BYTES, 513, 32))
"""Depths of a stage in bytes: whole WGMMAs, with rows that fit a swizzle of at least 32 bytes."""
SHARE_COLUMNS = 8
"""Columns of D in one fragment of a warp. A CTA of a cluster stores whole fragments."""
CLUSTER = (1, 2, 4)
"""CTAs of a cluster along M and along N."""
CLUSTER_CTAS = 8
"""Most CTAs of a cluster."""
TMA_BOX = 256
"""Most elements of a TMA box along any extent."""
TMA_TARGET = 128
"""TMA writes to shared memory addresses that are multiples of this many bytes. Swizzles depend on the address, so a
slice of an operand can begin inside the period of a swizzle."""


@rule(
    "scaled-groups",
    ("cluster.m", "cluster.n", "tile.m", "a.scale", "scheduler.batching", "a.dtype", "b.dtype"),
    "ptxas: with offsets and scales of blocks, tiles of 256 rows spill in larger clusters",
    WgmmaPlan,
)
def scaled_groups(plan: WgmmaPlan) -> str | None:
    """With block scales and groups of rows at offsets, tiles of 256 rows allow clusters of two CTAs at most."""
    config = plan.config
    is_concerned = plan.has_block_scales and config.scheduler.batching == "grouped" and config.tile.m >= 256
    if not is_concerned or plan.cluster_ctas <= 2:
        return None
    return (
        f"tile M is {config.tile.m} and the cluster has {plan.cluster_ctas} CTAs; with block scales and grouped "
        "batching, tiles of 256 rows have at most two"
    )


@rule(
    "scaled-tile",
    ("tile.n", "stages", "b.scale"),
    "gemmill: a thread holds two scales per row; a named barrier releases each stage of scales",
    WgmmaPlan,
)
def scaled_tile(plan: WgmmaPlan) -> str | None:
    """With block scales a tile must not span three 128-column blocks of B's scales, and has at most 12 stages."""
    config = plan.config
    n = config.tile.n
    if config.b.scale == "none":
        return None
    if n + PROMOTION_K - math.gcd(n, PROMOTION_K) > 2 * PROMOTION_K:
        return (
            f"tile N is {n}; such tiles can span three {PROMOTION_K}-column blocks of B's scales, and kernels support "
            "at most two"
        )
    if config.stages > MAX_SCALED_STAGES:
        return f"stages is {config.stages}; with block scales it must be at most {MAX_SCALED_STAGES}"
    return None


@rule(
    "tile-m",
    ("tile.m", "schedule", "a.dtype", "b.dtype"),
    "PTX ISA, wgmma.mma_async: M is 64; CUTLASS include/cutlass/gemm/kernel/"
    "sm90_gemm_tma_warpspecialized_cooperative.hpp: cooperative tiles have at least 128 rows",
    WgmmaPlan,
)
def tile_m(plan: WgmmaPlan) -> str | None:
    """Tile M must be 128, 192 or 256 for cooperative kernels (also 64 with a narrow A), and 64 or 128 for pingpong."""
    config = plan.config
    schedule, m = config.schedule, config.tile.m
    allowed = TILE_M[schedule]
    if schedule == "cooperative" and plan.is_mixed:
        allowed = (SUBTILE_M, *allowed)
    return None if m in allowed else f"tile M is {m}; for {schedule} kernels it must be {one_of(allowed)}"


@rule(
    "tile-n",
    ("tile.n", "b.major", "b.dtype", "a.dtype", "promote"),
    "PTX ISA, wgmma.mma_async: N is 8 to 256 in steps of 8, for integers above 32 in steps of 16; swizzling modes",
    WgmmaPlan,
)
def tile_n(plan: WgmmaPlan) -> str | None:
    """Tile N must be a multiple of 8 up to 256; with two-level accumulation, and above 32 for integers, a multiple of
    16; with an mn-major B, a multiple of 32 bytes."""
    config = plan.config
    n = config.tile.n
    if n not in TILE_N:
        return f"tile N is {n}; it must be a multiple of 8 from {TILE_N[0]} to {TILE_N[-1]}"
    if n % 16 and ((config.promote and not plan.scales_sums) or (config.b.dtype in INT8 and n > 32)):
        condition = "with two-level accumulation" if config.promote else f"above 32 for {config.b.dtype}"
        return f"tile N is {n}; {condition} it must be a multiple of 16"
    row = n * config.b.loaded.unpacked_bytes
    if config.b.major == "mn" and row % SPANS[-1]:
        return f"tile N is {n}, or {row} bytes; with an mn-major B it must be a multiple of {SPANS[-1]} bytes"
    return None


@rule(
    "tile-k",
    ("tile.k", "b.dtype", "a.dtype", "tile.m", "schedule"),
    "PTX ISA, wgmma.mma_async: K is 32 bytes",
    WgmmaPlan,
)
def tile_k(plan: WgmmaPlan) -> str | None:
    """Tile K must be a multiple of 32 bytes from 64 to 512 bytes; with a narrow A, 64, 128 or 256 elements, depending
    on A's type."""
    config = plan.config
    k, size = config.tile.k, config.b.loaded.unpacked_bytes
    if plan.is_mixed:
        bits, parts = config.a.type.bits, 1 if plan.scales_sums else plan.slices
        depths = [d for d in MIXED_TILE_K if d * bits <= 8 * NARROW_ROW and d * bits % (8 * NARROW_CHUNK * parts) == 0]
        if k in depths:
            return None
        shared = f" that {plan.slices} warpgroups share" if plan.slices > 1 else ""
        return f"tile K is {k}; with a {config.a.dtype} A{shared} it must be {one_of(tuple(depths))}"
    if k * size in TILE_K_BYTES:
        return None
    low, high, step = (depth // size for depth in (TILE_K_BYTES[0], TILE_K_BYTES[-1], INSTRUCTION_K_BYTES))
    return f"tile K is {k}; with {config.b.dtype} operands it must be a multiple of {step} from {low} to {high}"


@rule(
    "cluster-shape",
    ("cluster.m", "cluster.n"),
    "CUDA Programming Guide, thread block clusters: a portable cluster has at most 8 blocks",
    WgmmaPlan,
)
def cluster(plan: WgmmaPlan) -> str | None:
    """A cluster must have 1, 2 or 4 CTAs along M and along N, and at most 8 in total."""
    config = plan.config
    m, n = config.cluster.m, config.cluster.n
    if m not in CLUSTER or n not in CLUSTER:
        return f"cluster is {m}x{n}; it must be {one_of(CLUSTER)} along M and along N"
    return None if m * n <= CLUSTER_CTAS else f"cluster is {m}x{n}; it must have at most {CLUSTER_CTAS} CTAs"


@rule(
    "cluster-parts",
    ("tile.n", "cluster.m", "cluster.n", "scheduler.decomposition", "scheduler.splits", "epilogue"),
    "gemmill: emitters/include/gemmill/epilogue/cluster_sums.cuh",
    WgmmaPlan,
)
def cluster_splits(plan: WgmmaPlan) -> str | None:
    """With the cluster decomposition the cluster shape must be 1x1, and each of the ``splits`` CTAs must store a
    multiple of 8 columns of D."""
    config = plan.config
    if config.scheduler.decomposition != "cluster":
        return None
    if (config.cluster.m, config.cluster.n) != (1, 1):
        return f"cluster is {config.cluster.m}x{config.cluster.n}; with the cluster decomposition it must be 1x1"
    columns = config.scheduler.splits * SHARE_COLUMNS * (2 if is_gated(config.epilogue) else 1)
    if config.tile.n % columns:
        return (
            f"tile N is {config.tile.n}; it must be a multiple of {columns}, so that each of {config.scheduler.splits} "
            f"CTAs stores a multiple of {SHARE_COLUMNS} columns of D"
        )
    return None


def _slices(plan: WgmmaPlan) -> Iterator[tuple[InputName, str, int, int]]:
    """For A and B: the name, the tile extent along which a stage has rows, its value, and the CTAs that share them."""
    a, b, tile, cluster = plan.config.a, plan.config.b, plan.config.tile, plan.config.cluster
    panels = plan.config.scheduler.batching == "kgrouped"  # each CTA loads other panels, with all rows
    yield "a", *(("tile.k", tile.k) if a.major == "mn" else ("tile.m", tile.m)), 1 if panels else cluster.n
    yield "b", *(("tile.k", tile.k) if b.major == "mn" else ("tile.n", tile.n)), 1 if panels else cluster.m


@rule(
    "multicast-slice",
    (
        *("tile.n", "tile.m", "tile.k", "cluster.m", "cluster.n", "scheduler.batching"),
        *("a.major", "b.major", "a.dtype", "b.dtype"),
    ),
    "CUDA Programming Guide, tensor memory access: addresses in shared memory are multiples of 128 bytes; swizzles "
    "depend on the address",
    WgmmaPlan,
)
def multicast_slice(plan: WgmmaPlan) -> str | None:
    """A multicast operand's slice per CTA must begin at a multiple of 128 bytes of shared memory."""
    for operand, extent, rows, ctas in _slices(plan):
        least = TMA_TARGET // plan.swizzle(operand)  # rows
        if ctas > 1 and rows % (ctas * least):
            return (
                f"{extent} is {rows}; {operand.upper()} is multicast to {ctas} CTAs that each load a slice, so it must "
                f"be a multiple of {ctas} x {least}"
            )
    return None


@rule(
    "multicast-panels",
    (
        *("tile.n", "tile.m", "tile.k", "cluster.m", "cluster.n", "scheduler.batching"),
        *("a.dtype", "a.major", "b.dtype", "b.major"),
    ),
    "measured on an H200: for a box completely outside a tensor, TMA reads at the start of the tensor",
    WgmmaPlan,
)
def multicast_panels(plan: WgmmaPlan) -> str | None:
    """With kgrouped batching, CTAs that share an operand must load equal numbers of its panels."""
    config = plan.config
    if config.scheduler.batching != "kgrouped":
        return None
    shared: tuple[tuple[InputName, str, int, int], ...] = (
        ("a", "tile.m", config.tile.m, config.cluster.n),
        ("b", "tile.n", config.tile.n, config.cluster.m),
    )
    for operand, extent, value, ctas in shared:
        panel = plan.swizzle(operand) // config.inputs[operand].loaded.unpacked_bytes
        if value % (ctas * panel):
            return (
                f"{extent} is {value}; {operand.upper()} is multicast to {ctas} CTAs that each load panels of {panel}, "
                f"so it must be a multiple of {ctas} x {panel}"
            )
    return None


@rule(
    "tma-box",
    ("tile.n", "tile.m", "tile.k", "cluster.m", "cluster.n", "a.major", "b.major", "scheduler.batching"),
    "CUDA driver API, cuTensorMapEncodeTiled: boxDim is at most 256",
    WgmmaPlan,
)
def tma_box(plan: WgmmaPlan) -> str | None:
    """A TMA box of A or B must have at most 256 rows."""
    for operand, extent, rows, ctas in _slices(plan):
        if rows // ctas > TMA_BOX:
            return f"{operand.upper()}'s TMA box has {rows // ctas} rows along {extent}; the limit is {TMA_BOX}"
    return None


@rule(
    "epilogue-box",
    (
        *("tile.n", "d.dtype", "d.major", "c.dtype", "c.major", "scheduler.decomposition", "scheduler.splits"),
        *("accumulator", "a.dtype", "epilogue", "scheduler.symmetry"),
    ),
    "CUDA driver API, cuTensorMapEncodeTiled: the inner box extent is a multiple of 16 bytes",
    WgmmaPlan,
)
def epilogue_box(plan: WgmmaPlan) -> str | None:
    """A row of an n-major subtile of C or D must be a multiple of 16 bytes."""
    for staged in (*plan.loaded, *plan.stored):
        row = plan.dividing_n * staged.bytes
        if staged.major == "n" and row % TMA_ALIGN:
            return (
                f"the epilogue's TMA box of {staged.dtype} has rows of {row} bytes; they must be a multiple of "
                f"{TMA_ALIGN} bytes"
            )
    return None


@rule(
    "min-stages",
    ("stages", "schedule", "tile.m", "a.dtype", "b.dtype"),
    "CUTLASS include/cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp: at least 2 stages",
    WgmmaPlan,
)
def min_stages(plan: WgmmaPlan) -> str | None:
    """``stages`` must be at least 2. Where warpgroups take stages in turn, it must be a multiple of their number: the
    parity of an mbarrier distinguishes only two laps, so that each must take the same stages in all laps of a tile."""
    stages, taking_turns = plan.config.stages, plan.slices
    if stages % taking_turns:
        return f"stages is {stages}; it must be a multiple of {taking_turns}, the warpgroups that take stages in turn"
    return None if stages >= MIN_STAGES else f"stages is {stages}; it must be at least {MIN_STAGES}"


@rule(
    "epilogue-matrices",
    ("scheduler.decomposition", "epilogue"),
    "gemmill: emitters/include/gemmill/kernel/reduction.cuh",
    WgmmaPlan,
)
def epilogue_matrices(plan: WgmmaPlan) -> str | None:
    """An epilogue can read at most 2 matrices at any strides and 12 vectors along N, where a matrix counts as 4
    vectors; in split-K kernels TMA must not move its matrices."""
    epilogue = plan.config.epilogue
    if plan.has_second_kernel:
        if not any(staged_formats(epilogue)):
            return None
        return f"split-K does not support epilogue matrices moved by TMA; write x[m, n] without a major: {epilogue}"
    matrices, columns = read_in_place(epilogue)
    if matrices <= MOST_MATRICES and columns + COLUMNS_OF_A_MATRIX * matrices <= MOST_COLUMNS:
        return None
    return (
        f"the epilogue reads {matrices} matrices at any strides and {columns} vectors along N; the limit is "
        f"{MOST_MATRICES} matrices, and {MOST_COLUMNS} vectors less {COLUMNS_OF_A_MATRIX} for each matrix. Let TMA "
        f"move matrices instead (x.n[m, n] or x.m[m, n]): {epilogue}"
    )


@rule(
    "gated-halves",
    ("tile.n", "cluster.m", "b.major", "b.scale", "scheduler.batching", "epilogue"),
    "gemmill: emitters/include/gemmill/copy/tma.cuh; a TMA box has runs of 8 rows of both halves of B",
    WgmmaPlan,
)
def gated_halves(plan: WgmmaPlan) -> str | None:
    """If the epilogue pairs the halves of N, B must be K-major, each CTA must load a multiple of 16 columns of a tile,
    which with scales of blocks come from one block of each half, and groups must not lie along K or N, nor matrices at
    any address."""
    config = plan.config
    if not gates_halves(config.epilogue):
        return None
    if config.b.major != "k":
        return f"B is {config.b.major}-major; an epilogue that pairs the halves of N needs k: {config.epilogue}"
    if config.scheduler.batching not in ("strided", "nested", "grouped", "masked"):
        return f"{config.scheduler.batching} batching does not support an epilogue that pairs halves: {config.epilogue}"
    columns = config.tile.n // config.cluster.m
    if columns % 16:
        return f"a CTA loads {columns} columns of B; an epilogue that pairs the halves of N needs a multiple of 16"
    if config.b.scale != "none" and PROMOTION_K * 2 % config.tile.n:
        return (
            f"tile N is {config.tile.n}, half of which can overlap two {PROMOTION_K}-column blocks of B's scales; an "
            f"epilogue that pairs the halves of N needs a divisor of {PROMOTION_K * 2}"
        )
    return None


@rule(
    "quantised-d",
    (
        *("tile.n", "cluster.m", "cluster.n", "d.dtype", "d.major", "c.dtype"),
        *("scheduler.decomposition", "scheduler.batching", "epilogue"),
    ),
    "gemmill: emitters/include/gemmill/collective/epilogue.cuh; a warpgroup holds whole blocks of a row",
    WgmmaPlan,
)
def quantised_d(plan: WgmmaPlan) -> str | None:
    """If the epilogue scales blocks of columns, D must be e4m3 and n-major, a tile must store whole blocks, CTAs must
    not share K, there must be no C and no matrix that TMA moves for the epilogue, and it can read at most 4 vectors,
    where a matrix counts for 4. In clusters of groups along M it cannot reduce: of 8 kernels with sums of rows, 5
    spilled."""
    config = plan.config
    epilogue, decomposition = config.epilogue, config.scheduler.decomposition
    if not scales_blocks(epilogue):
        return None
    if config.d.dtype != "e4m3" or config.d.major != "n":
        return f"D is {config.d.dtype} and {config.d.major}-major; an epilogue that scales blocks needs e4m3 and n"
    if decomposition != "tiles":
        return f"decomposition is {decomposition}; an epilogue that scales blocks of columns needs tiles"
    if config.c is not None or any(staged_formats(epilogue)):
        return f"TMA moves C or a matrix for the epilogue, which kernels that scale blocks do not support: {epilogue}"
    if plan.columns_d % BLOCK:
        return f"a tile has {plan.columns_d} columns of D; it must have a multiple of {BLOCK}, a block of its scales"
    in_clusters = GROUPED_EXTENT.get(config.scheduler.batching) == "m" and config.cluster.m * config.cluster.n > 1
    if in_clusters and any(output.is_reduction for output in parse(epilogue).outputs):
        return f"the epilogue scales blocks and reduces; with groups along M the cluster must be 1x1: {epilogue}"
    vectors = vectors_beside_blocks(epilogue)
    if vectors <= MOST_BESIDE_BLOCKS:
        return None
    return (
        f"the epilogue scales blocks and reads {vectors} vectors, where a matrix counts for {COLUMNS_OF_A_MATRIX}; the "
        f"limit is {MOST_BESIDE_BLOCKS}: {epilogue}"
    )


@rule(
    "accumulator-registers",
    (
        *("tile.n", "tile.m", "tile.k", "schedule", "accumulator", "promote", "scheduler.decomposition"),
        *("c.dtype", "d.major", "d.dtype", "a.dtype", "b.dtype", "a.major", "b.major", "a.align", "a.scale"),
        *("epilogue", "cluster.m", "cluster.n", "scheduler.batching", "scheduler.symmetry"),
    ),
    "PTX ISA, setmaxnreg, and wgmma.mma_async: register fragments of D; measured: larger accumulators spill",
    WgmmaPlan,
)
def accumulator_registers(plan: WgmmaPlan) -> str | None:
    """The accumulators of a thread must fit its registers without spilling."""
    config = plan.config
    registers = plan.accumulator_registers
    if plan.multiplies_from_registers:
        refused = _fragments(plan, registers)
        if refused or (plan.is_mixed and config.epilogue == LINEAR):
            return refused
        # Where scales multiply sums, the epilogue holds one set of them, and no fragments. Of 164 kernels, four of
        # groups that read a matrix at any strides spilled, with tiles of 128 rows and 112 or 128 columns.
        is_free = plan.scales_sums and (plan.slices > 1 or not read_in_place(config.epilogue)[0])
        registers = registers // 2 if is_free else registers + plan.fragment_registers
    limit = plan.accumulator_limit
    if registers <= limit:
        return None
    if decomposition_of(config).is_serial:
        return (
            f"a {plan.warpgroup_m}x{config.tile.n} accumulator of a slice of K and one of all slices take {registers} "
            f"registers per thread; the limit for {plan.consumer_warpgroups} consumer warpgroups "
            f"{EPILOGUE_WORDS[plan.epilogue_kind]} {config.d.dtype} D is {limit}"
        )
    if config.promote:
        return (
            f"a {plan.warpgroup_m}x{config.tile.n} accumulator with two levels takes {registers} registers per thread; "
            f"the limit for {plan.consumer_warpgroups} consumer warpgroups is {limit}"
        )
    epilogue = f"{EPILOGUE_WORDS[plan.epilogue_kind]} {config.d.dtype} D"
    if config.scheduler.batching == "masked":
        epilogue += " of masked groups" + " and a transposed B" * plan.transposes_for_masked_groups
    return (
        f"a {plan.warpgroup_m}x{config.tile.n} {config.accumulator} accumulator takes {registers} registers per "
        f"thread; the limit for {plan.consumer_warpgroups} consumer warpgroups {epilogue} is {limit}"
    )


def _fragments(plan: WgmmaPlan, accumulators: int) -> str | None:
    """Why accumulators and fragments of A do not fit the registers of a thread; None if they fit."""
    config = plan.config
    fragments, consumers = plan.fragment_registers, plan.consumer_warpgroups
    limit = next((FRAGMENT_LIMIT.get((consumers, most), 0) for most in (32, 64) if fragments <= most), 0)
    if consumers == 4 and config.c is not None:
        limit -= 8
    if config.tile.n % 16:
        limit -= 8
    if plan.has_second_kernel and config.d.major == "m" and plan.cluster_ctas > 1:
        limit -= 8
    if config.d.type.unpacked_bytes == 1:
        limit -= 16
    limit = max(0, limit)
    if accumulators + fragments <= limit:
        return None
    return (
        f"a {plan.warpgroup_m}x{config.tile.n} accumulator and two stages of A take {accumulators + fragments} "
        f"registers per thread; the limit for {consumers} consumer warpgroups is {limit}"
    )


AUTO_STAGES_FIELDS = (
    *("tile.n", "tile.k", "tile.m", "schedule"),
    *("d.dtype", "d.major", "c.dtype", "c.major", "a.dtype", "a.major", "a.align", "a.scale"),
    *("b.dtype", "b.major", "arch"),
    *("scheduler.decomposition", "scheduler.splits", "scheduler.symmetry", "scheduler.batching", "scheduler.rows"),
    *("accumulator", "epilogue"),
)
"""The fields that determine how many stages fit."""


@rule(
    "shared-memory",
    ("stages", *AUTO_STAGES_FIELDS),
    "CUDA Programming Guide, Compute Capabilities: 227 KiB of shared memory per CTA on 9.0",
    WgmmaPlan,
)
def memory_of_a_cta(plan: WgmmaPlan) -> str | None:
    """Stages, epilogue subtiles and mbarriers must fit the shared memory of a CTA."""
    shared_bytes, capacity = plan.shared_bytes, plan.config.target.shared_bytes
    if shared_bytes <= capacity:
        return None
    return (
        f"{plan.config.stages} stages of {sum(plan.stage_bytes):,} bytes and the epilogue take {shared_bytes:,} bytes "
        f"of shared memory; a CTA has {capacity:,}"
    )
