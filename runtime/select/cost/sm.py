"""What happens on an SM under any kernel: a step along K is loaded, steps make a tile, which is stored, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.decompositions.workspace import PARTIAL_BYTES
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.arrays import column
from gemmill.runtime.select.cost.decompositions import cluster_k, tile_ns

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Bools, Floats, Integers
    from gemmill.runtime.select.cost.tiling import Tiling, Work

SHARED_BYTES_PER_CYCLE = 128
"""What an SM reads or writes of shared memory in a clock: WGMMA its operands, and what is loaded."""

# Fitted to measurements on an H200, together with its row of library/arch.py (docs/performance).
LATENCY_NS = 1430.0
"""From asking for a stage to its arrival, under load."""
STEP_SHARPNESS = 8.5
"""Exponent of the norm that joins what competes in a step along K; without end it would be their maximum."""
_MULTICAST_COST = 0.26
"""Part of a load that multicast does not save."""
_TILE_NS = 1020.0
"""Draining the pipeline and starting the next tile."""
_STORE_BYTES_PER_CYCLE = 16
"""What one SM's epilogue moves from registers through shared memory to L2, or back."""
_ELEMENTS_PER_CYCLE = 1.5
"""What a CTA stores of a D that TMA cannot store."""
_SEEN = 0.5
"""Part of the SM's time from which on stores set its pace."""


class SmTime(NamedTuple):
    """What the busiest SM takes."""

    ns: Floats
    """From the first load to the last store."""
    bound: Integers
    """What sets its pace: an index into the first four of :data:`~gemmill.runtime.select.cost.roofline.BOUNDS`."""
    loads: Floats
    """Loads of a step along K, over its MMAs."""


class SmWork(NamedTuple):
    """What a problem has an SM do under each kernel."""

    m: Floats
    """M as the kernel sees it."""
    clusters: Floats
    """As :class:`~gemmill.runtime.select.cost.tiling.Work` has them; so the next five."""
    resident: Floats
    waves: Floats
    sharing: Floats
    active: Floats
    steps: Floats
    inside_a: Floats
    """Part of the rows of A in a tile that is loaded; so of B."""
    inside_b: Floats
    load_ns: Floats
    """Time of the loads of a step from L2."""
    store_ns: Floats
    """Time from the end of a loop over K to the next."""

    def tiles_ns(self, step_ns: Floats) -> Floats:
        """Time of the busiest SM that computes its tiles one after the other."""
        return np.asarray(self.waves * (self.steps * step_ns + self.store_ns))

    def stores_set_pace(self, sm_ns: Floats) -> Bools:
        """Whether what is stored sets the pace of an SM that takes so long in all."""
        return np.asarray(self.store_ns * self.waves > _SEEN * sm_ns)


class SmFeatures(NamedTuple):
    """What CTAs load for a step along K, and store of a tile."""

    loaded: Floats
    """Bytes that are loaded of A and of B, the rows, as far as multicast does not save them."""
    store_cycles: Floats
    """Clocks in which a CTA alone stores its output tile and loads what it reads of C."""
    elements: Floats
    """Elements of it."""
    align: Floats
    """Bytes that D is aligned to where the kernel stores it at its best; 0 where a second one stores it."""
    tile_ns: Floats
    """What each tile takes whatever it stores, for its decomposition among others."""

    @classmethod
    def of(cls, configs: Sequence[GemmConfig], slowness: Sequence[float]) -> SmFeatures:
        """Of kernels, which take so many times as long to store."""
        tile_m, tile_n = column(configs, lambda c: c.tile.m), column(configs, lambda c: c.tile.n)
        tile_k, elements = column(configs, lambda c: c.tile.k), tile_m * tile_n / column(configs, cluster_k)
        shared_a = _MULTICAST_COST + (1 - _MULTICAST_COST) / column(configs, lambda c: c.cluster.n)
        shared_b = _MULTICAST_COST + (1 - _MULTICAST_COST) / column(configs, lambda c: c.cluster.m)
        bytes_a = tile_k * (tile_m * column(configs, lambda c: c.a.type.bits / 8) * shared_a)
        bytes_b = tile_k * (tile_n * column(configs, lambda c: c.b.type.bits / 8) * shared_b)
        return cls(
            loaded=np.array((bytes_a, bytes_b)),
            store_cycles=np.array(slowness) * elements * column(configs, _stored_bytes) / _STORE_BYTES_PER_CYCLE,
            elements=elements,
            align=column(configs, lambda c: 0 if decomposition_of(c).has_second_kernel else c.d.align),
            tile_ns=_TILE_NS + tile_ns(configs),
        )

    def work(self, tiling: Tiling, work: Work, problem: GemmProblem, gpu: Gpu, strided: bool) -> SmWork:
        """What a problem has an SM do; ``strided``: boxes end with the operands."""
        inside_a, inside_b = np.minimum(work.extents / tiling.tile, 1.0) if strided else np.ones_like(work.extents)
        rate = np.minimum(SHARED_BYTES_PER_CYCLE * gpu.clock_ghz, gpu.l2_gbps / work.active)
        loaded = self.loaded[0] * inside_a + self.loaded[1] * inside_b
        store_ns = work.sharing * self.store_cycles / gpu.clock_ghz + self.tile_ns
        if problem.d_align < TMA_ALIGN:
            unaligned = problem.d_align < self.align
            store_ns += np.where(unaligned, self.elements / (_ELEMENTS_PER_CYCLE * gpu.clock_ghz), 0)
        of_tiles = work.clusters, work.resident, work.waves, work.sharing, work.active, work.steps
        return SmWork(work.extents[0], *of_tiles, inside_a, inside_b, loaded / rate, store_ns)


def _stored_bytes(config: GemmConfig) -> int:
    """Bytes of an element of a tile that is stored, or loaded of C."""
    if decomposition_of(config).has_second_kernel:
        return PARTIAL_BYTES
    return (config.c.type.bytes if config.c else 0) + config.d.type.bytes
