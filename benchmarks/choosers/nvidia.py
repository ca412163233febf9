"""nvMatmulHeuristics, NVIDIA's model of CUTLASS kernels, as a chooser. It needs no GPU.

It returns a CTA tile, a cluster, stages and slices of K; the nearest candidate stands for its kernel. Its warp tile,
its instruction, and its order of CTAs are ignored: CUTLASS 3 derives the first two, and the last rarely matters here.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from benchmarks.choosers.cases import Answer, Case, KernelProperties

from gemmill.library.errors import InstallationError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.kernels.faults import is_aligned

COUNT = 16
"""Configurations to request; several may differ only in what is ignored here."""
GPUS = {"NVIDIA H100 80GB HBM3": "H100_SXM", "NVIDIA H100 PCIe": "H100_PCIE", "NVIDIA H200": "H200_SXM"}
"""Its names of GPUs."""
TYPES = {"bf16": "T", "f16": "H", "f32": "S", "s8": "B", "s32": "I", "e4m3": "Q", "e5m2": "R"}
"""Its letters of types: those of A and B, of the accumulator and of D; those of fp8 are of A, B, C, accumulator, D."""


def nvidia(case: Case) -> Answer:
    """Its configurations in its order; None where it has no name for the GPU, the types or the scales, and for
    operands that TMA cannot load, since its problems have no alignment."""
    precision = _precision(case.problem)
    p = case.problem
    if case.gpu not in GPUS or precision is None or not is_aligned(p):
        return None
    model, layouts = _model(GPUS[case.gpu])
    problem = model.makeNvMatmulHeuristicsProblem(p.m, p.n, p.k, layouts[_layout(p)], p.batch)
    kernels = [found["kernel"] for found in model.get(problem, COUNT, precision=precision)]
    wanted = [
        KernelProperties((x.cta_tile_m, x.cta_tile_n, x.cta_tile_k), (x.cluster_m, x.cluster_n), x.stages, x.split_k)
        for x in kernels
        if min(x.cta_tile_m, x.cta_tile_n, x.cta_tile_k, x.cluster_m, x.cluster_n, x.stages, x.split_k) > 0
    ]
    return list(dict.fromkeys(wanted)) or None


def missing() -> str:
    """Why the library cannot be used, and the way out; empty if it can."""
    try:
        importlib.import_module("nvMatmulHeuristics")
    except (ImportError, OSError) as error:
        return f"chooser nvidia needs nvMatmulHeuristics ({error}): pip install nvidia-matmul-heuristics"
    return ""


@cache
def _model(gpu: str) -> tuple[Any, Any]:
    """Its model of a GPU, and its names of layouts."""
    if says := missing():
        raise InstallationError(says)
    library = importlib.import_module("nvMatmulHeuristics")
    flags = library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING
    hardware = library.NvMatmulHeuristicsNvidiaGpu[gpu]
    model = library.NvMatmulHeuristicsInterfaceEx(library.NvMatmulHeuristicsTarget.CUTLASS3, flags=flags, gpu=hardware)
    return model, library.NvMatmulHeuristicsMatmulLayout


def _precision(problem: GemmProblem) -> str | None:
    """Its name of the types, such as ``TST`` or ``QQTST``; None where it has none."""
    types = problem.a_dtype, problem.accumulator, problem.d_dtype
    if types == ("tf32", "f32", "f32"):
        return "SFS"
    if problem.a_dtype == "f32" or problem.a_scale != "none" or not {*types} <= {*TYPES}:
        return None
    operand, accumulator, d = (TYPES[dtype] for dtype in types)
    if operand in "QR":
        return f"{operand}{operand}{'T' if d in 'QR' else d}{accumulator}{d}"  # it has no 8-bit C
    return f"{operand}{accumulator}{d}"


def _layout(problem: GemmProblem) -> str:
    """Its name of the majors: in a row-major GEMM, operands that are not row-major are transposed, and likewise in a
    column-major one."""
    is_row = problem.d_major == "n"
    a, b = (problem.a_major == "k") != is_row, (problem.b_major == "k") == is_row
    return f"{'T' if a else 'N'}{'T' if b else 'N'}_{'ROW' if is_row else 'COL'}_MAJOR"
