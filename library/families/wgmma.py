"""TMA + WGMMA (sm_90a): cooperative and pingpong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

from gemmill.library.arch import ARCHS
from gemmill.library.config.domains import one_of
from gemmill.library.config.fields import Fields, Value, part
from gemmill.library.epilogues.parse import LINEAR, is_gated, parse, staged_formats
from gemmill.library.families.arithmetic import FP8, INT8, Accumulators, converted, multiplied
from gemmill.library.families.family import Family
from gemmill.library.legality import resources
from gemmill.library.legality.resources import TMA_ALIGN, integer
from gemmill.library.legality.rule import Rule

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
PROMOTION_K = 128
"""K that four fp8 WGMMAs multiply, and that shares a scale where blocks have one: the depth of a promoted stage."""
TRANSPOSED_DEPTHS = (64, 128, 256)
"""Bytes along K of stages that are transposed: what warps deal out among their lanes."""
SHARE_COLUMNS = 8
"""Columns of D that one fragment of a warp has: what a CTA of a cluster stores is made of whole ones."""
CLUSTER = (1, 2, 4)
"""Blocks of a cluster along M and along N."""
CLUSTER_BLOCKS = 8
"""Most CTAs of a cluster."""
ALIGNS = (1, 2, 4, 8, 16)
"""Alignments that the reduction kernel takes of C and D, which it accesses without TMA."""
TMA_BOX = 256
"""Most elements of a TMA box along any extent."""
SPANS = (32, 64, 128)
"""Bytes of the swizzle spans: what a TMA box of A or B has along the contiguous extent."""
TMA_TARGET = 128
"""Bytes that addresses in shared memory that TMA writes to are a multiple of. Swizzles go by address, so that a slice
of an operand may begin inside a swizzle's period."""
MIN_STAGES = 2
ACCUMULATOR_LIMIT = {
    (2, "no C and an n-major"): 192,
    (2, "no C and an m-major"): 176,
    (2, "C and a"): 160,
    (2, "an expression and a"): 128,
    (2, "an expression of many values and a"): 96,
    (3, "no C and an n-major"): 96,
    (3, "no C and an m-major"): 96,
    (3, "C and a"): 96,
    (3, "an expression and a"): 64,
    (3, "an expression of many values and a"): 64,
    (4, "no C and an n-major"): 48,
    (4, "no C and an m-major"): 48,
    (4, "C and a"): 48,
    (4, "an expression and a"): 32,
    (4, "an expression of many values and a"): 32,
}
"""Most accumulator registers of a thread for which ptxas was seen not to spill, by consumer warpgroups and what the
epilogue has: what ``setmaxnreg`` leaves beside descriptors, addresses and epilogue values."""
ODD_LIMIT = 176
"""The same where tile N is an odd multiple of 8: D is staged in many narrow subtiles."""
MASKED_LIMIT = 160
"""The same in masked groups where B is transposed and D has 32 bits."""
BESIDE_FRAGMENTS = 16
"""How many fewer, where MMAs read A from registers, if an expression reads a matrix at any strides: of 101 kernels with
8- and 4-bit weights those with 128 sums and fragments spilled, and with 96 those with many values."""
FRAGMENT_LIMIT = {(2, 32): 160, (2, 64): 128, (3, 32): 80, (4, 32): 48}
"""The same of accumulators and fragments of A together where MMAs read A from registers, by consumer warpgroups and
most fragments: with more of them ptxas holds more of the narrow words that are upconverted at a time. Of four
warpgroups, C takes 8 more; of any, an odd multiple of 8 columns, which are staged in many narrow subtiles, takes 8, as
does an m-major D of split kernels in clusters, a D of 8 bits 16, and the exchange of fused kernels 64."""
NARROW_D_LIMIT = {(2, "n"): 176, (2, "m"): 160, (3, "n"): 88, (3, "m"): 88}
"""The same where D has 8 bits, whose conversion takes more, by consumer warpgroups and D's major."""
STREAM_LIMIT = {(2, True): 128, (2, False): 96, (3, True): 56, (3, False): 56}
"""The same of stream-K kernels, by consumer warpgroups and whether the epilogue is plain and D has more than 8 bits:
what their scheduler holds, ptxas spills first."""
STREAM_COSTS = {"odd": 48, "cluster": 32, "shallow": 32, "integer": 32}
"""What else they need registers for: an odd multiple of 8 columns, which are staged in many narrow subtiles; a cluster
of more than two blocks; stages with rows of 64 bytes; sums of integers."""
FUSED_LIMIT = {"plain": 160, "C": 128, "narrow": 96}
"""The same of fused kernels: without C; with it; where D has 8 bits and is m-major, or tile N is no multiple of 32, of
64 where sums are integers, so that it is staged in narrow subtiles."""
FUSED_CLUSTER_LIMIT = {True: 128, False: 80}
"""The same of cooperative fused kernels whose blocks share loads in clusters: where two consumers store elements of at
most 2 bytes, or else."""
CLUSTER_LIMIT = {(2, True): 128, (2, False): 104, (3, True): 80, (3, False): 80}
"""The same of kernels whose blocks share K in clusters: sums and shares of them are held side by side for a while."""
PROMOTED_LIMIT = {2: 192, 3: 128}
"""The same of promoted kernels without an expression, those that wait for promotion included: these are gone by the
epilogue, and leave room for it."""
PROMOTED_SHARED_LIMIT = {
    "cluster": {2: 160, 3: 96},
    "fused": {2: 152, 3: 112},
    "split": {2: 168, 3: 128},
    "stream": {2: 136, 3: 112},
}
"""The same of those whose blocks share K, by how: they exchange sums, or store them as they are. Block-scaled
stream-K kernels with a tile M of 128, clusters of at most two blocks, K-major operands and a D of 16 bits, n-major,
have room for as many as others."""
SHALLOW_LIMIT = 176
"""The same where a cooperative kernel's stages have rows of 64 bytes, and there may be more than five of them."""
MOST_MATRICES, MOST_COLUMNS, COLUMNS_OF_A_MATRIX, MANY_COLUMNS = 2, 12, 4, 10
"""Matrices at any strides, and vectors along N, that an expression may read; how many of the latter a matrix takes the
room of; and more than how many are many values. Of 440 kernels of thirteen tiles with 32 to 128 accumulators
those with three matrices spilled at nine, the least with 32, those with two at 128, beside six vectors at 96, beside
ten at 64; those with 12 vectors at 128, with 16 at 64, with 24 at 96."""


def _majors(f: Fields) -> str | None:
    loose = [operand.upper() for operand in "abcd" if f[f"{operand}.major"] == "any"]
    return f"{' and '.join(loose)} may have any strides; TMA needs one contiguous extent" if loose else None


def _row_groups(f: Fields) -> str | None:
    batching = f["scheduler.batching"]
    if batching not in ("grouped", "masked"):
        return None
    if f["d.major"] == "m":
        return (
            f"D is m-major with {batching} batching; a group ends at any row, where TMA clips D only if it is n-major"
        )
    along_m = [x.upper() for x, major in (("a", "mn"), ("c", "m")) if f[f"{x}.major"] == major]
    if batching == "masked" or not along_m:
        return None
    return (
        f"{' and '.join(along_m)} is contiguous along M with grouped batching; a group begins at any row, and a TMA "
        "load at multiples of 16 bytes"
    )


def _k_groups(f: Fields) -> str | None:
    if f["scheduler.batching"] != "kgrouped":
        return None
    k_major = [operand.upper() for operand in "ab" if f[f"{operand}.major"] == "k"]
    if not k_major:
        return None
    return (
        f"{' and '.join(k_major)} is K-major with kgrouped batching; a group ends at any K, where TMA clips only "
        "operands that are mn-major"
    )


def _array(f: Fields) -> str | None:
    if f["scheduler.batching"] != "array":
        return None
    for operand in "ab":
        row = integer(f, "tile.k") * resources.element_bytes(f, operand)
        if f[f"{operand}.major"] == "k" and row not in SPANS:
            return (
                f"a row of {operand.upper()}'s tile has {row} bytes; with array batching it must be one box of "
                f"{one_of(SPANS)} bytes: others may lie wholly beyond K"
            )
    return None


def _descriptor_start(f: Fields) -> str | None:
    batching, blocks = f["scheduler.batching"], integer(f, "cluster.m") * integer(f, "cluster.n")
    if batching not in ("array", "kgrouped") or blocks == 1:
        return None
    return (
        f"cluster is {f['cluster.m']}x{f['cluster.n']}; with {batching} batching it must be 1x1: slices may lie wholly "
        "beyond K, where TMA reads at the start of a descriptor, which is no memory of the operand"
    )


def _mixed_batching(f: Fields) -> str | None:
    if f["scheduler.batching"] == "strided" or not resources.is_mixed(f):
        return None
    return f"A is {f['a.dtype']} and B {f['b.dtype']}; kernels that upconvert A have strided batching alone"


def _mma_majors(f: Fields) -> str | None:
    if resources.is_mixed(f) and f["a.major"] == "mn":
        return f"A is {f['a.dtype']} and mn-major; a narrow A must be K-major"
    for operand in "ab":
        if not resources.transposes(f, operand):
            continue
        depth = integer(f, "tile.k") * resources.element_bytes(f, operand)
        if depth not in TRANSPOSED_DEPTHS:
            return (
                f"{operand.upper()} is {f[f'{operand}.dtype']} and mn-major, in stages of {depth} bytes along K; to be "
                f"transposed those must be {one_of(TRANSPOSED_DEPTHS)}"
            )
    return None


def _promote(f: Fields) -> str | None:
    if not f["promote"]:
        return None
    for operand in "ab":
        if f[f"{operand}.dtype"] not in FP8:
            return f"{operand.upper()} is {f[f'{operand}.dtype']}; promotion is for {one_of(FP8)}"
    if f["accumulator"] != "f32":
        return f"sums of {f['accumulator']} are not promoted; accumulate in f32"
    return None if f["tile.k"] == PROMOTION_K else f"tile K is {f['tile.k']}; promoted stages have {PROMOTION_K}"


def _block_scales(f: Fields) -> str | None:
    a, b, n = f["a.scale"], f["b.scale"], integer(f, "tile.n")
    if (a, b) == ("none", "none"):
        return None
    if resources.is_mixed(f):
        if a in ("none", *GROUP_SCALES) and b == "none":
            return None
        return f"A is scaled {a} and B {b}; of {f['a.dtype']} x {f['b.dtype']} A may be {one_of(GROUP_SCALES)}, B none"
    if (a, b) != ("1x128", "128x128"):
        return f"A is scaled {a} and B {b}; it must be none and none, or 1x128 and 128x128"
    if not f["promote"]:
        return "promote is 0; scales multiply promoted sums, so it must be 4"
    if n + PROMOTION_K - math.gcd(n, PROMOTION_K) > 2 * PROMOTION_K:
        return f"tiles of {n} columns meet three blocks of B's scales of {PROMOTION_K} columns; kernels hold two"
    if integer(f, "stages") > resources.MAX_SCALED_STAGES:
        return f"stages is {f['stages']}; block scales have named barriers for {resources.MAX_SCALED_STAGES}"
    return None


def _tile_m(f: Fields) -> str | None:
    schedule, m = str(f["schedule"]), integer(f, "tile.m")
    allowed = TILE_M[schedule]
    if schedule == "cooperative" and resources.is_mixed(f):
        allowed = (resources.SUBTILE_M, *allowed)
    return None if m in allowed else f"tile M is {m}; {schedule} kernels take {one_of(allowed)}"


def _tile_n(f: Fields) -> str | None:
    n = integer(f, "tile.n")
    if n not in TILE_N:
        return f"tile N is {n}; it must be a multiple of 8 from {TILE_N[0]} to {TILE_N[-1]}"
    if n % 16 and (f["promote"] or (f["b.dtype"] in INT8 and n > 32)):
        what = "with promotion" if f["promote"] else f"above 32, of {f['b.dtype']},"
        return f"tile N is {n}; {what} it must be a multiple of 16"
    row = n * resources.element_bytes(f, "b")
    if f["b.major"] == "mn" and row % SPANS[0]:
        return f"tile N is {n}: rows of {row} bytes where B is mn-major; a swizzle spans at least {SPANS[0]}"
    return None


def _tile_k(f: Fields) -> str | None:
    k, size = integer(f, "tile.k"), resources.element_bytes(f, "b")
    if resources.is_mixed(f):
        bits, slices = resources.element_bits(f, "a"), resources.slices(f)
        depths = [d for d in MIXED_TILE_K if d * bits <= 8 * NARROW_ROW and d * bits % (8 * NARROW_CHUNK * slices) == 0]
        if k in depths:
            return None
        shared = f", shared by {slices} warpgroups," if slices > 1 else ""
        return f"tile K is {k}; with {f['a.dtype']} A{shared} it must be {one_of(tuple(depths))}"
    if k * size in TILE_K_BYTES:
        return None
    low, high, step = (depth // size for depth in (TILE_K_BYTES[0], TILE_K_BYTES[-1], resources.INSTRUCTION_K_BYTES))
    return f"tile K is {k}; with {f['b.dtype']} operands it must be a multiple of {step} from {low} to {high}"


def _cluster(f: Fields) -> str | None:
    m, n = integer(f, "cluster.m"), integer(f, "cluster.n")
    if m not in CLUSTER or n not in CLUSTER:
        return f"cluster is {m}x{n}; it must be {one_of(CLUSTER)} along M and along N"
    return None if m * n <= CLUSTER_BLOCKS else f"cluster is {m}x{n}; it must have at most {CLUSTER_BLOCKS} blocks"


def _alignment(f: Fields) -> str | None:
    by_tma = "ab" if f["scheduler.decomposition"] == "split" else "abcd"
    wrong = [
        f"{operand.upper()} is aligned to {f[f'{operand}.align']} bytes"
        for operand in by_tma
        if f[f"{operand}.align"] != TMA_ALIGN and not (operand == "c" and f["c.dtype"] == "none")
    ]
    return f"{' and '.join(wrong)}; TMA takes alignment {TMA_ALIGN}" if wrong else None


def _reduction_alignment(f: Fields) -> str | None:
    if f["scheduler.decomposition"] != "split":
        return None
    for operand in "cd":
        align, size = integer(f, f"{operand}.align"), resources.element_bytes(f, operand)
        if size and (align not in ALIGNS or align < size):
            allowed = one_of([a for a in ALIGNS if a >= size])
            return f"{operand.upper()} is {f[f'{operand}.dtype']} aligned to {align} bytes; it must be {allowed}"
    return None


def _sums(f: Fields) -> str | None:
    decomposition = f["scheduler.decomposition"]
    if decomposition in ("fused", "stream", "cluster") and f["accumulator"] == "f16":
        return f"sums of {decomposition} kernels are added up in accumulators, which must not be f16: use split"
    return None


def _parts_batching(f: Fields) -> str | None:
    decomposition, batching = f["scheduler.decomposition"], f["scheduler.batching"]
    if decomposition == "tiles" or batching == "strided":
        return None
    return f"{decomposition} kernels take strided batches, not {batching} ones"


def _mixed_parts(f: Fields) -> str | None:
    decomposition = f["scheduler.decomposition"]
    if decomposition in ("tiles", "split") or not resources.is_mixed(f):
        return None
    return f"{decomposition} kernels take operands of equal width; A is {f['a.dtype']}, B {f['b.dtype']}: use split"


def _cluster_parts(f: Fields) -> str | None:
    if f["scheduler.decomposition"] != "cluster":
        return None
    if (f["cluster.m"], f["cluster.n"]) != (1, 1):
        return f"cluster is {f['cluster.m']}x{f['cluster.n']}; where its blocks share K of a tile it must be 1x1"
    columns = integer(f, "scheduler.splits") * SHARE_COLUMNS * (2 if is_gated(str(f["epilogue"])) else 1)
    if integer(f, "tile.n") % columns:
        return (
            f"tile N is {f['tile.n']}; {f['scheduler.splits']} blocks store a share of its columns of D each, which "
            f"must be a multiple of {SHARE_COLUMNS}: take a multiple of {columns}"
        )
    return None


def _slices(f: Fields) -> Iterator[tuple[str, str, int, int]]:
    """Operand, the tile extent along which its stage has rows, that extent, and the blocks that share the rows."""
    for operand, extent, cluster in (("a", "tile.m", "cluster.n"), ("b", "tile.n", "cluster.m")):
        rows = "tile.k" if f[f"{operand}.major"] == "mn" else extent
        yield operand, rows, integer(f, rows), integer(f, cluster)


def _multicast_slice(f: Fields) -> str | None:
    for operand, extent, rows, blocks in _slices(f):
        least = TMA_TARGET // resources.operand_swizzle(f, operand)  # rows
        if blocks > 1 and rows % (blocks * least):
            return (
                f"{operand.upper()} is multicast to {blocks} blocks that load a slice of its rows along {extent} each; "
                f"{extent} is {rows}, not a multiple of {blocks} x {least}"
            )
    return None


def _tma_box(f: Fields) -> str | None:
    for operand, extent, rows, blocks in _slices(f):
        if rows // blocks > TMA_BOX:
            return f"{operand.upper()}'s TMA box has {rows // blocks} rows along {extent}; a box has at most {TMA_BOX}"
    return None


def _epilogue_box(f: Fields) -> str | None:
    for dtype, major in (*resources.loaded(f), *resources.stored(f)):
        row = resources.dividing_n(f) * resources.dtype_bytes(dtype)
        if major == "n" and row % TMA_ALIGN:
            return f"the TMA box of {dtype} has rows of {row} bytes; they must be a multiple of {TMA_ALIGN}"
    return None


def _epilogue_matrices(f: Fields) -> str | None:
    epilogue = str(f["epilogue"])
    if f["scheduler.decomposition"] == "split":
        if not any(staged_formats(epilogue)):
            return None
        return (
            "the second kernel of split decompositions, which has no TMA, reads and writes matrices at any strides; "
            f"leave out their majors: {epilogue}"
        )
    matrices, columns = _read_in_place(epilogue)
    if matrices <= MOST_MATRICES and columns + COLUMNS_OF_A_MATRIX * matrices <= MOST_COLUMNS:
        return None
    return (
        f"the epilogue reads {matrices} matrices at any strides and {columns} vectors along N, for which a thread that "
        f"holds sums has no registers; it may read {MOST_MATRICES} of the former, {MOST_COLUMNS} of the latter, each "
        f"matrix in place of {COLUMNS_OF_A_MATRIX}, and matrices that TMA moves (x.n[m, n], x.m[m, n]): {epilogue}"
    )


@lru_cache(1024)
def _read_in_place(epilogue: str) -> tuple[int, int]:
    """How many matrices, and vectors along N, an epilogue reads through plain addresses."""
    operands = parse(epilogue).operands
    matrices = sum(operand.kind == "matrix" and operand.major == "any" for operand in operands)
    return matrices, sum(operand.kind == "column" for operand in operands)


def _has_expression(f: Fields) -> bool:
    """Whether the kernel that sums evaluates one; of split kernels the second does."""
    return f["epilogue"] != LINEAR and f["scheduler.decomposition"] != "split"


@part
def _epilogue_has(f: Fields) -> str:
    if _has_expression(f):
        return "an expression of many values and a" if _is_demanding(str(f["epilogue"])) else "an expression and a"
    if resources.stored_dtype(f, "c") != "none":
        return "C and a"
    return "no C and an n-major" if f["d.major"] == "n" else "no C and an m-major"


@lru_cache(1024)
def _is_demanding(epilogue: str) -> bool:
    """Whether a thread holds many values for an expression: the reduction of columns, gelu of several vectors, another
    reduction beside two columns, more than ten columns, two matrices at any strides."""
    found = parse(epilogue)
    reductions = [output.kind for output in found.outputs if output.is_reduction]
    rows = sum(operand.kind == "row" for operand in found.operands)
    matrices, columns = _read_in_place(epilogue)
    gelu = bool(found.functions & {"gelu", "gelu_tanh"})
    return (
        "column" in reductions
        or (gelu and rows + columns > 1)
        or (bool(reductions) and columns > 1)
        or columns > MANY_COLUMNS
        or matrices == MOST_MATRICES
    )


@part
def accumulator_limit(fields: Fields) -> int:
    """Most accumulator registers a consumer thread may hold."""
    consumers, epilogue = resources.consumer_warpgroups(fields), _epilogue_has(fields)
    decomposition = fields["scheduler.decomposition"]
    narrow = resources.dtype_bytes(resources.stored_dtype(fields, "d")) == 1
    plain = epilogue == "no C and an n-major" and not narrow
    if fields["promote"] and fields["epilogue"] == LINEAR:
        roomy = plain and _has_room_for_shares(fields)
        return (PROMOTED_LIMIT if roomy else PROMOTED_SHARED_LIMIT.get(str(decomposition), PROMOTED_LIMIT))[consumers]
    limits = [ACCUMULATOR_LIMIT[consumers, epilogue]]
    if narrow:
        limits.append(NARROW_D_LIMIT.get((consumers, str(fields["d.major"])), limits[0]))
    if integer(fields, "tile.n") % 16:
        limits.append(ODD_LIMIT)
    if _transposes_for_slots(fields):
        limits.append(MASKED_LIMIT)
    if _has_expression(fields) and resources.multiplies_from_registers(fields):
        matrices, _ = _read_in_place(str(fields["epilogue"]))
        limits[0] -= BESIDE_FRAGMENTS * (matrices > 0)
    by_decomposition = {"stream": STREAM_LIMIT, "cluster": CLUSTER_LIMIT}.get(str(decomposition))
    if by_decomposition:
        limits.append(
            by_decomposition.get((consumers, plain), limits[0])
        )  # four are for upconverted A, refused elsewhere
    if decomposition == "fused":
        ragged = integer(fields, "tile.n") % (64 if fields["accumulator"] == "s32" else 32)
        cramped = ragged or (narrow and fields["d.major"] == "m")
        limits.append(FUSED_LIMIT["narrow" if cramped else "plain" if fields["c.dtype"] == "none" else "C"])
        if fields["schedule"] == "cooperative" and _cluster_blocks(fields) > 1:
            roomy = consumers == 2 and resources.element_bytes(fields, "d") <= 2
            limits.append(FUSED_CLUSTER_LIMIT[roomy])
    shallow = integer(fields, "tile.k") * resources.element_bytes(fields, "a") <= TILE_K_BYTES[0]
    if decomposition == "stream":
        odd, integers = integer(fields, "tile.n") % 16 > 0, fields["accumulator"] == "s32"
        costly = {"odd": odd, "cluster": _cluster_blocks(fields) > 2, "shallow": shallow, "integer": integers}
        limits[-1] -= sum(STREAM_COSTS[name] for name in costly if costly[name])
    if fields["schedule"] == "cooperative" and shallow:
        limits.append(SHALLOW_LIMIT)
    return min(limits)


@part
def _has_room_for_shares(f: Fields) -> bool:
    """Whether a promoted stream-K kernel with a plain epilogue is as :data:`PROMOTED_SHARED_LIMIT` says."""
    return (
        f["scheduler.decomposition"] == "stream"
        and resources.has_block_scales(f)
        and f["tile.m"] == 128
        and _cluster_blocks(f) <= 2
        and f["a.major"] == f["b.major"] == "k"
        and resources.element_bytes(f, "d") == 2
    )


def _transposes_for_slots(f: Fields) -> bool:
    """Whether :data:`MASKED_LIMIT` holds."""
    wide = resources.dtype_bytes(resources.stored_dtype(f, "d")) == 4
    return wide and f["scheduler.batching"] == "masked" and resources.transposes(f, "b")


def _cluster_blocks(f: Fields) -> int:
    return integer(f, "cluster.m") * integer(f, "cluster.n")


def _accumulator_registers(f: Fields) -> str | None:
    registers = resources.accumulator_registers(f)
    if resources.multiplies_from_registers(f):
        refused = _fragment_registers(f, registers)
        if refused or (resources.is_mixed(f) and f["epilogue"] == LINEAR):
            return refused
        registers += resources.fragment_registers(f)
    limit = accumulator_limit(f)
    if registers <= limit:
        return None
    if f["promote"]:
        return (
            f"{resources.warpgroup_m(f)}x{f['tile.n']} sums, and those that wait for promotion, take {registers} "
            f"registers a thread; {resources.consumer_warpgroups(f)} consumer warpgroups have at most {limit} free"
        )
    epilogue = f"{_epilogue_has(f)} {f['d.dtype']} D"
    if _transposes_for_slots(f):
        epilogue += " of masked groups beside a transposed B"
    return (
        f"a {resources.warpgroup_m(f)}x{f['tile.n']} {f['accumulator']} accumulator takes {registers} registers a "
        f"thread; {resources.consumer_warpgroups(f)} consumer warpgroups with {epilogue} have at most {limit} free"
    )


def _fragment_registers(f: Fields, accumulators: int) -> str | None:
    fragments, consumers = resources.fragment_registers(f), resources.consumer_warpgroups(f)
    limit = next((FRAGMENT_LIMIT.get((consumers, most), 0) for most in (32, 64) if fragments <= most), 0)
    if consumers == 4 and f["c.dtype"] != "none":
        limit -= 8
    if integer(f, "tile.n") % 16:
        limit -= 8
    if f["scheduler.decomposition"] == "split" and f["d.major"] == "m" and _cluster_blocks(f) > 1:
        limit -= 8
    if resources.element_bytes(f, "d") == 1:
        limit -= 16
    if f["scheduler.decomposition"] == "fused":
        limit -= 64
    limit = max(0, limit)
    if accumulators + fragments <= limit:
        return None
    return (
        f"{resources.warpgroup_m(f)}x{f['tile.n']} sums and two stages of A take {accumulators + fragments} "
        f"registers a thread; {consumers} consumer warpgroups have at most {limit} free for them"
    )


def _min_stages(f: Fields) -> str | None:
    stages = integer(f, "stages")
    return None if stages >= MIN_STAGES else f"stages is {stages}; the pipeline needs at least {MIN_STAGES}"


def _shared_memory(f: Fields) -> str | None:
    needed, capacity = resources.shared_bytes(f), ARCHS[str(f["arch"])].shared_bytes
    if needed <= capacity:
        return None
    return (
        f"{f['stages']} x {sum(resources.stage_bytes(f)):,} bytes of stages and the epilogue take {needed:,} bytes of "
        f"shared memory; a block has {capacity:,}"
    )


AUTO_STAGES_FIELDS = (
    *("tile.n", "tile.k", "tile.m", "schedule"),
    *("d.dtype", "d.major", "c.dtype", "c.major", "a.dtype", "a.major", "a.scale", "b.dtype", "b.major", "arch"),
    *("scheduler.decomposition", "scheduler.splits", "accumulator", "epilogue"),
)
"""The fields that :func:`gemmill.library.legality.resources.auto_stages` reads."""

RULES: tuple[Rule, ...] = (
    multiplied(
        "mma-types",
        "wgmma",
        "WGMMA",
        ACCUMULATORS,
        "PTX ISA, wgmma.mma_async: types of A, B and D; CUTLASS include/cute/arch/mma_sm90.hpp",
    ),
    Rule(
        "tma-majors",
        ("a.major", "b.major", "d.major", "c.major"),
        _majors,
        "CUDA driver API, cuTensorMapEncodeTiled: the first extent is contiguous",
        "wgmma",
    ),
    Rule(
        "mma-majors",
        ("a.major", "b.major", "tile.k", "a.dtype", "b.dtype"),
        _mma_majors,
        "PTX ISA, wgmma.mma_async: imm-trans-a and imm-trans-b exist for .f16 and .bf16 alone; gemmill: what the "
        "transposing warps deal out",
        "wgmma",
    ),
    converted("epilogue-types", "wgmma"),
    Rule(
        "row-groups",
        ("d.major", "a.major", "c.major", "scheduler.batching"),
        _row_groups,
        "CUDA driver API, cuTensorMapEncodeTiled: strides, and so places of a window, are multiples of 16 bytes",
        "wgmma",
    ),
    Rule(
        "k-groups",
        ("a.major", "b.major", "scheduler.batching"),
        _k_groups,
        "CUDA driver API, cuTensorMapEncodeTiled: strides, and so places of a window, are multiples of 16 bytes",
        "wgmma",
    ),
    Rule(
        "array-panels",
        ("tile.k", "a.major", "b.major", "a.dtype", "b.dtype", "scheduler.batching"),
        _array,
        "measured on an H200: TMA reads at the start of a tensor for a box that lies wholly outside it",
        "wgmma",
    ),
    Rule(
        "array-clusters",
        ("cluster.m", "cluster.n", "scheduler.batching"),
        _descriptor_start,
        "measured on an H200: TMA reads at the start of a tensor for a box that lies wholly outside it",
        "wgmma",
    ),
    Rule(
        "mixed-batching",
        ("scheduler.batching", "a.dtype", "b.dtype"),
        _mixed_batching,
        "gemmill: what the narrow operand's loads are made for",
        "wgmma",
    ),
    Rule(
        "tma-alignment",
        ("a.align", "b.align", "d.align", "c.align", "c.dtype", "scheduler.decomposition"),
        _alignment,
        "CUDA driver API, cuTensorMapEncodeTiled: globalAddress and globalStrides are multiples of 16 bytes",
        "wgmma",
    ),
    Rule(
        "reduction-alignment",
        ("d.align", "c.align", "d.dtype", "c.dtype", "scheduler.decomposition"),
        _reduction_alignment,
        "CUDA Programming Guide, Device Memory Accesses: vectors are aligned to their size",
        "wgmma",
    ),
    Rule(
        "sums-of-parts",
        ("scheduler.decomposition", "accumulator"),
        _sums,
        "gemmill: parts are added in f32 or s32, whatever the tensor cores accumulate in",
        "wgmma",
    ),
    Rule(
        "parts-batching",
        ("scheduler.decomposition", "scheduler.batching"),
        _parts_batching,
        "gemmill: the tile schedulers that exist",
        "wgmma",
    ),
    Rule(
        "mixed-parts",
        ("scheduler.decomposition", "a.dtype", "b.dtype"),
        _mixed_parts,
        "gemmill: no register is left to add parts beside upconverted fragments",
        "wgmma",
    ),
    Rule(
        "tile-m",
        ("tile.m", "schedule", "a.dtype", "b.dtype"),
        _tile_m,
        "PTX ISA, wgmma.mma_async: M is 64; CUTLASS include/cutlass/gemm/kernel/"
        "sm90_gemm_tma_warpspecialized_cooperative.hpp: cooperative tiles have at least 128 rows",
        "wgmma",
    ),
    Rule(
        "tile-n",
        ("tile.n", "b.major", "b.dtype", "promote"),
        _tile_n,
        "PTX ISA, wgmma.mma_async: N is 8 to 256 in steps of 8, of integers above 32 in steps of 16; swizzling modes",
        "wgmma",
    ),
    Rule(
        "tile-k",
        ("tile.k", "b.dtype", "a.dtype", "tile.m", "schedule"),
        _tile_k,
        "PTX ISA, wgmma.mma_async: K is 32 bytes",
        "wgmma",
    ),
    Rule(
        "promotion",
        ("promote", "tile.k", "accumulator", "a.dtype", "b.dtype"),
        _promote,
        "CUTLASS include/cutlass/gemm/collective/fp8_accumulation.hpp: promotion every 4 MMAs",
        "wgmma",
    ),
    Rule(
        "block-scales",
        ("a.scale", "b.scale", "promote", "tile.n", "a.dtype", "b.dtype", "stages"),
        _block_scales,
        "DeepSeek-V3 technical report, 3.3: A scaled 1 x 128, B 128 x 128; gemmill: a thread holds two scales a row",
        "wgmma",
    ),
    Rule(
        "cluster-shape",
        ("cluster.m", "cluster.n"),
        _cluster,
        "CUDA Programming Guide, thread block clusters: at most 8 blocks are portable",
        "wgmma",
    ),
    Rule(
        "cluster-parts",
        ("tile.n", "cluster.m", "cluster.n", "scheduler.decomposition", "scheduler.splits", "epilogue"),
        _cluster_parts,
        "gemmill: emitters/include/gemmill/epilogue/cluster_sums.cuh",
        "wgmma",
    ),
    Rule(
        "min-stages",
        ("stages",),
        _min_stages,
        "CUTLASS include/cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp: at least 2 stages",
        "wgmma",
    ),
    Rule(
        "tma-box",
        ("tile.n", "tile.m", "tile.k", "cluster.m", "cluster.n", "a.major", "b.major"),
        _tma_box,
        "CUDA driver API, cuTensorMapEncodeTiled: boxDim is at most 256",
        "wgmma",
    ),
    Rule(
        "epilogue-box",
        (
            *("tile.n", "d.dtype", "d.major", "c.dtype", "c.major", "scheduler.decomposition", "scheduler.splits"),
            *("accumulator", "epilogue"),
        ),
        _epilogue_box,
        "CUDA driver API, cuTensorMapEncodeTiled: the first box extent is a multiple of 16 bytes",
        "wgmma",
    ),
    Rule(
        "epilogue-matrices",
        ("scheduler.decomposition", "epilogue"),
        _epilogue_matrices,
        "gemmill: emitters/include/gemmill/kernel/reduction.cuh",
        "wgmma",
    ),
    Rule(
        "multicast-slice",
        ("tile.n", "tile.m", "tile.k", "cluster.m", "cluster.n", "a.major", "b.major", "a.dtype", "b.dtype"),
        _multicast_slice,
        "CUDA Programming Guide, tensor memory access: addresses in shared memory are multiples of 128 bytes; swizzles "
        "go by address",
        "wgmma",
    ),
    Rule(
        "accumulator-registers",
        (
            *("tile.n", "tile.m", "tile.k", "schedule", "accumulator", "promote", "scheduler.decomposition"),
            *("c.dtype", "d.major", "d.dtype", "a.dtype", "b.dtype", "a.major", "b.major", "a.scale", "epilogue"),
            *("cluster.m", "cluster.n", "scheduler.batching"),
        ),
        _accumulator_registers,
        "PTX ISA, setmaxnreg, and wgmma.mma_async: register fragments of D; CUTLASS lets such a config spill",
        "wgmma",
    ),
    Rule(
        "shared-memory",
        ("stages", *AUTO_STAGES_FIELDS),
        _shared_memory,
        "CUDA Programming Guide, Compute Capabilities: 227 KiB of shared memory a CTA on 9.0",
        "wgmma",
    ),
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
        "stages": tuple(range(MIN_STAGES, resources.MAX_AUTO_STAGES + 1)),
    }
)
"""The values that the family takes, of the fields that have no words."""

FAMILY = Family(
    archs=("sm90a",),
    rules=RULES,
    domains=DOMAINS,
    threads=resources.threads,
    stage_bytes=resources.stage_bytes,
    shared_bytes=resources.shared_bytes,
    accumulator_registers=resources.accumulator_registers,
    auto_stages=resources.auto_stages,
    max_auto_stages=resources.max_auto_stages,
)
