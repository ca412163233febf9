"""What nvMatmulHeuristics, NVIDIA's model of GEMM kernels, would take of a set of kernels.

It names tiles, clusters, stages and splits of kernels as CUTLASS has them; the kernel of the set that is most like its
answer stands for it. The library works without a GPU. It is treated as ``Any`` and imported where it is needed.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Mapping
from typing import Any

from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.extras import install
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.kernels.faults import needs_swap

ASKED = 16
"""Configurations that are asked for, the best first."""

_GPUS = {
    "NVIDIA A100": "A100_SXM_80GB",
    "NVIDIA H20": "H20_SXM",
    "NVIDIA H100": "H100_SXM",
    "NVIDIA H100 NVL": "H100_NVL",
    "NVIDIA H100 PCIe": "H100_PCIE",
    "NVIDIA H200": "H200_SXM",
}
"""Its names of GPUs, by how the driver's begin."""
_LETTERS = {"bf16": "T", "f16": "H", "f32": "S", "f64": "D", "s8": "B", "u8": "B", "s32": "I", "e4m3": "Q", "e5m2": "R"}
"""Its names of types (``nvMatmulHeuristics.h``, "Supported precisions")."""


def missing() -> str:
    """Why nvMatmulHeuristics cannot be asked; empty where it can."""
    try:
        importlib.import_module("nvMatmulHeuristics")
    except (ImportError, OSError) as error:
        return f"nvMatmulHeuristics cannot be imported ({error}); {install('heuristics')}"
    return ""


@functools.cache
def _model(gpu: str) -> Any:
    library = importlib.import_module("nvMatmulHeuristics")
    return library.NvMatmulHeuristicsInterfaceEx(
        library.NvMatmulHeuristicsTarget.CUTLASS3,
        flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=library.NvMatmulHeuristicsNvidiaGpu[gpu],
    )


def precision(problem: GemmProblem) -> str | None:
    """Its name for the types of a problem, as ``TST`` or ``QQTST``; None where it has none."""
    types = problem.a_dtype, problem.b_dtype, problem.accumulator, problem.d_dtype
    if types == ("tf32", "tf32", "f32", "f32"):
        return "SFS"
    if not all(dtype in _LETTERS for dtype in types) or "u8" in types[:2]:
        return None
    a, b, sums, d = (_LETTERS[dtype] for dtype in types)
    if {a, b} <= {"Q", "R"}:
        return f"{a}{b}{'T' if d in 'QR' else d}{sums}{d}"  # with C in bf16 where D is of 8 bits
    return f"{a}{sums}{d}" if a == b else None


def layout(problem: GemmProblem) -> str:
    """Its name for the majors of a problem. A row-major GEMM transposes what is not, a column-major one what is."""
    rows = problem.d_major == "n"
    a, b = (problem.a_major == "k") != rows, (problem.b_major == "k") == rows
    return f"{'T' if a else 'N'}{'T' if b else 'N'}_{'ROW' if rows else 'COL'}_MAJOR"


def heuristic_pick(configs: Mapping[str, GemmConfig], problem: GemmProblem, gpu: str) -> str | None:
    """The kernel that nvMatmulHeuristics would take for a problem; None where it does not know GPU, types or kernels.

    The first of its configurations of which there is a kernel with the same tile, cluster and splits counts, or else
    the kernel that is nearest to its first; among equals the first of ``configs``, pingpong or cooperative.

    Args:
        configs: kernels by name.
        problem: what they are to solve.
        gpu: name of the GPU as the driver reports it.
    """
    prefix = max((name for name in _GPUS if gpu.startswith(name)), key=len, default=None)
    types = precision(problem)
    if prefix is None or types is None or problem.a_scale != "none" or problem.batching != "strided":
        return None
    swapped = {name: needs_swap(config, problem) for name, config in configs.items()}
    offered = {name: _figures(configs[name], bool(swap)) for name, swap in swapped.items() if swap is not None}
    if not offered:
        return None
    model, order = _model(_GPUS[prefix]), importlib.import_module("nvMatmulHeuristics").NvMatmulHeuristicsMatmulLayout
    asked = model.makeNvMatmulHeuristicsProblem(problem.m, problem.n, problem.k, order[layout(problem)], problem.batch)
    answers = [_answer(found["kernel"]) for found in model.get(asked, ASKED, precision=types)]
    answers = [answer for answer in answers if min(answer) > 0]
    if not answers:
        return None
    wanted = next((a for a in answers if any(own[:_SAME] == a[:_SAME] for own in offered.values())), answers[0])
    return min(offered, key=lambda name: _distance(offered[name], wanted))


_SAME = 5
"""So many of the figures must be equal for a kernel to be what was asked for."""
_Figures = tuple[int, int, int, int, int, int, int]
"""Tile M and N, cluster M and N, splits of K; tile K, stages."""


def _figures(config: GemmConfig, swapped: bool) -> _Figures:
    """What tells kernels apart, in terms of a problem that they may solve transposed."""
    tile, cluster = (config.tile.m, config.tile.n), (config.cluster.m, config.cluster.n)
    if swapped:
        tile, cluster = tile[::-1], cluster[::-1]
    # Stream-K divides K otherwise: as unlike any number of splits as can be.
    splits = 1 << 10 if decomposition_of(config).has_shares else config.scheduler.splits
    return *tile, *cluster, splits, config.tile.k, config.stages


def _answer(kernel: Any) -> _Figures:
    tile, cluster = (kernel.cta_tile_m, kernel.cta_tile_n), (kernel.cluster_m, kernel.cluster_n)
    return *tile, *cluster, kernel.split_k, kernel.cta_tile_k, kernel.stages


def _distance(one: _Figures, other: _Figures) -> tuple[float, float]:
    """How unlike two are, as powers of two by which figures differ: those that must be equal first."""
    apart = [abs(math.log2(a / b)) for a, b in zip(one, other, strict=True)]
    return sum(apart[:_SAME]), sum(apart[_SAME:])
