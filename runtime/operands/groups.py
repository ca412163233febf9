"""Tensors bound to a grouped GEMM (by the conventions of ``torch._grouped_mm``) or to an array of GEMMs."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from gemmill.library.config.model import BatchingName
from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.parse import PLAIN, spelling
from gemmill.library.epilogues.tree import Epilogue
from gemmill.library.errors import OperandError
from gemmill.library.problem import is_mixed
from gemmill.runtime.operands.binding import check_devices, check_out, spread
from gemmill.runtime.operands.gemm import Gemm, assemble
from gemmill.runtime.operands.scales import block_scales
from gemmill.runtime.operands.shapes import grouped_shape
from gemmill.runtime.operands.strided import matrices
from gemmill.runtime.operands.tensors import TensorView


def bind_groups(
    a: TensorView,
    b: TensorView,
    d: TensorView,
    c: TensorView | None,
    accumulator: DTypeName,
    *,
    groups: TensorView,
    kind: str,
    tf32: bool = False,
    promote: Literal[0, 4] = 0,
    a_scale: TensorView | None = None,
    b_scale: TensorView | None = None,
    a_zero: TensorView | None = None,
    b_zero: TensorView | None = None,
    epilogue: Epilogue = PLAIN,
) -> Gemm:
    """The GEMM on these tensors, of the shapes that :func:`grouped_shape` names; ``c`` broadcasts to ``d``.

    The values of ``groups`` are on the GPU and are not read here. Addresses, (3 or 4, matrices), are pairs of s32.
    """
    if is_mixed(a.dtype, b.dtype) or a_zero is not None or b_zero is not None:
        raise OperandError(f"a is {a.dtype} and b {b.dtype}; with {kind}, kernels upconvert neither: pass one width")
    check_devices(a, b=b, c=c, out=d, a_scale=a_scale, b_scale=b_scale, **{kind: groups})
    if kind == "addresses" and epilogue is not PLAIN:
        raise OperandError(f"an epilogue is passed beside {kind}; kernels of arrays have none but alpha and beta")
    shape = grouped_shape(a.shape, b.shape, groups.shape, kind, epilogue)
    is_array = kind == "addresses"
    count, stride = (_matrices_of_array(groups, 3 if c is None else 4), 1) if is_array else _groups(groups, kind)
    check_out(a, b, d, shape)
    batching = _batching(kind, len(b.shape))
    if batching in ("kgrouped", "array") and (a_scale is not None or b_scale is not None):
        raise OperandError(
            f"block scales are given with {kind}, which here leave no way to find them: pass a and b unscaled"
        )
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    operands = [("a", a, m, k), ("b", b, k, n), ("out", d, m, shape[-1])]
    if c is not None:
        operands.append(("c", spread(c, shape), m, shape[-1]))
    read = {
        name: matrices(name, tensor, (count,) if len(tensor.shape) == 3 else (), rows, columns, True, True)
        for name, tensor, rows, columns in operands
    }
    slots = (count,) if batching == "masked" else ()
    gemm = assemble(
        (m, n, k, count),
        *(read["a"], read["b"], read.get("c"), read["out"]),
        accumulator,
        tf32=tf32,
        promote=promote,
        scales=block_scales(a_scale, b_scale, (m, n, k), slots, (count,)),
        batching=batching,
    )
    problem = gemm.problem if epilogue is PLAIN else gemm.problem.but(epilogue=spelling(epilogue))
    return replace(gemm, problem=problem, groups=groups.ptr, groups_stride=stride)


def expecting(gemm: Gemm, rows: int) -> Gemm:
    """The GEMM with so many rows of a slot expected to be in use; OperandError where they cannot be."""
    problem = gemm.problem
    if problem.batching != "masked":
        raise OperandError(f"expected_rows is {rows!r:.80}, without counts: it is for slots, leave it out")
    if type(rows) is not int or not 1 <= rows <= problem.m:
        raise OperandError(
            f"expected_rows is {rows!r:.80}; it must be a whole number from 1 to {problem.m}, the capacity of a slot"
        )
    return replace(gemm, problem=problem.but(expected_rows=rows))


def _batching(kind: str, rank_b: int) -> BatchingName:
    if kind == "offsets":
        return "grouped" if rank_b == 3 else "kgrouped"
    return "masked" if kind == "counts" else "array"


def _groups(groups: TensorView, kind: str) -> tuple[int, int]:
    """How many groups there are, and the stride of what finds them, in words of 32 bits; OperandError for offsets or
    counts that a kernel cannot read."""
    if groups.dtype != "s32":
        raise OperandError(f"{kind} is {groups.dtype}; it must be s32: pass {kind}.int()")
    (count,), (stride,) = groups.shape, groups.strides
    if not -1 << 31 <= stride < 1 << 31:
        raise OperandError(f"{kind} has stride {stride}; kernels count up to 2^31: pass {kind}.contiguous()")
    return count, stride


def _matrices_of_array(addresses: TensorView, rows: int) -> int:
    """How many matrices a table of addresses has."""
    shape = addresses.shape
    if addresses.dtype != "s32" or len(shape) != 2 or shape[0] != rows or shape[1] % 2:
        raise OperandError(
            f"addresses is not int64 ({rows}, matrices): a row each for a, b, out{' and c' if rows == 4 else ''}"
        )
    if 0 not in shape and addresses.strides != (shape[1], 1):
        raise OperandError("addresses is not packed: pass addresses.contiguous()")
    return shape[1] // 2
