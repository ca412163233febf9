"""``gemmill.grouped_matmul`` and ``gemmill.array_matmul``: many matrix products in one launch, located by tables on the
GPU."""

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

# Keywords of one subject share a line.
# fmt: off


@declares(launching)
def grouped_matmul(
    a: Tensor, b: Tensor, offsets: Tensor | None = None, *, out: Tensor | None = None, c: Tensor | None = None,
    alpha: float = 1.0, beta: float | None = None, out_dtype: object = None,
    accumulator: DTypeName | None = None, tf32: bool = False, precision: str = "ieee",
    fast_accumulation: bool = True,
    a_scale: Tensor | float | None = None, b_scale: Tensor | float | None = None,
    b_zero: Tensor | None = None, b_dtype: object = None,
    counts: Tensor | None = None, rows: Tensor | None = None, expected_rows: int | None = None,
    stream: Stream | None = None, registry: Registry | None = None, kernel: str | GemmConfig | None = None,
    deterministic: bool = False, bits: str = "any", batch_invariant: bool = False, autotune: int | None = None,
    explain: bool = False,
    epilogue: str | None = None, **operands: Tensor | float,
) -> Any:
    """Multiply groups of matrices of different sizes in one launch, and return ``out``.

    It computes ``alpha * a @ b + beta * c`` for each group, in the conventions of ``torch._grouped_mm``. Pass one of
    ``offsets`` and ``counts``, an int32 or int64 tensor on the GPU:

    - ``offsets``, groups of rows: ``a`` is (M, K), ``b`` is (groups, K, N), ``out`` is (M, N). Rows ``offsets[i - 1]``
      to ``offsets[i]`` of ``a`` are multiplied by ``b[i]``; the first group starts at row 0. Rows of ``out`` beyond the
      last offset are not written.
    - ``offsets``, groups along K: ``a`` is (M, K), ``b`` is (K, N), ``out`` is (groups, M, N). Columns ``offsets[i -
      1]`` to ``offsets[i]`` of ``a`` are multiplied by the same rows of ``b``. The result of an empty group is 0, or
      ``beta * c``. ``a`` must be contiguous along M and ``b`` along N, as in gradients of weights.
    - ``counts``, masked groups: ``a`` is (groups, capacity, K), ``b`` is (groups, K, N), ``out`` is (groups, capacity,
      N). ``counts[i]`` rows of group i are in use; the other rows are neither used nor written.

    With ``rows``, an int32 or int64 tensor (M,), groups of rows are gathered: row i of ``out`` comes from row
    ``rows[i]`` of ``a``, which may have any number of rows, as when tokens go to several experts. The result has the
    bits of ``grouped_matmul(a[rows], ...)``, without the copy. For groups along K, ``rows`` is (K,), and columns of
    ``a`` are gathered, as in ``grouped_matmul(a[:, rows], ...)``. Kernels clamp entries to the extent of ``a``.

    The call never waits for the GPU and converts nothing, so you can capture it in a CUDA graph and replay it with
    other values. Kernels clamp offsets to the extent of ``a``, and counts to 0 and the capacity; of 64-bit values they
    use the low 32 bits. Wrong values give wrong results, but no access outside the tensors. Rows in two groups hold the
    result of one of them; a group that ends before it starts is empty.

    Example:
        >>> d = gemmill.grouped_matmul(tokens, experts, torch.tensor([100, 100, 300, 512], device="cuda"))

    Args:
        a: A, with the shapes above.
        b: B, with the shapes above.
        offsets: End of each group, (groups,).
        counts: Rows in use of each masked group, (groups,).
        rows: Row of ``a`` for each row of ``out``, (M,), with ``offsets``; or column of ``a`` for each row of ``b``.
        expected_rows: Rows in use of a masked group on average, which the selector assumes; the default is 128. The
            result is right with any value, but the kernel for a better one may be up to a quarter faster.
        a_scale: Scale of rows or matrices, (M, 1) or (groups, capacity, 1), or of blocks, (M, K/128) or (groups,
            capacity, K/128). With ``rows``: f32 scales of blocks of the rows of ``a``.
        b_scale: Scale of columns or matrices, (groups, 1, N) or (groups, 1, 1), of blocks, (groups, K/128, N/128), or
            of groups along K of a narrow ``b``, (groups, K/32, K/64 or K/128, N), as in :func:`gemmill.matmul`.
        b_zero: Zero points of a narrow ``b``, with the shape of ``b_scale``.
        b_dtype: Dtype of the elements of a narrow ``b``, which has a matrix for each group: ``b`` of ``"u4"`` or
            ``"s4"`` is the transpose of (groups, N, K/2) bytes. Kernels upconvert it, as in :func:`gemmill.matmul`.
        epilogue: Expression, as in :func:`gemmill.matmul`, where the groups take the place of the batch: ``bias[n]``
            may be (N,) or (groups, N), and ``x[batch]`` is (groups,). For groups of rows at offsets, ``x[m]`` is (M,),
            and matrices are (M, N) like ``out``.

    All other keywords are as in :func:`gemmill.matmul`. There is no ``sm_count``.

    Raises:
        The errors of :func:`gemmill.matmul`.
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
    accumulator: DTypeName | None = None, tf32: bool = False, precision: str = "ieee",
    fast_accumulation: bool = True,
    stream: Stream | None = None, registry: Registry | None = None, kernel: str | GemmConfig | None = None,
    bits: str = "any", explain: bool = False,
) -> None:
    """Multiply an array of matrices given by their addresses in GPU memory, like ``cublasGemmBatchedEx``.

    It computes ``alpha * a @ b + beta * c`` for each matrix. ``a`` (M, K), ``b`` (K, N), ``out`` (M, N) and ``c`` are
    one matrix of each kind, and all others have its extents, strides and dtype. Kernels read and write only the
    matrices in ``addresses``.

    The call never waits for the GPU and does not check the addresses: a wrong one reads or writes whatever is there.

    Args:
        a: One of the matrices A.
        b: One of the matrices B.
        out: One of the matrices D.
        addresses: int64 (3, matrices) with the addresses of every A, every B and every D, or (4, matrices) with those
            of every C as well. Each must be a multiple of 16.
        c: One of the matrices C.

    All other keywords are as in :func:`gemmill.matmul`.

    Raises:
        The errors of :func:`gemmill.matmul`.
    """
