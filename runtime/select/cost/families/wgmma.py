"""Cost of kernels that multiply by WGMMA from tiles that TMA loads.

A tile is a loop over K and an epilogue. In the loop, the tensor cores, the loads from L2 and the latency of those loads
compete, and the slowest sets the pace. Pingpong hides the epilogue behind the loop of the other warpgroup.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gemmill.library.arch import L2_SECTOR, Gpu
from gemmill.library.config.batchings import MASKED
from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTYPES
from gemmill.library.families.wgmma.wgmma_plan import INSTRUCTION_K_BYTES, SUBTILE_M, WgmmaPlan
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.problem import GemmProblem, is_mixed
from gemmill.runtime.select.cost.arrays import column, eighth_power, eighth_root
from gemmill.runtime.select.cost.families.family import LATENCY_NS, Family

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Bools, Columns, Floats

# Properties of Hopper's SM, per clock.
SHARED_BYTES_PER_CYCLE = 128
"""Shared memory bandwidth of an SM, for the operands of WGMMA and for loads."""
MMA_COLUMNS_PER_CYCLE = 2
"""Columns of a 64-row WGMMA that the tensor cores of an SM finish per clock."""

# Fitted to measurements on an H200, together with its row in library/arch.py.
_SUSTAINED = 0.84
"""Share of the tensor cores' peak rate that a loop of WGMMAs reaches."""
_ROW_CYCLES = 2.2
"""Clocks of TMA for a row of a box, of any length from 32 to 128 bytes."""
_CROSSING_CYCLES = {16: 4.4, 32: 3.3, 64: 2.7}
"""The same for a row that may cross a line, by the alignment of its address in bytes."""
_PAIR_SLOTS, _OTHER_PAIR_SLOTS = {"u4": 5.8, "s4": 5.8, "e2m1": 4.4}, 6.8
"""Issue slots of a pair of elements of A that is upconverted and scaled, in the loop of a warp, and of other types; one
more with zero points."""
_PAIR_SLOTS_BYTES = 3.5
"""The same where A is upconverted to e4m3, counted in the machine code."""
_SPLIT, _SPLIT_WAITING = 0.82, 0.98
"""Time of the MMAs of split f32 relative to those of others, and where tensor cores wait while sums are added: in
pingpong kernels, and for three terms where two warpgroups have one batch of MMAs each a stage. Fitted to 42 problems on
an H200."""
WARP_LANES, SCHEDULERS = 32, 4
"""Lanes of a warp, and warp schedulers of an SM."""
_HIDING, _WAITING = 0.96, ((110.0, 0.71), (130.0, 0.28))
"""Share of MMAs' clocks where they hide all else, and where the upconversion is longer, the clocks of the waits of a
stage and the share of MMAs' that is not hidden: of two or three consumer warpgroups, and of four. Fitted with the slots
to 250 times of e2m1 and u4 weights, in groups of 1 to 512 rows on an H200."""
_PAIRING_NS, _LONG_GROUP, _ORDER_COST = 900.0, 1024, 1.025
"""What tiles of groups of rows cost beside those of one matrix: nanoseconds for a tile with block scales that pairs
along M in a raster along N, rows from which on groups at offsets have none of that, and a factor for pingpong kernels.
Under sustained load the power limit hides the nanoseconds. Fitted to groups of 128 to 8,192 rows of e4m3 and bf16 on an
H200."""
WIDE_ROW = 128
"""Most bytes of a row of a box."""
_CROWDED_ROWS, _CROWDED_EXPONENT = 4.6, 0.24
"""Rows of boxes per clock that L2 delivers to all SMs, for an mn-major operand: this factor times a power of the bytes
between neighbours along K. Where the operand is short, the SMs request few different lines together."""
_SHORT_ROW = 2048
"""Bytes from which on the rate of L2 alone is the bound."""
_PART_SECTORS = 0.45
"""Additional time in which DRAM takes a D if the rows of TMA's boxes end within sectors. With K up to 128 on an H200,
such rows of 80 to 176 bytes were stored at 2.0 to 2.2 TB/s, and whole spans of a swizzle at 2.9 to 3.2."""
_CHUNK_CYCLES, _LAST_LOOP = 0.95, 0.1
"""Clocks in which producer warps copy 16 bytes of an A of any alignment, whose rows of a stage have a sector more; and
the part of a loop over K by which the last SM ends after the others, so that more slices are faster. On 161 problems
of 9 to 128 rows on an H200, choices lost 2.6% (constants from the other half), and 4.3% without sector and part."""
_FEW_ROWS, _BESIDE_FEW_ROWS = 8, 1.25
"""Most rows with which the model puts mma.sync on operands of any alignment at 1.19 to 1.33 times its time, and the
factor of the time of kernels that copy A, which compete with it. With it, the faster was chosen at 1, 4 and 8 rows."""
_TRANSPOSING_CYCLES = 250.0
"""Cost of transposing a stage in addition to its bytes: a wait, a fence and a barrier per stage."""
_TRANSPOSED_BYTES_PER_CYCLE = 32.0
"""Bytes per clock that three warps transpose in shared memory."""


def mma_cycles(tile_m: Floats, tile_n: Floats, step_bytes: Floats, gpu: Gpu) -> Floats:
    """Return the clocks in which an SM multiplies a step along K of a tile."""
    instruction = np.maximum(
        tile_n / (MMA_COLUMNS_PER_CYCLE * gpu.mma_rate),
        (SUBTILE_M + tile_n) * INSTRUCTION_K_BYTES / SHARED_BYTES_PER_CYCLE,
    )
    return np.asarray(tile_m / SUBTILE_M * step_bytes / INSTRUCTION_K_BYTES * instruction / _SUSTAINED)


def _with_upconversion(configs: Sequence[GemmConfig], mma_ns: Floats, gpu: Gpu) -> Floats:
    """Return the time in which an SM multiplies a step along K of a tile, if a narrow A is upconverted before."""
    clocks = column(configs, partial(_upconverting_cycles, gpu=gpu))
    return np.where(clocks > 0, clocks / gpu.clock_ghz, mma_ns) if clocks.any() else mma_ns


def _upconverting_cycles(config: GemmConfig, gpu: Gpu) -> float:
    """Return the clocks of a step of a kernel that upconverts A; 0 for others.

    MMAs of one warpgroup overlap with half of those of the other, and with no upconversion of its own. Warpgroups that
    take stages in turn fill each other's waits.
    """
    plan, tile = WgmmaPlan(config), config.tile
    if not plan.is_mixed:
        return 0.0
    mma = tile.m / SUBTILE_M * tile.k * config.b.loaded.bits / (8 * INSTRUCTION_K_BYTES)
    mma *= tile.n / (MMA_COLUMNS_PER_CYCLE * gpu.mma_rate) / _SUSTAINED
    slots = _PAIR_SLOTS.get(config.a.dtype, _OTHER_PAIR_SLOTS) + plan.has_zeros
    if plan.scales_sums:
        slots = _PAIR_SLOTS_BYTES
    upconverting = slots * tile.m * tile.k / 2 / WARP_LANES / SCHEDULERS
    waiting, exposed = _WAITING[plan.consumer_warpgroups == 4]
    return max(_HIDING * mma, waiting + upconverting + exposed * mma)


def _split_share(config: GemmConfig) -> float:
    """Return the time of MMAs relative to others: of split f32, they come in long batches."""
    if config.a.type.component is None:
        return 1.0
    plan = WgmmaPlan(config)
    batches = config.tile.m // SUBTILE_M * plan.atom_parts
    waits = config.schedule == "pingpong" or (batches == 2 and len(config.a.type.terms) == 3)
    return _SPLIT_WAITING if waits else _SPLIT


def _takes_turns(config: GemmConfig) -> bool:
    return config.schedule == "pingpong"


def _hides_stores(config: GemmConfig) -> bool:
    """Whether only the last tile's stores take time: in pingpong kernels, and where producer warps copy A, which is the
    bound, and go on during stores."""
    return _takes_turns(config) or WgmmaPlan(config).is_unaligned


def _pairing_ns(config: GemmConfig) -> tuple[float, float]:
    """Return the time that a tile of groups of rows takes longer in pairs along M with block scales, in short groups
    and in long ones."""
    scheduler, cluster = config.scheduler, config.cluster
    if (cluster.m, cluster.n, scheduler.raster) != (2, 1, "n") or not WgmmaPlan(config).has_block_scales:
        return 0.0, 0.0
    return _PAIRING_NS, _PAIRING_NS if scheduler.batching in MASKED else 0.0


def _columns(configs: Sequence[GemmConfig], swap_ab: Bools, common: Columns, gpu: Gpu) -> Columns:
    tile_m, tile_n, tile_k = common["tile_m"], common["tile_n"], common["tile_k"]
    bytes_a, bytes_b = common["bytes_a"], common["bytes_b"]
    multiply_ns = _with_upconversion(configs, common["mma_ns"], gpu) * column(configs, _split_share)
    latency_ns = LATENCY_NS / (common["stages"] - 1)
    row_a, row_b = np.array([_row_bytes(config) for config in configs], np.float64).T
    rows_a = tile_m * tile_k * bytes_a / row_a / common["cluster_n"]
    rows_b = tile_n * tile_k * bytes_b / row_b / common["cluster_m"]
    rows, narrow = np.stack([rows_a, rows_b]), np.minimum(row_a, row_b) < WIDE_ROW
    turns, transposing_ns = column(configs, _hides_stores), column(configs, _transposing_cycles) / gpu.clock_ghz
    copying_ns = column(configs, _copying_cycles) / gpu.clock_ghz
    return {
        "multiply_ns": multiply_ns,
        "latency_ns": latency_ns,
        "but_loads": eighth_power(multiply_ns) + eighth_power(latency_ns),
        "transposing_ns": transposing_ns if transposing_ns.any() else None,
        "copying_ns": copying_ns if copying_ns.any() else None,
        "rows": rows,
        "row_bytes": np.stack([row_a, row_b]),
        "panels": np.stack([np.ceil(tile_m * bytes_a / row_a), np.ceil(tile_n * bytes_b / row_b)]),
        "narrow_ns": rows * narrow * _ROW_CYCLES / gpu.clock_ghz if narrow.any() else None,
        "swap_ab": swap_ab,
        "turns": turns,
        "turn": 1 - turns / 2,
        "pairing_ns": np.array([_pairing_ns(config) for config in configs], np.float64).T,
        "order_cost": np.where(turns, _ORDER_COST, 1.0),
    }


def _busiest_ns(columns: Columns, work: Columns, problem: GemmProblem, gpu: Gpu) -> Floats:
    """Pingpong computes one tile while it stores another: if stores are shorter, only the last one takes time."""
    if (load_ns := _load_ns(columns, work, problem, gpu)) is not work["load_ns"]:
        np.copyto(work["load_ns"], load_ns)  # also for the network
    multiply_ns, but_loads = columns["multiply_ns"], columns["but_loads"]
    if groups := not isinstance(filled := work["filled"], float):  # of rows
        multiply_ns = multiply_ns * filled
        but_loads = eighth_power(multiply_ns) + eighth_power(columns["latency_ns"])
    work["paces"] = multiply_ns, load_ns, columns["latency_ns"]
    step_ns = eighth_power(load_ns)
    step_ns += but_loads
    step_ns = eighth_root(step_ns)
    loop_ns, store_ns = work["steps"] * step_ns, work["store_ns"]
    if groups:
        pairing_ns = columns["pairing_ns"][int(problem.m >= _LONG_GROUP)]
        store_ns, work["hidden_ns"] = store_ns + pairing_ns, work["waves"] * pairing_ns
    tile_ns = loop_ns + store_ns
    tile_ns *= columns["turn"]
    ns: Floats = np.maximum(loop_ns, tile_ns, out=tile_ns)
    ns *= work["waves"]
    if groups:
        ns *= columns["order_cost"]
    ns += columns["turns"] * store_ns
    ns += LATENCY_NS
    if columns["copying_ns"] is not None:
        copies = columns["copying_ns"] > 0
        ns += np.where(copies, _LAST_LOOP * loop_ns, 0)
        if min(problem.m, problem.n) <= _FEW_ROWS:
            ns *= np.where(copies, _BESIDE_FEW_ROWS, 1)
    return ns


def _load_ns(columns: Columns, work: Columns, problem: GemmProblem, gpu: Gpu) -> Floats:
    """Return the time to load a step.

    TMA loads the rows of its boxes one by one. This matters where rows are narrow or cross lines, since the constants
    are fitted to wide rows within lines. Operands count as packed, except realigned ones, whose rows start at lines.
    """
    load_ns: Floats = work["load_ns"]
    strides = _stride(problem, "a"), _stride(problem, "b")
    for operand, major, stride in zip("ab", (problem.a_major, problem.b_major), strides, strict=True):
        if major == "mn" and problem.batch * stride < _SHORT_ROW:
            load_ns = np.maximum(load_ns, _crowded_ns(columns, work, operand, problem.batch * stride, gpu))
    a, b = map(_crossing_cycles, strides)
    rows_ns = columns["narrow_ns"]
    if a or b:
        crossing_ns = columns["rows"] * np.where(columns["swap_ab"], ((b,), (a,)), ((a,), (b,))) / gpu.clock_ghz
        a, b = (stride & -stride for stride in strides)
        crossing_ns *= columns["row_bytes"] > np.where(columns["swap_ab"], ((b,), (a,)), ((a,), (b,)))
        rows_ns = crossing_ns if rows_ns is None else np.maximum(rows_ns, crossing_ns)
    if rows_ns is not None:
        load_ns = np.maximum(load_ns, rows_ns[0] * work["inside_a"] + rows_ns[1] * work["inside_b"])
    if columns["copying_ns"] is not None:
        load_ns = np.maximum(load_ns, columns["copying_ns"])
    return load_ns if columns["transposing_ns"] is None else np.maximum(load_ns, columns["transposing_ns"])


def _crowded_ns(columns: Columns, work: Columns, operand: str, stride: int, gpu: Gpu) -> Floats:
    """Return the time in which L2 delivers a step of an mn-major operand to all SMs; ``stride`` is the bytes between
    neighbours along K."""
    is_b = columns["swap_ab"] ^ (operand == "b")  # of the kernel
    panels, inside = (
        np.where(is_b, columns["panels"][1], columns["panels"][0]),
        np.where(is_b, work["inside_b"], work["inside_a"]),
    )
    rows = np.where(is_b, columns["rows"][1], columns["rows"][0]) * np.ceil(panels * inside) / panels
    return np.asarray(rows * work["active"] / (_CROWDED_ROWS * stride**_CROWDED_EXPONENT * gpu.clock_ghz))


def transposed_operands(config: GemmConfig) -> int:
    """Return how many of A and B the kernel transposes, in shared memory or in registers: tensor cores take operands
    other than 16-bit ones only K-major."""
    return sum(operand.major == "mn" and operand.loaded.bits != 16 for operand in (config.a, config.b))


def _row_bytes(config: GemmConfig) -> tuple[int, int]:
    """Return the bytes of a row of the boxes of A and of B."""
    plan = WgmmaPlan(config)
    return plan.swizzle("a"), plan.swizzle("b")


def _transposing_cycles(config: GemmConfig) -> float:
    """Return the clocks in which a stage is transposed in shared memory, bound by the warps or by shared memory
    bandwidth.

    The bandwidth covers what TMA writes, what the transposition reads and writes, and what WGMMAs of 64 rows read: A
    once, and B for each of them.
    """
    if config.a.major == config.b.major == "k":
        return 0.0
    plan, tile = WgmmaPlan(config), config.tile
    a = tile.m * tile.k * config.a.loaded.unpacked_bytes
    b = tile.n * tile.k * config.b.loaded.unpacked_bytes
    transposed = a * plan.transposes("a") + b * plan.transposes("b")
    if not transposed:
        return 0.0
    moved = (a + b) + 2 * transposed + (a + b * config.tile.m // SUBTILE_M)
    return max(_TRANSPOSING_CYCLES + transposed / _TRANSPOSED_BYTES_PER_CYCLE, moved / SHARED_BYTES_PER_CYCLE)


def _part_sectors(config: GemmConfig) -> float:
    """Return the additional time in which DRAM takes D, relative to whole sectors."""
    plan = WgmmaPlan(config)
    ends_within = plan.subtile_box(plan.stored_d)[0] * plan.stored_d.bytes % L2_SECTOR > 0
    return _PART_SECTORS if ends_within and not plan.has_second_kernel else 0.0


def _copying_cycles(config: GemmConfig) -> float:
    """Return the clocks in which producer warps copy a stage of A; 0 where TMA loads it."""
    plan = WgmmaPlan(config)
    if not plan.is_unaligned:
        return 0.0
    row = (config.tile.k if config.a.major == "k" else config.tile.m) * config.a.loaded.bytes
    return plan.stage_bytes[0] / TMA_ALIGN * _CHUNK_CYCLES * (1 + L2_SECTOR / row)


def _stride(problem: GemmProblem, operand: str) -> int:
    """Return the bytes from one row of packed A or B to the next, along its contiguous extent."""
    if operand == "a":
        return (problem.m if problem.a_major == "mn" else problem.k) * DTYPES[problem.a_dtype].bits // 8
    return (problem.n if problem.b_major == "mn" else problem.k) * DTYPES[problem.b_dtype].bits // 8


def row_cycles(problem: GemmProblem, operand: str) -> float:
    """Return the clocks that TMA takes for a row of packed A or B."""
    return _crossing_cycles(_stride(problem, operand)) or _ROW_CYCLES


def _crossing_cycles(stride: int) -> float:
    """Return the clocks that TMA takes for a row, by the bytes between rows; 0 where all rows start at lines."""
    return _CROSSING_CYCLES.get(stride & -stride, 0.0)


def _is_fitted(config: GemmConfig) -> bool:
    """All kernels except those that upconvert an operand, multiply split f32, or copy an A of any alignment."""
    is_mixed_or_split = is_mixed(config.a.dtype, config.b.dtype) or config.a.type.component is not None
    return not is_mixed_or_split and not WgmmaPlan(config).is_unaligned


FAMILY = Family(
    _columns,
    _busiest_ns,
    is_fitted=_is_fitted,
    part_sectors=_part_sectors,
    is_preferred=True,
    takes_turns=_takes_turns,
)
