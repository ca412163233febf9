"""The waves in which the clusters of a kernel run a problem on a GPU, for a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gemmill.library.anatomy.raster import Matrix, Waves
from gemmill.library.arch import Gpu
from gemmill.library.config.batchings import GROUPED_EXTENT
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel, check_slices
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.model import analytic
from gemmill.runtime.select.cost.table import FeatureTable, resident_clusters
from gemmill.runtime.select.kernels.faults import is_swapped


def waves_of(
    config: GemmConfig, problem: GemmProblem, gpu: Gpu, group_sizes: Sequence[int] = (), slices: int = 1
) -> Waves:
    """How the clusters of a kernel fill a GPU on a problem, if an SM holds one CTA.

    Args:
        group_sizes: the extent of each group, for a problem with groups; empty for other problems.
        slices: slices of K of the launch of a split-K kernel; 1 for other kernels.

    Raises:
        UnsupportedProblemError: the kernel cannot run the problem.
        ConfigError: the kernel cannot have this number of slices.
    """
    check_slices(config, slices)
    swapped = is_swapped(config, problem)
    table = FeatureTable.of([(SlicedKernel(kernel_name(config), slices), config, swapped)], gpu)
    m, n = (problem.n, problem.m) if swapped else (problem.m, problem.n)
    work = analytic(table, problem, gpu)
    units, slots = int(work["clusters"][0]), int(resident_clusters(gpu)[table.columns["cluster_size"][0]])
    waves = Waves(str(problem), gpu.name, [Matrix(m, n, problem.k)], slots, units, slices, swapped=swapped)
    if not group_sizes:
        return waves
    along = GROUPED_EXTENT[problem.batching]
    groups = [
        Matrix(size if along == "m" else m, size if along == "n" else n, size if along == "k" else problem.k)
        for size in group_sizes
    ]
    waves = replace(waves, matrices=groups, grouped=True)
    return replace(waves, units=int(table.columns["clusters"][0]) * waves.tiles(config))
