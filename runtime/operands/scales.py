"""Scales: of blocks of fp8 operands, and of groups along K of an operand narrower than the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gemmill.library.errors import OperandError
from gemmill.runtime.operands.strided import Matrices, Operand, broadcast, collapse
from gemmill.runtime.operands.tensors import TensorView

GROUP_SIZES = (128, 64, 32)
"""Elements of a narrow operand along K that may share a scale."""

SCALE_BLOCK = 128
"""Elements along K, and columns of B, that share a scale."""


class Scale(NamedTuple):
    """Block scales of A or B in memory: f32; strides in elements."""

    ptr: int
    """Address of the first scale."""
    stride: int
    """From a row of A, or a block of columns of B, to the next."""
    k_stride: int
    """From a block of K to the next."""
    batch_stride: int
    """From a matrix to the next; 0 where all of the batch share their scales."""


class GroupScales(NamedTuple):
    """Scales and zero points of groups of the narrow operand."""

    name: str
    scaling: Any
    scale: Operand | None = None
    zero: Operand | None = None


def block_scales(
    a_scale: TensorView | None,
    b_scale: TensorView | None,
    extents: tuple[int, int, int],
    batch_a: tuple[int, ...],
    batch_b: tuple[int, ...],
) -> tuple[Scale, Scale] | None:
    """Read the scales of A and B, or None where neither has any; ``extents`` are M, N and K."""
    m, n, k = extents
    if a_scale is not None and b_scale is not None:
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
    if tensor.dtype != "f32":
        raise OperandError(f"{name} is {tensor.dtype}; scales are f32: pass {name}.float()")
    if tensor.shape[-2:] != shape:
        raise OperandError(f"{name} has shape {tensor.shape}; its last extents must be {shape}, one for each block")
    outer = replace(tensor, shape=tensor.shape[:-2], strides=tensor.strides[:-2])
    batch_stride = collapse(name, batch, broadcast(name, outer, batch))
    strides = tensor.strides[-2:]
    return Scale(tensor.ptr, strides[1 - k_axis], strides[k_axis], batch_stride)


def group_scales(
    narrow: Matrices, wide: TensorView, tensors: Mapping[str, TensorView | None], batch: tuple[int, ...]
) -> GroupScales:
    """Read what scales the narrow operand."""
    name, other = (narrow.name, "b") if narrow.name == "a" else (narrow.name, "a")
    rows, k = (narrow.rows, narrow.columns) if name == "a" else (narrow.columns, narrow.rows)
    for kind in ("scale", "zero"):
        if tensors[f"{other}_{kind}"] is not None:
            raise OperandError(f"{other} is {wide.dtype}, the wider operand; only {name} takes a {kind}")
    scale, zero = tensors[f"{name}_scale"], tensors[f"{name}_zero"]
    if scale is None:
        if zero is not None:
            raise OperandError(f"{name}_zero is given without {name}_scale; pass both")
        return GroupScales(name, "none")
    k_axis = -1 if name == "a" else -2
    count = scale.shape[k_axis] if len(scale.shape) > 1 else 0
    size = next((size for size in GROUP_SIZES if -(-k // size) == count), None)
    shape = (rows, count) if name == "a" else (count, rows)
    if size is None or scale.shape[-2:] != shape:
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
        outer = replace(tensor, shape=tensor.shape[:-2], strides=tensor.strides[:-2])
        batch_stride = collapse(f"{name}_{kind}", batch, broadcast(f"{name}_{kind}", outer, batch))
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
