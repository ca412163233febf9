"""All baselines: the same GEMM by other libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from gemmill.library.problem import GemmProblem
from gemmill.profiler.baselines import cublas, cublaslt, triton_matmul
from gemmill.profiler.baselines.cublas import Baseline
from gemmill.profiler.measure.operands import OperandSet

Prepare = Callable[[GemmProblem, Sequence[OperandSet]], Baseline | None]
"""Prepares a GEMM on each operand set; None if the library does not support the types. If it does not support the
shape, it raises GemmillError or RuntimeError, possibly at the first launch."""

CUBLAS = "cublas"
"""cuBLAS through PyTorch."""
PER_TENSOR = "cublas-per-tensor"
"""cuBLAS through PyTorch, for fp8 operands with one scale per tensor instead of block scales."""
CUBLASLT = "cublaslt"
"""cuBLASLt with the first algorithm of its heuristic; supports block scales."""
CUBLASLT_TUNED = "cublaslt-tuned"
"""cuBLASLt with the fastest of the first algorithms of its heuristic."""
TRITON = "triton"
"""A persistent Triton kernel with the fastest of several tiles."""

BASELINES: Mapping[str, Prepare] = MappingProxyType(
    {
        CUBLAS: cublas.unscaled,
        PER_TENSOR: cublas.per_tensor,
        CUBLASLT: cublaslt.first,
        CUBLASLT_TUNED: cublaslt.tuned,
        TRITON: triton_matmul.tuned,
    }
)
"""All baselines by name. The names stand in records in place of a kernel's name."""
THROUGH_TORCH = (CUBLAS, PER_TENSOR)
"""The baselines that ratios in records refer to; at most one of them applies to a problem."""


def absent() -> dict[str, str]:
    """Baselines that are not available in this process, and why."""
    lacking = {cublaslt.missing(): (CUBLASLT, CUBLASLT_TUNED), triton_matmul.missing(): (TRITON,)}
    return {name: why for why, names in lacking.items() if why for name in names}
