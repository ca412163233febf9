"""Make random operands of a problem. There are enough sets of them that launches do not find operands in the L2 cache.

torch is typed as ``Any`` and imported only where needed, since the rest of gemmill works without it.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from gemmill.library.config.batchings import GROUPED_EXTENT, MASKED
from gemmill.library.config.model import BatchingName
from gemmill.library.config.scales import dtype_of_groups, scale_block, scale_dtype
from gemmill.library.dtypes import DTYPES, FP8, INT8
from gemmill.library.epilogues.parse import LINEAR, parse
from gemmill.library.epilogues.tree import BLOCK, Assignment, Operand
from gemmill.library.errors import DeviceError
from gemmill.library.extras import install_torch
from gemmill.library.input.group_sizes import sizes_of
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.problem import GemmProblem, upconverts_a
from gemmill.runtime.operands.call_keywords import IEEE, PRECISIONS
from gemmill.runtime.operands.gemm import FOUND_BY

BETA = 1.0
"""Beta of every measurement with a C; alpha is :func:`natural_alpha`."""
ROTATED_BYTES = 256 << 20
"""All sets together exceed this size, which is more than twice the L2 cache of any Hopper GPU (60 MB)."""
MAX_SETS = 1024
"""Maximum number of sets. Problems below 256 KB are bound by the launch, and applications find them in L2, too."""
_OF_EACH_GROUP: Mapping[BatchingName, str] = MappingProxyType({"grouped": "b", "ngrouped": "a", "kgrouped": "cd"})
"""By batching, the operands of which each group has a separate matrix; all operands for other batchings."""


def torch() -> Any:
    """The module ``torch``.

    Raises:
        DeviceError: PyTorch is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise DeviceError(f"profiling needs PyTorch ({error}); {install_torch()}") from error


def torch_dtype(name: str) -> Any:
    """The torch dtype for a gemmill dtype."""
    return getattr(torch(), DTYPES[name].torch)


@dataclass(frozen=True, slots=True)
class OperandSet:
    """The tensors of one launch: A (M, K), B (K, N), C and D (M, N).

    Each has a leading batch extent if batch > 1; pointer arrays also have a leading extent. Tensors of groups have the
    layout of :func:`gemmill.grouped_matmul`.
    """

    a: Any
    b: Any
    c: Any
    """None if the problem has no C."""
    d: Any
    a_scale: Any = None
    """Block scales of A in float32, (M blocks, K blocks), contiguous along M; None without block scaling. For narrow A:
    scales of groups of elements, in B's dtype."""
    b_scale: Any = None
    """Block scales of B in float32, (K blocks, N blocks); None without block scaling."""
    a_zero: Any = None
    """Zero points of the groups of elements of narrow A."""
    b_zero: Any = None
    """The same of narrow B, in calls on groups."""
    groups: Mapping[str, Any] = field(default_factory=dict)
    """``offsets`` or ``counts`` of the groups, or ``addresses`` of the matrices; ``rows`` where A's are gathered,
    or its columns for groups along K, or those of B for groups along N."""
    sizes: tuple[int, ...] = ()
    """Extents of the groups along M, N or K."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Operands and outputs of the epilogue, by name."""

    def tensors(self) -> dict[str, Any]:
        """All tensors by the keywords of :func:`gemmill.plan`; for pointer arrays, the first matrix of each operand."""
        matrices = {"a": self.a, "b": self.b, "c": self.c, "out": self.d}
        if "addresses" in self.groups:
            matrices = {name: None if tensor is None else tensor[0] for name, tensor in matrices.items()}
        return {**matrices, **self.beside()}

    def beside(self) -> dict[str, Any]:
        """All tensors except A, B, C and D."""
        scales = {name: getattr(self, name) for name in ("a_scale", "b_scale", "a_zero", "b_zero")}
        return {**scales, **self.groups, **self.arguments}

    def poison_outputs(self, problem: GemmProblem) -> None:
        """Fill D and the other outputs with values that no kernel writes."""
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
    """An uninitialized matrix, (rows, columns) or (batch, rows, columns), contiguous along columns or along rows.

    Args:
        rows: extent; 4-bit elements are packed two per byte along the contiguous extent.
        columns: extent.
        batch: number of matrices; 1 omits the leading extent.
        row_major: whether the matrix is contiguous along columns.
        dtype: gemmill dtype.
        device: torch device.
        align: the exact alignment of address and strides, a power of two up to 16 bytes; None: no padding.
        step: stride of the innermost extent, in elements.
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
    """Fill with standard normal floats, or with uniform integers: 8 bits, or 21 of 32 bits to avoid overflows of sums.
    Floats of 4 bits are uniform too.

    Zeros and small integers would draw less power and run faster than real data.
    """
    if not DTYPES[dtype].is_integer and DTYPES[dtype].bits >= 8:
        # torch has no random fp8; fp8 formats keep their relative precision from 2^-6 to at least 448.
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
    """Fill with NaN, or with integers of bytes 0xA5; a correct 8-bit D contains the latter at one element in 256."""
    if tensor.dtype.is_floating_point:
        tensor.fill_(math.nan)
    else:
        bits = torch().iinfo(tensor.dtype).bits
        pattern = int.from_bytes(b"\xa5" * (bits // 8), "little", signed=tensor.dtype.is_signed)
        tensor.fill_(pattern)


def random_scales(shape: tuple[int, ...], generator: Any, device: Any) -> Any:
    """Random block scales from 1/2 to 2."""
    return torch().empty(shape, dtype=torch().float32, device=device).uniform_(-1, 1, generator=generator).exp2_()


def random_powers(shape: tuple[int, ...], generator: Any, device: Any) -> Any:
    """Random powers of two from 1/8 to 1, as scales of e2m1 numbers from -6 to 6."""
    return (
        torch().empty(shape, dtype=torch().float32, device=device).uniform_(-3, 0, generator=generator).round_().exp2_()
    )


def random_zeros(shape: tuple[int, ...], generator: Any, device: Any) -> Any:
    """Random zero points from 4 to 12, around the middle of the range of 4-bit unsigned integers."""
    return torch().empty(shape, dtype=torch().float32, device=device).uniform_(4, 12, generator=generator).round_()


def has_groups(problem: GemmProblem, operand: str) -> bool:
    """Whether each matrix of the batch, or each group, has a separate matrix of the operand."""
    return operand in _OF_EACH_GROUP.get(problem.batching, "abcd")


def scale_shape(problem: GemmProblem, operand: str) -> tuple[int, ...]:
    """Extents of the block scales of A or B: ``(M blocks, K blocks)`` or ``(K blocks, N blocks)``, batch in front."""
    scale, extent = (problem.a_scale, problem.m) if operand == "a" else (problem.b_scale, problem.n)
    across, along_k = scale_block(scale)
    blocks = -(-extent // across), -(-problem.k // along_k)
    batch = () if problem.batch == 1 or not has_groups(problem, operand) else (problem.batch,)
    return (*batch, *(blocks if operand == "a" else blocks[::-1]))


def argument_shape(problem: GemmProblem, argument: Operand | Assignment) -> tuple[int, ...]:
    """Extents of an operand or output of the epilogue, including the batch or the groups."""
    groups = (problem.batch,) if problem.batch > 1 or problem.batching != "strided" else ()
    matrices = groups if has_groups(problem, "d") else ()
    columns = GROUPED_EXTENT.get(problem.batching) == "n"
    return {
        "scalar": (1,),
        "batch": groups,
        "column": (*(matrices if columns else groups), problem.d_columns),
        "row": (*(groups if columns else matrices), problem.d_rows),
        "matrix": (*matrices, problem.d_rows, problem.d_columns),
        "block": (*matrices, problem.d_rows, problem.d_columns // BLOCK),
    }[argument.kind]


def set_bytes(problem: GemmProblem, sizes: Sequence[int] = ()) -> int:
    """Bytes of A, B, C, D, block scales, and operands and outputs of the epilogue; with group sizes, the used bytes."""
    m, n, k = problem.m, problem.n, problem.k
    along = GROUPED_EXTENT.get(problem.batching, "")
    has_capacity = sizes and problem.batching in MASKED
    used = sum(sizes) / max(1, problem.batch * getattr(problem, along)) if has_capacity else 1
    filled = sum(size > 0 for size in sizes) / problem.batch if sizes and along != "k" else 1
    outputs = [problem.d_dtype] + ([problem.c_dtype] if problem.c_dtype else [])
    matrices = {x: problem.batch if has_groups(problem, x) else 1 for x in "abd"}
    bits = matrices["a"] * m * k * DTYPES[problem.a_dtype].bits * (filled if along == "n" else used)
    bits += matrices["b"] * k * n * DTYPES[problem.b_dtype].bits * (used if along == "n" else filled)
    bits += sum(matrices["d"] * problem.d_rows * problem.d_columns * DTYPES[dtype].bits * used for dtype in outputs)
    scaled = [
        (o, scale_dtype(scale)) for o, scale in (("a", problem.a_scale), ("b", problem.b_scale)) if scale != "none"
    ]
    scales = sum(DTYPES[dtype or "f32"].bytes * math.prod(scale_shape(problem, operand)) for operand, dtype in scaled)
    return int(bits) // 8 + argument_bytes(problem) + scales


def argument_bytes(problem: GemmProblem) -> int:
    """Bytes of the operands and outputs of the epilogue other than C and D."""
    arguments = () if problem.epilogue == LINEAR else parse(problem.epilogue).arguments
    return sum(DTYPES[x.dtype].bytes * math.prod(argument_shape(problem, x)) for x in arguments)


def set_count(problem: GemmProblem, sizes: Sequence[int] = ()) -> int:
    """Number of operand sets that exceed :data:`ROTATED_BYTES` together: at least 2, at most :data:`MAX_SETS`."""
    return min(MAX_SETS, max(2, ROTATED_BYTES // max(1, set_bytes(problem, sizes)) + 1))


def make_operands(
    problem: GemmProblem, seed: int, device: Any = "cuda", sets: int | None = None, sizes: Sequence[int] | None = None
) -> list[OperandSet]:
    """Make sets of random operands (:func:`fill_random`) with the problem's alignment; each D is poisoned.

    ``sizes`` are the sizes of the groups; None: as equal as possible.
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
    if problem.symmetry != "general":
        b = a.mT if problem.a_major == problem.b_major else b.copy_(a.mT)
        c = None if c is None else c.add_(c.mT.clone())
    if problem.epilogue != LINEAR and b.dtype.is_floating_point and DTYPES[problem.b_dtype].bits > 8:
        # Scale the sums to order 1, as in neural networks; activation functions saturate or overflow on larger values.
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
        groups=_table(problem, (a, b, d, c), sizes, device) | _index(problem, generator, device),
        sizes=tuple(sizes),
        arguments=_arguments(problem, generator, device),
    )


def _matrix(problem: GemmProblem, operand: str, device: Any) -> Any:
    """A, B, C or D, uninitialized; None for C if the problem has none."""
    dtype, major, align = (getattr(problem, f"{operand}_{attribute}") for attribute in ("dtype", "major", "align"))
    if dtype is None:
        return None
    rows, columns = {"a": (problem.m, problem.k), "b": (problem.k, problem.n)}.get(
        operand, (problem.d_rows, problem.d_columns)
    )
    batch = problem.batch if has_groups(problem, operand) else 1
    row_major = major in ("mn" if operand == "b" else "k", "n", "any")
    tensor = matrix(rows, columns, batch, row_major, dtype, device, align, 1 + (major == "any"))
    is_group = problem.batching != "strided" and has_groups(problem, operand)
    return tensor.unsqueeze(0) if is_group and batch == 1 else tensor


def _block_scales(problem: GemmProblem, operand: str, draw: Callable[..., Any], generator: Any, device: Any) -> Any:
    shape = scale_shape(problem, operand)
    dtype = torch_dtype(scale_dtype(getattr(problem, f"{operand}_scale")) or "f32")
    if operand == "b":
        return draw(shape, generator, device).to(dtype)
    # Contiguous along M, as cuBLAS and DeepGEMM require: a stage then reads whole sectors.
    return draw((*shape[:-2], shape[-1], shape[-2]), generator, device).to(dtype).mT


def _group_scales(problem: GemmProblem, operand: str, draw: Callable[..., Any], generator: Any, device: Any) -> Any:
    """Scales or zero points of the groups of elements of narrow A."""
    (*batch, rows, groups), dtype = scale_shape(problem, operand), dtype_of_groups(problem.a_dtype, problem.b_dtype)
    if problem.a_dtype == "e2m1":
        draw = random_powers
    stored = matrix(groups, rows, math.prod(batch), True, dtype, device, TMA_ALIGN)
    return stored.copy_(draw(tuple(stored.shape), generator, device)).mT


def _table(problem: GemmProblem, matrices: Sequence[Any], sizes: Sequence[int], device: Any) -> dict[str, Any]:
    """The table of a grouped problem or a pointer array: offsets, counts or addresses."""
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


def _index(problem: GemmProblem, generator: Any, device: Any) -> dict[str, Any]:
    """An index of random rows of A, which has M of them, of its K columns for groups along K, or of the N columns of B
    for groups along N; some occur several times, others never."""
    if problem.rows == "stored":
        return {}
    count = getattr(problem, GROUPED_EXTENT[problem.batching])
    drawn = torch().randint(0, max(1, count), (count,), generator=generator, device=device)
    return {"rows": drawn.to(torch().int32)}


def _arguments(problem: GemmProblem, generator: Any, device: Any) -> dict[str, Any]:
    """Operands of the epilogue, random from 1/2 to 2 where all functions are finite, and poisoned outputs."""
    if problem.epilogue == LINEAR:
        return {}
    epilogue, arguments = parse(problem.epilogue), {}
    for x in epilogue.arguments:
        shape = argument_shape(problem, x)
        tensor = torch().empty(shape, dtype=torch_dtype(x.dtype), device=device)
        if x.kind in ("matrix", "block"):
            (m, n), batch, align = shape[-2:], math.prod(shape[:-2]), None if x.major == "any" else 16
            by_rows = x.kind == "matrix" and x.major != "m"  # scales of consecutive rows fill a sector
            tensor = matrix(m, n, batch, by_rows, x.dtype, device, align).view(shape)
        if isinstance(x, Operand) and not DTYPES[x.dtype].is_integer:
            tensor.copy_(random_scales(shape, generator, device))
        elif isinstance(x, Operand):
            fill_random(tensor, x.dtype, generator)
        else:
            poison(tensor)
        arguments[x.name] = tensor
    return arguments


def natural_alpha(problem: GemmProblem) -> float:
    """Alpha of measurements: 1, or a power of two that scales sums of random integers to about 64 for a narrow D."""
    if not DTYPES[problem.accumulator].is_integer or problem.d_dtype not in ("f16", *FP8, *INT8):
        return 1.0
    # Signed uniform 8-bit integers have a root mean square of 74; the sums of unsigned ones grow linearly with K.
    typical = problem.k * 128**2 if problem.a_dtype == problem.b_dtype == "u8" else math.sqrt(problem.k) * 74**2
    return 2.0 ** (6 - math.ceil(math.log2(max(1.0, typical))))


def factors(problem: GemmProblem) -> tuple[float, float]:
    """Alpha and beta of measurements: 1 and 0 if the epilogue does not read them."""
    epilogue, has_c = parse(problem.epilogue), problem.c_dtype is not None
    scales_c = "beta" in epilogue.factors and (has_c or not epilogue.reads_c)
    return natural_alpha(problem) if "alpha" in epilogue.factors else 1.0, BETA if scales_c else 0.0


def as_called(problem: GemmProblem, operands: Sequence[OperandSet]) -> tuple[GemmProblem, list[OperandSet]]:
    """A problem and its operands as calls of gemmill take them: the transpose for groups along N, and where an
    epilogue has scales beside those of groups of a narrow A."""
    kinds = {x.name: x.kind for x in parse(problem.epilogue).arguments}
    has_both = problem.a_scale != "none" and "a_scale" in kinds
    if GROUPED_EXTENT.get(problem.batching) != "n" and not has_both:
        return problem, [*operands]

    def turned(x: OperandSet) -> OperandSet:
        a, b, c, d, a_scale, b_scale, zero = (
            None if y is None else y.mT for y in (x.b, x.a, x.c, x.d, x.b_scale, x.a_scale, x.a_zero)
        )
        arguments = {name: y.mT if kinds[name] == "matrix" else y for name, y in x.arguments.items()}
        return OperandSet(
            *(a, b, c, d, a_scale, b_scale), b_zero=zero, groups=x.groups, sizes=x.sizes, arguments=arguments
        )

    return problem.transposed, [turned(x) for x in operands]


def plan_options(problem: GemmProblem, operands: OperandSet) -> dict[str, Any]:
    """The keywords of :func:`gemmill.plan` for a problem, except A, B, C and D."""
    return {
        "accumulator": problem.accumulator,
        "precision": next((name for name, dtype in PRECISIONS.items() if dtype == problem.a_dtype), IEEE),
        "fast_accumulation": problem.promote == 0,
        "symmetric": problem.symmetry != "general",
        "expected_rows": problem.expected_rows,
        "a_dtype": problem.a_dtype if DTYPES[problem.a_dtype].bits < 8 else None,
        "b_dtype": problem.b_dtype if DTYPES[problem.b_dtype].bits < 8 else None,
        "epilogue": None if problem.epilogue == LINEAR else problem.epilogue,
        **operands.beside(),
    }
