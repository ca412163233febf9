"""Layers that are not quantised. vLLM has no table of kernels for these, so the plugin replaces the method that
computes them."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod

import gemmill.torch  # noqa: F401 - registers the operators
from gemmill_vllm.batch_invariance import options


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Compute ``x @ weight.T + bias`` (..., N) of (..., K) and (N, K)."""
    rows = x.reshape(-1, x.shape[-1])
    operators, text = torch.ops.gemmill, options()
    if bias is None:
        d = operators.mm(rows, weight.t(), options=text)
    else:
        (d,) = operators.epilogue("d = acc + bias[n]", rows, weight.t(), [bias], ["bias"], options=text)
    output: torch.Tensor = d.view(*x.shape[:-1], weight.shape[0])
    return output


def serves(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether both have the same 16-bit dtype."""
    return x.dtype in (torch.bfloat16, torch.float16) and weight.dtype == x.dtype


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
