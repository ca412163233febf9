"""The order in which kernels compute an epilogue, so that all of them, and the oracle, round equally."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gemmill.library.epilogues.tree import Call, Kind, Node, Number, Operand, Value

FUSED: Mapping[str, str] = MappingProxyType(
    {
        "fma": "math::fma({0}, {1}, {2})",
        "fnma": "math::fma(-{0}, {1}, {2})",
        "fms": "math::fma({0}, {1}, -{2})",
        "reciprocal": "math::reciprocal({0})",
    }
)
"""Functions that no text has, with their C++: ``x * y + z``, ``-x * y + z`` and ``x * y - z`` with one rounding, and
``1 / x`` of a scale."""
_ALPHA, _BETA = (Operand(name, "scalar", "f32") for name in ("alpha", "beta"))
_NO_AXIS: frozenset[str] = frozenset()
_AXES: Mapping[Kind, frozenset[str]] = MappingProxyType(
    {
        "scalar": _NO_AXIS,
        "batch": _NO_AXIS,
        "row": frozenset("m"),
        "column": frozenset("n"),
        "matrix": frozenset("mn"),
        "block": frozenset("mn"),
    }
)
"""The axes of D along which an operand of each kind varies."""


def ordered(node: Node) -> Node:
    """The same value with its multiplications in order, and with :data:`FUSED` functions for sums with a product. It
    leaves no order of operations to the compiler."""
    match node:
        case Call("mul"):
            return Call("mul", _two_factors(node))
        case Call("add" | "sub" as name, (left, right)) if _is_product(left) or _is_product(right):
            # One fused multiply-add; of two products, the right one is fused.
            product, other = (right, left) if _is_product(right) else (left, right)
            fused = "fma" if name == "add" else "fnma" if product is right else "fms"
            return Call(fused, (*_two_factors(product), ordered(other)))
        case Call(name, arguments):
            return Call(name, tuple(map(ordered, arguments)))
        case _:
            return node


def with_reciprocals(node: Node, scale: str) -> Node:
    """The value with products by the reciprocal of a scale in place of quotients by it: one division serves a block."""
    match node:
        case Call("div", (left, Value(name))) if name == scale:
            return Call("mul", (with_reciprocals(left, scale), Call("reciprocal", (Value(scale),))))
        case Call(name, arguments):
            return Call(name, tuple(with_reciprocals(argument, scale) for argument in arguments))
        case _:
            return node


def _is_product(node: Node) -> bool:
    return isinstance(node, Call) and node.function == "mul"


def _two_factors(product: Node) -> tuple[Node, Node]:
    """A product as two factors: the product of all factors except the last, and the last."""
    first, *others, last = map(ordered, _in_order(_factors(product)))
    return functools.reduce(lambda x, y: Call("mul", (x, y)), others, first), last


def _factors(node: Node) -> list[Node]:
    """The factors of a product, including those of nested products."""
    match node:
        case Call("mul", (left, right)):
            return [*_factors(left), *_factors(right)]
        case _:
            return [node]


def _in_order(factors: Sequence[Node]) -> list[Node]:
    """The factors of a product in the order of multiplication.

    Those that are constant within rows come first, so that they are multiplied once per row; or those that are constant
    within columns, if the first operand is a vector of them. A kernel for the transposed problem thus has the same
    order, and the same bits. So has a kernel for M = 1, where one scale for all rows is one scale a row.
    """
    axes = [_axes(factor) for factor in factors]
    of_caller = [x not in (_ALPHA, _BETA) and not isinstance(x, Number) for x in factors]
    first = next(
        (own for own, is_operand in zip(axes, of_caller, strict=True) if is_operand and len(own) < 2), _NO_AXIS
    )
    order = sorted(range(len(factors)), key=lambda i: not axes[i] <= first)
    return [factors[i] for i in order]


def _axes(node: Node) -> frozenset[str]:
    """The axes of D along which the value of a node varies."""
    match node:
        case Number():
            return _NO_AXIS
        case Operand():
            return _AXES[node.kind]
        case Call():
            return _NO_AXIS.union(*map(_axes, node.arguments))
        case _:
            return _AXES["matrix"]
