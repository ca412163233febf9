"""Finds regions: the pointwise nodes after a product that an epilogue can compute.

A region ends with one node. It contains all nodes between the product and the end, and no node outside reads any of
them except the end. So fusing the region makes all of its other nodes unnecessary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch._inductor import config

from gemmill.runtime.torch.inductor.pointwise import CONVERSION, VIEWS, is_passed_on, is_readable
from gemmill.runtime.torch.inductor.products import NARROW, Product
from gemmill.runtime.torch.inductor.shapes import is_like, place, same

MOST_NODES = 96
"""The most nodes of a region; activations and their gradients have fewer."""
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


class Region(NamedTuple):
    """Pointwise nodes after a product."""

    end: Any
    nodes: tuple[Any, ...]
    """Those that depend on the product, in the order of the graph; the last is the end."""
    inner: tuple[Any, ...]
    """Further nodes that can be fused, in the order of the graph: they do not depend on the product, and only the
    region reads them. An example is an activation's derivative."""


def regions(product: Product, order: Mapping[Any, int]) -> Iterator[Region]:
    """Yield the regions after a product, the longest first. ``order`` has the position of each node in the part of the
    graph around the product in which nothing is mutated. There are none under ``emulate_precision_casts``, which asks
    for the roundings of eager mode between operations."""
    if not product.takes_expressions or config.emulate_precision_casts:
        return
    reached = _reached(product, order)
    for end in reversed(reached):
        nodes = _leading_to(end, reached)
        inside = {product.node, *nodes}
        if all(inside.issuperset(node.users) for node in inside if node is not end):
            yield Region(end, tuple(nodes), tuple(_inner(product, nodes, order)))


def _reached(product: Product, order: Mapping[Any, int]) -> list[Any]:
    """Readable nodes that depend on the product only through readable nodes, in the order of the graph."""
    reached = {product.node}
    waiting = set(product.node.users)
    while waiting and len(reached) <= MOST_NODES:
        node = min(waiting, key=lambda x: order.get(x, -1))
        waiting.remove(node)
        if node in order and _follows(node, product, reached):
            reached.add(node)
            waiting.update(user for user in node.users if user not in reached)
    return sorted(reached - {product.node}, key=order.__getitem__)


def _follows(node: Any, product: Product, reached: set[Any]) -> bool:
    """Whether a node has a value for each element of D, and everything that it reads broadcasts to that."""
    value = node.meta.get("val")
    if not is_readable(node) or not isinstance(value, torch.Tensor) or not is_like(value.shape, product.shape):
        return False
    if value.dtype in NARROW:
        if product.dtype not in NARROW or node.target is not CONVERSION:
            return False
    elif value.dtype not in (*FLOATS, torch.bool):
        return False
    for x in _read(node):
        read = x.meta.get("val")
        if not isinstance(read, torch.Tensor) or read.device != value.device or read.dtype in NARROW:
            return False
        if x in reached:
            if node.target not in VIEWS and not same(read.shape, value.shape):
                return False
        elif place(read.shape, value.shape, product.shape) is None:
            return False
    return True


def _read(node: Any) -> list[Any]:
    """The tensors that a readable node reads."""
    return [node.args[0]] if is_passed_on(node) else [*node.all_input_nodes]


def _leading_to(end: Any, reached: list[Any]) -> list[Any]:
    inside, candidates = {end}, set(reached)
    for node in reversed(reached):
        if node in inside:
            inside.update(candidates.intersection(_read(node)))
    return [node for node in reached if node in inside]


def _inner(product: Product, nodes: list[Any], order: Mapping[Any, int]) -> list[Any]:
    """Readable nodes with a value for each element of D that only the region reads, in the order of the graph."""
    readers = {*nodes}
    waiting = {x for node in nodes for x in _read(node)} - readers - {product.node}
    while waiting and len(readers) <= MOST_NODES:
        node = max(waiting, key=lambda x: order.get(x, -1))
        waiting.remove(node)
        if node in order and readers.issuperset(node.users) and _follows(node, product, set()):
            readers.add(node)
            waiting.update(x for x in _read(node) if x not in readers)
    return sorted(readers.difference(nodes), key=order.__getitem__)
