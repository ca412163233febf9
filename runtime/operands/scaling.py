"""Scales that are factors of the sums, and so operands of the epilogue: of whole operands, rows of A and columns of B.

``a_scale`` and ``b_scale`` are what ``a * a_scale`` and ``b * b_scale`` would broadcast, such that a row of A or a
column of B has one value. An expression may say itself where they stand; else they multiply each sum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod

from gemmill.library.config.scales import BLOCK_SCALES
from gemmill.library.epilogues.grammar import SCALES
from gemmill.library.epilogues.tree import Kind, scaled
from gemmill.library.epilogues.tree import Operand as EpilogueOperand
from gemmill.library.errors import OperandError
from gemmill.library.problem import is_mixed, upconverts_a
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.operands.matrices import block_shapes, has_groups
from gemmill.runtime.operands.tensors import TensorView


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
    blocks = block_shapes(a, b)
    given = {name: tensors[name] for name in SCALES if name in tensors and name not in named}
    forms = {name: scale_kind(name, scale, tensors[name[0]]) for name, scale in given.items()}
    if is_mixed(a.dtype, b.dtype):
        narrow = "a" if upconverts_a(a.dtype, b.dtype) else "b"
        grouped = narrow if has_groups(narrow, tensors) else ""
        forms = {name: x for name, x in forms.items() if name[0] != grouped and x is not None}
    elif {name: scale.shape[-2:] for name, scale in given.items()} == blocks and (
        None in forms.values() or {scale.dtype for scale in given.values()} in ({dtype} for dtype in BLOCK_SCALES)
    ):
        return {}
    for name, found in forms.items():
        if found is None:
            raise _refused(name, tensors, blocks)
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


def _refused(name: str, tensors: Mapping[str, TensorView], blocks: Mapping[str, tuple[int, ...]]) -> OperandError:
    """What to say of a scale that scales neither blocks nor all of a row or column."""
    own, operand = tensors[name].shape, tensors[name[0]].shape
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
