"""Gradients of the operators, by the operators: of ``a @ b`` that of A is ``g @ b.mT``, that of B ``a.mT @ g``.

Transposes are views, whose strides kernels read as they are, so that no operand is copied; and as the products of a
gradient are operators too, plain products can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemmill.library.errors import OperandError
from gemmill.runtime.torch.options import for_gradient


def register(library: torch.library.Library, name: str, names: list[str], backward: Callable[..., Any]) -> None:
    """Register the gradient of an operator with positional arguments of these names."""

    def keep(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
        ctx.name, ctx.keywords = name, keyword_only_inputs
        given = dict(zip(names, inputs, strict=True))
        if backward is not refused:
            ctx.save_for_backward(given["a"], given["b"])
            ctx.c = None if "c" not in given else (given["c"].shape, given["c"].dtype)

    torch.library.register_autograd(f"gemmill::{name}", backward, setup_context=keep, lib=library)


def refused(ctx: Any, *_: Any) -> Any:
    """OperandError, for an operator that has no gradient."""
    raise OperandError(
        f"gemmill::{ctx.name} has no gradient yet; mm, addmm, bmm and baddbmm have: call it under torch.no_grad(), or "
        "pass operands .detach()ed"
    )


def of_product(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Of A and B."""
    a, b = ctx.saved_tensors
    alpha, text = ctx.keywords["alpha"], for_gradient(ctx.keywords["options"])
    g = g.to(a.dtype)  # products are of operands of one type
    grad_a = grad_b = None
    if ctx.needs_input_grad[-2]:
        grad_a = _multiply(g, b.mT, alpha, text).sum_to_size(a.shape)
    if ctx.needs_input_grad[-1] and b.dim() == 2 and a.dim() > 2:  # one product, not one a matrix and their sum
        grad_b = _multiply(a.flatten(0, -2).mT, g.flatten(0, -2), alpha, text)
    elif ctx.needs_input_grad[-1]:
        grad_b = _multiply(a.mT, g, alpha, text).sum_to_size(b.shape)
    return grad_a, grad_b


def of_sum(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Of C, A and B."""
    shape, dtype = ctx.c
    grad_c = (g * ctx.keywords["beta"]).sum_to_size(shape).to(dtype) if ctx.needs_input_grad[0] else None
    return grad_c, *of_product(ctx, g)


def _multiply(a: torch.Tensor, b: torch.Tensor, alpha: float, options: str) -> torch.Tensor:
    operators = torch.ops.gemmill
    multiply = operators.mm if a.dim() == b.dim() == 2 else operators.bmm
    product: torch.Tensor = multiply(a, b, alpha=alpha, out_dtype=a.dtype, options=options)
    return product
