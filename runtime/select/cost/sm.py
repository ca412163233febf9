"""What happens on an SM under any kernel: a step along K is loaded, steps make a tile, which is stored, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.decompositions.workspace import PARTIAL_BYTES
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
    """As :class:`~gemmill.runtime.select.cost.tiling.Work` has them; so the next four."""
    resident: Floats
    waves: Floats
    sharing: Floats
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

    bytes_a: Floats
    """What is loaded of A, as far as multicast does not save it; so of B."""
    bytes_b: Floats
    stored: Floats
    """Bytes of an output tile that a CTA stores or, of C, loads."""
    elements: Floats
    """Elements of it."""
    align: Floats
    """Bytes that D is aligned to where the kernel stores it at its best; 0 where a second one stores it."""
    adding_ns: Floats
    """What its decomposition adds to each tile."""

    @classmethod
    def of(cls, configs: Sequence[GemmConfig], slowness: Sequence[float]) -> SmFeatures:
        """Of kernels, which take so many times as long to store."""
        tile_m, tile_n = column(configs, lambda c: c.tile.m), column(configs, lambda c: c.tile.n)
        tile_k, elements = column(configs, lambda c: c.tile.k), tile_m * tile_n / column(configs, cluster_k)
        shared_a = _MULTICAST_COST + (1 - _MULTICAST_COST) / column(configs, lambda c: c.cluster.n)
        shared_b = _MULTICAST_COST + (1 - _MULTICAST_COST) / column(configs, lambda c: c.cluster.m)
        return cls(
            bytes_a=tile_k * (tile_m * column(configs, lambda c: c.a.type.bits / 8) * shared_a),
            bytes_b=tile_k * (tile_n * column(configs, lambda c: c.b.type.bits / 8) * shared_b),
            stored=np.array(slowness) * tile_m * tile_n / column(configs, cluster_k) * column(configs, _stored_bytes),
            elements=elements,
            align=column(configs, lambda c: 0 if decomposition_of(c).has_second_kernel else c.d.align),
            adding_ns=tile_ns(configs),
        )

    def work(self, tiling: Tiling, work: Work, problem: GemmProblem, gpu: Gpu, strided: bool) -> SmWork:
        """What a problem has an SM do; ``strided``: boxes end with the operands."""
        inside_a = inside_b = np.ones_like(work.m)
        if strided:
            inside_a, inside_b = np.minimum(work.m / tiling.m, 1), np.minimum(work.n / tiling.n, 1)
        rate = np.minimum(SHARED_BYTES_PER_CYCLE * gpu.clock_ghz, gpu.l2_gbps / work.active)
        load_ns = (self.bytes_a * inside_a + self.bytes_b * inside_b) / rate
        store_ns = _TILE_NS + work.sharing * self.stored / (_STORE_BYTES_PER_CYCLE * gpu.clock_ghz)
        store_ns += self.adding_ns
        if (unaligned := problem.d_align < self.align).any():
            store_ns += np.where(unaligned, self.elements / (_ELEMENTS_PER_CYCLE * gpu.clock_ghz), 0)
        of_tiles = work.m, work.clusters, work.resident, work.waves, work.sharing, work.steps
        return SmWork(*of_tiles, inside_a, inside_b, load_ns, store_ns)


def _stored_bytes(config: GemmConfig) -> int:
    """Bytes of an element of a tile that is stored, or loaded of C."""
    if decomposition_of(config).has_second_kernel:
        return PARTIAL_BYTES
    return (config.c.type.bytes if config.c else 0) + config.d.type.bytes
