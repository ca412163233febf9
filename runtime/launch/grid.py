"""How many CTAs a launch has."""

from __future__ import annotations

from gemmill.library.decompositions import workspace
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.launch import LaunchSpec
from gemmill.library.problem import GemmProblem


def grid_ctas(spec: LaunchSpec, problem: GemmProblem, max_clusters: int, sm_count: int | None = None) -> int:
    """CTAs of a persistent launch: a cluster for each cluster tile, but no more than the GPU holds at a time.

    With ``sm_count``, no more CTAs than that: an SM may hold several, but CTAs spread before they share one.
    """
    size = spec.cluster_ctas
    if sm_count is not None:
        if sm_count < size:
            raise UnsupportedProblemError(f"sm_count is {sm_count}; {spec.entry} runs in clusters of {size} SMs")
        if spec.k_decomposition and spec.k_decomposition.reduction:
            raise UnsupportedProblemError(
                f"sm_count is {sm_count}; the second kernel of {spec.entry}, which sums its slices of K, keeps to no "
                "bound: take a fused or a stream kernel"
            )
        max_clusters = min(max_clusters, sm_count // size)
    tiles = workspace.cluster_tiles(spec, problem)
    units = tiles * (spec.k_decomposition.splits if spec.k_decomposition else 1)
    if units > workspace.INT32_MAX - 2 * max_clusters:  # pingpong looks two strides of the grid ahead
        raise UnsupportedProblemError(
            f"{spec.entry}: {units} output tiles; kernels count up to 2^31: split the problem"
        )
    if problem.batching == "grouped":  # a group begins a tile of its own, and may end one
        begun = problem.m // (spec.tile[0] * spec.cluster[0]) + problem.batch
        tiles = min(tiles, begun * -(-problem.n // (spec.tile[1] * spec.cluster[1])))
    shares = spec.k_decomposition is not None
    clusters = workspace.clusters(spec, problem, tiles, max_clusters) if shares else min(tiles, max_clusters)
    return clusters * size


def is_empty(problem: GemmProblem) -> bool:
    """Whether D has no elements, so that nothing is to be launched."""
    return 0 in (problem.m, problem.n, problem.batch)
