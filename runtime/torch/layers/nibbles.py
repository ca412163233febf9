"""Pairs of 4-bit values along K in a byte, the even one in the low half."""

from __future__ import annotations

import torch


def packed_pairs(values: torch.Tensor) -> torch.Tensor:
    """Pack values 0 to 15, (..., K) with an even K, into uint8 (..., K / 2)."""
    values = values.to(torch.uint8)
    return values[..., 0::2] | values[..., 1::2] << 4


def unpacked_pairs(packed: torch.Tensor) -> torch.Tensor:
    """Unpack uint8 (..., K / 2) to uint8 values (..., K)."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
