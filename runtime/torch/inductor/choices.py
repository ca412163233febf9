"""The choice that ``max_autotune`` times, next to Inductor's own, for a plain product that gemmill supports.

Inductor's ``config.external_matmul`` would add the choice to every product of the program, also to those that gemmill
leaves alone, and Inductor times all products with two choices, also without ``max_autotune``. So the choice is in that
list only while one of gemmill's nodes is lowered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import config
from torch._inductor.kernel.mm import lazy_register_extern_choice
from torch._inductor.lowering import lowerings

from gemmill.runtime.api.matmul import matmul
from gemmill.runtime.torch import calls
from gemmill.runtime.torch.inductor.products import Product
from gemmill.runtime.torch.takeover.aten import tf32_is_allowed

TIMED = "gemmill_is_timed"
"""The key in the metadata of a node whose product is timed."""


def gemmill_mm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Compute ``out = a @ b`` with gemmill."""
    tf32 = a.dtype == torch.float32 and tf32_is_allowed()
    (matmul if a.is_cuda else calls.matmul)(a, b, out=out, tf32=tf32)


lazy_register_extern_choice(gemmill_mm)  # code from Inductor's cache calls it in processes that compile nothing


def is_to_be_timed(product: Product) -> bool:
    """Whether Inductor's autotuner decides about a product; :func:`gemmill_mm` is one of its choices. Its others follow
    PyTorch's precision of float32, so they are none where the setting names another."""
    is_free = product.setting.f32 is None or product.dtype != torch.float32
    return bool(is_free and product.is_plain and (config.max_autotune or config.max_autotune_gemm))


def timed(a: Any, b: Any) -> Any:
    """Lower a product as Inductor lowers ``aten.mm``, with :func:`gemmill_mm` among the choices."""
    with config.patch(external_matmul=[*config.external_matmul, gemmill_mm]):
        return lowerings[torch.ops.aten.mm.default](a, b)
