"""Gradients of products. For ``a @ b``, the gradient of A is ``g @ b.mH`` and that of B is ``a.mH @ g``; for groups,
the same in each group. Of real matrices, ``mH`` is the transpose.

Transposes are views whose strides kernels read, so nothing is copied. These products are operators too, so gradients
can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from gemmill.library.errors import OperandError
from gemmill.runtime.torch.gradients.autograd import Arguments, Rule, multiply
from gemmill.runtime.torch.option_text import for_gradient
from gemmill.runtime.torch.reference_operators import dequantised, have_blocks, inside

Gradients = dict[str, Any]
"""Gradients by the name of the tensor."""

_OF_WEIGHTS = ("a", "b", "a_scale", "b_scale", "a_zero", "b_zero", "a_dtype", "b_dtype")


def of_product(arguments: Arguments, grads: Sequence[Any], wanted: frozenset[str]) -> Gradients:
    """Gradients of ``alpha * a @ b``, optionally ``+ beta * c``."""
    (g,) = grads
    gradients = _of_c(arguments, g) if "c" in wanted else {}
    return gradients | of_factors(arguments, g, wanted & {"a", "b"})


def of_scaled(arguments: Arguments, grads: Sequence[Any], wanted: frozenset[str]) -> Gradients:
    """Gradients of ``alpha * (a @ b) * a_scale * b_scale + beta * c``, where A or B may be narrow.

    Narrow operands, zero points, and scales of blocks or groups have no gradient: OperandError. Narrow weights are
    upconverted in memory.
    """
    (g,) = grads
    gradients = _of_c(arguments, g) if "c" in wanted else {}
    if not (wanted := wanted - {"c"}):
        return gradients
    a, b, *left = dequantised(*[arguments.get(name) for name in _OF_WEIGHTS])
    scales = {name: x for name, x in zip(("a_scale", "b_scale"), left, strict=True) if x is not None}
    if have_blocks(a, b, *left):
        _refuse("scaled_mm", wanted, "with block scales")
    _refuse("mixed_mm", wanted - {"a", "b", *scales}, "of narrow weights")
    wide = a.dtype if a.dtype.itemsize >= b.dtype.itemsize else b.dtype
    factors = arguments | {"a": a.to(wide), "b": b.to(wide)}
    scaled = g
    for scale in scales.values():
        scaled = scaled * scale.to(g.dtype)
    for name in sorted(wanted & {"a", "b"}):
        refuse_narrow(name, arguments[name].dtype)
    gradients |= of_factors(factors, scaled, wanted & {"a", "b"})
    if of_sums := wanted & {*scales}:
        dtype = torch.float64 if wide == torch.float64 else torch.float32
        text = for_gradient(arguments["options"])
        sums = torch.ops.gemmill.bmm(
            factors["a"], factors["b"], alpha=arguments["alpha"], out_dtype=dtype, options=text
        )
        gradients |= of_scales(scales, g.to(dtype), sums, of_sums)
    return gradients


def of_scales(scales: Mapping[str, Any], g: torch.Tensor, sums: torch.Tensor, wanted: Iterable[str]) -> Gradients:
    """Gradients of the wanted scales in ``sums * a_scale * b_scale``, from that of the product, ``g``."""
    gradients: Gradients = {}
    for name in sorted(wanted):
        product = g * sums
        for other, x in scales.items():
            if other != name:
                product = product * (x.to(g.dtype) if isinstance(x, torch.Tensor) else x)
        gradients[name] = summed_to(product, scales[name].shape).to(scales[name].dtype)
    return gradients


def summed_to(g: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """Sum ``g`` to a shape that broadcasts to the shape of ``g``."""
    padded = (*[1] * (g.dim() - len(shape)), *shape)
    return g.sum_to_size(padded).reshape(tuple(shape))


def scattered(g: torch.Tensor, rows: torch.Tensor, extent: int) -> torch.Tensor:
    """The gradient of A from that of its gathered rows, which are added in float32, or in float64 for it."""
    dtype = torch.float64 if g.dtype == torch.float64 else torch.float32
    sums = g.new_zeros((extent, g.shape[1]), dtype=dtype).index_add(0, inside(rows, extent), g.to(dtype))
    return sums.to(g.dtype)


Scatter = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""A function like :func:`scattered`."""


def of_groups(
    arguments: Arguments, grads: Sequence[Any], wanted: frozenset[str], scatter: Scatter = scattered
) -> Gradients:
    """Gradients of groups of rows, along K or masked, without scales; 0 in rows outside of all groups.

    Kernels do not write these rows, so they are masked here. ``scatter`` adds up those of gathered rows.
    """
    (g,) = grads
    if any(arguments[name] is not None for name in ("a_scale", "b_scale")):
        _refuse("grouped_mm", wanted - {"c"}, "with a_scale or b_scale")
    if arguments["b"].dtype.itemsize < arguments["a"].dtype.itemsize:
        _refuse("grouped_mm", wanted - {"c"}, "with narrow weights")
    a, b, offsets, counts = (arguments[name] for name in ("a", "b", "offsets", "counts"))
    rows = arguments.get("rows")
    is_along_k = offsets is not None and g.dim() == 3

    def written(x: torch.Tensor) -> torch.Tensor:
        return torch.where(rows_in_use(x, offsets, counts), x, 0)

    if not is_along_k:
        g = written(g)
    gradients = _of_c(arguments, g) if "c" in wanted else {}
    for name in sorted(wanted & {"a", "b"}):
        refuse_narrow(name, arguments[name].dtype)
    g = g.to(a.dtype).contiguous()  # kernels of groups need contiguous rows
    keywords = {"alpha": arguments["alpha"], "out_dtype": a.dtype, "options": for_gradient(arguments["options"])}

    def multiply_groups(x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor | None = None) -> Any:
        return torch.ops.gemmill.grouped_mm(x, y, offsets, counts, rows=rows, **keywords)

    if "a" in wanted:
        gradients["a"] = written(multiply_groups(b, g.mT)).mT if is_along_k else written(multiply_groups(g, b.mT))
    if "b" in wanted and offsets is None:
        gradients["b"] = torch.ops.gemmill.bmm(written(a).mT, g, **keywords)
    elif "b" in wanted:
        of_rows = (a.mT if is_along_k else a.contiguous().mT), g, rows
        gradients["b"] = written(multiply_groups(*of_rows)) if is_along_k else multiply_groups(*of_rows)
    if rows is not None and "a" in gradients:
        of_a = gradients["a"]
        gradients["a"] = scatter(of_a.mT, rows, a.shape[1]).mT if is_along_k else scatter(of_a, rows, a.shape[0])
    return gradients


def rows_in_use(x: torch.Tensor, offsets: torch.Tensor | None, counts: torch.Tensor | None) -> torch.Tensor:
    """Whether each row of ``x`` belongs to a group, as a column that broadcasts to ``x``."""
    ends: Any = offsets[-1] if offsets is not None else counts[:, None, None]  # type: ignore[index]
    return torch.arange(x.shape[-2], device=x.device)[:, None] < ends


def of_factors(arguments: Arguments, g: torch.Tensor, wanted: Iterable[str]) -> Gradients:
    """The wanted gradients of A and B in ``alpha * a @ b``."""
    a, b = arguments["a"], arguments["b"]
    keywords = {"alpha": arguments["alpha"], "options": for_gradient(arguments["options"])}
    if 1 not in g.stride()[-2:]:  # the gradient of a sum is one expanded value, which kernels would read slowly
        g = g.contiguous()
    gradients = {}
    for name in sorted(wanted):  # in the same order in all processes: a DTensor's product may communicate
        refuse_narrow(name, arguments[name].dtype)
        dtype = arguments[name].dtype
        g = g.to(dtype)  # both operands must have one dtype
        if name == "a":
            gradients[name] = multiply(g, b.mH, out_dtype=dtype, **keywords).sum_to_size(a.shape)
        elif len(b.shape) == 2 and a.dim() > 2:  # one product instead of one for each matrix and a sum
            gradients[name] = multiply(a.flatten(0, -2).mH, g.flatten(0, -2), out_dtype=a.dtype, **keywords)
        else:
            gradients[name] = multiply(a.mH, g, out_dtype=a.dtype, **keywords).sum_to_size(b.shape)
    return gradients


def _of_c(arguments: Arguments, g: torch.Tensor) -> Gradients:
    beta = 1.0 if arguments["beta"] is None else arguments["beta"]
    return {"c": (g * beta).sum_to_size(arguments["c"].shape).to(arguments["c"].dtype)}


def refuse_narrow(name: str, dtype: torch.dtype) -> None:
    """Raise OperandError for the gradient of an operand whose dtype has 8 bits."""
    if dtype.itemsize == 1:
        raise OperandError(
            f"{name} is {dtype} and requires a gradient; 8-bit operands have no gradient: call under torch.no_grad(), "
            f"or pass {name}.detach()"
        )


def _refuse(operator: str, names: Iterable[str], why: str) -> None:
    if names:
        raise OperandError(
            f"gemmill::{operator} has no gradient of {', '.join(sorted(names))} {why}: call it under "
            "torch.no_grad(), or pass operand.detach()"
        )


_ALL = tuple(_OF_WEIGHTS[:6])

PRODUCT = Rule(of_product, {"a": ("b",), "b": ("a",)}, is_linear_in=("a", "b"))
SUM = Rule(of_product, {"a": ("b",), "b": ("a",), "c": ()}, is_linear_in=("a", "b"))
SCALED = Rule(of_scaled, dict.fromkeys(_ALL, _ALL) | {"c": ()})
GROUPED = Rule(
    of_groups,
    {
        "a": ("b", "offsets", "counts", "rows"),
        "b": ("a", "offsets", "counts", "rows"),
        "c": ("offsets", "counts"),
        "a_scale": (),
        "b_scale": (),
    },
)
"""The rules of all operators except ``epilogue``."""
