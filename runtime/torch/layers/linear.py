"""``gemmill.torch.Linear``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemmill.library.bits import ANY
from gemmill.library.errors import OperandError
from gemmill.library.wording import one_of, suggest
from gemmill.runtime.torch.layers.weight_formats import FORMATS, Format, Stored, keeping_dtypes
from gemmill.runtime.torch.layers.wide_weight import WideWeight
from gemmill.runtime.torch.takeover.blocks import ENABLED

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "sigmoid", "silu", "tanh")
"""The activations of a layer, which the kernel applies in its epilogue."""


class Linear(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not installed where mypy runs
    """A linear layer: ``activation(x @ weight.mT + bias)`` in one kernel, with bf16, f16, e4m3 or 4-bit weights.

    Args:
        in_features: K, the length of an input row.
        out_features: N, the length of an output row.
        bias: whether the layer has a bias. Default: True.
        weights: the format of the weights: ``bf16`` (default), ``f16``, ``e4m3_rows`` (a scale for each row),
            ``e4m3_blocks`` (a scale for each 128 x 128 block), ``u4_g128``, ``u4_g64``, ``u4_g32`` (4 bits, with a
            scale and a zero point for each group of 128, 64 or 32 elements along K), or ``mxfp4`` (e2m1, with a power
            of two for each 32 elements along K).
        activation: ``relu``, ``gelu``, ``gelu_tanh``, ``silu``, ``sigmoid``, ``tanh``, or None (default).
        device: the device of the layer's tensors.
        dtype: dtype of activations, of the bias, and of the scales and zero points of 4-bit weights. Default: bf16.

    The layer has these parameters:

    * ``weight``: (N, K); with 4 bits, (N, K / 2) bytes.
    * ``weight_scale``: float32 (N, 1) for ``e4m3_rows``, float32 (N / 128, K / 128), rounded up, for ``e4m3_blocks``,
      (K / group, N) in ``dtype`` for ``u4``, and float8_e8m0fnu (K / 32, N) for ``mxfp4``.
    * ``weight_zero``: (K / group, N) in ``dtype``, for ``u4`` only.
    * ``bias``: (N,), or None.

    The attribute ``weight`` of a layer with e4m3 or 4-bit weights is (N, K) in the dtype of activations, as that of
    ``torch.nn.Linear``: reading it dequantises, and writing to it quantises. In compiled code it is a copy, and writing
    to it changes nothing. ``stored_weight`` is the parameter. ``load_state_dict`` takes quantised weights of the
    layer's format, or quantises others.

    Only bf16 and f16 weights can be trained. ``Module.to(dtype)`` does not convert e4m3 and MXFP4 weights and their
    scales.

    With e4m3 weights, ``forward`` also quantises the activations to e4m3, with PyTorch operations: five launches in
    eager mode, one or two when compiled.

    Raises:
        OperandError: ``weights`` or ``activation`` is not one of these names, K is odd with 4-bit weights, or no
            multiple of 32 with ``mxfp4``.
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
        zeros = weight.new_zeros(out_features) if bias else None
        self._hold(form.stored(weight, dtype), zeros, weights, activation, dtype)

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
            OperandError: ``weights`` or ``activation`` is not supported, or does not allow this K or these values.
        """
        weight, form = linear.weight, format_named(weights)
        dtype = weight.dtype if weight.dtype in (torch.bfloat16, torch.float16) else torch.bfloat16
        with torch.no_grad():
            stored = form.stored(weight, dtype)
        if form.wide is None and stored["weight"] is not weight:
            stored["weight"] = torch.nn.Parameter(stored["weight"], requires_grad=weight.requires_grad)
        bias = linear.bias
        if bias is not None and bias.dtype not in (torch.bfloat16, torch.float16):
            bias = torch.nn.Parameter(bias.detach().to(dtype), requires_grad=bias.requires_grad)
        return cls.of(stored, bias, weights, activation, weight.dtype if form.takes_any_dtype else dtype)

    @classmethod
    def of(
        cls,
        stored: Stored,
        bias: torch.Tensor | None,
        weights: str,
        activation: str | None = None,
        wide_dtype: torch.dtype = torch.bfloat16,
    ) -> Linear:
        """Make a layer from tensors that already have the format's dtypes and shapes. ``wide_dtype`` is the dtype that
        ``weight`` has if the format is quantised."""
        layer = cls.__new__(cls)
        torch.nn.Module.__init__(layer)
        layer._hold(stored, bias, weights, activation, wide_dtype)
        return layer

    def _hold(
        self,
        stored: Stored,
        bias: torch.Tensor | None,
        weights: str,
        activation: str | None,
        wide_dtype: torch.dtype,
    ) -> None:
        if activation is not None and activation not in ACTIVATIONS:
            raise OperandError(
                f"activation is {activation!r}; it must be {one_of(ACTIVATIONS)}{suggest(activation, ACTIVATIONS)}"
            )
        self.weights, self.activation, self.wide_dtype = weights, activation, wide_dtype
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
        if ENABLED.bits != ANY:
            keywords["bits"] = ENABLED.bits
        d = calls.matmul(a, b, out_dtype=x.dtype, **keywords)
        return d.reshape(*x.shape[:-1], self.out_features)

    @property
    def stored_weight(self) -> torch.Tensor:
        """The parameter ``weight`` as it is stored: (N, K), or (N, K / 2) bytes with 4-bit weights."""
        weight = self._parameters.get("weight")
        if weight is None:
            raise OperandError(
                f"the layer no longer has a parameter weight, which {self.weights} needs: prune or parametrize a layer "
                "before you convert it"
            )
        dtype = FORMATS[self.weights].dtype or weight.dtype
        if weight.dtype != dtype:
            raise OperandError(
                f"the parameter weight is {weight.dtype}, and {self.weights} needs {dtype}: assign to layer.weight or "
                "call load_state_dict, which quantise it"
            )
        return weight

    @property
    def weight(self) -> torch.Tensor:
        """The weight (N, K); see :class:`Linear`."""
        weight = self.__dict__.get("weight")
        if weight is None:
            weight = self._parameters.get("weight")
        if weight is None:
            raise AttributeError("weight")
        if FORMATS[self.weights].wide is None:
            return weight
        if torch.compiler.is_compiling():
            return self.dequantised()
        is_dense = type(weight) in (torch.Tensor, torch.nn.Parameter)  # FSDP stores a DTensor, and reads it again
        return WideWeight.of(self) if is_dense else weight

    @weight.setter
    def weight(self, value: Any) -> None:
        self.__dict__["weight"] = value  # old hooks such as weight_norm's replace the parameter by a tensor

    def dequantised(self) -> torch.Tensor:
        """The weight (N, K) of a layer with quantised weights, in the dtype of ``weight``."""
        wide = FORMATS[self.weights].wide
        assert wide is not None
        with torch.no_grad():
            return wide(self).to(self.wide_dtype)

    def quantise(self, weight: torch.Tensor) -> None:
        """Replace the quantised weights of this layer by those of a weight (N, K)."""
        with torch.no_grad():
            for name, x in self._quantised(weight).items():
                self._parameters[name].copy_(x)

    def _quantised(self, weight: torch.Tensor) -> Stored:
        shape = self.out_features, self.in_features
        if weight.shape != shape:
            raise OperandError(f"the weight has shape {tuple(weight.shape)}; this layer needs {shape}")
        return FORMATS[self.weights].stored(weight.detach(), self.wide_dtype)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Register a parameter; quantise it if it replaces a quantised weight, as code that ties weights does."""
        replaces = name == "weight" and self._parameters.get(name) is not None
        if replaces and param is not None and FORMATS[self.weights].dtype not in (None, param.dtype):
            self.quantise(param)
        else:
            super().register_parameter(name, param)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, metadata: Any, *others: Any) -> None:
        """Load tensors in the layer's format; quantise the weight of a checkpoint that is not quantised."""
        weight = state_dict.get(f"{prefix}weight")
        if weight is not None and weight.dtype is not FORMATS[self.weights].dtype:
            if not metadata.get("assign_to_params_buffers"):
                weight = weight.to(self._parameters["weight"].device)  # a GPU quantises faster
            try:
                stored = self._loaded(weight, prefix, state_dict)
            except OperandError as error:
                errors: list[str] = others[-1]
                errors.append(f"{prefix}weight: {error}")
                return
            state_dict.update({f"{prefix}{name}": x for name, x in stored.items()})
        super()._load_from_state_dict(state_dict, prefix, metadata, *others)

    def _loaded(self, weight: torch.Tensor, prefix: str, state_dict: Any) -> Stored:
        scales = [name for name in self._parameters if name.startswith("weight_") and f"{prefix}{name}" in state_dict]
        if scales or not weight.dtype.is_floating_point or weight.dtype.itemsize == 1:
            also = "".join(f" with {name}" for name in scales)
            raise OperandError(
                f"the checkpoint holds {weight.dtype}{also}, but the layer holds {self.weights}: load the checkpoint "
                "before gemmill.torch.convert, which reads quantised weights"
            )
        return {"weight": weight} if FORMATS[self.weights].dtype is None else self._quantised(weight)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        """Move all tensors, but convert the dtype of only those that follow the model's dtype."""
        form = FORMATS[self.weights]
        if form.wide is not None:
            stored = self.stored_weight
            self.wide_dtype = fn(stored.new_empty(0, dtype=self.wide_dtype)).dtype
        if form.keeps_dtype:
            fn = keeping_dtypes(fn, (stored, self.weight_scale))
        return super()._apply(fn, recurse)

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
