"""The weight of a layer with quantised weights, as other code reads and writes it."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from gemmill.library.errors import OperandError

_WITHOUT_OPERATORS = (
    "__array__",
    "__deepcopy__",
    "__dlpack__",
    "__format__",
    "__reduce_ex__",
    "__repr__",
    "numpy",
    "tolist",
)
"""Methods that read the memory of a tensor without an operator."""


class WideWeight(torch.Tensor):  # type: ignore[misc]  # PyTorch is not installed where mypy runs
    """``layer.weight`` (N, K) of a layer with quantised weights, in the dtype that the weights had before.

    It has no memory of its own. An operator that reads it dequantises the weights. An operator that writes to it, or to
    a view of it, quantises the result into the layer. So programs that pass weights to PyTorch, compare their dtypes,
    or add an adapter to them compute what they would with a ``torch.nn.Linear``, up to the rounding of the format.
    PyTorch's own fused encoder layers see a tensor with ``__torch_function__``, and call the layer instead.
    """

    _layer: Any
    _steps: tuple[Callable[[Any], Any], ...]
    """The view operators that lead from the weight to this view of it."""

    @staticmethod
    def __new__(cls, layer: Any, like: torch.Tensor, steps: tuple[Callable[[Any], Any], ...] = ()) -> Any:
        """A view of a layer's weight with the shape, strides and dtype of ``like``, which ``steps`` lead to."""
        view = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, like.stride(), dtype=like.dtype, device=layer.stored_weight.device
        )
        view._layer, view._steps = layer, steps
        view._is_param = True  # PyTorch's mark of a Parameter
        return view

    @classmethod
    def of(cls, layer: Any) -> Any:
        """The weight of a layer."""
        shape = layer.out_features, layer.in_features
        return cls(layer, torch.empty(shape, dtype=layer.wide_dtype, device="meta"))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        name = getattr(function, "__name__", "")
        if function == torch.Tensor.data.__set__:
            return args[0]._layer.quantise(args[1])
        is_trained = function == torch.Tensor.requires_grad.__set__ or name == "requires_grad_"
        if is_trained and next(iter((*args[1:], *(kwargs or {}).values())), True):
            raise OperandError(
                "layer.weight is quantised, and only bf16 and f16 weights can be trained: leave the layer unchanged "
                "(skip= of convert), or train a copy, layer.weight.clone()"
            )
        if name in ("data_ptr", "share_memory_"):
            raise RuntimeError(  # as any tensor without memory
                "layer.weight is quantised, so the tensor that it returns has no memory: pass layer.stored_weight, or "
                "layer.weight.clone(), which dequantises it"
            )
        with torch._C.DisableTorchFunctionSubclass():
            if name in _WITHOUT_OPERATORS:
                return function(args[0]._read()[1], *args[1:], **(kwargs or {}))
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        keywords = kwargs or {}
        if args and isinstance(args[0], cls) and _gives_a_view(function):
            return args[0]._viewed(lambda x: function(x, *args[1:], **keywords))
        read: dict[WideWeight, tuple[torch.Tensor, torch.Tensor]] = {}

        def dequantised(x: Any) -> Any:
            if not isinstance(x, cls):
                return x
            if x not in read:
                read[x] = x._read()
            return read[x][1]

        result = function(*tree_map(dequantised, args), **tree_map(dequantised, keywords))
        named = dict(zip((x.name for x in function._schema.arguments), args, strict=False)) | keywords
        written = [x for x in tree_leaves([named.get(name) for name in _written(function)]) if isinstance(x, cls)]
        for x in written:
            x._layer.quantise(read[x][0])
        return written[0] if written and isinstance(result, torch.Tensor) else result

    def _read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The dequantised weight, and the part of it that this view shows."""
        weight = self._layer.dequantised()
        shown: Any = weight
        for step in self._steps:
            shown = step(shown)
        return weight, shown

    def _viewed(self, step: Callable[[Any], Any]) -> Any:
        shown = step(torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device="meta"))
        if isinstance(shown, torch.Tensor):
            return WideWeight(self._layer, shown, (*self._steps, step))
        return [WideWeight(self._layer, x, (*self._steps, step, itemgetter(i))) for i, x in enumerate(shown)]


def _written(operator: Any) -> list[str]:
    """The arguments that an operator writes to."""
    return [x.name for x in operator._schema.arguments if x.alias_info is not None and x.alias_info.is_write]


def _gives_a_view(operator: Any) -> bool:
    """Whether an operator returns views of its first argument."""
    returns = operator._schema.returns
    return not _written(operator) and bool(returns) and all(x.alias_info is not None for x in returns)
