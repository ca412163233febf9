"""fp8 weights and activations, with scales of rows or of whole tensors."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.kernels.linear import FP8ScaledMMLinearKernel, FP8ScaledMMLinearLayerConfig

import gemmill.torch  # noqa: F401 - registers the operators
from gemmill_vllm.batch_invariance import options

_GROUPS = ((-1, -1), (1, -1), (-1, 1))
"""Supported groups of a scale: the whole tensor, a row, a column."""


class GemmillFP8LinearKernel(FP8ScaledMMLinearKernel):  # type: ignore[misc]
    """Calls gemmill's operator ``scaled_mm``. vLLM quantises the activations first, as for its own kernels."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        """Whether the GPU is a Hopper, and if not, the reason."""
        if compute_capability is None and torch.cuda.is_available():
            major, minor = torch.cuda.get_device_capability()
            compute_capability = 10 * major + minor
        return (True, None) if compute_capability == 90 else (False, "gemmill needs compute capability 9.0 (Hopper)")

    @classmethod
    def can_implement(cls, c: FP8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        """Whether scales are of rows or whole tensors and D has 16 bits, and if not, the reason."""
        for what, key in (("weights", c.weight_quant_key), ("activations", c.activation_quant_key)):
            if (group := tuple(key.scale.group_shape)) not in _GROUPS:
                return False, f"scales of {what} have groups {group}; they must be of rows or of the whole tensor"
        if c.out_dtype not in (torch.bfloat16, torch.float16):
            return False, f"the output is {c.out_dtype}; it must be bfloat16 or float16"
        return True, None

    def apply_scaled_mm(
        self,
        *,
        A: torch.Tensor,
        B: torch.Tensor,
        out_dtype: torch.dtype,
        As: torch.Tensor,
        Bs: torch.Tensor,
        bias: torch.Tensor | None,
        output_shape: list[int],
    ) -> torch.Tensor:
        """Multiply (M, K) by (K, N), with M scales or one for A, and N scales or one for B."""
        a_scale, b_scale = (
            x.view(1) if x.numel() == 1 else x.view(shape) for x, shape in ((As, (-1, 1)), (Bs, (1, -1)))
        )
        d: Any = torch.ops.gemmill.scaled_mm(A, B, a_scale, b_scale, bias, out_dtype=out_dtype, options=options())
        output: torch.Tensor = d.view(*output_shape)
        return output
