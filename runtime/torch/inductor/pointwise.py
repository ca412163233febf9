"""Translates pointwise nodes of Inductor's graphs into trees of epilogue expressions, and recognises decomposed
activations.

The table has no functions that expressions lack, or that kernels compute less accurately than PyTorch (``expm1``,
``log1p``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose, isinf, isnan
from types import MappingProxyType
from typing import Any

import torch

from gemmill.library.dtypes import MAX_FLOAT32
from gemmill.library.epilogues.function_table import FUNCTIONS
from gemmill.library.epilogues.parse import parse
from gemmill.library.epilogues.tree import Call, Node, Number, Operand, Value
from gemmill.runtime.torch.takeover.aten import overload

aten, prims = torch.ops.aten, torch.ops.prims

_ONE = Number(1.0)


def _function(name: str) -> Callable[..., Node]:
    return lambda *arguments: Call(name, arguments)


def _times(x: Node, factor: Node) -> Node:
    return x if factor == _ONE else Call("mul", (x, factor))


def _power(x: Node, exponent: Node) -> Node | None:
    match exponent:
        case Number(2.0):
            return Call("mul", (x, x))
        case Number(3.0):
            return Call("mul", (Call("mul", (x, x)), x))
        case Number(0.5):
            return Call("sqrt", (x,))
    return None


TREES: Mapping[Any, Callable[..., Node | None]] = MappingProxyType(
    {
        **{overload(name): _function(row.name) for row in FUNCTIONS.values() for name in row.aten},
        aten.add.Tensor: lambda x, y, alpha=_ONE: Call("add", (x, _times(y, alpha))),
        aten.sub.Tensor: lambda x, y, alpha=_ONE: Call("sub", (x, _times(y, alpha))),
        aten.reciprocal.default: lambda x: Call("div", (_ONE, x)),
        aten.pow.Tensor_Scalar: _power,
    }
)
"""By overload, the function that makes a node's tree from the trees of its arguments. It returns None for arguments
that are not supported."""

VIEWS = frozenset((aten.reshape.default, aten.view.default, aten._unsafe_view.default))
CONVERSION = prims.convert_element_type.default
TWICE = frozenset((aten.pow.Tensor_Scalar,))
"""Overloads whose tree contains an argument more than once."""


def is_passed_on(node: Any) -> bool:
    """Whether a node is a view or a conversion, which an expression skips: it computes in f32 to its end."""
    return node.target in VIEWS or node.target is CONVERSION


def number(value: Any) -> Number | None:
    """A Python number as a constant of an expression; None if it is not finite in float32."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isnan(value) or isinf(value) or abs(value) > MAX_FLOAT32:
        return None
    return Number(float(value))


def is_readable(node: Any) -> bool:
    """Whether the table has a node, and its arguments are nodes and numbers."""
    if node.op != "call_function":
        return False
    if is_passed_on(node):
        return True
    if node.target not in TREES or not node.kwargs.keys() <= {"alpha"}:
        return False
    arguments = [*node.args, *node.kwargs.values()]
    return all(isinstance(x, torch.fx.Node) or number(x) is not None for x in arguments)


def tree_of(node: Any, read: Callable[[Any], Node | None]) -> Node | None:
    """The tree of a readable node. ``read`` makes the trees of its arguments; None if one of them, or the node, has no
    tree."""
    arguments = [read(x) for x in node.args]
    keywords = {name: read(x) for name, x in node.kwargs.items()}
    if any(x is None for x in (*arguments, *keywords.values())):
        return None
    tree = TREES[node.target](*arguments, **keywords)
    return None if tree is None or not _is_typed(tree) else simplified(tree)


def is_condition(tree: Node) -> bool:
    """Whether the value of a tree is a condition instead of a number."""
    return isinstance(tree, Call) and FUNCTIONS[tree.function].gives == "condition"


def _is_typed(tree: Node) -> bool:
    """Whether the arguments of a tree's function are conditions where it takes conditions, else numbers."""
    if not isinstance(tree, Call):
        return True
    kinds = FUNCTIONS[tree.function].takes
    return all(is_condition(x) == (kind == "condition") for x, kind in zip(tree.arguments, kinds, strict=False))


def is_atom(tree: Node) -> bool:
    """Whether a tree is a name or a number, so that repeating it costs nothing."""
    return isinstance(tree, Number | Operand | Value)


def simplified(tree: Node) -> Node:
    """The call of the function that a tree is the decomposition of, or the tree itself if there is none."""
    match tree:
        case Call("mul", (x, Number(1.0))) | Call("mul", (Number(1.0), x)):
            return x
        case Call("min", (Call("max", (x, Number() as low)), Number() as high)) if low.value <= high.value:
            return Call("clamp", (x, low, high))
    for pattern, name in _DECOMPOSITIONS:
        names: dict[str, Node] = {}
        if _is_made_as(tree, pattern, names):
            return Call(name, (names["x"],))
    return tree


_DECOMPOSITIONS = [
    (parse(f"t = {text}; d = acc + t").assignments[0].value, row.name)
    for row in FUNCTIONS.values()
    for text in row.decompositions
]
"""Decompositions of functions of one argument, which is the operand ``x``, and the names of the functions."""


def _is_made_as(tree: Node, pattern: Node, names: dict[str, Node]) -> bool:
    """Whether a tree matches a pattern. Stores the subtrees that the pattern's operands stand for in ``names``."""
    match pattern, tree:
        case Operand(name), _:
            return names.setdefault(name, tree) == tree
        case Number(wanted), Number(value):
            return isclose(value, wanted, rel_tol=1e-6)
        case Call(), Call() if pattern.function == tree.function and len(pattern.arguments) == len(tree.arguments):
            pairs = zip(tree.arguments, pattern.arguments, strict=True)
            return all(_is_made_as(x, y, names) for x, y in pairs)
    return False
