"""``gemmill.torch.lora``: the product of low-rank adapters by operators, with gradients."""

from __future__ import annotations

import torch

from gemmill.library.errors import OperandError
from gemmill.runtime.api.routing import Routing
from gemmill.runtime.operands.lora import check_dtypes, extents_of
from gemmill.runtime.operands.tensors import dtype_named
from gemmill.runtime.torch.experts import Routed

# Keywords of one subject share a line.
# fmt: off


def lora(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, adapter_ids: torch.Tensor | Routing, *,
    y: torch.Tensor | None = None, scale: torch.Tensor | float = 1.0, bits: str = "any",
) -> torch.Tensor:
    """Compute :func:`gemmill.lora` by operators, which ``torch.compile`` traces, with gradients of ``x``, ``a``, ``b``,
    ``y`` and ``scale``.

    Args and errors are those of :func:`gemmill.lora`. The result has the dtype of ``y``, or that of ``x``.
    """
    from gemmill.runtime.torch.calls import grouped_matmul  # this imports Dynamo, which takes a second

    of_ids = adapter_ids._asdict() if isinstance(adapter_ids, Routing) else {"adapter_ids": adapter_ids}
    for name, tensor in {"x": x, "a": a, "b": b, **of_ids}.items():
        if not isinstance(tensor, torch.Tensor):
            raise OperandError(f"{name} is a {type(tensor).__qualname__}; it must be a PyTorch tensor")
    tensors = {"x": x, "a": a, "b": b, "y": y, "scale": scale}
    given = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}
    extents = extents_of({name: tuple(tensor.shape) for name, tensor in {**given, **of_ids}.items()})
    if x.dtype != torch.float64:  # in which gradients are checked, on the CPU
        check_dtypes({name: dtype_named(tensor.dtype, name) for name, tensor in given.items()}, extents)
    for name, ids in of_ids.items():
        if ids.dtype not in (torch.int32, torch.int64):
            raise OperandError(f"{name} is {ids.dtype}; it must be int32: pass {name}.int()")
    if isinstance(adapter_ids, Routing):
        offsets, rows, places = adapter_ids
        used = places >= 0
    else:
        routed = Routed.of(adapter_ids[:, None], a.shape[0])
        offsets, rows, places, used = routed.offsets, routed.rows, routed.places, routed.used
    inner = grouped_matmul(x, a.mT, offsets, rows=rows.int(), bits=bits)
    sums = grouped_matmul(inner, b.mT, offsets, bits=bits)
    of_tokens = sums[places[:, 0].clamp(min=0)]
    dtype = torch.promote_types(sums.dtype, torch.float32)
    factor = scale[:, None].to(dtype) if isinstance(scale, torch.Tensor) else scale
    terms = torch.where(used, of_tokens, 0).to(dtype) * factor
    return terms.to(x.dtype) if y is None else (y.to(dtype) + terms).to(y.dtype)
# fmt: on
