"""Random operands of a problem, enough sets of them that a launch never finds its operands in the L2 cache.

torch is treated as ``Any`` and imported where it is needed: everything else of gemmill works without it.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from gemmill.library.config.model import BatchingName
from gemmill.library.config.scales import block_dtype, scale_block
from gemmill.library.dtypes import DTYPES, FP8, INT8
from gemmill.library.epilogues.parse import LINEAR, parse
from gemmill.library.epilogues.tree import Assignment, Operand
from gemmill.library.errors import DeviceError
from gemmill.library.extras import install
from gemmill.library.input.group_sizes import sizes_of
from gemmill.library.problem import GemmProblem, upconverts_a
from gemmill.runtime.operands.gemm import FOUND_BY

BETA = 1.0
"""Beta of every measurement with a C; alpha is :func:`natural_alpha`."""
ROTATED_BYTES = 256 << 20
"""Bytes that all sets together exceed: more than twice the L2 of any Hopper (60 MB), with room to spare."""
MAX_SETS = 1024
"""Most sets: a problem below 256 KB is bound by its launch, and finding it in L2 is how it is used."""
_OF_EACH_GROUP: Mapping[BatchingName, str] = MappingProxyType({"grouped": "b", "kgrouped": "cd"})
"""Operands of which each group has a matrix of its own, where not all are such."""


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
    """Tensors of one launch: A (M, K), B (K, N), C and D (M, N), each with a leading batch extent where batch > 1; of
    groups as :func:`gemmill.grouped_matmul` takes them, and of arrays with a leading extent."""

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
    groups: Mapping[str, Any] = field(default_factory=dict)
    """``offsets`` or ``counts`` of groups, or ``addresses`` of matrices, by that name."""
    sizes: tuple[int, ...] = ()
    """Rows (or K) of the groups."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Operands of the epilogue, and its outputs, by name."""

    def tensors(self) -> dict[str, Any]:
        """All of them by the keywords of :func:`gemmill.plan`; of arrays the first matrices, those of the table."""
        matrices = {"a": self.a, "b": self.b, "c": self.c, "out": self.d}
        if "addresses" in self.groups:
            matrices = {name: None if tensor is None else tensor[0] for name, tensor in matrices.items()}
        return {**matrices, **self.beside()}

    def beside(self) -> dict[str, Any]:
        """Those beside A, B, C and D."""
        scales = {"a_scale": self.a_scale, "b_scale": self.b_scale, "a_zero": self.a_zero}
        return {**scales, **self.groups, **self.arguments}

    def poison_outputs(self, problem: GemmProblem) -> None:
        """Fill D, and what the epilogue writes beside it, with what no kernel writes."""
        for tensor in (self.d, *(self.arguments[x.name] for x in parse(problem.epilogue).outputs)):
            poison(tensor)


def matrix(
    rows: int,
    columns: int,
    batch: int,
    row_major: bool,
    dtype: str,
    device: Any,
    align: int | None = None,
    step: int = 1,
) -> Any:
    """An uninitialised matrix (rows, columns), or (batch, rows, columns), contiguous along columns or along rows.

    4-bit elements lie two in a byte along the contiguous extent. ``align`` is the largest power of two, in bytes up to
    16, that divides address and strides; None: without padding. ``step`` elements lie between neighbours.
    """
    outer, inner = (rows, columns) if row_major else (columns, rows)
    count = -(-inner * min(8, DTYPES[dtype].bits) // 8)
    size = max(8, DTYPES[dtype].bits) // 8
    row, first = count * step, 0
    if align is not None:
        unit, has_strides = max(1, align // size), outer > 1 or batch > 1
        row = -(-row // unit) * unit if has_strides else row
        first = unit if (math.gcd(16, row * size) if has_strides else 16) > align else 0
    memory = torch().empty(first + batch * outer * row, dtype=torch_dtype(dtype), device=device)
    shape, strides = (batch, outer, count), (outer * row, row, step)
    tensor = memory.as_strided(shape[batch == 1 :], strides[batch == 1 :], first)
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
    """Block scales from 1/2 to 2, none like another, as far as their type allows."""
    return torch().empty(shape, dtype=torch().float32, device=device).uniform_(-1, 1, generator=generator).exp2_()


def random_zeros(shape: tuple[int, ...], generator: Any, device: Any) -> Any:
    """Zero points about the middle of 4 unsigned bits."""
    return torch().empty(shape, dtype=torch().float32, device=device).uniform_(4, 12, generator=generator).round_()


def has_groups(problem: GemmProblem, operand: str) -> bool:
    """Whether each matrix of the batch, or each group, has an operand of its own."""
    return operand in _OF_EACH_GROUP.get(problem.batching, "abcd")


def scale_shape(problem: GemmProblem, operand: str) -> tuple[int, ...]:
    """Extents of the block scales of A or B: ``(M blocks, K blocks)`` or ``(K blocks, N blocks)``, batch in front."""
    scale, extent = (problem.a_scale, problem.m) if operand == "a" else (problem.b_scale, problem.n)
    across, along_k = scale_block(scale)
    blocks = -(-extent // across), -(-problem.k // along_k)
    batch = () if problem.batch == 1 or not has_groups(problem, operand) else (problem.batch,)
    return (*batch, *(blocks if operand == "a" else blocks[::-1]))


def argument_shape(problem: GemmProblem, argument: Operand | Assignment) -> tuple[int, ...]:
    """Extents of an operand or output of the epilogue, with a value for each matrix of the batch, or each group."""
    groups = (problem.batch,) if problem.batch > 1 or problem.batching != "strided" else ()
    rows = groups if has_groups(problem, "d") else ()
    return {
        "scalar": (1,),
        "batch": groups,
        "column": (*groups, problem.d_columns),
        "row": (*rows, problem.m),
        "matrix": (*rows, problem.m, problem.d_columns),
    }[argument.kind]


def set_bytes(problem: GemmProblem, sizes: Sequence[int] = ()) -> int:
    """Bytes of A, B, C, D, block scales and what the epilogue reads and writes; of groups of some sizes, those that are
    used."""
    m, n, k = problem.m, problem.n, problem.k
    rows = sum(sizes) / max(1, problem.batch * m) if sizes and problem.batching == "masked" else 1
    filled = sum(size > 0 for size in sizes) / problem.batch if sizes and problem.batching != "kgrouped" else 1
    outputs = [problem.d_dtype] + ([problem.c_dtype] if problem.c_dtype else [])
    each = {x: problem.batch if has_groups(problem, x) else 1 for x in "abd"}
    bits = each["a"] * m * k * DTYPES[problem.a_dtype].bits * rows
    bits += each["b"] * k * n * DTYPES[problem.b_dtype].bits * filled
    bits += sum(each["d"] * m * problem.d_columns * DTYPES[dtype].bits * rows for dtype in outputs)
    scaled = [
        (o, block_dtype(scale)) for o, scale in (("a", problem.a_scale), ("b", problem.b_scale)) if scale != "none"
    ]
    scales = sum(DTYPES[dtype or "f32"].bytes * math.prod(scale_shape(problem, operand)) for operand, dtype in scaled)
    return int(bits) // 8 + argument_bytes(problem) + scales


def argument_bytes(problem: GemmProblem) -> int:
    """Bytes of what the epilogue reads and writes beside C and D."""
    arguments = () if problem.epilogue == LINEAR else parse(problem.epilogue).arguments
    return sum(DTYPES[x.dtype].bytes * math.prod(argument_shape(problem, x)) for x in arguments)


def set_count(problem: GemmProblem, sizes: Sequence[int] = ()) -> int:
    """Operand sets that together exceed :data:`ROTATED_BYTES`: at least two, at most :data:`MAX_SETS`."""
    return min(MAX_SETS, max(2, ROTATED_BYTES // max(1, set_bytes(problem, sizes)) + 1))


def make_operands(
    problem: GemmProblem, seed: int, device: Any = "cuda", sets: int | None = None, sizes: Sequence[int] | None = None
) -> list[OperandSet]:
    """Sets of random operands (:func:`fill_random`), aligned as the problem says; every D is poisoned.

    ``sizes`` are those of its groups; None: as equal as they can be.
    """
    generator = torch().Generator(device=device).manual_seed(seed)
    sizes = sizes_of(problem) if sizes is None else tuple(sizes)
    return [
        _operand_set(problem, generator, device, sizes)
        for _ in range(set_count(problem, sizes) if sets is None else sets)
    ]


def _operand_set(problem: GemmProblem, generator: Any, device: Any, sizes: Sequence[int]) -> OperandSet:
    a, b, c, d = (_matrix(problem, operand, device) for operand in "abcd")
    for tensor, dtype in ((a, problem.a_dtype), (b, problem.b_dtype), (c, problem.c_dtype)):
        if tensor is not None and dtype is not None:
            fill_random(tensor, dtype, generator)
    if problem.epilogue != LINEAR and b.dtype.is_floating_point and DTYPES[problem.b_dtype].bits > 8:
        # As in networks, sums are of order 1: of larger ones functions say nothing, or overflow.
        depth = problem.k / (problem.batch if problem.batching == "kgrouped" else 1)
        b.mul_(2.0 ** -round(math.log2(max(1.0, depth)) / 2))
    poison(d)
    narrow = upconverts_a(problem.a_dtype, problem.b_dtype)
    scales = _group_scales if narrow else _block_scales
    return OperandSet(
        *(a, b, c, d),
        scales(problem, "a", random_scales, generator, device) if problem.a_scale != "none" else None,
        _block_scales(problem, "b", random_scales, generator, device) if problem.b_scale != "none" else None,
        _group_scales(problem, "a", random_zeros, generator, device) if problem.a_scale.endswith("z") else None,
        groups=_table(problem, (a, b, d, c), sizes, device),
        sizes=tuple(sizes),
        arguments=_arguments(problem, generator, device),
    )


def _matrix(problem: GemmProblem, operand: str, device: Any) -> Any:
    """A, B, C or D, uninitialised; None for the C that a problem lacks."""
    dtype, major, align = (getattr(problem, f"{operand}_{what}") for what in ("dtype", "major", "align"))
    if dtype is None:
        return None
    rows, columns = {"a": (problem.m, problem.k), "b": (problem.k, problem.n)}.get(
        operand, (problem.m, problem.d_columns)
    )
    batch = problem.batch if has_groups(problem, operand) else 1
    row_major = major in ("mn" if operand == "b" else "k", "n", "any")
    tensor = matrix(rows, columns, batch, row_major, dtype, device, align, 1 + (major == "any"))
    is_group = problem.batching != "strided" and has_groups(problem, operand)
    return tensor.unsqueeze(0) if is_group and batch == 1 else tensor


def _block_scales(problem: GemmProblem, operand: str, draw: Callable[..., Any], generator: Any, device: Any) -> Any:
    shape = scale_shape(problem, operand)
    dtype = torch_dtype(block_dtype(getattr(problem, f"{operand}_scale")) or "f32")
    if operand == "b":
        return draw(shape, generator, device).to(dtype)
    # Neighbours along M, as cuBLAS and DeepGEMM demand: a stage's are then read in whole sectors.
    return draw((*shape[:-2], shape[-1], shape[-2]), generator, device).to(dtype).mT


def _group_scales(problem: GemmProblem, operand: str, draw: Callable[..., Any], generator: Any, device: Any) -> Any:
    """Scales or zero points of the groups of narrow A."""
    shape = scale_shape(problem, operand)
    stored = draw((*shape[:-2], shape[-1], shape[-2]), generator, device)
    return stored.to(torch_dtype(problem.b_dtype)).mT


def _table(problem: GemmProblem, matrices: Sequence[Any], sizes: Sequence[int], device: Any) -> dict[str, Any]:
    """What groups, or the matrices of an array, are found by."""
    kind = FOUND_BY.get(problem.batching)
    if kind is None:
        return {}
    if kind == "addresses":
        rows = [
            [x.data_ptr() + i * x.stride(0) * x.element_size() for i in range(problem.batch)]
            for x in matrices
            if x is not None
        ]
        return {kind: torch().tensor(rows, dtype=torch().int64, device=device)}
    values = [*accumulate(sizes)] if kind == "offsets" else [*sizes]
    return {kind: torch().tensor(values, dtype=torch().int32, device=device)}


def _arguments(problem: GemmProblem, generator: Any, device: Any) -> dict[str, Any]:
    """What the epilogue takes beside C: operands from 1/2 to 2, of which every function is finite; poisoned outputs."""
    if problem.epilogue == LINEAR:
        return {}
    epilogue, made = parse(problem.epilogue), {}
    for x in epilogue.arguments:
        shape = argument_shape(problem, x)
        tensor = torch().empty(shape, dtype=torch_dtype(x.dtype), device=device)
        if x.kind == "matrix":
            (m, n), batch, align = shape[-2:], math.prod(shape[:-2]), None if x.major == "any" else 16
            tensor = matrix(m, n, batch, x.major != "m", x.dtype, device, align).view(shape)
        if isinstance(x, Operand):
            tensor.uniform_(-1, 1, generator=generator).exp2_()
        else:
            poison(tensor)
        made[x.name] = tensor
    return made


def natural_alpha(problem: GemmProblem) -> float:
    """1, or the power of two that brings the sums of random integers to about 64 where D is too narrow for them."""
    if not DTYPES[problem.accumulator].is_integer or problem.d_dtype not in ("f16", *FP8, *INT8):
        return 1.0
    # Uniform 8-bit integers have a root mean square of 74 with a sign; without one their sums grow along K.
    typical = problem.k * 128**2 if problem.a_dtype == problem.b_dtype == "u8" else math.sqrt(problem.k) * 74**2
    return 2.0 ** (6 - math.ceil(math.log2(max(1.0, typical))))


def factors(problem: GemmProblem) -> tuple[float, float]:
    """Alpha and beta of its measurements: what the epilogue does not read is 1, and 0."""
    epilogue, has_c = parse(problem.epilogue), problem.c_dtype is not None
    scales_c = "beta" in epilogue.factors and (has_c or not epilogue.reads_c)
    return natural_alpha(problem) if "alpha" in epilogue.factors else 1.0, BETA if scales_c else 0.0


def plan_options(problem: GemmProblem, operands: OperandSet) -> dict[str, Any]:
    """What tells :func:`gemmill.plan` of a problem beside its tensors A, B, C and D."""
    return {
        "accumulator": problem.accumulator,
        "tf32": problem.a_dtype == "tf32",
        "fast_accumulation": problem.promote == 0,
        "expected_rows": problem.expected_rows,
        "a_dtype": problem.a_dtype if DTYPES[problem.a_dtype].bits < 8 else None,
        "epilogue": None if problem.epilogue == LINEAR else problem.epilogue,
        **operands.beside(),
    }
