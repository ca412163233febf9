"""Shapes and dtypes of the operators' outputs, also for symbolic extents.

Fake kernels use them, and so do real outputs that ``matmul`` does not allocate: packed tensors on A's device. Extents
are compared only where a product requires it, because each comparison becomes a guard of the compiled program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from gemmill.library.dtypes import DTYPES, default_output
from gemmill.library.epilogues.tree import BLOCK, Epilogue, fault_of_m, fault_of_n
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.operands.matrices import SCALE_BLOCK
from gemmill.runtime.operands.tensors import dtype_named

Extents = tuple[Any, ...]
"""The shape of a tensor; extents are int or SymInt."""


class Output(NamedTuple):
    """Shape and dtype of a tensor to allocate."""

    shape: Extents
    dtype: torch.dtype

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """Allocate it packed, on the device of another tensor."""
        return like.new_empty(self.shape, dtype=self.dtype)


def of_two(a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None, **_: Any) -> list[Output]:
    """D (M, N) of two matrices, (M, K) and (K, N)."""
    _check_ranks(a.dim() == 2 and b.dim() == 2, a, b, "(M, K) and (K, N)")
    _check_k(a, b)
    return [Output(d_shape(a, b), out_dtype or d_dtype(a.dtype, b.dtype))]


def of_batch(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    a_dtype: str | None = None,
    b_dtype: str | None = None,
    **_: Any,
) -> list[Output]:
    """D (..., M, N) of (..., M, K) and (..., K, N), whose batch extents broadcast."""
    _check_ranks(a.dim() >= 2 and b.dim() >= 2, a, b, "(..., M, K) and (..., K, N)")
    _check_k(a, b, a_dtype, b_dtype)
    return [Output(d_shape(a, b), out_dtype or d_dtype(a.dtype, b.dtype, a_dtype, b_dtype))]


def of_groups(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
    *,
    rows: torch.Tensor | None = None,
    a_scale: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    b_dtype: str | None = None,
    **_: Any,
) -> list[Output]:
    """D of a grouped product, as in :func:`gemmill.grouped_matmul`."""
    torch._check(offsets is not None or counts is not None, lambda: "offsets and counts are both missing: pass one")
    ranks = a.dim(), b.dim()
    if counts is not None:
        _check_ranks(ranks == (3, 3), a, b, "(groups, capacity, K) and (groups, K, N)")
    else:
        _check_ranks(ranks in ((2, 3), (2, 2)), a, b, "(M, K) and (groups, K, N), or (M, K) and (K, N)")
    if rows is None or b.dim() == 3:
        _check_k(a, b, b_dtype=b_dtype)
    if rows is not None:
        torch._check(
            offsets is not None and rows.dim() == 1 and (b.dim() == 3 or rows.shape[0] == b.shape[0]),
            lambda: (
                "rows is an index for groups at offsets: pass offsets and rows (M,), a (any, K) and b (groups, K, N), "
                "or rows (K,), a (M, any) and b (K, N)"
            ),
        )
        torch._check(
            a_scale is None or a_scale.shape == (a.shape[0], -(-a.shape[-1] // SCALE_BLOCK)),
            lambda: "a_scale must have scales of blocks with rows: pass a[rows] and a_scale[rows] without rows",
        )
    return [Output(grouped_shape(a, b, offsets, rows), out_dtype or d_dtype(a.dtype, b.dtype, b_dtype=b_dtype))]


def of_epilogue(
    expression: str,
    a: torch.Tensor,
    b: torch.Tensor,
    named: Mapping[str, Any],
    *,
    out_dtype: torch.dtype | None = None,
    a_dtype: str | None = None,
    b_dtype: str | None = None,
    **_: Any,
) -> list[Output]:
    """D, then an expression's further outputs in its order."""
    epilogue = read_epilogue(expression)
    if "offsets" in named or "counts" in named:
        tables = {name: named.get(name) for name in ("offsets", "counts", "rows")}
        ((shape, dtype),) = of_groups(a, b, **tables, out_dtype=out_dtype, b_dtype=b_dtype)
    else:
        ((shape, dtype),) = of_batch(a, b, out_dtype=out_dtype, a_dtype=a_dtype, b_dtype=b_dtype)
    torch._check(shape[-1] % epilogue.unit_columns == 0, lambda: f"N is {shape[-1]}; {fault_of_n(epilogue, shape[-1])}")
    if epilogue.gate_rows:
        torch._check("offsets" not in named and "counts" not in named, lambda: f"groups cannot pair rows: {epilogue}")
        torch._check(
            shape[-2] % (2 * epilogue.gate_rows) == 0, lambda: f"M is {shape[-2]}; {fault_of_m(epilogue, shape[-2])}"
        )
    shape = (*shape[:-2], *epilogue.shape_of_d(shape[-2], shape[-1]))
    groups = None
    if "offsets" in named and b.dim() == 3:
        groups = b.shape[0]  # the groups share one D
    return [Output(shape, dtype), *_beside_d(epilogue, shape, groups)]


def _beside_d(epilogue: Epilogue, d: Extents, groups: Any) -> list[Output]:
    batch, m, n = d[:-2], d[-2], d[-1]
    of_matrices = batch if groups is None else (groups,)
    shapes: dict[str, Sequence[Any]] = {
        "matrix": d,
        "row": (*batch, m),
        "column": (*of_matrices, n),
        "batch": of_matrices,
        "scalar": (),
        "block": (*d[:-1], n // BLOCK),
    }
    return [Output(tuple(shapes[x.kind]), torch_dtype(x.dtype)) for x in epilogue.outputs]


def d_shape(a: torch.Tensor, b: torch.Tensor) -> Extents:
    """Shape of ``a @ b``; does not check that shapes match."""
    batch = a.shape[:-2] if b.dim() == 2 else torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (*batch, a.shape[-2], b.shape[-1])


def grouped_shape(
    a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor | None, rows: torch.Tensor | None = None
) -> Extents:
    """Shape of D of a grouped product; does not check that shapes match."""
    if rows is not None and b.dim() == 3:
        return (rows.shape[0], b.shape[-1])
    if offsets is None or b.dim() == 3:
        return (*a.shape[:-1], b.shape[-1])
    return (offsets.shape[0], a.shape[0], b.shape[1])


def d_dtype(a: torch.dtype, b: torch.dtype, a_dtype: object = None, b_dtype: object = None) -> torch.dtype:
    """Default dtype of D, from the dtypes of A and B, or from ``a_dtype`` and ``b_dtype`` if given."""
    if a.is_complex and b.is_complex:
        return torch.promote_types(a, b)
    held = dtype_named(a_dtype or a, "a"), dtype_named(b_dtype or b, "b")
    return torch_dtype(default_output(max(held, key=lambda dtype: DTYPES[dtype].bits)))


def torch_dtype(dtype: object) -> torch.dtype:
    """The ``torch.dtype`` for a dtype in any form that callers may pass."""
    if isinstance(dtype, torch.dtype):
        return dtype
    converted: torch.dtype = getattr(torch, DTYPES[dtype_named(dtype, "out_dtype")].torch)
    return converted


def _check_ranks(right: bool, a: torch.Tensor, b: torch.Tensor, wanted: str) -> None:
    torch._check(right, lambda: f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}; expected {wanted}")


def _check_k(a: torch.Tensor, b: torch.Tensor, a_dtype: str | None = None, b_dtype: str | None = None) -> None:
    k_of_a, k_of_b = a.shape[-1], b.shape[-2]
    if _lie_two_in_a_byte(a_dtype):  # the last byte may hold only one
        k_of_b = (k_of_b + 1) // 2
    if _lie_two_in_a_byte(b_dtype):
        k_of_a = (k_of_a + 1) // 2
    torch._check(
        k_of_a == k_of_b,
        lambda: (
            f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}; the number of columns of a must equal the number of "
            "rows of b"
        ),
    )


def _lie_two_in_a_byte(dtype: str | None) -> bool:
    return dtype is not None and DTYPES[dtype_named(dtype, "dtype")].bits < 8
