"""mma.sync behind a cp.async pipeline, on sm_70 behind registers: tensor cores for any strides and any alignment."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

from gemmill.library.arch import ARCHS as TARGETS
from gemmill.library.config.domains import one_of
from gemmill.library.config.fields import Fields, Value
from gemmill.library.dtypes import DTYPES
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.families import direct
from gemmill.library.families.arithmetic import FP8, INT8, Accumulators, multiplied
from gemmill.library.families.family import Family
from gemmill.library.legality.quantities import element_bytes, integer
from gemmill.library.legality.rule import Rule, rule

ARCHS = ("sm70", "sm80", "sm86", "sm89", "sm90", "sm90a", "sm120")
QUADPAIR_ARCHS = ("sm70",)
"""Targets whose tensor cores multiply f16 alone, a quadpair at a time, and that have no cp.async."""
ACCUMULATORS: Accumulators = MappingProxyType(
    {
        ("bf16", "bf16"): ("f32",),
        ("f16", "f16"): ("f32",),
        ("tf32", "tf32"): ("f32",),
        ("f64", "f64"): ("f64",),
        **{(a, b): ("f32",) for a in FP8 for b in FP8},
        **{(a, b): ("s32",) for a in INT8 for b in INT8},
    }
)
"""Accumulator types by the types of A and B."""
TILE_MN = (16, 32, 64, 128, 256)
TILE_K_BYTES = (32, 64, 128, 256)
"""Depths of a stage: whole MMAs."""
MMA_K_BYTES = 32
"""Bytes of K of one MMA."""
MIN_WARPS = 4
"""Of a CTA, one for each of an SM's tensor cores, where its tile and the depth of its stages have work for them."""
MAX_WARPS = 8
"""Of those that share the sums of a tile."""
SWIZZLE_BYTES = 32
"""The least swizzle span: a tile's contiguous extent is a multiple of it."""
MIN_STAGES = 2
MAX_AUTO_STAGES = 4
"""Deepest pipeline that ``stages: auto`` asks for; more stages would leave room for fewer CTAs on an SM."""
MAX_REGISTERS = 128
"""Most accumulator registers of a thread: a warp's 64 x 64 sums of 32 bits."""
MAX_REGISTERS_BESIDE = 64
"""The same beside what else takes registers: part of a stage that is loaded through them, converted fp8, and so on."""
MAX_F64_K_BYTES = 128
"""Depth of a stage up to which f64 sums may take all of those registers."""
MAX_BYTES_IN_REGISTERS = 32
"""Most bytes of a stage of that operand that a thread loads."""
ASYNC_BYTES = 4
"""The least that cp.async copies."""
SHIFTED_BYTES = 16
"""What a stage has for each row that is copied as it lies, beside what is multiplied (copy/shifted.cuh)."""
_STAGED = tuple(f"{operand}.{leaf}" for leaf in ("align", "major", "dtype") for operand in "ab")
AUTO_STAGES_FIELDS = ("tile.m", "tile.n", "tile.k", *_STAGED, "arch")


@rule(
    "mma-sync-quadpair",
    ("a.dtype", "b.dtype", "arch"),
    "PTX ISA, mma: of the shapes, sm_70 has m8n8k4 of .f16 alone",
    "mma",
)
def _quadpair_types(f: Fields) -> str | None:
    """On sm_70 A and B are f16."""
    a, b, arch = f["a.dtype"], f["b.dtype"], f["arch"]
    if arch not in QUADPAIR_ARCHS or (a, b) == ("f16", "f16"):
        return None
    return f"A x B is {a} x {b}; the tensor cores of {arch} multiply f16 x f16 alone"


@rule("mma-sync-tile", ("tile.m", "tile.n"), "PTX ISA, mma: m16n8; gemmill: warps share a tile evenly", "mma")
def _tile(f: Fields) -> str | None:
    """Tile M and N are extents that the warps share evenly."""
    for extent in "mn":
        if f[f"tile.{extent}"] not in TILE_MN:
            return f"tile {extent.upper()} is {f[f'tile.{extent}']}; multistage kernels take {one_of(TILE_MN)}"
    return None


@rule("mma-sync-tile-k", ("tile.k", "a.dtype"), "PTX ISA, mma: K is 32 bytes", "mma")
def _tile_k(f: Fields) -> str | None:
    """Tile K is whole instructions."""
    k, size = integer(f, "tile.k"), element_bytes(f, "a")
    allowed = tuple(depth // size for depth in TILE_K_BYTES)
    return None if k in allowed else f"tile K is {k}; with {f['a.dtype']} operands it must be {one_of(allowed)}"


@rule(
    "mma-sync-swizzle",
    ("tile.m", "tile.n", "a.major", "b.major", "a.dtype", "b.dtype"),
    "gemmill: stages are swizzled in rows of at least 32 bytes",
    "mma",
)
def _swizzle(f: Fields) -> str | None:
    """Rows of mn-major stages are long enough for a swizzle."""
    for operand, extent in (("a", "tile.m"), ("b", "tile.n")):
        if f[f"{operand}.major"] == "mn" and integer(f, extent) * element_bytes(f, operand) < SWIZZLE_BYTES:
            return (
                f"rows of {operand.upper()}'s stages are {extent} = {f[extent]} elements of {f[f'{operand}.dtype']}; "
                f"they must have at least {SWIZZLE_BYTES} bytes"
            )
    return None


def is_shifted(f: Fields, operand: str) -> bool:
    """Whether rows of an operand are copied as they lie, and words are put together as they are read."""
    along_k = f[f"{operand}.major"] == "k" and f["arch"] not in QUADPAIR_ARCHS
    return along_k and integer(f, f"{operand}.align") < ASYNC_BYTES


def _through_registers(f: Fields) -> tuple[str, ...]:
    """The operands that are loaded through registers: all without cp.async, else those that have no unit long enough
    and are not K-major."""

    def unit(operand: str) -> int:
        return element_bytes(f, operand) if f[f"{operand}.major"] == "any" else integer(f, f"{operand}.align")

    def loaded(operand: str) -> bool:
        return f["arch"] in QUADPAIR_ARCHS or (f[f"{operand}.major"] != "k" and unit(operand) < ASYNC_BYTES)

    return tuple(filter(loaded, "ab"))


def _is_deep(f: Fields) -> bool:
    """Whether operands of f64 have stages too deep to leave as many registers."""
    return f["a.dtype"] == "f64" and integer(f, "tile.k") * element_bytes(f, "a") > MAX_F64_K_BYTES


def _converts(f: Fields) -> bool:
    """Whether fp8 is converted to f16 for its MMAs."""
    return f["a.dtype"] in FP8 and str(f["arch"]).startswith("sm90")


def _rounds(f: Fields) -> bool:
    """Whether f32 is rounded to tf32 in more than one instruction."""
    return f["a.dtype"] == "tf32" and TARGETS[str(f["arch"])].capability < (9, 0)


def _is_slow_to_read(f: Fields) -> bool:
    """Whether words of A and of B are put together, so that they take longer to read than to multiply, and threads have
    registers for more sums: beside fp8 that is converted, and beside an expression, they have not."""
    return is_shifted(f, "a") and is_shifted(f, "b") and not _converts(f) and f["epilogue"] == LINEAR


@rule(
    "mma-sync-registers",
    ("tile.n", "tile.m", "tile.k", "accumulator", "c.major", "d.major", "epilogue", *_STAGED, "arch"),
    "CUDA Programming Guide, Compute Capabilities: 255 registers a thread",
    "mma",
)
def _registers(f: Fields) -> str | None:
    """Sums and fragments fit the registers of a thread."""
    registers, why = accumulator_registers(f), ""
    loaded, wide = _through_registers(f), max(TILE_MN) in (f["tile.m"], f["tile.n"])
    if f["a.dtype"] in FP8:
        why = ", as their MMAs of fp8 are several of f16 on sm_90"
    elif loaded:
        why = f", as {' and '.join(loaded).upper()} is loaded through registers"
    elif _rounds(f):
        why = ", as words are rounded to tf32 in several instructions before sm_90"
    elif _is_deep(f):
        why = f" beside fragments of stages deeper than {MAX_F64_K_BYTES} bytes"
    elif f["accumulator"] == "f64" and f["epilogue"] != LINEAR:
        why = " beside an expression of f64"
    elif f["b.dtype"] == "f64" and f["b.major"] == "mn" and f["b.align"] == 8 and f["tile.n"] == max(TILE_MN):
        # ptxas spills them with four stages and more.
        why = f" beside the addresses of rows of {f['tile.n']} elements of B that are copied 8 bytes at a time"
    elif f["accumulator"] == "f64" and f["c.major"] == f["d.major"] == "m" and f["tile.n"] == max(TILE_MN):
        why = f" beside {f['tile.n']} columns of an m-major C and D"
    elif f["epilogue"] != LINEAR and wide:
        why = f" beside a tile of {max(TILE_MN)} rows or columns"
    limit = MAX_REGISTERS_BESIDE if why else MAX_REGISTERS
    if f["epilogue"] != LINEAR and (_converts(f) or _is_deep(f) or wide):
        limit, why = limit // 2, f"{why}; an expression leaves half"
    if registers <= limit:
        return None
    return (
        f"{slice_threads(f)} threads hold a {f['tile.m']}x{f['tile.n']} tile of {f['accumulator']} in "
        f"{registers} registers each; they have {limit}{why}"
    )


@rule(
    "mma-sync-loaded-bytes",
    ("tile.k", "tile.m", "tile.n", *_STAGED, "arch"),
    "CUDA Programming Guide, Compute Capabilities: 255 registers a thread",
    "mma",
)
def _loaded_bytes(f: Fields) -> str | None:
    """What a thread loads through registers fits them."""
    stages = dict(zip("ab", stage_bytes(f), strict=True))
    for operand in _through_registers(f):
        if (held := stages[operand] // threads(f)) > MAX_BYTES_IN_REGISTERS:
            return (
                f"each of {threads(f)} threads loads {held} bytes of a stage of {operand.upper()} through registers; "
                f"they hold {MAX_BYTES_IN_REGISTERS}"
            )
    return None


@rule("mma-sync-stages", ("stages", "arch"), "gemmill: one stage is multiplied while another is filled", "mma")
def _stages(f: Fields) -> str | None:
    """There are at least two stages; on sm_70 two."""
    stages = integer(f, "stages")
    if f["arch"] in QUADPAIR_ARCHS and stages > MIN_STAGES:
        return f"stages is {stages}; {f['arch']} has no cp.async, and so {MIN_STAGES}: the next waits in registers"
    return None if stages >= MIN_STAGES else f"stages is {stages}; the pipeline needs at least {MIN_STAGES}"


@rule(
    "mma-sync-shared-memory",
    ("stages", *AUTO_STAGES_FIELDS),
    "CUDA Programming Guide, Compute Capabilities: shared memory of a CTA",
    "mma",
)
def _shared_memory(f: Fields) -> str | None:
    """Stages fit the shared memory that a CTA can have."""
    needed, capacity = shared_bytes(f), TARGETS[str(f["arch"])].shared_bytes
    if needed <= capacity:
        return None
    return f"{f['stages']} stages take {needed:,} bytes of shared memory; a CTA has {capacity:,} on {f['arch']}"


@rule(
    "mma-sync-slices",
    ("stages", "accumulator", *AUTO_STAGES_FIELDS, "epilogue"),
    "gemmill: the sums of a tile's slices along K are added up where its stages were",
    "mma",
)
def _slices(f: Fields) -> str | None:
    """The sums of a tile's slices along K fit where its stages were."""
    *_, slices = warps(f)
    sums = (slices - 1) * integer(f, "tile.m") * integer(f, "tile.n") * DTYPES[str(f["accumulator"])].bits // 8
    if sums <= shared_bytes(f):
        return None
    return (
        f"all but the first of {slices} slices of K leave {sums:,} bytes of sums where stages were, which have "
        f"{shared_bytes(f):,}"
    )


def warps(fields: Fields) -> tuple[int, int, int]:
    """Warps along M and N: eight or fewer, of 32 x 32 or more where the tile is as large, or of 64 x 64, which read
    fewer words for each MMA; of f64 no more than four where those would be smaller than 64 x 32. And along K: where
    these are fewer than four, others compute the same for other slices of a stage, and the first adds their sums to its
    own."""
    m, n = integer(fields, "tile.m"), integer(fields, "tile.n")
    span = 64 if _is_slow_to_read(fields) else 32
    most = max(MIN_WARPS, min(MAX_WARPS, m * n // (64 * 32))) if fields["a.dtype"] == "f64" else MAX_WARPS
    along_n = max(1, min(n // span, 4 if m <= 128 else 2))
    along_m = max(1, min(m // span, most // along_n))
    mmas = integer(fields, "tile.k") * element_bytes(fields, "a") // MMA_K_BYTES
    return along_m, along_n, max(1, min(MIN_WARPS // (along_m * along_n), mmas))


def slice_threads(fields: Fields) -> int:
    """Threads that share the sums of a tile: those of one slice."""
    along_m, along_n, _ = warps(fields)
    return 32 * along_m * along_n


def threads(fields: Fields) -> int:
    """Threads of a CTA."""
    return 32 * prod(warps(fields))


def accumulator_registers(fields: Fields) -> int:
    """32-bit accumulator registers of a thread."""
    bits = DTYPES[str(fields["accumulator"])].bits
    return integer(fields, "tile.m") * integer(fields, "tile.n") * bits // (32 * slice_threads(fields))


def stage_bytes(fields: Fields) -> tuple[int, int]:
    """Bytes of one stage of A and of B."""

    def of(operand: str, rows: str) -> int:
        along_k = integer(fields, "tile.k") * element_bytes(fields, operand)
        return integer(fields, rows) * (along_k + (SHIFTED_BYTES if is_shifted(fields, operand) else 0))

    return of("a", "tile.m"), of("b", "tile.n")


def shared_bytes(fields: Fields) -> int:
    """Dynamic shared memory of a CTA."""
    return integer(fields, "stages") * sum(stage_bytes(fields))


def max_auto_stages(fields: Fields) -> int:
    """Deepest pipeline that ``stages: auto`` asks for."""
    return MIN_STAGES if fields["arch"] in QUADPAIR_ARCHS else MAX_AUTO_STAGES


def auto_stages(fields: Fields) -> int:
    """Stages that ``stages: auto`` stands for: the most that fit, up to ``max_auto_stages``; may be below 2."""
    return min(max_auto_stages(fields), TARGETS[str(fields["arch"])].shared_bytes // sum(stage_bytes(fields)))


RULES: tuple[Rule, ...] = (
    multiplied(
        "mma-sync-types",
        "mma",
        "mma.sync",
        ACCUMULATORS,
        "PTX ISA, mma: types of A, B and D of the shapes m16n8",
    ),
    _quadpair_types,
    *direct.rules("mma"),
    _tile,
    _tile_k,
    _swizzle,
    _stages,
    _registers,
    _loaded_bytes,
    _shared_memory,
    _slices,
)
"""The rules of the family, in the order of reports."""

DOMAINS: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {
        **direct.DOMAINS,
        "tile.m": TILE_MN,
        "tile.n": TILE_MN,
        "tile.k": tuple(sorted({depth // size for depth in TILE_K_BYTES for size in (1, 2, 4, 8)})),
        "stages": tuple(range(MIN_STAGES, 9)),
    }
)
"""The values that the family takes, of the fields that have no words."""

FAMILY = Family(
    archs=ARCHS,
    rules=RULES,
    domains=DOMAINS,
    threads=threads,
    stage_bytes=stage_bytes,
    shared_bytes=shared_bytes,
    accumulator_registers=accumulator_registers,
    auto_stages=auto_stages,
    max_auto_stages=max_auto_stages,
    lacks_for_epilogue=direct.lacks_for_epilogue,
)
