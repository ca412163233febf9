"""Layers that ``kernelize`` puts in the place of a model's: they have its weights."""

from __future__ import annotations

import torch

__all__ = ["Linear"]


class Linear(torch.nn.Module):
    """``torch.nn.Linear`` on gemmill's operators, with the bias in the epilogue."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    has_backward = True
    can_torch_compile = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name in torch.nn.Linear
        """Compute ``input @ weight.T + bias`` (..., N) of (..., K) and (N, K), of 16 bits."""
        rows = input.reshape(-1, input.shape[-1])
        operators = torch.ops.gemmill
        if self.bias is None:
            made = operators.mm(rows, self.weight.t())
        else:
            (made,) = operators.epilogue("d = acc + bias[n]", rows, self.weight.t(), [self.bias], ["bias"])
        output: torch.Tensor = made.view(*input.shape[:-1], self.weight.shape[0])
        return output
