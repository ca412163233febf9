"""The values of ``bits=``: which arithmetic they require of a call, and which kernels have it.

A required arithmetic follows from the types, N, K, the batching and the epilogue alone. It does not depend on M, the
size of the batch, layouts, alignments, the GPU model or the measurements, so all calls that differ only in these give
the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.scales import scales_sums
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.decompositions.sliced_kernel import SlicedKernel, in_each_number
from gemmill.library.dtypes import FP8, SPLIT
from gemmill.library.epilogues.parse import scales_blocks
from gemmill.library.errors import ConfigError, ProblemError, UnsupportedProblemError
from gemmill.library.problem import GemmProblem, is_mixed

if TYPE_CHECKING:
    from gemmill.library.arithmetic import Arithmetic

ANY, INVARIANT, CUBLAS = "any", "invariant", "cublas"
BITS: Mapping[str, str] = MappingProxyType(
    {
        ANY: "those of the fastest kernel",
        INVARIANT: "the same for every M and batch",
        CUBLAS: "those of cuBLAS without split-K",
    }
)
"""The values that are no names of an arithmetic, with the bits that D then has."""
_OF_CUBLAS = ("k16", "k8", "k32", "exact")
"""Arithmetics that gave the bits of cuBLAS on an H200."""
_EQUAL = ("bf16", "f16", "tf32", "f64")
"""Types that tensor cores multiply only by the same type."""
_MIXED = "k16w4@512"
"""What ``invariant`` requires where one operand is upconverted to 16 bits; to e4m3, only the step differs. By the model
of an H200, over 280 problems of 1 to 4,096 rows, it takes 1.20 times as long as any arithmetic in the geometric mean,
at most 2.5; k16 takes 1.40, at most 6.5."""
_SLICED = ("k16", "k8", "k32")
"""Arithmetics that kernels with slices of K have for every alignment and epilogue, and for operands that are contiguous
along one extent."""
_SLICES = ((768, 2048, 4), (2048, 4096, 2))
"""Rows (largest N, least K, slices of K) for ``invariant``; the first that fits decides, else K is in one slice. By the
model of an H200, over 104 pairs of N and K up to 28,672 and 1 to 8,192 rows, the fastest kernel with these slices takes
1.04 times as long as the fastest kernel in bf16, 1.02 in e4m3 and 1.07 in tf32, in the geometric mean. Rows with 8
slices gain 0.01, but few kernels for unaligned operands have them."""


def invariant_slices(problem: GemmProblem) -> int:
    """Return the slices of K for ``invariant``, by type, N and K of a matrix: few columns with a deep K need them to
    be fast with few rows. In tf32, whose products take twice as long, twice the K decides."""
    k = -(-problem.k // 8) * 8  # PyTorch's Inductor pads K to a multiple of 8 for some M and not for others
    k *= 2 if problem.a_dtype == "tf32" else 1
    return next((slices for most_n, least_k, slices in _SLICES if problem.n <= most_n and k >= least_k), 1)


def fault_of(bits: object) -> str:
    """Return what is wrong with a value of ``bits=``, as a sentence for an error; empty if it is valid."""
    if isinstance(bits, str) and bits in BITS:
        return ""
    from gemmill.library.arithmetic import parse_arithmetic  # programs that require none start faster

    try:
        arithmetic = parse_arithmetic(bits) if isinstance(bits, str) else None
    except ConfigError:
        arithmetic = None
    if arithmetic is None:
        return (
            f"bits is {bits!r:.80}; it must be {', '.join(map(repr, BITS))} or the name of an arithmetic, such as "
            "'k16' or 'k16/8' (8 slices of K); gemmill explain names that of a kernel"
        )
    if not arithmetic.is_fixed:
        return (
            f"bits is {bits!r}; in stream-K, or with S slices, the order of sums can change with M: name an arithmetic "
            "with a fixed number of slices, such as 'k16' or 'k16/4'"
        )
    return ""


def required_arithmetic(bits: str, problem: GemmProblem, arch: str = "sm90a") -> Arithmetic | None:
    """Return the arithmetic that a value of ``bits=`` requires for a problem; None for ``any``.

    Args:
        bits: the value.
        problem: the problem; only one with a narrow A may be the transpose of a call.
        arch: a target of the GPU. Where the bits of its tensor cores are not known to be those of sm_90, the arithmetic
            of ``invariant`` names it.

    Raises:
        ProblemError: ``bits`` has an invalid value.
        UnsupportedProblemError: the bits of cuBLAS are not known for the types.
    """
    if fault := fault_of(bits):
        raise ProblemError(fault)
    if bits == ANY:
        return None
    # Programs that require none start faster.
    from gemmill.library.arithmetic import Arithmetic, parse_arithmetic, target_of

    if bits not in BITS:
        return parse_arithmetic(bits)
    step, promote = _step(problem)
    whole = Arithmetic(step, promote, target=target_of(step, arch))
    if bits == CUBLAS:
        if str(whole) not in _OF_CUBLAS:
            raise UnsupportedProblemError(
                f"bits is 'cublas', but how cuBLAS sums is not known for {problem}: it has arithmetics "
                f"{', '.join(_OF_CUBLAS)} for some types, and these would need {whole}. Pass bits='invariant', or "
                "leave out bits"
            )
        return whole
    if is_mixed(problem.a_dtype, problem.b_dtype):
        mixed = parse_arithmetic(_MIXED)
        return replace(whole, warps=mixed.warps, unit=mixed.unit)
    if str(whole) not in _SLICED or problem.batching not in ("strided", "nested") or scales_blocks(problem.epilogue):
        return whole
    return replace(whole, slices=invariant_slices(problem))


def kernels_of(name: str, config: GemmConfig, arithmetic: Arithmetic | None) -> list[SlicedKernel]:
    """Return a kernel with each number of slices of K that the selector considers for an arithmetic; None: for any.
    Where any order will do, none of a decomposition that exists for its order."""
    decomposition = decomposition_of(config)
    if arithmetic is None or arithmetic.step == "exact":
        kernels = [] if decomposition.is_for_bits else in_each_number(name, config)
    elif decomposition.has_slices:  # in one slice, kernels without slices have the same bits
        slices = arithmetic.slices
        kernels = [SlicedKernel(name, slices)] if slices > 1 and slices in decomposition.slices else []
    else:
        kernels = [SlicedKernel(name)]
    if arithmetic is None:
        return kernels
    from gemmill.library.arithmetic import arithmetic_of  # programs that require none start faster

    return [kernel for kernel in kernels if arithmetic_of(config, kernel.slices) == arithmetic]


def _step(problem: GemmProblem) -> tuple[str, int]:
    """Return the step with which kernels for the types of a problem sum, and its promotion."""
    from gemmill.library.arithmetic import tensor_core_step  # programs that require none start faster

    a, b = problem.a_dtype, problem.b_dtype
    step, are_fp8 = tensor_core_step(a, b, problem.accumulator), a in FP8 and b in FP8
    if step == "exact" or are_fp8 or is_mixed(a, b) or (a == b and a in (*_EQUAL, *SPLIT)):
        return step, problem.promote if are_fp8 or a in SPLIT or scales_sums(a, b) else 0
    return "fma", 0
