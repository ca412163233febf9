"""The operators ``gemmill::*``: one table, from which they are registered when this module is imported.

Arguments of an operator have the names of the arguments of :func:`gemmill.matmul` and :func:`gemmill.grouped_matmul`.
The functions that launch kernels, compute output shapes and compute on the CPU take these arguments by keyword. The
module uses raw ``torch.library`` registrations, because ``custom_op`` triples the host time of a call.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from gemmill.runtime.operands.tensors import not_on_gpu
from gemmill.runtime.torch import experts, outputs, reference_operators
from gemmill.runtime.torch.gradients import autograd, epilogue_rule, product_rules
from gemmill.runtime.torch.launches import AS_ON_GPU, AT_AUTOGRAD, AT_KERNEL, Launches, launch_epilogue, named_operands
from gemmill.runtime.torch.option_text import read as read_options
from gemmill.runtime.torch.transforms import autocast, batching

_SCALES = "Tensor? a_scale=None, Tensor? b_scale=None"
_FACTORS = "float alpha=1.0, float? beta=None"
_C = f"Tensor? c=None, *, {_FACTORS}"  # tensors are positional: keyword tensors have no gradients
_NARROW = "str? a_dtype=None, str? b_dtype=None"
_TAIL = "ScalarType? out_dtype=None, str options=''"


class Operator(NamedTuple):
    """A row of the table."""

    arguments: str
    """Arguments of its schema, without ``out_dtype`` and ``options``."""
    outputs: Callable[..., list[outputs.Output]]
    """Shapes and dtypes of what it returns, also for the fake kernel."""
    launch: Callable[[Launches], Callable[..., Any]]
    """Makes the function that computes it on a GPU."""
    reference: Callable[..., list[torch.Tensor]]
    """Computes it on any device, with PyTorch."""
    gradient: autograd.Rule
    returns: str = "Tensor"

    @property
    def several(self) -> bool:
        """Whether it returns a list."""
        return self.returns == "Tensor[]"

    @property
    def arguments_out(self) -> str:
        """Arguments of its mutating form, without ``options``."""
        out = "Tensor(a!)[] out" if self.several else "Tensor(a!) out"
        return self.arguments.replace("Tensor b", f"Tensor b, {out}", 1)


OPERATORS: dict[str, Operator] = {
    "mm": Operator(
        "Tensor a, Tensor b, *, float alpha=1.0",
        outputs.of_two,
        attrgetter("matmul"),
        reference_operators.matmul,
        product_rules.PRODUCT,
    ),
    "addmm": Operator(
        "Tensor c, Tensor a, Tensor b, *, float alpha=1.0, float beta=1.0",
        outputs.of_two,
        attrgetter("matmul"),
        reference_operators.matmul,
        product_rules.SUM,
    ),
    "bmm": Operator(
        "Tensor a, Tensor b, *, float alpha=1.0",
        outputs.of_batch,
        attrgetter("matmul"),
        reference_operators.matmul,
        product_rules.PRODUCT,
    ),
    "baddbmm": Operator(
        "Tensor c, Tensor a, Tensor b, *, float alpha=1.0, float beta=1.0",
        outputs.of_batch,
        attrgetter("matmul"),
        reference_operators.matmul,
        product_rules.SUM,
    ),
    "scaled_mm": Operator(
        f"Tensor a, Tensor b, {_SCALES}, {_C}",
        outputs.of_batch,
        attrgetter("matmul"),
        reference_operators.matmul,
        product_rules.SCALED,
    ),
    "mixed_mm": Operator(
        f"Tensor a, Tensor b, {_SCALES}, Tensor? a_zero=None, Tensor? b_zero=None, {_C}, {_NARROW}",
        outputs.of_batch,
        attrgetter("matmul"),
        reference_operators.matmul,
        product_rules.SCALED,
    ),
    "grouped_mm": Operator(
        f"Tensor a, Tensor b, Tensor? offsets, Tensor? counts=None, {_SCALES}, Tensor? c=None, Tensor? rows=None, "
        f"Tensor? b_zero=None, *, {_FACTORS}, str? b_dtype=None",
        outputs.of_groups,
        attrgetter("grouped_matmul"),
        reference_operators.grouped_matmul,
        product_rules.GROUPED,
    ),
    "epilogue": Operator(
        f"str expression, Tensor a, Tensor b, Tensor[] operands, str[] names, *, float[] numbers=[], {_NARROW}",
        named_operands(outputs.of_epilogue),
        lambda launches: named_operands(partial(launch_epilogue, launches)),
        named_operands(reference_operators.epilogue),
        epilogue_rule.RULE,
        returns="Tensor[]",
    ),
}
"""By name. Each has a mutating form, with the suffix ``_out``, which takes D as ``out`` after B and returns nothing.

``epilogue`` takes in ``operands`` any tensor that ``matmul`` takes by keyword. ``names`` are the names of ``operands``,
then those of ``numbers``. It returns D, then the further outputs in the order of the expression; its mutating form
takes them in ``out`` in the same order.
"""

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
"""Tags of all operators. Inductor keeps the strides of eager mode, because they decide whether operands are K-major."""

LIBRARY = torch.library.Library("gemmill", "DEF")
"""Keeps the operators alive."""


RECORDERS: dict[str, autograd.Recorder] = {}
"""By operator, what records the gradients of calls on CUDA tensors."""


def _positional(arguments: str) -> list[str]:
    """Names of the positional arguments of a schema."""
    return [re.split(r"[ =]", part)[1] for part in arguments.partition(", *")[0].split(", ")]


def _adapted(names: list[str], function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of keywords so that the dispatcher can call it. Arguments left at their default are not
    passed."""

    def call_by_keywords(*positional: Any, options: str = "", **keywords: Any) -> Any:
        keywords.update(zip(names, positional, strict=False))
        if options:
            keywords.update(read_options(options))
        return function(**keywords)

    return call_by_keywords


def _lower_if_compiling() -> None:
    """Register the operators' lowerings if Inductor is loaded, because it may compile the graph that is traced. Without
    them, its code would call the operators through the dispatcher, and assume that their outputs are not aligned."""
    if "torch._inductor" in sys.modules:
        importlib.import_module("gemmill.runtime.torch.inductor.lowering")


def _register(name: str, row: Operator) -> None:
    names, names_out = _positional(row.arguments), _positional(row.arguments_out)

    def fake(**arguments: Any) -> Any:
        _lower_if_compiling()
        empty = [x.empty(arguments["a"]) for x in row.outputs(**arguments)]
        return empty if row.several else empty[0]

    def checked(**arguments: Any) -> None:
        _lower_if_compiling()
        arguments.pop("out")
        row.outputs(**arguments)

    def refuse(**arguments: Any) -> None:
        raise not_on_gpu("a", arguments["a"].device)

    LIBRARY.define(f"{name}({row.arguments}, {_TAIL}) -> {row.returns}", tags=TAGS)
    LIBRARY.define(f"{name}_out({row.arguments_out}, str options='') -> ()", tags=TAGS)
    for form, order in ((name, names), (f"{name}_out", names_out)):  # for devices without functions of their own
        LIBRARY.impl(form, _adapted(order, refuse), "CompositeExplicitAutograd")
    torch.library.register_fake(f"gemmill::{name}", _adapted(names, fake), lib=LIBRARY)
    torch.library.register_fake(f"gemmill::{name}_out", _adapted(names_out, checked), lib=LIBRARY)
    autograd.register(LIBRARY, name, "Autograd", row.gradient)
    batching.register(LIBRARY, name)
    if name in autocast.NAMES:
        autocast.register(LIBRARY, name)
    autograd.register_mutating(LIBRARY, f"{name}_out", "Autograd")


def register_kernels(library: torch.library.Library, device: str) -> None:
    """Register the functions that launch kernels, for the tensors of a device (``CUDA``).

    The Autograd kernel launches at once if no gradient needs recording. Mutating forms return nothing.
    """
    for name, row in OPERATORS.items():
        names, names_out = _positional(row.arguments), _positional(row.arguments_out)
        early, late = row.launch(AT_AUTOGRAD), row.launch(AT_KERNEL)
        library.impl(name, _adapted(names, late), device, allow_override=True)
        library.impl(f"{name}_out", _without_result(_adapted(names_out, late)), device, allow_override=True)
        RECORDERS[name] = autograd.register(library, name, f"Autograd{device}", row.gradient, _adapted(names, early))
        autograd.register_mutating(library, f"{name}_out", f"Autograd{device}", _adapted(names_out, early))


def _without_result(function: Callable[..., Any]) -> Callable[..., None]:
    def call_by_keywords(*positional: Any, **keywords: Any) -> None:
        function(*positional, **keywords)

    return call_by_keywords


def run_on_cpu() -> None:
    """Let the operators ``torch.ops.gemmill.*`` also run on CPU tensors, with PyTorch and float32 sums.

    Use it for tests, or to try a program on a machine without a GPU. It is slow. It applies to the whole process;
    further calls do nothing. Eager calls of ``gemmill.matmul`` still need CUDA tensors.
    """
    if torch._C._dispatch_has_kernel_for_dispatch_key("gemmill::mm", "CPU"):
        return
    experts.run_on_cpu()
    for name, row in OPERATORS.items():
        functional, mutating = _on_cpu(row)
        LIBRARY.impl(name, _adapted(_positional(row.arguments), functional), "CPU")
        LIBRARY.impl(f"{name}_out", _adapted(_positional(row.arguments_out), mutating), "CPU")


def _on_cpu(row: Operator) -> tuple[Callable[..., Any], Callable[..., None]]:
    """The two forms of an operator, computed by its reference. They refuse what the launch on a GPU refuses, but for
    f64, in which gradients are checked (``torch.autograd.gradcheck``)."""
    bind = row.launch(AS_ON_GPU)

    def check(out: Any, **arguments: Any) -> None:
        if arguments["a"].dtype != torch.float64:
            bind(**arguments, out=out)

    def functional(**arguments: Any) -> Any:
        outs = [x.empty(arguments["a"]) for x in row.outputs(**arguments)]
        check(outs if row.several else outs[0], **arguments)
        results = row.reference(**arguments)
        return results if row.several else results[0]

    def mutating(out: Any, **arguments: Any) -> None:
        outs = out if row.several else [out]
        check(out, **arguments)
        for x, result in zip(outs, row.reference(**arguments, out_dtype=outs[0].dtype), strict=True):
            x.copy_(result)

    return functional, mutating


for _name, _row in OPERATORS.items():
    _register(_name, _row)
register_kernels(LIBRARY, "CUDA")
