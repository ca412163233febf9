"""The model: how long each of many kernels takes for one problem, from the GPU's rates.

The tiles of a problem take rounds on the SMs (:mod:`~gemmill.runtime.select.cost.tiling`). What a tile takes there its
family says (:mod:`~gemmill.runtime.select.cost.families`), and what sharing K among CTAs adds its decomposition
(:mod:`~gemmill.runtime.select.cost.decompositions`). DRAM and power bound the whole. All of it are numpy expressions
over the kernels. Where a GPU was measured, a residual model that was fitted to what came out corrects this
(:mod:`~gemmill.runtime.select.cost.residual`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.config.model import FamilyName, GemmConfig
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost import memory, residual
from gemmill.runtime.select.cost.arrays import column, joined
from gemmill.runtime.select.cost.decompositions import cluster_k, second_kernel_ns
from gemmill.runtime.select.cost.families import FAMILIES
from gemmill.runtime.select.cost.families.wgmma import transposed_operands
from gemmill.runtime.select.cost.roofline import Estimate, power_ns, roofline
from gemmill.runtime.select.cost.sm import SmFeatures, SmTime, SmWork
from gemmill.runtime.select.cost.sustained import Moved
from gemmill.runtime.select.cost.tiling import Tiling, Work, utilisation

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Bools, Floats, Integers

CORRECTED = 1.7
"""How far behind the analytically fastest kernel the residual model is still asked: the best of 6,328 problems was
never as far."""
MOST_CORRECTED = 64
"""Of how many kernels at most, the analytically fastest: all of them would have changed the choice for eight of 2,000
random problems of four types; with 48 it is 19."""
_FITTED = "strided", "nested"
"""Batching that the residual model was fitted to, or that costs as much."""
_LAUNCH_NS = 310.0
"""A launch in a train of launches."""

_OWN: Mapping[str, Callable[[GemmConfig], float]] = MappingProxyType(
    {
        "bytes": lambda c: c.b.type.bits / 8,
        "tile M": lambda c: c.tile.m,
        "tile N": lambda c: c.tile.n,
        "tile K bytes": lambda c: c.tile.k * c.b.type.bits / 8,
        "cluster M": lambda c: c.cluster.m,
        "cluster N": lambda c: c.cluster.n,
        "cluster K": cluster_k,
        "stages": lambda c: c.stages,
        "splits": lambda c: c.scheduler.splits,
        "pingpong": lambda c: FAMILIES[c.family].takes_turns(c),
        "split": lambda c: decomposition_of(c).has_second_kernel,
        "fused": lambda c: 1,  # of a former decomposition: the models that ship name it
        "stream": lambda c: decomposition_of(c).has_shares,
        "raster M": lambda c: c.scheduler.raster == "m",
        "swizzle": lambda c: c.scheduler.swizzle_size,
        "gemv": lambda c: FAMILIES[c.family].streams,
        "A m-major": lambda c: c.a.major == "mn",
        "B n-major": lambda c: c.b.major == "mn",
        "D m-major": lambda c: c.d.major == "m",
        "transposed": transposed_operands,
    }
)
"""Figures that a kernel has whatever the problem."""
FEATURES = (
    *("M", "N", "K", "batch", *_OWN, "us", "tiles", "waves", "utilisation", "bound"),
    *("loads", "DRAM", "power", "filled M", "filled N", "steps", "active", "last wave"),
)
"""Names of the figures that the residual model may ask for; files that ship name them."""
_ROWS: Mapping[str, int] = MappingProxyType({name: row for row, name in enumerate(FEATURES)})
_FIRST_OWN, _FIRST_FIGURE = _ROWS["bytes"], _ROWS["us"]


class OfFamily(NamedTuple):
    """The kernels of one family."""

    members: slice | Integers
    """Which of all they are: a slice where they lie together, which takes numpy no copies."""
    features: Any
    """Their :class:`~gemmill.runtime.select.cost.families.family.Features`."""


class FeatureTable(NamedTuple):
    """Figures of kernels, prepared once; of arrays the last axis are the kernels."""

    tiling: Tiling
    sm: SmFeatures
    traffic: memory.Traffic
    has_second_kernel: Bools
    fitted: Bools
    """Whether the residual model corrects the kernel."""
    own: Floats
    """The figures :data:`_OWN`, the rows."""
    moved: Moved
    families: Mapping[FamilyName, OfFamily]

    @classmethod
    def of(cls, configs: Sequence[GemmConfig], swap_ab: bool = False) -> FeatureTable:
        """The figures of configs, for problems as they are or transposed."""
        families = [FAMILIES[config.family] for config in configs]
        each = [*zip(families, configs, strict=True)]
        resident = [family.ctas_per_sm(config) for family, config in each]
        counted = [family.counted_ctas(config) for family, config in each]
        found: dict[FamilyName, OfFamily] = {}
        for name, family in FAMILIES.items():
            if own := [i for i, each_is in enumerate(families) if each_is is family]:
                features = family.features([configs[i] for i in own], swap_ab)
                found[name] = OfFamily(_together(np.array(own)), features)
        return cls(
            tiling=Tiling.of(configs, swap_ab, resident, counted),
            sm=SmFeatures.of(configs, [family.storing(config) for family, config in each]),
            traffic=memory.Traffic.of(configs, swap_ab, [family.dram_share for family in families]),
            has_second_kernel=np.array([decomposition_of(config).has_second_kernel for config in configs]),
            fitted=np.array([family.is_corrected(config) for family, config in each]),
            own=np.array([column(configs, figure) for figure in _OWN.values()]),
            moved=Moved.of(configs, swap_ab),
            families=found,
        )

    @classmethod
    def joined(cls, parts: Sequence[FeatureTable]) -> FeatureTable:
        """The figures of kernels of several."""
        first = np.cumsum([0, *(part.fitted.size for part in parts)])
        families: dict[FamilyName, OfFamily] = {}
        for name in FAMILIES:
            own = zip((part.families.get(name) for part in parts), first, first[1:], strict=False)
            if there := [(of, at, end) for of, at, end in own if of]:
                index = np.concatenate([np.arange(at, end)[of.members] for of, at, end in there])
                families[name] = OfFamily(_together(index), joined([of.features for of, *_ in there]))
        return cls(
            joined([part.tiling for part in parts]),
            joined([part.sm for part in parts]),
            joined([part.traffic for part in parts]),
            np.concatenate([part.has_second_kernel for part in parts]),
            np.concatenate([part.fitted for part in parts]),
            np.concatenate([part.own for part in parts], axis=1),
            joined([part.moved for part in parts]),
            families,
        )

    @property
    def swap_ab(self) -> Bools:
        """Whether each kernel runs the transposed problem."""
        return self.tiling.swap_ab

    def realigned(self, problem: GemmProblem) -> Bools:
        """Whether A, B and C, the rows, are copied into aligned memory before each kernel, if it serves the problem."""
        return memory.realigned(self.traffic, problem)

    def cost(self, work: SmWork, problem: GemmProblem, gpu: Gpu) -> SmTime:
        """What the busiest SM takes under each kernel, as its family says."""
        size = self.fitted.size
        if len(self.families) == 1:
            ((_, features),) = self.families.values()
            return cast(SmTime, features.cost(work, problem, gpu))
        found = SmTime(np.empty(size), np.empty(size, np.int64), np.empty(size))
        for members, features in self.families.values():
            own = features.cost(SmWork._make([figure[members] for figure in work]), problem, gpu)
            found.ns[members], found.bound[members], found.loads[members] = own
        return found


def _together(index: Integers) -> slice | Integers:
    """Indices in order, as a slice where none is left out."""
    first, last = int(index[0]), int(index[-1])
    return slice(first, last + 1) if last - first + 1 == index.size else index


def estimate(table: FeatureTable, problem: GemmProblem, gpu: Gpu, serving: Integers | None = None) -> Estimate:
    """Predict the time of every kernel for one problem whose extents are all at least 1.

    Args:
        table: figures of the kernels.
        problem: what they are to solve.
        gpu: where.
        serving: indices of those that can; None: all.
    """
    figures, others = analytic(table, problem, gpu)
    found = residual.fitted(gpu.name, gpu.model) if problem.batching in _FITTED else None
    us = figures.us if found is None else _corrected(found, table, figures, others, problem, gpu, serving)
    return figures._replace(us=us + memory.realignment_us(table.traffic, problem, gpu))


def _corrected(
    model: residual.ResidualModel,
    table: FeatureTable,
    figures: Estimate,
    others: Mapping[str, Floats],
    problem: GemmProblem,
    gpu: Gpu,
    serving: Integers | None,
) -> Floats:
    """Times in microseconds as the residual model corrects those of the kernels that could be the fastest."""
    members = np.arange(figures.us.size) if serving is None else serving
    us = figures.us.copy()
    own = us.take(members)
    asked = members[(own <= CORRECTED * own.min()) & table.fitted.take(members)]
    if asked.size > MOST_CORRECTED:
        asked = asked[us.take(asked).argpartition(MOST_CORRECTED)[:MOST_CORRECTED]]
    if asked.size:
        rows = features(table, figures, others, problem, gpu, asked)
        factors = np.exp(model(rows.take(_rows_of(model.features), axis=0)))
        us[asked] = corrected = us.take(asked) * factors
        # What the fastest of these loses, as to slow memory, those that it does not know lose as well.
        if (lost := factors[corrected.argmin()]) > 1:
            np.multiply(us, lost, out=us, where=~table.fitted)
    return us


@cache
def _rows_of(names: tuple[str, ...]) -> Integers:
    """Which rows of :func:`features` have these names."""
    return np.array([_ROWS[name] for name in names])


def features(
    table: FeatureTable,
    figures: Estimate,
    others: Mapping[str, Floats],
    problem: GemmProblem,
    gpu: Gpu,
    members: Integers | None = None,
) -> Floats:
    """What the residual model may ask of each kernel, or of some, in rows as :data:`FEATURES`, from what
    :func:`analytic` returns; M and N are those that the kernel sees."""
    asked = np.arange(figures.us.size) if members is None else members
    rows = np.empty((len(FEATURES), asked.size))
    rows[_ROWS["M"]], rows[_ROWS["N"]] = np.array((problem.m, problem.n)).take(table.tiling.side.take(asked, axis=1))
    rows[_ROWS["K"]] = problem.k
    rows[_ROWS["batch"]] = problem.batch
    rows[_FIRST_OWN:_FIRST_FIGURE] = table.own.take(asked, axis=1)
    rows[_FIRST_FIGURE:] = np.array((*figures, *others.values())).take(asked, axis=1)
    rows[_ROWS["tiles"]] /= gpu.sms
    return rows


def analytic(table: FeatureTable, problem: GemmProblem, gpu: Gpu) -> tuple[Estimate, dict[str, Floats]]:
    """The analytic model alone, and further figures by name.

    ``loads``: of a step, over its MMAs. ``DRAM``, ``power``: over all of the time. ``filled M``, ``filled N``: the part
    of the tiles that lies inside the problem. ``steps``: along K, of a tile. ``active``: CTAs that have work.
    ``last wave``: the part of the GPU that it fills.
    """
    k, traffic, asked, problem = table.tiling, table.traffic, problem, problem.typical()
    work = Work.of(k, problem, gpu, asked)
    sm = table.cost(table.sm.work(k, work, problem, gpu, asked.batching in _FITTED), problem, gpu)
    moved = memory.dram_bytes(traffic, work, problem, gpu)
    dram_ns = moved / (gpu.dram_gbps * traffic.dram_share)
    capped_ns = power_ns(problem, gpu)
    busy_ns, bound = roofline(sm, dram_ns, capped_ns)
    ns = _LAUNCH_NS + busy_ns
    if (split := table.has_second_kernel.nonzero()[0]).size:
        ns[split] += second_kernel_ns(problem, k.splits[split], memory.output_bytes(problem))
    figures = Estimate(
        us=ns / 1000,
        tiles=work.clusters * k.tiles,
        waves=work.waves,
        utilisation=utilisation(k, work, problem, gpu),
        bound=bound,
    )
    filled_m, filled_n = work.extents / (work.tiles * k.tile)
    return figures, {
        "loads": sm.loads,
        "DRAM": dram_ns / ns,
        "power": capped_ns / ns,
        "filled M": filled_m,
        "filled N": filled_n,
        "steps": work.steps,
        "active": work.active,
        "last wave": work.clusters / work.slots - work.waves + 1,
    }
