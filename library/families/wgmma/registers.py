"""What registers ptxas leaves to the sums of a WGMMA kernel: tables of what was seen not to spill."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from gemmill.library.epilogues.function_table import FUNCTIONS
from gemmill.library.epilogues.parse import parse

EpilogueKind = Literal["plain n", "plain m", "c", "expression", "many values"]
"""What the epilogue of the kernel that sums has: no C, by D's major; C; an expression, of few values or many."""
EPILOGUE_WORDS: Mapping[EpilogueKind, str] = {
    "plain n": "no C and an n-major",
    "plain m": "no C and an m-major",
    "c": "C and a",
    "expression": "an expression and a",
    "many values": "an expression of many values and a",
}
"""These in messages, before D."""
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
MASKED_TRANSPOSED_LIMIT = 160
"""The same in masked groups where B is transposed and D has 32 bits."""
MASKED_COOPERATIVE_LIMIT = 176
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
"""The same with two-level accumulation and no expression, sums that wait for their addition included: these are gone by
the epilogue, and leave room for it."""
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


@lru_cache(1024)
def read_in_place(epilogue: str) -> tuple[int, int]:
    """How many matrices, and vectors along N, an epilogue reads through plain addresses."""
    operands = parse(epilogue).operands
    matrices = sum(operand.kind == "matrix" and operand.major == "any" for operand in operands)
    return matrices, sum(operand.kind == "column" for operand in operands)


@lru_cache(1024)
def is_demanding(epilogue: str) -> bool:
    """Whether a thread holds many values for an expression: the reduction of columns, gelu of several vectors, another
    reduction beside two columns, more than ten columns, two matrices at any strides."""
    found = parse(epilogue)
    reductions = [output.kind for output in found.outputs if output.is_reduction]
    rows = sum(operand.kind == "row" for operand in found.operands)
    matrices, columns = read_in_place(epilogue)
    holds_many = any(FUNCTIONS[name].registers == "many" for name in found.functions)
    return (
        "column" in reductions
        or (holds_many and rows + columns > 1)
        or (bool(reductions) and columns > 1)
        or columns > MANY_COLUMNS
        or matrices == MOST_MATRICES
    )
