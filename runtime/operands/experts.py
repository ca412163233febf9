"""Checks the tensors of a layer of experts, and says how large the buffers between its launches are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod
from typing import NamedTuple

from gemmill.emitters.ptx import BITS
from gemmill.library.config.scales import BLOCK_SCALES
from gemmill.library.dtypes import DTYPES as TABLE
from gemmill.library.dtypes import DTypeName, default_output
from gemmill.library.epilogues.tree import Epilogue, fault_of_n
from gemmill.library.errors import OperandError
from gemmill.library.legality.quantities import TMA_ALIGN, align_up
from gemmill.library.problem import upconverts_a
from gemmill.library.wording import one_of
from gemmill.runtime.operands import narrow_experts
from gemmill.runtime.operands.matrices import SCALE_BLOCK
from gemmill.runtime.operands.routing import shape_of_slots
from gemmill.runtime.operands.tensors import TensorView, check_devices

DTYPES = ("bf16", "f16", "e4m3")
"""Dtypes of tokens, and of weights that are not narrower."""

SCALES = ("x_scale", "w1_scale", "w2_scale")
"""Scales of blocks of e4m3 tokens and weights. Narrow weights have scales of groups in place of the last two."""


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


Shapes = dict[str, tuple[tuple[int, ...], DTypeName]]
"""Shapes and dtypes of tensors by name."""


def memory_pieces(
    extents: LayerExtents, dtype: DTypeName, copies: bool, scale_dtype: DTypeName = "f32", *, narrow: bool = False
) -> tuple[dict[str, Piece], int]:
    """Return the tensors between the launches of a layer by name, and the bytes of all.

    Args:
        extents: Extents of the layer.
        dtype: Dtype of tokens and weights.
        copies: Whether the rows of tokens are copied.
        scale_dtype: Dtype of scales of blocks.
        narrow: Whether weights are narrower than tokens. Beside e4m3, rows between the products are then of 16 bits.
    """
    has_blocks = dtype == "e4m3" and not narrow
    shapes: Shapes = {
        "offsets": ((extents.experts,), "s32"),
        "rows": ((extents.rows,), "s32"),
        "places": ((extents.tokens, extents.slots), "s32"),
        "inner": ((extents.rows, extents.inner), dtype if has_blocks else default_output(dtype)),
        "y": ((extents.rows, extents.hidden), default_output(dtype)),
    }
    if has_blocks:
        shapes["inner_scale"] = (extents.inner // SCALE_BLOCK, extents.rows), scale_dtype
    if copies:
        shapes["copy"] = (extents.rows, extents.hidden), dtype
    if copies and dtype == "e4m3":
        shapes["copy_scale"] = (-(-extents.hidden // SCALE_BLOCK) if has_blocks else 1, extents.rows), scale_dtype
    return packed(shapes)


def packed(shapes: Shapes) -> tuple[dict[str, Piece], int]:
    """Return tensors of these shapes one after another in memory, and the bytes of all."""
    pieces, offset = {}, 0
    for name, (shape, dtype) in shapes.items():
        pieces[name] = Piece(offset, shape, dtype)
        offset = align_up(offset + prod(shape) * TABLE[dtype].bytes, PIECE_ALIGN)
    return pieces, offset


def in_memory(pieces: Mapping[str, Piece], memory: TensorView) -> dict[str, TensorView]:
    """Return pieces of memory as tensors."""
    return {
        name: TensorView(
            memory.ptr + offset,
            shape,
            tuple([prod(shape[axis + 1 :]) for axis in range(len(shape))]),
            dtype,
            memory.device,
            owner=memory.owner,
        )
        for name, (offset, shape, dtype) in pieces.items()
    }


PIECE_ALIGN = 256
"""Bytes to which the tensors between launches are aligned, as allocators align theirs."""


def layer_shapes(extents: LayerExtents, activation: Epilogue, narrow: bool = False) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a layer by keyword, except that of ``topk_ids``. ``narrow``: whether weights
    are narrower than tokens, which then have one scale each."""
    tokens, slots, experts, hidden, inner = extents
    sums = inner * (2 if activation.gated else 1)
    hidden_blocks, sum_blocks, inner_blocks = (-(-extent // SCALE_BLOCK) for extent in (hidden, sums, inner))
    return {
        "x": (tokens, hidden),
        "w1": (experts, sums, hidden),
        "w2": (experts, hidden, inner),
        "topk_weights": (tokens, slots),
        "b2": (experts, hidden),
        "out": (tokens, hidden),
        "x_scale": (tokens, 1 if narrow else hidden_blocks),
        "w1_scale": (experts, sum_blocks, hidden_blocks),
        "w2_scale": (experts, hidden_blocks, inner_blocks),
    }


def layer_extents(tensors: Mapping[str, TensorView], activation: Epilogue) -> LayerExtents:
    """Return the extents of a layer, given its tensors by keyword and the epilogue of its first product.

    Raises:
        OperandError: a tensor does not fit; the message names it.
    """
    refuse_activation(activation)
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
    extents, narrow = LayerExtents(tokens, slots, w2.shape[0], x.shape[1], w2.shape[2]), upconverts_a(w1.dtype, x.dtype)
    _check_weights(tensors, narrow)
    shapes = layer_shapes(extents, activation, narrow)
    if narrow:
        narrow_experts.check_scales_of_tokens(x.dtype, tensors)
        given = {name: tensor.shape for name, tensor in tensors.items()}
        shapes |= narrow_experts.shapes_of_groups(w1.dtype, x.dtype, given, shapes["w1"], shapes["w2"])
    for name, shape in shapes.items():
        if name in tensors and tensors[name].shape != shape:
            advice = ""
            if narrow and name in narrow_experts.OF_GROUPS:
                advice = narrow_experts.advice_on_groups(name, w1.dtype, x.dtype, tensors[name].shape, shape)
            raise OperandError(
                f"{name} has shape {tensors[name].shape}; with x {x.shape}, w2 {w2.shape}, topk_ids {ids.shape} and "
                f"the activation `{activation}` it must have shape {shape}{advice}"
            )
    if fault := fault_of_n(activation, w1.shape[1]):
        raise OperandError(f"w1 has shape {w1.shape}, so N is {w1.shape[1]}: {fault}")
    _check_operands(tensors, narrow)
    if narrow:
        narrow_experts.check_narrow(tensors, activation)
    _check_units(x.dtype, extents, narrow)
    return extents


def refuse_activation(activation: Epilogue) -> None:
    """Raise OperandError for an activation that reads C, or pairs rows."""
    if activation.gate_rows:
        raise OperandError(f"the activation `{activation}` pairs rows, which are tokens of experts: use gate8 and up8")
    if activation.reads_c:
        raise OperandError(
            f"the activation `{activation}` reads c, which a layer of experts does not have: use an operand like b[n]"
        )


def refuse_scales(given: Collection[str], dtype: DTypeName) -> None:
    """Raise OperandError for scales without e4m3, and for e4m3 without scales, by the keywords that are ``given``. The
    weights are not narrow."""
    for name in narrow_experts.ZEROS:
        if name in given:
            raise OperandError(f"{name} is passed, and no weights are narrower than x: leave it out")
    for name in SCALES:
        if (name in given) != (dtype == "e4m3"):
            raise OperandError(
                f"{name} is {'passed' if name in given else 'missing'} and x is {dtype}; pass x_scale, w1_scale and "
                "w2_scale with e4m3, and with no other dtype of tokens and weights"
            )


def _check_units(dtype: DTypeName, extents: LayerExtents, narrow: bool) -> None:
    """Raise OperandError for rows that TMA cannot load, or that blocks of scales do not divide."""
    unit = TMA_ALIGN // TABLE[dtype].bytes
    unit_of_inner = SCALE_BLOCK if dtype == "e4m3" and not narrow else unit
    for letter, extent, multiple in (("H", extents.hidden, unit), ("F", extents.inner, unit_of_inner)):
        if extent % multiple:
            raise OperandError(
                f"{letter} is {extent}; for {dtype} it must be a multiple of {multiple}: pad x and the weights with "
                "zeros"
            )


def _check_weights(tensors: Mapping[str, TensorView], narrow: bool) -> None:
    """Raise OperandError for dtypes of tokens and weights that no product takes together."""
    x = tensors["x"]
    for name in ("x", "w1", "w2"):
        dtype = tensors[name].dtype
        wanted = tensors["w1"].dtype if narrow and name != "x" else x.dtype
        if x.dtype not in DTYPES or dtype != wanted:
            raise OperandError(
                f"{name} is {dtype}; x, w1 and w2 must all be bf16, all f16 or all e4m3, or w1 and w2 of one narrower "
                f"dtype beside bf16 or f16, or s4 beside e4m3: convert {name} first"
            )


def _check_operands(tensors: Mapping[str, TensorView], narrow: bool) -> None:
    """Raise OperandError for other dtypes, a GPU or strides that no launch takes."""
    x = tensors["x"]
    if not narrow:
        refuse_scales(tensors, x.dtype)
    if x.dtype == "e4m3" and not narrow:
        check_scales({name: tensors[name].dtype for name in SCALES})
    if "topk_weights" in tensors and (dtype := tensors["topk_weights"].dtype) not in BITS:
        raise OperandError(f"topk_weights is {dtype}; it must be {one_of([*BITS])}: convert it first")
    check_devices(tensors)
    if x.shape[1] > 1 and x.strides[1] != 1:
        raise OperandError(f"x has strides {x.strides}; its rows must be contiguous: pass x.contiguous()")
    for name in ("w1", "w2"):
        what, first = ("rows", 2) if x.dtype == "e4m3" else ("rows or its columns", 1)
        if 1 not in tensors[name].strides[first:] and 0 not in tensors[name].shape:
            raise OperandError(
                f"{name} has strides {tensors[name].strides}; its {what} must be contiguous: pass {name}.contiguous()"
            )


def check_scales(dtypes: Mapping[str, DTypeName]) -> None:
    """Raise OperandError for scales of blocks whose dtypes, by keyword, the products do not take together."""
    first = dtypes["x_scale"]
    for name, dtype in dtypes.items():
        if dtype not in BLOCK_SCALES:
            raise OperandError(f"{name} is {dtype}; it must be {one_of([*BLOCK_SCALES])}: pass {name}.float()")
        if dtype != first:
            wide = "x_scale" if first != "f32" else name
            raise OperandError(
                f"{name} is {dtype} and x_scale is {first}; all scales must have one dtype: pass {wide}.float()"
            )


def transposed(matrices: TensorView) -> TensorView:
    """Return the view with its last two extents exchanged."""
    *batch, rows, columns = matrices.shape
    *steps, row, column = matrices.strides
    return replace(matrices, shape=(*batch, columns, rows), strides=(*steps, column, row))
