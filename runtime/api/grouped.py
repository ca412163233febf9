"""``gemmill.grouped_matmul`` and ``gemmill.array_matmul``: many products in one launch, found by tables on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTypeName
from gemmill.runtime.api.fast_path import launching
from gemmill.runtime.api.prepare import launch
from gemmill.runtime.api.read import Declaration, declares
from gemmill.runtime.api.streams import Stream
from gemmill.runtime.operands.tensors import Tensor
from gemmill.runtime.registry import Registry
from gemmill.runtime.torch_dispatch import refuse_dispatched

# Keywords of one subject stand on one line.
# fmt: off


@declares(launching)
def grouped_matmul(
    a: Tensor, b: Tensor, offsets: Tensor | None = None, *, out: Tensor | None = None, c: Tensor | None = None,
    alpha: float = 1.0, beta: float | None = None, out_dtype: object = None,
    accumulator: DTypeName | None = None, tf32: bool = False, fast_accumulation: bool = True,
    a_scale: Tensor | float | None = None, b_scale: Tensor | float | None = None,
    counts: Tensor | None = None, expected_rows: int | None = None,
    stream: Stream | None = None, registry: Registry | None = None, kernel: str | GemmConfig | None = None,
    deterministic: bool = False, batch_invariant: bool = False, autotune: int | None = None, explain: bool = False,
    epilogue: str | None = None, **operands: Tensor | float,
) -> Any:
    """``alpha * a @ b + beta * c`` group by group, by the conventions of ``torch._grouped_mm``; returns ``out``.

    ``offsets`` (int32 or int64, on the GPU) are the ends of groups that lie one after the other; the first starts at 0.

    * Groups of rows: ``a`` (M, K), ``b`` (groups, K, N): rows ``offsets[i - 1]`` to ``offsets[i]`` of ``a`` are
      multiplied by ``b[i]``. ``out`` is (M, N); its rows from the last offset on are not written.
    * Groups along K: ``a`` (M, K), ``b`` (K, N): columns ``offsets[i - 1]`` to ``offsets[i]`` of ``a`` are multiplied
      by these rows of ``b``. ``out`` is (groups, M, N); an empty group is 0, or ``beta * c``. ``a`` must be contiguous
      along M and ``b`` along N, as they are in the gradients of weights.

    ``counts`` (int32 or int64, on the GPU) are rows in use of masked groups: ``a`` (groups, capacity, K), ``b``
    (groups, K, N), ``out`` (groups, capacity, N). Rows of a group beyond its count are neither used nor written.
    ``expected_rows`` says how many there are on average, as nobody knows before the launch: the kernel is chosen for
    them, without it for 128, and another may be up to a quarter faster. Results are right with any.

    Nothing waits for the GPU or converts anything, so the launch can be captured in a CUDA graph and replayed with
    other values. Offsets are clamped to the extent of ``a``, counts to 0 and the capacity, and of 64 bits the low 32
    count: wrong ones give wrong results, but no access outside the tensors. Rows between groups that overlap hold the
    result of one of them; an end before its beginning makes an empty group.

    Scales are as in :func:`gemmill.matmul`: of rows, columns and matrices ``a_scale`` is (M, 1) or (groups, capacity,
    1), ``b_scale`` (groups, 1, N) or (groups, 1, 1); of blocks (M, K/128) or (groups, capacity, K/128), and (groups,
    K/128, N/128).

    ``epilogue`` and its operands are as in :func:`gemmill.matmul`; the matrices of a batch are the groups: ``bias[n]``
    may be (N,) or (groups, N), ``x[batch]`` is (groups,). For groups of rows at offsets ``x[m]`` is (M,), and matrices
    are (M, N), as ``out`` is. There is no ``sm_count``; all else is as in :func:`gemmill.matmul`;
    ``batch_invariant`` is for groups of rows.
    """


def _launching_array(declaration: Declaration) -> Callable[..., None]:
    def launched(a: Any, b: Any, out: Any, addresses: Any, **arguments: Any) -> None:
        arguments |= {"a": a, "b": b, "out": out, "addresses": addresses}
        refuse_dispatched("array_matmul", arguments)
        launch(declaration.read(arguments))

    return launched


@declares(_launching_array)
def array_matmul(
    a: Tensor, b: Tensor, out: Tensor, addresses: Tensor, *, c: Tensor | None = None,
    alpha: float = 1.0, beta: float | None = None,
    accumulator: DTypeName | None = None, tf32: bool = False, fast_accumulation: bool = True,
    stream: Stream | None = None, registry: Registry | None = None, kernel: str | GemmConfig | None = None,
    explain: bool = False,
) -> None:
    """``alpha * a @ b + beta * c`` for matrices at addresses in GPU memory, as ``cublasGemmBatchedEx`` takes them.

    ``addresses`` is int64 (3, matrices): the addresses of every A, of every B, of every D, or (4, matrices) with those
    of every C. Each must be a multiple of 16. ``a`` (M, K), ``b`` (K, N), ``out`` (M, N) and ``c`` are one matrix of
    each kind: all others have its extents, strides and dtype; only those that are listed are read or written.

    Nothing waits for the GPU or checks the addresses: wrong ones read and write wherever they point. All else is as in
    :func:`gemmill.matmul`.
    """
