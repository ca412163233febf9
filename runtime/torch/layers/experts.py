"""``gemmill.torch.Experts``, the experts of a mixture as one layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import torch

from gemmill.library.bits import ANY
from gemmill.library.errors import OperandError
from gemmill.library.wording import one_of, suggest
from gemmill.runtime.api.moe import interleaved
from gemmill.runtime.operands.epilogue_arguments import check_names, read_epilogue
from gemmill.runtime.operands.matrices import SCALE_BLOCK
from gemmill.runtime.torch.experts import moe
from gemmill.runtime.torch.layers.expert_tensors import BIASES, Order, form_of
from gemmill.runtime.torch.layers.linear import ACTIVATIONS
from gemmill.runtime.torch.layers.weight_formats import FORMATS, Stored, keeping_dtypes, quantised_blocks
from gemmill.runtime.torch.takeover.blocks import ENABLED

EXPERT_FORMATS = tuple(name for name in FORMATS if name != "e4m3_rows")
"""The formats of :data:`FORMATS` that experts can have."""
_BYTES = {"u4": "u4", "mx": "e2m1"}
"""What the bytes of 4-bit weights hold, by the first letters of the format."""
_WIDE = ("bf16", "f16")
"""Those that can be trained."""
_IN_ORDER = (*_WIDE, "e4m3_blocks")
"""Those whose weights have the order of models."""


_UNITS = {"e4m3_blocks": {"w1": 16, "w2": SCALE_BLOCK}}
"""The elements of which a row of weights must have a multiple; 32 in other formats."""


class Experts(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not installed where mypy runs
    """The experts of a mixture: ``forward(x, topk_ids, topk_weights)`` is :func:`gemmill.torch.moe`.

    Args:
        experts: the number of experts.
        hidden: H, the length of a token.
        inner: F, the length of a row between the two products.
        bias: whether both products have biases. Default: False.
        weights: the format of the weights: ``bf16`` (default), ``f16``, ``e4m3_blocks`` (a scale for each 128 x 128
            block; F must be a multiple of 128), ``u4_g128``, ``u4_g64``, ``u4_g32`` or ``mxfp4``, as for
            :class:`Linear`. With 4 bits, H and F must be multiples of 32.
        activation: the name of a function such as ``silu`` (default), which means ``silu(gate) * up``; or an expression
            of ``gate`` and ``up``, such as ``(clamp(up, -7, 7) + 1) * min(gate, 7) * sigmoid(1.702 * min(gate, 7))``.
            Biases are already added to both.
        device: the device of the layer's tensors.
        dtype: dtype of activations and biases: bf16 (default) or f16. Others are converted to it.

    The layer has these parameters:

    * ``w1``: (experts, 2 F, H): the gate's rows before those of up; in formats of 4 bits, 8 rows of the gate alternate
      with 8 of up (:func:`gemmill.interleaved`).
    * ``w2``: (experts, H, F).
    * ``w1_scale``, ``w2_scale``, and for ``u4`` ``w1_zero`` and ``w2_zero``: those of :class:`Linear` for each expert.
    * ``gate_bias``, ``up_bias``: (experts, F), and ``b2``: (experts, H), or None.

    Only bf16 and f16 weights can be trained. ``Module.to(dtype)`` does not convert e4m3 and MXFP4 weights and
    their scales. ``load_state_dict`` takes these tensors, or those of the module that ``convert`` replaced, and
    quantises them.

    Raises:
        OperandError: ``weights`` or ``activation`` is not supported, or F does not fit the format.
    """

    order = Order()
    """How the model that was converted orders its tensors."""

    def __init__(
        self,
        experts: int,
        hidden: int,
        inner: int,
        bias: bool = False,
        *,
        weights: str = "bf16",
        activation: str = "silu",
        device: Any = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__()
        gate_up = torch.empty(experts, 2 * inner, hidden, device=device, dtype=dtype)
        down = torch.empty(experts, hidden, inner, device=device, dtype=dtype)
        for weight in () if down.is_meta else (gate_up, down):
            torch.nn.init.uniform_(weight, -(weight.shape[2] ** -0.5), weight.shape[2] ** -0.5)
        biases = {}
        if bias:
            biases = {name: down.new_zeros(experts, inner) for name in ("gate_bias", "up_bias")}
            biases["b2"] = down.new_zeros(experts, hidden)
        held = {**stored("w1", gate_up, weights, dtype), **stored("w2", down, weights, dtype), **biases}
        self._hold(held, weights, activation, {*held} if weights in _WIDE else set(), dtype)

    @classmethod
    def of(
        cls, gate_up: torch.Tensor, down: torch.Tensor, biases: Stored, weights: str = "bf16", activation: str = "silu"
    ) -> Experts:
        """Make a layer from the weights of a model. It shares those that its format does not change. Its parameters
        require gradients where the format allows it and these tensors do.

        Args:
            gate_up: (experts, 2 F, H), the gate's rows before those of up.
            down: (experts, H, F).
            biases: ``gate_bias``, ``up_bias`` and ``b2``, or nothing.
            weights: the format, as for :class:`Experts`. Biases of 32 bits become bf16.
            activation: as for :class:`Experts`.

        Raises:
            OperandError: as for :class:`Experts`.
        """
        layer = cls.__new__(cls)
        torch.nn.Module.__init__(layer)
        given = {"w1": gate_up, "w2": down, **biases}
        dtype = down.dtype if down.dtype in (torch.bfloat16, torch.float16) else torch.bfloat16
        with torch.no_grad():
            first = gate_up if weights in _IN_ORDER else interleaved(gate_up)
            held = {**stored("w1", first, weights, dtype), **stored("w2", down, weights, dtype)}
        trained = {name for name, x in given.items() if x.requires_grad} if weights in _WIDE else set()
        layer._hold(held | _narrowed(biases, dtype), weights, activation, trained, dtype)
        return layer

    @classmethod
    def of_stored(cls, held: Stored, biases: Stored, weights: str, activation: str = "silu") -> Experts:
        """Make a layer from weights that have its format: ``w1``, ``w2``, their scales and zero points as
        :class:`Experts` has them. Other arguments are those of :meth:`of`."""
        layer = cls.__new__(cls)
        torch.nn.Module.__init__(layer)
        dtype = next((x.dtype for x in biases.values() if x.dtype.itemsize == 2), torch.bfloat16)
        layer._hold(held | _narrowed(biases, dtype), weights, activation, (), dtype)
        return layer

    def _hold(self, held: Stored, form: str, activation: str, trained: Collection[str], dtype: torch.dtype) -> None:
        if form in _WIDE:
            dtype = held["w1"].dtype
        self.weights, self.activation, self.wide_dtype = form, activation, dtype
        self._scales = tuple(name for name in held if name.endswith(("_scale", "_zero")))
        names = ("gate_half", "up_half") if form in _IN_ORDER else ("gate8", "up8")
        self._epilogue = epilogue_of(activation, *names, "b2" in held)
        for name in (*held, *(name for name in BIASES if name not in held)):
            x = held.get(name)
            parameter = None if x is None else torch.nn.Parameter(x.detach(), requires_grad=name in trained)
            self.register_parameter(name, parameter)

    def forward(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor | None = None) -> Any:
        """Compute (..., H) from ``x`` (..., H), in the dtype of ``x``.

        Args:
            x: tokens.
            topk_ids: the experts of each token, (..., slots), int32 or int64. A slot with another id is skipped.
            topk_weights: the weight of each slot, (..., slots). None: 1.
        """
        keywords: dict[str, Any] = {} if self.b2 is None else {name: getattr(self, name) for name in BIASES}
        keywords |= {name: getattr(self, name) for name in self._scales}
        rows = x.reshape(-1, x.shape[-1])
        if FORMATS[self.weights].takes_any_dtype:
            rows, keywords["x_scale"] = quantised_blocks(rows)
        else:
            rows, keywords["w_dtype"] = rows.to(self.wide_dtype), _BYTES.get(self.weights[:2])
        d = run(
            rows, self.w1, self.w2, topk_ids, topk_weights, activation=self._epilogue, out_dtype=x.dtype, **keywords
        )
        return d.reshape(x.shape)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        """Load tensors in the layer's format; convert those of a model."""
        if {f"{prefix}gate_up_proj", f"{prefix}gate_up_proj_blocks"} & state_dict.keys():
            names = [name for name in state_dict if name.startswith(prefix)]
            tensors = {name.removeprefix(prefix): state_dict.pop(name) for name in names}
            try:
                layer = self._of_model(tensors)
            except (KeyError, OperandError) as error:
                errors: list[str] = others[-1]
                reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
                errors.append(f"{prefix}gate_up_proj: {reason}")
                return
            state_dict.update({f"{prefix}{name}": x for name, x in layer.state_dict().items()})
        super()._load_from_state_dict(state_dict, prefix, *others)

    def _of_model(self, tensors: Stored) -> Experts:
        """A layer like this of the tensors of a model's module."""
        if (form := form_of(tensors)) is None:
            return Experts.of(*self.order.read(tensors), self.weights, self.activation)
        if form != self.weights:
            raise OperandError(f"weights are {form}, and the layer has {self.weights}: convert the model again")
        return Experts.of_stored(*self.order.read_stored(tensors), form, self.activation)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        """Move all tensors, but convert the dtype of only those that follow the model's dtype."""
        self.wide_dtype = fn(self.w2.new_empty(0, dtype=self.wide_dtype)).dtype
        if FORMATS[self.weights].keeps_dtype:
            fn = keeping_dtypes(fn, (self.w1, self.w2, self.w1_scale, self.w2_scale))
        return super()._apply(fn, recurse)

    def extra_repr(self) -> str:
        """The arguments that ``print(layer)`` shows."""
        experts, hidden, inner = self.w2.shape[0], self.w2.shape[1], self.w1.shape[1] // 2
        text = f"experts={experts}, hidden={hidden}, inner={inner}, bias={self.b2 is not None}"
        return f"{text}, weights={self.weights}, activation={self.activation}"


def _narrowed(biases: Stored, dtype: torch.dtype) -> Stored:
    """Biases, those of 32 bits in ``dtype``."""
    return {name: (x if x.dtype.itemsize == 2 else x.detach().to(dtype)).contiguous() for name, x in biases.items()}


def stored(name: str, weight: torch.Tensor, form: str, dtype: torch.dtype) -> Stored:
    """Store weights (experts, N, K) in a format, for activations of a dtype: the tensor ``name``, and its scales.

    Raises:
        OperandError: experts do not have the format, or the extents do not fit it.
    """
    if form not in EXPERT_FORMATS:
        raise OperandError(
            f"weights is {form!r}; for experts it must be {one_of(EXPERT_FORMATS)}{suggest(form, EXPERT_FORMATS)}"
        )
    row = FORMATS[form]
    if form in _WIDE:
        return {name: row.stored(weight, dtype)["weight"].contiguous()}
    unit = 32 if form not in _UNITS else _UNITS[form][name]
    if weight.shape[2] % unit:
        raise OperandError(
            f"{'H' if name == 'w1' else 'F'} is {weight.shape[2]}; for {form} it must be a multiple of {unit}: use "
            "another format, or pad weights with zeros"
        )
    of_experts = [row.stored(expert, dtype) for expert in weight]
    return {key.replace("weight", name): torch.stack([x[key] for x in of_experts]) for key in of_experts[0]}


def epilogue_of(activation: str, gate: str, up: str, has_bias: bool) -> str:
    """Return the epilogue of the first product.

    Args:
        activation: as for :class:`Experts`.
        gate: the name of the gate's sums in epilogues, which says how weights are ordered.
        up: the name of the other sums.
        has_bias: whether ``gate_bias`` and ``up_bias`` are added first.

    Raises:
        OperandError: it is neither the name of a function of one number nor an expression of ``gate`` and ``up``.
    """
    if activation.isidentifier():
        if activation not in ACTIVATIONS:
            raise OperandError(
                f"activation is {activation!r}; it must be {one_of(ACTIVATIONS)}{suggest(activation, ACTIVATIONS)}, or "
                "an expression of gate and up"
            )
        activation = f"{activation}(gate) * up"
    values = {"gate": "g", "up": "u"} if has_bias else {"gate": gate, "up": up}
    text = f"d = {re.sub(r'[a-z_0-9]+', lambda word: values.get(word[0], word[0]), activation)}"
    if has_bias:
        text = f"g = {gate} + gate_bias[n]; u = {up} + up_bias[n]; {text}"
    check_names(read_epilogue(text), dict.fromkeys(BIASES[:2], 0.0) if has_bias else {})
    return text


def run(
    x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor | None,
    **keywords: Any,
) -> torch.Tensor:  # fmt: skip
    """Run a layer with the ``bits`` of the enclosing ``enabled``, and in the dtype of the enclosing
    ``torch.autocast``."""
    if torch.is_autocast_enabled(x.device.type) and w1.dtype.itemsize > 1:
        x, w1, w2 = (tensor.to(torch.get_autocast_dtype(x.device.type)) for tensor in (x, w1, w2))
    ids = topk_ids.reshape(-1, topk_ids.shape[-1]).contiguous()
    if topk_weights is not None:
        topk_weights = topk_weights.reshape(ids.shape)
    if ENABLED.bits != ANY:
        keywords["bits"] = ENABLED.bits
    return moe(x, w1, w2, ids, topk_weights, **keywords)
