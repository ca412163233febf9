"""A layer of experts as launches: binds its tensors, and launches it on others like them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gemmill.library.dtypes import DTypeName
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.problem import upconverts_a
from gemmill.runtime.api.launch_sequence import Addresses, SharedLaunches
from gemmill.runtime.api.prepare import prepare
from gemmill.runtime.api.read import read_call
from gemmill.runtime.launch.routing import CombineLaunch, GatherLaunch, RouteLaunch
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.operands.experts import Piece, in_memory, layer_extents, memory_pieces, transposed
from gemmill.runtime.operands.overlap import MemoryCheck
from gemmill.runtime.operands.routing import (
    BoundCombine,
    BoundGather,
    BoundRoute,
    bind_combine,
    bind_route,
    has_aligned_rows,
)
from gemmill.runtime.operands.tensors import TensorView, view


class Layer(NamedTuple):
    """The launches of a layer of experts, in order, on given tensors."""

    route: BoundRoute
    copies: tuple[BoundGather, ...]
    """Copy the rows of tokens, and their scales, into the order of experts, where the first product does not gather
    them."""
    first: GemmCall
    second: GemmCall
    combine: BoundCombine
    tensors: Mapping[str, TensorView]
    """Tensors by keyword, operands of the activation by name, and the memory between the launches as ``.``."""
    check: MemoryCheck
    """Refuses addresses of :attr:`tensors` where ``out`` overlaps another."""
    pieces: Mapping[str, Piece]
    """Tensors between the launches."""
    out: Any
    """The result as an object of the caller's library."""


FEW_ROWS = 128
"""Rows of an expert, on average, below which kernels gather e4m3 tokens. A copy of more takes less than the gather."""


def gathers_tokens(dtype: DTypeName, scale_dtype: DTypeName, narrow: bool, rows: int, experts: int) -> bool:
    """Whether the first product reads tokens by an index, not in a copy, if their rows allow it.

    On an H200, a copy beside narrow weights takes as long as the gather for few rows, and less for many.
    """
    if dtype == "e4m3":
        return not narrow and scale_dtype == "f32" and rows < FEW_ROWS * experts
    return not narrow


_COPIES = ("x", ".rows", ".copy"), ("x_scale", ".rows", ".copy_scale")
"""Addresses of the launches that copy."""


class LayerAddresses(Addresses):
    """The addresses that the launches of a layer take."""

    def __init__(self, layer: Layer) -> None:
        of_a = {"a": "x", "rows": ".rows", "a_scale": "x_scale"}
        if layer.copies:
            of_a = {"a": ".copy", "a_scale": ".copy_scale"}
        of_first = {**of_a, "b": "w1", "offsets": ".offsets", "out": ".inner"}
        of_second = {"a": ".inner", "b": "w2", "offsets": ".offsets", "out": ".y"}
        if scale := layer.first.arguments.epilogue.scale:
            of_first |= {"b_scale": "w1_scale", scale.name: ".inner_scale"}
            of_second |= {"a_scale": ".inner_scale", "b_scale": "w2_scale"}
        else:
            of_first |= {"b_scale": "w1_scale", "b_zero": "w1_zero"}
            of_second |= {"b_scale": "w2_scale", "b_zero": "w2_zero"}
        products = (layer.first, of_first), (layer.second, of_second)
        first, second = ([names.get(place, place) for place in gemm.places] for gemm, names in products)
        names = (
            ("topk_ids", ".offsets", ".rows", ".places"),
            *_COPIES[: len(layer.copies)],
            first,
            second,
            (".y", ".places", "topk_weights", "", "out"),
        )
        super().__init__(layer.pieces, names)


class LayerLaunches(SharedLaunches):
    """The launches of all layers with the same extents, strides, dtypes and options."""

    def __init__(self, layer: Layer) -> None:
        handle = layer.first.stream
        launches = (
            RouteLaunch(layer.route, handle),
            *[GatherLaunch(copy, handle) for copy in layer.copies],
            prepare(layer.first).launcher,
            prepare(layer.second).launcher,
            CombineLaunch(layer.combine, handle),
        )
        super().__init__(launches, LayerAddresses(layer), layer.tensors, layer.check)


def epilogue_of(activation: str) -> str:
    """Return the epilogue of the first product: that of a function by name, or the expression itself."""
    if isinstance(activation, str) and activation.isidentifier():
        return f"d = {activation}(gate8) * up8"
    return activation


def quantising(epilogue: str, scale_dtype: DTypeName = "f32") -> str:
    """Return an epilogue that also divides D by the scale of each block of 128 columns, and writes the scales. Its own
    two names are ``h`` and ``s``, or longer where the epilogue has these."""
    names = {*re.findall(r"\w+", epilogue)}
    h, s = (next(name for count in itertools.count(1) if (name := letter * count) not in names) for letter in "hs")
    attribute = "" if scale_dtype == "f32" else f".{scale_dtype}"
    return re.sub(r"\bd\b", h, epilogue) + f"; {s}{attribute}[m, n/128] = scale({h}); d = {h} / {s}"


def bind_layer(
    tensors: Mapping[str, TensorView],
    activation: str,
    operands: Mapping[str, Any],
    options: Mapping[str, Any],
    allocate: Callable[[tuple[int, ...], DTypeName], Any],
) -> Layer:
    """Return the launches of a layer on tensors in GPU memory.

    Args:
        tensors: Tensors by the keywords of :func:`gemmill.moe`, ``out`` among them.
        activation: As in :func:`gemmill.moe`.
        operands: Views and numbers of the activation.
        options: Keywords of both products.
        allocate: Allocates the memory between the launches, by shape and dtype.

    Raises:
        OperandError: a tensor or option does not fit.
    """
    epilogue = epilogue_of(activation)
    extents = layer_extents(tensors, read_epilogue(epilogue))
    x, out = tensors["x"], tensors["out"]
    are_apart = x.shape[0] < 2 or x.strides[0] >= x.shape[1]
    narrow = upconverts_a(tensors["w1"].dtype, x.dtype)
    scale_dtype = tensors["x_scale"].dtype if x.dtype == "e4m3" else "f32"
    may_gather = gathers_tokens(x.dtype, scale_dtype, narrow, extents.rows, extents.experts)
    gathers = may_gather and are_apart and has_aligned_rows(x, TMA_ALIGN)
    pieces, size = memory_pieces(extents, x.dtype, not gathers, scale_dtype, narrow=narrow)
    memory = view(allocate((size,), "u8"), "memory between launches", options["stream"])
    between = in_memory(pieces, memory)
    offsets, rows, places, inner, y = (between[name] for name in ("offsets", "rows", "places", "inner", "y"))
    route = bind_route(tensors["topk_ids"], extents.experts, offsets, rows, places)
    copies, of_a = [], {"a": x, "rows": rows}
    if not gathers:
        of_a = {"a": between["copy"]}
        copies = [BoundGather(x, rows, of_a["a"])]
    of_first = {"b": transposed(tensors["w1"]), "offsets": offsets, "out": inner, "epilogue": epilogue}
    of_scales: dict[str, Any] = {}
    if narrow:
        of_first |= {f"b_{kind}": tensors.get(f"w1_{kind}") for kind in ("scale", "zero")}
        of_scales = {f"b_{kind}": tensors.get(f"w2_{kind}") for kind in ("scale", "zero")}
    if x.dtype == "e4m3":
        of_a["a_scale"] = tensors["x_scale"] if gathers else transposed(between["copy_scale"])
    if x.dtype == "e4m3" and not gathers:
        copies.append(BoundGather(tensors["x_scale"], rows, of_a["a_scale"]))
    if x.dtype == "e4m3" and not narrow:
        scale = transposed(between["inner_scale"])
        of_first["epilogue"] = text = quantising(epilogue, scale_dtype)
        name_of_scale = next(o.name for o in read_epilogue(text).outputs if o.kind == "block")
        of_first |= {"b_scale": transposed(tensors["w1_scale"]), name_of_scale: scale}
        of_scales = {"a_scale": scale, "b_scale": transposed(tensors["w2_scale"])}
    first = read_call({**of_a, **of_first, **operands, **options})
    bias = {"epilogue": "d = acc + b2[n]", "b2": tensors["b2"]} if "b2" in tensors else {}
    of_second = {"a": inner, "b": transposed(tensors["w2"]), "offsets": offsets, "out": y}
    second = read_call({**of_second, **of_scales, **bias, **options})
    combine = bind_combine(y, places, tensors.get("topk_weights"), None, out)
    values = first.arguments.values
    given = {name: value for name in operands if isinstance(value := values[name], TensorView)}
    everything = {**tensors, **given, ".": memory}
    may_be_out = ("x",) if x.same_layout(out) else ()
    written = "out", *first.arguments.outputs
    check = MemoryCheck(everything, {name: i for i, name in enumerate(everything)}, written, may_be_out)
    check(tuple([tensor.ptr for tensor in everything.values()]))
    return Layer(route, tuple(copies), first, second, combine, everything, check, pieces, out)
