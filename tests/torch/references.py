"""A backend of overrides for tests: plain PyTorch in place of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemmill.runtime.torch import reference_operators
from gemmill.runtime.torch.takeover.aten import Arguments, Call
from gemmill.runtime.torch.takeover.kernel_backend import operands_of


def references(call: Call, given: Arguments, names: list[str]) -> tuple[Callable[[tuple[Any, ...]], Any], str]:
    """What computes calls like this one, and the name that they are counted under."""

    def computed(tensors: tuple[Any, ...]) -> Any:
        named = dict(zip(names, tensors, strict=True))
        keywords = {**operands_of(call, named), **call.values, "out_dtype": call.dtype}
        a, b, text = keywords.pop("a"), keywords.pop("b"), keywords.pop("epilogue", None)
        if a.dtype in (torch.float32, torch.complex64):  # of which the reference itself makes products
            wide = torch.promote_types(a.dtype, torch.float64)
            a, b = a.to(wide), b.to(wide)
        if text is not None:
            operands: dict[str, Any] = {
                x: keywords.pop(x) for x in ("a_scale", "b_scale", "bias", "alpha", "beta") if x in keywords
            }
            (found,) = reference_operators.epilogue(text, a, b, operands, **keywords)
        else:
            multiply = reference_operators.grouped_matmul if call.grouped else reference_operators.matmul
            (found,) = multiply(a, b, **keywords)
        if call.out:
            return named[call.out].copy_(found)
        return torch.empty_strided(call.shape, call.strides, dtype=call.dtype, device=a.device).copy_(found)

    return computed, "reference"
