"""Tensors bound to the operands of one GEMM, by the conventions of ``torch.matmul``."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.parse import PLAIN, spelling
from gemmill.library.epilogues.tree import Epilogue
from gemmill.library.errors import OperandError
from gemmill.library.problem import MAX_EXTENT, is_mixed, widens_a
from gemmill.runtime.operands.gemm import Gemm, assemble
from gemmill.runtime.operands.scales import block_scales, group_scales
from gemmill.runtime.operands.shapes import d_shape
from gemmill.runtime.operands.strided import broadcast, matrices, stacked, stacks
from gemmill.runtime.operands.tensors import TensorView


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
    ``d``; scales are as :func:`gemmill.matmul` takes them. Batch extents must collapse to one stride. With
    ``may_stack`` a batch that shares ``b`` may become one matrix. OperandError names the operand and the way out.
    """
    others = {"b": b, "c": c, "out": d, "a_scale": a_scale, "b_scale": b_scale, "a_zero": a_zero, "b_zero": b_zero}
    check_devices(a, **others)
    shape = d_shape(a.shape, b.shape, epilogue)
    check_out(a, b, d, shape)
    row_axis, column_axis = len(a.shape) > 1, len(b.shape) > 1
    m, k = (a.shape[-2] if row_axis else 1), a.shape[-1]
    n = b.shape[-1] if column_axis else 1
    d_columns = n // 2 if epilogue.gated else n
    batch_shape = shape[: len(shape) - row_axis - column_axis]
    batch = 1
    for extent in batch_shape:
        batch *= extent
    matrices_a = matrices("a", a, batch_shape, m, k, row_axis, True)
    matrices_b = matrices("b", b, batch_shape, k, n, True, column_axis)
    matrices_d = matrices("out", d, batch_shape, m, d_columns, row_axis, column_axis)
    matrices_c = None
    if c is not None:
        matrices_c = matrices("c", spread(c, shape), batch_shape, m, d_columns, row_axis, column_axis)

    groups = scales = None
    if is_mixed(a.dtype, b.dtype):
        narrow = matrices_a if widens_a(a.dtype, b.dtype) else matrices_b
        groups = group_scales(narrow, b if narrow is matrices_a else a, others, batch_shape)
    elif a_zero is not None or b_zero is not None:
        raise OperandError(f"zero points are for operands narrower than the other; a is {a.dtype} and b {b.dtype}")
    else:
        scales = block_scales(a_scale, b_scale, (m, n, k), batch_shape, batch_shape)

    batched = [x for x in (matrices_a, matrices_d, matrices_c) if x is not None]
    stackable = may_stack and 1 < batch <= MAX_EXTENT // max(m, 1) and matrices_b.batch_stride == 0 and scales is None
    stackable = stackable and (groups is None or groups.name == "b")
    if stackable and all(stacks(x) for x in batched):
        # One B for all: the batch is more rows of A, C and D.
        m, batch = m * batch, 1
        matrices_a, matrices_d = stacked(matrices_a, m), stacked(matrices_d, m)
        matrices_c = stacked(matrices_c, m) if matrices_c is not None else None

    extents = m, n, k, batch
    abcd = matrices_a, matrices_b, matrices_c, matrices_d
    gemm = assemble(extents, *abcd, accumulator, tf32=tf32, promote=promote, scales=scales)
    if epilogue is not PLAIN:
        gemm = replace(gemm, problem=replace(gemm.problem, epilogue=spelling(epilogue)))
    if groups is None:
        return gemm
    if groups.name == "b":
        if epilogue.gated:
            raise OperandError(
                f"the epilogue `{epilogue}` pairs columns of b, and kernels that upconvert b compute the transpose: "
                "apply it to the result, or upconvert b beforehand"
            )
        gemm = gemm.transposed
    problem = replace(gemm.problem, a_scale=groups.scaling)
    return replace(gemm, problem=problem, scale=groups.scale, zero=groups.zero)


def check_devices(a: TensorView, **others: TensorView | None) -> None:
    """Refuse operands on several GPUs."""
    for name, tensor in others.items():
        if tensor is not None and tensor.device != a.device:
            raise OperandError(f"{name} is on GPU {tensor.device} and a on GPU {a.device}; all must be on one")


def check_out(a: TensorView, b: TensorView, d: TensorView, shape: tuple[int, ...]) -> None:
    """Refuse a D that cannot hold a product of this shape."""
    if d.shape != shape:
        raise OperandError(f"out has shape {d.shape}; a {a.shape} @ b {b.shape} has {shape}")
    if not d.writable:
        raise OperandError("out is read-only")


def spread(c: TensorView, shape: tuple[int, ...]) -> TensorView:
    """C, broadcast to a shape."""
    return replace(c, shape=shape, strides=broadcast("c", c, shape))
