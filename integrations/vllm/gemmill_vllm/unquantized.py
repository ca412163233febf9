"""Layers that are not quantised. vLLM has no table of kernels for these, so the plugin replaces the method that
computes them."""

from __future__ import annotations

from typing import Any

import torch
import vllm.envs as envs
from vllm.model_executor.layers.linear import UnquantizedLinearMethod

import gemmill.torch  # noqa: F401 - registers the operators


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Compute ``x @ weight.T + bias`` (..., N) of (..., K) and (N, K)."""
    rows = x.reshape(-1, x.shape[-1])
    operators = torch.ops.gemmill
    d = operators.mm(rows, weight.t()) if bias is None else operators.addmm(bias, rows, weight.t())
    output: torch.Tensor = d.view(*x.shape[:-1], weight.shape[0])
    return output


def serves(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether both have the same 16-bit dtype, and vLLM's batch-invariant mode is off."""
    return x.dtype in (torch.bfloat16, torch.float16) and weight.dtype == x.dtype and not envs.VLLM_BATCH_INVARIANT


def replace() -> None:
    """Make :func:`linear` compute the layers on CUDA that it supports. Further calls do nothing."""
    original = UnquantizedLinearMethod.apply
    if getattr(original, "of_gemmill", False):
        return

    def apply(self: Any, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        weight = layer.weight
        if x.is_cuda and serves(x, weight):
            return linear(x, weight, bias)
        output: torch.Tensor = original(self, layer, x, bias)
        return output

    apply.of_gemmill = True  # type: ignore[attr-defined]
    UnquantizedLinearMethod.apply = apply
