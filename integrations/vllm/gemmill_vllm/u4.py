"""4-bit weights with scales and zero points of groups along K, and 16-bit activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from vllm.model_executor.kernels.linear import MPLinearKernel, MPLinearLayerConfig
from vllm.model_executor.parameter import permute_param_layout_

import gemmill.torch  # noqa: F401 - registers the operators
from gemmill_vllm.batch_invariance import options

ZEROS: Mapping[str, int | None] = {"uint4b8": 8, "uint4": None}
"""For each of vLLM's types, the constant to subtract from the unsigned values; None if there are zero points."""
GROUPS = (32, 64, 128)
"""Elements along K that share a scale."""


class GemmillU4LinearKernel(MPLinearKernel):  # type: ignore[misc]
    """Calls gemmill's operator ``mixed_mm``."""

    @classmethod
    def get_min_capability(cls) -> int:
        """The least compute capability, times 10: Hopper."""
        return 90

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        """Whether gemmill supports the types, groups and shape of a layer, and if not, the reason."""
        k, n = c.partition_weight_shape
        refusals = {
            f"weights are {c.weight_type}; they must be {' or '.join(ZEROS)}": str(c.weight_type) not in ZEROS,
            "uint4 needs zero points, and uint4b8 must have none": c.zero_points != (str(c.weight_type) == "uint4"),
            f"groups have {c.group_size} elements; they must have {', '.join(map(str, GROUPS))}": c.group_size
            not in GROUPS,
            f"weights are {k} x {n}; K must be a multiple of {c.group_size}, and N of 8": k % max(c.group_size, 1)
            or n % 8,
            "reordered rows (g_idx) are not supported": c.has_g_idx,
            f"activations are {c.act_type}; they must be bfloat16 or float16": c.act_type
            not in (torch.bfloat16, torch.float16),
        }
        return next(((False, reason) for reason, holds in refusals.items() if holds), (True, None))

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Convert weights from eight values along K in an int32 to two values in a byte, K-major, with the same
        bytes."""
        zero = ZEROS[str(self.config.weight_type)]

        def weights(x: Any) -> Any:
            permute_param_layout_(x, input_dim=0, output_dim=1, packed_dim=0)
            x.data = x.data.t().contiguous().view(torch.uint8).t()
            return x

        def scales(x: Any) -> Any:
            permute_param_layout_(x, input_dim=0, output_dim=1)
            x.data = x.data.to(self.config.act_type).contiguous()
            return x

        def zeros(x: Any) -> Any:
            permute_param_layout_(x, input_dim=0, output_dim=1, packed_dim=1)
            places = torch.arange(0, 32, 4, dtype=torch.int32, device=x.device)
            values = (x.data[..., None] >> places) & 15
            x.data = values.flatten(1).to(self.config.act_type)
            return x

        self._transform_param(layer, self.w_q_name, weights)
        self._transform_param(layer, self.w_s_name, scales)
        if zero is None:
            self._transform_param(layer, self.w_zp_name, zeros)
        else:
            self._zeros = torch.full_like(getattr(layer, self.w_s_name), zero)

    def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Compute ``x @ ((q - zero) * scale) + bias`` (..., N) of (..., K) and (K, N)."""
        w_q, w_s, w_zp, _ = self._get_weight_params(layer)
        zeros = w_zp if self.config.zero_points else self._zeros
        rows, keywords = x.reshape(-1, x.shape[-1]), {"out_dtype": x.dtype, "b_dtype": "u4", "options": options()}
        d = torch.ops.gemmill.mixed_mm(rows, w_q, None, w_s, None, zeros, bias, **keywords)
        output: torch.Tensor = d.view(*x.shape[:-1], d.shape[-1])
        return output
