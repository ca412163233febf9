"""Kernels that multiply by WGMMA what TMA loads.

A tile is a loop over K, in which the tensor cores, the loads from L2 and the latency of those loads compete and the
slowest sets the pace, and an epilogue, which pingpong hides behind the other warpgroup's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.dtypes import DTYPES
from gemmill.library.families.wgmma.plan import INSTRUCTION_K_BYTES, SUBTILE_M, WgmmaPlan
from gemmill.library.problem import GemmProblem, is_mixed
from gemmill.runtime.select.cost.arrays import column
from gemmill.runtime.select.cost.decompositions import kernel_ns, stream_ns
from gemmill.runtime.select.cost.families.family import Family
from gemmill.runtime.select.cost.roofline import EPILOGUE, soft_maximum
from gemmill.runtime.select.cost.sm import LATENCY_NS, SHARED_BYTES_PER_CYCLE, STEP_SHARPNESS, SmTime, SmWork

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Bools, Floats

# Of Hopper's SM, per clock.
_MMA_COLUMNS_PER_CYCLE = 2
"""Columns of a 64-row WGMMA that the tensor cores of an SM finish in a clock."""

# Fitted to measurements on an H200, together with its row of library/arch.py (docs/performance).
_SUSTAINED = 0.84
"""Part of the tensor cores' rate that a loop of WGMMAs reaches."""
_ROW_CYCLES = 2.2
"""What TMA takes for a row of a box, of 32 bytes as of 128 (docs/performance)."""
_CROSSING_CYCLES = {16: 4.4, 32: 3.3, 64: 2.7}
"""The same for a row that may lie across two lines, by the bytes that its address is a multiple of."""
WIDE_ROW = 128
"""Bytes of a row of a box at most."""
_CROWDED_ROWS, _CROWDED_EXPONENT = 4.6, 0.24
"""Rows of boxes that L2 serves all SMs in a clock, of an mn-major operand: what they ask for together lies in few lines
where it is short, so this times a power of the bytes from one of K to the next (docs/performance/layouts.md)."""
_SHORT_ROW = 2048
"""Bytes from which on the rate of L2 says as much."""
_TRANSPOSING_CYCLES = 250.0
"""What transposing a stage takes beside the bytes: waiting for it, a fence and a barrier, one stage after the other."""
_TRANSPOSED_BYTES_PER_CYCLE = 32.0
"""What three warps transpose in shared memory."""


class Step(NamedTuple):
    """A step along K of a tile, multiplied by WGMMA and loaded by TMA."""

    multiply_cycles: Floats
    """Clocks in which an SM alone multiplies it."""
    rows: Floats
    """Rows of boxes of A and of B, the rows, that a CTA asks TMA for."""
    panels: Floats
    """Boxes side by side in which an mn-major A and B, the rows, lie."""
    narrow: Bools
    """Whether those of A or B are narrow, as of an mn-major operand whose tile is no multiple of 128 bytes."""
    swap_ab: Bools

    @classmethod
    def of(
        cls, configs: Sequence[GemmConfig], swap_ab: bool, row_bytes: Callable[[GemmConfig], tuple[int, int]]
    ) -> Step:
        """Of kernels, whose boxes of A and B have rows of so many bytes."""
        tile_m, tile_n = column(configs, lambda c: c.tile.m), column(configs, lambda c: c.tile.n)
        tile_k = column(configs, lambda c: c.tile.k)
        bytes_a, bytes_b = column(configs, lambda c: c.a.type.bits / 8), column(configs, lambda c: c.b.type.bits / 8)
        mma_cycles = np.maximum(
            tile_n / _MMA_COLUMNS_PER_CYCLE, (SUBTILE_M + tile_n) * INSTRUCTION_K_BYTES / SHARED_BYTES_PER_CYCLE
        )
        mmas = tile_m / SUBTILE_M * tile_k * np.maximum(bytes_a, bytes_b) / INSTRUCTION_K_BYTES
        row_a, row_b = np.array([row_bytes(config) for config in configs], np.float64).T
        rows_a = tile_m * tile_k * bytes_a / row_a / column(configs, lambda c: c.cluster.n)
        rows_b = tile_n * tile_k * bytes_b / row_b / column(configs, lambda c: c.cluster.m)
        return cls(
            multiply_cycles=mmas * mma_cycles / _SUSTAINED,
            rows=np.stack([rows_a, rows_b]),
            panels=np.stack([np.ceil(tile_m * bytes_a / row_a), np.ceil(tile_n * bytes_b / row_b)]),
            narrow=np.minimum(row_a, row_b) < WIDE_ROW,
            swap_ab=np.full(len(configs), swap_ab),
        )

    def paces(self, work: SmWork, problem: GemmProblem, gpu: Gpu) -> tuple[Floats, Floats]:
        """Times to multiply a step, and to load it.

        TMA loads the rows of its boxes one by one, which counts as far as the constants, which were fitted to wide rows
        within lines, do not have it. Operands are taken for packed, but those that are realigned: their rows begin
        lines.
        """
        multiply_ns, load_ns = self.multiply_cycles / gpu.clock_ghz, work.load_ns
        strides = {operand: _stride(problem, operand) for operand in "ab"}
        for operand, stride in strides.items():
            together = problem.batch * stride
            if getattr(problem, f"{operand}_major") == "mn" and together < _SHORT_ROW:
                load_ns = np.maximum(load_ns, self._crowded_ns(work, operand, together, gpu))
        a, b = map(_crossing_cycles, strides.values())
        if not (a or b or np.count_nonzero(self.narrow)):
            return multiply_ns, load_ns
        cycles = self.narrow * _ROW_CYCLES
        if a or b:
            cycles = np.maximum(cycles, np.where(self.swap_ab, ((b,), (a,)), ((a,), (b,))))
        rows_a, rows_b = self.rows * cycles
        row_cycles = rows_a * work.inside_a + rows_b * work.inside_b
        return multiply_ns, np.maximum(load_ns, row_cycles / gpu.clock_ghz)

    def _crowded_ns(self, work: SmWork, operand: str, stride: int, gpu: Gpu) -> Floats:
        """Time in which L2 serves all SMs a step of a problem's mn-major operand, so many bytes from one of K to the
        next."""
        own = self.swap_ab ^ (operand == "b")  # whether the kernel has it as B
        panels, inside = np.where(own, self.panels[1], self.panels[0]), np.where(own, work.inside_b, work.inside_a)
        rows = np.where(own, self.rows[1], self.rows[0]) * np.ceil(panels * inside) / panels
        return np.asarray(rows * work.active / (_CROWDED_ROWS * stride**_CROWDED_EXPONENT * gpu.clock_ghz))


def _takes_turns(config: GemmConfig) -> bool:
    return config.schedule == "pingpong"


class WgmmaFeatures(NamedTuple):
    """Figures of kernels of the family."""

    step: Step
    transposing_cycles: Floats
    """Clocks in which a CTA transposes what it must of a step, in shared memory."""
    latency_ns: Floats
    """What the loads of a step take while the other stages are multiplied."""
    turns: Floats
    """1 for pingpong, whose warpgroups take turns, 0 for others."""
    turn: Floats
    """Part of a tile's time after which the next may begin: half of it for pingpong."""
    tile: Floats
    """Elements of an output tile."""
    kernel_ns: Floats
    """What the decomposition adds once."""
    has_shares: Bools
    """Whether it is stream-K."""

    @classmethod
    def of(cls, configs: Sequence[GemmConfig], swap_ab: bool) -> WgmmaFeatures:
        """Of kernels, for problems as they are or transposed."""
        turns = column(configs, _takes_turns)
        return cls(
            step=Step.of(configs, swap_ab, _row_bytes),
            transposing_cycles=column(configs, _transposing_cycles),
            latency_ns=LATENCY_NS / (column(configs, lambda c: c.stages) - 1),
            turns=turns,
            turn=1 - turns / 2,
            tile=column(configs, lambda c: c.tile.m * c.tile.n),
            kernel_ns=kernel_ns(configs),
            has_shares=np.array([decomposition_of(c).has_shares for c in configs]),
        )

    def cost(self, work: SmWork, problem: GemmProblem, gpu: Gpu) -> SmTime:
        """As :meth:`Features.cost`."""
        multiply_ns, load_ns = self.step.paces(work, problem, gpu)
        load_ns = np.maximum(load_ns, self.transposing_cycles / gpu.clock_ghz)
        paces = np.array((multiply_ns, load_ns, self.latency_ns))
        sm_ns = LATENCY_NS + self._tiles_ns(work, soft_maximum(paces, STEP_SHARPNESS))
        bound = np.where(work.stores_set_pace(sm_ns), EPILOGUE, paces.argmax(axis=0))
        return SmTime(sm_ns, bound, load_ns / multiply_ns)

    def _tiles_ns(self, work: SmWork, step_ns: Floats) -> Floats:
        """Time of the tiles of the busiest SM. Pingpong computes one while it stores another: of the stores the last
        alone is seen, if they are shorter."""
        loop_ns, store_ns = work.steps * step_ns, work.store_ns
        tile_ns = np.maximum(loop_ns, self.turn * (loop_ns + store_ns))
        ns = work.waves * tile_ns + self.turns * store_ns + self.kernel_ns
        if (stream := self.has_shares.nonzero()[0]).size:
            own = work.clusters, work.resident, work.steps, step_ns, store_ns, self.tile
            ns[stream] = stream_ns(*[figure.take(stream) for figure in own])
        return ns


def transposed_operands(config: GemmConfig) -> int:
    """How many of A and B are transposed on their way, in shared memory or to registers: the tensor cores take all but
    16-bit ones K-major alone."""
    return sum(operand.major == "mn" and operand.type.bits != 16 for operand in (config.a, config.b))


def _row_bytes(config: GemmConfig) -> tuple[int, int]:
    """Bytes of a row of the boxes of A and of B."""
    plan = WgmmaPlan(config)
    return plan.swizzle("a"), plan.swizzle("b")


def _transposing_cycles(config: GemmConfig) -> float:
    """Clocks in which a stage is transposed in shared memory, where it is: by warps, or what is read and written there.

    The latter are what TMA writes, what transposing reads and writes, and what WGMMAs of 64 rows read: A once, B each.
    """
    if config.a.major == config.b.major == "k":
        return 0.0
    plan, tile = WgmmaPlan(config), config.tile
    a = tile.m * tile.k * config.a.type.unpacked_bytes
    b = tile.n * tile.k * config.b.type.unpacked_bytes
    transposed = a * plan.transposes("a") + b * plan.transposes("b")
    if not transposed:
        return 0.0
    moved = (a + b) + 2 * transposed + (a + b * config.tile.m // SUBTILE_M)
    return max(_TRANSPOSING_CYCLES + transposed / _TRANSPOSED_BYTES_PER_CYCLE, moved / SHARED_BYTES_PER_CYCLE)


def _stride(problem: GemmProblem, operand: str) -> int:
    """Bytes from one row of a packed operand to the next, along its contiguous extent."""
    return problem.extents_of(operand)[0] * DTYPES[getattr(problem, f"{operand}_dtype")].bits // 8


def _crossing_cycles(stride: int) -> float:
    """Clocks that TMA takes for a row where rows are so many bytes apart; 0 where all begin lines."""
    return _CROSSING_CYCLES.get(stride & -stride, 0.0)


def _is_corrected(config: GemmConfig) -> bool:
    """All but those that upconvert an operand."""
    return not is_mixed(config.a.dtype, config.b.dtype)


FAMILY = Family(WgmmaFeatures.of, is_corrected=_is_corrected, is_preferred=True, takes_turns=_takes_turns)
