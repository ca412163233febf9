"""What registers ptxas leaves to the sums of a WGMMA kernel: tables of what was seen not to spill."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from gemmill.library.config.fields import Fields, part
from gemmill.library.decompositions.decomposition import has_second_kernel
from gemmill.library.epilogues.parse import LINEAR, parse, staged_formats
from gemmill.library.families.wgmma import subtiles, warpgroups
from gemmill.library.families.wgmma.tiles import TILE_K_BYTES
from gemmill.library.legality.quantities import dtype_bytes, element_bytes, integer
from gemmill.library.legality.rule import rule

EpilogueKind = Literal["plain n", "plain m", "c", "expression", "many values"]
"""What the epilogue of the kernel that sums has: no C, by D's major; C; an expression, of few values or many."""
_IN_WORDS: Mapping[EpilogueKind, str] = {
    "plain n": "no C and an n-major",
    "plain m": "no C and an m-major",
    "c": "C and a",
    "expression": "an expression and a",
    "many values": "an expression of many values and a",
}
ACCUMULATOR_LIMIT: Mapping[EpilogueKind, Mapping[int, int]] = {
    "plain n": {2: 192, 3: 96, 4: 48},
    "plain m": {2: 176, 3: 96, 4: 48},
    "c": {2: 160, 3: 96, 4: 48},
    "expression": {2: 128, 3: 64, 4: 32},
    "many values": {2: 96, 3: 64, 4: 32},
}
"""Most accumulator registers of a thread for which ptxas was seen not to spill, by what the epilogue has and consumer
warpgroups: what ``setmaxnreg`` leaves beside descriptors, addresses and epilogue values."""
ODD_LIMIT = 176
"""The same where tile N is an odd multiple of 8: D is staged in many narrow subtiles."""
MASKED_LIMIT = 160
"""The same in masked groups where B is transposed and D has 32 bits."""
SLOTS_LIMIT = 176
"""The same in masked groups of cooperative kernels: 256x192 spilled."""
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
of more than two CTAs; stages with rows of 64 bytes; sums of integers."""
CLUSTER_LIMIT = {(2, True): 128, (2, False): 104, (3, True): 80, (3, False): 80}
"""The same of kernels whose CTAs share K in clusters: sums and shares of them are held side by side for a while."""
PROMOTED_LIMIT = {2: 192, 3: 128}
"""The same of promoted kernels without an expression, those that wait for promotion included: these are gone by the
epilogue, and leave room for it."""
PROMOTED_SHARED_LIMIT = {
    "cluster": {2: 160, 3: 96},
    "splitk": {2: 168, 3: 128},
    "stream": {2: 136, 3: 112},
}
"""The same of those whose CTAs share K, by how: they exchange sums, or store them as they are. Block-scaled
stream-K kernels with a tile M of 128, clusters of at most two CTAs, K-major operands and a D of 16 bits, n-major,
have room for as many as others."""
SHALLOW_LIMIT = 176
"""The same where a cooperative kernel's stages have rows of 64 bytes, and there may be more than five of them."""
MOST_MATRICES, MOST_COLUMNS, COLUMNS_OF_A_MATRIX, MANY_COLUMNS = 2, 12, 4, 10
"""Matrices at any strides, and vectors along N, that an expression may read; how many of the latter a matrix takes the
room of; and more than how many are many values. Of 440 kernels of thirteen tiles with 32 to 128 accumulators
those with three matrices spilled at nine, the least with 32, those with two at 128, beside six vectors at 96, beside
ten at 64; those with 12 vectors at 128, with 16 at 64, with 24 at 96."""


@rule(
    "epilogue-matrices",
    ("scheduler.decomposition", "epilogue"),
    "gemmill: emitters/include/gemmill/kernel/reduction.cuh",
    "wgmma",
)
def epilogue_matrices(f: Fields) -> str | None:
    """An epilogue reads few matrices and vectors in place; of split-K kernels it moves none by TMA."""
    epilogue = str(f["epilogue"])
    if has_second_kernel(f):
        if not any(staged_formats(epilogue)):
            return None
        return (
            "the second kernel of split-K, which has no TMA, reads and writes matrices at any strides; "
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
    return f["epilogue"] != LINEAR and not has_second_kernel(f)


@part
def _epilogue_kind(f: Fields) -> EpilogueKind:
    if _has_expression(f):
        return "many values" if _is_demanding(str(f["epilogue"])) else "expression"
    if subtiles.stored_dtype(f, "c") != "none":
        return "c"
    return "plain n" if f["d.major"] == "n" else "plain m"


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
    consumers, epilogue = warpgroups.consumer_warpgroups(fields), _epilogue_kind(fields)
    decomposition = fields["scheduler.decomposition"]
    narrow = dtype_bytes(subtiles.stored_dtype(fields, "d")) == 1
    plain = epilogue == "plain n" and not narrow
    if fields["promote"] and fields["epilogue"] == LINEAR:
        roomy = plain and _has_room_for_shares(fields)
        return (PROMOTED_LIMIT if roomy else PROMOTED_SHARED_LIMIT.get(str(decomposition), PROMOTED_LIMIT))[consumers]
    limits = [ACCUMULATOR_LIMIT[epilogue][consumers]]
    if narrow:
        limits.append(NARROW_D_LIMIT.get((consumers, str(fields["d.major"])), limits[0]))
    if integer(fields, "tile.n") % 16:
        limits.append(ODD_LIMIT)
    if _transposes_for_slots(fields):
        limits.append(MASKED_LIMIT)
    if fields["schedule"] == "cooperative" and fields["scheduler.batching"] == "masked":
        limits.append(SLOTS_LIMIT)
    if _has_expression(fields) and warpgroups.multiplies_from_registers(fields):
        matrices, _ = _read_in_place(str(fields["epilogue"]))
        limits[0] -= BESIDE_FRAGMENTS * (matrices > 0)
    by_decomposition = {"stream": STREAM_LIMIT, "cluster": CLUSTER_LIMIT}.get(str(decomposition))
    if by_decomposition:
        limits.append(
            by_decomposition.get((consumers, plain), limits[0])
        )  # four are for upconverted A, refused elsewhere
    shallow = integer(fields, "tile.k") * element_bytes(fields, "a") <= TILE_K_BYTES[0]
    if decomposition == "stream":
        odd, integers = integer(fields, "tile.n") % 16 > 0, fields["accumulator"] == "s32"
        costly = {"odd": odd, "cluster": _cluster_ctas(fields) > 2, "shallow": shallow, "integer": integers}
        limits[-1] -= sum(STREAM_COSTS[name] for name in costly if costly[name])
    if fields["schedule"] == "cooperative" and shallow:
        limits.append(SHALLOW_LIMIT)
    return min(limits)


@part
def _has_room_for_shares(f: Fields) -> bool:
    """Whether a promoted stream-K kernel with a plain epilogue is as :data:`PROMOTED_SHARED_LIMIT` says."""
    return (
        f["scheduler.decomposition"] == "stream"
        and warpgroups.has_block_scales(f)
        and f["tile.m"] == 128
        and _cluster_ctas(f) <= 2
        and f["a.major"] == f["b.major"] == "k"
        and element_bytes(f, "d") == 2
    )


def _transposes_for_slots(f: Fields) -> bool:
    """Whether :data:`MASKED_LIMIT` holds."""
    wide = dtype_bytes(subtiles.stored_dtype(f, "d")) == 4
    return wide and f["scheduler.batching"] == "masked" and warpgroups.transposes(f, "b")


def _cluster_ctas(f: Fields) -> int:
    return integer(f, "cluster.m") * integer(f, "cluster.n")


@rule(
    "accumulator-registers",
    (
        *("tile.n", "tile.m", "tile.k", "schedule", "accumulator", "promote", "scheduler.decomposition"),
        *("c.dtype", "d.major", "d.dtype", "a.dtype", "b.dtype", "a.major", "b.major", "a.scale", "epilogue"),
        *("cluster.m", "cluster.n", "scheduler.batching"),
    ),
    "PTX ISA, setmaxnreg, and wgmma.mma_async: register fragments of D; CUTLASS lets such a config spill",
    "wgmma",
)
def accumulator_registers(f: Fields) -> str | None:
    """The sums of a thread fit the registers that ptxas leaves them without spilling."""
    registers = warpgroups.accumulator_registers(f)
    if warpgroups.multiplies_from_registers(f):
        refused = _fragment_registers(f, registers)
        if refused or (warpgroups.is_mixed(f) and f["epilogue"] == LINEAR):
            return refused
        registers += warpgroups.fragment_registers(f)
    limit = accumulator_limit(f)
    if registers <= limit:
        return None
    if f["promote"]:
        return (
            f"{warpgroups.warpgroup_m(f)}x{f['tile.n']} sums, and those that wait for promotion, take {registers} "
            f"registers a thread; {warpgroups.consumer_warpgroups(f)} consumer warpgroups have at most {limit} free"
        )
    epilogue = f"{_IN_WORDS[_epilogue_kind(f)]} {f['d.dtype']} D"
    if f["scheduler.batching"] == "masked":
        epilogue += " of masked groups" + " beside a transposed B" * _transposes_for_slots(f)
    return (
        f"a {warpgroups.warpgroup_m(f)}x{f['tile.n']} {f['accumulator']} accumulator takes {registers} registers a "
        f"thread; {warpgroups.consumer_warpgroups(f)} consumer warpgroups with {epilogue} have at most {limit} free"
    )


def _fragment_registers(f: Fields, accumulators: int) -> str | None:
    fragments, consumers = warpgroups.fragment_registers(f), warpgroups.consumer_warpgroups(f)
    limit = next((FRAGMENT_LIMIT.get((consumers, most), 0) for most in (32, 64) if fragments <= most), 0)
    if consumers == 4 and f["c.dtype"] != "none":
        limit -= 8
    if integer(f, "tile.n") % 16:
        limit -= 8
    if has_second_kernel(f) and f["d.major"] == "m" and _cluster_ctas(f) > 1:
        limit -= 8
    if element_bytes(f, "d") == 1:
        limit -= 16
    limit = max(0, limit)
    if accumulators + fragments <= limit:
        return None
    return (
        f"{warpgroups.warpgroup_m(f)}x{f['tile.n']} sums and two stages of A take {accumulators + fragments} "
        f"registers a thread; {consumers} consumer warpgroups have at most {limit} free for them"
    )
