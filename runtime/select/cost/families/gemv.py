"""Cost of kernels that move B from memory to registers for a few rows of A, and whose time is only that of moving B.

Fitted to 3,345 measurements (11% mean error, weighted by kind and by distance from the best).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gemmill.library.arch import L2_SECTOR, Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.problem import GemmProblem, is_mixed
from gemmill.runtime.select.cost.arrays import column, soft_maximum
from gemmill.runtime.select.cost.families.family import LATENCY_NS, Family
from gemmill.runtime.select.cost.families.wgmma import transposed_operands

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Bools, Columns, Floats

# The library's module of the family imports all rules, so functions import it on demand: programs without such kernels
# start faster.

_STREAM_NS = 727.0
"""Time from the loads of a step to its end, where nothing else takes longer."""
_STREAM_GBPS = 38.6
"""Most bytes of B that one SM receives, in GB/s."""
_STREAM_A = 0.8
"""Weight of a byte of A relative to one of B, in tiles with more rows than an MMA has. For smaller tiles, the other
constants include it."""
_MMA_ROWS = 8
"""Rows of A in an MMA."""
_VECTOR_CYCLES = 5.8
"""Clocks of an SM in which a warp loads one vector of B for each of its threads, of any width."""
_GATHER_CYCLES = 7.4
"""The same for an element of A, where A is read element by element."""
_MORE_ROWS_CYCLES = 3.8
"""The same for a word of A of each MMA along M beyond the first, and for that MMA."""
_CROSSING_SECTORS = 0.63
"""Additional sectors for the adjacent vectors of four threads, where these do not stay in L1 and rows do not start at
sectors."""


def _columns(configs: Sequence[GemmConfig], swap_ab: Bools, common: Columns, gpu: Gpu) -> Columns:
    rows = common["tile_m"]
    stream_ns = common["tile_n"] * common["tile_k"] * common["bytes_b"] / _STREAM_GBPS
    return {
        "counted_rows": np.where(rows > _MMA_ROWS, rows, 0),
        "row_ns": common["tile_k"] * common["bytes_a"] * (_STREAM_A / _STREAM_GBPS),
        "stream_ns": stream_ns,
        "crossing_ns": column(configs, _crossing) * stream_ns,
        "bytes_b": common["bytes_b"],
        "issue_ns": column(configs, _issue_cycles) / gpu.clock_ghz,
        "swap_ab": swap_ab,
    }


def _busiest_ns(columns: Columns, work: Columns, problem: GemmProblem, gpu: Gpu) -> Floats:
    sharing, moved_ns = work["sharing"], columns["stream_ns"]
    is_unaligned = min(problem.a_align, problem.b_align) < TMA_ALIGN
    if is_unaligned or problem.k % (2 * L2_SECTOR):  # an element has at least half a byte
        crosses = problem.k * columns["bytes_b"] % L2_SECTOR > 0
        if is_unaligned:
            crosses |= np.where(columns["swap_ab"], problem.a_align, problem.b_align) < TMA_ALIGN
        moved_ns = moved_ns + crosses * columns["crossing_ns"]
    step_ns = soft_maximum((_STREAM_NS, sharing * moved_ns, sharing * columns["issue_ns"]))
    step_ns += sharing * np.minimum(work["m"], columns["counted_rows"]) * columns["row_ns"]
    work["paces"] = 0.0, 0.0, step_ns
    ns: Floats = LATENCY_NS + work["waves"] * np.maximum(work["steps"], 1.0) * step_ns
    return ns


def _issue_cycles(config: GemmConfig) -> float:
    """Return the clocks in which a CTA issues the loads of a step."""
    from gemmill.library.families.gemv import GemvPlan

    plan = GemvPlan(config)
    mmas, thread_k = plan.mmas_m, plan.thread_k
    cycles = config.stages * _VECTOR_CYCLES + (mmas * thread_k * _GATHER_CYCLES if plan.gathers else 0)
    cycles += (mmas - 1) * thread_k * config.a.type.bytes / 4 * _MORE_ROWS_CYCLES
    return plan.threads // 32 * cycles


def _crossing(config: GemmConfig) -> float:
    """Return the share of B that is loaded twice where its rows do not start at sectors."""
    from gemmill.library.families.gemv import UNCACHED_BYTES

    crosses = config.b.major == "k" and config.b.align >= UNCACHED_BYTES
    return _CROSSING_SECTORS * L2_SECTOR / (4 * config.b.align) if crosses else 0


def _ctas_per_sm(config: GemmConfig) -> int:
    from gemmill.library.families.gemv import GemvPlan

    return GemvPlan(config).ctas_per_sm


def _is_fitted(config: GemmConfig) -> bool:
    """Whether a kernel has tiles of eight rows and neither upconverts nor transposes its operands."""
    from gemmill.library.families.gemv import GemvPlan

    is_changed = is_mixed(config.a.dtype, config.b.dtype) or transposed_operands(config)
    return GemvPlan(config).mmas_m == 1 and config.a.major == "k" and not is_changed


FAMILY = Family(
    _columns,
    _busiest_ns,
    is_fitted=_is_fitted,
    ctas_per_sm=_ctas_per_sm,
    counted_ctas=_ctas_per_sm,
    is_preferred=True,
    most_rows=64,
    streams=True,
)
