"""What tiles, clusters and stages a WGMMA kernel takes, and what TMA boxes they make."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from gemmill.library.config.domains import one_of
from gemmill.library.config.fields import Fields
from gemmill.library.config.scales import BLOCK_SCALES
from gemmill.library.epilogues.parse import is_gated
from gemmill.library.families.arithmetic import FP8, INT8
from gemmill.library.families.wgmma import ring, subtiles, warpgroups
from gemmill.library.families.wgmma.operands import GROUP_SCALES, PROMOTION_K, SPANS
from gemmill.library.legality.quantities import TMA_ALIGN, dtype_bytes, element_bits, element_bytes, integer
from gemmill.library.legality.rule import rule

MIXED_TILE_K = (64, 128, 256)
"""Depths of a stage with a narrow A."""
NARROW_ROW = 128
"""Most bytes of a row of such a stage: one swizzle span."""
NARROW_CHUNK = 16
"""Bytes along K of its rows that a lane reads at a time."""
TILE_M: Mapping[str, tuple[int, ...]] = MappingProxyType({"cooperative": (128, 192, 256), "pingpong": (64, 128)})
"""Rows of a tile by schedule: one or two WGMMAs of 64 rows for each consumer warpgroup."""
TILE_N = tuple(range(8, 257, 8))
TILE_K_BYTES = tuple(range(64, 513, 32))
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
MIN_STAGES = 2


@rule(
    "promotion",
    ("promote", "tile.k", "accumulator", "a.dtype", "b.dtype"),
    "CUTLASS include/cutlass/gemm/collective/fp8_accumulation.hpp: promotion every 4 MMAs",
    "wgmma",
)
def promote(f: Fields) -> str | None:
    """Promotion is for fp8 summed in f32, in stages of 128 elements along K."""
    if not f["promote"]:
        return None
    for operand in "ab":
        if f[f"{operand}.dtype"] not in FP8:
            return f"{operand.upper()} is {f[f'{operand}.dtype']}; promotion is for {one_of(FP8)}"
    if f["accumulator"] != "f32":
        return f"sums of {f['accumulator']} are not promoted; accumulate in f32"
    return None if f["tile.k"] == PROMOTION_K else f"tile K is {f['tile.k']}; promoted stages have {PROMOTION_K}"


@rule(
    "block-scales",
    ("a.scale", "b.scale", "promote", "tile.n", "a.dtype", "b.dtype", "stages"),
    "DeepSeek-V3 technical report, 3.3: A scaled 1 x 128, B 128 x 128; gemmill: a thread holds two scales a row",
    "wgmma",
)
def block_scales(f: Fields) -> str | None:
    """A and B have no scales, or promoted fp8 those of 1x128 and 128x128 of one type, or a narrow A those of groups."""
    a, b, n = f["a.scale"], f["b.scale"], integer(f, "tile.n")
    if (a, b) == ("none", "none"):
        return None
    if warpgroups.is_mixed(f):
        if a in ("none", *GROUP_SCALES) and b == "none":
            return None
        return f"A is scaled {a} and B {b}; of {f['a.dtype']} x {f['b.dtype']} A may be {one_of(GROUP_SCALES)}, B none"
    if (a, b) not in BLOCK_SCALES.values():
        pairs = ", or ".join(f"{of_a} and {of_b}" for of_a, of_b in (("none", "none"), *BLOCK_SCALES.values()))
        return f"A is scaled {a} and B {b}; it must be {pairs}"
    if not f["promote"]:
        return "promote is 0; scales multiply promoted sums, so it must be 4"
    if n + PROMOTION_K - math.gcd(n, PROMOTION_K) > 2 * PROMOTION_K:
        return f"tiles of {n} columns meet three blocks of B's scales of {PROMOTION_K} columns; kernels hold two"
    if integer(f, "stages") > ring.MAX_SCALED_STAGES:
        return f"stages is {f['stages']}; block scales have named barriers for {ring.MAX_SCALED_STAGES}"
    return None


@rule(
    "tile-m",
    ("tile.m", "schedule", "a.dtype", "b.dtype"),
    "PTX ISA, wgmma.mma_async: M is 64; CUTLASS include/cutlass/gemm/kernel/"
    "sm90_gemm_tma_warpspecialized_cooperative.hpp: cooperative tiles have at least 128 rows",
    "wgmma",
)
def tile_m(f: Fields) -> str | None:
    """Tile M is one or two WGMMAs of 64 rows for each consumer warpgroup; four share 64 rows of a narrow A."""
    schedule, m = str(f["schedule"]), integer(f, "tile.m")
    allowed = TILE_M[schedule]
    if schedule == "cooperative" and warpgroups.is_mixed(f):
        allowed = (warpgroups.SUBTILE_M, *allowed)
    return None if m in allowed else f"tile M is {m}; {schedule} kernels take {one_of(allowed)}"


@rule(
    "tile-n",
    ("tile.n", "b.major", "b.dtype", "promote"),
    "PTX ISA, wgmma.mma_async: N is 8 to 256 in steps of 8, of integers above 32 in steps of 16; swizzling modes",
    "wgmma",
)
def tile_n(f: Fields) -> str | None:
    """Tile N is a multiple of 8 up to 256, of 16 with promotion and for wide tiles of integers; rows of an mn-major B
    fit a swizzle."""
    n = integer(f, "tile.n")
    if n not in TILE_N:
        return f"tile N is {n}; it must be a multiple of 8 from {TILE_N[0]} to {TILE_N[-1]}"
    if n % 16 and (f["promote"] or (f["b.dtype"] in INT8 and n > 32)):
        what = "with promotion" if f["promote"] else f"above 32, of {f['b.dtype']},"
        return f"tile N is {n}; {what} it must be a multiple of 16"
    row = n * element_bytes(f, "b")
    if f["b.major"] == "mn" and row % SPANS[0]:
        return f"tile N is {n}: rows of {row} bytes where B is mn-major; a swizzle spans at least {SPANS[0]}"
    return None


@rule(
    "tile-k", ("tile.k", "b.dtype", "a.dtype", "tile.m", "schedule"), "PTX ISA, wgmma.mma_async: K is 32 bytes", "wgmma"
)
def tile_k(f: Fields) -> str | None:
    """Tile K is whole WGMMAs, in rows that a swizzle fits."""
    k, size = integer(f, "tile.k"), element_bytes(f, "b")
    if warpgroups.is_mixed(f):
        bits, slices = element_bits(f, "a"), warpgroups.slices(f)
        depths = [d for d in MIXED_TILE_K if d * bits <= 8 * NARROW_ROW and d * bits % (8 * NARROW_CHUNK * slices) == 0]
        if k in depths:
            return None
        shared = f", shared by {slices} warpgroups," if slices > 1 else ""
        return f"tile K is {k}; with {f['a.dtype']} A{shared} it must be {one_of(tuple(depths))}"
    if k * size in TILE_K_BYTES:
        return None
    low, high, step = (depth // size for depth in (TILE_K_BYTES[0], TILE_K_BYTES[-1], warpgroups.INSTRUCTION_K_BYTES))
    return f"tile K is {k}; with {f['b.dtype']} operands it must be a multiple of {step} from {low} to {high}"


@rule(
    "cluster-shape",
    ("cluster.m", "cluster.n"),
    "CUDA Programming Guide, thread block clusters: at most 8 blocks are portable",
    "wgmma",
)
def cluster(f: Fields) -> str | None:
    """A cluster has one, two or four CTAs along M and along N, and at most eight."""
    m, n = integer(f, "cluster.m"), integer(f, "cluster.n")
    if m not in CLUSTER or n not in CLUSTER:
        return f"cluster is {m}x{n}; it must be {one_of(CLUSTER)} along M and along N"
    return None if m * n <= CLUSTER_CTAS else f"cluster is {m}x{n}; it must have at most {CLUSTER_CTAS} CTAs"


@rule(
    "cluster-parts",
    ("tile.n", "cluster.m", "cluster.n", "scheduler.decomposition", "scheduler.splits", "epilogue"),
    "gemmill: emitters/include/gemmill/epilogue/cluster_sums.cuh",
    "wgmma",
)
def cluster_splits(f: Fields) -> str | None:
    """A cluster that shares K of a tile is 1x1, and each of its CTAs stores whole fragments of columns."""
    if f["scheduler.decomposition"] != "cluster":
        return None
    if (f["cluster.m"], f["cluster.n"]) != (1, 1):
        return f"cluster is {f['cluster.m']}x{f['cluster.n']}; where its CTAs share K of a tile it must be 1x1"
    columns = integer(f, "scheduler.splits") * SHARE_COLUMNS * (2 if is_gated(str(f["epilogue"])) else 1)
    if integer(f, "tile.n") % columns:
        return (
            f"tile N is {f['tile.n']}; {f['scheduler.splits']} CTAs store a share of its columns of D each, which "
            f"must be a multiple of {SHARE_COLUMNS}: take a multiple of {columns}"
        )
    return None


def _slices(f: Fields) -> Iterator[tuple[str, str, int, int]]:
    """Operand, the tile extent along which its stage has rows, that extent, and the CTAs that share the rows."""
    for operand, extent, cluster in (("a", "tile.m", "cluster.n"), ("b", "tile.n", "cluster.m")):
        rows = "tile.k" if f[f"{operand}.major"] == "mn" else extent
        yield operand, rows, integer(f, rows), integer(f, cluster)


@rule(
    "multicast-slice",
    ("tile.n", "tile.m", "tile.k", "cluster.m", "cluster.n", "a.major", "b.major", "a.dtype", "b.dtype"),
    "CUDA Programming Guide, tensor memory access: addresses in shared memory are multiples of 128 bytes; swizzles "
    "go by address",
    "wgmma",
)
def multicast_slice(f: Fields) -> str | None:
    """The slices of an operand that the CTAs of a cluster load for each other begin where TMA can write."""
    for operand, extent, rows, ctas in _slices(f):
        least = TMA_TARGET // ring.operand_swizzle(f, operand)  # rows
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
    "wgmma",
)
def tma_box(f: Fields) -> str | None:
    """A TMA box of A or B has at most 256 rows."""
    for operand, extent, rows, ctas in _slices(f):
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
    "wgmma",
)
def epilogue_box(f: Fields) -> str | None:
    """Rows of n-major subtiles of C and D are multiples of 16 bytes."""
    for dtype, major in (*subtiles.loaded(f), *subtiles.stored(f)):
        row = subtiles.dividing_n(f) * dtype_bytes(dtype)
        if major == "n" and row % TMA_ALIGN:
            return f"the TMA box of {dtype} has rows of {row} bytes; they must be a multiple of {TMA_ALIGN}"
    return None


@rule(
    "min-stages",
    ("stages",),
    "CUTLASS include/cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp: at least 2 stages",
    "wgmma",
)
def min_stages(f: Fields) -> str | None:
    """The pipeline has at least two stages."""
    stages = integer(f, "stages")
    return None if stages >= MIN_STAGES else f"stages is {stages}; the pipeline needs at least {MIN_STAGES}"
