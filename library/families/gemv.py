"""Dot products for 8, 16 or 32 rows of A a tile (sm_80 and later): B is read once, at the speed of memory.

The formulas are those of ``kernel/gemv.cuh``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.config.domains import one_of
from gemmill.library.config.fields import Fields, Value
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.families import direct
from gemmill.library.families.family import Family
from gemmill.library.legality.quantities import SM_REGISTERS, align_up, element_bytes, integer
from gemmill.library.legality.rule import Rule, rule

ARCHS = ("sm80", "sm86", "sm89", "sm90", "sm90a", "sm120")
ACCUMULATORS: Mapping[str, str] = MappingProxyType(
    {**dict.fromkeys(("bf16", "f16", "e4m3", "e5m2"), "f32"), **dict.fromkeys(("s8", "u8"), "s32")}
)
"""Accumulator by the type of A and B: those whose MMA takes words of 16- or 8-bit elements."""
MMA_M = 8
"""Rows of A that an MMA takes, whose N they are."""
TILE_M = (8, 16, 32)
"""Rows of A that a tile may have."""
STAGES = (2, 4, 8, 16)
AUTO_STAGES = 8
"""With fewer loads a thread, an SM has too little in flight; with more, too few threads."""
UNCACHED_BYTES = 8
"""Least vectors of B that do not stay in L1 (``copy/stream.cuh``)."""
MAX_THREADS = 1024
SM_PARTS = 4
"""Parts of an SM, among which registers and warps are divided."""
SPARE_REGISTERS = 36
"""Registers of a thread beside operands and sums, for which ptxas was seen not to spill."""
PAIRING_REGISTERS = 12
"""As many more where B is mn-major, and to convert 8-bit types."""
GATHERING_REGISTERS = 48
"""As many more where A is read element by element."""
ROWS_REGISTERS = 8
"""As many more for each eight rows of A beyond the first; twice as many to convert 8-bit types."""
EXPRESSION_REGISTERS = 8
"""As many more for an expression."""
MAX_GATHERED = 64
"""Elements of A that a thread may read one by one for a step: twice as many, of 8 bits, do not fit its registers."""
MIN_REGISTERS = 64
"""Registers that a thread has in any case."""


def vector(fields: Fields) -> int:
    """Elements of B that a thread loads at once."""
    return max(1, integer(fields, "b.align") // element_bytes(fields, "b"))


def thread_k(fields: Fields) -> int:
    """Elements along K that a thread holds of each of its columns, of which it has two where B is K-major."""
    stages = integer(fields, "stages")
    return stages // 2 * vector(fields) if fields["b.major"] == "k" else stages


def warp_n(fields: Fields) -> int:
    """Columns of D that a warp computes."""
    return 16 if fields["b.major"] == "k" else 8 * vector(fields)


def warp_k(fields: Fields) -> int:
    """Elements along K that a warp reads at a time."""
    return 4 * thread_k(fields)


def threads(fields: Fields) -> int:
    """Threads of a CTA: its warps split tile N and tile K between them."""
    return 32 * (integer(fields, "tile.n") // warp_n(fields)) * (integer(fields, "tile.k") // max(1, warp_k(fields)))


def stage_bytes(fields: Fields) -> tuple[int, int]:
    """Shared memory of a stage of A and of B: none, they go straight to registers."""
    return 0, 0


def mmas_m(fields: Fields) -> int:
    """MMAs that take an element of B: one for each eight rows of A."""
    return max(1, integer(fields, "tile.m") // MMA_M)


def accumulator_registers(fields: Fields) -> int:
    """32-bit accumulator registers of a thread: four for each MMA of 16 columns of D."""
    return mmas_m(fields) * (4 if fields["b.major"] == "k" else 4 * -(-vector(fields) // 2))


def shared_bytes(fields: Fields) -> int:
    """Dynamic shared memory of a CTA: every thread's sums."""
    return threads(fields) * accumulator_registers(fields) * 4


def auto_stages(fields: Fields) -> int:
    """Stages that ``stages: auto`` stands for."""
    return AUTO_STAGES


def registers(fields: Fields) -> int:
    """Registers that a thread needs: vectors of B, elements of A, sums and the rest."""
    size = element_bytes(fields, "b")
    words = integer(fields, "stages") * -(-vector(fields) * size // 4) + mmas_m(fields) * thread_k(fields) * size // 4
    spare = SPARE_REGISTERS + (PAIRING_REGISTERS if size == 1 or fields["b.major"] != "k" else 0)
    spare += GATHERING_REGISTERS if gathers(fields) else 0
    spare += ROWS_REGISTERS * (mmas_m(fields) - 1) * (2 if size == 1 else 1)
    spare += EXPRESSION_REGISTERS if fields["epilogue"] != LINEAR else 0
    return max(MIN_REGISTERS, align_up(words + accumulator_registers(fields) + spare, 8))


def gathers(fields: Fields) -> bool:
    """Whether A is read element by element: it has any strides, or is aligned to less than a word of the MMA."""
    return fields["a.major"] != "k" or integer(fields, "a.align") < 4


def resident_warps(fields: Fields) -> int:
    """Warps that an SM has registers for: each of its four parts holds whole warps only."""
    return SM_PARTS * (SM_REGISTERS // SM_PARTS // (32 * registers(fields)))


def blocks_per_sm(fields: Fields) -> int:
    """CTAs that an SM holds at a time."""
    return max(1, resident_warps(fields) // max(1, threads(fields) // 32))


_SHAPE = ("stages", "b.align", "b.major", "b.dtype")


@rule(
    "gemv-types",
    ("a.dtype", "b.dtype", "accumulator"),
    "PTX ISA, mma.m16n8k16 and mma.m16n8k32: A and B of one type",
    "gemv",
)
def _types(f: Fields) -> str | None:
    """A and B are of one type, which the kernels sum in the accumulator asked for."""
    a, b, accumulator = f["a.dtype"], f["b.dtype"], f["accumulator"]
    if a == b and ACCUMULATORS.get(str(a)) == accumulator:
        return None
    pairs = one_of(tuple(f"{dtype} x {dtype} in {wanted}" for dtype, wanted in ACCUMULATORS.items()))
    return f"A x B is {a} x {b}, summed in {accumulator}; gemv kernels take {pairs}"


@rule("gemv-majors", ("a.major", "b.major", "b.dtype"), "gemmill: B is loaded in vectors", "gemv")
def _majors(f: Fields) -> str | None:
    """A is read along K, or at any strides; B is contiguous, elements of 8 bits along K."""
    if f["a.major"] not in ("k", "any"):
        return f"A's major is {f['a.major']}; gemv kernels read A along K, or with any strides: it must be k or any"
    if f["b.major"] == "any":
        return "B's major is any; vectors of B need it to be k or mn"
    if element_bytes(f, "b") == 1 and f["b.major"] != "k":
        return f"B is {f['b.dtype']} and {f['b.major']}-major; only 16-bit elements are paired along K: it must be k"
    return None


@rule("gemv-tile-m", ("tile.m",), "PTX ISA, mma: N, which the rows of A are, is 8", "gemv")
def _tile_m(f: Fields) -> str | None:
    """Tile M is 8, 16 or 32."""
    return None if f["tile.m"] in TILE_M else f"tile M is {f['tile.m']}; gemv kernels take {one_of(TILE_M)}"


@rule("gemv-stages", _SHAPE, "PTX ISA, mma: fragments of A and B", "gemv")
def _stages(f: Fields) -> str | None:
    """Stages are vectors of B in flight, of whole words and as many elements as instructions pair along K."""
    if f["stages"] not in STAGES:
        return f"stages is {f['stages']}; gemv kernels have {one_of(STAGES)} vectors of B in flight a thread"
    size = element_bytes(f, "b")
    if size == 1 and integer(f, "b.align") < 4:
        return f"B is aligned to {f['b.align']} bytes; a word of {f['b.dtype']} needs 4"
    if thread_k(f) * size % 8:
        return (
            f"{f['stages']} vectors of {f['b.align']} bytes hold {thread_k(f) * size} bytes along K; a thread's part "
            "of an MMA is 8"
        )
    return None


@rule(
    "gemv-gathered",
    (*_SHAPE, "tile.m", "a.major", "a.align"),
    "CUDA Programming Guide, Compute Capabilities: 255 registers a thread",
    "gemv",
)
def _gathered(f: Fields) -> str | None:
    """Rows of A that are gathered fit the registers of a thread."""
    if not gathers(f) or (gathered := mmas_m(f) * thread_k(f)) <= MAX_GATHERED:
        return None
    return (
        f"A is read element by element, {gathered} by a thread at a time with {f['stages']} stages; it may hold "
        f"{MAX_GATHERED}"
    )


@rule("gemv-warps", ("tile.n", "tile.k", *_SHAPE), "gemmill: a CTA is whole warps", "gemv")
def _warps(f: Fields) -> str | None:
    """A tile is shared by whole warps."""
    for name, extent in (("tile.n", warp_n(f)), ("tile.k", warp_k(f))):
        if integer(f, name) % max(1, extent):
            return f"{name} is {f[name]}; a warp covers {extent}, of which it must be a multiple"
    return None


@rule(
    "gemv-threads",
    ("tile.m", "tile.n", "tile.k", *_SHAPE, "a.major", "a.align", "epilogue"),
    "CUDA Programming Guide, Compute Capabilities: 1,024 threads a CTA, 65,536 registers an SM",
    "gemv",
)
def _threads(f: Fields) -> str | None:
    """Threads and registers of a CTA fit an SM."""
    found, limit = threads(f), min(MAX_THREADS, 32 * resident_warps(f))
    if 0 < found <= limit:
        return None
    return (
        f"a {f['tile.n']}x{f['tile.k']} tile of B has {found} threads that load {warp_k(f)} x {warp_n(f)} elements a "
        f"warp; with {registers(f)} registers each a CTA has 32 to {limit}"
    )


RULES: tuple[Rule, ...] = (
    _types,
    _majors,
    *direct.rules("gemv"),
    _tile_m,
    _stages,
    _gathered,
    _warps,
    _threads,
)
"""The rules of the family, in the order of reports."""

DOMAINS: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {
        **direct.DOMAINS,
        "tile.m": TILE_M,
        "tile.n": tuple(sorted({n * w for n in (8, 16, 32, 64) for w in (1, 2, 4)})),
        "tile.k": tuple(64 << i for i in range(7)),
        "stages": STAGES,
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
    max_auto_stages=auto_stages,
    lacks_for_epilogue=direct.lacks_for_epilogue,
)
