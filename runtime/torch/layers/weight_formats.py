"""The weight formats of ``Linear``: how each stores weights, and which operands it passes to ``matmul``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch

from gemmill.library.errors import OperandError
from gemmill.runtime.operands.matrices import SCALE_BLOCK
from gemmill.runtime.torch.layers.mxfp4 import quantised_mxfp4, wide_mxfp4
from gemmill.runtime.torch.layers.nibbles import packed_pairs, unpacked_pairs

Stored = dict[str, torch.Tensor]
"""Tensors of a layer: ``weight``, and ``weight_scale`` and ``weight_zero`` if its format has them."""

_E4M3 = torch.float8_e4m3fn
_LEAST = 1e-12
"""The smallest scale, which rows or blocks of zeros get."""


class Format(NamedTuple):
    """A way to store weights (N, K)."""

    stored: Callable[[torch.Tensor, torch.dtype], Stored]
    """Makes the stored tensors from weights (N, K) and the dtype of activations."""
    operands: Callable[[torch.Tensor, Any], dict[str, Any]]
    """Makes the arguments of ``matmul`` from activations (M, K) and a layer."""
    wide: Callable[[Any], torch.Tensor] | None = None
    """Makes the weights (N, K) of a layer from its stored tensors; None if they are stored unquantised."""
    dtype: torch.dtype | None = None
    """Dtype of quantised weights in memory."""
    keeps_dtype: bool = False
    """Whether ``Module.to(dtype)`` does not convert its tensors."""
    takes_any_dtype: bool = False
    """Whether activations may have any dtype, because they are quantised."""


def _wide(dtype: torch.dtype) -> Format:
    def stored(weight: torch.Tensor, _: torch.dtype) -> Stored:
        return {"weight": weight.to(dtype)}

    def operands(x: torch.Tensor, layer: Any) -> dict[str, Any]:
        return {"a": x, "b": layer.weight.mT}

    return Format(stored, operands)


def _rows(weight: torch.Tensor, _: torch.dtype) -> Stored:
    values, scale = quantised_rows(weight)
    return {"weight": values, "weight_scale": scale}


def _blocks(weight: torch.Tensor, _: torch.dtype) -> Stored:
    n, k = weight.shape
    tiles = _padded(_padded(weight).mT).mT.unflatten(0, (-1, SCALE_BLOCK)).unflatten(-1, (-1, SCALE_BLOCK))
    scale = _scale(tiles, (1, 3))
    values = (tiles / scale[:, None, :, None]).flatten(2, 3).flatten(0, 1)[:n, :k]
    return {"weight": values.to(_E4M3).contiguous(), "weight_scale": scale}


def _e4m3(
    stored: Callable[[torch.Tensor, torch.dtype], Stored],
    quantised: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    block: int | None = None,
) -> Format:
    def operands(x: torch.Tensor, layer: Any) -> dict[str, Any]:
        a, a_scale = quantised(x)
        return {"a": a, "b": layer.stored_weight.mT, "a_scale": a_scale, "b_scale": layer.weight_scale.mT}

    def wide(layer: Any) -> torch.Tensor:
        values, scale = layer.stored_weight, layer.weight_scale
        if block:
            scale = scale.repeat_interleave(block, 0)[: values.shape[0]]
            scale = scale.repeat_interleave(block, 1)[:, : values.shape[1]]
        return values.float() * scale

    return Format(stored, operands, wide, _E4M3, keeps_dtype=True, takes_any_dtype=True)


def _u4(group: int) -> Format:
    def stored(weight: torch.Tensor, dtype: torch.dtype) -> Stored:
        k = weight.shape[1]
        groups = _padded(weight.float(), group).unflatten(-1, (-1, group))
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scale = ((high - low) / 15).clamp(min=_LEAST).to(dtype)
        zero = (-low / scale.float()).round().clamp(0, 15)
        values = (groups / scale.float()[..., None] + zero[..., None]).round().clamp(0, 15)
        return u4_stored(values.flatten(1)[:, :k], scale, zero.to(dtype))

    def operands(x: torch.Tensor, layer: Any) -> dict[str, Any]:
        scales = {"b_scale": layer.weight_scale, "b_zero": layer.weight_zero}
        return {"a": x, "b": layer.stored_weight.mT, "b_dtype": "u4", **scales}

    def wide(layer: Any) -> torch.Tensor:
        values = unpacked_pairs(layer.stored_weight)
        scale, zero = (x.mT.float().repeat_interleave(group, 1) for x in (layer.weight_scale, layer.weight_zero))
        return (values - zero[:, : values.shape[1]]) * scale[:, : values.shape[1]]

    return Format(stored, operands, wide, torch.uint8)


def _mxfp4() -> Format:
    def stored(weight: torch.Tensor, dtype: torch.dtype) -> Stored:
        values, scale = quantised_mxfp4(weight, dtype)
        return {"weight": values, "weight_scale": scale}

    def operands(x: torch.Tensor, layer: Any) -> dict[str, Any]:
        return {"a": x, "b": layer.stored_weight.mT, "b_dtype": "e2m1", "b_scale": layer.weight_scale}

    def wide(layer: Any) -> torch.Tensor:
        return wide_mxfp4(layer.stored_weight, layer.weight_scale)

    return Format(stored, operands, wide, torch.uint8, keeps_dtype=True)


def u4_stored(values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> Stored:
    """Pack values 0 to 15 (N, K), with scales and zero points (N, K / group).

    A byte of the packed weight (N, K / 2) holds two values along K, the even one in the low half. The stored scales and
    zero points are (K / group, N). Raises OperandError if K is odd.
    """
    if values.shape[1] % 2:
        raise OperandError(
            f"K is {values.shape[1]}; it must be even, because a byte holds two 4-bit weights along K: pad K, or use "
            "another format"
        )
    return {
        "weight": packed_pairs(values).contiguous(),
        "weight_scale": scale.mT.contiguous(),
        "weight_zero": zero.mT.contiguous(),
    }


def keeping_dtypes(fn: Callable[..., Any], kept: Collection[torch.Tensor]) -> Callable[..., Any]:
    """Return ``fn``, with which ``Module`` moves or converts its tensors, so that it keeps the dtype of some."""

    def moved(x: torch.Tensor) -> Any:
        if not any(x is y for y in kept):
            return fn(x)
        return fn(x.view(torch.uint8)).view(x.dtype)  # Module.to converts only floating-point dtypes

    return moved


def quantised_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise (M, K) to e4m3 with a scale for each row, (M, 1)."""
    scale = _scale(x, -1)[..., None]
    return (x / scale).to(_E4M3), scale


def quantised_blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise (M, K) to e4m3 with a scale for each 128 elements of a row, (M, K / 128) rounded up."""
    blocks = _padded(x).unflatten(-1, (-1, SCALE_BLOCK))
    scale = _scale(blocks, -1)
    return (blocks / scale[..., None]).to(_E4M3).flatten(-2)[..., : x.shape[-1]], scale


def _scale(x: torch.Tensor, axes: int | tuple[int, ...]) -> torch.Tensor:
    """The float32 scale that maps the largest magnitude along some axes to the largest e4m3 value."""
    largest = torch.linalg.vector_norm(x, float("inf"), axes, dtype=torch.float32)
    return (largest / torch.finfo(_E4M3).max).clamp(min=_LEAST)


def _padded(x: torch.Tensor, multiple: int = SCALE_BLOCK) -> torch.Tensor:
    """``x`` with zeros appended along the last axis, up to a multiple."""
    extent = x.shape[-1]
    return x if extent % multiple == 0 else torch.nn.functional.pad(x, (0, -extent % multiple))


FORMATS: Mapping[str, Format] = {
    "bf16": _wide(torch.bfloat16),
    "f16": _wide(torch.float16),
    "e4m3_rows": _e4m3(_rows, quantised_rows),
    "e4m3_blocks": _e4m3(_blocks, quantised_blocks, SCALE_BLOCK),
    **{f"u4_g{group}": _u4(group) for group in (128, 64, 32)},
    "mxfp4": _mxfp4(),
}
"""The formats by name. ``e4m3_rows`` has a scale for each row of weights and activations. ``e4m3_blocks`` has a scale
for each 128 x 128 block of weights and for each 128 elements of an activation row. ``u4_gG`` has 4-bit weights, and a
scale and a zero point for each group of G elements along K. ``mxfp4`` has e2m1 weights, and a power of two for each 32
elements along K."""
