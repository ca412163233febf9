"""Replaces the products of a graph, and the pointwise nodes after them, by gemmill's operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from operator import getitem as _getitem
from typing import Any

import torch
from torch._inductor import config

from gemmill.library.bits import ANY
from gemmill.library.errors import OperandError
from gemmill.runtime.torch.inductor.choices import TIMED, is_to_be_timed
from gemmill.runtime.torch.inductor.expressions import Folded, Read, folded, linear, with_vector
from gemmill.runtime.torch.inductor.pointwise import VIEWS
from gemmill.runtime.torch.inductor.products import Product, product
from gemmill.runtime.torch.inductor.regions import regions
from gemmill.runtime.torch.inductor.shapes import same
from gemmill.runtime.torch.outputs import d_dtype
from gemmill.runtime.torch.takeover.blocks import Setting

aten, operators = torch.ops.aten, torch.ops.gemmill
_ADDING = {"mm": "addmm", "bmm": "baddbmm"}
"""For operators without C, the operator that takes one, if it has another name."""
_ORIGIN = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "seq_nr")


def replace_products(graph: torch.fx.Graph, setting: Setting) -> None:
    """Replace products by operators, the last first, so that nodes between two products are fused into the later
    one.

    Raises OperandError if ``bits`` must hold and Inductor's autotuner is on.
    """
    if setting.bits != ANY and (config.max_autotune or config.max_autotune_gemm or config.coordinate_descent_tuning):
        raise OperandError(
            f"bits={setting.bits!r} must hold, but max_autotune or coordinate_descent_tuning is on, with which "
            "Inductor may compute products by Triton: compile without them"
        )
    parts = _parts(graph)
    for node in reversed([*graph.nodes]):
        candidate = product(node, setting)
        if candidate is not None:
            _replace(graph, candidate, next(part for part in parts if node in part))


def _parts(graph: torch.fx.Graph) -> list[dict[Any, int]]:
    """Split the graph at mutating nodes; for each part, the positions of its nodes."""
    parts: list[dict[Any, int]] = [{}]
    for place, node in enumerate(graph.nodes):
        if getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            parts.append({})
        else:
            parts[-1][node] = place
    return parts


def _replace(graph: torch.fx.Graph, product: Product, part: Mapping[Any, int]) -> None:
    for region in regions(product, part):
        fused = folded(product, region)
        if fused is not None:
            builder = _NodeBuilder(graph, product, region.end)
            d = builder.linear_of(fused) or builder.epilogue(fused)
            _put(graph, builder.viewed(d, region.nodes), region.end)
            for node in reversed((product.node, *region.nodes)):
                graph.erase_node(node)
            for node in reversed(region.inner):
                if not node.users:
                    graph.erase_node(node)
            return
    builder, fused = _NodeBuilder(graph, product, product.node), with_vector(product)
    d = builder.epilogue(fused) if fused else builder.linear(product.alpha, product.c, product.beta)
    d.meta[TIMED] = is_to_be_timed(product)
    _put(graph, d, product.node)
    graph.erase_node(product.node)


def _put(graph: torch.fx.Graph, replacement: Any, node: Any) -> None:
    """Replace a node for all of its readers. The replacement gets the metadata of the node's origin in the program."""
    replacement.meta.update({name: node.meta[name] for name in _ORIGIN if name in node.meta})
    node.replace_all_uses_with(replacement)


class _NodeBuilder:
    """Inserts calls of operators before a node; they compute the node's value."""

    def __init__(self, graph: torch.fx.Graph, product: Product, end: Any) -> None:
        self._graph, self._product, self._end = graph, product, end
        self._dtype = end.meta["val"].dtype

    def linear_of(self, fused: Folded) -> Any:
        """D by an operator without an expression, or None if it needs an expression."""
        terms = linear(fused.tree)
        if terms is None:
            return None
        if terms.c is None:
            return self.linear(terms.alpha)
        c = fused.operands[terms.c]
        if c.node.meta["val"].dtype != self._dtype or self._product.operator == "grouped_mm":
            return None
        return self.linear(terms.alpha, self._shaped(c), terms.beta)

    def linear(self, alpha: float = 1.0, c: Any = None, beta: float = 1.0) -> Any:
        """D as ``alpha * a @ b + beta * c``."""
        product = self._product
        keywords = {"alpha": alpha} if alpha != 1 else {}
        if c is not None and beta != 1:
            keywords["beta"] = beta
        name, arguments = product.operator, [product.a, product.b, *product.named.values()]
        if c is not None and name in _ADDING:
            name, arguments = _ADDING[name], [c, *arguments]
        elif c is not None:
            arguments.append(c)
        return self._call(getattr(operators, name).default, arguments, keywords | self._keywords())

    def epilogue(self, fused: Folded) -> Any:
        """D by the operator ``epilogue``."""
        product = self._product
        read = {name: self._shaped(x) for name, x in fused.operands.items()} | {**product.named}
        arguments = [fused.text, product.a, product.b, [*read.values()], [*read]]
        return self._call(_getitem, [self._call(operators.epilogue.default, arguments, self._keywords()), 0])

    def viewed(self, d: Any, nodes: Sequence[Any]) -> Any:
        """D in the shape of the last of these nodes."""
        shape = self._end.meta["val"].shape
        if same(shape, self._product.shape):
            return d
        view = next(x for x in reversed(nodes) if x.target in VIEWS and same(x.meta["val"].shape, shape))
        return self._call(aten.reshape.default, [d, view.args[1]])

    def _keywords(self) -> dict[str, Any]:
        keywords: dict[str, Any] = {"options": self._product.options} if self._product.options else {}
        default = d_dtype(self._product.dtype, self._product.b.meta["val"].dtype)
        return keywords if self._dtype == default else {"out_dtype": self._dtype, **keywords}

    def _shaped(self, read: Read) -> Any:
        """An operand in the shape that the operators take."""
        kind, ndim = read.place
        if kind == "scalar" or read.node.meta["val"].dim() == ndim:
            return read.node
        kept = {"matrix": ("m", "n"), "row": ("m",)}.get(kind, ())
        sizes = [self._extent(axis) for axis in kept[len(kept) - (ndim - 1) :]]
        return self._call(aten.reshape.default, [read.node, [-1, *sizes]])

    def _extent(self, axis: str) -> Any:
        """M or N, as a number or as the node of a symbol."""
        node, at = (self._product.a, -2) if axis == "m" else (self._product.b, -1)
        value = node.meta["val"]
        extent = value.shape[at]
        return extent if isinstance(extent, int) else self._call(aten.sym_size.int, [node, value.dim() + at])

    def _call(self, target: Any, arguments: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> Any:
        with self._graph.inserting_before(self._end):
            node = self._graph.call_function(target, tuple(arguments), dict(keywords or {}))
        fake = self._product.node.meta["val"].fake_mode
        symbols = nullcontext() if fake.shape_env is None else fake.shape_env.suppress_guards()
        values = torch.fx.node.map_arg((node.args, node.kwargs), lambda x: x.meta["val"])
        with fake, symbols:
            node.meta["val"] = target(*values[0], **values[1])
        return node
