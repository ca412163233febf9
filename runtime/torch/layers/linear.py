"""``gemmill.torch.Linear``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemmill.library.errors import OperandError
from gemmill.library.wording import one_of, suggest
from gemmill.runtime.torch.layers.weight_formats import FORMATS, Format, Stored

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "sigmoid", "silu", "tanh")
"""Functions of an epilogue that a layer may end with."""


class Linear(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not installed where mypy runs
    """``activation(x @ weight.mT + bias)`` in one kernel, whose weights are stored as ``weights`` says.

    Args:
        in_features: K.
        out_features: N.
        bias: whether there is one.
        weights: ``bf16``, ``f16``, ``e4m3_rows``, ``e4m3_blocks``, ``u4_g128``, ``u4_g64`` or ``u4_g32``.
        activation: ``relu``, ``gelu``, ``gelu_tanh``, ``silu``, ``sigmoid``, ``tanh``, or None.
        device: of its tensors.
        dtype: of activations, the bias, and the scales and zero points of 4-bit weights: bf16 by default.

    Tensors: ``weight`` (N, K), of 4 bits (N, K / 2) bytes; ``weight_scale`` (N, 1) or (N / 128, K / 128) f32 of e4m3,
    (K / group, N) of 4 bits, and there ``weight_zero``; ``bias`` (N,). Weights of bf16 and f16 are trained, others not.
    ``Module.to(dtype)`` leaves e4m3 and its scales as they are.

    e4m3 multiplies e4m3: activations are quantised in ``forward`` by plain operations of PyTorch, five launches that
    read them three times, or when compiled one or two. An OperandError where ``weights`` or ``activation`` is none.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        weights: str = "bf16",
        activation: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dtype = torch.bfloat16 if dtype is None else dtype
        form, made = format_named(weights), torch.empty(out_features, in_features, device=device, dtype=dtype)
        if not made.is_meta:
            torch.nn.init.kaiming_uniform_(made, a=5**0.5)
        self._hold(form.stored(made, dtype), made.new_zeros(out_features) if bias else None, weights, activation)

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, weights: str = "e4m3_rows", activation: str | None = None) -> Linear:
        """A layer like another, with its weights quantised. Those that need no conversion are shared, and the bias."""
        weight, form = linear.weight, format_named(weights)
        dtype = weight.dtype if weight.dtype in (torch.bfloat16, torch.float16) else torch.bfloat16
        with torch.no_grad():
            stored = form.stored(weight, dtype)
        if stored["weight"] is weight.data or stored["weight"].data_ptr() == weight.data_ptr():
            stored["weight"] = weight
        bias = linear.bias
        if bias is not None and bias.dtype not in (torch.bfloat16, torch.float16):
            bias = torch.nn.Parameter(bias.detach().to(dtype), requires_grad=bias.requires_grad)
        return cls.of(stored, bias, weights, activation)

    @classmethod
    def of(cls, stored: Stored, bias: torch.Tensor | None, weights: str, activation: str | None = None) -> Linear:
        """A layer of tensors as the format has them."""
        made = cls.__new__(cls)
        torch.nn.Module.__init__(made)
        made._hold(stored, bias, weights, activation)
        return made

    def _hold(self, stored: Stored, bias: torch.Tensor | None, weights: str, activation: str | None) -> None:
        if activation is not None and activation not in ACTIVATIONS:
            raise OperandError(
                f"activation is {activation!r}; it must be {one_of(ACTIVATIONS)}{suggest(activation, ACTIVATIONS)}"
            )
        self.weights, self.activation = weights, activation
        for name, x in stored.items():
            is_trained = x.dtype in (torch.bfloat16, torch.float16) and name == "weight"
            self.register_parameter(name, x if isinstance(x, torch.nn.Parameter) else _parameter(x, is_trained))
        if bias is not None and not isinstance(bias, torch.nn.Parameter):
            bias = _parameter(bias, len(stored) == 1)
        self.register_parameter("bias", bias)
        self.out_features = stored["weight"].shape[0]
        self.in_features = stored["weight"].shape[1] * (2 if stored["weight"].dtype == torch.uint8 else 1)
        value = "acc" if bias is None else "acc + bias[n]"
        self._expression = f"d = {activation}({value})" if activation else "" if bias is None else f"d = {value}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., K) to (..., N), in the dtype of ``x``."""
        from gemmill.runtime.torch import calls  # which imports Dynamo, a second

        keywords = FORMATS[self.weights].operands(x.reshape(-1, x.shape[-1]), self)
        a, b = keywords.pop("a"), keywords.pop("b")
        if self._expression:
            keywords["epilogue"] = self._expression
            if self.bias is not None:
                keywords["bias"] = self.bias
        d = calls.matmul(a, b, out_dtype=x.dtype, **keywords)
        return d.reshape(*x.shape[:-1], self.out_features)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        """Moves its tensors, and changes the dtype of those alone that follow the model's."""
        if not FORMATS[self.weights].keeps_dtype:
            return super()._apply(fn, recurse)
        kept = (self.weight, self.weight_scale)

        def moved(x: torch.Tensor) -> Any:
            if not any(x is y for y in kept):
                return fn(x)
            return fn(x.view(torch.uint8)).view(x.dtype)  # what is no floating point is not converted

        return super()._apply(moved, recurse)

    def extra_repr(self) -> str:
        """What ``print`` shows of it."""
        text = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{text}, weights={self.weights}" + (f", activation={self.activation}" if self.activation else "")


def format_named(weights: str) -> Format:
    """The format of a name; OperandError where there is none."""
    if weights not in FORMATS:
        raise OperandError(f"weights is {weights!r}; it must be {one_of([*FORMATS])}{suggest(weights, FORMATS)}")
    return FORMATS[weights]


def _parameter(x: torch.Tensor, is_trained: bool) -> torch.nn.Parameter:
    return torch.nn.Parameter(x.detach(), requires_grad=is_trained)
