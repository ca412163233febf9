"""The rules of WGMMA kernels: operands, tiles, clusters and stages that they take, registers and memory that hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from gemmill.library.config.domains import one_of
from gemmill.library.config.field import Value
from gemmill.library.config.model import InputName
from gemmill.library.config.scales import BLOCK_SCALES
from gemmill.library.dtypes import FP8, INT8
from gemmill.library.epilogues.parse import LINEAR, is_gated, staged_formats
from gemmill.library.families.shared_rules import Accumulators, converted, multiplied
from gemmill.library.families.wgmma.registers import (
    COLUMNS_OF_A_MATRIX,
    EPILOGUE_WORDS,
    FRAGMENT_LIMIT,
    MOST_COLUMNS,
    MOST_MATRICES,
    read_in_place,
)
from gemmill.library.families.wgmma.wgmma_plan import (
    INSTRUCTION_K_BYTES,
    MAX_AUTO_STAGES,
    MAX_SCALED_STAGES,
    MIN_STAGES,
    SHALLOW_K_BYTES,
    SPANS,
    SUBTILE_M,
    WgmmaPlan,
)
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.legality.rule import Rule, rule

NARROW = (*INT8, *FP8, "s4", "u4")
"""Types of A that kernels upconvert to B's."""
GROUP_SCALES = tuple(f"1x{group}{zeros}" for zeros in ("", "z") for group in (32, 64, 128))
"""Scales of groups of narrow A along K, without and with zero points."""
ACCUMULATORS: Accumulators = MappingProxyType(
    {
        ("bf16", "bf16"): ("f32",),
        ("f16", "f16"): ("f32", "f16"),
        ("tf32", "tf32"): ("f32",),
        **{(a, b): ("f32", "f16") for a in FP8 for b in FP8},
        **{(a, b): ("s32",) for a in INT8 for b in INT8},
        **{(a, b): ("f32",) for a in NARROW for b in ("bf16", "f16")},
    }
)
"""Accumulator types by the types of A and B."""
PROMOTION_K = 128
"""K that four fp8 WGMMAs multiply, and that shares a scale where blocks have one: the depth of a stage with two-level
accumulation."""
TRANSPOSED_DEPTHS = (64, 128, 256)
"""Bytes along K of stages that are transposed: what warps deal out among their lanes."""
ALIGNS = (1, 2, 4, 8, 16)
"""Alignments that the reduction kernel takes of C and D, which it accesses without TMA."""
MIXED_TILE_K = (64, 128, 256)
"""Depths of a stage with a narrow A."""
NARROW_ROW = 128
"""Most bytes of a row of such a stage: one swizzle span."""
NARROW_CHUNK = 16
"""Bytes along K of its rows that a lane reads at a time."""
TILE_M: Mapping[str, tuple[int, ...]] = MappingProxyType({"cooperative": (128, 192, 256), "pingpong": (64, 128)})
"""Rows of a tile by schedule: one or two WGMMAs of 64 rows for each consumer warpgroup."""
TILE_N = tuple(range(8, 257, 8))
TILE_K_BYTES = tuple(range(SHALLOW_K_BYTES, 513, 32))
"""Depths of a stage: whole WGMMAs, and rows that a swizzle of 32 bytes or more fits."""
SHARE_COLUMNS = 8
"""Columns of D that one fragment of a warp has: what a CTA of a cluster stores is made of whole ones."""
CLUSTER = (1, 2, 4)
"""CTAs of a cluster along M and along N."""
CLUSTER_CTAS = 8
"""Most CTAs of a cluster."""
TMA_BOX = 256
"""Most elements of a TMA box along any extent."""
TMA_TARGET = 128
"""Bytes that addresses in shared memory that TMA writes to are a multiple of. Swizzles go by address, so that a slice
of an operand may begin inside a swizzle's period."""


_SCALE_PAIRS = ", or ".join(f"{a} and {b}" for a, b in (("none", "none"), *BLOCK_SCALES.values()))


@rule(
    "tma-majors",
    ("a.major", "b.major", "d.major", "c.major"),
    "CUDA driver API, cuTensorMapEncodeTiled: the first extent is contiguous",
    WgmmaPlan,
)
def majors(plan: WgmmaPlan) -> str | None:
    """A, B, C and D are contiguous along one of their extents."""
    loose = [name.upper() for name, operand in plan.config.operands.items() if operand.major == "any"]
    return f"{' and '.join(loose)} may have any strides; TMA needs one contiguous extent" if loose else None


@rule(
    "row-groups",
    ("d.major", "a.major", "c.major", "scheduler.batching"),
    "CUDA driver API, cuTensorMapEncodeTiled: strides, and so places of a window, are multiples of 16 bytes",
    WgmmaPlan,
)
def row_groups(plan: WgmmaPlan) -> str | None:
    """In groups of rows D is n-major; where a group may begin at any row, A is K-major and C n-major."""
    config = plan.config
    batching = config.scheduler.batching
    if batching not in ("grouped", "masked"):
        return None
    if config.d.major == "m":
        return (
            f"D is m-major with {batching} batching; a group ends at any row, where TMA clips D only if it is n-major"
        )
    along_m = ["A"] * (config.a.major == "mn") + ["C"] * (config.outputs["c"].major == "m")
    if batching == "masked" or not along_m:
        return None
    return (
        f"{' and '.join(along_m)} is contiguous along M with grouped batching; a group begins at any row, and a TMA "
        "load at multiples of 16 bytes"
    )


@rule(
    "k-groups",
    ("a.major", "b.major", "scheduler.batching"),
    "CUDA driver API, cuTensorMapEncodeTiled: strides, and so places of a window, are multiples of 16 bytes",
    WgmmaPlan,
)
def k_groups(plan: WgmmaPlan) -> str | None:
    """In groups along K neither A nor B is K-major."""
    config = plan.config
    if config.scheduler.batching != "kgrouped":
        return None
    k_major = [name.upper() for name, operand in config.inputs.items() if operand.major == "k"]
    if not k_major:
        return None
    return (
        f"{' and '.join(k_major)} is K-major with kgrouped batching; a group ends at any K, where TMA clips only "
        "operands that are mn-major"
    )


@rule(
    "array-panels",
    ("tile.k", "a.major", "b.major", "a.dtype", "b.dtype", "scheduler.batching"),
    "measured on an H200: TMA reads at the start of a tensor for a box that lies wholly outside it",
    WgmmaPlan,
)
def array(plan: WgmmaPlan) -> str | None:
    """In arrays a row of a K-major tile is one TMA box."""
    config = plan.config
    if config.scheduler.batching != "array":
        return None
    for name, operand in config.inputs.items():
        row = config.tile.k * operand.type.unpacked_bytes
        if operand.major == "k" and row not in SPANS:
            return (
                f"a row of {name.upper()}'s tile has {row} bytes; with array batching it must be one box of "
                f"{one_of(SPANS[::-1])} bytes: others may lie wholly beyond K"
            )
    return None


@rule(
    "array-clusters",
    ("cluster.m", "cluster.n", "scheduler.batching"),
    "measured on an H200: TMA reads at the start of a tensor for a box that lies wholly outside it",
    WgmmaPlan,
)
def descriptor_start(plan: WgmmaPlan) -> str | None:
    """Arrays and groups along K have no clusters."""
    config = plan.config
    batching, ctas = config.scheduler.batching, config.cluster.m * config.cluster.n
    if batching not in ("array", "kgrouped") or ctas == 1:
        return None
    return (
        f"cluster is {config.cluster.m}x{config.cluster.n}; with {batching} batching it must be 1x1: slices may lie "
        "wholly beyond K, where TMA reads at the start of a descriptor, which is no memory of the operand"
    )


@rule(
    "mixed-batching",
    ("scheduler.batching", "a.dtype", "b.dtype"),
    "gemmill: what the narrow operand's loads are made for",
    WgmmaPlan,
)
def mixed_batching(plan: WgmmaPlan) -> str | None:
    """A narrow A comes in strided batches alone."""
    config = plan.config
    if config.scheduler.batching == "strided" or not plan.is_mixed:
        return None
    return f"A is {config.a.dtype} and B {config.b.dtype}; kernels that upconvert A have strided batching alone"


@rule(
    "mma-majors",
    ("a.major", "b.major", "tile.k", "a.dtype", "b.dtype"),
    "PTX ISA, wgmma.mma_async: imm-trans-a and imm-trans-b exist for .f16 and .bf16 alone; gemmill: what the "
    "transposing warps deal out",
    WgmmaPlan,
)
def mma_majors(plan: WgmmaPlan) -> str | None:
    """A narrow A is K-major; stages that are transposed in shared memory are as deep as warps can deal out."""
    config = plan.config
    if plan.is_mixed and config.a.major == "mn":
        return f"A is {config.a.dtype} and mn-major; a narrow A must be K-major"
    for name, operand in config.inputs.items():
        depth = config.tile.k * operand.type.unpacked_bytes
        if plan.transposes(name) and depth not in TRANSPOSED_DEPTHS:
            return (
                f"{name.upper()} is {operand.dtype} and mn-major, in stages of {depth} bytes along K; to be "
                f"transposed those must be {one_of(TRANSPOSED_DEPTHS)}"
            )
    return None


@rule(
    "tma-alignment",
    ("a.align", "b.align", "d.align", "c.align", "c.dtype", "scheduler.decomposition"),
    "CUDA driver API, cuTensorMapEncodeTiled: globalAddress and globalStrides are multiples of 16 bytes",
    WgmmaPlan,
)
def alignment(plan: WgmmaPlan) -> str | None:
    """What TMA moves is aligned to 16 bytes: all operands, of split-K kernels A and B."""
    config = plan.config
    wrong = [
        f"{name.upper()} is aligned to {operand.align} bytes"
        for name, operand in (config.inputs if plan.has_second_kernel else config.operands).items()
        if operand.align != TMA_ALIGN and not (name == "c" and config.c is None)
    ]
    return f"{' and '.join(wrong)}; TMA takes alignment {TMA_ALIGN}" if wrong else None


@rule(
    "reduction-alignment",
    ("d.align", "c.align", "d.dtype", "c.dtype", "scheduler.decomposition"),
    "CUDA Programming Guide, Device Memory Accesses: vectors are aligned to their size",
    WgmmaPlan,
)
def reduction_alignment(plan: WgmmaPlan) -> str | None:
    """C and D of split-K kernels are aligned to a power of two that is at least an element."""
    if not plan.has_second_kernel:
        return None
    for name, operand in plan.config.outputs.items():
        if not operand.is_there:
            continue
        allowed = [align for align in ALIGNS if align >= operand.type.unpacked_bytes]
        if operand.align not in allowed:
            return f"{name.upper()} is {operand.dtype} aligned to {operand.align} bytes; it must be {one_of(allowed)}"
    return None


@rule(
    "sums-of-parts",
    ("scheduler.decomposition", "accumulator"),
    "gemmill: parts are added in f32 or s32, whatever the tensor cores accumulate in",
    WgmmaPlan,
)
def sums(plan: WgmmaPlan) -> str | None:
    """Kernels that add partial sums up in accumulators have accumulators of 32 bits."""
    config = plan.config
    decomposition = config.scheduler.decomposition
    if decomposition in ("stream", "cluster") and config.accumulator == "f16":
        return f"sums of {decomposition} kernels are added up in accumulators, which must not be f16: use splitk"
    return None


@rule(
    "parts-batching",
    ("scheduler.decomposition", "scheduler.batching"),
    "gemmill: the tile schedulers that exist",
    WgmmaPlan,
)
def parts_batching(plan: WgmmaPlan) -> str | None:
    """Kernels whose CTAs share K take strided batches."""
    config = plan.config
    decomposition, batching = config.scheduler.decomposition, config.scheduler.batching
    if decomposition == "tiles" or batching == "strided":
        return None
    return f"{decomposition} kernels take strided batches, not {batching} ones"


@rule(
    "mixed-parts",
    ("scheduler.decomposition", "a.dtype", "b.dtype"),
    "gemmill: no register is left to add parts beside upconverted fragments",
    WgmmaPlan,
)
def mixed_parts(plan: WgmmaPlan) -> str | None:
    """A narrow A goes with data-parallel and split-K kernels alone."""
    config = plan.config
    decomposition = config.scheduler.decomposition
    if decomposition == "tiles" or plan.has_second_kernel or not plan.is_mixed:
        return None
    return (
        f"{decomposition} kernels take operands of equal width; A is {config.a.dtype}, B {config.b.dtype}: use splitk"
    )


@rule(
    "promotion",
    ("promote", "tile.k", "accumulator", "a.dtype", "b.dtype"),
    "CUTLASS include/cutlass/gemm/collective/fp8_accumulation.hpp: promotion every 4 MMAs",
    WgmmaPlan,
)
def promote(plan: WgmmaPlan) -> str | None:
    """Two-level accumulation is for fp8 summed in f32, in stages of 128 elements along K."""
    config = plan.config
    if not config.promote:
        return None
    for name, operand in config.inputs.items():
        if operand.dtype not in FP8:
            return f"{name.upper()} is {operand.dtype}; two-level accumulation (promote) is for {one_of(FP8)}"
    if config.accumulator != "f32":
        return f"two-level accumulation (promote) is for sums of f32, not of {config.accumulator}"
    if config.tile.k == PROMOTION_K:
        return None
    return f"tile K is {config.tile.k}; with two-level accumulation (promote) it must be {PROMOTION_K}"


@rule(
    "block-scales",
    ("a.scale", "b.scale", "promote", "tile.n", "a.dtype", "b.dtype", "stages"),
    "DeepSeek-V3 technical report, 3.3: A scaled 1 x 128, B 128 x 128; gemmill: a thread holds two scales a row",
    WgmmaPlan,
)
def block_scales(plan: WgmmaPlan) -> str | None:
    """A and B have no scales, or fp8 with two-level accumulation those of 1x128 and 128x128 of one type, or a
    narrow A those of groups."""
    config = plan.config
    a, b, n = config.a.scale, config.b.scale, config.tile.n
    if (a, b) == ("none", "none"):
        return None
    if plan.is_mixed:
        if a in ("none", *GROUP_SCALES) and b == "none":
            return None
        types = f"{config.a.dtype} x {config.b.dtype}"
        return f"A is scaled {a} and B {b}; of {types} A may be {one_of(GROUP_SCALES)}, B none"
    if (a, b) not in BLOCK_SCALES.values():
        return f"A is scaled {a} and B {b}; it must be {_SCALE_PAIRS}"
    if not config.promote:
        return "promote is 0; scales need two-level accumulation, so it must be 4"
    if n + PROMOTION_K - math.gcd(n, PROMOTION_K) > 2 * PROMOTION_K:
        return f"tiles of {n} columns meet three blocks of B's scales of {PROMOTION_K} columns; kernels hold two"
    if config.stages > MAX_SCALED_STAGES:
        return f"stages is {config.stages}; block scales have named barriers for {MAX_SCALED_STAGES}"
    return None


@rule(
    "tile-m",
    ("tile.m", "schedule", "a.dtype", "b.dtype"),
    "PTX ISA, wgmma.mma_async: M is 64; CUTLASS include/cutlass/gemm/kernel/"
    "sm90_gemm_tma_warpspecialized_cooperative.hpp: cooperative tiles have at least 128 rows",
    WgmmaPlan,
)
def tile_m(plan: WgmmaPlan) -> str | None:
    """Tile M is one or two WGMMAs of 64 rows for each consumer warpgroup; four share 64 rows of a narrow A."""
    config = plan.config
    schedule, m = config.schedule, config.tile.m
    allowed = TILE_M[schedule]
    if schedule == "cooperative" and plan.is_mixed:
        allowed = (SUBTILE_M, *allowed)
    return None if m in allowed else f"tile M is {m}; {schedule} kernels take {one_of(allowed)}"


@rule(
    "tile-n",
    ("tile.n", "b.major", "b.dtype", "promote"),
    "PTX ISA, wgmma.mma_async: N is 8 to 256 in steps of 8, of integers above 32 in steps of 16; swizzling modes",
    WgmmaPlan,
)
def tile_n(plan: WgmmaPlan) -> str | None:
    """Tile N is a multiple of 8 up to 256, of 16 with two-level accumulation and for wide tiles of integers; rows
    of an mn-major B fit a swizzle."""
    config = plan.config
    n = config.tile.n
    if n not in TILE_N:
        return f"tile N is {n}; it must be a multiple of 8 from {TILE_N[0]} to {TILE_N[-1]}"
    if n % 16 and (config.promote or (config.b.dtype in INT8 and n > 32)):
        what = "with two-level accumulation" if config.promote else f"above 32, of {config.b.dtype},"
        return f"tile N is {n}; {what} it must be a multiple of 16"
    row = n * config.b.type.unpacked_bytes
    if config.b.major == "mn" and row % SPANS[-1]:
        return f"tile N is {n}: rows of {row} bytes where B is mn-major; a swizzle spans at least {SPANS[-1]}"
    return None


@rule(
    "tile-k",
    ("tile.k", "b.dtype", "a.dtype", "tile.m", "schedule"),
    "PTX ISA, wgmma.mma_async: K is 32 bytes",
    WgmmaPlan,
)
def tile_k(plan: WgmmaPlan) -> str | None:
    """Tile K is whole WGMMAs, in rows that a swizzle fits."""
    config = plan.config
    k, size = config.tile.k, config.b.type.unpacked_bytes
    if plan.is_mixed:
        bits, slices = config.a.type.bits, plan.slices
        depths = [d for d in MIXED_TILE_K if d * bits <= 8 * NARROW_ROW and d * bits % (8 * NARROW_CHUNK * slices) == 0]
        if k in depths:
            return None
        shared = f", shared by {slices} warpgroups," if slices > 1 else ""
        return f"tile K is {k}; with {config.a.dtype} A{shared} it must be {one_of(tuple(depths))}"
    if k * size in TILE_K_BYTES:
        return None
    low, high, step = (depth // size for depth in (TILE_K_BYTES[0], TILE_K_BYTES[-1], INSTRUCTION_K_BYTES))
    return f"tile K is {k}; with {config.b.dtype} operands it must be a multiple of {step} from {low} to {high}"


@rule(
    "cluster-shape",
    ("cluster.m", "cluster.n"),
    "CUDA Programming Guide, thread block clusters: at most 8 blocks are portable",
    WgmmaPlan,
)
def cluster(plan: WgmmaPlan) -> str | None:
    """A cluster has one, two or four CTAs along M and along N, and at most eight."""
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
    """A cluster that shares K of a tile is 1x1, and each of its CTAs stores whole fragments of columns."""
    config = plan.config
    if config.scheduler.decomposition != "cluster":
        return None
    if (config.cluster.m, config.cluster.n) != (1, 1):
        return f"cluster is {config.cluster.m}x{config.cluster.n}; where its CTAs share K of a tile it must be 1x1"
    columns = config.scheduler.splits * SHARE_COLUMNS * (2 if is_gated(config.epilogue) else 1)
    if config.tile.n % columns:
        return (
            f"tile N is {config.tile.n}; {config.scheduler.splits} CTAs store a share of its columns of D each, which "
            f"must be a multiple of {SHARE_COLUMNS}: take a multiple of {columns}"
        )
    return None


def _slices(plan: WgmmaPlan) -> Iterator[tuple[InputName, str, int, int]]:
    """Operand, the tile extent along which its stage has rows, that extent, and the CTAs that share the rows."""
    a, b, tile, cluster = plan.config.a, plan.config.b, plan.config.tile, plan.config.cluster
    yield "a", *(("tile.k", tile.k) if a.major == "mn" else ("tile.m", tile.m)), cluster.n
    yield "b", *(("tile.k", tile.k) if b.major == "mn" else ("tile.n", tile.n)), cluster.m


@rule(
    "multicast-slice",
    ("tile.n", "tile.m", "tile.k", "cluster.m", "cluster.n", "a.major", "b.major", "a.dtype", "b.dtype"),
    "CUDA Programming Guide, tensor memory access: addresses in shared memory are multiples of 128 bytes; swizzles "
    "go by address",
    WgmmaPlan,
)
def multicast_slice(plan: WgmmaPlan) -> str | None:
    """The slices of an operand that the CTAs of a cluster load for each other begin where TMA can write."""
    for operand, extent, rows, ctas in _slices(plan):
        least = TMA_TARGET // plan.swizzle(operand)  # rows
        if ctas > 1 and rows % (ctas * least):
            return (
                f"{operand.upper()} is multicast to {ctas} CTAs that load a slice of its rows along {extent} each; "
                f"{extent} is {rows}, not a multiple of {ctas} x {least}"
            )
    return None


@rule(
    "tma-box",
    ("tile.n", "tile.m", "tile.k", "cluster.m", "cluster.n", "a.major", "b.major"),
    "CUDA driver API, cuTensorMapEncodeTiled: boxDim is at most 256",
    WgmmaPlan,
)
def tma_box(plan: WgmmaPlan) -> str | None:
    """A TMA box of A or B has at most 256 rows."""
    for operand, extent, rows, ctas in _slices(plan):
        if rows // ctas > TMA_BOX:
            return f"{operand.upper()}'s TMA box has {rows // ctas} rows along {extent}; a box has at most {TMA_BOX}"
    return None


@rule(
    "epilogue-box",
    (
        *("tile.n", "d.dtype", "d.major", "c.dtype", "c.major", "scheduler.decomposition", "scheduler.splits"),
        *("accumulator", "epilogue"),
    ),
    "CUDA driver API, cuTensorMapEncodeTiled: the first box extent is a multiple of 16 bytes",
    WgmmaPlan,
)
def epilogue_box(plan: WgmmaPlan) -> str | None:
    """Rows of n-major subtiles of C and D are multiples of 16 bytes."""
    for staged in (*plan.loaded, *plan.stored):
        row = plan.dividing_n * staged.bytes
        if staged.major == "n" and row % TMA_ALIGN:
            return f"the TMA box of {staged.dtype} has rows of {row} bytes; they must be a multiple of {TMA_ALIGN}"
    return None


@rule(
    "min-stages",
    ("stages",),
    "CUTLASS include/cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp: at least 2 stages",
    WgmmaPlan,
)
def min_stages(plan: WgmmaPlan) -> str | None:
    """The pipeline has at least two stages."""
    stages = plan.config.stages
    return None if stages >= MIN_STAGES else f"stages is {stages}; the pipeline needs at least {MIN_STAGES}"


@rule(
    "epilogue-matrices",
    ("scheduler.decomposition", "epilogue"),
    "gemmill: emitters/include/gemmill/kernel/reduction.cuh",
    WgmmaPlan,
)
def epilogue_matrices(plan: WgmmaPlan) -> str | None:
    """An epilogue reads few matrices and vectors in place; of split-K kernels it moves none by TMA."""
    epilogue = plan.config.epilogue
    if plan.has_second_kernel:
        if not any(staged_formats(epilogue)):
            return None
        return (
            "the second kernel of split-K, which has no TMA, reads and writes matrices at any strides; "
            f"leave out their majors: {epilogue}"
        )
    matrices, columns = read_in_place(epilogue)
    if matrices <= MOST_MATRICES and columns + COLUMNS_OF_A_MATRIX * matrices <= MOST_COLUMNS:
        return None
    return (
        f"the epilogue reads {matrices} matrices at any strides and {columns} vectors along N, for which a thread that "
        f"holds sums has no registers; it may read {MOST_MATRICES} of the former, {MOST_COLUMNS} of the latter, each "
        f"matrix in place of {COLUMNS_OF_A_MATRIX}, and matrices that TMA moves (x.n[m, n], x.m[m, n]): {epilogue}"
    )


@rule(
    "accumulator-registers",
    (
        *("tile.n", "tile.m", "tile.k", "schedule", "accumulator", "promote", "scheduler.decomposition"),
        *("c.dtype", "d.major", "d.dtype", "a.dtype", "b.dtype", "a.major", "b.major", "a.scale", "epilogue"),
        *("cluster.m", "cluster.n", "scheduler.batching"),
    ),
    "PTX ISA, setmaxnreg, and wgmma.mma_async: register fragments of D; CUTLASS lets such a config spill",
    WgmmaPlan,
)
def accumulator_registers(plan: WgmmaPlan) -> str | None:
    """The sums of a thread fit the registers that ptxas leaves them without spilling."""
    config = plan.config
    registers = plan.accumulator_registers
    if plan.multiplies_from_registers:
        refused = _fragments(plan, registers)
        if refused or (plan.is_mixed and config.epilogue == LINEAR):
            return refused
        registers += plan.fragment_registers
    limit = plan.accumulator_limit
    if registers <= limit:
        return None
    if config.promote:
        return (
            f"{plan.warpgroup_m}x{config.tile.n} sums, and those of two-level accumulation, take {registers} "
            f"registers a thread; {plan.consumer_warpgroups} consumer warpgroups have at most {limit} free"
        )
    epilogue = f"{EPILOGUE_WORDS[plan.epilogue_kind]} {config.d.dtype} D"
    if config.scheduler.batching == "masked":
        epilogue += " of masked groups" + " beside a transposed B" * plan.transposes_for_masked_groups
    return (
        f"a {plan.warpgroup_m}x{config.tile.n} {config.accumulator} accumulator takes {registers} registers a "
        f"thread; {plan.consumer_warpgroups} consumer warpgroups with {epilogue} have at most {limit} free"
    )


def _fragments(plan: WgmmaPlan, accumulators: int) -> str | None:
    """What is wrong with sums beside fragments of A in the registers of a thread."""
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
        f"{plan.warpgroup_m}x{config.tile.n} sums and two stages of A take {accumulators + fragments} "
        f"registers a thread; {consumers} consumer warpgroups have at most {limit} free for them"
    )


AUTO_STAGES_FIELDS = (
    *("tile.n", "tile.k", "tile.m", "schedule"),
    *("d.dtype", "d.major", "c.dtype", "c.major", "a.dtype", "a.major", "a.scale", "b.dtype", "b.major", "arch"),
    *("scheduler.decomposition", "scheduler.splits", "accumulator", "epilogue"),
)
"""The fields that the number of stages that fit depends on."""


@rule(
    "shared-memory",
    ("stages", *AUTO_STAGES_FIELDS),
    "CUDA Programming Guide, Compute Capabilities: 227 KiB of shared memory a CTA on 9.0",
    WgmmaPlan,
)
def memory_of_a_cta(plan: WgmmaPlan) -> str | None:
    """Stages, subtiles of the epilogue and mbarriers fit the shared memory that a CTA can have."""
    needed, capacity = plan.shared_bytes, plan.config.target.shared_bytes
    if needed <= capacity:
        return None
    return (
        f"{plan.config.stages} x {sum(plan.stage_bytes):,} bytes of stages and the epilogue take {needed:,} bytes of "
        f"shared memory; a CTA has {capacity:,}"
    )


RULES: tuple[Rule, ...] = (
    multiplied(
        "mma-types",
        WgmmaPlan,
        "WGMMA",
        ACCUMULATORS,
        "PTX ISA, wgmma.mma_async: types of A, B and D; CUTLASS include/cute/arch/mma_sm90.hpp",
    ),
    majors,
    mma_majors,
    converted("epilogue-types", WgmmaPlan),
    row_groups,
    k_groups,
    array,
    descriptor_start,
    mixed_batching,
    alignment,
    reduction_alignment,
    sums,
    parts_batching,
    mixed_parts,
    tile_m,
    tile_n,
    tile_k,
    promote,
    block_scales,
    cluster,
    cluster_splits,
    min_stages,
    tma_box,
    epilogue_box,
    epilogue_matrices,
    multicast_slice,
    accumulator_registers,
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
        "stages": tuple(range(MIN_STAGES, MAX_AUTO_STAGES + 1)),
    }
)
"""The values that the family takes, of the fields that have no words."""
