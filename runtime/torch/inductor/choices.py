"""The choice that ``max_autotune`` times, next to its own, for a product of two matrices."""

from __future__ import annotations

import torch
from torch._inductor import config

from gemmill.runtime.api.matmul import matmul
from gemmill.runtime.torch import calls
from gemmill.runtime.torch.inductor.products import Product, is_served_on


def gemmill_mm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Compute ``out = a @ b`` with gemmill, or with PyTorch if gemmill has no kernels for the device."""
    if is_served_on(a.device):
        tf32 = a.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
        (matmul if a.is_cuda else calls.matmul)(a, b, out=out, tf32=tf32)
    else:
        torch.mm(a, b, out=out)


def is_to_be_timed(product: Product) -> bool:
    """Whether Inductor's autotuner decides about a product; :func:`gemmill_mm` is one of its choices."""
    tunes = config.max_autotune or config.max_autotune_gemm
    return bool(product.is_plain and tunes and gemmill_mm in config.external_matmul)
