"""The same GEMM by a persistent Triton kernel, with the fastest of several tiles.

Triton, which comes with PyTorch, is typed as ``Any`` and imported only where needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from gemmill.library.dtypes import DTYPES, FP8
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.extras import install
from gemmill.library.problem import GemmProblem
from gemmill.profiler.baselines.cublas import Baseline, lacking
from gemmill.profiler.measure.graph_timing import Launch, fastest
from gemmill.profiler.measure.operands import OperandSet, torch

TILE_K_BYTES = 128
"""K of a stage in bytes: the widest swizzle of TMA."""
TILES = (
    # M, N, warps, stages
    (128, 256, 8, 3),
    (128, 256, 8, 2),
    (256, 128, 8, 3),
    (128, 128, 8, 4),
    (64, 256, 4, 4),
    (64, 128, 4, 5),
    (64, 64, 4, 6),
)
"""The candidate tiles."""


def missing() -> str:
    """Why Triton is not available in this process; empty if it is."""
    try:
        importlib.import_module("gemmill.profiler.baselines.triton_kernel")
        importlib.import_module("triton.tools.tensor_descriptor")
    except ImportError as error:
        return f"cannot import Triton ({error}); {install('torch')}"
    return "" if torch().cuda.get_device_capability() >= (9, 0) else "its kernel requires TMA (Hopper or newer)"


def tuned(problem: GemmProblem, operands: Sequence[OperandSet]) -> Baseline | None:
    """The kernel with the fastest tile, on each operand set; None if the kernel does not support the problem.

    It supports bf16, f16 and 8-bit types with 32-bit accumulators, and fp8 with fast accumulation. A and B must be
    K-major; C and batches are not supported.

    Raises:
        UnsupportedProblemError: rows are not multiples of 16 bytes, no tile fits, or Triton cannot compile the kernel.
    """
    a, d = problem.a_dtype, problem.d_dtype
    exact, fp8 = a == "s8", a in FP8
    if (
        lacking(problem)
        or a != problem.b_dtype
        or not (exact or fp8 or a in ("bf16", "f16"))
        or problem.accumulator != ("s32" if exact else "f32")
        or d not in (("s32",) if exact else ("bf16", "f16", "f32") if fp8 else (a, "f32"))
        or (problem.a_major, problem.b_major) != ("k", "k")
        or (problem.c_dtype, problem.batch, problem.promote, problem.a_scale) != (None, 1, 0, "none")
    ):
        return None
    if min(problem.a_align, problem.b_align, problem.d_align) < 16:
        raise UnsupportedProblemError(f"{problem}: TMA requires rows of a multiple of 16 bytes")
    triton = importlib.import_module("triton")
    launches: list[Launch] = []
    for tile in TILES:
        launch = _launch(problem, operands, *tile)
        try:
            launch(0)
        except triton.OutOfResources:  # shared memory; a 32-bit D needs more
            continue
        except triton.TritonError as error:
            says = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise UnsupportedProblemError(f"Triton cannot compile the kernel for {problem}: {says}") from None
        launches.append(launch)
    if not launches:
        raise UnsupportedProblemError(f"no tile of the Triton kernel fits {problem}")
    return Baseline(problem, operands, launches[fastest(launches, problem, len(operands))])


def arguments(problem: GemmProblem, operands: OperandSet) -> tuple[Any, Any, Any]:
    """The operands of the kernel, both (rows, K), and its output; for an M-major D, it computes D^T = B^T A^T."""
    left, right, d = operands.a, operands.b.mT, operands.d
    return (left, right, d) if problem.d_major == "n" else (right, left, d.mT)


def _launch(
    problem: GemmProblem, operands: Sequence[OperandSet], tile_m: int, tile_n: int, warps: int, stages: int
) -> Launch:
    kernel = importlib.import_module("gemmill.profiler.baselines.triton_kernel").multiply
    descriptor = importlib.import_module("triton.tools.tensor_descriptor").TensorDescriptor.from_tensor
    tile_k = TILE_K_BYTES // DTYPES[problem.a_dtype].bytes
    blocks = [tile_m, tile_k], [tile_n, tile_k], [tile_m, tile_n]
    descriptors = [
        [descriptor(tensor, block) for tensor, block in zip(arguments(problem, tensors), blocks, strict=True)]
        for tensors in operands
    ]
    (m, _), (n, k) = (tensor.shape for tensor in arguments(problem, operands[0])[:2])
    sms = torch().cuda.get_device_properties(operands[0].d.device).multi_processor_count
    programs = min(sms, -(-m // tile_m) * -(-n // tile_n))

    def launch(index: int) -> None:
        kernel[(programs,)](*descriptors[index], m, n, k, tile_m, tile_n, num_warps=warps, num_stages=stages)

    return launch
