"""Kernels that move B from memory to registers, for a few rows of A, and do nothing else that takes time.

From 3,345 measurements of them (11% off in the mean, weighted by kind and nearness to the best).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gemmill.library.arch import L2_SECTOR, Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.problem import GemmProblem, is_mixed
from gemmill.runtime.select.cost.arrays import column
from gemmill.runtime.select.cost.families.family import Family
from gemmill.runtime.select.cost.families.wgmma import WIDE_ROW, Step, transposed_operands
from gemmill.runtime.select.cost.roofline import LOAD_LATENCY, soft_maximum
from gemmill.runtime.select.cost.sm import LATENCY_NS, STEP_SHARPNESS, SmTime, SmWork

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Floats

# The library's module of the family comes with all rules: a program without such kernels starts faster, so it is
# imported where it is asked.

_STREAM_NS = 727.0
"""From the loads of a step to its end, where nothing else takes longer."""
_STREAM_GBPS = 38.6
"""The most of B that one SM takes in."""
_STREAM_A = 0.8
"""What a byte of A counts beside it, in tiles of more rows than an MMA has: what smaller ones take is in the rest."""
_MMA_ROWS = 8
"""Rows of A of an MMA."""
_VECTOR_CYCLES = 5.8
"""Clocks of an SM in which a warp loads a vector of B for each of its threads, however wide."""
_GATHER_CYCLES = 7.4
"""The same for an element of A, where it is read element by element."""
_MORE_ROWS_CYCLES = 3.8
"""The same for a word of A of each MMA along M beyond the first, and the MMA."""
_CROSSING_SECTORS = 0.63
"""Sectors more of the adjacent vectors of four threads, where these do not stay in L1 and rows do not begin sectors."""


class GemvFeatures(NamedTuple):
    """Figures of kernels of the family."""

    learned: Step
    """Steps as if WGMMA and TMA made them: the residual model has learned the figure "loads" of these kernels so."""
    counted_rows: Floats
    """Rows of A of a tile that take time: of more than an MMA has."""
    row_ns: Floats
    """What such a row takes of a step along K."""
    stream_ns: Floats
    """What B takes of it."""
    bytes_b: Floats
    """Bytes of an element of B."""
    issue_cycles: Floats
    """Clocks of an SM in which a CTA issues the loads of a step."""
    crossing: Floats
    """Part of B that is loaded once more where its rows do not begin sectors."""

    @classmethod
    def of(cls, configs: Sequence[GemmConfig], swap_ab: bool) -> GemvFeatures:
        """Of kernels, for problems as they are or transposed."""
        bytes_b = column(configs, lambda c: c.b.type.bits / 8)
        return cls(
            learned=Step.of(configs, swap_ab, lambda config: (WIDE_ROW, WIDE_ROW)),
            counted_rows=column(configs, lambda c: c.tile.m if c.tile.m > _MMA_ROWS else 0),
            row_ns=column(configs, lambda c: c.tile.k * c.a.type.bits / 8) * (_STREAM_A / _STREAM_GBPS),
            stream_ns=column(configs, lambda c: c.tile.n * c.tile.k * c.b.type.bits / 8) / _STREAM_GBPS,
            bytes_b=bytes_b,
            issue_cycles=column(configs, _issue_cycles),
            crossing=column(configs, _crossing),
        )

    def cost(self, work: SmWork, problem: GemmProblem, gpu: Gpu) -> SmTime:
        """As :meth:`Features.cost`."""
        multiply_ns, load_ns = self.learned.paces(work, problem, gpu)
        crosses = problem.k * self.bytes_b % L2_SECTOR > 0
        if min(problem.a_align, problem.b_align) < TMA_ALIGN:
            crosses |= np.where(self.learned.swap_ab, problem.a_align, problem.b_align) < TMA_ALIGN
        moved_ns = work.sharing * (self.stream_ns + crosses * self.crossing * self.stream_ns)
        rows_ns = work.sharing * np.minimum(work.m, self.counted_rows) * self.row_ns
        issued_ns = work.sharing * self.issue_cycles / gpu.clock_ghz
        paces = np.array((np.full(rows_ns.size, _STREAM_NS), moved_ns, issued_ns))
        step_ns = soft_maximum(paces, STEP_SHARPNESS) + rows_ns
        sm_ns = LATENCY_NS + work.waves * np.maximum(work.steps, 1.0) * step_ns
        return SmTime(sm_ns, np.full(rows_ns.size, LOAD_LATENCY), load_ns / multiply_ns)


def _issue_cycles(config: GemmConfig) -> float:
    """Clocks in which a CTA issues the loads of a step."""
    from gemmill.library.families.gemv import GemvPlan

    plan = GemvPlan(config)
    mmas, held = plan.mmas_m, plan.thread_k
    cycles = config.stages * _VECTOR_CYCLES + (mmas * held * _GATHER_CYCLES if plan.gathers else 0)
    cycles += (mmas - 1) * held * config.a.type.bytes / 4 * _MORE_ROWS_CYCLES
    return plan.threads // 32 * cycles


def _crossing(config: GemmConfig) -> float:
    """Part of B that is loaded once more where its rows do not begin sectors."""
    from gemmill.library.families.gemv import UNCACHED_BYTES

    crosses = config.b.major == "k" and config.b.align >= UNCACHED_BYTES
    return _CROSSING_SECTORS * L2_SECTOR / (4 * config.b.align) if crosses else 0


def _ctas_per_sm(config: GemmConfig) -> int:
    from gemmill.library.families.gemv import GemvPlan

    return GemvPlan(config).ctas_per_sm


def _is_corrected(config: GemmConfig) -> bool:
    """Those with tiles of eight rows that multiply what they load."""
    from gemmill.library.families.gemv import GemvPlan

    is_changed = is_mixed(config.a.dtype, config.b.dtype) or transposed_operands(config)
    return GemvPlan(config).mmas_m == 1 and config.a.major == "k" and not is_changed


FAMILY = Family(
    GemvFeatures.of,
    is_corrected=_is_corrected,
    ctas_per_sm=_ctas_per_sm,
    counted_ctas=_ctas_per_sm,
    is_preferred=True,
    most_rows=1024,
    streams=True,
)
