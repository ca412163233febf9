"""Tensors bound to a grouped GEMM (by the conventions of ``torch._grouped_mm``) or to an array of GEMMs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from gemmill.library.config.model import BatchingName
from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.parse import PLAIN, spelling
from gemmill.library.epilogues.tree import Epilogue
from gemmill.library.errors import OperandError
from gemmill.library.problem import is_mixed
from gemmill.runtime.operands.binding import (
    Gemm,
    assemble,
    block_scales,
    check_devices,
    check_out,
    halved,
    matmul_shape,
    matrices,
    spread,
)
from gemmill.runtime.operands.tensors import TensorView

GROUPS: Mapping[BatchingName, str] = MappingProxyType(
    {"grouped": "offsets", "kgrouped": "offsets", "masked": "counts", "array": "addresses"}
)
"""What the matrices of a batch are found by, other than strides."""


def groups_kind(tensors: Mapping[str, TensorView]) -> str:
    """What the matrices of a call are found by: ``offsets``, ``counts``, ``addresses``, or nothing but strides."""
    kinds = [kind for kind in dict.fromkeys(GROUPS.values()) if kind in tensors]
    if len(kinds) > 1:
        raise OperandError(
            f"{' and '.join(kinds)} are both given; pass offsets for groups one after the other, counts for slots, "
            "addresses for an array of matrices"
        )
    return kinds[0] if kinds else ""


def grouped_shape(
    a: tuple[int, ...], b: tuple[int, ...], groups: tuple[int, ...], kind: str, epilogue: Epilogue = PLAIN
) -> tuple[int, ...]:
    """Shape of D by those of A, B and the groups; ``kind`` is as :func:`groups_kind` says.

    ``offsets``: (M, K) by (groups, K, N) is (M, N), and (M, K) by (K, N) is (groups, M, N). ``counts``: (groups,
    capacity, K) by (groups, K, N) is (groups, capacity, N). ``addresses``: (M, K) by (K, N) is (M, N). A gated epilogue
    makes one column of two. OperandError where the shapes do not fit.
    """
    return halved(_grouped_shape(a, b, groups, kind), b, epilogue)


def _grouped_shape(a: tuple[int, ...], b: tuple[int, ...], groups: tuple[int, ...], kind: str) -> tuple[int, ...]:
    if kind == "addresses":
        if len(a) != 2 or len(b) != 2:
            raise OperandError(f"a has shape {a} and b {b}; with addresses, each is one matrix: (M, K) and (K, N)")
        return matmul_shape(a, b)
    if len(groups) != 1:
        raise OperandError(f"{kind} has shape {groups}; it must have one extent, the groups")
    (count,) = groups
    forms = {
        "offsets": f"(M, K) and b ({count}, K, N), or a (M, K) and b (K, N)",
        "counts": f"({count}, capacity, K) and b ({count}, K, N)",
    }
    ranks = len(a), len(b)
    if ranks not in {"offsets": ((2, 3), (2, 2)), "counts": ((3, 3),)}[kind]:
        raise OperandError(f"a has shape {a} and b {b}; with {kind} of {count} groups, a is {forms[kind]}")
    for name, shape in (("a", a), ("b", b)):
        if len(shape) == 3 and shape[0] != count:
            raise OperandError(f"{name} has {shape[0]} matrices and {kind} {count} entries; they must be equal")
    if a[-1] != b[-2]:
        raise OperandError(f"a {a} @ b {b}: a has K = {a[-1]} columns, b has K = {b[-2]} rows; they must be equal")
    return (a[0], b[-1]) if ranks == (2, 3) else (count, a[-2], b[-1])


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
        raise OperandError(f"a is {a.dtype} and b {b.dtype}; with {kind}, kernels widen neither: pass operands as wide")
    check_devices(a, b=b, c=c, out=d, a_scale=a_scale, b_scale=b_scale, **{kind: groups})
    if kind == "addresses" and epilogue is not PLAIN:
        raise OperandError(f"an epilogue is passed beside {kind}; kernels of arrays have none but alpha and beta")
    shape = grouped_shape(a.shape, b.shape, groups.shape, kind, epilogue)
    count = _matrices_of_array(groups, 3 if c is None else 4) if kind == "addresses" else _groups(groups, kind)
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
        groups=groups.ptr,
    )
    return gemm if epilogue is PLAIN else replace(gemm, problem=replace(gemm.problem, epilogue=spelling(epilogue)))


def _batching(kind: str, rank_b: int) -> BatchingName:
    if kind == "offsets":
        return "grouped" if rank_b == 3 else "kgrouped"
    return "masked" if kind == "counts" else "array"


def _groups(groups: TensorView, kind: str) -> int:
    """How many groups there are; OperandError for offsets or counts that a kernel cannot read."""
    if groups.dtype != "s32":
        raise OperandError(f"{kind} is {groups.dtype}; it must be s32: pass {kind}.int()")
    count = groups.shape[0]
    if count > 1 and groups.strides[0] != 1:
        raise OperandError(f"{kind} has stride {groups.strides[0]}; it must be 1: pass {kind}.contiguous()")
    return count


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
