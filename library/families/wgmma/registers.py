"""Accumulator registers of WGMMA kernels: measured limits up to which ptxas does not spill."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from gemmill.library.epilogues.function_table import FUNCTIONS
from gemmill.library.epilogues.parse import is_repeatable, pairs_rows, parse

EpilogueKind = Literal["plain n", "plain m", "c", "rows", "expression", "many values"]
"""The epilogue of the main kernel: none of C, with D's major; C; an expression that pairs rows and reads no more than
vectors of rows; one with few or with many live values."""
EPILOGUE_WORDS: Mapping[EpilogueKind, str] = {
    "plain n": "without C and with n-major",
    "plain m": "without C and with m-major",
    "c": "with C and",
    "rows": "with a gate of rows and",
    "expression": "with an epilogue expression and",
    "many values": "with an epilogue expression of many values and",
}
"""The wording of each kind in messages, followed by the type of D."""
ACCUMULATOR_LIMIT: Mapping[EpilogueKind, Mapping[int, int]] = {
    "plain n": {2: 192, 3: 96, 4: 48},
    "plain m": {2: 176, 3: 96, 4: 48},
    "c": {2: 160, 3: 96, 4: 48},
    "rows": {2: 160, 3: 96, 4: 48},
    "expression": {2: 128, 3: 64, 4: 32},
    "many values": {2: 96, 3: 64, 4: 32},
}
"""Most accumulator registers of a thread for which ptxas does not spill, by epilogue kind and number of consumer
warpgroups. The rest of what ``setmaxnreg`` provides holds descriptors, addresses and epilogue values."""
ODD_LIMIT = 176
"""The limit if tile N is an odd multiple of 8: D is staged in many narrow subtiles."""
MASKED_TRANSPOSED_LIMIT = 160
"""The limit for masked groups if B is transposed and D has 32 bits."""
BESIDE_FRAGMENTS = 16
"""Reduction of the limit if MMAs read A from registers and the expression reads a matrix at any strides. Of 101 kernels
with 8- and 4-bit weights, those with 128 sums and fragments spilled, and those with 96 spilled with many values."""
FRAGMENT_LIMIT = {(2, 32): 160, (2, 64): 128, (3, 32): 80, (4, 32): 48}
"""The limit of accumulators plus fragments of A if MMAs read A from registers, by consumer warpgroups and most
fragments. With more fragments ptxas keeps more narrow words live while it upconverts. C takes 8 more with four
warpgroups. An odd multiple of 8 columns takes 8, an m-major D of split-K kernels in clusters 8, an 8-bit D 16."""
NARROW_D_LIMIT = {(2, "n"): 176, (2, "m"): 160, (3, "n"): 88, (3, "m"): 88}
"""The limit if D has 8 bits, by consumer warpgroups and D's major: the conversion needs registers."""
SYMMETRIC_LIMIT = 160
"""The limit of cooperative kernels of a symmetric D, which stage each subtile twice: with 176, one of two spilled."""
STREAM_LIMIT = {(2, True): 128, (2, False): 96, (3, True): 56, (3, False): 56}
"""The limit of stream-K kernels, by consumer warpgroups and whether the epilogue is plain and D has more than 8 bits.
ptxas spills the state of their scheduler first."""
STREAM_COSTS = {"odd": 48, "cluster": 32, "shallow": 32, "integer": 32}
"""Reductions of that limit: for an odd multiple of 8 columns, a cluster of more than two CTAs, stages with rows of 64
bytes, and integer sums."""
CLUSTER_LIMIT = {(2, True): 128, (2, False): 104, (3, True): 80, (3, False): 80}
"""The limit of cluster split-K kernels: a thread holds sums and shares of them at the same time."""
PROMOTED_LIMIT = {2: 192, 3: 128}
"""The limit with two-level accumulation and no expression. It includes the sums of the first level, which are dead in
the epilogue."""
PROMOTED_SHARED_LIMIT = {
    "cluster": {2: 160, 3: 96},
    "splitk": {2: 168, 3: 128},
    "tree": {2: 168, 3: 128},
    "stream": {2: 136, 3: 112},
}
"""The limit with two-level accumulation if CTAs share K, by decomposition. Block-scaled stream-K kernels with tile M
128, clusters of at most two CTAs, K-major operands and an n-major 16-bit D use :data:`PROMOTED_LIMIT` instead."""
SERIAL_LIMIT: Mapping[EpilogueKind, Mapping[int, int]] = {
    "plain n": {2: 192, 3: 112},
    "plain m": {2: 192, 3: 112},
    "c": {2: 192, 3: 112},
    "rows": {2: 160, 3: 96},
    "expression": {2: 160, 3: 96},
    "many values": {2: 96, 3: 64},
}
"""The limit of serial split-K kernels. It includes the sums of a slice, which are dead in the epilogue."""
QUANTISED_LIMIT = {2: 96, 3: 64, 4: 32}
"""The limit if an expression without a gate scales blocks of columns. A thread then holds its values of a block beside
all sums; with a gate there are half as many. With 128 sums, kernels with matrices, vectors along N, gelu or three
scalars spilled. Two-level accumulation does not need it: its sums of the first level are dead."""
SHALLOW_LIMIT = 176
"""The limit of cooperative kernels whose stages have rows of 64 bytes, so that more than five stages can fit."""
MOST_MATRICES, MOST_COLUMNS, COLUMNS_OF_A_MATRIX, MANY_COLUMNS = 2, 12, 4, 10
"""Most matrices at any strides, and most vectors along N, that an expression can read; the vectors that count for one
matrix; and the vectors above which an expression has many values. The limits come from 440 kernels of thirteen tiles
with 32 to 128 accumulators. Kernels with three matrices spilled for nine tiles, even with 32 accumulators. Kernels with
two matrices spilled at 128, with six more vectors at 96, and with ten more at 64. Kernels without matrices spilled at
128 with 12 vectors, at 64 with 16, and at 96 with 24."""

MOST_BESIDE_BLOCKS, MOST_BESIDE_TWO_LEVELS = 4, 2
"""Most vectors (:func:`vectors_beside_blocks`) that an expression with scales of blocks can read, and with two-level
accumulation and a gate. A thread holds those along N for 128 columns. Of 70 kernels with a gate, none with 128 sums
spilled with four vectors, and some did with six; some with 192 sums in two levels spilled with four. Without a gate,
some of these spilled with two. Pairs of tiles of groups leave no vector beside two levels."""
MOST_BESIDE_GATE = 1
"""Most vectors that a gated expression without scales of blocks can read beside 192 sums in two levels, if it reads no
matrix and D is its only output. Of 27 kernels of nine tiles, one with two vectors spilled, and two with two more
outputs. Three spilled with one vector, gelu and two scalars, so gelu beside scalars counts for a vector."""


@lru_cache(1024)
def read_in_place(epilogue: str) -> tuple[int, int]:
    """How many matrices, and how many vectors along N, an epilogue reads without TMA."""
    operands = parse(epilogue).operands
    matrices = sum(operand.kind == "matrix" and operand.major == "any" for operand in operands)
    return matrices, sum(operand.kind == "column" for operand in operands)


@lru_cache(1024)
def vectors_beside_blocks(epilogue: str) -> int:
    """How many vectors along M and N an epilogue reads, where a matrix counts for :data:`COLUMNS_OF_A_MATRIX`."""
    matrices, columns = read_in_place(epilogue)
    rows = sum(operand.kind == "row" for operand in parse(epilogue).operands)
    return rows + columns + COLUMNS_OF_A_MATRIX * matrices


@lru_cache(1024)
def holds_many_beside_scalars(epilogue: str) -> bool:
    """Whether an epilogue applies gelu, and reads scalars."""
    tree = parse(epilogue)
    reads_scalars = bool(tree.factors) or any(operand.kind in ("scalar", "batch") for operand in tree.operands)
    return reads_scalars and any(FUNCTIONS[name].registers == "many" for name in tree.functions)


@lru_cache(1024)
def pairs_rows_alone(epilogue: str) -> bool:
    """Whether an epilogue pairs rows, computes only D, and reads only sums, scalars and vectors along M. A thread then
    holds half as many values of D, and the vectors of one row. Of 19 kernels with 160 sums and fragments, one spilled,
    with a vector along N too."""
    kinds = {operand.kind for operand in parse(epilogue).operands}
    return pairs_rows(epilogue) and is_repeatable(epilogue) and "column" not in kinds


@lru_cache(1024)
def is_demanding(epilogue: str) -> bool:
    """Whether an expression has many live values per thread.

    It does if it reduces columns, applies gelu to several vectors, has another reduction with two vectors along N,
    reads more than ten vectors along N, or reads two matrices at any strides. With scales of blocks, which allow few
    operands, it does if it reduces columns.
    """
    tree = parse(epilogue)
    reductions = [output.kind for output in tree.outputs if output.is_reduction]
    if tree.scale:
        return "column" in reductions
    rows = sum(operand.kind == "row" for operand in tree.operands)
    matrices, columns = read_in_place(epilogue)
    holds_many = any(FUNCTIONS[name].registers == "many" for name in tree.functions)
    return (
        "column" in reductions
        or (holds_many and rows + columns > 1)
        or (bool(reductions) and columns > 1)
        or columns > MANY_COLUMNS
        or matrices == MOST_MATRICES
    )
