"""Shapes of D by those of A and B, by the conventions of ``torch.matmul`` or of groups."""

from __future__ import annotations

from collections.abc import Mapping

from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.epilogues.tree import Epilogue
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.gemm import FOUND_BY
from gemmill.runtime.operands.tensors import TensorView

_KINDS = tuple(dict.fromkeys(FOUND_BY.values()))


def matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of ``a @ b``: vectors lose their extent, batch extents broadcast; OperandError where they do not fit."""
    if not a or not b:
        raise OperandError(f"a has shape {a} and b {b}; matmul takes no scalars: multiply with alpha")
    inner = b[-2] if len(b) > 1 else b[-1]
    if a[-1] != inner:
        raise _unequal_k(a, b)
    longest = max(len(a), len(b)) - 2
    batch = []
    for axis in range(longest, 0, -1):
        extents = {shape[-2 - axis] for shape in (a, b) if len(shape) - 2 >= axis} - {1}
        if len(extents) > 1:
            raise OperandError(f"a {a} @ b {b}: batch extents {sorted(extents)} do not broadcast")
        batch.append(extents.pop() if extents else 1)
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _unequal_k(a: tuple[int, ...], b: tuple[int, ...]) -> OperandError:
    """The error for operands of several K, with the transpose that has the other's, if one has."""
    inner = b[-2] if len(b) > 1 else b[-1]
    turned = "b" if len(b) > 1 and b[-1] == a[-1] else "a" if len(a) > 1 and a[-2] == inner else ""
    way = f": pass {turned}.mT, whose strides are read as they are" if turned else ""
    return OperandError(f"a {a} @ b {b}: a has K = {a[-1]} columns, b has K = {inner} rows; they must be equal{way}")


def wider(tensors: Mapping[str, TensorView]) -> DTypeName:
    """The dtype of the wider of A and B."""
    a, b = tensors["a"].dtype, tensors["b"].dtype
    return b if DTYPES[b].bits > DTYPES[a].bits else a


def require_groups(offsets: object, counts: object, instead: str) -> None:
    """OperandError for a grouped call without groups; it names the function to call ``instead``."""
    if offsets is None and counts is None:
        raise OperandError(f"neither offsets nor counts is given; for a batch of equal matrices call {instead}")


def groups_kind(tensors: Mapping[str, TensorView]) -> str:
    """What the matrices of a call are found by: ``offsets``, ``counts``, ``addresses``, or nothing but strides."""
    kinds = [kind for kind in _KINDS if kind in tensors]
    if len(kinds) > 1:
        raise OperandError(
            f"{' and '.join(kinds)} are both given; pass offsets for groups one after the other, counts for slots, "
            "addresses for an array of matrices"
        )
    return kinds[0] if kinds else ""


def shape_of_d(tensors: Mapping[str, TensorView], epilogue: Epilogue) -> tuple[int, ...]:
    """Shape of D by A, B and what finds the matrices; OperandError where they do not fit.

    It is that of ``a @ b``. ``offsets``: (M, K) by (groups, K, N) is (M, N), and (M, K) by (K, N) is (groups, M, N).
    ``counts``: (groups, capacity, K) by (groups, K, N) is (groups, capacity, N). ``addresses``: (M, K) by (K, N) is (M,
    N). A gated epilogue makes one column of two.
    """
    kind, a, b = groups_kind(tensors), tensors["a"].shape, tensors["b"].shape
    shape = _grouped_shape(a, b, tensors[kind].shape, kind) if kind else matmul_shape(a, b)
    if not epilogue.gated:
        return shape
    if len(b) < 2 or b[-1] % 2:
        columns = b[-1] if len(b) > 1 else 1
        raise OperandError(f"b {b} has N = {columns}; a gated epilogue makes one column of two, so N must be even")
    return (*shape[:-1], shape[-1] // 2)


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
        raise _unequal_k(a, b)
    return (a[0], b[-1]) if ranks == (2, 3) else (count, a[-2], b[-1])
