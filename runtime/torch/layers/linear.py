"""``gemmill.torch.Linear``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemmill.library.errors import OperandError
from gemmill.library.wording import one_of, suggest
from gemmill.runtime.torch.layers.weight_formats import FORMATS, Format, Stored

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "sigmoid", "silu", "tanh")
"""The activations of a layer, which the kernel applies in its epilogue."""


class Linear(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not installed where mypy runs
    """A linear layer: ``activation(x @ weight.mT + bias)`` in one kernel, with bf16, f16, e4m3 or 4-bit weights.

    Args:
        in_features: K, the length of an input row.
        out_features: N, the length of an output row.
        bias: whether the layer has a bias. Default: True.
        weights: the format of the weights: ``bf16`` (default), ``f16``, ``e4m3_rows`` (a scale for each row),
            ``e4m3_blocks`` (a scale for each 128 x 128 block), or ``u4_g128``, ``u4_g64``, ``u4_g32`` (4 bits, with a
            scale and a zero point for each group of 128, 64 or 32 elements along K).
        activation: ``relu``, ``gelu``, ``gelu_tanh``, ``silu``, ``sigmoid``, ``tanh``, or None (default).
        device: the device of the layer's tensors.
        dtype: dtype of activations, of the bias, and of the scales and zero points of 4-bit weights. Default: bf16.

    The layer has these parameters:

    * ``weight``: (N, K); with 4 bits, (N, K / 2) bytes.
    * ``weight_scale``: float32 (N, 1) for ``e4m3_rows``, float32 (N / 128, K / 128), rounded up, for ``e4m3_blocks``,
      and (K / group, N) in ``dtype`` for 4 bits.
    * ``weight_zero``: (K / group, N) in ``dtype``, for 4 bits only.
    * ``bias``: (N,), or None.

    Only bf16 and f16 weights can be trained. ``Module.to(dtype)`` does not convert e4m3 weights and their scales.

    With e4m3 weights, ``forward`` also quantises the activations to e4m3, with PyTorch operations: five launches in
    eager mode, one or two when compiled.

    Raises:
        OperandError: ``weights`` or ``activation`` is not one of these names, or K is odd with 4-bit weights.
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
        form, weight = format_named(weights), torch.empty(out_features, in_features, device=device, dtype=dtype)
        if not weight.is_meta:
            torch.nn.init.kaiming_uniform_(weight, a=5**0.5)
        self._hold(form.stored(weight, dtype), weight.new_zeros(out_features) if bias else None, weights, activation)

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, weights: str = "e4m3_rows", activation: str | None = None) -> Linear:
        """Make a layer from a ``torch.nn.Linear``, with its weights in another format.

        The new layer shares the bias, and a weight that needs no conversion, with ``linear``. Biases and 4-bit scales
        of float32 layers become bf16.

        Args:
            linear: the layer to convert; it does not change.
            weights: the format, as for :class:`Linear`. Default: ``e4m3_rows``.
            activation: as for :class:`Linear`.

        Raises:
            OperandError: ``weights`` or ``activation`` is not supported, or K is odd with 4-bit weights.
        """
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
        """Make a layer from tensors that already have the format's dtypes and shapes."""
        layer = cls.__new__(cls)
        torch.nn.Module.__init__(layer)
        layer._hold(stored, bias, weights, activation)
        return layer

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
        """Compute (..., N) from ``x`` (..., K), in the dtype of ``x``."""
        from gemmill.runtime.torch import calls  # this imports Dynamo, which takes a second

        keywords = FORMATS[self.weights].operands(x.reshape(-1, x.shape[-1]), self)
        a, b = keywords.pop("a"), keywords.pop("b")
        if self._expression:
            keywords["epilogue"] = self._expression
            if self.bias is not None:
                keywords["bias"] = self.bias
        d = calls.matmul(a, b, out_dtype=x.dtype, **keywords)
        return d.reshape(*x.shape[:-1], self.out_features)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        """Move all tensors, but convert the dtype of only those that follow the model's dtype."""
        if not FORMATS[self.weights].keeps_dtype:
            return super()._apply(fn, recurse)
        kept = (self.weight, self.weight_scale)

        def moved(x: torch.Tensor) -> Any:
            if not any(x is y for y in kept):
                return fn(x)
            return fn(x.view(torch.uint8)).view(x.dtype)  # Module.to converts only floating-point dtypes

        return super()._apply(moved, recurse)

    def extra_repr(self) -> str:
        """The arguments that ``print(layer)`` shows."""
        text = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{text}, weights={self.weights}" + (f", activation={self.activation}" if self.activation else "")


def format_named(weights: str) -> Format:
    """The format of this name; raises OperandError if it does not exist."""
    if weights not in FORMATS:
        raise OperandError(f"weights is {weights!r}; it must be {one_of([*FORMATS])}{suggest(weights, FORMATS)}")
    return FORMATS[weights]


def _parameter(x: torch.Tensor, is_trained: bool) -> torch.nn.Parameter:
    return torch.nn.Parameter(x.detach(), requires_grad=is_trained)
