"""The gemv family: dot products for 8, 16 or 32 rows of A per tile (sm_80 and later), limited by reading B once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.config.domains import one_of
from gemmill.library.config.field import Value
from gemmill.library.config.fields import member
from gemmill.library.dtypes import FP8, INT8
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.families.kernel_plan import Region
from gemmill.library.families.shared_rules import DIRECT_DOMAINS, DirectPlan, direct_rules
from gemmill.library.legality.quantities import SM_PARTS, SM_REGISTERS, align_up
from gemmill.library.legality.rule import Rule, rule

ACCUMULATORS: Mapping[str, str] = MappingProxyType(
    {**dict.fromkeys(("bf16", "f16", *FP8), "f32"), **dict.fromkeys(INT8, "s32")}
)
"""Accumulator type by the type of A and B: the types whose MMAs read words of 16- or 8-bit elements."""
MMA_M = 8
"""Rows of A per MMA. They are the N extent of the MMA instruction."""
TILE_M = (8, 16, 32)
"""Supported rows of A per tile."""
STAGES = (2, 4, 8, 16)
AUTO_STAGES = 8
"""With fewer loads per thread, an SM has too few bytes in flight; with more, too few threads fit."""
UNCACHED_BYTES = 8
"""Smallest vectors of B that bypass L1 (``copy/stream.cuh``)."""
MAX_THREADS = 1024
OTHER_REGISTERS = 36
"""Registers of a thread other than operands and sums. With this many ptxas did not spill."""
PAIRING_REGISTERS = 12
"""Additional registers if B is mn-major or has an 8-bit type to convert."""
GATHERING_REGISTERS = 48
"""Additional registers if A is read element by element."""
ROWS_REGISTERS = 8
"""Additional registers for each 8 rows of A beyond the first 8; twice as many for an 8-bit type to convert."""
EXPRESSION_REGISTERS = 8
"""Additional registers for an epilogue expression."""
MAX_GATHERED = 64
"""Most elements of A that a thread reads one by one per step. Twice as many 8-bit elements do not fit its registers."""
MIN_REGISTERS = 64
"""Registers that every thread has at least."""


class GemvPlan(DirectPlan):
    """The plan of a gemv kernel. It uses the same formulas as ``kernel/gemv.cuh``."""

    family = "gemv"
    archs = ("sm80", "sm86", "sm89", "sm90", "sm90a", "sm120")

    @member
    def vector(self) -> int:
        """Elements of B that a thread loads with one instruction."""
        return max(1, self.config.b.align // self.config.b.type.unpacked_bytes)

    @member
    def thread_k(self) -> int:
        """Elements along K that a thread holds for each of its columns. It has two columns if B is K-major."""
        stages = self.config.stages
        return stages // 2 * self.vector if self.config.b.major == "k" else stages

    @member
    def warp_n(self) -> int:
        """Columns of D that a warp computes."""
        return 16 if self.config.b.major == "k" else 8 * self.vector

    @member
    def warp_k(self) -> int:
        """Elements along K that a warp reads per step."""
        return 4 * self.thread_k

    @member
    def threads(self) -> int:
        """Threads of a CTA: its warps divide tile N and tile K among them."""
        return 32 * (self.config.tile.n // self.warp_n) * (self.config.tile.k // max(1, self.warp_k))

    @member
    def stage_bytes(self) -> tuple[int, int]:
        """Shared memory of a stage of A and of B: none, because threads load both directly to registers."""
        return 0, 0

    @member
    def mmas_m(self) -> int:
        """MMAs per element of B: one for each 8 rows of A."""
        return max(1, self.config.tile.m // MMA_M)

    @member
    def accumulator_registers(self) -> int:
        """32-bit accumulator registers of a thread: four for each MMA, which covers 16 columns of D."""
        return self.mmas_m * (4 if self.config.b.major == "k" else 4 * -(-self.vector // 2))

    @member
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA: every thread's sums."""
        return self.threads * self.accumulator_registers * 4

    @member
    def regions(self) -> tuple[Region, ...]:
        """The regions of that shared memory."""
        return (Region("sums of warps", 1, self.shared_bytes),)

    @member
    def auto_stages(self) -> int:
        """Stages for ``stages: auto``."""
        return AUTO_STAGES

    @member
    def registers(self) -> int:
        """Registers that a thread needs for vectors of B, elements of A, sums and everything else."""
        b, size = self.config.b, self.config.b.type.unpacked_bytes
        words = self.config.stages * -(-self.vector * size // 4) + self.mmas_m * self.thread_k * size // 4
        other_registers = OTHER_REGISTERS + (PAIRING_REGISTERS if size == 1 or b.major != "k" else 0)
        other_registers += GATHERING_REGISTERS if self.gathers else 0
        other_registers += ROWS_REGISTERS * (self.mmas_m - 1) * (2 if size == 1 else 1)
        other_registers += EXPRESSION_REGISTERS if self.config.epilogue != LINEAR else 0
        return max(MIN_REGISTERS, align_up(words + self.accumulator_registers + other_registers, 8))

    @member
    def gathers(self) -> bool:
        """Whether A is read element by element: its strides are arbitrary, or its alignment is less than 4 bytes."""
        return self.config.a.major != "k" or self.config.a.align < 4

    @member
    def resident_warps(self) -> int:
        """Warps whose registers fit an SM. Each of its four partitions holds whole warps."""
        return SM_PARTS * (SM_REGISTERS // SM_PARTS // (32 * self.registers))

    @member
    def ctas_per_sm(self) -> int:
        """CTAs that an SM runs concurrently."""
        return max(1, self.resident_warps // max(1, self.threads // 32))


_SHAPE = ("stages", "b.align", "b.major", "b.dtype")


@rule(
    "gemv-types",
    ("a.dtype", "b.dtype", "accumulator"),
    "PTX ISA, mma.m16n8k16 and mma.m16n8k32: A and B of one type",
    GemvPlan,
)
def _types(plan: GemvPlan) -> str | None:
    """A and B must have the same type, and the accumulator must be f32 for floats and s32 for integers."""
    config = plan.config
    a, b, accumulator = config.a.dtype, config.b.dtype, config.accumulator
    if a == b and ACCUMULATORS.get(a) == accumulator:
        return None
    pairs = one_of(tuple(f"{dtype} x {dtype} in {accumulator}" for dtype, accumulator in ACCUMULATORS.items()))
    return f"A x B is {a} x {b} with accumulator {accumulator}; gemv kernels support {pairs}"


@rule("gemv-majors", ("a.major", "b.major", "b.dtype"), "gemmill: threads load B in vectors", GemvPlan)
def _majors(plan: GemvPlan) -> str | None:
    """A must be K-major or have major ``any``; B must be K-major, or mn-major if its elements have 16 bits."""
    config = plan.config
    if config.a.major not in ("k", "any"):
        return f"A's major is {config.a.major}; for gemv kernels it must be k or any"
    if config.b.major == "any":
        return "B's major is any; gemv kernels load vectors of B, so it must be k or mn"
    if config.b.type.unpacked_bytes == 1 and config.b.major != "k":
        return (
            f"B is {config.b.dtype} and {config.b.major}-major; gemv kernels need a K-major B of 8-bit elements, so "
            "its major must be k"
        )
    return None


@rule("gemv-tile-m", ("tile.m",), "PTX ISA, mma: N is 8; rows of A are the N of the MMA", GemvPlan)
def _tile_m(plan: GemvPlan) -> str | None:
    """Tile M must be 8, 16 or 32."""
    m = plan.config.tile.m
    return None if m in TILE_M else f"tile M is {m}; for gemv kernels it must be {one_of(TILE_M)}"


@rule("gemv-stages", _SHAPE, "PTX ISA, mma: fragments of A and B", GemvPlan)
def _stages(plan: GemvPlan) -> str | None:
    """Stages, which are the vectors of B that a thread has in flight, must fill whole MMAs along K."""
    config = plan.config
    if config.stages not in STAGES:
        return (
            f"stages is {config.stages}; gemv kernels support {one_of(STAGES)}, the vectors of B that a thread has in "
            "flight"
        )
    size = config.b.type.unpacked_bytes
    if size == 1 and config.b.align < 4:
        return f"B is {config.b.dtype} and aligned to {config.b.align} bytes; it must be aligned to at least 4"
    if plan.thread_k * size % 8:
        return (
            f"{config.stages} stages of {config.b.align}-byte vectors hold {plan.thread_k * size} bytes of B along K; "
            "an MMA needs a multiple of 8 bytes per thread"
        )
    return None


@rule(
    "gemv-gathered",
    (*_SHAPE, "tile.m", "a.major", "a.align"),
    "CUDA Programming Guide, Compute Capabilities: 255 registers per thread",
    GemvPlan,
)
def _gathered(plan: GemvPlan) -> str | None:
    """If A is read element by element, the elements of a step must fit the registers of a thread."""
    config = plan.config
    if not plan.gathers or (gathered := plan.mmas_m * plan.thread_k) <= MAX_GATHERED:
        return None
    return (
        f"A is read element by element, and with {config.stages} stages a thread holds {gathered} of its elements; it "
        f"must hold at most {MAX_GATHERED}"
    )


@rule("gemv-warps", ("tile.n", "tile.k", *_SHAPE), "gemmill: a CTA has whole warps", GemvPlan)
def _warps(plan: GemvPlan) -> str | None:
    """Tile N and tile K must be multiples of what a warp covers."""
    tile = plan.config.tile
    for name, extent, covered in (("tile.n", tile.n, plan.warp_n), ("tile.k", tile.k, plan.warp_k)):
        if extent % max(1, covered):
            return f"{name} is {extent}; it must be a multiple of {covered}, which a warp covers"
    return None


@rule(
    "gemv-threads",
    ("tile.m", "tile.n", "tile.k", *_SHAPE, "a.major", "a.align", "epilogue"),
    "CUDA Programming Guide, Compute Capabilities: 1,024 threads per CTA, 65,536 registers per SM",
    GemvPlan,
)
def _threads(plan: GemvPlan) -> str | None:
    """The threads and registers of a CTA must fit an SM."""
    config = plan.config
    threads, limit = plan.threads, min(MAX_THREADS, 32 * plan.resident_warps)
    if 0 < threads <= limit:
        return None
    return (
        f"a {config.tile.n}x{config.tile.k} tile of B needs {threads} threads, as a warp covers {plan.warp_n} x "
        f"{plan.warp_k} elements; with {plan.registers} registers per thread a CTA must have 32 to {limit} threads"
    )


RULES: tuple[Rule, ...] = (
    _types,
    _majors,
    *direct_rules(GemvPlan),
    _tile_m,
    _stages,
    _gathered,
    _warps,
    _threads,
)
"""The rules of the family in the order of reports."""

DOMAINS: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {
        **DIRECT_DOMAINS,
        "tile.m": TILE_M,
        "tile.n": tuple(sorted({n * w for n in (8, 16, 32, 64) for w in (1, 2, 4)})),
        "tile.k": tuple(64 << i for i in range(7)),
        "stages": STAGES,
    }
)
"""The values that the family supports, for each integer field."""
