"""Quantised layers as checkpoints hold them, as ours: e4m3 with scales, and 4 bits packed as AWQ and GPTQ do."""

from __future__ import annotations

from typing import Any

import torch

from gemmill.library.errors import OperandError
from gemmill.library.wording import one_of
from gemmill.runtime.operands.matrices import GROUP_SIZES, SCALE_BLOCK
from gemmill.runtime.torch.layers.weight_formats import Stored, u4_stored

_COLUMNS_OF_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of 8 columns each 4 bits of a word hold, from the lowest."""
_UNKNOWN = ("weight_packed", "weight_scale_2", "weight_global_scale", "SCB", "w_bit", "s_group")
"""Tensors that tell of other schemes."""


def read(name: str, layer: torch.nn.Module) -> tuple[Stored, str] | None:
    """Tensors of a layer in one of our formats, and the format; None where the layer is not quantised.

    * e4m3 ``weight`` (N, K) with ``weight_scale`` or ``weight_scale_inv``, which multiplies: one value, (N,), (N, 1),
      or (N / 128, K / 128). ``input_scale`` is left out: activations are quantised as they come.
    * ``qweight``, ``qzeros`` and ``scales`` of 4 bits: AWQ's, or GPTQ's (whose stored zero points are one less, unless
      ``checkpoint_format`` of the layer is ``gptq_v2``) with ``g_idx`` in order.

    OperandError names a layer of another scheme, and what of it there is no kernel for.
    """
    held = {**dict(layer.named_parameters(recurse=False)), **dict(layer.named_buffers(recurse=False))}
    if {"qweight", "qzeros", "scales"} <= held.keys():
        return _packed(name, layer, held)
    weight = held.get("weight")
    if weight is not None and weight.dtype == torch.float8_e4m3fn:
        return _e4m3(name, held)
    strange = [x for x in (*_UNKNOWN, "qweight") if x in held]
    if weight is not None and weight.dtype == torch.float8_e5m2:
        strange.append("weight of float8_e5m2")
    if strange:
        raise OperandError(
            f"{name} holds {one_of(strange)}, of a scheme that is not read; those of e4m3 with weight_scale, of AWQ "
            "and of GPTQ are: name it in skip"
        )
    return None


def _e4m3(name: str, held: dict[str, Any]) -> tuple[Stored, str]:
    weight = held["weight"].detach()
    scale = held.get("weight_scale", held.get("weight_scale_inv"))
    if scale is None:
        raise OperandError(
            f"{name}: weight is e4m3, and there is neither weight_scale nor weight_scale_inv: name it in skip"
        )
    n, k = weight.shape
    scale = scale.detach().float()
    if scale.numel() == 1:
        scale = scale.reshape(1, 1).expand(n, 1)
    elif scale.shape == (n,):
        scale = scale[:, None]
    blocks = -(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK)
    if scale.shape not in ((n, 1), blocks):
        raise OperandError(
            f"{name}: weight is {(n, k)} and its scale {tuple(scale.shape)}; it must be one value, {(n,)}, {(n, 1)} or "
            f"{blocks}: name it in skip"
        )
    form = "e4m3_rows" if scale.shape == (n, 1) else "e4m3_blocks"
    return {"weight": weight.contiguous(), "weight_scale": scale.contiguous()}, form


def _packed(name: str, layer: torch.nn.Module, held: dict[str, Any]) -> tuple[Stored, str]:
    words, zeros, scale = (held[x].detach() for x in ("qweight", "qzeros", "scales"))
    n = scale.shape[1]
    if words.shape[1] * 8 == n:  # AWQ: (K, N / 8)
        values, zero = _unpacked(words, _COLUMNS_OF_AWQ), _unpacked(zeros, _COLUMNS_OF_AWQ)
    elif words.shape[1] == n and zeros.shape[1] * 8 == n:  # GPTQ: (K / 8, N), zero points (K / group, N / 8)
        values, zero = _unpacked(words.mT).mT, _unpacked(zeros)
        if getattr(layer, "checkpoint_format", "gptq") != "gptq_v2":
            zero = zero + 1
    else:
        shapes = f"qweight {tuple(words.shape)}, qzeros {tuple(zeros.shape)} and scales {tuple(scale.shape)}"
        raise OperandError(f"{name}: {shapes} are not 4 bits as AWQ or GPTQ pack them: name it in skip")
    k = values.shape[0]
    group = k // scale.shape[0]
    if group not in GROUP_SIZES or k % group or zero.shape != scale.shape:
        raise OperandError(
            f"{name}: {k} rows have {scale.shape[0]} scales; groups must be of {one_of(GROUP_SIZES)}: name it in skip"
        )
    order = held.get("g_idx")
    if order is not None and not torch.equal(order.cpu().long(), torch.arange(k) // group):
        raise OperandError(
            f"{name}: g_idx orders rows by activations (desc_act), which no kernel reads: name it in skip"
        )
    return u4_stored(values.mT, scale.mT, zero.mT.to(scale.dtype)), f"u4_g{group}"


def _unpacked(words: torch.Tensor, columns: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Eight values of each word of int32, along the last axis."""
    values = torch.stack([words >> 4 * columns.index(i) & 15 for i in range(8)], dim=-1)
    return values.flatten(-2)
