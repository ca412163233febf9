"""Finds the products in a graph of Inductor that gemmill's operators support."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch

from gemmill.library.arch import serving
from gemmill.library.bits import ANY
from gemmill.library.dtypes import FP8
from gemmill.runtime.operands.call_keywords import IEEE
from gemmill.runtime.operands.matrices import SCALE_BLOCK
from gemmill.runtime.torch.inductor.shapes import equal, is_empty, place, same
from gemmill.runtime.torch.option_text import written
from gemmill.runtime.torch.outputs import torch_dtype
from gemmill.runtime.torch.takeover.aten import ROWS, Row, f32_precision, overload
from gemmill.runtime.torch.takeover.blocks import Setting

aten = torch.ops.aten


class Product(NamedTuple):
    """``alpha * a @ b + beta * c`` in a graph."""

    node: Any
    operator: str
    """gemmill's operator without C: ``mm``, ``bmm``, ``scaled_mm`` or ``grouped_mm``."""
    a: Any
    b: Any
    c: Any
    """The node of C, or None."""
    alpha: float
    beta: float
    named: Mapping[str, Any]
    """Nodes of scales and offsets, by name."""
    options: str
    """Options in the text form of the operators."""
    setting: Setting
    """The setting that holds."""

    @property
    def shape(self) -> Any:
        """Shape of D: (M, N) or (B, M, N)."""
        return self.node.meta["val"].shape

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of A."""
        dtype: torch.dtype = self.a.meta["val"].dtype
        return dtype

    @property
    def is_plain(self) -> bool:
        """Whether it is ``a @ b`` of two matrices, with D in their dtype."""
        return bool(self.node.target is aten.mm.default)

    @property
    def takes_expressions(self) -> bool:
        """Whether an epilogue can be fused: not with f64 sums, groups that each have their own D, or block scales,
        which belong to the main loop."""
        if self.operator == "grouped_mm":
            return len(self.shape) == 2
        scales = [x.meta["val"] for x in self.named.values()]
        return self.dtype != torch.float64 and all(_is_scale(x, self.shape) for x in scales)


_OPERATORS = {
    "mm": "mm",
    "addmm": "mm",
    "bmm": "bmm",
    "baddbmm": "bmm",
    "_scaled_mm": "scaled_mm",
    "_grouped_mm": "grouped_mm",
}
"""gemmill's operator for each of PyTorch's that the pass replaces; :data:`ROWS` names their arguments."""
_ROWS: Mapping[Any, tuple[str, Row]] = {
    overload(name): (_OPERATORS[packet], row)
    for name, row in ROWS.items()
    if not row.out and (packet := name.partition(".")[0]) in _OPERATORS
}
_TERMS = ("matrix", "column", "row")
_NAMED = {"scale_a": "a_scale", "scale_b": "b_scale", "offs": "offsets"}
_WIDE = (torch.bfloat16, torch.float16)
NARROW = tuple(torch_dtype(name) for name in FP8)


def product(node: Any, setting: Setting) -> Product | None:
    """The product that a node computes under a setting, or None if the operators do not support it."""
    operator, row = _ROWS.get(node.target, ("", None)) if node.op == "call_function" else ("", None)
    if row is None:
        return None
    schema = node.target._schema.arguments
    arguments = {x.name: x.default_value for x in schema if x.has_default_value()}
    arguments |= dict(zip((x.name for x in schema), node.args, strict=False)) | node.kwargs
    alpha, beta = arguments.get("alpha", 1), arguments.get("beta", 1)
    if any(isinstance(x, torch.fx.Node) for x in (alpha, beta)):
        return None  # numbers that are known only at run time
    if not all(isinstance(x.meta.get("val"), torch.Tensor) for x in (node, *node.all_input_nodes)):
        return None
    c = arguments[row.c] if row.c and beta != 0 else None
    a = arguments[row.a]
    candidate = Product(
        node,
        operator,
        a,
        arguments[row.b],
        c,
        float(alpha),
        float(beta),
        {name: arguments[argument] for argument, name in _NAMED.items() if arguments.get(argument) is not None},
        _options(a.meta["val"].dtype, arguments, setting),
        setting,
    )
    return candidate if arguments.get("scale_result") is None and _is_served(candidate) else None


def _options(dtype: torch.dtype, arguments: Mapping[str, Any], setting: Setting) -> str:
    options: dict[str, bool | str] = {}
    if dtype == torch.float32 and (precision := f32_precision(setting)) not in (None, IEEE):
        options["precision"] = precision
    if "use_fast_accum" in arguments:
        options["fast_accumulation"] = arguments["use_fast_accum"]
    if torch.are_deterministic_algorithms_enabled():
        options["deterministic"] = True
    if setting.bits != ANY:
        options["bits"] = setting.bits
    return written(options)


def _is_served(product: Product) -> bool:
    a, b, d = (x.meta["val"] for x in (product.a, product.b, product.node))
    if not is_served_on(a.device) or is_empty(b.shape):
        return False
    if product.c is not None and not _is_term(product.c.meta["val"], product):
        return False
    if product.operator == "scaled_mm":
        return a.dtype in NARROW and b.dtype in NARROW and d.dtype not in NARROW and _are_scales(product)
    if a.dtype != b.dtype:
        return False
    if product.operator == "grouped_mm":
        return a.dtype in _WIDE and a.dim() == 2 and "offsets" in product.named and product.c is None
    if a.dtype == torch.float32:
        return f32_precision(product.setting) is not None
    return a.dtype in (*_WIDE, torch.float64)


def _is_term(c: Any, product: Product) -> bool:
    """Whether the operators can add a C: it must have D's dtype and broadcast to D."""
    place_of_c = place(c.shape, product.shape, product.shape)
    return c.dtype == product.node.meta["val"].dtype and place_of_c is not None and place_of_c.kind in _TERMS


def is_served_on(device: torch.device) -> bool:
    """Whether the operators run on a device: a GPU of a supported architecture, or the CPU after ``run_on_cpu``."""
    if device.type == "cuda":
        return _has_kernels(device)
    on_cpu = torch._C._dispatch_has_kernel_for_dispatch_key("gemmill::mm", "CPU")
    return bool(device.type == "cpu" and on_cpu)


@cache
def _has_kernels(device: torch.device) -> bool:
    return bool(serving(torch.cuda.get_device_capability(device)))


def _are_scales(product: Product) -> bool:
    """Whether the scales are f32, and both have one value, or values for rows and columns, or for blocks."""
    scales = [product.named[name].meta["val"] for name in ("a_scale", "b_scale")]
    if any(x.dtype != torch.float32 for x in scales):
        return False
    if all(_is_scale(x, product.shape) for x in scales):
        return True
    (m, n), k = product.shape, product.a.meta["val"].shape[1]
    blocks, of_n = (-(-extent // SCALE_BLOCK) for extent in (k, n))
    return same(scales[0].shape, (m, blocks)) and same(scales[1].shape, (blocks, of_n))


def _is_scale(scale: Any, d: Any) -> bool:
    """Whether a tensor has one element, or one for each row or column of D."""
    if scale.dim() == 2 and not all(equal(x, 1) for x in scale.shape):
        return same(scale.shape, (d[0], 1)) or same(scale.shape, (1, d[1]))
    return all(equal(x, 1) for x in scale.shape)
