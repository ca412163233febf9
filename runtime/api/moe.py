"""``gemmill.moe`` and ``gemmill.plan_moe``: a layer of experts, from tokens to the weighted sums of their experts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gemmill.library.dtypes import DTypeName
from gemmill.library.errors import GemmillError, OperandError
from gemmill.library.input.keywords import unexpected
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.runtime.api.prepare import launch, prepare
from gemmill.runtime.api.read import KEYWORDS, read_call
from gemmill.runtime.api.streams import Stream, allocate, allocates, handle_of, stream_to_follow
from gemmill.runtime.launch.plan import Plan
from gemmill.runtime.launch.routing import CombineLaunch, RouteLaunch
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.operands.experts import layer_extents, transposed
from gemmill.runtime.operands.routing import BoundCombine, BoundRoute, bind_combine, bind_route, has_aligned_rows
from gemmill.runtime.operands.tensors import Tensor, TensorView, view, view_table
from gemmill.runtime.registry import Registry
from gemmill.runtime.torch_dispatch import refuse_dispatched

# Keywords of one subject share a line.
# fmt: off


def moe(
    x: Tensor, w1: Tensor, w2: Tensor, topk_ids: Tensor, topk_weights: Tensor | None, *,
    activation: str = "silu", b2: Tensor | None = None, out: Tensor | None = None,
    stream: Stream | None = None, registry: Registry | None = None, bits: str = "any", **operands: Tensor | float,
) -> Any:
    """Run tokens through a layer of experts, and return ``out``.

    For each token t it computes ``sum(topk_weights[t, j] * y(topk_ids[t, j]) for j in slots)``, where expert e gives
    ``y(e) = activation(x[t] @ w1[e].T) @ w2[e].T + b2[e]``. Tokens are routed (:func:`gemmill.route`), two grouped
    products multiply the rows of all experts, and :func:`gemmill.combine` adds up each token's rows in the order of
    its slots. The call never waits for the GPU.

    Example:
        >>> w1 = gemmill.interleaved(gate_up)  # once: (experts, 2 F, H), the gate's rows first, then those of up
        >>> out = gemmill.moe(x, w1, w2, topk_ids, topk_weights)

    Args:
        x: Tokens, (tokens, H): bf16 or f16, with contiguous rows.
        w1: Weights of the first product, (experts, 2 F, H), or (experts, F, H) for an activation without a gate, in
            the dtype of ``x``. Rows of gate and up alternate as the activation says.
        w2: Weights of the second product, (experts, H, F), in the dtype of ``x``.
        topk_ids: The experts of each token, int32 or int64 (tokens, slots), contiguous. A slot whose id is not that
            of an expert is skipped.
        topk_weights: Weight of each slot, (tokens, slots): f32, bf16 or f16. None: 1.
        activation: The name of a function such as ``"silu"`` or ``"gelu"``, which means ``"d = silu(gate8) * up8"``:
            in ``w1``, 8 rows of the gate alternate with 8 of up, as :func:`gemmill.interleaved` orders them. Or an
            epilogue, as in :func:`gemmill.matmul`: ``"d = silu(gate) * up"`` where rows alternate one by one,
            ``"d = relu(acc)"`` without a gate, or with operands such as a bias ``b[n]``, (F,) or (experts, F).
        b2: Bias of the second product, (experts, H).
        out: Tensor to write, (tokens, H): bf16, f16 or f32. By default like ``x``; it may be ``x``.
        bits: Which order of sums both products must have, as in :func:`gemmill.matmul`.
        **operands: Operands of the activation, by name.

    The layer needs memory for a row of F elements and one of H for each slot, which the library of ``x``, PyTorch or
    CuPy, allocates; and for another of H where the rows of ``x`` are not aligned to 16 bytes. ``stream`` and
    ``registry`` are as in :func:`gemmill.matmul`.

    Returns:
        ``out``.

    Raises:
        OperandError: a tensor or option does not fit.
        GemmillError: the other errors of :func:`gemmill.matmul`.
    """
    tensors = {"x": x, "w1": w1, "w2": w2, "topk_ids": topk_ids, "topk_weights": topk_weights, "b2": b2, "out": out}
    refuse_dispatched("moe", {**tensors, **operands}, "call gemmill.torch.moe, or ")
    return launch_moe(tensors, activation, operands, {"registry": registry, "bits": bits}, stream)


def plan_moe(
    x: Tensor, w1: Tensor, w2: Tensor, topk_ids: Tensor, topk_weights: Tensor | None, *,
    activation: str = "silu", b2: Tensor | None = None, out: Tensor | None = None,
    stream: Stream | None = None, registry: Registry | None = None, bits: str = "any", **operands: Tensor | float,
) -> MoePlan:
    """Prepare a layer of experts once: the returned plan only launches, ``plan()``, on the same tensors.

    The plan keeps the memory between the launches. You may write other tokens, ids and weights into the tensors
    before each launch, also in a CUDA graph: the plan fits every distribution of the tokens to experts.

    Example:
        >>> plan = gemmill.plan_moe(x, w1, w2, topk_ids, topk_weights)
        >>> with torch.cuda.graph(graph):
        ...     plan()

    Args and errors are those of :func:`gemmill.moe`.
    """
    tensors = {"x": x, "w1": w1, "w2": w2, "topk_ids": topk_ids, "topk_weights": topk_weights, "b2": b2, "out": out}
    refuse_dispatched("plan_moe", {**tensors, **operands}, "call gemmill.torch.moe, or ")
    layer = _read(tensors, activation, operands, {"registry": registry, "bits": bits}, stream)
    return MoePlan(layer, stream_to_follow(layer.first, stream))
# fmt: on


def interleaved(gate_up: Any) -> Any:
    """Return weights whose rows of gate and up follow each other, in the order that ``gate8`` and ``up8`` need: 8 rows
    of the gate, 8 of up, and so on.

    Args:
        gate_up: Weights (experts, 2 F, H) or biases (experts, 2 F) of any library: F rows of the gate, then F of up. F
            must be a multiple of 8.

    Raises:
        OperandError: the shape does not fit.
    """
    shape = tuple(gate_up.shape)
    if len(shape) < 2 or shape[1] % 16:
        raise OperandError(
            f"gate_up has shape {shape}; it must be (experts, 2 F, H) with F a multiple of 8: for another F use "
            "activation='d = silu(gate) * up', where single rows alternate"
        )
    runs = gate_up.reshape(shape[0], 2, shape[1] // 16, 8, *shape[2:])
    return runs.swapaxes(1, 2).reshape(shape)


class Layer(NamedTuple):
    """The launches of a layer of experts, in order."""

    route: BoundRoute
    copy: BoundCombine | None
    """Copies the rows of tokens into the order of experts, where the first product cannot gather them."""
    first: GemmCall
    second: GemmCall
    combine: BoundCombine
    out: Any
    """The result as an object of the caller's library."""


class MoePlan:
    """A layer of experts on given tensors, selected, compiled, loaded and encoded. Calling the plan only launches.

    :func:`gemmill.plan_moe` makes plans. A plan keeps its tensors alive until you close it, with :meth:`close` or at
    the end of a ``with`` block. Use it from one thread at a time.
    """

    def __init__(self, layer: Layer, stream: Callable[[], int]) -> None:
        handle = layer.first.stream
        self.first = Plan(layer.first, prepare(layer.first), stream)
        """The plan of the first product."""
        self.second = Plan(layer.second, prepare(layer.second), stream)
        """The plan of the second product."""
        self.out = layer.out
        """The tensor that it writes."""
        self._layer: Layer | None = layer  # keeps memory alive
        self._stream = stream
        self._route = RouteLaunch(layer.route, handle)
        self._copy = CombineLaunch(layer.copy, handle) if layer.copy else None
        self._combine = CombineLaunch(layer.combine, handle)

    def __call__(self) -> None:
        """Launch on the stream given to :func:`gemmill.plan_moe`, or on PyTorch's current one."""
        if self._layer is None:
            raise GemmillError("this plan is closed: make a new one with gemmill.plan_moe")
        stream = self._stream()
        self._route.launch(stream)
        if self._copy:
            self._copy.launch(stream)
        self.first()
        self.second()
        self._combine.launch(stream)

    def close(self) -> None:
        """Release tensors and parameters; later calls raise an error. Running launches finish."""
        self.first.close()
        self.second.close()
        self._layer = self.out = None

    def __enter__(self) -> MoePlan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def epilogue_of(activation: str) -> str:
    """Return the epilogue of the first product: that of a function by name, or the expression itself."""
    if isinstance(activation, str) and activation.isidentifier():
        return f"d = {activation}(gate8) * up8"
    return activation


def launch_moe(
    tensors: Mapping[str, Any],
    activation: str,
    operands: Mapping[str, Any],
    options: Mapping[str, Any],
    stream: Stream | None = None,
) -> Any:
    """Launch a layer with the arguments of :func:`moe`: its tensors by keyword, operands of its activation and keywords
    of both products. Returns ``out``."""
    layer = _read(tensors, activation, operands, options, stream)
    handle = layer.first.stream
    RouteLaunch(layer.route, handle).launch(handle)
    if layer.copy:
        CombineLaunch(layer.copy, handle).launch(handle)
    launch(layer.first)
    launch(layer.second)
    CombineLaunch(layer.combine, handle).launch(handle)
    return layer.out


def _read(
    tensors: Mapping[str, Any],
    activation: str,
    operands: Mapping[str, Any],
    options: Mapping[str, Any],
    stream: Stream | None,
) -> Layer:
    """Read the arguments of a layer, and allocate its memory with the library of ``x``."""
    x = tensors["x"]
    handle = handle_of(x, stream)
    views = {
        word: (view_table if word == "topk_ids" else view)(tensor, word, handle)
        for word, tensor in tensors.items()
        if tensor is not None
    }

    def buffer(shape: tuple[int, ...], dtype: DTypeName) -> Any:
        if not allocates(x):
            raise OperandError(
                f"x is a {type(x).__qualname__}; moe allocates memory with the library of x, which must be PyTorch "
                "or CuPy: pass its tensors"
            )
        return allocate(x, shape, dtype, views["x"].device, stream)

    out = tensors["out"]
    if out is None:
        layer_extents(views, read_epilogue(epilogue_of(activation)))
        out = buffer(views["x"].shape, views["x"].dtype)
        views["out"] = view(out, "out", handle)
    return bind_layer(views, activation, operands, {**options, "stream": handle}, buffer)._replace(out=out)


def bind_layer(
    tensors: Mapping[str, TensorView],
    activation: str,
    operands: Mapping[str, Any],
    options: Mapping[str, Any],
    buffer: Callable[[tuple[int, ...], DTypeName], Any],
) -> Layer:
    """Return the launches of a layer on tensors in GPU memory.

    Args:
        tensors: Tensors by the keywords of :func:`moe`, ``out`` among them.
        activation: As in :func:`moe`.
        operands: As in :func:`moe`.
        options: Keywords of both products.
        buffer: Allocates the memory between the launches, by shape and dtype.

    Raises:
        OperandError: a tensor or option does not fit.
    """
    for name in operands:
        if name in KEYWORDS:
            raise unexpected(name, [*inspect.signature(moe).parameters])
    epilogue = epilogue_of(activation)
    extents = layer_extents(tensors, read_epilogue(epilogue))
    x, out = tensors["x"], tensors["out"]

    def new(dtype: DTypeName, *shape: int) -> TensorView:
        return view(buffer(shape, dtype), "memory between launches", options["stream"])

    slots = extents.tokens, extents.slots
    offsets, rows, places = new("s32", extents.experts), new("s32", extents.rows), new("s32", *slots)
    inner, y = new(x.dtype, extents.rows, extents.inner), new(x.dtype, extents.rows, extents.hidden)
    route = bind_route(tensors["topk_ids"], extents.experts, offsets, rows, places)
    copy, of_a = None, {"a": x, "rows": rows}
    if not has_aligned_rows(x, TMA_ALIGN):
        of_a = {"a": new(x.dtype, extents.rows, extents.hidden)}
        index = replace(rows, shape=(extents.rows, 1), strides=(1, 1))
        copy = bind_combine(x, index, None, None, of_a["a"])
    of_first = {"b": transposed(tensors["w1"]), "offsets": offsets, "out": inner, "epilogue": epilogue}
    first = read_call({**of_a, **of_first, **operands, **options})
    bias = {"epilogue": "d = acc + b2[n]", "b2": tensors["b2"]} if "b2" in tensors else {}
    of_second = {"a": inner, "b": transposed(tensors["w2"]), "offsets": offsets, "out": y}
    second = read_call({**of_second, **bias, **options})
    combine = bind_combine(y, places, tensors.get("topk_weights"), None, out)
    return Layer(route, copy, first, second, combine, out)
