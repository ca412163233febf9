"""The gradient of ``epilogue``: one plain product recomputes the sums, and PyTorch differentiates the expression.

Forward saves only the operands, so no matrix of sums stays in memory until backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.evaluation import values
from gemmill.library.epilogues.function_table import FUNCTIONS, Arrays
from gemmill.library.epilogues.grammar import SUMS
from gemmill.library.epilogues.tree import SCALE, Assignment, Call, Epilogue, sums_by_name, walk
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.torch.gradients.autograd import Arguments, Rule, multiply
from gemmill.runtime.torch.gradients.product_rules import (
    Gradients,
    Scatter,
    of_factors,
    of_groups,
    of_scales,
    refuse_narrow,
    rows_in_use,
    scattered,
    summed_to,
)
from gemmill.runtime.torch.option_text import for_gradient
from gemmill.runtime.torch.outputs import torch_dtype
from gemmill.runtime.torch.reference_operators import AXES, Spread, dequantised, have_blocks


def _rounded(x: torch.Tensor, dtype: DTypeName) -> torch.Tensor:
    """Round to a type and back. Gradients pass through unchanged."""
    if dtype == "f32":
        return x
    return x.to(torch_dtype(dtype)).to(x.dtype).detach() + torch.where(x.isfinite(), x - x.detach(), 0)


ARRAYS = Arrays(
    torch,
    rounded=_rounded,
    gelu=torch.nn.functional.gelu,
    gelu_tanh=partial(torch.nn.functional.gelu, approximate="tanh"),
    silu=torch.nn.functional.silu,
)
"""The functions through which PyTorch differentiates expressions. PyTorch's own activations have a one-kernel
gradient."""
_SCALES = ("a_scale", "b_scale")


class Recomputation:
    """An epilogue whose sums one plain product computes again."""

    def __init__(self, arguments: Arguments, wanted: frozenset[str], scatter: Scatter = scattered) -> None:
        """``wanted`` are the names of the tensors that need a gradient; ``scatter`` adds up those of gathered rows."""
        self.epilogue = epilogue = read_epilogue(arguments["expression"])
        self.named = named = dict(zip(arguments["names"], [*arguments["operands"], *arguments["numbers"]], strict=True))
        self.wanted, self.scatter = wanted, scatter
        offsets, counts = named.get("offsets"), named.get("counts")
        self.is_grouped = offsets is not None or counts is not None
        self.factors, self.scales = _factors(epilogue, arguments, named, wanted, self.is_grouped)
        scaled = self.sums = _sums(self.factors, offsets, counts)
        for scale in self.scales.values():
            scaled = scaled * scale
        self.inputs = inputs = sums_by_name(epilogue, scaled)
        self.sum_names = frozenset(inputs)
        self.like = next(iter(inputs.values()))
        self.spread = spread = _Spread(self.like, offsets if arguments["b"].dim() == 3 else None, counts)
        for x in epilogue.operands:
            inputs[x.name] = spread(x.kind, named[x.name])
        inputs |= {name: spread("scalar", named.get(name, 1.0)) for name in ("alpha", "beta")}
        if "c" in named:
            inputs["c"] = named["c"].to(self.like.dtype)

    @property
    def d(self) -> torch.Tensor:
        """D in the type of the sums."""
        d: torch.Tensor = values(self.epilogue, self.inputs, ARRAYS, partial(self.like.new_full, ()))["d"]
        return d.expand(self.like.shape)

    def backward(self, grads: Sequence[Any]) -> Gradients:
        """Gradients of the wanted operands, from those of D and of further outputs that are matrices or sums."""
        epilogue, named, wanted, spread = self.epilogue, self.named, self.wanted, self.spread
        of_sums = self.sum_names if wanted & {"a", "b", *self.scales} else frozenset()
        of_outputs = dict(zip(("d", *(x.name for x in epilogue.outputs)), grads, strict=True))
        reached = {
            x.name: spread.of_output(x, g) for x in epilogue.assignments if (g := of_outputs.get(x.name)) is not None
        }
        gradients = _differentiated(epilogue, self.inputs, wanted - {"a", "b"} | of_sums, reached, self.like)
        of_operands: Gradients = {}
        for x in epilogue.operands:
            if x.name in wanted:
                of_operands[x.name] = spread.back(x.kind, gradients[x.name], named[x.name])
        if "c" in wanted:
            of_operands["c"] = spread.back("matrix", gradients["c"], named["c"])
        if of_sums:
            columns = self.sums.shape[-1] // 2 if epilogue.gates_halves else epilogue.gate_columns
            gate = epilogue.gate_rows, columns
            g, of_each_scale = _of_sums(gradients, self.scales, self.sums, wanted, gate)
            of_operands |= of_each_scale | self._of_factors(g)
        return of_operands

    def _of_factors(self, g: torch.Tensor) -> Gradients:
        """Gradients of A and B, from that of their product."""
        inner = self.wanted & {"a", "b"}
        if self.is_grouped:
            return of_groups(self.factors, [g], inner, self.scatter)
        for name in sorted(inner):
            refuse_narrow(name, self.factors[f"original_{name}"].dtype)
        return of_factors(self.factors, g, inner) if inner else {}


def backward(arguments: Arguments, grads: Sequence[Any], wanted: frozenset[str]) -> Gradients:
    """Gradients of the operands, from those of D and of further outputs that are matrices or sums."""
    refuse_parts(read_epilogue(arguments["expression"]), grads)
    return Recomputation(arguments, wanted).backward(grads)


def _differentiated(
    epilogue: Epilogue, inputs: Mapping[str, Any], wanted: frozenset[str], reached: Mapping[str, Any], like: Any
) -> dict[str, Any]:
    """Gradients of the wanted inputs, in the shape of ``like``, from those of the assigned values (``reached``)."""
    primals = {name: x.expand(like.shape) for name, x in inputs.items() if name in wanted}

    def assigned(some: Mapping[str, Any]) -> list[Any]:
        results = values(epilogue, {**inputs, **some}, ARRAYS, partial(like.new_full, ()))
        return [results[name].expand(like.shape) for name in reached]

    if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():  # differentiated again, or transformed
        _, pull = torch.func.vjp(assigned, primals)
        (gradients,) = pull([*reached.values()])
        return dict(gradients)
    with torch.enable_grad():
        leaves = {name: x.detach().requires_grad_() for name, x in primals.items()}
        results = assigned(leaves)
    of_leaves = torch.autograd.grad(results, [*leaves.values()], [*reached.values()], materialize_grads=True)
    return dict(zip(leaves, of_leaves, strict=True))


RULE = Rule(backward)


def refuse_parts(epilogue: Epilogue, grads: Sequence[Any]) -> None:
    """Raise OperandError for parts of an epilogue that have no gradient, given the gradients of its outputs."""
    for x, g in zip(epilogue.outputs, grads[1:], strict=True):
        if x.role == SCALE:
            raise OperandError(
                f"gemmill::epilogue: `{x}` has no gradient, because it quantises D: call it under torch.no_grad()"
            )
        if g is not None and x.role in ("max", "min"):
            raise OperandError(
                f"gemmill::epilogue: `{x}` has no gradient, because {x.role} outputs are not differentiable: compute "
                f"the {x.role} of D with PyTorch"
            )
    for x in epilogue.assignments:
        applied = [FUNCTIONS[node.function] for node in walk(x.value) if isinstance(node, Call)]
        if name := next((row.name for row in applied if not row.has_derivative), None):
            raise OperandError(
                f"gemmill::epilogue: `{x}` has no gradient, because {name} is not differentiable: call it under "
                f"torch.no_grad(), or apply {name} with PyTorch"
            )


def _factors(
    epilogue: Epilogue, arguments: Arguments, named: Mapping[str, Any], wanted: frozenset[str], is_grouped: bool
) -> tuple[Arguments, dict[str, Any]]:
    """Arguments of the product that recomputes the sums, and the scales that multiply the sums because the expression
    does not name them."""
    in_expression = {x.name for x in epilogue.operands}
    scales = {name: named[name] for name in _SCALES if name in named and name not in in_expression}
    a, b = arguments["a"], arguments["b"]
    if is_grouped and scales:
        raise OperandError(
            "gemmill::epilogue has no gradient for groups with a_scale or b_scale; use the scales as operands of the "
            "expression"
        )
    if is_grouped and b.dtype.itemsize < a.dtype.itemsize:
        raise OperandError("gemmill::epilogue has no gradient for groups with narrow weights: pass them upconverted")
    tensors = {name: x for name, x in scales.items() if isinstance(x, torch.Tensor)}
    if not is_grouped:
        of_weights = {x: tensors.get(x) for x in _SCALES} | {x: named.get(x) for x in ("a_zero", "b_zero")}
        a, b, *left = dequantised(a, b, **of_weights, a_dtype=arguments["a_dtype"], b_dtype=arguments["b_dtype"])
        if have_blocks(a, b, left[0], left[1]):
            raise OperandError(
                "gemmill::epilogue has no gradient with block scales: call it under torch.no_grad(), or pass "
                "operand.detach()"
            )
        for name, x in zip(_SCALES, left, strict=True):
            if x is None and name in tensors:  # scales of groups are already multiplied into A or B
                del scales[name]
        wide = a.dtype if a.dtype.itemsize >= b.dtype.itemsize else b.dtype
        a, b = a.to(wide), b.to(wide)
    differentiable = {"a", "b", "c", *scales, *in_expression}
    if others := wanted - differentiable:
        raise OperandError(
            f"gemmill::epilogue has no gradient of {', '.join(sorted(others))} of narrow weights: pass it with "
            ".detach()"
        )
    nothing = {"c": None, "beta": None, "a_scale": None, "b_scale": None, "alpha": 1.0}
    originals = {"original_a": arguments["a"], "original_b": arguments["b"]}
    tables = {name: named.get(name) for name in ("offsets", "counts", "rows")}
    return {**nothing, **originals, **tables, "a": a, "b": b, "options": arguments["options"]}, scales


def _sums(factors: Arguments, offsets: Any, counts: Any) -> torch.Tensor:
    """Recompute the sums, in float64 for float64 operands, else in float32. Sums of groups first have the type of A and
    B, the only type in which kernels write them."""
    a, b = factors["a"], factors["b"]
    dtype = torch.float64 if a.dtype == torch.float64 else torch.float32
    text = for_gradient(factors["options"])
    if offsets is not None or counts is not None:
        sums: torch.Tensor = torch.ops.gemmill.grouped_mm(a, b, offsets, counts, rows=factors["rows"], options=text)
        return sums.to(dtype)
    return multiply(a, b, out_dtype=dtype, options=text)


def _of_sums(
    gradients: Mapping[str, Any],
    scales: Mapping[str, Any],
    sums: torch.Tensor,
    wanted: frozenset[str],
    gate: tuple[int, int],
) -> tuple[torch.Tensor, Gradients]:
    """The gradient of the product of A and B, and those of the scales, from those of the sums. ``gate`` has the rows
    and columns of its runs."""
    of_sums = [gradients[name] for name in SUMS if name in gradients]
    g = of_sums[0]
    for axis, run in zip((-2, -1), gate, strict=True):
        if run:
            g = torch.stack([x.unflatten(axis, (-1, run)) for x in of_sums], axis - 1).flatten(axis - 2, axis)
    gradients_of_scales = of_scales(scales, g, sums, wanted & {*scales})
    for scale in scales.values():
        g = g * scale
    return g, gradients_of_scales


class _Spread(Spread):
    """Also reduces gradients of D's shape to the shapes of operands. Rows outside of all groups add nothing."""

    def __init__(self, like: torch.Tensor, offsets: torch.Tensor | None, counts: torch.Tensor | None) -> None:
        super().__init__(like, offsets)
        is_grouped = offsets is not None or counts is not None
        self.is_used = rows_in_use(like, offsets, counts) if is_grouped else None
        """Whether each row belongs to a group; None without groups."""

    def back(self, kind: str, g: Any, x: torch.Tensor) -> torch.Tensor:
        """Reduce a gradient of D's shape to the shape of an operand."""
        if self.is_used is not None:
            g = torch.where(self.is_used, g, 0)
        if self.is_of_groups(kind, x):
            summed = g.sum(-1) if kind == "batch" else g
            return summed.new_zeros(x.shape).index_add(0, self.group, summed).to(x.dtype)
        return summed_to(g, self(kind, x).shape).reshape(x.shape).to(x.dtype)

    def of_output(self, x: Assignment, g: torch.Tensor) -> torch.Tensor:
        """Broadcast the gradient of an output to D's shape."""
        if x.is_reduction:
            if self.group is not None and x.kind in ("column", "batch"):
                raise OperandError(
                    f"gemmill::epilogue: `{x}` has no gradient for groups of rows: compute this sum of D with PyTorch"
                )
            for at in AXES.get(x.kind, (-2,)):
                g = g.unsqueeze(at)
        return g.to(self.like.dtype).expand(self.like.shape)
