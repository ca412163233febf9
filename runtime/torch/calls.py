"""Translates calls of ``gemmill.matmul`` and ``gemmill.grouped_matmul`` into calls of operators.

Dynamo traces this module, so it is plain Python on tensors and constants. Functions that parse text are marked as
constant results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gemmill.library.errors import OperandError
from gemmill.runtime.operands.binding import require_groups
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.operands.tensors import TensorView
from gemmill.runtime.torch import operators, outputs
from gemmill.runtime.torch.gradients.autograd import OF_CALLERS
from gemmill.runtime.torch.option_text import NAMES, written

_SCALES = ("a_scale", "b_scale", "a_zero", "b_zero")
_d_dtype = torch.compiler.assume_constant_result(outputs.d_dtype)
_torch_dtype = torch.compiler.assume_constant_result(outputs.torch_dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _epilogue_facts(expression: str) -> tuple[tuple[str, ...], int, int]:
    """Names of an expression's further outputs, and how many rows and columns of sums give one of D."""
    epilogue = read_epilogue(expression)
    return tuple(x.name for x in epilogue.outputs), 1 + (epilogue.gate_rows > 0), 1 + epilogue.gated


def matmul(a: torch.Tensor, b: torch.Tensor, **keywords: Any) -> torch.Tensor:
    """Compute :func:`gemmill.matmul` by operators. They do not support ``stream``, ``registry``, and vectors with an
    epilogue, scales or narrow operands: OperandError."""
    if isinstance(b, TensorView):
        raise OperandError(
            "b is a prepared operand, which calls that PyTorch records, transforms or compiles do not take: pass its "
            "tensor, or call under torch.no_grad()"
        )
    arguments = {name: x for name, x in keywords.items() if x is not None}
    if a.dim() > 1 and b.dim() > 1:
        return _matrices(a, b, arguments)
    if any(name in arguments for name in (*_SCALES, "a_dtype", "b_dtype", "epilogue")):
        raise OperandError(
            "a or b is a vector, which is not supported with scales, narrow operands or an epilogue in calls that "
            "PyTorch traces or differentiates: pass matrices, a[None] or b[:, None]"
        )
    return _vectors(a, b, arguments)


def grouped_matmul(
    a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor | None = None, **keywords: Any
) -> torch.Tensor:
    """Compute :func:`gemmill.grouped_matmul` by operators; raises OperandError as :func:`matmul` does."""
    arguments = {name: x for name, x in keywords.items() if x is not None}
    counts = arguments.pop("counts", None)
    require_groups(offsets, counts, "gemmill.matmul")
    if "epilogue" in arguments:
        return _epilogue(a, b, arguments | ({"counts": counts} if offsets is None else {"offsets": offsets}))
    values, out, options = _parted(arguments)
    tensors = [offsets, counts, *(values.pop(name, None) for name in ("a_scale", "b_scale", "c", "rows", "b_zero"))]
    return _call("grouped_mm", (a, b), tensors, out, {**values, **options})


def _matrices(a: torch.Tensor, b: torch.Tensor, arguments: dict[str, Any]) -> torch.Tensor:
    if "epilogue" in arguments:
        return _epilogue(a, b, arguments)
    values, out, options = _parted(arguments)
    c = values.pop("c", None)
    if "a_dtype" in values or "b_dtype" in values or a.dtype.itemsize != b.dtype.itemsize:
        tensors = [*(values.pop(name, None) for name in _SCALES), c]
        return _call("mixed_mm", (a, b), tensors, out, {**values, **options})
    if any(name in values for name in _SCALES):
        tensors = [values.pop("a_scale", None), values.pop("b_scale", None), c]
        return _call("scaled_mm", (a, b), tensors, out, {**values, **options})
    name, first = _plain(a, b, c)
    if c is None:
        values.pop("beta", None)  # without C it has no effect
    return _call(name, first, [], out, {**values, **options})


def _plain(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None) -> tuple[str, tuple[torch.Tensor, ...]]:
    """The name of the operator for a plain product of matrices, and its tensors."""
    are_two = a.dim() == b.dim() == 2
    if c is None:
        return "mm" if are_two else "bmm", (a, b)
    return "addmm" if are_two else "baddbmm", (c, a, b)


def matmul_recorder(a: Any, b: Any, c: Any, options: dict[str, Any]) -> Callable[[Any, Any, Any], Any]:
    """A function that computes calls like this one and records their gradients, for calls that need nothing else of
    PyTorch. Plain products skip the dispatcher."""
    if min(a.dim(), b.dim()) < 2 or a.dtype.itemsize != b.dtype.itemsize:
        return lambda a, b, c: matmul(a, b, c=c, **options)
    values, _, text = _parted({name: x for name, x in options.items() if x is not None})
    name, tensors = _plain(a, b, c)
    if c is None:
        values.pop("beta", None)
    record = operators.RECORDERS[name].recording(tensors, {**values, **text})
    return (lambda a, b, c: record(a, b)) if c is None else (lambda a, b, c: record(c, a, b))


def _vectors(a: torch.Tensor, b: torch.Tensor, arguments: dict[str, Any]) -> torch.Tensor:
    """Compute a product in which A or B is a vector, by views as matrices. D does not have the vector's extent."""
    for axis, is_vector in ((-2, a.dim() == 1), (-1, b.dim() == 1)):
        for name in ("c", "out"):
            if is_vector and name in arguments and (name == "out" or arguments[name].dim() > (axis == -2)):
                arguments[name] = arguments[name].unsqueeze(axis)
    d = _matrices(a[None] if a.dim() == 1 else a, b[:, None] if b.dim() == 1 else b, arguments)
    if b.dim() == 1:
        d = d.squeeze(-1)
    return d.squeeze(-1 if b.dim() == 1 else -2) if a.dim() == 1 else d


def _epilogue(a: torch.Tensor, b: torch.Tensor, arguments: dict[str, Any]) -> torch.Tensor:
    expression = arguments.pop("epilogue")
    narrow: dict[str, str] = {name: str(arguments.pop(name)) for name in ("a_dtype", "b_dtype") if name in arguments}
    further, of_row, of_column = _epilogue_facts(expression)
    written_to = [arguments.pop(name) for name in further if name in arguments]
    out_dtype, out = arguments.pop("out_dtype", None), arguments.pop("out", None)
    options = _options(arguments)
    tensors: dict[str, torch.Tensor] = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    numbers = {name: float(x) for name, x in arguments.items() if name not in tensors}
    names = [*tensors, *numbers]
    lists = list(tensors.values()), names
    keywords: dict[str, Any] = {"numbers": list(numbers.values()), **narrow, **options}
    if len(written_to) != len(further):
        raise OperandError(
            f"the epilogue `{expression}` writes {', '.join(further)}; {len(written_to)} of these are passed: pass a "
            "tensor for each by its name"
        )
    if out is None and not further:
        wanted = None if out_dtype is None else _torch_dtype(out_dtype)
        outputs_of_epilogue: list[torch.Tensor] = torch.ops.gemmill.epilogue(
            expression, a, b, *lists, out_dtype=wanted, **keywords
        )
        return outputs_of_epilogue[0]
    if out is None:
        grouped = "offsets" in tensors or "counts" in tensors
        of_groups = (tensors.get("offsets"), tensors.get("rows"))
        shape = outputs.grouped_shape(a, b, *of_groups) if grouped else outputs.d_shape(a, b)
        wanted = _torch_dtype(out_dtype) if out_dtype else _d_dtype(a.dtype, b.dtype, *_narrow_dtypes(narrow))
        out = a.new_empty((*shape[:-2], shape[-2] // of_row, shape[-1] // of_column), dtype=wanted)
    _refuse_gradients([a, b, *tensors.values()])
    torch.ops.gemmill.epilogue_out(expression, a, b, [out, *written_to], *lists, **keywords)
    return out


def _narrow_dtypes(narrow: Mapping[str, str]) -> tuple[str | None, str | None]:
    return narrow.get("a_dtype"), narrow.get("b_dtype")


def _call(
    name: str, first: tuple[torch.Tensor, ...], tensors: list[Any], out: torch.Tensor | None, keywords: dict[str, Any]
) -> torch.Tensor:
    """Call an operator, or its mutating form if ``out`` is given. The last tensor of ``first`` is B."""
    if out is None:
        d: torch.Tensor = getattr(torch.ops.gemmill, name)(*first, *tensors, **keywords)
        return d
    wanted = keywords.pop("out_dtype", None)
    if wanted is not None and wanted != out.dtype:
        raise OperandError(f"out is {out.dtype} and out_dtype is {wanted}; they must be equal: leave out out_dtype")
    _refuse_gradients([*first, *tensors])
    getattr(torch.ops.gemmill, f"{name}_out")(*first, out, *tensors, **keywords)
    return out


def _parted(arguments: dict[str, Any]) -> tuple[dict[str, Any], torch.Tensor | None, dict[str, str]]:
    """Split the arguments of a call into arguments of operators, with number scales multiplied into ``alpha``; ``out``;
    and options."""
    options, out = _options(arguments), arguments.pop("out", None)
    for name in ("a_scale", "b_scale"):
        if name in arguments and not isinstance(arguments[name], torch.Tensor):
            arguments["alpha"] = arguments.get("alpha", 1.0) * arguments.pop(name)
    for name in ("a_dtype", "b_dtype"):
        if name in arguments:
            arguments[name] = str(arguments[name])
    if "out_dtype" in arguments:
        arguments["out_dtype"] = _torch_dtype(arguments["out_dtype"])
    return arguments, out, options


def _options(arguments: dict[str, Any]) -> dict[str, str]:
    """Remove the options from the arguments, and return them as operators take them."""
    for name in ("stream", "registry"):
        if name in arguments:
            raise OperandError(
                f"{name} is not supported in calls that PyTorch traces, casts or records gradients of: leave "
                f"{name} out, or make the call outside of torch.compile, autocast and gradients"
            )
    values = {name: arguments.pop(name) for name in NAMES if name in arguments}
    if "accumulator" in values:
        values["accumulator"] = str(values["accumulator"])
    if "kernel" in values and not isinstance(values["kernel"], str):
        raise OperandError("kernel is a config; a call that PyTorch traces needs its name: pass kernel=config.name")
    return {"options": written(values)} if values else {}


def _refuse_gradients(tensors: list[Any]) -> None:
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        raise OperandError(OF_CALLERS)
