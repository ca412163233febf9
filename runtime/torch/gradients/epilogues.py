"""The gradient of an epilogue: its sums are made anew, by one plain product, and its expression is differentiated.

Kept are the operands alone, so that no matrix of sums is held between the passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gemmill.library.epilogues.tree import Assignment, Epilogue
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.torch.gradients.derivatives import Reverse, function_without
from gemmill.runtime.torch.gradients.products import Gradients, of_factors, of_groups, rows_in_use
from gemmill.runtime.torch.gradients.recorded import Given, Rule
from gemmill.runtime.torch.option_text import for_gradient
from gemmill.runtime.torch.reference import dequantised, groups_of_rows, have_blocks

_SCALES = ("a_scale", "b_scale")
_AXES = {"row": (-1,), "batch": (-1, -1), "matrix": (), "scalar": ()}


def backward(given: Given, grads: Sequence[Any], wanted: frozenset[str]) -> Gradients:
    """Of D, and of matrices and sums that an expression writes beside it."""
    epilogue = read_epilogue(given["expression"])
    _refuse_parts(epilogue, grads)
    named = dict(zip(given["names"], [*given["operands"], *given["numbers"]], strict=True))
    offsets, counts = named.get("offsets"), named.get("counts")
    is_grouped = offsets is not None or counts is not None
    factors, scales = _factors(epilogue, given, named, wanted, is_grouped)
    sums, inner = _sums(factors, offsets, counts), wanted & {"a", "b"}
    scaled = sums
    for scale in scales.values():
        scaled = scaled * scale
    values = {"gate": scaled[..., 0::2], "up": scaled[..., 1::2]} if epilogue.gated else {"acc": scaled}
    like = next(iter(values.values()))
    spread = _Spread(like, offsets if given["b"].dim() == 3 else None, counts)
    for x in epilogue.operands:
        values[x.name] = spread(x.kind, named[x.name])
    values |= {"alpha": named.get("alpha", 1.0), "beta": named.get("beta", 1.0)}
    if "c" in named:
        values["c"] = named["c"].to(like.dtype)
    outer = wanted - {"a", "b", *scales}
    reverse = Reverse(values, outer | ({"acc", "gate", "up"} if inner or wanted & {*scales} else frozenset()))
    for statement in epilogue.assignments:
        reverse.assign(statement.name, statement.value)
    by_output = dict(zip(("d", *(x.name for x in epilogue.outputs)), grads, strict=True))
    for statement in reversed(epilogue.assignments):
        g = reverse.gradients.pop(statement.name, None)
        if (own := by_output.get(statement.name)) is not None:
            own = spread.of_output(statement, own)
            g = own if g is None else g + own
        if g is not None:
            reverse.back(statement.value, g)
    found: Gradients = {}
    for x in epilogue.operands:
        if x.name in wanted:
            found[x.name] = spread.back(x.kind, reverse.gradients.get(x.name), named[x.name])
    if "c" in wanted:
        found["c"] = spread.back("matrix", reverse.gradients.get("c"), named["c"])
    if inner or wanted & {*scales}:
        found |= _of_sums(reverse.gradients, scales, sums, factors, wanted, is_grouped, epilogue.gated)
    return found


RULE = Rule(backward)


def _refuse_parts(epilogue: Epilogue, grads: Sequence[Any]) -> None:
    for x, g in zip(epilogue.outputs, grads[1:], strict=True):
        if g is not None and x.role in ("max", "min"):
            raise OperandError(f"gemmill::epilogue: `{x}` has no gradient, as no {x.role} has; use PyTorch's of D")
    for x in epilogue.assignments:
        if name := function_without(x.value):
            raise OperandError(
                f"gemmill::epilogue: `{x}` has no gradient, as {name} has none: call it under torch.no_grad(), or "
                f"leave {name} to PyTorch"
            )


def _factors(
    epilogue: Epilogue, given: Given, named: Mapping[str, Any], wanted: frozenset[str], is_grouped: bool
) -> tuple[Given, dict[str, Any]]:
    """Arguments of the product that makes the sums; and scales that multiply these, as no name in the expression
    stands for them."""
    mine = {x.name for x in epilogue.operands}
    scales = {name: named[name] for name in _SCALES if name in named and name not in mine}
    a, b = given["a"], given["b"]
    if is_grouped and scales:
        raise OperandError("gemmill::epilogue has no gradient beside scales of groups; name them in the expression")
    tensors = {name: x for name, x in scales.items() if isinstance(x, torch.Tensor)}
    if not is_grouped:
        of_weights = {x: tensors.get(x) for x in _SCALES} | {x: named.get(x) for x in ("a_zero", "b_zero")}
        a, b, *left = dequantised(a, b, **of_weights, a_dtype=given["a_dtype"], b_dtype=given["b_dtype"])
        if have_blocks(a, b, left[0], left[1]):
            raise OperandError("gemmill::epilogue has no gradient beside scales of blocks: pass operands .detach()ed")
        for name, x in zip(_SCALES, left, strict=True):
            if x is None and name in tensors:  # of groups, now in what they scale
                del scales[name]
        wide = a.dtype if a.dtype.itemsize >= b.dtype.itemsize else b.dtype
        a, b = a.to(wide), b.to(wide)
    known = {"a", "b", "c", *scales, *mine}
    if others := wanted - known:
        raise OperandError(
            f"gemmill::epilogue has no gradient of {', '.join(sorted(others))}, which is of narrow weights: pass it "
            ".detach()ed"
        )
    nothing = {"c": None, "beta": None, "a_scale": None, "b_scale": None, "alpha": 1.0}
    own = {"own_a": given["a"], "own_b": given["b"]}
    tables = {"offsets": named.get("offsets"), "counts": named.get("counts")}
    return {**nothing, **own, **tables, "a": a, "b": b, "options": given["options"]}, scales


def _sums(factors: Given, offsets: Any, counts: Any) -> torch.Tensor:
    """In float32, or in float64. Of groups, kernels write D in the type of A and B alone."""
    a, b = factors["a"], factors["b"]
    dtype = torch.float64 if a.dtype == torch.float64 else torch.float32
    text = for_gradient(factors["options"])
    if offsets is not None or counts is not None:
        sums: torch.Tensor = torch.ops.gemmill.grouped_mm(a, b, offsets, counts, options=text)
        return sums.to(dtype)
    multiply = torch.ops.gemmill.mm if a.dim() == b.dim() == 2 else torch.ops.gemmill.bmm
    made: torch.Tensor = multiply(a, b, out_dtype=dtype, options=text)
    return made


def _of_sums(
    gradients: Mapping[str, Any],
    scales: Mapping[str, Any],
    sums: torch.Tensor,
    factors: Given,
    wanted: frozenset[str],
    is_grouped: bool,
    gated: bool,
) -> Gradients:
    """Of A, B and the scales of the sums."""
    if gated:
        zero = sums.new_zeros(())
        pair = [gradients.get(name, zero).expand(*sums.shape[:-1], sums.shape[-1] // 2) for name in ("gate", "up")]
        g = torch.stack(pair, -1).flatten(-2)
    else:
        g = gradients["acc"].expand(sums.shape) if "acc" in gradients else torch.zeros_like(sums)
    found: Gradients = {}
    for name in sorted(wanted & {*scales}):
        product = g * sums
        for other in [x for x in scales if x != name]:
            product = product * scales[other]
        found[name] = _summed(product, scales[name].shape).to(scales[name].dtype)
    for scale in scales.values():
        g = g * scale
    inner = wanted & {"a", "b"}
    if is_grouped:
        found |= of_groups(factors, [g], inner)
    elif inner:
        for name in sorted(inner):
            if factors[f"own_{name}"].dtype.itemsize == 1:
                raise OperandError(
                    f"{name} is {factors[f'own_{name}'].dtype}, which has no gradient: pass it .detach()ed"
                )
        found |= of_factors(factors, g, inner)
    return found


class _Spread:
    """Operands as what broadcasts to D, and gradients of D's shape as theirs, to which rows of no group add nothing. Of
    groups of rows at ``offsets``, whose D is one matrix, what has a value for each group is looked up for each row."""

    def __init__(self, like: torch.Tensor, offsets: torch.Tensor | None, counts: torch.Tensor | None) -> None:
        self.like = like
        self.group: Any = None
        """Of each row."""
        self.is_used: Any = None
        """Whether a row is of a group."""
        if offsets is not None:
            self.group = groups_of_rows(offsets, like.shape[0])
        if offsets is not None or counts is not None:
            self.is_used = rows_in_use(like, offsets, counts)

    def _is_of_groups(self, kind: str, x: torch.Tensor) -> bool:
        return self.group is not None and (kind == "batch" or (kind == "column" and x.dim() > 1))

    def __call__(self, kind: str, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        wide = x.to(self.like.dtype)
        if self._is_of_groups(kind, x):
            wide = wide.index_select(0, self.group)
            return wide[:, None] if kind == "batch" else wide
        if kind == "scalar":
            return wide.reshape(())
        for at in _AXES.get(kind, (-2,) if x.dim() > 1 else ()):
            wide = wide.unsqueeze(at)
        return wide

    def back(self, kind: str, g: Any, x: torch.Tensor) -> torch.Tensor:
        """The gradient of an operand by that of D's shape, which is None where nothing depends on it."""
        if g is None:
            return torch.zeros_like(x)
        g = g.expand(self.like.shape)
        if self.is_used is not None:
            g = torch.where(self.is_used, g, 0)
        if self._is_of_groups(kind, x):
            summed = g.sum(-1) if kind == "batch" else g
            return summed.new_zeros(x.shape).index_add(0, self.group, summed).to(x.dtype)
        return _summed(g, self(kind, x).shape).reshape(x.shape).to(x.dtype)

    def of_output(self, x: Assignment, g: torch.Tensor) -> torch.Tensor:
        """The gradient of D's shape by that of an output."""
        if x.is_reduction:
            if self.group is not None and x.kind in ("column", "batch"):
                raise OperandError(f"gemmill::epilogue: `{x}` has no gradient in groups of rows: sum D with PyTorch")
            for at in _AXES.get(x.kind, (-2,)):
                g = g.unsqueeze(at)
        return g.to(self.like.dtype).expand(self.like.shape)


def _summed(g: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """``g`` summed to a shape that broadcasts to its own."""
    padded = (*[1] * (g.dim() - len(shape)), *shape)
    return g.sum_to_size(padded).reshape(tuple(shape))
