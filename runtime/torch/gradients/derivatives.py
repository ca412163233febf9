"""Values and derivatives of what an epilogue's expression applies, in PyTorch, whose own functions these are."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from gemmill.library.epilogues.tree import Call, Node, Number, Operand, Value

Values = Mapping[str, Any]
"""By name: tensors that broadcast to D, or numbers."""

_GELU_TANH = (math.sqrt(2 / math.pi), 0.044715)

_VALUES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "div": lambda x, y: x / y,
        "neg": lambda x: -x,
        "lt": lambda x, y: x < y,
        "le": lambda x, y: x <= y,
        "gt": lambda x, y: x > y,
        "ge": lambda x, y: x >= y,
        "eq": lambda x, y: x == y,
        "ne": lambda x, y: x != y,
        "and": lambda x, y: x & y,
        "or": lambda x, y: x | y,
        "not": lambda x: ~x,
        "min": lambda *x: functools.reduce(torch.minimum, x),
        "max": lambda *x: functools.reduce(torch.maximum, x),
        "clamp": lambda x, low, high: torch.minimum(torch.maximum(x, low), high),
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "silu": torch.nn.functional.silu,
        "bf16": lambda x: x.bfloat16().to(x.dtype),
        "f16": lambda x: x.half().to(x.dtype),
        "f32": lambda x: x,
        **{
            name: getattr(torch, name)
            for name in ("abs", "exp", "log", "sqrt", "rsqrt", "erf", "tanh", "sigmoid", "relu", "where")
        },
    }
)
"""Functions by name, of tensors. What is not here, rounding to whole numbers and to 8 bits, has no derivative."""


def _of_extreme(g: Any, y: Any, *x: Any) -> tuple[Any, ...]:
    """Those that are equal share it, as they do in PyTorch."""
    chosen = [each == y for each in x]
    share = g / sum(is_chosen.to(g.dtype) for is_chosen in chosen)
    return tuple(torch.where(is_chosen, share, 0) for is_chosen in chosen)


def _of_clamp(g: Any, _: Any, x: Any, low: Any, high: Any) -> tuple[Any, ...]:
    above = torch.maximum(x, low) > high
    return torch.where((x >= low) & ~above, g, 0), torch.where((x < low) & ~above, g, 0), torch.where(above, g, 0)


def _of_gelu(g: Any, _: Any, x: Any) -> tuple[Any, ...]:
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return (g * (0.5 * (1 + torch.erf(x * math.sqrt(0.5))) + x * density),)


def _of_gelu_tanh(g: Any, _: Any, x: Any) -> tuple[Any, ...]:
    scale, cubic = _GELU_TANH
    t = torch.tanh(scale * (x + cubic * x * x * x))
    return (g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * cubic * x * x)),)


def _of_silu(g: Any, _: Any, x: Any) -> tuple[Any, ...]:
    s = torch.sigmoid(x)
    return (g * s * (1 + x * (1 - s)),)


_DERIVATIVES: Mapping[str, Callable[..., tuple[Any, ...]]] = MappingProxyType(
    {
        "add": lambda g, y, a, b: (g, g),
        "sub": lambda g, y, a, b: (g, -g),
        "mul": lambda g, y, a, b: (g * b, g * a),
        "div": lambda g, y, a, b: (g / b, -g * y / b),
        "neg": lambda g, y, x: (-g,),
        "min": _of_extreme,
        "max": _of_extreme,
        "clamp": _of_clamp,
        "where": lambda g, y, p, a, b: (None, torch.where(p, g, 0), torch.where(p, 0, g)),
        "abs": lambda g, y, x: (g * torch.sign(x),),
        "exp": lambda g, y, x: (g * y,),
        "log": lambda g, y, x: (g / x,),
        "sqrt": lambda g, y, x: (g / (2 * y),),
        "rsqrt": lambda g, y, x: (-0.5 * g * y / x,),
        "erf": lambda g, y, x: (g * (2 / math.sqrt(math.pi)) * torch.exp(-x * x),),
        "tanh": lambda g, y, x: (g * (1 - y * y),),
        "sigmoid": lambda g, y, x: (g * y * (1 - y),),
        "relu": lambda g, y, x: (torch.where(x > 0, g, 0),),
        "gelu": _of_gelu,
        "gelu_tanh": _of_gelu_tanh,
        "silu": _of_silu,
        **dict.fromkeys(("bf16", "f16", "f32"), lambda g, y, x: (g,)),
    }
)
"""Of the gradient of a function's result, the result and the arguments: those of the arguments."""


def function_without(node: Node) -> str | None:
    """The first function below a node that has no derivative, if there is one."""
    if not isinstance(node, Call):
        return None
    if node.function not in _VALUES:
        return node.function
    return next(filter(None, map(function_without, node.arguments)), None)


class Reverse:
    """Values of an expression, and gradients back through it."""

    def __init__(self, values: dict[str, Any], wanted: frozenset[str]) -> None:
        self.values = values
        """Of names, by name; those of assignments are added in their order."""
        self.wanted = {*wanted}
        """Names whose gradients are wanted, or lead to such."""
        self.gradients: dict[str, Any] = {}
        """By name, of the shape of D."""
        like = next(x for x in values.values() if isinstance(x, torch.Tensor))
        self.scalar = functools.partial(torch.full, (), dtype=like.dtype, device=like.device)
        self.known: dict[Node, Any] = {}

    def value(self, node: Node) -> Any:
        """Of a node, found once."""
        if node not in self.known:
            self.known[node] = self._value(node)
        return self.known[node]

    def _value(self, node: Node) -> Any:
        match node:
            case Number(value):
                return self.scalar(value)
            case Operand(name) | Value(name):
                x = self.values[name]
                return x if isinstance(x, torch.Tensor) else self.scalar(x)
            case Call(name, arguments):
                return _VALUES[name](*map(self.value, arguments))

    def assign(self, name: str, node: Node) -> None:
        """Give a name to the value of a node."""
        self.values[name] = self.value(node)
        if self.leads(node):
            self.wanted.add(name)

    def leads(self, node: Node) -> bool:
        """Whether gradients of what is wanted go through a node."""
        match node:
            case Operand(name) | Value(name):
                return name in self.wanted
            case Call(_, arguments):
                return any(map(self.leads, arguments))
        return False

    def back(self, node: Node, g: Any) -> None:
        """Add what the gradient of a node makes those of the names below it."""
        match node:
            case Operand(name) | Value(name) if name in self.wanted:
                self.gradients[name] = self.gradients[name] + g if name in self.gradients else g
            case Call(name, arguments) if self.leads(node):
                found = _DERIVATIVES[name](g, self.value(node), *map(self.value, arguments))
                for argument, each in zip(arguments, found, strict=True):
                    if each is not None and self.leads(argument):
                        self.back(argument, each)
