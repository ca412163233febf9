"""What operators return: shape and dtype of each output, by rules that hold for symbolic extents too.

Fakes are made of them, and so are real outputs that ``matmul`` does not allocate itself: packed, on the GPU of A. No
rule asks whether extents are equal but where the product demands it, as each question is a guard of what is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from gemmill.library.dtypes import DTYPES, default_output
from gemmill.library.epilogues.tree import Epilogue
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.operands.tensors import dtype_named

Extents = tuple[Any, ...]
"""Of a tensor: int or SymInt."""


class Output(NamedTuple):
    """A tensor to be allocated."""

    shape: Extents
    dtype: torch.dtype

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """It, packed, beside another tensor."""
        return like.new_empty(self.shape, dtype=self.dtype)


def of_two(a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None, **_: Any) -> list[Output]:
    """D of two matrices, (M, K) and (K, N)."""
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
    """D of (..., M, K) and (..., K, N), whose batch extents broadcast."""
    _check_ranks(a.dim() >= 2 and b.dim() >= 2, a, b, "(..., M, K) and (..., K, N)")
    _check_k(a, b, a_dtype, b_dtype)
    return [Output(d_shape(a, b), out_dtype or d_dtype(a.dtype, b.dtype, a_dtype, b_dtype))]


def of_groups(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> list[Output]:
    """D of groups, as :func:`gemmill.grouped_matmul` tells them apart."""
    torch._check(offsets is not None or counts is not None, lambda: "offsets and counts are both missing: pass one")
    ranks = a.dim(), b.dim()
    if counts is not None:
        _check_ranks(ranks == (3, 3), a, b, "(groups, capacity, K) and (groups, K, N)")
    else:
        _check_ranks(ranks in ((2, 3), (2, 2)), a, b, "(M, K) and (groups, K, N), or (M, K) and (K, N)")
    _check_k(a, b)
    return [Output(grouped_shape(a, b, offsets), out_dtype or d_dtype(a.dtype, b.dtype))]


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
    """D, and what an expression writes beside it, in its order."""
    epilogue = read_epilogue(expression)
    if "offsets" in named or "counts" in named:
        ((shape, dtype),) = of_groups(a, b, named.get("offsets"), named.get("counts"), out_dtype=out_dtype)
    else:
        ((shape, dtype),) = of_batch(a, b, out_dtype=out_dtype, a_dtype=a_dtype, b_dtype=b_dtype)
    if epilogue.gated:
        torch._check(shape[-1] % 2 == 0, lambda: f"N is {shape[-1]}; a gated epilogue makes one column of two")
        shape = (*shape[:-1], shape[-1] // 2)
    groups = None
    if "offsets" in named and b.dim() == 3:
        groups = b.shape[0]  # which share D
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
    }
    return [Output(tuple(shapes[x.kind]), torch_dtype(x.dtype)) for x in epilogue.outputs]


def d_shape(a: torch.Tensor, b: torch.Tensor) -> Extents:
    """Shape of ``a @ b``, of matrices, unchecked."""
    batch = a.shape[:-2] if b.dim() == 2 else torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (*batch, a.shape[-2], b.shape[-1])


def grouped_shape(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor | None) -> Extents:
    """Shape of the D of groups, unchecked."""
    if offsets is None or b.dim() == 3:
        return (*a.shape[:-1], b.shape[-1])
    return (offsets.shape[0], a.shape[0], b.shape[1])


def d_dtype(a: torch.dtype, b: torch.dtype, a_dtype: object = None, b_dtype: object = None) -> torch.dtype:
    """Dtype of a D that nobody asked a dtype of, by those of A and B and what these are said to hold."""
    held = dtype_named(a_dtype or a, "a"), dtype_named(b_dtype or b, "b")
    return torch_dtype(default_output(max(held, key=lambda dtype: DTYPES[dtype].bits)))


def torch_dtype(dtype: object) -> torch.dtype:
    """PyTorch's dtype, of what a caller wrote for it."""
    if isinstance(dtype, torch.dtype):
        return dtype
    converted: torch.dtype = getattr(torch, DTYPES[dtype_named(dtype, "out_dtype")].torch)
    return converted


def _check_ranks(right: bool, a: torch.Tensor, b: torch.Tensor, wanted: str) -> None:
    torch._check(right, lambda: f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}; they must be {wanted}")


def _check_k(a: torch.Tensor, b: torch.Tensor, a_dtype: str | None = None, b_dtype: str | None = None) -> None:
    k_of_a, k_of_b = a.shape[-1], b.shape[-2]
    if _lie_two_in_a_byte(a_dtype):  # in the last one perhaps one
        k_of_b = (k_of_b + 1) // 2
    if _lie_two_in_a_byte(b_dtype):
        k_of_a = (k_of_a + 1) // 2
    torch._check(
        k_of_a == k_of_b,
        lambda: f"a {tuple(a.shape)} @ b {tuple(b.shape)}: the columns of a and the rows of b must be equal",
    )


def _lie_two_in_a_byte(dtype: str | None) -> bool:
    return dtype is not None and DTYPES[dtype_named(dtype, "dtype")].bits < 8
