"""Feature tables: properties of the candidate kernels of a problem, as columns that are computed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.decompositions.workspace_layout import PARTIAL_BYTES
from gemmill.library.legality.aligns import least_aligns
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.arrays import column
from gemmill.runtime.select.cost.decompositions import cluster_k, is_serial, second_kernel, tile_ns
from gemmill.runtime.select.cost.families import FAMILIES
from gemmill.runtime.select.cost.families.wgmma import mma_cycles, transposed_operands
from gemmill.runtime.select.cost.network import of_kernels

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Bools, Columns, Floats, Integers
    from gemmill.runtime.select.cost.families.family import Family
    from gemmill.runtime.select.cost.network import Network

# Fitted to measurements on an H200, together with its row in library/arch.py.
_MULTICAST_COST = 0.26
"""Share of a load that multicast does not save."""
_GATHER_COST = 2.5
"""Load of rows that are gathered, relative to one by TMA. With it the model has the order that was measured for groups
of 16, 128 and 1,024 rows: for large groups, CTAs that share the loads of B are faster."""
_TILE_NS = 1020.0
"""Draining the pipeline and starting the next tile."""
_STORE_BYTES_PER_CYCLE = 16
"""Bytes per clock that the epilogue of one SM moves from registers through shared memory to L2, or back."""
_ELEMENTS_PER_CYCLE = 1.5
"""Elements per clock that a CTA stores where TMA cannot store D."""

Entry = tuple[SlicedKernel, GemmConfig, bool]
"""A candidate: a kernel with its slices of K, its config, and whether it runs the transposed problem."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureTable:
    """Candidates for problems with the same formats: each kernel for the problem, for the transposed problem, or
    both."""

    kernels: tuple[SlicedKernel, ...]
    swap_ab: Bools
    """Whether each candidate runs the transposed problem."""
    side: Integers
    """(2, kernels): which extents of a problem are a kernel's M and N: 0 for M, 1 for N."""
    is_fitted: Bools
    """Whether the network corrects the kernel's time."""
    columns: Columns
    """Properties of all kernels, in nanoseconds and bytes."""
    parts: Sequence[tuple[Family, slice, Columns]]
    """For each family the range of its kernels, which are consecutive, and its own columns."""
    inputs: Floats
    """(kernels, inputs): inputs of the network that do not depend on the problem, :data:`STATIC`."""
    network: Network | None
    """The network that corrects times; None: there is none."""
    hidden: Any
    """What each kernel adds to the network's first hidden layer."""
    gpu: Gpu
    """The GPU."""

    @classmethod
    def of(cls, entries: Iterable[Entry], gpu: Gpu, network: Network | None = None) -> FeatureTable:
        """Return the table of candidates on a GPU, family by family, otherwise in their order."""
        order = [*FAMILIES]
        kernels, configs, swapped = zip(*sorted(entries, key=lambda entry: order.index(entry[1].family)), strict=True)
        swap_ab = np.array(swapped, np.bool_)
        columns = _columns(kernels, configs, swap_ab, gpu)
        aligns = np.array(
            [least_aligns(config) for config in configs]
        )  # (kernels, 4): alignments of A, B, C and D in bytes
        aligns[swap_ab] = aligns[swap_ab][:, [1, 0, 2, 3]]
        families = [FAMILIES[config.family] for config in configs]
        is_fitted = np.array([family.is_fitted(config) for family, config in zip(families, configs, strict=True)])
        inputs = _inputs(configs, columns)
        columns |= {"all_fitted": bool(is_fitted.all()), "aligns": aligns}
        parts = []
        for family in FAMILIES.values():
            if indices := [i for i, other in enumerate(families) if other is family]:
                members = slice(indices[0], indices[-1] + 1)
                family_columns = family.columns(
                    [configs[i] for i in indices], swap_ab[members], _part_of(columns, members), gpu
                )
                parts.append((family, members, family_columns))
        return cls.of_columns(kernels, swap_ab, is_fitted, inputs, columns, parts, gpu, network)

    @classmethod
    def of_columns(
        cls,
        kernels: tuple[SlicedKernel, ...],
        swap_ab: Bools,
        is_fitted: Bools,
        inputs: Floats,
        columns: Columns,
        parts: Sequence[tuple[Family, slice, Columns]],
        gpu: Gpu,
        network: Network | None,
    ) -> FeatureTable:
        """Return the table from the properties of its configs."""
        side = sides(swap_ab)
        hidden = None if network is None else of_kernels(network, inputs)
        return cls(kernels, swap_ab, side, is_fitted, columns, parts, inputs, network, hidden, gpu)

    def config(self, index: int) -> GemmConfig:
        """Return the config of a kernel."""
        return parse_name(self.kernels[index].name)

    def serving(self, problem: GemmProblem, sm_count: int | None) -> Integers | None:
        """Return the indices of the kernels whose alignments a problem meets and which stay within ``sm_count`` SMs;
        None for all. Copies, splitting and second kernels do not stay within a number of SMs."""
        offered = problem.a_align, problem.b_align, problem.c_align, problem.d_align
        if sm_count is None and min(offered) >= TMA_ALIGN:  # no kernel needs more
            return None
        serves = (self.columns["aligns"] <= offered).all(axis=1)
        if sm_count is not None:
            serves &= ~self.realigned(problem).any(axis=0) & (problem.of_components is problem)
            serves &= (self.columns["ctas"] <= sm_count) & (self.columns["second_ns"] == 0)
        return np.flatnonzero(serves)

    def realigned(self, problem: GemmProblem) -> Bools:
        """Return whether A, B and C (rows) are copied into aligned memory before each kernel, if it runs the
        problem."""
        offered = np.array(((problem.a_align,), (problem.b_align,), (problem.c_align,)))
        return np.asarray(offered < self.columns["loaded_aligns"])

    def first(self, order: Iterable[int], count: int) -> list[int]:
        """Return the first ``count`` distinct kernels of an order."""
        index_by_kernel: dict[SlicedKernel, int] = {}
        for i in order:
            index_by_kernel.setdefault(self.kernels[i], i)
            if len(index_by_kernel) == count:
                break
        return [*index_by_kernel.values()]


def sides(swap_ab: Bools) -> Integers:
    """Return which extents of a problem are a kernel's M and N, (2, kernels): 0 for M, 1 for N."""
    return np.stack([swap_ab, ~swap_ab]).astype(np.int64)


def covering(configs: Sequence[GemmConfig]) -> Columns:
    """Return the columns that decide which elements of D tiles cover: M and N of a tile, (2, kernels), and whether a
    kernel writes both triangles."""
    symmetric = np.array([config.scheduler.symmetry == "symmetric" for config in configs])
    tile = np.stack([column(configs, lambda c: c.tile.m), column(configs, lambda c: c.tile.n)])
    return {"tile": tile, "symmetric": symmetric}


def _columns(kernels: Sequence[SlicedKernel], configs: Sequence[GemmConfig], swap_ab: Bools, gpu: Gpu) -> Columns:
    covered = covering(configs)
    tile_m, tile_n = tile = covered["tile"]
    cluster_m, cluster_n = column(configs, lambda c: c.cluster.m), column(configs, lambda c: c.cluster.n)
    bytes_a, bytes_b = column(configs, lambda c: c.a.loaded.bits / 8), column(configs, lambda c: c.b.loaded.bits / 8)
    slices, along_k = np.array([kernel.slices for kernel in kernels], np.float64), column(configs, cluster_k)
    added_ns = _TILE_NS + tile_ns(configs, slices)  # independent of what is stored
    slices = np.where(is_serial(configs) > 0, 1, slices)  # units of work of a tile
    tile_k, raster_m = column(configs, _loaded_k), column(configs, lambda c: c.scheduler.raster == "m") > 0
    family_configs = [(FAMILIES[config.family], config) for config in configs]
    ctas = cluster_m * cluster_n * along_k
    ctas_per_sm = np.array([family.ctas_per_sm(config) for family, config in family_configs], np.float64)
    storing = np.array([family.storing(config) for family, config in family_configs], np.float64)
    cluster, rows, elements = np.stack([cluster_m, cluster_n]), tile * (bytes_a, bytes_b), tile_m * tile_n / along_k
    loaded = rows * tile_k * (_MULTICAST_COST + (1 - _MULTICAST_COST) / cluster[::-1]) * _gather_costs(configs)
    stream = np.flatnonzero([decomposition_of(config).has_shares for config in configs])
    storing_ns = storing * elements * column(configs, _stored_bytes) / (_STORE_BYTES_PER_CYCLE * gpu.clock_ghz)
    dram_gbps = gpu.dram_gbps * np.array([family.dram_share for family, _ in family_configs], np.float64)
    loaded_aligns = np.array([(c.a.align, c.b.align, c.c.align if c.c else 0) for c in configs], np.float64).T
    return {
        "tile_m": tile_m,
        "tile_n": tile_n,
        "tile_k": tile_k,
        "cluster_m": cluster_m,
        "cluster_n": cluster_n,
        "cluster_k": along_k,
        "stages": column(configs, lambda c: c.stages),
        "splits": slices * along_k,
        "bytes_a": bytes_a,
        "bytes_b": bytes_b,
        **covered,
        "cluster_tile": tile * cluster,
        "largest_tile": tile.max(),
        "ctas": ctas,
        "cluster_size": ctas.astype(np.int64),
        "slots": resident_clusters(gpu).take(ctas.astype(np.int64)) * ctas_per_sm,
        "ctas_per_sm": ctas_per_sm if ctas_per_sm.max() > 1 else None,
        "counted_ctas": np.array([family.counted_ctas(config) for family, config in family_configs], np.float64),
        "clusters": slices,  # clusters that K of a tile is split among
        "step_k": slices * along_k * tile_k,  # extent of K that all of these cover in a step
        "stream": stream if stream.size else None,
        "stream_tile": (tile_m * tile_n)[stream],
        "mma_ns": mma_cycles(tile_m, tile_n, column(configs, _multiplied_bytes), gpu) / gpu.clock_ghz,
        "loaded": loaded,
        "loaded_whole": loaded[0] + loaded[1],
        "storing_ns": storing_ns,
        "tile_ns": added_ns,
        "store_ns": storing_ns + added_ns,
        "scattered_ns": elements / (_ELEMENTS_PER_CYCLE * gpu.clock_ghz),
        "stored_align": column(configs, lambda c: 0 if decomposition_of(c).has_second_kernel else c.d.align),
        "loaded_aligns": np.where(swap_ab, loaded_aligns[[1, 0, 2]], loaded_aligns),
        "part_sectors": np.array([family.part_sectors(config) for family, config in family_configs], np.float64),
        **_of_second_kernel(configs, slices),
        "dram_gbps": float(dram_gbps[0]) if (dram_gbps == dram_gbps[0]).all() else dram_gbps,
        "swizzle": column(configs, lambda c: c.scheduler.swizzle_size),
        **_in_raster_order(raster_m, cluster, rows),
        # elements to shared memory per multiply-add, times those out of L2
        "moved": (tile_m + tile_n) * (tile_m / cluster_n + tile_n / cluster_m) / (tile_m * tile_n) ** 2,
    }


def _of_second_kernel(configs: Sequence[GemmConfig], slices: Floats) -> Columns:
    """Return the nanoseconds that the second kernel takes, at least and for each element, and whether there is one."""
    least_ns, element_ns = second_kernel(configs, slices)
    return {"second_ns": least_ns, "second_element_ns": element_ns, "has_second": bool(least_ns.any())}


def _loaded_k(config: GemmConfig) -> int:
    """Return the elements along K of a stage, with all components of split f32."""
    return config.tile.k * config.a.type.components


def _multiplied_bytes(config: GemmConfig) -> float:
    """Return the bytes along K that MMAs multiply of a stage, once for each term of split f32."""
    return len(config.a.type.terms) * config.tile.k * max(config.a.loaded.bits, config.b.loaded.bits) / 8


def _in_raster_order(raster_m: Bools, cluster: Floats, row_bytes: Floats) -> Columns:
    """Return tiles along M and N, CTAs of clusters, and bytes of a tile per element of K, as (2, kernels): across the
    raster order, then along it."""
    places = np.arange(cluster.size).reshape(cluster.shape)
    across, along = np.where(raster_m, row_bytes[::-1], row_bytes)
    return {
        "raster_m": raster_m,
        "raster": np.where(raster_m, places[::-1], places),
        "raster_cluster": np.where(raster_m, cluster[::-1], cluster),
        "across": across,
        "along": along,
    }


STATIC = (
    *("bytes", "tile M", "tile N", "tile K bytes", "cluster M", "cluster N", "cluster K", "stages", "splits"),
    *(
        "slots",
        "MMAs",
        "stores",
        "pingpong",
        "second kernel",
        "stream-K",
        "raster M",
        "gemv",
        "A m-major",
        "B n-major",
    ),
    *("D m-major", "transposed"),
)
"""Inputs of the network that do not depend on the problem: logarithms, then flags."""


def _inputs(configs: Sequence[GemmConfig], columns: Columns) -> Floats:
    named = "bytes_b", "tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "cluster_k", "stages", "splits"
    sizes = [columns[name] for name in (*named, "slots", "mma_ns", "storing_ns")]
    sizes[3] = sizes[3] * columns["bytes_b"]
    flags = [
        column(configs, lambda c: FAMILIES[c.family].takes_turns(c)),
        column(configs, lambda c: decomposition_of(c).has_second_kernel),
        column(configs, lambda c: decomposition_of(c).has_shares),
        columns["raster_m"],
        column(configs, lambda c: FAMILIES[c.family].streams),
        column(configs, lambda c: c.a.major == "mn"),
        column(configs, lambda c: c.b.major == "mn"),
        column(configs, lambda c: c.d.major == "m"),
        column(configs, transposed_operands),
    ]
    return np.concatenate([np.log(np.array(sizes)), np.array(flags)]).T


def _gather_costs(configs: Sequence[GemmConfig]) -> Floats:
    """Return the factors of the loads of A and B, (2, kernels). Those of B beside a narrow A are not the bound."""
    costs = np.ones((2, len(configs)))
    of_a = [config.scheduler.rows == "gathered" and config.scheduler.batching != "ngrouped" for config in configs]
    costs[0, of_a] = _GATHER_COST
    return costs


def _stored_bytes(config: GemmConfig) -> int:
    """Return the bytes that are stored per element of a tile, plus those that are loaded from C."""
    if decomposition_of(config).has_second_kernel:
        return PARTIAL_BYTES
    stores = 2 if config.scheduler.symmetry == "symmetric" else 1
    return (config.c.type.bytes if config.c else 0) + stores * config.d.type.bytes


def resident_clusters(gpu: Gpu) -> Floats:
    """Return how many clusters a GPU holds, with one CTA per SM, by their CTAs: at most 16 (CUDA Programming Guide,
    "Thread Block Clusters")."""
    ctas = np.maximum(np.arange(17), 1)
    large = np.where(ctas <= 4, np.floor(gpu.clusters_of_4 * 4 / ctas), gpu.clusters_of_8)
    return np.maximum(np.where(ctas <= 2, np.floor(gpu.sms / ctas), large), 1)


def _part_of(columns: Columns, members: slice) -> Columns:
    """Return the columns of some kernels; values that are not one number per kernel stay as they are."""
    shape = columns["ctas"].shape
    return {name: x[members] if isinstance(x, np.ndarray) and x.shape == shape else x for name, x in columns.items()}
