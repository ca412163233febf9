"""The mma family: mma.sync with a cp.async pipeline, for operands of any strides and any alignment.

sm_70 has no cp.async: there, loads pass through registers.
"""

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
"""Targets without cp.async whose tensor cores support only f16; a quadpair (8 threads) executes each MMA."""
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
"""Depths of a stage in bytes: whole MMAs."""
MMA_K_BYTES = 32
"""Bytes along K of one MMA."""
MIN_WARPS = 4
"""Fewest warps of a CTA, one for each tensor core of an SM, if its tile and stage depth have work for them."""
MAX_WARPS = 8
"""Most warps that share the sums of a tile."""
SWIZZLE_BYTES = 32
"""Smallest swizzle span: the contiguous extent of a tile is a multiple of it."""
MIN_STAGES = 2
MAX_AUTO_STAGES = 4
"""Most stages for ``stages: auto``. With more, fewer CTAs fit on an SM."""
MAX_REGISTERS = 128
"""Most accumulator registers of a thread: those of a warp with 64 x 64 sums of 32 bits."""
MAX_REGISTERS_BESIDE = 64
"""The limit if something else needs registers, such as loads through registers or conversions from fp8."""
MAX_F64_K_BYTES = 128
"""Deepest stage, in bytes along K, for which f64 sums can use all of :data:`MAX_REGISTERS`."""
MAX_BYTES_IN_REGISTERS = 32
"""Most bytes per thread of a stage that is loaded through registers."""
ASYNC_BYTES = 4
"""Fewest bytes that cp.async copies."""
SHIFTED_BYTES = 16
"""Bytes of padding per row of a stage whose rows are copied without realignment (copy/shifted.cuh)."""


class MmaPlan(DirectPlan):
    """The plan of a multistage kernel: threads copy operands to shared memory, and mma.sync multiplies them."""

    family = "mma"
    archs = ("sm70", "sm80", "sm86", "sm89", "sm90", "sm90a", "sm120")

    @member
    def has_quadpairs(self) -> bool:
        """Whether the target is one of :data:`QUADPAIR_ARCHS`."""
        return self.config.arch in QUADPAIR_ARCHS

    def is_shifted(self, operand: InputName) -> bool:
        """Whether rows of an operand are copied without realignment; threads assemble words when they read them."""
        matrix = self.config.inputs[operand]
        return matrix.major == "k" and not self.has_quadpairs and matrix.align < ASYNC_BYTES

    @part
    def through_registers(self) -> tuple[InputName, ...]:
        """The operands that are loaded through registers.

        Without cp.async these are A and B. With it, these are operands that are not K-major and whose contiguous units
        are shorter than a copy of cp.async.
        """

        def loaded(operand: InputOperand) -> bool:
            unit = operand.type.unpacked_bytes if operand.major == "any" else operand.align
            return self.has_quadpairs or (operand.major != "k" and unit < ASYNC_BYTES)

        return tuple(name for name, operand in self.config.inputs.items() if loaded(operand))

    @member
    def is_deep(self) -> bool:
        """Whether the stages of f64 operands are so deep that fewer registers remain for sums."""
        a = self.config.a
        return a.dtype == "f64" and self.config.tile.k * a.type.unpacked_bytes > MAX_F64_K_BYTES

    @member
    def converts(self) -> bool:
        """Whether fp8 operands are converted to f16 before the MMA."""
        return self.config.a.dtype in FP8 and self.config.arch.startswith("sm90")

    @member
    def rounds(self) -> bool:
        """Whether rounding f32 to tf32 takes more than one instruction."""
        return self.config.a.dtype == "tf32" and self.config.target.capability < (9, 0)

    @member
    def _is_slow_to_read(self) -> bool:
        """Whether threads assemble the words of both A and B, so that reading takes longer than multiplying.

        Larger warp tiles then pay off, if registers suffice: not with fp8 conversions or an epilogue expression.
        """
        shifted = self.is_shifted("a") and self.is_shifted("b")
        return shifted and not self.converts and self.config.epilogue == LINEAR

    @part
    def warps(self) -> tuple[int, int, int]:
        """Warps along M, N and K.

        Up to 8 warps divide the tile along M and N, each with at least 32 x 32 sums if the tile is that large, or with
        64 x 64, which reads fewer words per MMA. For f64 there are at most 4 if more would have less than 64 x 32.
        If there are fewer than 4, further warps along K compute the same sums for other slices of a stage, and the
        first slice adds them up.
        """
        a, tile = self.config.a, self.config.tile
        span = 64 if self._is_slow_to_read else 32
        most = max(MIN_WARPS, min(MAX_WARPS, tile.m * tile.n // (64 * 32))) if a.dtype == "f64" else MAX_WARPS
        along_n = max(1, min(tile.n // span, 4 if tile.m <= 128 else 2))
        along_m = max(1, min(tile.m // span, most // along_n))
        mmas = tile.k * a.type.unpacked_bytes // MMA_K_BYTES
        return along_m, along_n, max(1, min(MIN_WARPS // (along_m * along_n), mmas))

    @member
    def slice_threads(self) -> int:
        """Threads that share the sums of a tile: those of one slice along K."""
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
        """Most stages for ``stages: auto``."""
        return MIN_STAGES if self.has_quadpairs else MAX_AUTO_STAGES

    @part
    def auto_stages(self) -> int:
        """Stages for ``stages: auto``: as many as fit, up to :attr:`max_auto_stages`; can be below 2."""
        return min(self.max_auto_stages, self.config.target.shared_bytes // sum(self.stage_bytes))


_STAGED = tuple(f"{operand}.{leaf}" for leaf in ("align", "major", "dtype") for operand in "ab")
AUTO_STAGES_FIELDS = ("tile.m", "tile.n", "tile.k", *_STAGED, "arch")


@rule(
    "mma-sync-quadpair",
    ("a.dtype", "b.dtype", "arch"),
    "PTX ISA, mma: sm_70 supports only m8n8k4 of .f16",
    MmaPlan,
)
def _quadpair_types(plan: MmaPlan) -> str | None:
    """On sm_70, A and B must be f16."""
    a, b = plan.config.a.dtype, plan.config.b.dtype
    if not plan.has_quadpairs or (a, b) == ("f16", "f16"):
        return None
    return f"A x B is {a} x {b}; on {plan.config.arch} multistage kernels support only f16 x f16"


@rule("mma-sync-tile", ("tile.m", "tile.n"), "PTX ISA, mma: m16n8; gemmill: warps divide a tile evenly", MmaPlan)
def _tile(plan: MmaPlan) -> str | None:
    """Tile M and N must be 16, 32, 64, 128 or 256, so that warps divide the tile evenly."""
    for name, extent in (("M", plan.config.tile.m), ("N", plan.config.tile.n)):
        if extent not in TILE_MN:
            return f"tile {name} is {extent}; for multistage kernels it must be {one_of(TILE_MN)}"
    return None


@rule("mma-sync-tile-k", ("tile.k", "a.dtype"), "PTX ISA, mma: K is 32 bytes", MmaPlan)
def _tile_k(plan: MmaPlan) -> str | None:
    """Tile K must be 32, 64, 128 or 256 bytes: whole MMA instructions."""
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
    """A row of a stage of an mn-major operand must have at least 32 bytes, the smallest swizzle span."""
    config = plan.config
    for name, operand, field, extent in (("A", config.a, "m", config.tile.m), ("B", config.b, "n", config.tile.n)):
        if operand.major == "mn" and extent * operand.type.unpacked_bytes < SWIZZLE_BYTES:
            return (
                f"tile.{field} is {extent}; a row of {extent} {operand.dtype} elements of {name} must have at least "
                f"{SWIZZLE_BYTES} bytes"
            )
    return None


@rule(
    "mma-sync-registers",
    ("tile.n", "tile.m", "tile.k", "accumulator", "c.major", "d.major", "epilogue", *_STAGED, "arch"),
    "CUDA Programming Guide, Compute Capabilities: 255 registers per thread",
    MmaPlan,
)
def _registers(plan: MmaPlan) -> str | None:
    """Accumulators and fragments must fit the registers of a thread."""
    config = plan.config
    registers, reason = plan.accumulator_registers, ""
    is_m_major = config.outputs["c"].major == config.d.major == "m"
    loaded, wide = plan.through_registers, max(TILE_MN) in (config.tile.m, config.tile.n)
    if config.a.dtype in FP8:
        reason = ", because on sm_90 an fp8 MMA becomes several f16 MMAs"
    elif loaded:
        reason = f", because {' and '.join(loaded).upper()} is loaded through registers"
    elif plan.rounds:
        reason = ", because before sm_90 rounding to tf32 takes several instructions"
    elif plan.is_deep:
        reason = f" with f64 stages deeper than {MAX_F64_K_BYTES} bytes"
    elif config.accumulator == "f64" and config.epilogue != LINEAR:
        reason = " with an f64 epilogue expression"
    elif config.b.dtype == "f64" and config.b.major == "mn" and config.b.align == 8 and config.tile.n == max(TILE_MN):
        # ptxas spills them with four stages and more.
        reason = f" with an mn-major B of {config.tile.n} columns that is copied 8 bytes at a time"
    elif config.accumulator == "f64" and is_m_major and config.tile.n == max(TILE_MN):
        reason = f" with {config.tile.n} columns of an m-major C and D"
    elif config.epilogue != LINEAR and wide:
        reason = f" with an epilogue expression and {max(TILE_MN)} rows or columns"
    limit = MAX_REGISTERS_BESIDE if reason else MAX_REGISTERS
    if config.epilogue != LINEAR and (plan.converts or plan.is_deep or wide):
        limit, reason = limit // 2, f"{reason}; the epilogue expression halves it"
    if registers <= limit:
        return None
    return (
        f"a {config.tile.m}x{config.tile.n} {config.accumulator} accumulator takes {registers} registers of each of "
        f"{plan.slice_threads} threads; the limit is {limit}{reason}"
    )


@rule(
    "mma-sync-loaded-bytes",
    ("tile.k", "tile.m", "tile.n", *_STAGED, "arch"),
    "CUDA Programming Guide, Compute Capabilities: 255 registers per thread",
    MmaPlan,
)
def _loaded_bytes(plan: MmaPlan) -> str | None:
    """If threads load an operand through registers, a thread must load at most 32 bytes of a stage."""
    stages = dict(zip("ab", plan.stage_bytes, strict=True))
    for operand in plan.through_registers:
        if (bytes_per_thread := stages[operand] // plan.threads) > MAX_BYTES_IN_REGISTERS:
            return (
                f"each of {plan.threads} threads loads {bytes_per_thread} bytes of a stage of {operand.upper()} "
                f"through registers; the limit is {MAX_BYTES_IN_REGISTERS}"
            )
    return None


@rule("mma-sync-stages", ("stages", "arch"), "gemmill: threads multiply one stage while they fill another", MmaPlan)
def _stages(plan: MmaPlan) -> str | None:
    """``stages`` must be at least 2; on sm_70, exactly 2."""
    config = plan.config
    stages = config.stages
    if plan.has_quadpairs and stages > MIN_STAGES:
        return f"stages is {stages}; {config.arch} has no cp.async, so it must be {MIN_STAGES}"
    return None if stages >= MIN_STAGES else f"stages is {stages}; it must be at least {MIN_STAGES}"


@rule(
    "mma-sync-shared-memory",
    ("stages", *AUTO_STAGES_FIELDS),
    "CUDA Programming Guide, Compute Capabilities: shared memory of a CTA",
    MmaPlan,
)
def _shared_memory(plan: MmaPlan) -> str | None:
    """The stages must fit the shared memory of a CTA."""
    config = plan.config
    shared_bytes, capacity = plan.shared_bytes, config.target.shared_bytes
    if shared_bytes <= capacity:
        return None
    return (
        f"{config.stages} stages take {shared_bytes:,} bytes of shared memory; on {config.arch} a CTA has {capacity:,}"
    )


@rule(
    "mma-sync-slices",
    ("stages", "accumulator", *AUTO_STAGES_FIELDS, "epilogue"),
    "gemmill: warps of different K slices add their sums in the shared memory of the stages",
    MmaPlan,
)
def _slices(plan: MmaPlan) -> str | None:
    """If warps divide a stage along K, their sums must fit the shared memory of the stages."""
    config = plan.config
    *_, slices = plan.warps
    sums = (slices - 1) * config.tile.m * config.tile.n * DTYPES[config.accumulator].bits // 8
    if sums <= plan.shared_bytes:
        return None
    return (
        f"the sums of {slices} K slices take {sums:,} bytes of shared memory; the stages that they overwrite have "
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
"""The rules of the family in the order of reports."""

DOMAINS: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {
        **DIRECT_DOMAINS,
        "tile.m": TILE_MN,
        "tile.n": TILE_MN,
        "tile.k": tuple(sorted({depth // size for depth in TILE_K_BYTES for size in (1, 2, 4, 8)})),
        "stages": tuple(range(MIN_STAGES, 9)),
    }
)
"""The values that the family supports, for each integer field."""
