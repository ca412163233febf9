"""Grids and workspaces of kernels whose CTAs share K: the parts of their schedulers that the host needs."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gemmill.library.decompositions.decomposition import DECOMPOSITIONS, reduction_groups
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.launch import KDecomposition, LaunchSpec
from gemmill.library.problem import GemmProblem

INT32_MAX = (1 << 31) - 1
VECTOR = 4
"""Partial sums that the reduction kernel reads at a time. Rows of partial sums are padded to whole vectors."""
PARTIAL_BYTES = 4
FLAG_BYTES = 4
MIN_SHARE = 8
"""Fewest steps along K per cluster in stream-K if there are fewer tiles than clusters. On an H200, adding twice as many
partial sums takes about as long as five steps."""


EXCHANGE_STEPS = 4
"""The cost, in steps along K, that stream-K assumes for passing the sums of a tile to another cluster."""
REDUCTION_THREADS = 256
"""Threads of a CTA of the reduction kernel."""


def reduction_vectors(splits: int) -> int:
    """Vectors that a CTA of the reduction kernel computes. If there are many splits, several threads share a vector."""
    return REDUCTION_THREADS // reduction_groups(splits)


def in_slices(spec: LaunchSpec, slices: int) -> LaunchSpec:
    """The launch facts of a kernel for a number of slices of K; unchanged if the launch does not set it."""
    if (shared := spec.k_decomposition) is None or not DECOMPOSITIONS[shared.name].has_slices:
        return spec
    reduction = shared.reduction and replace(shared.reduction, vectors=reduction_vectors(slices))
    return replace(spec, k_decomposition=replace(shared, splits=slices, reduction=reduction))


class WorkspaceSize(NamedTuple):
    """The workspace of a launch in bytes."""

    buffer: int
    """For partial sums and copies of operands."""
    flags: int


class PartialMatrices(NamedTuple):
    """Extents of the padded, consecutive matrices of partial sums of a split-K kernel, which have the major of D."""

    contiguous: int
    strided: int
    matrices: int
    """The number of matrices: one per split and matrix of the batch, ordered by split."""

    @property
    def elements(self) -> int:
        """The total number of partial sums."""
        return self.contiguous * self.strided * self.matrices


def cluster_tiles(spec: LaunchSpec, problem: GemmProblem) -> int:
    """The number of output tiles of whole clusters. For groups along M, an upper bound: each group counts with all
    M."""
    along_m, along_n = spec.tile[0] * spec.cluster[0], spec.tile[1] * spec.cluster[1]
    return -(-problem.m // along_m) * -(-problem.n // along_n) * problem.batch


def partial_matrices(shared: KDecomposition, problem: GemmProblem) -> PartialMatrices:
    """The matrices of partial sums that a split-K kernel stores."""
    contiguous, strided = (problem.n, problem.m) if problem.d_major == "n" else (problem.m, problem.n)
    return PartialMatrices(-(-contiguous // VECTOR) * VECTOR, strided, shared.splits * problem.batch)


def work_units(spec: LaunchSpec) -> int:
    """Units of work of an output tile: its slices of K in split-K, else one."""
    shared = spec.k_decomposition
    return shared.splits if shared and shared.reduction else 1


def reduction_ctas(spec: LaunchSpec, problem: GemmProblem) -> int:
    """CTAs of the second kernel of a split-K kernel."""
    shared = _k_decomposition(spec)
    assert shared.reduction, f"{spec.entry} has no second kernel"
    vectors = partial_matrices(shared, problem).elements // shared.splits // VECTOR
    if vectors > INT32_MAX:
        raise UnsupportedProblemError(
            f"{spec.entry}: D has {vectors * VECTOR} elements; split-K supports fewer than 2^33: split the problem"
        )
    return -(-vectors // shared.reduction.vectors)


def clusters(spec: LaunchSpec, problem: GemmProblem, tiles: int, max_clusters: int) -> int:
    """Clusters of the persistent grid for ``tiles`` cluster tiles on a GPU that runs ``max_clusters`` at a time.

    Stream-K uses fewer clusters if shares would be so small that adding them takes longer than computing them.
    """
    shared = _k_decomposition(spec)
    if not DECOMPOSITIONS[shared.name].has_shares:
        return min(tiles * work_units(spec), max_clusters)
    steps = -(-problem.k // shared.tile_k)
    if 2 * max_clusters * steps > INT32_MAX:
        raise UnsupportedProblemError(
            f"{spec.entry}: K is {problem.k}; its number of steps exceeds the 2^31 that stream-K supports"
        )
    return min(max(tiles, tiles * steps // MIN_SHARE), max_clusters)


def workspace_size(spec: LaunchSpec, problem: GemmProblem, grid: int) -> WorkspaceSize:
    """The workspace of a launch of ``grid`` clusters."""
    shared = _k_decomposition(spec)
    if DECOMPOSITIONS[shared.name].has_second_kernel:
        return WorkspaceSize(partial_matrices(shared, problem).elements * PARTIAL_BYTES, 0)
    return WorkspaceSize(grid * shared.tile_bytes, grid * shared.tile_flags * FLAG_BYTES)


def _k_decomposition(spec: LaunchSpec) -> KDecomposition:
    assert spec.k_decomposition, f"{spec.entry} sums all of K in one CTA"
    return spec.k_decomposition
