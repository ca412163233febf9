"""Calls that PyTorch's dispatcher is to see go to its operators (runtime/torch/), which no launcher does.

Dynamo traces another function in place of the public one, which bears it as an attribute, as PyTorch's own wrappers do;
that costs an eager call nothing. Whatever else would come before a kernel, were the call one of PyTorch's, is asked
after where no call was recognised: :func:`is_dispatched`. Of what it asks, PyTorch's guards see all but three
things, which :class:`State` adds to them.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from gemmill.library.errors import OperandError
from gemmill.runtime.registry_inputs import kernel_named


def _matmul(*arguments: Any, **keywords: Any) -> Any:
    from gemmill.runtime.torch.calls import matmul  # a statement: Dynamo traces no import_module

    return matmul(*arguments, **keywords)


def _grouped_matmul(*arguments: Any, **keywords: Any) -> Any:
    from gemmill.runtime.torch.calls import grouped_matmul

    return grouped_matmul(*arguments, **keywords)


_OPERATORS: Mapping[str, Callable[..., Any]] = MappingProxyType({"matmul": _matmul, "grouped_matmul": _grouped_matmul})
"""What makes of a call of a public function one of an operator. PyTorch is imported when it does."""


def trace_instead(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function, in whose place Dynamo traces the operators of a public one."""
    function._torchdynamo_inline = _OPERATORS[name]  # type: ignore[attr-defined]
    return function


def dispatched(name: str, *arguments: Any, **keywords: Any) -> Any:
    """The call of a public function as one of an operator; OperandError for tensors on what has no kernels."""
    if keywords.get("kernel") is not None:
        keywords["kernel"] = kernel_named(keywords["kernel"])
    try:
        return _OPERATORS[name](*arguments, **keywords)
    except NotImplementedError as error:
        if "Could not run" not in str(error):
            raise
        raise OperandError(
            f"a is on {arguments[0].device}; gemmill has kernels for CUDA tensors ({str(error).splitlines()[0]})"
        ) from error


def _matmul_recorder(a: Any, b: Any, c: Any, options: dict[str, Any]) -> Callable[..., Any]:
    from gemmill.runtime.torch.calls import matmul_recorder

    if options.get("kernel") is not None:
        options = options | {"kernel": kernel_named(options["kernel"])}
    return matmul_recorder(a, b, c, options)


class Dispatch(NamedTuple):
    """What becomes of a call that PyTorch is to see before a kernel runs."""

    call: Callable[..., Any]
    """Takes all of its arguments."""
    recorder: Callable[..., Callable[..., Any]] | None = None
    """Where nothing but gradients is to be recorded: makes of A, B, C and options what takes A, B and C."""


def dispatch_of(name: str) -> Dispatch:
    """What becomes of the calls of a public function."""
    return Dispatch(functools.partial(dispatched, name), _matmul_recorder if name == "matmul" else None)


def is_dispatched(tensors: Iterable[Any], writes: bool = False) -> bool:
    """Whether PyTorch has something to do with these arguments before a kernel runs, or instead of it: a mode that sees
    what is dispatched, a transform of functorch, a subclass, a gradient to be recorded, or, unless the call ``writes``
    to what it is given, autocast."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    mine = [x for x in tensors if isinstance(x, torch.Tensor)]
    if not mine:
        return False
    keys = _keys(mine)
    watched, autocast, autograd = _watched()
    if (keys & watched).raw_repr() or torch.overrides.has_torch_function(mine):
        return True
    if not writes and (keys & autocast).raw_repr():
        return True
    if not (keys & autograd).raw_repr():
        return False
    return needs_gradients(mine) or has_tangent(mine)


def _keys(tensors: Iterable[Any]) -> Any:
    """Keys of PyTorch's dispatcher that a call with these tensors has here and now."""
    torch_c = sys.modules["torch"]._C
    keys = functools.reduce(lambda x, y: x | y, map(torch_c._dispatch_keys, tensors))
    return (keys | torch_c._dispatch_tls_local_include_set()) - torch_c._dispatch_tls_local_exclude_set()


def needs_gradients(tensors: Iterable[Any]) -> bool:
    """Whether gradients are recorded of what is made of these tensors of PyTorch."""
    return any(x.requires_grad for x in tensors) and bool(sys.modules["torch"].is_grad_enabled())


def refuse_dispatched(name: str, arguments: Mapping[str, Any]) -> None:
    """OperandError where a function that has no operator is given what :func:`is_dispatched` tells."""
    if is_dispatched(arguments.values(), writes=True):
        raise OperandError(
            f"gemmill.{name} launches kernels and is no operator of PyTorch: no gradient, transform, mode or subclass "
            "sees it. Call gemmill.matmul, or pass plain tensors under torch.no_grad()"
        )


def has_tangent(tensors: Iterable[Any]) -> bool:
    """Whether any of these tensors of PyTorch has a derivative in forward mode."""
    levels = sys.modules["torch"].autograd.forward_ad
    return levels._current_level >= 0 and any(levels.unpack_dual(x).tangent is not None for x in tensors)


@functools.cache
def _watched() -> tuple[Any, Any, Any]:
    """Keys of the dispatcher that come before a kernel; those of autocast; and those of gradients."""
    keys = sys.modules["torch"]._C
    before = (
        "Python",
        "Functionalize",
        "Negative",  # of a view that negates what lies in memory
        "FuncTorchDynamicLayerFrontMode",
        "FuncTorchDynamicLayerBackMode",
        "FuncTorchBatched",
        "FuncTorchGradWrapper",
        "FuncTorchVmapMode",
    )

    def joined(names: Iterable[str]) -> Any:
        sets = [keys.DispatchKeySet(getattr(keys.DispatchKey, name)) for name in names]
        return functools.reduce(lambda x, y: x | y, sets)

    return (
        joined(before),
        joined(("AutocastCPU", "AutocastCUDA")),
        joined(("AutogradCPU", "AutogradCUDA", "AutogradMeta", "AutogradOther")),
    )


@dataclass(slots=True, eq=False)
class State:
    """What PyTorch's guards do not see: modes of fake tensors, of ``make_fx`` and of export, which guards are made to
    ignore; whether gradients are recorded, of tensors that may have any; and levels of forward-mode derivatives."""

    modes: Callable[[], int]
    records: Callable[[], bool]
    levels: Any

    def is_usual(self) -> bool:
        """Whether nothing of this is to be heeded."""
        return not (self.modes() or self.records() or self.levels._current_level >= 0)

    def only_records(self) -> bool:
        """Whether nothing but gradients is."""
        return self.records() and not (self.modes() or self.levels._current_level >= 0)

    @classmethod
    def of(cls, tensors: Collection[Any]) -> State:
        """For calls with tensors like these, in a state like this of the dispatcher, of which guards tell: below
        autograd nothing is recorded."""
        torch = importlib.import_module("torch")
        may = any(x.requires_grad for x in tensors) and (_keys(tensors) & _watched()[2]).raw_repr()
        records = torch.is_grad_enabled if may else bool
        return cls(torch._C._len_torch_dispatch_stack, records, torch.autograd.forward_ad)
