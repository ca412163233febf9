"""Sends calls that PyTorch's dispatcher must see to gemmill's operators (runtime/torch/) instead of a launcher.

Dynamo traces a different function in place of the public one, which holds it as an attribute, as PyTorch's own wrappers
do. That adds no cost to eager calls. For a call that is not recognised, :func:`is_dispatched` checks everything else
for which PyTorch would intervene before a kernel. PyTorch's guards cover all of these conditions except three, which
:class:`State` adds.
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
    from gemmill.runtime.torch.calls import matmul  # an import statement, because Dynamo does not trace import_module

    return matmul(*arguments, **keywords)


def _grouped_matmul(*arguments: Any, **keywords: Any) -> Any:
    from gemmill.runtime.torch.calls import grouped_matmul

    return grouped_matmul(*arguments, **keywords)


_OPERATORS: Mapping[str, Callable[..., Any]] = MappingProxyType({"matmul": _matmul, "grouped_matmul": _grouped_matmul})
"""For each public function, the function that calls an operator instead. Calling it imports PyTorch."""


def trace_instead(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Make Dynamo trace the operators of a public function in place of ``function``. Returns ``function``."""
    function._torchdynamo_inline = _OPERATORS[name]  # type: ignore[attr-defined]
    return function


def dispatched(name: str, *arguments: Any, **keywords: Any) -> Any:
    """Run a call of a public function through an operator. Raises OperandError for tensors on unsupported devices."""
    if keywords.get("kernel") is not None:
        keywords["kernel"] = kernel_named(keywords["kernel"])
    return _OPERATORS[name](*arguments, **keywords)


def _matmul_recorder(a: Any, b: Any, c: Any, options: dict[str, Any]) -> Callable[..., Any]:
    from gemmill.runtime.torch.calls import matmul_recorder

    if options.get("kernel") is not None:
        options = options | {"kernel": kernel_named(options["kernel"])}
    return matmul_recorder(a, b, c, options)


class Dispatch(NamedTuple):
    """How to run a call that PyTorch must see before a kernel runs."""

    call: Callable[..., Any]
    """Runs the call, with all of its arguments."""
    recorder: Callable[..., Callable[..., Any]] | None = None
    """For calls that only need gradients recorded: takes A, B, C and options, and returns a function of A, B and C."""


def dispatch_of(name: str) -> Dispatch:
    """The :class:`Dispatch` of a public function."""
    return Dispatch(functools.partial(dispatched, name), _matmul_recorder if name == "matmul" else None)


def is_dispatched(tensors: Iterable[Any], writes: bool = False) -> bool:
    """Whether PyTorch must see a call with these arguments before, or instead of, a kernel.

    That is so for a dispatch mode, a functorch transform, a tensor subclass, a gradient to record, and autocast, unless
    the call ``writes`` to its arguments.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    operands = [x for x in tensors if isinstance(x, torch.Tensor)]
    if not operands:
        return False
    keys = _keys(operands)
    watched, autocast, autograd = _watched()
    if (keys & watched).raw_repr() or torch.overrides.has_torch_function(operands):
        return True
    if not writes and (keys & autocast).raw_repr():
        return True
    if not (keys & autograd).raw_repr():
        return False
    return needs_gradients(operands) or has_tangent(operands)


def _keys(tensors: Iterable[Any]) -> Any:
    """The keys of PyTorch's dispatcher that a call with these tensors has in the current thread."""
    torch_c = sys.modules["torch"]._C
    keys = functools.reduce(lambda x, y: x | y, map(torch_c._dispatch_keys, tensors))
    return (keys | torch_c._dispatch_tls_local_include_set()) - torch_c._dispatch_tls_local_exclude_set()


def needs_gradients(tensors: Iterable[Any]) -> bool:
    """Whether PyTorch records gradients of results of these tensors."""
    return any(x.requires_grad for x in tensors) and bool(sys.modules["torch"].is_grad_enabled())


def refuse_dispatched(name: str, arguments: Mapping[str, Any], instead: str = "call gemmill.matmul, or ") -> None:
    """Raise OperandError if PyTorch must see these arguments, for a function that has no operator. The message gives
    another way, if there is one ``instead``."""
    if is_dispatched(arguments.values(), writes=True):
        raise OperandError(
            f"gemmill.{name} only launches kernels, so it does not support gradients, transforms, modes and tensor "
            f"subclasses of PyTorch: {instead}pass plain tensors under torch.no_grad()"
        )


def has_tangent(tensors: Iterable[Any]) -> bool:
    """Whether any of these tensors has a forward-mode tangent."""
    levels = sys.modules["torch"].autograd.forward_ad
    return levels._current_level >= 0 and any(levels.unpack_dual(x).tangent is not None for x in tensors)


@functools.cache
def _watched() -> tuple[Any, Any, Any]:
    """Three sets of dispatch keys: those that come before a kernel, those of autocast, and those of autograd."""
    keys = sys.modules["torch"]._C
    earlier_keys = (
        "Python",
        "Functionalize",
        "Negative",  # a view that negates the values in memory
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
        joined(earlier_keys),
        joined(("AutocastCPU", "AutocastCUDA")),
        joined(("AutogradCPU", "AutogradCUDA", "AutogradMeta", "AutogradOther")),
    )


@dataclass(slots=True, eq=False)
class State:
    """The conditions that PyTorch's guards do not check: dispatch modes (fake tensors, ``make_fx``, export), which
    guards ignore on purpose; grad mode, if an operand requires gradients; and levels of forward-mode derivatives."""

    modes: Callable[[], int]
    records: Callable[[], bool]
    levels: Any

    def is_usual(self) -> bool:
        """Whether none of these conditions holds, so that a kernel can be launched."""
        return not (self.modes() or self.records() or self.levels._current_level >= 0)

    def only_records(self) -> bool:
        """Whether the only condition that holds is that gradients are recorded."""
        return self.records() and not (self.modes() or self.levels._current_level >= 0)

    @classmethod
    def of(cls, tensors: Collection[Any]) -> State:
        """The state for calls with tensors like these. Guards check that the dispatcher's state is the same; below
        autograd nothing is recorded."""
        torch = importlib.import_module("torch")
        may_record = any(x.requires_grad for x in tensors) and (_keys(tensors) & _watched()[2]).raw_repr()
        records = torch.is_grad_enabled if may_record else bool
        return cls(torch._C._len_torch_dispatch_stack, records, torch.autograd.forward_ad)
