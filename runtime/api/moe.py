"""``gemmill.moe`` and ``gemmill.plan_moe``: a layer of experts, from tokens to the weighted sums of their experts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from gemmill.library.dtypes import DTypeName, default_output
from gemmill.library.errors import OperandError
from gemmill.library.input.keywords import unexpected
from gemmill.runtime.api import caches
from gemmill.runtime.api.expert_layer import Layer, LayerLaunches, bind_layer, epilogue_of
from gemmill.runtime.api.launch_sequence import PlanOfLaunches, SharedLaunches
from gemmill.runtime.api.prepare import prepare
from gemmill.runtime.api.read import KEYWORDS
from gemmill.runtime.api.streams import Stream, allocate_between, handle_of, stream_to_follow
from gemmill.runtime.launch.plan import Plan
from gemmill.runtime.launch.routing import CombineLaunch, GatherLaunch, RouteLaunch, TokenLaunch
from gemmill.runtime.operands.epilogue_arguments import is_number, read_epilogue
from gemmill.runtime.operands.experts import layer_extents
from gemmill.runtime.operands.narrow_experts import elements_of
from gemmill.runtime.operands.routing import view_ids
from gemmill.runtime.operands.tensors import Tensor, TensorView, dtype_named, view
from gemmill.runtime.registry import Registry
from gemmill.runtime.torch_dispatch import refuse_dispatched

# Keywords of one subject share a line.
# fmt: off


def moe(
    x: Tensor, w1: Tensor, w2: Tensor, topk_ids: Tensor, topk_weights: Tensor | None, *,
    activation: str = "silu", b2: Tensor | None = None, out: Tensor | None = None,
    x_scale: Tensor | None = None, w1_scale: Tensor | None = None, w2_scale: Tensor | None = None,
    w1_zero: Tensor | None = None, w2_zero: Tensor | None = None, w_dtype: object = None,
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
        x: Tokens, (tokens, H): bf16, f16 or e4m3, with contiguous rows.
        w1: Weights of the first product, (experts, 2 F, H), or (experts, F, H) for an activation without a gate, in
            the dtype of ``x``. Rows of gate and up alternate as the activation says. Beside bf16 or f16 ``x`` also
            narrower: bytes of ``w_dtype``, or s8, u8, e4m3 or e5m2; beside e4m3 s4. Then rows of gate and up alternate
            by eights.
        w2: Weights of the second product, (experts, H, F), in the dtype of ``w1``.
        topk_ids: The experts of each token, int32 or int64 (tokens, slots), contiguous. A slot whose id is not that
            of an expert is skipped.
        topk_weights: Weight of each slot, (tokens, slots): f32, bf16 or f16. None: 1.
        activation: The name of a function such as ``"silu"`` or ``"gelu"``, which means ``"d = silu(gate8) * up8"``:
            in ``w1``, 8 rows of the gate alternate with 8 of up, as :func:`gemmill.interleaved` orders them. Or an
            epilogue, as in :func:`gemmill.matmul`: ``"d = silu(gate_half) * up_half"`` where the gate's rows come
            before those of up, ``"d = silu(gate) * up"`` where rows alternate one by one, ``"d = relu(acc)"`` without
            a gate, or with operands such as a bias ``b[n]``, (F,) or (experts, F).
        b2: Bias of the second product, (experts, H).
        out: Tensor to write, (tokens, H): bf16, f16 or f32. By default it has the dtype of ``x``, or bf16 for e4m3;
            it may be ``x``.
        x_scale: Scales of e4m3 tokens, (tokens, H/128), rounded up; all scales are f32, or all ue8m0. The epilogue of
            the first product scales its rows likewise, in blocks of 128; F must be a multiple of 128. With s4
            weights (tokens, 1) in f32, and the rows of the second product are bf16.
        w1_scale: Scales of blocks of ``w1`` in its order of rows, (experts, 2 F/128, H/128), rounded up. Of narrow
            weights: one for each row and group of 32, 64 or 128 elements along H (of s8 and e4m3: 128), (experts,
            H/group, 2 F), in the dtype of ``x`` and contiguous along 2 F, the transpose of what most checkpoints have;
            beside e4m3 tokens, of groups of 128 in f32.
        w2_scale: Scales of blocks of ``w2``, (experts, H/128, F/128), rounded up; of narrow weights (experts,
            F/group, H), in the dtype of ``x``, or bf16.
        w1_zero: Zero points of narrow weights, with the shape and dtype of ``w1_scale``: a weight is
            ``(w1 - w1_zero) * w1_scale``. GPTQ stores them minus one.
        w2_zero: The same of ``w2``.
        w_dtype: Dtype of the elements of ``w1`` and ``w2`` where these are bytes. ``"u4"`` or ``"s4"``: ``w1`` is
            (experts, 2 F, H/2) and ``w2`` (experts, H, F/2), the element of lower index in the low half of a byte.
            ``"e2m1"`` (MXFP4): bytes and ue8m0 scales of 32 elements as ``gemmill.torch.mxfp4`` returns them.
        bits: Which order of sums both products must have, as in :func:`gemmill.matmul`.
        **operands: Operands of the activation, by name.

    The layer needs memory for a row of F elements and one of H for each slot, which the library of ``x``, PyTorch or
    CuPy, allocates; and for another of H where it copies rows of ``x`` first: e4m3, unless there are few with f32
    scales, rows beside narrow weights, and rows that are not aligned to 16 bytes. ``stream`` and ``registry`` are as in
    :func:`gemmill.matmul`.

    Returns:
        ``out``.

    Raises:
        OperandError: a tensor or option does not fit.
        GemmillError: the other errors of :func:`gemmill.matmul`.
    """
    tensors = {"x": x, "w1": w1, "w2": w2, "topk_ids": topk_ids, "topk_weights": topk_weights, "b2": b2, "out": out}
    tensors |= {"x_scale": x_scale, "w1_scale": w1_scale, "w2_scale": w2_scale, "w1_zero": w1_zero, "w2_zero": w2_zero}
    refuse_dispatched("moe", {**tensors, **operands}, "call gemmill.torch.moe, or ")
    options = {"registry": registry, "bits": bits}
    return launch_moe(tensors, activation, operands, options, stream, w_dtype)


def plan_moe(
    x: Tensor, w1: Tensor, w2: Tensor, topk_ids: Tensor, topk_weights: Tensor | None, *,
    activation: str = "silu", b2: Tensor | None = None, out: Tensor | None = None,
    x_scale: Tensor | None = None, w1_scale: Tensor | None = None, w2_scale: Tensor | None = None,
    w1_zero: Tensor | None = None, w2_zero: Tensor | None = None, w_dtype: object = None,
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
    tensors |= {"x_scale": x_scale, "w1_scale": w1_scale, "w2_scale": w2_scale, "w1_zero": w1_zero, "w2_zero": w2_zero}
    refuse_dispatched("plan_moe", {**tensors, **operands}, "call gemmill.torch.moe, or ")
    given = _Given.read(tensors, operands, stream, w_dtype)
    layer = _bound(given, activation, {"registry": registry, "bits": bits})
    return MoePlan(layer, stream_to_follow(given.views["x"], given.handle, stream))
# fmt: on


def interleaved(gate_up: Any, *, axis: int = 1, alternate: bool = False) -> Any:
    """Return weights whose rows of gate and up follow each other, in the order that ``gate8`` and ``up8`` need: 8 rows
    of the gate, 8 of up, and so on.

    Args:
        gate_up: Weights (experts, 2 F, H), also packed ones (experts, 2 F, H/2), or biases (experts, 2 F), of any
            library: F rows of the gate, then F of up. F must be a multiple of 8.
        axis: The extent of 2 F: 2 for scales and zero points of groups, (experts, H/group, 2 F).
        alternate: Whether rows of the gate and of up alternate one by one, as in gpt-oss.

    Raises:
        OperandError: the shape does not fit.
    """
    shape = tuple(gate_up.shape)
    if not 0 <= axis < len(shape) or shape[axis] % 16:
        raise OperandError(
            f"gate_up has shape {shape}; extent {axis} must be 2 F with F a multiple of 8: for another F use "
            "activation='d = silu(gate) * up', where single rows alternate"
        )
    before, after, count = shape[:axis], shape[axis + 1 :], shape[axis] // 16
    runs = gate_up.reshape(*before, *((count, 8, 2) if alternate else (2, count, 8)), *after)
    first, second = (axis + 1, axis + 2) if alternate else (axis, axis + 1)
    return runs.swapaxes(first, second).reshape(shape)


class MoePlan(PlanOfLaunches):
    """A layer of experts on given tensors, selected, compiled, loaded and encoded. Calling the plan only launches.

    :func:`gemmill.plan_moe` makes plans. A plan keeps its tensors alive until you close it, with :meth:`close` or at
    the end of a ``with`` block. Use it from one thread at a time.
    """

    _made_by = "gemmill.plan_moe"

    def __init__(self, layer: Layer, stream: Callable[[], int]) -> None:
        handle = layer.first.stream
        self.first = Plan(layer.first, prepare(layer.first), stream)
        """The plan of the first product."""
        self.second = Plan(layer.second, prepare(layer.second), stream)
        """The plan of the second product."""
        self.copies = [GatherLaunch(copy, handle) for copy in layer.copies]
        """The launches that copy rows of tokens, and their scales, in this order."""
        launches: list[TokenLaunch | Plan] = [RouteLaunch(layer.route, handle), *self.copies]
        launches += [self.first, self.second, CombineLaunch(layer.combine, handle)]
        super().__init__(launches, layer.out, layer, stream)


def launch_moe(
    tensors: Mapping[str, Any],
    activation: str,
    operands: Mapping[str, Any],
    options: Mapping[str, Any],
    stream: Stream | None = None,
    w_dtype: object = None,
) -> Any:
    """Launch a layer with the arguments of :func:`moe`: its tensors by keyword, operands of its activation and keywords
    of both products. Returns ``out``."""
    given = _Given.read(tensors, operands, stream, w_dtype)
    entry: caches.Entry[SharedLaunches] = caches.Entry()
    with suppress(TypeError):  # an unhashable option, which is refused later
        entry = caches.layers(given.signature(activation, options))
    if (launches := entry.value) is None:
        layer = _bound(given, activation, options)
        entry.value = launches = LayerLaunches(layer)
        launches.launch(given.handle, layer.tensors)
        return layer.out
    out, view_of_out = given.result()
    memory = given.allocate((launches.memory_bytes,), "u8")
    launches.launch(given.handle, {**given.views, **given.operands, "out": view_of_out, ".": view(memory, "memory")})
    return out


class _Given(NamedTuple):
    """The arguments of a call."""

    tensors: Mapping[str, Any]
    views: Mapping[str, TensorView]
    """Tensors by keyword, without an ``out`` that is allocated."""
    operands: Mapping[str, TensorView]
    """Tensors of the activation."""
    numbers: Mapping[str, Any]
    """Its other operands."""
    stream: Stream | None
    handle: int

    @classmethod
    def read(
        cls, tensors: Mapping[str, Any], operands: Mapping[str, Any], stream: Stream | None, w_dtype: object
    ) -> _Given:
        """Read the tensors of a call."""
        for name in operands:
            if name in KEYWORDS:
                raise unexpected(name, [*inspect.signature(moe).parameters])
        handle = handle_of(tensors["x"], stream)
        views = {
            name: (view_ids if name == "topk_ids" else view)(tensor, name, handle)
            for name, tensor in tensors.items()
            if tensor is not None
        }
        if w_dtype is not None:
            views = elements_of(views, dtype_named(w_dtype, "w_dtype"))
        numbers = {name: x for name, x in operands.items() if x is None or is_number(x)}
        of_operands = {name: view(x, name, handle) for name, x in operands.items() if name not in numbers}
        return cls(tensors, views, of_operands, numbers, stream, handle)

    def signature(self, activation: str, options: Mapping[str, Any]) -> Hashable:
        """Return everything that the launches depend on."""
        layouts = [(name, x.layout) for some in (self.views, self.operands) for name, x in some.items()]
        return (*layouts, activation, repr(self.numbers), *options.items())

    def allocate(self, shape: tuple[int, ...], dtype: DTypeName) -> Any:
        """Allocate memory with the library of ``x``."""
        return allocate_between("moe", self.tensors["x"], shape, dtype, self.views["x"].device, self.stream)

    def result(self) -> tuple[Any, TensorView]:
        """Return ``out`` and its view; it is allocated where the call does not pass it."""
        if "out" in self.views:
            return self.tensors["out"], self.views["out"]
        out = self.allocate(self.views["x"].shape, default_output(self.views["x"].dtype))
        return out, view(out, "out", self.handle)


def _bound(given: _Given, activation: str, options: Mapping[str, Any]) -> Layer:
    """Bind a call, with memory that the library of ``x`` allocates."""
    layer_extents(given.views, read_epilogue(epilogue_of(activation)))
    out, view_of_out = given.result()
    operands = {**given.operands, **given.numbers}
    views = {**given.views, "out": view_of_out}
    layer = bind_layer(views, activation, operands, {**options, "stream": given.handle}, given.allocate)
    return layer._replace(out=out)
