"""Reads quantised layers of checkpoints into the formats of ``Linear``: e4m3 with scales, AWQ and GPTQ with 4 bits, and
MXFP4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gemmill.library.errors import OperandError
from gemmill.library.wording import one_of
from gemmill.runtime.operands.matrices import GROUP_SIZES, SCALE_BLOCK
from gemmill.runtime.torch.layers.mxfp4 import SCALE_DTYPES, mxfp4
from gemmill.runtime.torch.layers.nibbles import unpacked_pairs
from gemmill.runtime.torch.layers.weight_formats import Stored, u4_stored

PARTS = ("qweight", "qzeros", "scales")
"""Tensors of AWQ and GPTQ."""
COLUMNS_OF_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column that each 4 bits of a 32-bit word hold, from the lowest bits."""
_UNKNOWN = ("weight_packed", "weight_scale_2", "weight_global_scale", "SCB", "w_bit", "s_group")
"""Names of tensors that only unsupported quantisation schemes have."""


def read(name: str, layer: torch.nn.Module) -> tuple[Stored, str] | None:
    """Read a quantised layer: its tensors in a format of ``Linear``, and the name of the format.

    Returns None if the layer is not quantised. These schemes are supported:

    * e4m3 ``weight`` (N, K) with ``weight_scale`` or ``weight_scale_inv``, by which weights are multiplied: one value,
      (N,), (N, 1), or (N / 128, K / 128) rounded up. ``input_scale`` is ignored: ``forward`` computes scales of
      activations.
    * 4-bit ``qweight``, ``qzeros`` and ``scales`` of AWQ, or of GPTQ with ``g_idx`` in order. GPTQ stores zero points
      minus one, unless the layer's ``checkpoint_format`` is ``gptq_v2``.
    * MXFP4: uint8 ``weight_packed`` (compressed-tensors) or ``weight`` (Quark), (N, K / 2), with a byte in
      ``weight_scale`` (N, K / 32) for each 32 numbers.

    What was read from 4 bits is verified: it gives the checkpoint's bits again.

    Raises OperandError for other schemes; the message names the layer and what is not supported.
    """
    held = {**dict(layer.named_parameters(recurse=False)), **dict(layer.named_buffers(recurse=False))}
    try:
        if {*PARTS} <= held.keys():
            return packed(name, held, getattr(layer, "checkpoint_format", "gptq"))
        if _is_mxfp4(held):
            return _mxfp4(name, held)
    except OperandError as error:
        raise OperandError(f"{error}: pass its name in skip") from None
    weight = held.get("weight")
    if weight is not None and weight.dtype == torch.float8_e4m3fn:
        return _e4m3(name, held)
    strange = [x for x in (*_UNKNOWN, "qweight") if x in held]
    if weight is not None and weight.dtype == torch.float8_e5m2:
        strange.append("a float8_e5m2 weight")
    if strange:
        raise OperandError(
            f"{name} has {', '.join(strange)}, of a quantisation scheme that is not supported; supported are e4m3 with "
            "weight_scale, AWQ, GPTQ and MXFP4: pass its name in skip"
        )
    return None


def _e4m3(name: str, held: dict[str, Any]) -> tuple[Stored, str]:
    weight = held["weight"].detach()
    scale = held.get("weight_scale", held.get("weight_scale_inv"))
    if scale is None:
        raise OperandError(
            f"{name} has an e4m3 weight but neither weight_scale nor weight_scale_inv: pass its name in skip"
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
            f"{name} has a weight of shape {(n, k)} and a scale of shape {tuple(scale.shape)}; the scale must be one "
            f"value, or have shape {(n,)}, {(n, 1)} or {blocks}: pass its name in skip"
        )
    form = "e4m3_rows" if scale.shape == (n, 1) else "e4m3_blocks"
    return {"weight": weight.contiguous(), "weight_scale": scale.contiguous()}, form


def _is_mxfp4(held: Mapping[str, torch.Tensor]) -> bool:
    weight, scale = held.get("weight_packed", held.get("weight")), held.get("weight_scale")
    if weight is None or scale is None or any(x in held for x in _UNKNOWN[1:]):
        return False
    return weight.dtype == torch.uint8 and scale.dtype in SCALE_DTYPES


def _mxfp4(name: str, held: Mapping[str, torch.Tensor]) -> tuple[Stored, str]:
    bias = held.get("bias")
    dtype = torch.float16 if bias is not None and bias.dtype == torch.float16 else torch.bfloat16
    weight = held["weight_packed" if "weight_packed" in held else "weight"]
    values, scale = mxfp4(weight.detach(), held["weight_scale"].detach(), dtype, name)
    return {"weight": values, "weight_scale": scale}, "mxfp4"


def packed(name: str, held: Mapping[str, torch.Tensor], checkpoint_format: str) -> tuple[Stored, str]:
    """Read ``qweight``, ``qzeros``, ``scales`` and ``g_idx``, as :func:`read` does."""
    words, zeros, scale = (held[x].detach() for x in ("qweight", "qzeros", "scales"))
    n = scale.shape[1]
    if _is_awq(held):
        values, zero = _unpacked(words, COLUMNS_OF_AWQ), _unpacked(zeros, COLUMNS_OF_AWQ)
    elif words.shape[1] == n and zeros.shape[1] * 8 == n:  # GPTQ: (K / 8, N), zero points (K / group, N / 8)
        values, zero = _unpacked(words.mT).mT, _unpacked(zeros)
        if checkpoint_format != "gptq_v2":
            zero = zero + 1
    else:
        shapes = f"qweight {tuple(words.shape)}, qzeros {tuple(zeros.shape)} and scales {tuple(scale.shape)}"
        raise OperandError(f"{name} has {shapes}, which are not AWQ's or GPTQ's 4-bit layout")
    k = values.shape[0]
    group = k // scale.shape[0]
    if group not in GROUP_SIZES or k % group or zero.shape != scale.shape:
        raise OperandError(
            f"{name} has {scale.shape[0]} scales for {k} rows; groups must have {one_of(GROUP_SIZES)} rows"
        )
    order = held.get("g_idx")
    if order is not None and not torch.equal(order.cpu().long(), torch.arange(k) // group):
        raise OperandError(f"{name} has rows reordered by g_idx (desc_act), which is not supported")
    stored = u4_stored(values.mT, scale.mT, zero.mT.to(scale.dtype))
    _verify(name, stored, held, checkpoint_format)
    return stored, f"u4_g{group}"


def _is_awq(held: Mapping[str, torch.Tensor]) -> bool:
    """Whether ``qweight`` is AWQ's, (K, N / 8)."""
    return int(held["qweight"].shape[1]) * 8 == int(held["scales"].shape[1])


def _unpacked(words: torch.Tensor, columns: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Unpack the eight 4-bit values of each int32 word, along the last axis."""
    values = torch.stack([words >> 4 * columns.index(i) & 15 for i in range(8)], dim=-1)
    return values.flatten(-2)


def _verify(name: str, stored: Stored, held: Mapping[str, torch.Tensor], checkpoint_format: str) -> None:
    """Raise OperandError if what was read does not give a checkpoint's bits again."""
    zero = stored["weight_zero"].int()
    values = unpacked_pairs(stored["weight"]).int()
    if _is_awq(held):
        words, zeros = _words(values.mT, COLUMNS_OF_AWQ), _words(zero, COLUMNS_OF_AWQ)
    else:
        words = _words(values, range(8)).mT
        zeros = _words(zero if checkpoint_format == "gptq_v2" else zero - 1, range(8))
    for part, found in zip(PARTS, (words, zeros, stored["weight_scale"]), strict=True):
        if not torch.equal(found, held[part]):
            raise OperandError(f"{name}.{part}: reading it back does not give the checkpoint's bits")


def _words(values: torch.Tensor, columns: Sequence[int]) -> torch.Tensor:
    """Pack eight values into each int32 word, along the last axis."""
    parts = values.unflatten(-1, (-1, 8))
    words = torch.zeros_like(parts[..., 0])
    for place, column in enumerate(columns):
        words |= parts[..., column] << 4 * place
    return words
