"""Pointwise nodes of Inductor's graphs as trees of epilogues: a table, and what decomposed activations look like.

What kernels compute less exactly than PyTorch (``expm1``, ``log1p``) is not in the table; nor is what has no function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose, isinf, isnan
from types import MappingProxyType
from typing import Any

import torch

from gemmill.library.dtypes import MAX_FLOAT32
from gemmill.library.epilogues.tree import FUNCTIONS, Call, Node, Number, Operand, Value

aten, prims = torch.ops.aten, torch.ops.prims

_ONE, _ZERO, _HALF = Number(1.0), Number(0.0), Number(0.5)
_SQRT_HALF, _SQRT_2_PI, _CUBIC = 0.7071067811865476, 0.7978845608028654, 0.044715


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


_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **{
            f"{name}.default": name for name in ("abs", "erf", "exp", "log", "neg", "relu", "round", "rsqrt", "sigmoid")
        },
        **{f"{name}.default": name for name in ("sqrt", "tanh")},
        "maximum.default": "max",
        "minimum.default": "min",
        "clamp_min.default": "max",
        "clamp_max.default": "min",
        "logical_not.default": "not",
        "logical_and.default": "and",
        "logical_or.default": "or",
        "bitwise_not.default": "not",
        "bitwise_and.Tensor": "and",
        "bitwise_or.Tensor": "or",
        "where.self": "where",
        "mul.Tensor": "mul",
        "div.Tensor": "div",
        **{f"{name}.{form}": name for name in ("lt", "le", "gt", "ge", "eq", "ne") for form in ("Tensor", "Scalar")},
    }
)
"""Overloads that are functions of epilogues, argument by argument."""


def _overload(name: str) -> Any:
    packet, form = name.split(".")
    return getattr(getattr(aten, packet), form)


TREES: Mapping[Any, Callable[..., Node | None]] = MappingProxyType(
    {
        **{_overload(name): _function(function) for name, function in _NAMES.items()},
        aten.add.Tensor: lambda x, y, alpha=_ONE: Call("add", (x, _times(y, alpha))),
        aten.sub.Tensor: lambda x, y, alpha=_ONE: Call("sub", (x, _times(y, alpha))),
        aten.reciprocal.default: lambda x: Call("div", (_ONE, x)),
        aten.pow.Tensor_Scalar: _power,
    }
)
"""What a node says of the trees of its arguments, by its overload; None where that is not the table's."""

VIEWS = frozenset((aten.reshape.default, aten.view.default, aten._unsafe_view.default))
CONVERSION = prims.convert_element_type.default
TWICE = frozenset((aten.pow.Tensor_Scalar,))
"""Overloads whose tree reads an argument more than once."""


def is_passed_on(node: Any) -> bool:
    """Whether a node is its argument, seen otherwise or rounded: an epilogue computes in f32 to its end."""
    return node.target in VIEWS or node.target is CONVERSION


def number(value: Any) -> Number | None:
    """A number of Python's as a constant of an expression; None where no kernel has it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isnan(value) or isinf(value) or abs(value) > MAX_FLOAT32:
        return None
    return Number(float(value))


def is_readable(node: Any) -> bool:
    """Whether a node is one of the table, with arguments that are nodes and numbers."""
    if node.op != "call_function":
        return False
    if is_passed_on(node):
        return True
    if node.target not in TREES or not node.kwargs.keys() <= {"alpha"}:
        return False
    given = [*node.args, *node.kwargs.values()]
    return all(isinstance(x, torch.fx.Node) or number(x) is not None for x in given)


def tree_of(node: Any, read: Callable[[Any], Node | None]) -> Node | None:
    """The tree of a readable node, of what ``read`` makes of its arguments; None where there is none."""
    arguments = [read(x) for x in node.args]
    keywords = {name: read(x) for name, x in node.kwargs.items()}
    if any(x is None for x in (*arguments, *keywords.values())):
        return None
    tree = TREES[node.target](*arguments, **keywords)
    return None if tree is None or not _is_typed(tree) else simplified(tree)


def is_condition(tree: Node) -> bool:
    """Whether a tree is true or false, rather than a number."""
    return isinstance(tree, Call) and FUNCTIONS[tree.function].result == "condition"


def _is_typed(tree: Node) -> bool:
    """Whether the arguments of a tree's function are conditions and numbers as it wants them."""
    if not isinstance(tree, Call):
        return True
    wanted = FUNCTIONS[tree.function].arguments
    return all(is_condition(x) == (kind == "condition") for x, kind in zip(tree.arguments, wanted, strict=False))


def is_atom(tree: Node) -> bool:
    """Whether a tree is a name or a number, which costs nothing to read again."""
    return isinstance(tree, Number | Operand | Value)


def simplified(tree: Node) -> Node:
    """A tree of simple arguments as the function that it is the decomposition of, if there is one."""
    match tree:
        case Call("mul", (x, Number(1.0))) | Call("mul", (Number(1.0), x)):
            return x
        case Call("max", (x, Number(0.0))):
            return Call("relu", (x,))
        case Call("min", (Call("max", (x, Number() as low)), Number() as high)) if low.value <= high.value:
            return Call("clamp", (x, low, high))
        case Call("div", (x, Call("add", (Call("exp", (Call("neg", (y,)),)), Number(1.0))))):
            return Call("sigmoid", (y,)) if x == _ONE else Call("silu", (x,)) if x == y else tree
        case Call("mul", (x, Call("sigmoid", (y,)))) | Call("mul", (Call("sigmoid", (y,)), x)) if x == y:
            return Call("silu", (x,))
        case Call("mul", (Call("mul", (x, Number(0.5))), Call("add", (normal, Number(1.0))))):
            return _gelu(x, normal) or tree
    return tree


def _gelu(x: Node, normal: Node) -> Node | None:
    match normal:
        case Call("erf", (Call("mul", (y, Number(factor))),)) if x == y and isclose(factor, _SQRT_HALF, rel_tol=1e-6):
            return Call("gelu", (x,))
        case Call("tanh", (Call("mul", (Call("add", (y, cubic)), Number(factor))),)) if x == y:
            cube = Call("mul", (Call("mul", (x, x)), x))
            if isclose(factor, _SQRT_2_PI, rel_tol=1e-6) and cubic == Call("mul", (cube, Number(_CUBIC))):
                return Call("gelu_tanh", (x,))
    return None
