"""mma.sync behind a cp.async pipeline, on sm_70 behind registers: tensor cores for any strides and any alignment."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

from gemmill.library.config.domains import one_of
from gemmill.library.config.field import Value
from gemmill.library.config.fields import member, part
from gemmill.library.config.model import InputName, InputOperand
from gemmill.library.dtypes import DTYPES, FP8, INT8
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.families.shared_rules import DIRECT_DOMAINS, Accumulators, DirectPlan, direct_rules, multiplied
from gemmill.library.legality.rule import Rule, rule

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


class MmaPlan(DirectPlan):
    """The plan of a kernel that multiplies by mma.sync what threads copy into shared memory."""

    family = "mma"
    archs = ("sm70", "sm80", "sm86", "sm89", "sm90", "sm90a", "sm120")

    @member
    def has_quadpairs(self) -> bool:
        """Whether the target is one of :data:`QUADPAIR_ARCHS`."""
        return self.config.arch in QUADPAIR_ARCHS

    def is_shifted(self, operand: InputName) -> bool:
        """Whether rows of an operand are copied as they lie, and words are put together as they are read."""
        its = self.config.inputs[operand]
        return its.major == "k" and not self.has_quadpairs and its.align < ASYNC_BYTES

    @part
    def through_registers(self) -> tuple[InputName, ...]:
        """The operands that are loaded through registers: all without cp.async, else those that have no unit long
        enough and are not K-major."""

        def loaded(operand: InputOperand) -> bool:
            unit = operand.type.unpacked_bytes if operand.major == "any" else operand.align
            return self.has_quadpairs or (operand.major != "k" and unit < ASYNC_BYTES)

        return tuple(name for name, operand in self.config.inputs.items() if loaded(operand))

    @member
    def is_deep(self) -> bool:
        """Whether operands of f64 have stages too deep to leave as many registers."""
        a = self.config.a
        return a.dtype == "f64" and self.config.tile.k * a.type.unpacked_bytes > MAX_F64_K_BYTES

    @member
    def converts(self) -> bool:
        """Whether fp8 is converted to f16 for its MMAs."""
        return self.config.a.dtype in FP8 and self.config.arch.startswith("sm90")

    @member
    def rounds(self) -> bool:
        """Whether f32 is rounded to tf32 in more than one instruction."""
        return self.config.a.dtype == "tf32" and self.config.target.capability < (9, 0)

    @member
    def _is_slow_to_read(self) -> bool:
        """Whether words of A and of B are put together, so that they take longer to read than to multiply, and threads
        have registers for more sums: beside fp8 that is converted, and beside an expression, they have not."""
        shifted = self.is_shifted("a") and self.is_shifted("b")
        return shifted and not self.converts and self.config.epilogue == LINEAR

    @part
    def warps(self) -> tuple[int, int, int]:
        """Warps along M and N: eight or fewer, of 32 x 32 or more where the tile is as large, or of 64 x 64, which read
        fewer words for each MMA; of f64 no more than four where those would be smaller than 64 x 32. And along K: where
        these are fewer than four, others compute the same for other slices of a stage, and the first adds their sums to
        its own."""
        a, tile = self.config.a, self.config.tile
        span = 64 if self._is_slow_to_read else 32
        most = max(MIN_WARPS, min(MAX_WARPS, tile.m * tile.n // (64 * 32))) if a.dtype == "f64" else MAX_WARPS
        along_n = max(1, min(tile.n // span, 4 if tile.m <= 128 else 2))
        along_m = max(1, min(tile.m // span, most // along_n))
        mmas = tile.k * a.type.unpacked_bytes // MMA_K_BYTES
        return along_m, along_n, max(1, min(MIN_WARPS // (along_m * along_n), mmas))

    @member
    def slice_threads(self) -> int:
        """Threads that share the sums of a tile: those of one slice."""
        along_m, along_n, _ = self.warps
        return 32 * along_m * along_n

    @member
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * prod(self.warps)

    @member
    def accumulator_registers(self) -> int:
        """32-bit accumulator registers of a thread."""
        bits = DTYPES[self.config.accumulator].bits
        return self.config.tile.m * self.config.tile.n * bits // (32 * self.slice_threads)

    @part
    def stage_bytes(self) -> tuple[int, int]:
        """Bytes of one stage of A and of B."""
        tile, a, b = self.config.tile, self.config.a.type.unpacked_bytes, self.config.b.type.unpacked_bytes
        return (
            tile.m * (tile.k * a + SHIFTED_BYTES * self.is_shifted("a")),
            tile.n * (tile.k * b + SHIFTED_BYTES * self.is_shifted("b")),
        )

    @member
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA."""
        return self.config.stages * sum(self.stage_bytes)

    @member
    def max_auto_stages(self) -> int:
        """Deepest pipeline that ``stages: auto`` stands for."""
        return MIN_STAGES if self.has_quadpairs else MAX_AUTO_STAGES

    @part
    def auto_stages(self) -> int:
        """Stages that ``stages: auto`` stands for: the most that fit, up to :attr:`max_auto_stages`; may be below 2."""
        return min(self.max_auto_stages, self.config.target.shared_bytes // sum(self.stage_bytes))


_STAGED = tuple(f"{operand}.{leaf}" for leaf in ("align", "major", "dtype") for operand in "ab")
AUTO_STAGES_FIELDS = ("tile.m", "tile.n", "tile.k", *_STAGED, "arch")


@rule(
    "mma-sync-quadpair",
    ("a.dtype", "b.dtype", "arch"),
    "PTX ISA, mma: of the shapes, sm_70 has m8n8k4 of .f16 alone",
    MmaPlan,
)
def _quadpair_types(plan: MmaPlan) -> str | None:
    """On sm_70 A and B are f16."""
    a, b = plan.config.a.dtype, plan.config.b.dtype
    if not plan.has_quadpairs or (a, b) == ("f16", "f16"):
        return None
    return f"A x B is {a} x {b}; the tensor cores of {plan.config.arch} multiply f16 x f16 alone"


@rule("mma-sync-tile", ("tile.m", "tile.n"), "PTX ISA, mma: m16n8; gemmill: warps share a tile evenly", MmaPlan)
def _tile(plan: MmaPlan) -> str | None:
    """Tile M and N are extents that the warps share evenly."""
    for name, extent in (("M", plan.config.tile.m), ("N", plan.config.tile.n)):
        if extent not in TILE_MN:
            return f"tile {name} is {extent}; multistage kernels take {one_of(TILE_MN)}"
    return None


@rule("mma-sync-tile-k", ("tile.k", "a.dtype"), "PTX ISA, mma: K is 32 bytes", MmaPlan)
def _tile_k(plan: MmaPlan) -> str | None:
    """Tile K is whole instructions."""
    config = plan.config
    k, size = config.tile.k, config.a.type.unpacked_bytes
    allowed = tuple(depth // size for depth in TILE_K_BYTES)
    return None if k in allowed else f"tile K is {k}; with {config.a.dtype} operands it must be {one_of(allowed)}"


@rule(
    "mma-sync-swizzle",
    ("tile.m", "tile.n", "a.major", "b.major", "a.dtype", "b.dtype"),
    "gemmill: stages are swizzled in rows of at least 32 bytes",
    MmaPlan,
)
def _swizzle(plan: MmaPlan) -> str | None:
    """Rows of mn-major stages are long enough for a swizzle."""
    config = plan.config
    for name, operand, field, extent in (("A", config.a, "m", config.tile.m), ("B", config.b, "n", config.tile.n)):
        if operand.major == "mn" and extent * operand.type.unpacked_bytes < SWIZZLE_BYTES:
            return (
                f"rows of {name}'s stages are tile.{field} = {extent} elements of {operand.dtype}; "
                f"they must have at least {SWIZZLE_BYTES} bytes"
            )
    return None


@rule(
    "mma-sync-registers",
    ("tile.n", "tile.m", "tile.k", "accumulator", "c.major", "d.major", "epilogue", *_STAGED, "arch"),
    "CUDA Programming Guide, Compute Capabilities: 255 registers a thread",
    MmaPlan,
)
def _registers(plan: MmaPlan) -> str | None:
    """Sums and fragments fit the registers of a thread."""
    config = plan.config
    registers, why = plan.accumulator_registers, ""
    is_m_major = config.outputs["c"].major == config.d.major == "m"
    loaded, wide = plan.through_registers, max(TILE_MN) in (config.tile.m, config.tile.n)
    if config.a.dtype in FP8:
        why = ", as their MMAs of fp8 are several of f16 on sm_90"
    elif loaded:
        why = f", as {' and '.join(loaded).upper()} is loaded through registers"
    elif plan.rounds:
        why = ", as words are rounded to tf32 in several instructions before sm_90"
    elif plan.is_deep:
        why = f" beside fragments of stages deeper than {MAX_F64_K_BYTES} bytes"
    elif config.accumulator == "f64" and config.epilogue != LINEAR:
        why = " beside an expression of f64"
    elif config.b.dtype == "f64" and config.b.major == "mn" and config.b.align == 8 and config.tile.n == max(TILE_MN):
        # ptxas spills them with four stages and more.
        why = f" beside the addresses of rows of {config.tile.n} elements of B that are copied 8 bytes at a time"
    elif config.accumulator == "f64" and is_m_major and config.tile.n == max(TILE_MN):
        why = f" beside {config.tile.n} columns of an m-major C and D"
    elif config.epilogue != LINEAR and wide:
        why = f" beside a tile of {max(TILE_MN)} rows or columns"
    limit = MAX_REGISTERS_BESIDE if why else MAX_REGISTERS
    if config.epilogue != LINEAR and (plan.converts or plan.is_deep or wide):
        limit, why = limit // 2, f"{why}; an expression leaves half"
    if registers <= limit:
        return None
    return (
        f"{plan.slice_threads} threads hold a {config.tile.m}x{config.tile.n} tile of {config.accumulator} in "
        f"{registers} registers each; they have {limit}{why}"
    )


@rule(
    "mma-sync-loaded-bytes",
    ("tile.k", "tile.m", "tile.n", *_STAGED, "arch"),
    "CUDA Programming Guide, Compute Capabilities: 255 registers a thread",
    MmaPlan,
)
def _loaded_bytes(plan: MmaPlan) -> str | None:
    """What a thread loads through registers fits them."""
    stages = dict(zip("ab", plan.stage_bytes, strict=True))
    for operand in plan.through_registers:
        if (held := stages[operand] // plan.threads) > MAX_BYTES_IN_REGISTERS:
            return (
                f"each of {plan.threads} threads loads {held} bytes of a stage of {operand.upper()} through registers; "
                f"they hold {MAX_BYTES_IN_REGISTERS}"
            )
    return None


@rule("mma-sync-stages", ("stages", "arch"), "gemmill: one stage is multiplied while another is filled", MmaPlan)
def _stages(plan: MmaPlan) -> str | None:
    """There are at least two stages; on sm_70 two."""
    config = plan.config
    stages = config.stages
    if plan.has_quadpairs and stages > MIN_STAGES:
        return f"stages is {stages}; {config.arch} has no cp.async, and so {MIN_STAGES}: the next waits in registers"
    return None if stages >= MIN_STAGES else f"stages is {stages}; the pipeline needs at least {MIN_STAGES}"


@rule(
    "mma-sync-shared-memory",
    ("stages", *AUTO_STAGES_FIELDS),
    "CUDA Programming Guide, Compute Capabilities: shared memory of a CTA",
    MmaPlan,
)
def _shared_memory(plan: MmaPlan) -> str | None:
    """Stages fit the shared memory that a CTA can have."""
    config = plan.config
    needed, capacity = plan.shared_bytes, config.target.shared_bytes
    if needed <= capacity:
        return None
    return f"{config.stages} stages take {needed:,} bytes of shared memory; a CTA has {capacity:,} on {config.arch}"


@rule(
    "mma-sync-slices",
    ("stages", "accumulator", *AUTO_STAGES_FIELDS, "epilogue"),
    "gemmill: the sums of a tile's slices along K are added up where its stages were",
    MmaPlan,
)
def _slices(plan: MmaPlan) -> str | None:
    """The sums of a tile's slices along K fit where its stages were."""
    config = plan.config
    *_, slices = plan.warps
    sums = (slices - 1) * config.tile.m * config.tile.n * DTYPES[config.accumulator].bits // 8
    if sums <= plan.shared_bytes:
        return None
    return (
        f"all but the first of {slices} slices of K leave {sums:,} bytes of sums where stages were, which have "
        f"{plan.shared_bytes:,}"
    )


RULES: tuple[Rule, ...] = (
    multiplied(
        "mma-sync-types",
        MmaPlan,
        "mma.sync",
        ACCUMULATORS,
        "PTX ISA, mma: types of A, B and D of the shapes m16n8",
    ),
    _quadpair_types,
    *direct_rules(MmaPlan),
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
        **DIRECT_DOMAINS,
        "tile.m": TILE_MN,
        "tile.n": TILE_MN,
        "tile.k": tuple(sorted({depth // size for depth in TILE_K_BYTES for size in (1, 2, 4, 8)})),
        "stages": tuple(range(MIN_STAGES, 9)),
    }
)
"""The values that the family takes, of the fields that have no words."""
