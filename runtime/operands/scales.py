"""Scales: of blocks of fp8 operands, and of groups along K of an operand narrower than the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gemmill.library.config.scales import BLOCK_SCALES
from gemmill.library.dtypes import DTypeName
from gemmill.library.errors import OperandError
from gemmill.library.wording import one_of
from gemmill.runtime.operands.strided import Matrices, Operand, broadcast, collapse
from gemmill.runtime.operands.tensors import TensorView

GROUP_SIZES = (128, 64, 32)
"""Elements of a narrow operand along K that may share a scale."""

SCALE_BLOCK = 128
"""Elements along K, and columns of B, that share a scale."""


class Scale(NamedTuple):
    """Block scales of A or B in memory; strides in elements."""

    ptr: int
    """Address of the first scale."""
    stride: int
    """From a row of A, or a block of columns of B, to the next."""
    k_stride: int
    """From a block of K to the next."""
    batch_stride: int
    """From a matrix to the next; 0 where all of the batch share their scales."""
    dtype: DTypeName
    """A key of :data:`BLOCK_SCALES`."""


class GroupScales(NamedTuple):
    """Scales and zero points of groups of the narrow operand."""

    name: str
    scaling: Any
    scale: Operand | None = None
    zero: Operand | None = None


def block_shapes(a: TensorView, b: TensorView) -> dict[str, tuple[int, ...]]:
    """The last two extents of scales of blocks."""
    m, n, k = a.shape[-2] if len(a.shape) > 1 else 1, b.shape[-1] if len(b.shape) > 1 else 1, a.shape[-1]
    blocks = -(-k // SCALE_BLOCK)
    return {"a_scale": (m, blocks), "b_scale": (blocks, -(-n // SCALE_BLOCK))}


def has_groups(name: str, tensors: Mapping[str, TensorView]) -> bool:
    """Whether a call has scales of groups along K of its narrow operand, ``a`` or ``b``: they have the wider operand's
    type, or zero points beside them."""
    scale, shape = tensors.get(f"{name}_scale"), tensors[name].shape
    if f"{name}_zero" in tensors or scale is None or len(shape) < 2:
        return scale is not None or f"{name}_zero" in tensors
    wide = tensors["b" if name == "a" else "a"].dtype
    rows, k = (shape[-2], shape[-1]) if name == "a" else (shape[-1], shape[-2])
    return scale.dtype == wide and _group_size(name, scale, rows, k) is not None


def _group_size(name: str, scale: TensorView, rows: int, k: int) -> int | None:
    """How many elements along K of ``a`` or ``b`` share a scale; None where the scales have another shape."""
    if len(scale.shape) < 2:
        return None
    along, across = scale.shape[-2:][:: -1 if name == "a" else 1]
    size = next((size for size in GROUP_SIZES if -(-k // size) == along), None)
    return size if across == rows else None


def block_scales(
    a_scale: TensorView | None,
    b_scale: TensorView | None,
    extents: tuple[int, int, int],
    batch_a: tuple[int, ...],
    batch_b: tuple[int, ...],
) -> tuple[Scale, Scale] | None:
    """Read the scales of A and B, which have one type, or None where neither has any; ``extents`` are M, N and K."""
    m, n, k = extents
    if a_scale is not None and b_scale is not None:
        if a_scale.dtype != b_scale.dtype and a_scale.dtype in BLOCK_SCALES and b_scale.dtype in BLOCK_SCALES:
            narrow = "b" if b_scale.dtype != "f32" else "a"
            raise OperandError(
                f"a_scale is {a_scale.dtype} and b_scale {b_scale.dtype}; scales of blocks of both have one type: pass "
                f"{narrow}_scale.float()"
            )
        blocks = -(-k // SCALE_BLOCK)
        return (
            _scale("a_scale", a_scale, batch_a, (m, blocks), k_axis=1),
            _scale("b_scale", b_scale, batch_b, (blocks, -(-n // SCALE_BLOCK)), k_axis=0),
        )
    if a_scale is not b_scale:
        given, wanting = ("b", "a") if a_scale is None else ("a", "b")
        raise OperandError(f"{given} has scales and {wanting} has none; pass {wanting}_scale as well")
    return None


def _scale(name: str, tensor: TensorView, batch: tuple[int, ...], shape: tuple[int, int], k_axis: int) -> Scale:
    """Read the scales of blocks; ``shape`` is what the last two extents must be."""
    if tensor.dtype not in BLOCK_SCALES:
        raise OperandError(
            f"{name} is {tensor.dtype}; scales of blocks are {one_of(tuple(BLOCK_SCALES))}: pass {name}.float()"
        )
    if tensor.shape[-2:] != shape:
        raise OperandError(f"{name} has shape {tensor.shape}; its last extents must be {shape}, one for each block")
    batch_stride = collapse(name, batch, broadcast(name, tensor.shape[:-2], tensor.strides[:-2], batch))
    strides = tensor.strides[-2:]
    return Scale(tensor.ptr, strides[1 - k_axis], strides[k_axis], batch_stride, tensor.dtype)


def stacked_scales(a_scale: Scale, b_scale: Scale, m: int) -> tuple[Scale, Scale] | None:
    """The scales of a batch as those of one matrix of more rows, M in each of the batch; None where they do not lie
    so."""
    step = a_scale.batch_stride if m == 1 else a_scale.stride
    if b_scale.batch_stride or not a_scale.batch_stride or a_scale.batch_stride != m * step:
        return None
    return a_scale._replace(stride=step, batch_stride=0), b_scale


def group_scales(
    narrow: Matrices, wide: TensorView, tensors: Mapping[str, TensorView | None], batch: tuple[int, ...]
) -> GroupScales:
    """Read what scales the narrow operand."""
    name, other = (narrow.name, "b") if narrow.name == "a" else (narrow.name, "a")
    rows, k = (narrow.rows, narrow.columns) if name == "a" else (narrow.columns, narrow.rows)
    for kind in ("scale", "zero"):
        if tensors[f"{other}_{kind}"] is not None:
            raise OperandError(
                f"{other} is {wide.dtype}, the wider operand; only {name} takes a {kind} of groups along K"
            )
    scale, zero = tensors[f"{name}_scale"], tensors[f"{name}_zero"]
    if scale is None:
        if zero is not None:
            raise OperandError(f"{name}_zero is given without {name}_scale; pass both")
        return GroupScales(name, "none")
    k_axis = -1 if name == "a" else -2
    size = _group_size(name, scale, rows, k)
    if size is None:
        wanted = " or ".join(
            str((rows, g) if name == "a" else (g, rows)) for g in (-(-k // size) for size in GROUP_SIZES)
        )
        raise OperandError(
            f"{name}_scale has shape {scale.shape}; its last extents must be {wanted}: one for each "
            f"{'row' if name == 'a' else 'column'} and group of {', '.join(map(str, GROUP_SIZES))} along K = {k}"
        )
    operands: list[Operand | None] = []
    for kind, tensor in (("scale", scale), ("zero", zero)):
        if tensor is None:
            operands.append(None)
            continue
        if tensor.dtype != wide.dtype or tensor.shape != scale.shape:
            raise OperandError(
                f"{name}_{kind} is {tensor.dtype} {tensor.shape}; it must be {wide.dtype} {scale.shape}, as {other} is"
            )
        called = f"{name}_{kind}"
        batch_stride = collapse(called, batch, broadcast(called, tensor.shape[:-2], tensor.strides[:-2], batch))
        along_rows, along_k = tensor.strides[-2 if name == "a" else -1], tensor.strides[k_axis]
        if bool(batch_stride) != bool(narrow.batch_stride):
            raise OperandError(
                f"{name}_{kind} has shape {tensor.shape} and {name} {narrow.tensor.shape}; each matrix of a batch has "
                f"its own, and a shared matrix shares it: pass {name}_{kind}.expand(...).contiguous()"
            )
        if rows > 1 and along_rows != 1:
            raise OperandError(
                f"{name}_{kind} has strides {tensor.strides}; neighbours of one group must be contiguous, as in "
                f"{'(K / group, M).T' if name == 'a' else '(K / group, N)'}"
            )
        operands.append(Operand(tensor.ptr, tensor.dtype, "m", along_k, batch_stride, 16))
    return GroupScales(name, f"1x{size}" + ("z" if zero else ""), *operands)
