"""Reads 4-bit weights of experts from the layouts of AWQ and GPTQ, for :func:`gemmill.moe`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from gemmill.library.errors import OperandError
from gemmill.runtime.torch.layers.checkpoints import PARTS, packed
from gemmill.runtime.torch.layers.weight_formats import Stored


def packed_experts(
    experts: Sequence[Mapping[str, torch.Tensor]], checkpoint_format: str = "gptq", name: str = "experts"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Read the 4-bit weights of one projection of all experts from an AWQ or GPTQ checkpoint.

    The result is verified: it gives the checkpoint's bits again.

    Args:
        experts: for each expert ``qweight``, ``qzeros`` and ``scales``, and ``g_idx`` if there is one. AWQ: (K, N / 8),
            (K / group, N / 8), (K / group, N). GPTQ: (K / 8, N), (K / group, N / 8), (K / group, N).
        checkpoint_format: ``gptq_v2`` if GPTQ's zero points are stored as they are, not minus one.
        name: name of the weights in errors.

    Returns:
        For :func:`gemmill.moe` with ``w_dtype="u4"``: weights, uint8 (experts, N, K / 2), and their scales and zero
        points, (experts, K / group, N), in the dtype of ``scales``. Those of gate and up are concatenated along N, then
        :func:`gemmill.interleaved` orders them.

    Raises:
        OperandError: a layout is not supported, or experts have different shapes or dtypes.
    """
    if not experts:
        raise OperandError(f"{name} has no experts")
    read: list[Stored] = []
    for i, held in enumerate(experts):
        if missing := [part for part in PARTS if part not in held]:
            raise OperandError(f"{name}[{i}] has no {missing[0]}; it must have {', '.join(PARTS)}")
        stored, _ = packed(f"{name}[{i}]", held, checkpoint_format)
        read.append(stored)
        if _layout(stored) != _layout(read[0]):
            raise OperandError(
                f"{name}[{i}] has {_layout(stored)} and {name}[0] {_layout(read[0])}; all experts must have one shape, "
                "group size and dtype"
            )
    weight, scale, zero = (torch.stack([x[part] for x in read]) for part in ("weight", "weight_scale", "weight_zero"))
    return weight, scale, zero


def _layout(stored: Stored) -> str:
    n, halves = stored["weight"].shape
    scale = stored["weight_scale"]
    return f"N {n}, K {2 * halves}, {scale.shape[0]} groups and {scale.dtype} scales"
