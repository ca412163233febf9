"""What kernels are compared with: the same GEMM by other libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from gemmill.library.problem import GemmProblem
from gemmill.profiler.baselines import cublas, cublaslt, triton_matmul
from gemmill.profiler.baselines.cublas import Baseline
from gemmill.profiler.measure.operands import OperandSet

Prepare = Callable[[GemmProblem, Sequence[OperandSet]], Baseline | None]
"""Prepares a GEMM on each operand set; None where the library has none of these types. GemmillError or RuntimeError
where it then lacks this one, also at the first launch."""

CUBLAS = "cublas"
"""Stands where a kernel's name would: cuBLAS through PyTorch."""
PER_TENSOR = "cublas-per-tensor"
"""The same for fp8 operands of which each has one scale, in place of block scales."""
CUBLASLT = "cublaslt"
"""cuBLASLt with the first algorithm of its heuristic, block scales included."""
CUBLASLT_TUNED = "cublaslt-tuned"
"""cuBLASLt with the fastest of the algorithms that its heuristic puts first."""
TRITON = "triton"
"""A persistent Triton kernel with the fastest of a handful of tiles."""

BASELINES: Mapping[str, Prepare] = MappingProxyType(
    {
        CUBLAS: cublas.unscaled,
        PER_TENSOR: cublas.per_tensor,
        CUBLASLT: cublaslt.first,
        CUBLASLT_TUNED: cublaslt.tuned,
        TRITON: triton_matmul.tuned,
    }
)
"""All baselines by name."""
THROUGH_TORCH = (CUBLAS, PER_TENSOR)
"""Those that ratios in records are to; a problem has one of them at most."""


def absent() -> dict[str, str]:
    """Baselines that cannot be had in this process, and why."""
    lacking = {cublaslt.missing(): (CUBLASLT, CUBLASLT_TUNED), triton_matmul.missing(): (TRITON,)}
    return {name: why for why, names in lacking.items() if why for name in names}
