"""The simt family: FMAs in f32, f64 or s32 on every target, for operands of any strides and any alignment."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.config.domains import one_of
from gemmill.library.config.field import Value
from gemmill.library.config.fields import member
from gemmill.library.dtypes import DTYPES, FP8, INT8
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.families.shared_rules import DIRECT_DOMAINS, DirectPlan, direct_rules
from gemmill.library.legality.rule import Rule, rule

FLOATS = ("f32", "tf32", "bf16", "f16", *FP8)
INPUTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"f32": (*FLOATS, *INT8), "s32": INT8, "f64": ("f64", *FLOATS, *INT8)}
)
"""Types of A and B by the accumulator's type, to which each element is converted when it is loaded."""
MAX_SIDE = 16
"""Most threads of a CTA along M and along N."""
DENSE_TILE_MN = frozenset((64, 128))
"""Tile M and N with which CTAs have :data:`DENSE_THREADS`."""
DENSE_THREADS = 128
"""Threads of CTAs with such tiles, if their registers suffice."""
TILE_MN = (32, 64, 128, 256)
TILE_K = (8, 16)
STAGES = 2
"""Threads multiply one stage while they fill the other."""
MAX_REGISTERS = 128
"""Most accumulator registers of a thread, which needs as many again for operands and addresses."""
MAX_REGISTERS_BESIDE = 64
"""The limit with an epilogue expression or if tile K exceeds 8; also for f64 sums if tile M or N is 256."""


class SimtPlan(DirectPlan):
    """The plan of a simt kernel, which uses fused multiply-adds."""

    family = "simt"
    archs = ("sm70", "sm80", "sm86", "sm89", "sm90", "sm90a", "sm120")

    @member
    def threads(self) -> int:
        """Threads of a CTA."""
        along_m, along_n = self.sides
        return along_m * along_n

    @member
    def sides(self) -> tuple[int, int]:
        """Threads along M and along N.

        Tiles of 64 or 128 by 64 or 128 with values of 4 bytes have 128 threads, if these have the registers. Then a
        thread has more elements of D, and loads fewer values per multiply-add.
        """
        tile = self.config.tile
        is_dense = self.value_bytes == 4 and {tile.m, tile.n} <= DENSE_TILE_MN
        if not is_dense or tile.m * tile.n > self.max_registers * DENSE_THREADS:
            return MAX_SIDE, MAX_SIDE
        along_n = tile.n // 8
        return DENSE_THREADS // along_n, along_n

    @member
    def max_registers(self) -> int:
        """Most accumulator registers of a thread."""
        config, tile = self.config, self.config.tile
        wide = self.value_bytes > 4 and max(TILE_MN) in (tile.m, tile.n)
        return MAX_REGISTERS_BESIDE if config.epilogue != LINEAR or tile.k > TILE_K[0] or wide else MAX_REGISTERS

    @member
    def value_bytes(self) -> int:
        """Bytes of a value of the accumulator's type."""
        return DTYPES[self.config.accumulator].unpacked_bytes

    @member
    def accumulator_registers(self) -> int:
        """32-bit accumulator registers of a thread."""
        return self.config.tile.m * self.config.tile.n * self.value_bytes // (4 * self.threads)

    @member
    def stage_bytes(self) -> tuple[int, int]:
        """Bytes of a stage of A and of B. A row holds the values of one K in the accumulator's type, plus 16 bytes."""
        size, tile = self.value_bytes, self.config.tile
        return (tile.m * size + 16) * tile.k, (tile.n * size + 16) * tile.k

    @member
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA."""
        return STAGES * sum(self.stage_bytes)

    @member
    def auto_stages(self) -> int:
        """Stages for ``stages: auto``."""
        return STAGES


@rule("simt-types", ("accumulator", "a.dtype", "b.dtype"), "gemmill: conversions that loads support", SimtPlan)
def _types(plan: SimtPlan) -> str | None:
    """A and B must have types that convert to the accumulator's type; if one is tf32, the other must be too."""
    config, accumulator = plan.config, plan.config.accumulator
    if accumulator not in INPUTS:
        return f"accumulator is {accumulator}; for simt kernels it must be {one_of(tuple(INPUTS))}"
    for name, operand in config.inputs.items():
        if operand.dtype not in INPUTS[accumulator]:
            inputs = one_of(INPUTS[accumulator])
            return f"{name.upper()} is {operand.dtype} with accumulator {accumulator}; it must be {inputs}"
    if (config.a.dtype == "tf32") != (config.b.dtype == "tf32"):
        return f"A is {config.a.dtype} and B is {config.b.dtype}; either both or neither must be tf32"
    return None


@rule("simt-tile", ("tile.m", "tile.n", "tile.k"), "gemmill: threads divide every tile evenly", SimtPlan)
def _tile(plan: SimtPlan) -> str | None:
    """Tile M and N must be 32, 64, 128 or 256, and tile K 8 or 16, so that threads divide the tile evenly."""
    tile = plan.config.tile
    for name, extent, allowed in (("M", tile.m, TILE_MN), ("N", tile.n, TILE_MN), ("K", tile.k, TILE_K)):
        if extent not in allowed:
            return f"tile {name} is {extent}; for simt kernels it must be {one_of(allowed)}"
    return None


@rule(
    "simt-registers",
    ("tile.m", "tile.n", "tile.k", "accumulator", "epilogue"),
    "CUDA Programming Guide, Compute Capabilities: 255 registers per thread",
    SimtPlan,
)
def _registers(plan: SimtPlan) -> str | None:
    """Accumulators and fragments must fit the registers of a thread."""
    config, tile = plan.config, plan.config.tile
    registers, limit = plan.accumulator_registers, plan.max_registers
    if registers <= limit:
        return None
    beside = "" if config.epilogue == LINEAR else " and an epilogue expression"
    return (
        f"a {tile.m}x{tile.n} {config.accumulator} accumulator takes {registers} registers of each of {plan.threads} "
        f"threads; with tile K {tile.k}{beside} the limit is {limit}"
    )


@rule("simt-stages", ("stages",), "gemmill: threads multiply one stage while they fill the other", SimtPlan)
def _stages(plan: SimtPlan) -> str | None:
    """``stages`` must be 2."""
    stages = plan.config.stages
    return None if stages == STAGES else f"stages is {stages}; for simt kernels it must be {STAGES}"


RULES: tuple[Rule, ...] = (
    _types,
    *direct_rules(SimtPlan),
    _tile,
    _stages,
    _registers,
)
"""The rules of the family in the order of reports."""

DOMAINS: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {**DIRECT_DOMAINS, "tile.m": TILE_MN, "tile.n": TILE_MN, "tile.k": TILE_K, "stages": (STAGES,)}
)
"""The values that the family supports, for each integer field."""
