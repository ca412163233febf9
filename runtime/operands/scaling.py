"""Scales of A and B: of blocks and of groups along K, which kernels apply to operands; and of whole operands, of rows
of A and of columns of B, which are factors of the sums, and so operands of the epilogue.

The latter, ``a_scale`` and ``b_scale``, are what ``a * a_scale`` and ``b * b_scale`` would broadcast, such that a row
of A or a column of B has one value. An expression may say itself where they stand; else they multiply each sum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from gemmill.library.config.scales import BLOCK_SCALES
from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.grammar import SCALES
from gemmill.library.epilogues.tree import Kind, scaled
from gemmill.library.epilogues.tree import Operand as EpilogueOperand
from gemmill.library.errors import OperandError
from gemmill.library.problem import is_mixed, upconverts_a
from gemmill.library.wording import one_of
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.operands.matrices import Matrices, Operand, broadcast, collapse
from gemmill.runtime.operands.tensors import TensorView

GROUP_SIZES = (128, 64, 32)
"""Elements of a narrow operand along K that may share a scale."""


SCALE_BLOCK = 128
"""Elements along K, and columns of B, that share a scale."""


class Scale(NamedTuple):
    """Block scales of A or B in memory; strides in elements."""

    name: str
    """What the caller calls them."""
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
    tensors: Mapping[str, TensorView],
    extents: tuple[int, int, int],
    batch_a: tuple[int, ...],
    batch_b: tuple[int, ...],
) -> tuple[Scale, Scale] | None:
    """Read the scales of A and B, which have one type, or None where neither has any; ``extents`` are M, N and K."""
    m, n, k = extents
    a_scale, b_scale = tensors.get("a_scale"), tensors.get("b_scale")
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
    return Scale(name, tensor.ptr, strides[1 - k_axis], strides[k_axis], batch_stride, tensor.dtype)


def stacked_scales(a_scale: Scale, b_scale: Scale, m: int) -> tuple[Scale, Scale] | None:
    """The scales of a batch as those of one matrix of more rows, M in each of the batch; None where they do not lie
    so."""
    step = a_scale.batch_stride if m == 1 else a_scale.stride
    if b_scale.batch_stride or not a_scale.batch_stride or a_scale.batch_stride != m * step:
        return None
    return a_scale._replace(stride=step, batch_stride=0), b_scale


def group_scales(
    narrow: Matrices, wide: TensorView, tensors: Mapping[str, TensorView], batch: tuple[int, ...]
) -> GroupScales:
    """Read what scales the narrow operand."""
    name, other = (narrow.name, "b") if narrow.name == "a" else (narrow.name, "a")
    rows, k = (narrow.rows, narrow.columns) if name == "a" else (narrow.columns, narrow.rows)
    for kind in ("scale", "zero"):
        if f"{other}_{kind}" in tensors:
            raise OperandError(
                f"{other} is {wide.dtype}, the wider operand; only {name} takes a {kind} of groups along K"
            )
    scale, zero = tensors.get(f"{name}_scale"), tensors.get(f"{name}_zero")
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
        operands.append(Operand(called, tensor.ptr, tensor.dtype, "m", along_k, batch_stride, 16))
    return GroupScales(name, f"1x{size}" + ("z" if zero else ""), *operands)


def _kinds_of_scales(
    tensors: Mapping[str, TensorView], numbers: Collection[str], named: Mapping[str, Kind], batch_invariant: bool
) -> dict[str, Kind]:
    """What each scale that is a factor of the sums has one value for, a_scale first; the others are of blocks or of
    groups along K, and not of the epilogue.

    ``numbers`` are scales of the host, ``named`` those that the expression names itself, with their kinds. OperandError
    names a scale that is of neither sort.
    """
    if "addresses" in tensors:
        return {}
    a, b = tensors["a"], tensors["b"]
    given = {name: tensors[name] for name in SCALES if name in tensors and name not in named}
    forms = {name: scale_kind(name, scale, tensors[name[0]]) for name, scale in given.items()}
    if is_mixed(a.dtype, b.dtype):
        narrow = "a" if upconverts_a(a.dtype, b.dtype) else "b"
        grouped = narrow if has_groups(narrow, tensors) else ""
        forms = {name: x for name, x in forms.items() if name[0] != grouped and x is not None}
    elif {name: scale.shape[-2:] for name, scale in given.items()} == block_shapes(a, b) and (
        None in forms.values() or {scale.dtype for scale in given.values()} in ({dtype} for dtype in BLOCK_SCALES)
    ):
        return {}
    for name, found in forms.items():
        if found is None:
            raise _refused(name, tensors)
    if batch_invariant and "a_scale" in given:
        _refuse_one_row(given["a_scale"], forms.get("a_scale"))
    kinds = {name: found[0] for name, found in forms.items() if found}
    all_kinds: dict[str, Kind] = {**dict.fromkeys(numbers, "scalar"), **kinds, **named}
    return {name: all_kinds[name] for name in SCALES if name in all_kinds}


@lru_cache(1024)
def _with_scales(text: str | None, kinds: tuple[tuple[str, Kind], ...], has_c: bool) -> str:
    """An epilogue whose sums are multiplied by scales, but by those that it names itself; None: the plain one."""
    linear = "d = alpha * acc + beta * c" if has_c else "d = alpha * acc"
    epilogue = read_epilogue(linear if text is None else text)
    named = {operand.name for operand in epilogue.operands}
    factors = [EpilogueOperand(name, kind, "f32") for name, kind in kinds if name not in named]
    if epilogue.gated and any(factor.kind == "column" for factor in factors):
        raise OperandError(
            f"b_scale has one for each column of b, and the epilogue `{epilogue}` pairs columns: pass those of gate "
            "and of up by names of their own, as in epilogue='d = silu(gate * g[n]) * (up * u[n])', "
            "g=b_scale[..., 0::2].contiguous(), u=b_scale[..., 1::2].contiguous()"
        )
    return str(scaled(epilogue, factors))


def scaled_epilogue(
    text: str | None, tensors: Mapping[str, TensorView], numbers: Collection[str], batch_invariant: bool
) -> tuple[str | None, Collection[str]]:
    """The epilogue of a call with scales, and which of them are its operands; ``numbers`` are those of the host.

    Without an expression numbers are none, as alpha takes them in. OperandError names a scale that does not fit.
    """
    epilogue = None if text is None else read_epilogue(text)
    named = {} if epilogue is None else {o.name: o.kind for o in epilogue.operands if o.name in SCALES}
    kinds = _kinds_of_scales(tensors, () if text is None else numbers, named, batch_invariant)
    return _with_scales(text, tuple(kinds.items()), "c" in tensors) if kinds else text, kinds


def scale_kind(name: str, scale: TensorView, operand: TensorView) -> tuple[Kind, TensorView] | None:
    """What a scale of an operand has one value for, and the scale without the extents of 1 along which it broadcasts;
    None where that is neither the operand, nor a matrix of its batch, nor a row of A or a column of B."""
    shape, is_matrix = scale.shape, len(operand.shape) > 1
    if is_matrix and name == "a_scale" and shape[-2:] == (operand.shape[-2], 1):
        return "row", _without(scale, -1)
    if is_matrix and name == "b_scale" and shape[-1:] == operand.shape[-1:] and shape[-2:-1] in ((), (1,)):
        return "column", scale if len(shape) == 1 else _without(scale, -2)
    if prod(shape) == 1:
        return "scalar", scale
    return ("batch", _without(_without(scale, -1), -1)) if shape[-2:] == (1, 1) else None


def _without(tensor: TensorView, axis: int) -> TensorView:
    """A view without an extent of 1."""
    shape, strides = list(tensor.shape), list(tensor.strides)
    del shape[axis], strides[axis]
    return replace(tensor, shape=tuple(shape), strides=tuple(strides))


def _refuse_one_row(scale: TensorView, found: tuple[Kind, TensorView] | None) -> None:
    """OperandError where M decides whether a scale is of a row or of all rows, and with it the kernel."""
    if found and found[0] in ("scalar", "batch") and len(scale.shape) > 1:
        raise OperandError(
            f"batch_invariant: a_scale has shape {scale.shape}, which is that of a row where M is 1: pass one for "
            "all rows as a_scale.reshape(()), or one for each row"
        )


def _refused(name: str, tensors: Mapping[str, TensorView]) -> OperandError:
    """What to say of a scale that scales neither blocks nor all of a row or column."""
    own, operand, blocks = tensors[name].shape, tensors[name[0]].shape, block_shapes(tensors["a"], tensors["b"])
    each = (operand[-2], 1) if name == "a_scale" else (1, operand[-1])
    other = "b_scale" if name == "a_scale" else "a_scale"
    of = "row" if name == "a_scale" else "column"
    says = f"one value, or {each}: one for each {of}" if len(operand) > 1 else "one value"
    if own[-2:] == blocks[name]:
        way = f"these are of blocks, beside which {other} is of blocks too: {blocks[other]}"
    elif own == operand[-2:-1]:
        way = f"pass {name}.unsqueeze(-1)"
    elif own[-2:] == each[::-1]:
        way = f"pass {name}.mT"
    else:
        way = f"of blocks it is {blocks[name]}, and {other} {blocks[other]}"
    return OperandError(f"{name} has shape {own}; it must be {says}. {way[0].upper()}{way[1:]}")
