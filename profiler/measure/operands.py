"""Random operands of a problem, enough sets of them that a launch never finds its operands in the L2 cache.

torch is treated as ``Any`` and imported where it is needed: everything else of gemmill works without it.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gemmill.library.dtypes import DTYPES
from gemmill.library.errors import DeviceError
from gemmill.library.extras import install
from gemmill.library.problem import GemmProblem, upconverts_a

BETA = 1.0
"""Beta of every measurement with a C; alpha is :func:`natural_alpha`."""
ROTATED_BYTES = 256 << 20
"""Bytes that all sets together exceed: more than twice the L2 of any Hopper (60 MB), with room to spare."""
MAX_SETS = 1024
"""Most sets: a problem below 256 KB is bound by its launch, and finding it in L2 is how it is used."""


def torch() -> Any:
    """The module ``torch``.

    Raises:
        DeviceError: it is not installed.

    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise DeviceError(
            f"profiling needs PyTorch ({error}); {install('torch')}, which goes with CUDA 13 (extra cu13)"
        ) from error


def torch_dtype(name: str) -> Any:
    """torch's dtype for one of ours."""
    return getattr(torch(), DTYPES[name].torch)


@dataclass(frozen=True, slots=True)
class OperandSet:
    """Tensors of one launch: A (M, K), B (K, N), C and D (M, N), each with a leading batch extent where batch > 1."""

    a: Any
    b: Any
    c: Any
    """None for a problem without C."""
    d: Any
    a_scale: Any = None
    """Block scales of A in float32, an element for each block of A in the order of A's extents, contiguous along M;
    None without. Of narrow A: scales of groups in B's dtype."""
    b_scale: Any = None
    """The same of B: along K first, then along N."""
    a_zero: Any = None
    """Zero points of the groups of narrow A."""


def matrix(rows: int, columns: int, batch: int, row_major: bool, dtype: str, device: Any) -> Any:
    """An uninitialised matrix (rows, columns), or (batch, rows, columns), contiguous along columns or along rows.

    4-bit elements lie two in a byte along the contiguous extent.
    """
    extents = (rows, columns) if row_major else (columns, rows)
    extents = extents[0], -(-extents[1] * min(8, DTYPES[dtype].bits) // 8)
    shape = extents if batch == 1 else (batch, *extents)
    tensor = torch().empty(shape, dtype=torch_dtype(dtype), device=device)
    return tensor if row_major else tensor.transpose(-1, -2)


def fill_random(tensor: Any, dtype: str, generator: Any) -> None:
    """Standard normal floats; integers uniform over all of 8 bits, or over 21 of 32 so that sums with them fit.

    Never zeros or small integers: they draw less power and run faster than real data.
    """
    if not DTYPES[dtype].is_integer:
        # torch draws no fp8; an fp8 number keeps its relative precision from 2^-6 to 448 and more.
        fp8 = DTYPES[dtype].bits == 8
        drawn = torch().empty_like(tensor, dtype=torch().float32) if fp8 else tensor
        drawn.normal_(generator=generator)
        if fp8:
            tensor.copy_(drawn)
    elif DTYPES[dtype].bits == 32:
        tensor.random_(-(1 << 20), (1 << 20) + 1, generator=generator)
    else:
        info = torch().iinfo(tensor.dtype)
        tensor.random_(info.min, info.max + 1, generator=generator)


def poison(tensor: Any) -> None:
    """Fill with what no kernel writes: NaN, or integers of bytes 0xA5, which an 8-bit D holds at one place in 256."""
    if tensor.dtype.is_floating_point:
        tensor.fill_(math.nan)
    else:
        bits = torch().iinfo(tensor.dtype).bits
        pattern = int.from_bytes(b"\xa5" * (bits // 8), "little", signed=tensor.dtype.is_signed)
        tensor.fill_(pattern)


def random_scales(shape: tuple[int, ...], generator: Any, device: Any) -> Any:
    """Block scales from 1/2 to 2, none like another."""
    return torch().empty(shape, dtype=torch().float32, device=device).uniform_(-1, 1, generator=generator).exp2_()


def random_zeros(shape: tuple[int, ...], generator: Any, device: Any) -> Any:
    """Zero points about the middle of 4 unsigned bits."""
    return torch().empty(shape, dtype=torch().float32, device=device).uniform_(4, 12, generator=generator).round_()


def scale_block(scale: str) -> tuple[int, int]:
    """Elements along M (of A) or N (of B) and along K that share a block scale, from its name: ``128x128``."""
    across, along_k = scale.removesuffix("z").split("x")
    return int(across), int(along_k)


def scale_shape(problem: GemmProblem, operand: str) -> tuple[int, ...]:
    """Extents of the block scales of A or B: ``(M blocks, K blocks)`` or ``(K blocks, N blocks)``, batch in front."""
    scale, extent = (problem.a_scale, problem.m) if operand == "a" else (problem.b_scale, problem.n)
    across, along_k = scale_block(scale)
    blocks = -(-extent // across), -(-problem.k // along_k)
    batch = () if problem.batch == 1 else (problem.batch,)
    return (*batch, *(blocks if operand == "a" else blocks[::-1]))


def set_bytes(problem: GemmProblem) -> int:
    """Bytes of A, B, C, D and block scales."""
    m, n, k = problem.m, problem.n, problem.k
    outputs = [problem.d_dtype] + ([problem.c_dtype] if problem.c_dtype else [])
    bits = m * k * DTYPES[problem.a_dtype].bits + k * n * DTYPES[problem.b_dtype].bits
    bits += sum(m * n * DTYPES[dtype].bits for dtype in outputs)
    scaled = [o for o, scale in (("a", problem.a_scale), ("b", problem.b_scale)) if scale != "none"]
    return problem.batch * bits // 8 + sum(4 * math.prod(scale_shape(problem, operand)) for operand in scaled)


def set_count(problem: GemmProblem) -> int:
    """Operand sets that together exceed :data:`ROTATED_BYTES`: at least two, at most :data:`MAX_SETS`."""
    return min(MAX_SETS, max(2, ROTATED_BYTES // max(1, set_bytes(problem)) + 1))


def make_operands(problem: GemmProblem, seed: int, device: Any = "cuda", sets: int | None = None) -> list[OperandSet]:
    """Sets of random operands (:func:`fill_random`); every D is poisoned."""
    generator = torch().Generator(device=device).manual_seed(seed)
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch

    def scales(operand: str) -> Any:
        if upconverts_a(problem.a_dtype, problem.b_dtype):
            return groups(random_scales)
        shape = scale_shape(problem, operand)
        if operand == "b":
            return random_scales(shape, generator, device)
        # Neighbours along M, as cuBLAS and DeepGEMM demand: a stage's are then read in whole sectors.
        return random_scales((*shape[:-2], shape[-1], shape[-2]), generator, device).mT

    def groups(draw: Callable[..., Any]) -> Any:
        shape = scale_shape(problem, "a")
        stored = draw((*shape[:-2], shape[-1], shape[-2]), generator, device)
        return stored.to(torch_dtype(problem.b_dtype)).mT

    def one() -> OperandSet:
        a = matrix(m, k, batch, problem.a_major == "k", problem.a_dtype, device)
        b = matrix(k, n, batch, problem.b_major == "mn", problem.b_dtype, device)
        d = matrix(m, n, batch, problem.d_major == "n", problem.d_dtype, device)
        c = None
        if problem.c_dtype is not None:
            c = matrix(m, n, batch, problem.c_major == "n", problem.c_dtype, device)
        for tensor, dtype in ((a, problem.a_dtype), (b, problem.b_dtype), (c, problem.c_dtype)):
            if tensor is not None and dtype is not None:
                fill_random(tensor, dtype, generator)
        poison(d)
        return OperandSet(
            a,
            b,
            c,
            d,
            scales("a") if problem.a_scale != "none" else None,
            scales("b") if problem.b_scale != "none" else None,
            groups(random_zeros) if problem.a_scale.endswith("z") else None,
        )

    return [one() for _ in range(set_count(problem) if sets is None else sets)]


def natural_alpha(problem: GemmProblem) -> float:
    """1, or the power of two that brings the sums of random integers to about 64 where D is too narrow for them."""
    if not DTYPES[problem.accumulator].is_integer or problem.d_dtype not in ("f16", "s8", "u8", "e4m3", "e5m2"):
        return 1.0
    # Uniform 8-bit integers have a root mean square of 74 with a sign; without one their sums grow along K.
    typical = problem.k * 128**2 if problem.a_dtype == problem.b_dtype == "u8" else math.sqrt(problem.k) * 74**2
    return 2.0 ** (6 - math.ceil(math.log2(max(1.0, typical))))


def plan_options(problem: GemmProblem, operands: OperandSet) -> dict[str, Any]:
    """What tells :func:`gemmill.plan` of a problem beside its tensors A, B, C and D."""
    return {
        "accumulator": problem.accumulator,
        "tf32": problem.a_dtype == "tf32",
        "fast_accumulation": problem.promote == 0,
        "a_scale": operands.a_scale,
        "b_scale": operands.b_scale,
        "a_zero": operands.a_zero,
        "a_dtype": problem.a_dtype if DTYPES[problem.a_dtype].bits < 8 else None,
    }
