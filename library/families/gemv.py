"""Dot products for 8, 16 or 32 rows of A a tile (sm_80 and later): B is read once, at the speed of memory."""

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
from gemmill.library.legality.quantities import SM_REGISTERS, align_up
from gemmill.library.legality.rule import Rule, rule

ACCUMULATORS: Mapping[str, str] = MappingProxyType(
    {**dict.fromkeys(("bf16", "f16", *FP8), "f32"), **dict.fromkeys(INT8, "s32")}
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
OTHER_REGISTERS = 36
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


class GemvPlan(DirectPlan):
    """The plan of a kernel of dot products. The formulas are those of ``kernel/gemv.cuh``."""

    family = "gemv"
    archs = ("sm80", "sm86", "sm89", "sm90", "sm90a", "sm120")

    @member
    def vector(self) -> int:
        """Elements of B that a thread loads at once."""
        return max(1, self.config.b.align // self.config.b.type.unpacked_bytes)

    @member
    def thread_k(self) -> int:
        """Elements along K that a thread holds of each of its columns, of which it has two where B is K-major."""
        stages = self.config.stages
        return stages // 2 * self.vector if self.config.b.major == "k" else stages

    @member
    def warp_n(self) -> int:
        """Columns of D that a warp computes."""
        return 16 if self.config.b.major == "k" else 8 * self.vector

    @member
    def warp_k(self) -> int:
        """Elements along K that a warp reads at a time."""
        return 4 * self.thread_k

    @member
    def threads(self) -> int:
        """Threads of a CTA: its warps split tile N and tile K between them."""
        return 32 * (self.config.tile.n // self.warp_n) * (self.config.tile.k // max(1, self.warp_k))

    @member
    def stage_bytes(self) -> tuple[int, int]:
        """Shared memory of a stage of A and of B: none, they go straight to registers."""
        return 0, 0

    @member
    def mmas_m(self) -> int:
        """MMAs that take an element of B: one for each eight rows of A."""
        return max(1, self.config.tile.m // MMA_M)

    @member
    def accumulator_registers(self) -> int:
        """32-bit accumulator registers of a thread: four for each MMA of 16 columns of D."""
        return self.mmas_m * (4 if self.config.b.major == "k" else 4 * -(-self.vector // 2))

    @member
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA: every thread's sums."""
        return self.threads * self.accumulator_registers * 4

    @member
    def regions(self) -> tuple[Region, ...]:
        """The parts of that shared memory."""
        return (Region("sums of warps", 1, self.shared_bytes),)

    @member
    def auto_stages(self) -> int:
        """Stages that ``stages: auto`` stands for."""
        return AUTO_STAGES

    @member
    def registers(self) -> int:
        """Registers that a thread needs: vectors of B, elements of A, sums and the rest."""
        b, size = self.config.b, self.config.b.type.unpacked_bytes
        words = self.config.stages * -(-self.vector * size // 4) + self.mmas_m * self.thread_k * size // 4
        others = OTHER_REGISTERS + (PAIRING_REGISTERS if size == 1 or b.major != "k" else 0)
        others += GATHERING_REGISTERS if self.gathers else 0
        others += ROWS_REGISTERS * (self.mmas_m - 1) * (2 if size == 1 else 1)
        others += EXPRESSION_REGISTERS if self.config.epilogue != LINEAR else 0
        return max(MIN_REGISTERS, align_up(words + self.accumulator_registers + others, 8))

    @member
    def gathers(self) -> bool:
        """Whether A is read element by element: it has any strides, or is aligned to less than a word of the MMA."""
        return self.config.a.major != "k" or self.config.a.align < 4

    @member
    def resident_warps(self) -> int:
        """Warps that an SM has registers for: each of its four parts holds whole warps only."""
        return SM_PARTS * (SM_REGISTERS // SM_PARTS // (32 * self.registers))

    @member
    def ctas_per_sm(self) -> int:
        """CTAs that an SM holds at a time."""
        return max(1, self.resident_warps // max(1, self.threads // 32))


_SHAPE = ("stages", "b.align", "b.major", "b.dtype")


@rule(
    "gemv-types",
    ("a.dtype", "b.dtype", "accumulator"),
    "PTX ISA, mma.m16n8k16 and mma.m16n8k32: A and B of one type",
    GemvPlan,
)
def _types(plan: GemvPlan) -> str | None:
    """A and B are of one type, which the kernels sum in the accumulator asked for."""
    config = plan.config
    a, b, accumulator = config.a.dtype, config.b.dtype, config.accumulator
    if a == b and ACCUMULATORS.get(a) == accumulator:
        return None
    pairs = one_of(tuple(f"{dtype} x {dtype} in {accumulator}" for dtype, accumulator in ACCUMULATORS.items()))
    return f"A x B is {a} x {b}, summed in {accumulator}; gemv kernels take {pairs}"


@rule("gemv-majors", ("a.major", "b.major", "b.dtype"), "gemmill: B is loaded in vectors", GemvPlan)
def _majors(plan: GemvPlan) -> str | None:
    """A is read along K, or at any strides; B is contiguous, elements of 8 bits along K."""
    config = plan.config
    if config.a.major not in ("k", "any"):
        return f"A's major is {config.a.major}; gemv kernels read A along K, or with any strides: it must be k or any"
    if config.b.major == "any":
        return "B's major is any; vectors of B need it to be k or mn"
    if config.b.type.unpacked_bytes == 1 and config.b.major != "k":
        return (
            f"B is {config.b.dtype} and {config.b.major}-major; only 16-bit elements are paired along K: it must be k"
        )
    return None


@rule("gemv-tile-m", ("tile.m",), "PTX ISA, mma: N, which the rows of A are, is 8", GemvPlan)
def _tile_m(plan: GemvPlan) -> str | None:
    """Tile M is 8, 16 or 32."""
    m = plan.config.tile.m
    return None if m in TILE_M else f"tile M is {m}; gemv kernels take {one_of(TILE_M)}"


@rule("gemv-stages", _SHAPE, "PTX ISA, mma: fragments of A and B", GemvPlan)
def _stages(plan: GemvPlan) -> str | None:
    """Stages are vectors of B in flight, of whole words and as many elements as instructions pair along K."""
    config = plan.config
    if config.stages not in STAGES:
        return f"stages is {config.stages}; gemv kernels have {one_of(STAGES)} vectors of B in flight a thread"
    size = config.b.type.unpacked_bytes
    if size == 1 and config.b.align < 4:
        return f"B is aligned to {config.b.align} bytes; a word of {config.b.dtype} needs 4"
    if plan.thread_k * size % 8:
        return (
            f"{config.stages} vectors of {config.b.align} bytes hold {plan.thread_k * size} bytes along K; a thread's "
            "part of an MMA is 8"
        )
    return None


@rule(
    "gemv-gathered",
    (*_SHAPE, "tile.m", "a.major", "a.align"),
    "CUDA Programming Guide, Compute Capabilities: 255 registers a thread",
    GemvPlan,
)
def _gathered(plan: GemvPlan) -> str | None:
    """Rows of A that are gathered fit the registers of a thread."""
    config = plan.config
    if not plan.gathers or (gathered := plan.mmas_m * plan.thread_k) <= MAX_GATHERED:
        return None
    return (
        f"A is read element by element, {gathered} by a thread at a time with {config.stages} stages; it may hold "
        f"{MAX_GATHERED}"
    )


@rule("gemv-warps", ("tile.n", "tile.k", *_SHAPE), "gemmill: a CTA is whole warps", GemvPlan)
def _warps(plan: GemvPlan) -> str | None:
    """A tile is shared by whole warps."""
    tile = plan.config.tile
    for name, extent, covered in (("tile.n", tile.n, plan.warp_n), ("tile.k", tile.k, plan.warp_k)):
        if extent % max(1, covered):
            return f"{name} is {extent}; a warp covers {covered}, of which it must be a multiple"
    return None


@rule(
    "gemv-threads",
    ("tile.m", "tile.n", "tile.k", *_SHAPE, "a.major", "a.align", "epilogue"),
    "CUDA Programming Guide, Compute Capabilities: 1,024 threads a CTA, 65,536 registers an SM",
    GemvPlan,
)
def _threads(plan: GemvPlan) -> str | None:
    """Threads and registers of a CTA fit an SM."""
    config = plan.config
    found, limit = plan.threads, min(MAX_THREADS, 32 * plan.resident_warps)
    if 0 < found <= limit:
        return None
    return (
        f"a {config.tile.n}x{config.tile.k} tile of B has {found} threads that load {plan.warp_k} x {plan.warp_n} "
        f"elements a warp; with {plan.registers} registers each a CTA has 32 to {limit}"
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
"""The rules of the family, in the order of reports."""

DOMAINS: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {
        **DIRECT_DOMAINS,
        "tile.m": TILE_M,
        "tile.n": tuple(sorted({n * w for n in (8, 16, 32, 64) for w in (1, 2, 4)})),
        "tile.k": tuple(64 << i for i in range(7)),
        "stages": STAGES,
    }
)
"""The values that the family takes, of the fields that have no words."""
