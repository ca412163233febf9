"""Lowers the operators in Inductor to calls of ``gemmill.matmul`` with ``out=`` in memory that Inductor plans.

Importing this module registers the lowerings. Without a lowering, Inductor calls the operator through PyTorch's
dispatcher, and the operator allocates its outputs; docs/performance/summary.md has the cost of both. Ahead-of-time code
is C++ and always calls the operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.lowering import fallback_handler, register_lowering
from torch._inductor.virtualized import V

from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.torch.inductor.choices import TIMED, timed
from gemmill.runtime.torch.operators import OPERATORS
from gemmill.runtime.torch.option_text import read as read_options

_MODULES = {"cuda": "gemmill", "cpu": "gemmill.runtime.torch.calls"}
"""The module whose functions generated code calls, by the device of the tensors. On the CPU it runs the operators."""


class Call(ir.ExternKernelOut):  # type: ignore[misc]
    """A call in generated code: ``module.function(a, b, c=buf0, alpha=2.0, out=buf1)``.

    Args:
        layout: layout of D.
        function: ``matmul`` or ``grouped_matmul``.
        operands: buffers by argument name, A and B first.
        values: constants by argument name.
    """

    def __init__(self, layout: Any, function: str, operands: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        module = _MODULES[layout.device.type]
        super().__init__(layout, [*operands.values()], python_kernel_name=f"{module}.{function}")
        self._imported = f"import {module}"
        self._names = [*operands]
        self._values = [f"{name}={value!r}" for name, value in values.items()]

    def codegen(self, wrapper: Any) -> None:
        """Write the call, and an import of its module once."""
        wrapper.add_import_once(self._imported)
        super().codegen(wrapper)

    def codegen_args(self) -> list[str]:
        """All arguments of the call except ``out``."""
        references = [x.codegen_reference() for x in self.inputs]
        named = zip(self._names[2:], references[2:], strict=True)
        return [*references[:2], *(f"{name}={x}" for name, x in named), *self._values]


def _lower(name: str, *positional: Any, **keywords: Any) -> Any:
    """Lower a call of an operator: D is a buffer that a :class:`Call` fills, in a list if the operator returns one.

    Calls in C++ code, with further outputs, or with numbers that are known only at run time call the operator instead.
    """
    node = V.graph.current_node
    if node.meta.get(TIMED) and not V.graph.cpp_wrapper:
        return timed(*positional)
    overload = getattr(torch.ops.gemmill, name).default
    arguments = dict(zip((x.name for x in overload._schema.arguments), positional, strict=False)) | keywords
    arguments.pop("out_dtype", None)  # the layout of D has it
    values: dict[str, Any] = {**read_options(arguments.pop("options", ""))}
    expression = arguments.pop("expression", None)
    if expression is not None:
        values["epilogue"] = expression
        arguments |= zip(
            arguments.pop("names"), [*arguments.pop("operands"), *arguments.pop("numbers", ())], strict=True
        )
    arguments = {x: value for x, value in arguments.items() if value is not None}
    function = "grouped_matmul" if arguments.keys() & {"offsets", "counts"} else "matmul"
    operands = {x: arguments.pop(x) for x in ("a", "b")}
    operands |= {x: value for x, value in arguments.items() if isinstance(value, ir.IRNode)}
    values |= {x: value for x, value in arguments.items() if x not in operands}
    has_further_outputs = expression is not None and bool(read_epilogue(expression).outputs)
    several, fake = OPERATORS[name].several, node.meta["val"]
    layout = ir.FallbackKernel.tensor_to_layout(fake[0] if several else fake)
    is_written = all(map(_is_literal, values.values())) and layout.device.type in _MODULES
    if V.graph.cpp_wrapper or has_further_outputs or not is_written:
        return fallback_handler(overload, add_to_fallback_set=False)(*positional, **keywords)
    realized = {x: ir.ExternKernel.realize_input(value) for x, value in operands.items()}
    d = ir.TensorBox.create(Call(layout, function, realized, values))
    return [d] if several else d


def _is_literal(value: Any) -> bool:
    """Whether ``repr`` is valid code. It is not for infinite numbers, and for those known only at run time."""
    return isinstance(value, str) or (isinstance(value, bool | int | float) and isfinite(value))


for _name in OPERATORS:
    register_lowering(getattr(torch.ops.gemmill, _name).default, type_promotion_kind=None)(partial(_lower, _name))
