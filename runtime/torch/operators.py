"""The operators ``gemmill::*``: one table, from which all is registered when this module is imported.

Arguments of an operator have the names that :func:`gemmill.matmul` and :func:`gemmill.grouped_matmul` give them, so
that one rule serves all: what launches, what tells the outputs, what computes them on the CPU takes these by keyword.
Raw ``torch.library`` registrations, as ``custom_op`` costs three times the host time of a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from gemmill.runtime.torch import outputs, reference_operators
from gemmill.runtime.torch.gradients import autograd, epilogue_rule, product_rules
from gemmill.runtime.torch.launches import AT_AUTOGRAD, AT_KERNEL, Launches, launch_epilogue, named_operands
from gemmill.runtime.torch.option_text import read as read_options
from gemmill.runtime.torch.transforms import autocast, batching

_SCALES = "Tensor? a_scale=None, Tensor? b_scale=None"
_C = "Tensor? c=None, *, float alpha=1.0, float? beta=None"  # tensors by position, as gradients are not for keywords
_NARROW = "str? a_dtype=None, str? b_dtype=None"
_TAIL = "ScalarType? out_dtype=None, str options=''"


class Operator(NamedTuple):
    """A row of the table."""

    arguments: str
    """Of its schema, less dtype of D and options."""
    outputs: Callable[..., list[outputs.Output]]
    """What it returns; the fake is made of it."""
    launch: Callable[[Launches], Callable[..., Any]]
    """What computes it on a GPU."""
    reference: Callable[..., list[torch.Tensor]]
    """Computes it anywhere, by plain PyTorch."""
    gradient: autograd.Rule
    returns: str = "Tensor"

    @property
    def several(self) -> bool:
        """Whether it returns a list."""
        return self.returns == "Tensor[]"

    @property
    def arguments_out(self) -> str:
        """Arguments of its mutating form, less options."""
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
        f"Tensor a, Tensor b, Tensor? offsets, Tensor? counts=None, {_SCALES}, {_C}",
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
"""By name. Beside each there is a mutating form with ``_out`` behind its name: it takes D, as ``out``, behind B, and
returns nothing. ``epilogue`` takes any tensor that ``matmul`` takes by keyword among its ``operands``: ``names`` are
theirs, and then those of ``numbers``; it takes and returns D, then what the expression writes beside it, in its
order."""

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
"""Of all operators: Inductor keeps eager's strides, which say what is K-major."""

LIBRARY = torch.library.Library("gemmill", "DEF")
"""Keeps the operators alive."""


RECORDERS: dict[str, autograd.Recorder] = {}
"""What records gradients of operators by kernels, by name."""


def _positional(arguments: str) -> list[str]:
    """Names of the positional arguments of a schema."""
    return [re.split(r"[ =]", part)[1] for part in arguments.partition(", *")[0].split(", ")]


def _adapted(names: list[str], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes all by keyword, as the dispatcher calls it. What is left at its default is not passed."""

    def call_by_keywords(*positional: Any, options: str = "", **keywords: Any) -> Any:
        keywords.update(zip(names, positional, strict=False))
        if options:
            keywords.update(read_options(options))
        return function(**keywords)

    return call_by_keywords


def _register(name: str, row: Operator) -> None:
    names, names_out = _positional(row.arguments), _positional(row.arguments_out)

    def fake(**arguments: Any) -> Any:
        made = [x.empty(arguments["a"]) for x in row.outputs(**arguments)]
        return made if row.several else made[0]

    def checked(**arguments: Any) -> None:
        arguments.pop("out")
        row.outputs(**arguments)

    LIBRARY.define(f"{name}({row.arguments}, {_TAIL}) -> {row.returns}", tags=TAGS)
    LIBRARY.define(f"{name}_out({row.arguments_out}, str options='') -> ()", tags=TAGS)
    torch.library.register_fake(f"gemmill::{name}", _adapted(names, fake), lib=LIBRARY)
    torch.library.register_fake(f"gemmill::{name}_out", _adapted(names_out, checked), lib=LIBRARY)
    autograd.register(LIBRARY, name, "Autograd", row.gradient)
    batching.register(LIBRARY, name)
    if name in autocast.NAMES:
        autocast.register(LIBRARY, name)
    autograd.register_mutating(LIBRARY, f"{name}_out", "Autograd")


def register_kernels(library: torch.library.Library, device: str) -> None:
    """Have the operators launch kernels on the tensors of a device, ``CUDA``: at once where gradients are recorded, if
    nothing is to be, and in a mutating form without what it returns."""
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
    """Have the operators run on CPU tensors too, by plain PyTorch with float32 sums: for tests, and to try on a machine
    without GPU what is to run on another. Once a process; further calls do nothing."""
    if torch._C._dispatch_has_kernel_for_dispatch_key("gemmill::mm", "CPU"):
        return
    for name, row in OPERATORS.items():
        functional, mutating = _on_cpu(row)
        LIBRARY.impl(name, _adapted(_positional(row.arguments), functional), "CPU")
        LIBRARY.impl(f"{name}_out", _adapted(_positional(row.arguments_out), mutating), "CPU")


def _on_cpu(row: Operator) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Both forms of an operator by its reference."""

    def functional(**arguments: Any) -> Any:
        made = row.reference(**arguments)
        return made if row.several else made[0]

    def mutating(out: Any, **arguments: Any) -> None:
        outs = out if row.several else [out]
        for x, made in zip(outs, row.reference(**arguments, out_dtype=outs[0].dtype), strict=True):
            x.copy_(made)

    return functional, mutating


for _name, _row in OPERATORS.items():
    _register(_name, _row)
register_kernels(LIBRARY, "CUDA")
