"""Tensors bound to the operands of one GEMM, by the conventions of ``torch.matmul``."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Literal

from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.parse import PLAIN, spelling
from gemmill.library.epilogues.tree import Epilogue
from gemmill.library.errors import OperandError
from gemmill.library.problem import MAX_EXTENT, is_mixed, upconverts_a
from gemmill.runtime.operands.gemm import Gemm, assemble
from gemmill.runtime.operands.scales import GroupScales, Scale, block_scales, group_scales, stacked_scales
from gemmill.runtime.operands.shapes import d_shape
from gemmill.runtime.operands.strided import Matrices, broadcast, matrices, merge, stacked, stacks
from gemmill.runtime.operands.tensors import TensorView

_Matrices = tuple[Matrices, Matrices, Matrices | None, Matrices]
"""A, B, C and D."""


def bind(
    a: TensorView,
    b: TensorView,
    d: TensorView,
    c: TensorView | None,
    accumulator: DTypeName,
    *,
    tf32: bool = False,
    promote: Literal[0, 4] = 0,
    a_scale: TensorView | None = None,
    b_scale: TensorView | None = None,
    a_zero: TensorView | None = None,
    b_zero: TensorView | None = None,
    epilogue: Epilogue = PLAIN,
    may_stack: bool = True,
) -> Gemm:
    """The GEMM that writes ``alpha * a @ b + beta * c``, or what ``epilogue`` makes of the sums, to ``d``.

    ``a`` is (..., M, K) or (K,), ``b`` (..., K, N) or (K,), ``d`` as :func:`matmul_shape` says, ``c`` broadcasts to
    ``d``; scales are as :func:`gemmill.matmul` takes them, with batch extents that collapse to one stride. With
    ``may_stack`` a batch that shares ``b`` may become one matrix. OperandError names the operand and the way out.
    """
    others = {"b": b, "c": c, "out": d, "a_scale": a_scale, "b_scale": b_scale, "a_zero": a_zero, "b_zero": b_zero}
    check_devices(a, **others)
    shape = d_shape(a.shape, b.shape, epilogue)
    check_out(a, b, d, shape)
    row_axis, column_axis = len(a.shape) > 1, len(b.shape) > 1
    m, n, k = (a.shape[-2] if row_axis else 1), (b.shape[-1] if column_axis else 1), a.shape[-1]
    d_columns = n // 2 if epilogue.gated else n
    batch_shape = shape[: len(shape) - row_axis - column_axis]
    abcd: _Matrices = (
        matrices("a", a, batch_shape, m, k, row_axis, True),
        matrices("b", b, batch_shape, k, n, True, column_axis),
        None if c is None else matrices("c", spread(c, shape), batch_shape, m, d_columns, row_axis, column_axis),
        matrices("out", d, batch_shape, m, d_columns, row_axis, column_axis),
    )
    extents, abcd = merge(batch_shape, abcd)
    batch, nested = prod(extents), extents if len(extents) > 1 else ()
    groups = scales = None
    if is_mixed(a.dtype, b.dtype):
        narrow, wide = (abcd[0], b) if upconverts_a(a.dtype, b.dtype) else (abcd[1], a)
        groups = group_scales(narrow, wide, others, batch_shape)
    elif a_zero is not None or b_zero is not None:
        raise OperandError(f"zero points are for operands narrower than the other; a is {a.dtype} and b {b.dtype}")
    else:
        scales = block_scales(a_scale, b_scale, (m, n, k), batch_shape, batch_shape)

    may_stack = may_stack and not nested and (groups is None or groups.name == "b")
    if may_stack and _stackable(abcd, scales, m, batch):
        abcd, scales, m, batch = _stacked(abcd, m * batch), scales and stacked_scales(*scales, m), m * batch, 1
    gemm = assemble((m, n, k, batch), *abcd, accumulator, tf32=tf32, promote=promote, scales=scales, nested=nested)
    if epilogue is not PLAIN:
        gemm = replace(gemm, problem=gemm.problem.but(epilogue=spelling(epilogue)))
    return gemm if groups is None else _with_group_scales(gemm, groups, epilogue)


def _stackable(abcd: _Matrices, scales: tuple[Scale, Scale] | None, m: int, batch: int) -> bool:
    """Whether a batch has one B for all: it is then more rows of A, C and D."""
    a, b, c, d = abcd
    fits = 1 < batch <= MAX_EXTENT // max(m, 1) and b.batch_stride == 0
    fits = fits and all(stacks(x) for x in (a, c, d) if x is not None)
    return fits and (scales is None or stacked_scales(*scales, m) is not None)


def _stacked(abcd: _Matrices, m: int) -> _Matrices:
    a, b, c, d = abcd
    return stacked(a, m), b, None if c is None else stacked(c, m), stacked(d, m)


def _with_group_scales(gemm: Gemm, groups: GroupScales, epilogue: Epilogue) -> Gemm:
    """A GEMM whose narrower operand is upconverted: of A, so that where it is B it is the transpose."""
    if groups.name == "b":
        if epilogue.gated:
            raise OperandError(
                f"the epilogue `{epilogue}` pairs columns of b, and kernels that upconvert b compute the transpose: "
                "apply it to the result, or upconvert b beforehand"
            )
        gemm = gemm.transposed
    problem = gemm.problem.but(a_scale=groups.scaling)
    return replace(gemm, problem=problem, scale=groups.scale, zero=groups.zero)


def check_devices(a: TensorView, **others: TensorView | None) -> None:
    """Refuse operands on several GPUs."""
    for name, tensor in others.items():
        if tensor is not None and tensor.device != a.device:
            raise OperandError(f"{name} is on GPU {tensor.device} and a on GPU {a.device}; all must be on one")


def check_out(a: TensorView, b: TensorView, d: TensorView, shape: tuple[int, ...]) -> None:
    """Refuse a D that cannot hold a product of this shape."""
    if d.shape != shape:
        raise OperandError(f"out has shape {d.shape}; a {a.shape} @ b {b.shape} has {shape}: pass one of that shape")
    if not d.writable:
        raise OperandError("out is read-only: pass memory that may be written to")


def spread(c: TensorView, shape: tuple[int, ...]) -> TensorView:
    """C, broadcast to a shape."""
    return replace(c, shape=shape, strides=broadcast("c", c.shape, c.strides, shape))
