"""Checks the tensors of a layer of experts, and says how large the buffers between its launches are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import NamedTuple

from gemmill.library.dtypes import DTYPES as TABLE
from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.tree import Epilogue, fault_of_n
from gemmill.library.errors import OperandError
from gemmill.library.legality.quantities import align_up
from gemmill.runtime.operands.routing import shape_of_slots
from gemmill.runtime.operands.tensors import TensorView

DTYPES = ("bf16", "f16")
"""Dtypes of tokens and weights."""


ROW_UNIT = 8
"""Elements of 16 bits of which a row has a multiple, as TMA demands."""


class LayerExtents(NamedTuple):
    """Extents of a layer of experts."""

    tokens: int
    slots: int
    """Experts of a token."""
    experts: int
    hidden: int
    """Elements of a token."""
    inner: int
    """Elements of a row between the two products."""

    @property
    def rows(self) -> int:
        """Rows of all experts, at most: one for each slot of a token."""
        return self.tokens * self.slots


class Piece(NamedTuple):
    """A packed tensor in the memory between the launches."""

    offset: int
    """Bytes before it."""
    shape: tuple[int, ...]
    dtype: DTypeName


def memory_pieces(extents: LayerExtents, dtype: DTypeName, copies: bool) -> tuple[dict[str, Piece], int]:
    """Return the tensors between the launches of a layer by name, and the bytes of all.

    Args:
        extents: Extents of the layer.
        dtype: Dtype of tokens and weights.
        copies: Whether the rows of tokens are copied.
    """
    shapes: dict[str, tuple[tuple[int, ...], DTypeName]] = {
        "offsets": ((extents.experts,), "s32"),
        "rows": ((extents.rows,), "s32"),
        "places": ((extents.tokens, extents.slots), "s32"),
        "inner": ((extents.rows, extents.inner), dtype),
        "y": ((extents.rows, extents.hidden), dtype),
    }
    if copies:
        shapes["copy"] = (extents.rows, extents.hidden), dtype
    pieces, offset = {}, 0
    for name, (shape, of_piece) in shapes.items():
        pieces[name] = Piece(offset, shape, of_piece)
        offset = align_up(offset + prod(shape) * TABLE[of_piece].bytes, PIECE_ALIGN)
    return pieces, offset


PIECE_ALIGN = 256
"""Bytes to which the tensors between launches are aligned, as allocators align theirs."""


def layer_extents(tensors: Mapping[str, TensorView], activation: Epilogue) -> LayerExtents:
    """Return the extents of a layer, given its tensors by keyword and the epilogue of its first product.

    Raises:
        OperandError: a tensor does not fit; the message names it.
    """
    x, w1, w2, ids = (tensors[name] for name in ("x", "w1", "w2", "topk_ids"))
    columns = "2 F" if activation.gated else "F"
    for name, rank, form in (
        ("x", 2, "(tokens, H)"),
        ("w1", 3, f"(experts, {columns}, H), as the activation is `{activation}`"),
        ("w2", 3, "(experts, H, F)"),
    ):
        if len(tensors[name].shape) != rank:
            raise OperandError(f"{name} has shape {tensors[name].shape}; it must be {form}")
    tokens, slots = shape_of_slots("topk_ids", ids)
    extents = LayerExtents(tokens, slots, w2.shape[0], x.shape[1], w2.shape[2])
    sums = extents.inner * (2 if activation.gated else 1)
    shapes = {
        "x": (tokens, extents.hidden),
        "w1": (extents.experts, sums, extents.hidden),
        "w2": (extents.experts, extents.hidden, extents.inner),
        "topk_weights": (tokens, slots),
        "b2": (extents.experts, extents.hidden),
        "out": (tokens, extents.hidden),
    }
    for name, shape in shapes.items():
        if name in tensors and tensors[name].shape != shape:
            raise OperandError(
                f"{name} has shape {tensors[name].shape}; with x {x.shape}, w2 {w2.shape}, topk_ids {ids.shape} and "
                f"the activation `{activation}` it must have shape {shape}"
            )
    if fault := fault_of_n(activation, sums):
        raise OperandError(f"w1 has shape {w1.shape}, so N is {sums}: {fault}")
    for letter, extent in (("H", extents.hidden), ("F", extents.inner)):
        if extent % ROW_UNIT:
            raise OperandError(
                f"{letter} is {extent}; it must be a multiple of {ROW_UNIT}, so that rows are aligned to 16 bytes: pad "
                "x and the weights with zeros"
            )
    _check_operands(tensors)
    return extents


def _check_operands(tensors: Mapping[str, TensorView]) -> None:
    """Raise OperandError for a dtype, a GPU or strides that no launch takes."""
    x = tensors["x"]
    for name in ("x", "w1", "w2"):
        dtype = tensors[name].dtype
        if dtype not in DTYPES or dtype != x.dtype:
            raise OperandError(f"{name} is {dtype}; x, w1 and w2 must all be bf16, or all f16: convert {name} first")
    for name, tensor in tensors.items():
        if tensor.device != x.device:
            raise OperandError(f"{name} is on GPU {tensor.device} and x is on GPU {x.device}; all must be on one GPU")
    if x.shape[1] > 1 and x.strides[1] != 1:
        raise OperandError(f"x has strides {x.strides}; its rows must be contiguous: pass x.contiguous()")
    for name in ("w1", "w2"):
        if 1 not in tensors[name].strides[1:] and 0 not in tensors[name].shape:
            raise OperandError(
                f"{name} has strides {tensors[name].strides}; its rows or its columns must be contiguous: pass "
                f"{name}.contiguous()"
            )


def transposed(matrices: TensorView) -> TensorView:
    """Return the view with its last two extents exchanged."""
    *batch, rows, columns = matrices.shape
    *steps, row, column = matrices.strides
    return replace(matrices, shape=(*batch, columns, rows), strides=(*steps, column, row))
