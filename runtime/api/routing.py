"""``gemmill.route`` and ``gemmill.combine``: from tokens to groups of rows for ``grouped_matmul``, and back."""

from __future__ import annotations

from typing import Any, NamedTuple

from gemmill.library.errors import OperandError
from gemmill.runtime.api.streams import Stream, allocate, handle_of
from gemmill.runtime.launch.routing import CombineLaunch, RouteLaunch
from gemmill.runtime.operands.routing import bind_combine, bind_route, shape_of_slots, shape_of_sums, view_ids
from gemmill.runtime.operands.tensors import Tensor, view, view_table
from gemmill.runtime.torch_dispatch import refuse_dispatched


class Routing(NamedTuple):
    """Which rows each expert multiplies, and where the results of each token are. All tensors are int32."""

    offsets: Any
    """End of each expert's group of rows, (experts,)."""
    rows: Any
    """Token of each row in the order of the groups, (tokens * slots,); within a group, tokens ascend. After the last
    group come the tokens of skipped slots."""
    places: Any
    """Row of each slot, (tokens, slots); -1 for a skipped slot."""


def route(topk_ids: Tensor, experts: int, *, out: Routing | None = None, stream: Stream | None = None) -> Routing:
    """Sort the slots of tokens by their experts, in one launch.

    The result is that of a stable sort, so it is the same in every run. The call never waits for the GPU, so you can
    capture it in a CUDA graph and replay it with other ids.

    Example:
        >>> offsets, rows, places = gemmill.route(topk_ids, 128)
        >>> y = gemmill.grouped_matmul(x, w, offsets, rows=rows)
        >>> out = gemmill.combine(y, places, topk_weights)

    Args:
        topk_ids: The experts of each token, int32 or int64 (tokens, slots), contiguous. A slot whose id is negative or
            not below ``experts`` is skipped.
        experts: Number of experts.
        out: Tensors to write, contiguous and with the shapes of the result. By default PyTorch or CuPy allocates them,
            where ``topk_ids`` is one of their tensors.
        stream: Stream of the launch, as in :func:`gemmill.matmul`.

    Returns:
        ``out``.

    Raises:
        OperandError: a tensor or ``experts`` does not fit.
        DeviceError: the GPU has a compute capability below 9.0.
        CaptureError: the stream is being captured into a CUDA graph, and the kernel is not loaded yet.
    """
    refuse_dispatched("route", {"topk_ids": topk_ids, **(out._asdict() if out else {})}, "")
    handle = handle_of(topk_ids, stream)
    ids = view_ids(topk_ids, "topk_ids", handle)
    if isinstance(experts, bool) or not isinstance(experts, int) or not 0 < experts < 1 << 31:
        raise OperandError(f"experts is {experts!r}; it must be a whole number from 1 to 2^31 - 1")
    tokens, slots = shape_of_slots("topk_ids", ids)
    if out is None:
        shapes = (experts,), (tokens * slots,), (tokens, slots)
        out = Routing._make([allocate(topk_ids, shape, "s32", ids.device, stream) for shape in shapes])
    bound = bind_route(ids, experts, *[view(x, name, handle) for name, x in out._asdict().items()])
    RouteLaunch(bound, handle).launch(handle)
    return out


def combine(
    y: Tensor, places: Tensor, weights: Tensor | None = None, *, add: Tensor | None = None, out: Tensor | None = None,
    stream: Stream | None = None,
) -> Any:  # fmt: skip
    """Add up the rows of each token: ``out[t] = add[t] + sum(weights[t, j] * y[places[t, j]] for j in slots)``.

    The order of the sum is stated: it starts from ``add[t]`` or 0, and a fused multiply-add in float32 adds each slot,
    in the order of j. Only the sum is rounded to the dtype of ``out``. A token's bits therefore depend on its own rows
    and weights alone, not on other tokens or on the place of its rows.

    Args:
        y: Rows, (rows, N): bf16, f16 or f32.
        places: Row of each slot, int32 or int64 (tokens, slots), with any strides. A slot whose place is negative or
            not below the number of rows is skipped.
        weights: Weight of each slot, (tokens, slots): f32, bf16 or f16, with any strides. Default: 1.
        add: What each sum starts from, (tokens, N): bf16, f16 or f32; it may be ``out``.
        out: Tensor to write, (tokens, N): bf16, f16 or f32. By default PyTorch or CuPy allocates it, with the dtype of
            ``y``, where ``y`` is one of their tensors.
        stream: Stream of the launch, as in :func:`gemmill.matmul`.

    The rows of ``y``, ``add`` and ``out`` must be contiguous. The kernel is fastest where they are aligned to 16 bytes.

    Returns:
        ``out``.

    Raises:
        OperandError: a tensor does not fit.
        DeviceError: the GPU has a compute capability below 9.0.
        CaptureError: the stream is being captured into a CUDA graph, and the kernel is not loaded yet.
    """
    refuse_dispatched("combine", {"y": y, "places": places, "weights": weights, "add": add, "out": out}, "")
    handle = handle_of(y, stream)
    rows, slots = view(y, "y", handle), view_table(places, "places", handle)
    weight = None if weights is None else view(weights, "weights", handle)
    first = None if add is None else view(add, "add", handle)
    if out is None:
        out = allocate(y, shape_of_sums(rows, slots), rows.dtype, rows.device, stream)
    bound = bind_combine(rows, slots, weight, first, view(out, "out", handle))
    CombineLaunch(bound, handle).launch(handle)
    return out
