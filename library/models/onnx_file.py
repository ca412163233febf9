"""Reads an ONNX graph by the package onnx: its nodes, and the type and extents of each of its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gemmill.library.errors import RecordError
from gemmill.library.extras import install
from gemmill.library.files import os_error_text, read_given
from gemmill.library.wording import suggest

MAX_BYTES = (2 << 30) - 1
"""Maximum size of a file, which is that of protobuf. Weights may be in other files, which are not opened."""
_MOST_VALUES = 1024
"""Elements of the tensors whose values take part in shape inference, such as the extents of a Reshape."""
_DATA = ("float_data", "int32_data", "string_data", "int64_data", "raw_data", "double_data", "uint64_data")
"""Where a tensor has its values."""
_INFERRED = "unk__"
"""How symbols begin that onnx makes up for extents."""
_KEEP_LAYOUT = frozenset({"Cast", "CastLike", "DequantizeLinear", "Identity", "QuantizeLinear"})
"""Operators whose output has the elements of their first input in the same places."""
Extent = int | str
"""A number, or the symbol of an extent that differs from run to run; ``?`` for one that onnx does not infer."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """What the graph says about a tensor."""

    dtype: str = ""
    """Name of the type in ONNX, such as ``FLOAT16``; empty if it is not known."""
    extents: tuple[Extent, ...] | None = None
    """None if not even the number of extents is known."""
    constant: bool = False
    """Whether it is computed from constants alone, as weights are."""
    swapped: bool = False
    """Whether a Transpose swapped its last two extents, so that another extent is contiguous where it is stored."""
    stored: str = ""
    """The type from which DequantizeLinear computes it; empty if none does."""


@dataclass(frozen=True, slots=True)
class Graph:
    """An ONNX graph."""

    nodes: tuple[Any, ...]
    """``NodeProto`` of each node, in order."""
    tensors: Mapping[str, Tensor]
    """By name."""
    nested: tuple[Any, ...]
    """Nodes in branches, bodies of loops and functions."""


def read_graph(path: Path, dims: Mapping[str, int]) -> Graph:
    """The graph in an ONNX file.

    Args:
        path: the file. Files with its weights need not exist.
        dims: values of symbolic extents.

    Raises:
        RecordError: the package onnx is missing, the file cannot be read, is damaged, or lacks a symbol of ``dims``.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise RecordError(f"{path}: ONNX needs the package onnx ({error}); {install('onnx')}") from None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(read_given(path, MAX_BYTES))
    except OSError as error:
        raise RecordError(f"{path}: {os_error_text(error)}; pass an ONNX graph") from None
    except DecodeError:
        model.Clear()
    nested = [node for each in model.graph.node for node in _inside(each)]
    nested += [inner for function in model.functions for node in function.node for inner in (node, *_inside(node))]
    if not model.graph.node or not all(isinstance(text, str) for text in _texts(model.graph, nested)):
        raise RecordError(f"{path}: the file is damaged, or is no ONNX graph; export it again")
    _bind(model.graph, dims, path)
    for tensor in model.graph.initializer:
        if _elements(tensor.dims) > _MOST_VALUES:
            for name in _DATA:
                tensor.ClearField(name)
    faults = onnx.shape_inference.InferenceError, onnx.checker.ValidationError, MemoryError, RuntimeError, ValueError
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except faults as error:
        raise RecordError(f"{path}: onnx cannot infer extents: {clean(' '.join(str(error).split()), 300)}") from None
    return Graph(tuple(model.graph.node), _tensors(model.graph, onnx.TensorProto.DataType), tuple(nested))


def _texts(graph: Any, nested: Sequence[Any]) -> Iterator[str | bytes]:
    """Names in a graph; protobuf returns bytes for those that are no UTF-8."""
    for node in (*graph.node, *nested):
        yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
    for tensor in graph.initializer:
        yield tensor.name
    for value in (*graph.input, *graph.value_info, *graph.output):
        yield from (value.name, *(extent.dim_param for extent in value.type.tensor_type.shape.dim))


def _bind(graph: Any, dims: Mapping[str, int], path: Path) -> None:
    """Replace symbols by their values, wherever the graph has them."""
    found: dict[str, None] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        for extent in value.type.tensor_type.shape.dim:
            if extent.dim_param:
                found[extent.dim_param] = None
                if extent.dim_param in dims:
                    extent.dim_value = dims[extent.dim_param]
    if unknown := [name for name in dims if name not in found]:
        has = f"has {', '.join(clean(name) for name in [*found][:20])}" if found else "has no symbolic extent"
        raise RecordError(f"{path}: --dims has {unknown[0]!r:.80}{suggest(unknown[0], found)}; the graph {has}")


def _tensors(graph: Any, types: Any) -> Mapping[str, Tensor]:
    tensors = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        extents = tuple(map(_extent, kind.shape.dim)) if kind.HasField("shape") else None
        tensors[value.name] = Tensor(_type(kind.elem_type, types), extents)
    for tensor in graph.initializer:
        tensors[tensor.name] = Tensor(_type(tensor.data_type, types), tuple(tensor.dims), constant=True)
    for node in graph.node:
        inputs = [tensors.get(name, Tensor()) for name in node.input if name]
        constant = all(each.constant for each in inputs) if inputs else node.op_type == "Constant"
        first = inputs[0] if inputs else Tensor()
        swapped = first.swapped if node.op_type in _KEEP_LAYOUT else False
        if node.op_type == "Transpose" and first.extents is not None:
            swapped = _swaps(node, len(first.extents)) and not first.swapped
        stored = first.stored if node.op_type in (*_KEEP_LAYOUT, "Transpose", "Reshape") else ""
        stored = first.dtype if node.op_type == "DequantizeLinear" else stored
        for name in node.output:
            known = tensors.get(name, Tensor())
            tensors[name] = Tensor(known.dtype, known.extents, constant, swapped, stored)
    return MappingProxyType(tensors)


def _type(number: int, types: Any) -> str:
    return str(types.Name(number)) if number and number in types.values() else ""


def _extent(dim: Any) -> Extent:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return "?" if dim.dim_param.startswith(_INFERRED) else clean(dim.dim_param) or "?"


def _swaps(node: Any, rank: int) -> bool:
    """Whether a Transpose swaps the last two extents and leaves others in place."""
    order = next((list(each.ints) for each in node.attribute if each.name == "perm"), [*range(rank)][::-1])
    return rank > 1 and order == [*range(rank - 2), rank - 1, rank - 2]


def _inside(node: Any) -> Iterator[Any]:
    """The nodes of the graphs in a node's attributes."""
    graphs = [graph for each in node.attribute for graph in (each.g, *each.graphs)]
    for inner in (inner for graph in graphs for inner in graph.node):
        yield inner
        yield from _inside(inner)


def _elements(extents: Any) -> int:
    count = 1
    for extent in extents:
        count *= extent
    return count


def clean(name: str, most: int = 120) -> str:
    """A name from the file as printable text of one line and of limited length."""
    return "".join(letter if letter.isprintable() else "?" for letter in name[:most])
