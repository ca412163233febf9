"""``gemmill.lora`` and ``gemmill.plan_lora``: adds to each token the product of its low-rank adapter."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from gemmill.library.bits import ANY
from gemmill.library.dtypes import DTypeName
from gemmill.runtime.api import caches
from gemmill.runtime.api.launch_sequence import Addresses, PlanOfLaunches, SharedLaunches
from gemmill.runtime.api.prepare import prepare
from gemmill.runtime.api.read import read_call
from gemmill.runtime.api.routing import Routing
from gemmill.runtime.api.streams import Stream, allocate_between, handle_of, stream_to_follow
from gemmill.runtime.launch.lora import ExpandLaunch, ShrinkLaunch
from gemmill.runtime.launch.plan import Plan
from gemmill.runtime.launch.routing import CombineLaunch, RouteLaunch, TokenLaunch
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.epilogue_arguments import is_number
from gemmill.runtime.operands.experts import Piece, in_memory, packed, transposed
from gemmill.runtime.operands.lora import ROUTED, BoundAdaptation, Division, LoraExtents, adapts, lora_extents
from gemmill.runtime.operands.overlap import MemoryCheck
from gemmill.runtime.operands.routing import BoundCombine, BoundRoute, bind_combine, bind_route, view_ids
from gemmill.runtime.operands.tensors import Tensor, TensorView, view
from gemmill.runtime.registry import Registry
from gemmill.runtime.torch_dispatch import refuse_dispatched

# Keywords of one subject share a line.
# fmt: off


def lora(
    x: Tensor, a: Tensor, b: Tensor, adapter_ids: Tensor | Routing, *,
    y: Tensor | None = None, scale: Tensor | float = 1.0, out: Tensor | None = None,
    stream: Stream | None = None, registry: Registry | None = None, bits: str = "any",
) -> Any:
    """Add to the result of each token that of its low-rank adapter (LoRA), and return ``out``:
    ``out[t] = y[t] + scale * (x[t] @ a[i].T) @ b[i].T``, where i is ``adapter_ids[t]``.

    Two launches multiply the tokens on tensor cores, and the second adds to ``y``; another one before them sorts many
    tokens with ids by adapter (:func:`gemmill.route`). The call never waits for the GPU.

    The order of a sum is stated: H is cut into slices, whose number depends on the shapes and on whether tokens are
    sorted, and each slice into eight parts; a part is summed in f32, 16 products at a time, and the sums of parts and
    of slices are added in their order. The result is rounded to the dtype of ``x``, multiplied by ``b`` in the same
    way, scaled and added to ``y`` in f32. Many tokens or adapters of more than 32 ranks, ranks above 128, rows of
    ``y`` or ``out`` that are not aligned to 16 bytes, and a ``bits`` that names an order have two grouped products and
    :func:`gemmill.combine` instead, which also round the rows that are added.

    Example:
        >>> routing = gemmill.route(adapter_ids[:, None], len(a))  # once for all layers
        >>> gemmill.lora(x, a, b, routing, y=y, scale=alpha / rank, out=y)

    Args:
        x: Tokens, (tokens, H): bf16 or f16, with contiguous rows aligned to 16 bytes.
        a: The first factors of all adapters, (adapters, rank, H), in the dtype of ``x``.
        b: The second factors, (adapters, N, rank), in the dtype of ``x``. Pad lower ranks with zeros. The rank, H and N
            are multiples of 8.
        adapter_ids: The adapter of each token, int32 or int64 (tokens,), contiguous; a token whose id is not that of an
            adapter, as -1, has none. Or the result of :func:`gemmill.route` for ids (tokens, 1) and all adapters.
        y: What is added to, (tokens, N): bf16, f16 or f32, with contiguous rows. Default: 0.
        scale: A number, or the scale of each token, (tokens,): f32, bf16 or f16.
        out: Tensor to write, (tokens, N): bf16, f16 or f32; it may be ``y``. By default it has the dtype of ``y``, or
            that of ``x``.
        bits: Which order of sums both products must have, as in :func:`gemmill.matmul`.

    The library of ``x``, PyTorch or CuPy, allocates the memory between the launches: for each token, and at least for
    16, at most 16 times the rank in f32, or rank + N elements with grouped products. ``stream`` and ``registry`` are as
    in :func:`gemmill.matmul`.

    Returns:
        ``out``.

    Raises:
        OperandError: a tensor or option does not fit.
        GemmillError: the other errors of :func:`gemmill.matmul`.
    """
    tensors = {"x": x, "a": a, "b": b, "adapter_ids": adapter_ids, "y": y, "scale": scale, "out": out}
    given = _Given.read("lora", tensors, stream)
    options = {"registry": registry, "bits": bits}
    entry: caches.Entry[SharedLaunches] = caches.Entry()
    with suppress(TypeError):  # an unhashable option, which is refused later
        entry = caches.layers(given.signature(options))
    if (launches := entry.value) is None:
        bound = _bound(given, options)
        entry.value = launches = _launches(bound, given.handle)
        launches.launch(given.handle, bound.tensors)
        return bound.out
    out, view_of_out = given.result()
    memory = given.allocate((launches.memory_bytes,), "u8")
    launches.launch(given.handle, {**given.views, "out": view_of_out, ".": view(memory, "memory")})
    return out


def plan_lora(
    x: Tensor, a: Tensor, b: Tensor, adapter_ids: Tensor | Routing, *,
    y: Tensor | None = None, scale: Tensor | float = 1.0, out: Tensor | None = None,
    stream: Stream | None = None, registry: Registry | None = None, bits: str = "any",
) -> LoraPlan:
    """Prepare the product of adapters once: the returned plan only launches, ``plan()``, on the same tensors.

    The plan keeps the memory between the launches. You may write other tokens, ids and factors into the tensors before
    each launch, also in a CUDA graph: the plan fits every distribution of the tokens to adapters.

    Args and errors are those of :func:`gemmill.lora`.
    """
    tensors = {"x": x, "a": a, "b": b, "adapter_ids": adapter_ids, "y": y, "scale": scale, "out": out}
    given = _Given.read("plan_lora", tensors, stream)
    bound = _bound(given, {"registry": registry, "bits": bits})
    return LoraPlan(bound, given.handle, stream_to_follow(given.views["x"], given.handle, stream))
# fmt: on


Step = BoundRoute | BoundAdaptation | GemmCall | BoundCombine
"""What a launch does. An adaptation has two."""


class BoundLora(NamedTuple):
    """The launches of a product with adapters, on given tensors."""

    steps: tuple[Step, ...]
    """In order."""
    names: tuple[Sequence[str], ...]
    """For each launch, the tensors whose addresses it takes."""
    tensors: Mapping[str, TensorView]
    """Tensors by keyword, and the memory between the launches as ``.``."""
    check: MemoryCheck
    """Refuses addresses of :attr:`tensors` where ``out`` overlaps another."""
    pieces: Mapping[str, Piece]
    """Tensors between the launches."""
    out: Any
    """The result as an object of the caller's library."""


class LoraPlan(PlanOfLaunches):
    """A product with adapters on given tensors, selected, compiled, loaded and encoded. Calling the plan only launches.

    :func:`gemmill.plan_lora` makes plans. A plan keeps its tensors alive until you close it, with :meth:`close` or at
    the end of a ``with`` block. Use it from one thread at a time.
    """

    _made_by = "gemmill.plan_lora"

    def __init__(self, bound: BoundLora, handle: int, stream: Callable[[], int]) -> None:
        launches: list[TokenLaunch | Plan] = []
        for step in bound.steps:
            if isinstance(step, GemmCall):
                launches.append(Plan(step, prepare(step), stream))
            else:
                launches += _launches_of(step, handle)
        self.products = tuple(x for x in launches if isinstance(x, Plan))
        """The plans of the grouped products with ``a`` and with ``b``, if there are any."""
        super().__init__(launches, bound.out, bound, stream)


def _launches_of(step: BoundRoute | BoundAdaptation | BoundCombine, handle: int) -> list[TokenLaunch]:
    match step:
        case BoundRoute():
            return [RouteLaunch(step, handle)]
        case BoundAdaptation():
            return [ShrinkLaunch(step, handle), ExpandLaunch(step, handle)]
        case _:
            return [CombineLaunch(step, handle)]


class _Given(NamedTuple):
    """The arguments of a call."""

    x: Any
    out: Any
    views: Mapping[str, TensorView]
    """Tensors by keyword, without an ``out`` that is allocated."""
    scale: float
    """The scale of all tokens; 1 where each has its own."""
    stream: Stream | None
    handle: int

    @classmethod
    def read(cls, function: str, given: Mapping[str, Any], stream: Stream | None) -> _Given:
        """Read the arguments of a call."""
        tensors, scale = dict(given), 1.0
        if isinstance(routing := given["adapter_ids"], Routing):
            tensors |= {"adapter_ids": None, **routing._asdict()}
        if is_number(given["scale"]):
            tensors["scale"], scale = None, float(given["scale"])
        refuse_dispatched(function, tensors, "call gemmill.torch.lora, or ")
        handle = handle_of(given["x"], stream)
        views = {
            name: (view_ids if name == "adapter_ids" else view)(tensor, name, handle)
            for name, tensor in tensors.items()
            if tensor is not None
        }
        return cls(given["x"], given["out"], views, scale, stream, handle)

    def signature(self, options: Mapping[str, Any]) -> Hashable:
        """Return everything that the launches depend on."""
        layouts = [(name, x.layout) for name, x in self.views.items()]
        return ("lora", *layouts, self.scale, *options.items())

    def allocate(self, shape: tuple[int, ...], dtype: DTypeName) -> Any:
        """Allocate memory with the library of ``x``."""
        return allocate_between("lora", self.x, shape, dtype, self.views["x"].device, self.stream)

    def result(self) -> tuple[Any, TensorView]:
        """Return ``out`` and its view; it is allocated where the call does not pass it."""
        if "out" in self.views:
            return self.out, self.views["out"]
        shape = self.views["x"].shape[0], self.views["b"].shape[1]
        out = self.allocate(shape, self.views["y" if "y" in self.views else "x"].dtype)
        return out, view(out, "out", self.handle)


def _bound(given: _Given, options: Mapping[str, Any]) -> BoundLora:
    """Bind a call, with memory that the library of ``x`` allocates."""
    extents = lora_extents(given.views)
    out, view_of_out = given.result()
    options = {**options, "stream": given.handle}
    bound = bind_lora({**given.views, "out": view_of_out}, extents, given.scale, options, given.allocate)
    return bound._replace(out=out)


def bind_lora(
    tensors: Mapping[str, TensorView],
    extents: LoraExtents,
    scale: float,
    options: Mapping[str, Any],
    allocate: Callable[[tuple[int, ...], DTypeName], Any],
) -> BoundLora:
    """Return the launches of a product with adapters on tensors in GPU memory.

    Args:
        tensors: Tensors by the keywords of :func:`gemmill.lora`, ``out`` among them, and those of a routing.
        extents: Their extents.
        scale: Factor of all tokens.
        options: Keywords of both products.
        allocate: Allocates the memory between the launches, by shape and dtype.

    Raises:
        OperandError: a tensor or option does not fit.
    """
    x, out = tensors["x"], tensors["out"]
    routes, division = "adapter_ids" in tensors, None
    if options.get("bits", ANY) == ANY and adapts(tensors, extents):
        is_sorted = not routes or extents.sorts
        division, routes = extents.division(is_sorted), routes and is_sorted
    pieces, size = packed(extents.between(x.dtype, routes, division))
    memory = view(allocate((size,), "u8"), "memory between launches", options["stream"])
    between = in_memory(pieces, memory)
    first, names_of_first = _bind_route(tensors, between) if routes else ((), ())
    at = {name: f".{name}" if routes else name for name in ROUTED}
    sources = {**tensors, **between}
    if division:
        steps, names = _bind_kernels(sources, at, scale, division)
    else:
        steps, names = _bind_products(sources, at, scale, options)
    steps, names = first + steps, names_of_first + names
    everything = {**tensors, ".": memory}
    may_be_out = ("y",) if "y" in tensors and tensors["y"].same_layout(out) else ()
    check = MemoryCheck(everything, {name: i for i, name in enumerate(everything)}, ("out",), may_be_out)
    check(tuple([tensor.ptr for tensor in everything.values()]))
    return BoundLora(steps, names, everything, check, pieces, out)


Steps = tuple[tuple[Step, ...], tuple[Sequence[str], ...]]
"""Steps, and the tensors of each launch."""


def _bind_route(tensors: Mapping[str, TensorView], between: Mapping[str, TensorView]) -> Steps:
    """Return the launch that sorts the tokens."""
    offsets, rows, places = (between[name] for name in ROUTED)
    step = bind_route(_column(tensors["adapter_ids"]), offsets.shape[0], offsets, rows, places)
    return (step,), (("adapter_ids", *[f".{name}" for name in ROUTED]),)


def _bind_kernels(tensors: Mapping[str, TensorView], at: Mapping[str, str], scale: float, division: Division) -> Steps:
    """Return the launches of the kernels of adapters."""
    groups = ("offsets", "rows") if "rows" in tensors else ("adapter_ids",)
    named = [at.get(name, name) for name in groups]
    ids, rows, scales, y = (tensors.get(name) for name in (groups[0], "rows", "scale", "y"))
    x, a, b, inner, out = (tensors[name] for name in ("x", "a", "b", "inner", "out"))
    assert ids
    step = BoundAdaptation(x, a, b, ids, rows, inner, scales, scale, y, out, division)
    groups_at = (*named, "")[:2]
    return (step,), (("x", "a", *groups_at, ".inner"), (".inner", "b", *groups_at, "scale", "y", "out"))


def _bind_products(
    tensors: Mapping[str, TensorView], at: Mapping[str, str], scale: float, options: Mapping[str, Any]
) -> Steps:
    """Return the launches that multiply the groups of all adapters."""
    offsets, rows, places = (tensors[name] for name in ROUTED)
    steps: list[Step] = []
    names: list[Sequence[str]] = []
    inner, sums = tensors["inner"], tensors["sums"]
    a, b = transposed(tensors["a"]), transposed(tensors["b"])
    shrink = {"a": tensors["x"], "rows": rows, "b": a, "offsets": offsets, "out": inner}
    expand = {"a": inner, "b": b, "offsets": offsets, "out": sums, "alpha": scale}
    of_shrink = {"a": "x", "rows": at["rows"], "b": "a", "offsets": at["offsets"], "out": ".inner"}
    of_expand = {"a": ".inner", "b": "b", "offsets": at["offsets"], "out": ".sums"}
    for operands, named in ((shrink, of_shrink), (expand, of_expand)):
        call = read_call({**operands, **options})
        steps.append(call)
        names.append([named.get(place, "") for place in call.places])
    scales = tensors.get("scale")
    weights = None if scales is None else _column(scales)
    steps.append(bind_combine(sums, places, weights, tensors.get("y"), tensors["out"]))
    names.append((".sums", at["places"], "scale", "y", "out"))
    return tuple(steps), tuple(names)


def _column(vector: TensorView) -> TensorView:
    return replace(vector, shape=(*vector.shape, 1), strides=(*vector.strides, *vector.strides))


def _launches(bound: BoundLora, handle: int) -> SharedLaunches:
    """Return the launches for all tensors with the same layouts."""
    launches: list[Any] = []
    for step in bound.steps:
        launches += [prepare(step).launcher] if isinstance(step, GemmCall) else _launches_of(step, handle)
    return SharedLaunches(launches, Addresses(bound.pieces, bound.names), bound.tensors, bound.check)
