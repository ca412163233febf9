"""``gemmill.lora`` and ``gemmill.plan_lora``: adds to each token the product of its low-rank adapter."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from gemmill.library.dtypes import DTypeName
from gemmill.library.errors import OperandError
from gemmill.runtime.api import caches
from gemmill.runtime.api.launch_sequence import Addresses, PlanOfLaunches, SharedLaunches
from gemmill.runtime.api.prepare import prepare
from gemmill.runtime.api.read import read_call
from gemmill.runtime.api.routing import Routing
from gemmill.runtime.api.streams import Stream, allocate, allocates, handle_of, stream_to_follow
from gemmill.runtime.launch.plan import Plan
from gemmill.runtime.launch.routing import CombineLaunch, RouteLaunch, TokenLaunch
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.epilogue_arguments import is_number
from gemmill.runtime.operands.experts import Piece, in_memory, packed, transposed
from gemmill.runtime.operands.lora import ROUTED, LoraExtents, lora_extents
from gemmill.runtime.operands.overlap import MemoryCheck
from gemmill.runtime.operands.routing import BoundCombine, BoundRoute, bind_combine, bind_route
from gemmill.runtime.operands.tensors import Tensor, TensorView, view, view_table
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

    Tokens are sorted by adapter (:func:`gemmill.route`). Two grouped products gather the rows of x and multiply them by
    ``a`` and by ``b``, and :func:`gemmill.combine` adds their rows to ``y``. The call never waits for the GPU.

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

    The rows between the products are rounded to the dtype of ``x``. Memory for them, of rank + N elements for each
    token, is allocated by the library of ``x``, PyTorch or CuPy. ``stream`` and ``registry`` are as in
    :func:`gemmill.matmul`.

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
        entry.value = launches = _launches(bound)
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
    bound = _bound(_Given.read("plan_lora", tensors, stream), {"registry": registry, "bits": bits})
    return LoraPlan(bound, stream_to_follow(bound.shrink, stream))
# fmt: on


class BoundLora(NamedTuple):
    """The launches of a product with adapters, in order, on given tensors."""

    route: BoundRoute | None
    """None where the caller has sorted the tokens."""
    shrink: GemmCall
    expand: GemmCall
    combine: BoundCombine
    tensors: Mapping[str, TensorView]
    """Tensors by keyword, and the memory between the launches as ``.``."""
    check: MemoryCheck
    """Refuses addresses of :attr:`tensors` where ``out`` overlaps another."""
    pieces: Mapping[str, Piece]
    """Tensors between the launches."""
    out: Any
    """The result as an object of the caller's library."""

    def addresses(self) -> Addresses:
        """Return what gives the addresses that the launches take."""
        offsets, rows, places = (name if self.route is None else f".{name}" for name in ROUTED)
        names = {"a": "x", "rows": rows, "b": "a", "offsets": offsets, "out": ".inner"}
        names_of_expand = {"a": ".inner", "b": "b", "offsets": offsets, "out": ".sums"}
        return Addresses(
            self.pieces,
            (
                *([("adapter_ids", offsets, rows, places)] if self.route else []),
                [names.get(place, "") for place in self.shrink.places],
                [names_of_expand.get(place, "") for place in self.expand.places],
                (".sums", places, "scale", "y", "out"),
            ),
        )


class LoraPlan(PlanOfLaunches):
    """A product with adapters on given tensors, selected, compiled, loaded and encoded. Calling the plan only launches.

    :func:`gemmill.plan_lora` makes plans. A plan keeps its tensors alive until you close it, with :meth:`close` or at
    the end of a ``with`` block. Use it from one thread at a time.
    """

    _made_by = "gemmill.plan_lora"

    def __init__(self, bound: BoundLora, stream: Callable[[], int]) -> None:
        handle = bound.shrink.stream
        self.shrink = Plan(bound.shrink, prepare(bound.shrink), stream)
        """The plan of the product with ``a``."""
        self.expand = Plan(bound.expand, prepare(bound.expand), stream)
        """The plan of the product with ``b``."""
        launches: list[TokenLaunch | Plan] = [RouteLaunch(bound.route, handle)] if bound.route else []
        launches += [self.shrink, self.expand, CombineLaunch(bound.combine, handle)]
        super().__init__(launches, bound.out, bound, stream)


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
            name: (view_table if name == "adapter_ids" else view)(tensor, name, handle)
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
        if not allocates(self.x):
            raise OperandError(
                f"x is a {type(self.x).__qualname__}; lora allocates memory with the library of x, which must be "
                "PyTorch or CuPy: pass its tensors"
            )
        return allocate(self.x, shape, dtype, self.views["x"].device, self.stream)

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
    bound = bind_lora(
        {**given.views, "out": view_of_out}, extents, given.scale, {**options, "stream": given.handle}, given.allocate
    )
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
    routes = "adapter_ids" in tensors
    x, out = tensors["x"], tensors["out"]
    pieces, size = packed(extents.between(x.dtype, routes))
    memory = view(allocate((size,), "u8"), "memory between launches", options["stream"])
    between = in_memory(pieces, memory)
    offsets, rows, places = ((between if routes else tensors)[name] for name in ROUTED)
    route = None
    if routes:
        ids = tensors["adapter_ids"]
        of_slots = replace(ids, shape=(*ids.shape, 1), strides=(*ids.strides, 1))
        route = bind_route(of_slots, extents.adapters, offsets, rows, places)
    inner, sums = between["inner"], between["sums"]
    shrink = read_call(
        {"a": x, "rows": rows, "b": transposed(tensors["a"]), "offsets": offsets, "out": inner, **options}
    )
    expand = read_call(
        {"a": inner, "b": transposed(tensors["b"]), "offsets": offsets, "out": sums, "alpha": scale, **options}
    )
    scales = tensors.get("scale")
    weights = replace(scales, shape=(*scales.shape, 1), strides=(*scales.strides, 1)) if scales else None
    combine = bind_combine(sums, places, weights, tensors.get("y"), out)
    everything = {**tensors, ".": memory}
    may_be_out = ("y",) if "y" in tensors and tensors["y"].same_layout(out) else ()
    check = MemoryCheck(everything, {name: i for i, name in enumerate(everything)}, ("out",), may_be_out)
    check(tuple([tensor.ptr for tensor in everything.values()]))
    return BoundLora(route, shrink, expand, combine, everything, check, pieces, out)


def _launches(bound: BoundLora) -> SharedLaunches:
    """Return the launches for all tensors with the same layouts."""
    handle = bound.shrink.stream
    launches = (
        *([RouteLaunch(bound.route, handle)] if bound.route else []),
        prepare(bound.shrink).launcher,
        prepare(bound.expand).launcher,
        CombineLaunch(bound.combine, handle),
    )
    return SharedLaunches(launches, bound.addresses(), bound.tensors, bound.check)
