"""The choice that ``max_autotune`` times beside its own for a product of matrices."""

from __future__ import annotations

import torch
from torch._inductor import config

from gemmill.runtime.api.matmul import matmul
from gemmill.runtime.torch import calls
from gemmill.runtime.torch.inductor.products import Product, is_served_on


def gemmill_mm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """``out = a @ b``, by gemmill where it has a kernel for the device, else by PyTorch."""
    if is_served_on(a.device):
        tf32 = a.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
        (matmul if a.is_cuda else calls.matmul)(a, b, out=out, tf32=tf32)
    else:
        torch.mm(a, b, out=out)


def is_to_be_timed(product: Product) -> bool:
    """Whether a product is left to the autotuner, among whose choices is :func:`gemmill_mm`."""
    tunes = config.max_autotune or config.max_autotune_gemm
    return bool(product.is_plain and tunes and gemmill_mm in config.external_matmul)
