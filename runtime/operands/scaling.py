"""Turns scales of whole operands, of rows of A and of columns of B into operands of the epilogue.

``a_scale`` and ``b_scale`` have the shapes that broadcast in ``a * a_scale`` and ``b * b_scale``, with one value for a
row of A or a column of B. An expression may use them by name; otherwise they multiply each sum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod

from gemmill.library.config.scales import BLOCK_SCALES
from gemmill.library.epilogues.grammar import SCALES
from gemmill.library.epilogues.tree import HALVES, Kind, scaled
from gemmill.library.epilogues.tree import Operand as EpilogueOperand
from gemmill.library.errors import OperandError
from gemmill.library.problem import is_mixed, upconverts_a
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.operands.matrices import block_shapes, has_groups, refuse_four_bits
from gemmill.runtime.operands.tensors import TensorView


def _kinds_of_scales(
    tensors: Mapping[str, TensorView], numbers: Collection[str], named: Mapping[str, Kind]
) -> dict[str, Kind]:
    """Return the kind of each scale that multiplies sums, a_scale first. Scales of blocks and of groups along K are
    left out, since they are not part of the epilogue.

    ``numbers`` are scales that are host values; ``named`` are those that the expression uses, with their kinds.

    Raises:
        OperandError: the shape of a scale fits neither sort.
    """
    if "addresses" in tensors:
        return {}
    a, b = tensors["a"], tensors["b"]
    blocks = block_shapes(a, b)
    scales = {name: tensors[name] for name in SCALES if name in tensors and name not in named}
    forms = {name: scale_kind(name, scale, tensors[name[0]]) for name, scale in scales.items()}
    if is_mixed(a.dtype, b.dtype):
        narrow = "a" if upconverts_a(a.dtype, b.dtype) else "b"
        grouped = narrow if has_groups(narrow, tensors) else ""
        forms = {name: form for name, form in forms.items() if name[0] != grouped and form is not None}
    elif {name: scale.shape[-2:] for name, scale in scales.items()} == blocks and (
        None in forms.values() or {scale.dtype for scale in scales.values()} in ({dtype} for dtype in BLOCK_SCALES)
    ):
        return {}
    for name, form in forms.items():
        if form is None:
            refuse_four_bits(tensors)
            raise _scale_error(name, tensors, blocks)
    kinds = {name: form[0] for name, form in forms.items() if form}
    all_kinds: dict[str, Kind] = {**dict.fromkeys(numbers, "scalar"), **kinds, **named}
    return {name: all_kinds[name] for name in SCALES if name in all_kinds}


@lru_cache(1024)
def _with_scales(text: str | None, kinds: tuple[tuple[str, Kind], ...], has_c: bool) -> str:
    """Return an epilogue whose sums are multiplied by the scales that it does not use itself; None is the plain
    epilogue."""
    linear = "d = alpha * acc + beta * c" if has_c else "d = alpha * acc"
    epilogue = read_epilogue(linear if text is None else text)
    named = {operand.name for operand in epilogue.operands}
    factors = [EpilogueOperand(name, kind, "f32") for name, kind in kinds if name not in named]
    if epilogue.gated and any(factor.kind == "column" for factor in factors):
        suffix, of_gate, of_up = "", "[..., 0::2].contiguous()", "[..., 1::2].contiguous()"
        if epilogue.gates_halves:
            suffix, of_gate, of_up = HALVES, *(f".chunk(2, -1)[{i}]" for i in (0, 1))
        elif (columns := epilogue.gate_columns) > 1:
            runs = f".unflatten(-1, (-1, 2, {columns}))"
            suffix, of_gate, of_up = str(columns), *(f"{runs}[..., {i}, :].flatten(-2)" for i in (0, 1))
        raise OperandError(
            f"b_scale has one value for each column of b, and the epilogue `{epilogue}` pairs columns: pass the "
            f"scales of gate and up as two operands, as in epilogue='d = silu(gate{suffix} * g[n]) * (up{suffix} * "
            f"u[n])', g=b_scale{of_gate}, u=b_scale{of_up}"
        )
    return str(scaled(epilogue, factors))


def scaled_epilogue(
    text: str | None, tensors: Mapping[str, TensorView], numbers: Collection[str]
) -> tuple[str | None, Collection[str]]:
    """Return the epilogue of a call with scales, and the names of the scales that are its operands.

    ``numbers`` are scales that are host values; without an expression they become part of alpha instead.

    Raises:
        OperandError: a scale does not fit.
    """
    epilogue = None if text is None else read_epilogue(text)
    named = {} if epilogue is None else {o.name: o.kind for o in epilogue.operands if o.name in SCALES}
    kinds = _kinds_of_scales(tensors, () if text is None else numbers, named)
    return _with_scales(text, tuple(kinds.items()), "c" in tensors) if kinds else text, kinds


def scale_kind(name: str, scale: TensorView, operand: TensorView) -> tuple[Kind, TensorView] | None:
    """Return the kind of a scale, and the scale without the extents of 1 along which it broadcasts.

    None where it scales neither the whole operand, nor a matrix of its batch, nor a row of A, nor a column of B.
    """
    shape, is_matrix = scale.shape, len(operand.shape) > 1
    if is_matrix and name == "a_scale" and shape[-2:] == (operand.shape[-2], 1):
        return "row", _without_extent(scale, -1)
    if is_matrix and name == "b_scale" and shape[-1:] == operand.shape[-1:] and shape[-2:-1] in ((), (1,)):
        return "column", scale if len(shape) == 1 else _without_extent(scale, -2)
    if prod(shape) == 1:
        return "scalar", scale
    return ("batch", _without_extent(_without_extent(scale, -1), -1)) if shape[-2:] == (1, 1) else None


def _without_extent(tensor: TensorView, axis: int) -> TensorView:
    """Return a view without one extent, which must be 1."""
    shape, strides = list(tensor.shape), list(tensor.strides)
    del shape[axis], strides[axis]
    return replace(tensor, shape=tuple(shape), strides=tuple(strides))


def _scale_error(name: str, tensors: Mapping[str, TensorView], blocks: Mapping[str, tuple[int, ...]]) -> OperandError:
    """Return the error for a scale that fits neither blocks nor whole operands, rows or columns."""
    shape, operand = tensors[name].shape, tensors[name[0]].shape
    if name == "a_scale" and "rows" in tensors:
        return OperandError(
            f"a_scale has shape {shape}; with rows it must be one value, or {blocks[name]} for blocks of a, beside a "
            "b_scale for blocks of b: for others pass a[rows] and a_scale[rows] without rows"
        )
    vector_shape = (operand[-2], 1) if name == "a_scale" else (1, operand[-1])
    other = "b_scale" if name == "a_scale" else "a_scale"
    unit = "row" if name == "a_scale" else "column"
    expected = f"one value, or {vector_shape} with one value for each {unit}" if len(operand) > 1 else "one value"
    if shape[-2:] == blocks[name]:
        advice = f"this is the shape of block scales, which need {other} of shape {blocks[other]} too"
    elif shape == operand[-2:-1]:
        advice = f"pass {name}.unsqueeze(-1)"
    elif shape[-2:] == vector_shape[::-1]:
        advice = f"pass {name}.mT"
    else:
        advice = f"block scales have shapes {blocks[name]} for {name} and {blocks[other]} for {other}"
    return OperandError(f"{name} has shape {shape}; it must be {expected}. {advice[0].upper()}{advice[1:]}")
