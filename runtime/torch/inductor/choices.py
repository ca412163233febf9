"""The choice that ``max_autotune`` times beside its own for a product of matrices."""

from __future__ import annotations

import torch
from torch._inductor import config

from gemmill.runtime.torch.inductor.products import Product, is_served_on


def gemmill_mm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """``out = a @ b``, by gemmill's operator where it has a kernel for the device, else by PyTorch's."""
    if is_served_on(a.device):
        tf32 = a.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
        torch.ops.gemmill.mm_out(a, b, out, options="tf32=True" if tf32 else "")
    else:
        torch.mm(a, b, out=out)


def is_to_be_timed(found: Product) -> bool:
    """Whether a product is left to the autotuner, among whose choices is :func:`gemmill_mm`."""
    tunes = config.max_autotune or config.max_autotune_gemm
    return bool(found.is_plain and tunes and gemmill_mm in config.external_matmul)
