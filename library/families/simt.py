"""FMAs in f32, f64 or s32 (every target): operands of any strides and any alignment."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.config.domains import one_of
from gemmill.library.config.fields import Fields, Value
from gemmill.library.dtypes import DTYPES
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.families import direct
from gemmill.library.families.arithmetic import FP8, INT8
from gemmill.library.families.family import Family
from gemmill.library.legality.quantities import integer
from gemmill.library.legality.rule import Rule, rule

ARCHS = ("sm70", "sm80", "sm86", "sm89", "sm90", "sm90a", "sm120")
FLOATS = ("f32", "tf32", "bf16", "f16", *FP8)
INPUTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"f32": (*FLOATS, *INT8), "s32": INT8, "f64": ("f64", *FLOATS, *INT8)}
)
"""Types of A and B, each converted to the accumulator's as it is loaded, by the accumulator's."""
SIDE = 16
"""Threads of a CTA along M and along N."""
TILE_MN = (32, 64, 128, 256)
TILE_K = (8, 16)
STAGES = 2
"""One is multiplied while the other is written."""
MAX_REGISTERS = 128
"""Most accumulator registers of a thread, which holds as much again of operands and addresses."""
MAX_REGISTERS_BESIDE = 64
"""The same beside an expression, and of f64 sums beside stages more than 8 deep or in a tile of 256 rows or columns."""


@rule("simt-types", ("accumulator", "a.dtype", "b.dtype"), "gemmill: conversions the loads have", "simt")
def _types(f: Fields) -> str | None:
    """A and B are of types that loads convert to the accumulator's, and both tf32 or neither."""
    accumulator = str(f["accumulator"])
    if accumulator not in INPUTS:
        return f"sums are {accumulator}; simt kernels sum in {one_of(tuple(INPUTS))}"
    for operand in "ab":
        if f[f"{operand}.dtype"] not in INPUTS[accumulator]:
            inputs = one_of(INPUTS[accumulator])
            return f"{operand.upper()} is {f[f'{operand}.dtype']} where sums are {accumulator}; it must be {inputs}"
    if (f["a.dtype"] == "tf32") != (f["b.dtype"] == "tf32"):
        return f"A is {f['a.dtype']} and B {f['b.dtype']}; callers ask for tf32 of both operands, or of none"
    return None


@rule("simt-tile", ("tile.m", "tile.n", "tile.k"), "gemmill: 16 x 16 threads share every tile evenly", "simt")
def _tile(f: Fields) -> str | None:
    """A tile is shared evenly by 16 x 16 threads."""
    for extent, allowed in (("m", TILE_MN), ("n", TILE_MN), ("k", TILE_K)):
        if f[f"tile.{extent}"] not in allowed:
            return f"tile {extent.upper()} is {f[f'tile.{extent}']}; simt kernels take {one_of(allowed)}"
    return None


@rule(
    "simt-registers",
    ("tile.m", "tile.n", "tile.k", "accumulator", "epilogue"),
    "CUDA Programming Guide, Compute Capabilities: 255 registers a thread",
    "simt",
)
def _registers(f: Fields) -> str | None:
    """Sums and fragments fit the registers of a thread."""
    registers, limit = accumulator_registers(f), MAX_REGISTERS
    wide = max(TILE_MN) in (f["tile.m"], f["tile.n"])
    if f["epilogue"] != LINEAR or (f["accumulator"] == "f64" and (integer(f, "tile.k") > TILE_K[0] or wide)):
        limit = MAX_REGISTERS_BESIDE
    if registers <= limit:
        return None
    beside = "" if f["epilogue"] == LINEAR else " and an expression"
    return (
        f"{SIDE * SIDE} threads hold a {f['tile.m']}x{f['tile.n']} tile of {f['accumulator']} in {registers} registers "
        f"each; with tile K of {f['tile.k']}{beside} they have {limit}"
    )


@rule("simt-stages", ("stages",), "gemmill: one stage is multiplied while the other is written", "simt")
def _stages(f: Fields) -> str | None:
    """There are two stages."""
    return None if f["stages"] == STAGES else f"stages is {f['stages']}; simt kernels have {STAGES}"


def accumulator_registers(fields: Fields) -> int:
    """32-bit accumulator registers of a thread."""
    return integer(fields, "tile.m") * integer(fields, "tile.n") * value_bytes(fields) // (4 * threads(fields))


def value_bytes(fields: Fields) -> int:
    """Bytes of a value of the accumulator's type."""
    return max(8, DTYPES[str(fields["accumulator"])].bits) // 8


def threads(fields: Fields) -> int:
    """Threads of a CTA."""
    return SIDE * SIDE


def stage_bytes(fields: Fields) -> tuple[int, int]:
    """Bytes of a stage of A and of B: values of the accumulator's type, K by K, with 16 bytes between rows."""
    size, k = value_bytes(fields), integer(fields, "tile.k")
    return (integer(fields, "tile.m") * size + 16) * k, (integer(fields, "tile.n") * size + 16) * k


def shared_bytes(fields: Fields) -> int:
    """Dynamic shared memory of a CTA."""
    return STAGES * sum(stage_bytes(fields))


def auto_stages(fields: Fields) -> int:
    """Stages that ``stages: auto`` stands for."""
    return STAGES


RULES: tuple[Rule, ...] = (
    _types,
    *direct.rules("simt"),
    _tile,
    _stages,
    _registers,
)
"""The rules of the family, in the order of reports."""

DOMAINS: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {**direct.DOMAINS, "tile.m": TILE_MN, "tile.n": TILE_MN, "tile.k": TILE_K, "stages": (STAGES,)}
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
