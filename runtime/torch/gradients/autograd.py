"""Records gradients of the operators, by a kernel of each operator for the dispatcher's Autograd keys.

``torch.library.register_autograd`` does not support ``torch.func`` and drops forward-mode tangents. This module has
one autograd function for all operators, and each operator has a rule (product_rules.py, epilogue_rule.py). Rules call
PyTorch and the operators, so transforms of a call also transform its gradient.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd.function import _SingleLevelFunction

from gemmill.library.errors import OperandError
from gemmill.runtime.torch_dispatch import has_tangent, needs_gradients

Launch = Callable[..., Any]
Arguments = dict[str, Any]
"""Arguments of an operator by name, with defaults. Operands of an epilogue are also there under their own names."""


class ShapeAndType(NamedTuple):
    """Saved for backward in place of a tensor whose values no gradient reads."""

    shape: torch.Size
    dtype: torch.dtype


class Rule(NamedTuple):
    """How to compute the gradient of an operator."""

    backward: Callable[[Arguments, Sequence[Any], frozenset[str]], Mapping[str, Any]]
    """Takes the arguments, the gradients of the outputs (None for outputs without one) and the names of the tensors
    that need a gradient. Returns the gradients by name."""
    reads: Mapping[str, tuple[str, ...]] | None = None
    """For each tensor, the names of the tensors that its gradient reads. Only the :class:`ShapeAndType` of other
    tensors is saved. None: every gradient reads all tensors."""
    is_linear_in: tuple[str, ...] = ()
    """Names of the tensors, except C, in each of which the operator is linear. Forward mode supports only operators
    that have such names."""


class Recorder:
    """The facts about an operator that all calls share, and how to record a call."""

    def __init__(self, operator: Any, rule: Rule, launch: Launch | None) -> None:
        schema = operator._schema.arguments
        self.operator, self.rule, self.launch = operator, rule, launch
        self.arguments = [x.name for x in schema if not x.kwarg_only]
        self.defaults = {x.name: x.default_value if x.has_default_value() else None for x in schema}
        self._needed_gradients: dict[Any, tuple[frozenset[str], list[bool]]] = {}

    def needed_gradients(
        self, names: tuple[str, ...], are_needed: tuple[bool, ...]
    ) -> tuple[frozenset[str], list[bool]]:
        """The names of a call's tensors that need a gradient, and for each tensor whether these gradients read it."""
        needs = self._needed_gradients.get((names, are_needed))
        if needs is None:
            wanted = frozenset(itertools.compress(names, are_needed))
            reads = self.rule.reads
            kept = {*names} if reads is None else {other for name in wanted for other in reads[name]}
            needs = self._needed_gradients[names, are_needed] = wanted, [name in kept for name in names]
        return needs

    def recording(self, tensors: Sequence[Any], keywords: dict[str, Any]) -> Callable[..., Any]:
        """A function that computes calls with tensors like these, by position, and records their gradients."""
        keys = functools.reduce(lambda x, y: x | y, map(torch._C._dispatch_keys, tensors))
        return functools.partial(
            _Recorded.apply, _Call(self, keys & torch._C._after_autograd_keyset, tensors, keywords)
        )


class _Call:
    """A call of an operator without its tensors."""

    __slots__ = ("keys", "keywords", "names", "of", "positional")

    def __init__(self, of: Recorder, keys: Any, positional: Sequence[Any], keywords: dict[str, Any]) -> None:
        self.of = of
        self.keys = keys
        """The dispatch keys that come after Autograd."""
        self.positional = tuple(map(_hollow, positional))
        """The positional arguments, with placeholders for tensors."""
        self.keywords = keywords
        self.names = tuple(_names(of.arguments, positional))
        """Names of the tensors, in order."""

    def filled(self, tensors: Sequence[Any]) -> list[Any]:
        """The positional arguments, with these tensors in place of the placeholders."""
        left = iter(tensors)
        return [
            [next(left) for _ in x] if isinstance(x, _List) else next(left) if x is _TENSOR else x
            for x in self.positional
        ]

    def by_name(self, tensors: Sequence[Any]) -> Arguments:
        """All arguments by name, with these tensors."""
        positional = zip(self.of.arguments, self.filled(tensors), strict=False)
        named = zip(self.names, tensors, strict=True)
        return {**self.of.defaults, **dict(positional), **self.keywords, **dict(named)}


class _List(list[None]):
    """Placeholder for a list of tensors, of the same length."""


_TENSOR = object()
"""Placeholder for a tensor."""


class _Recorded(_SingleLevelFunction):  # type: ignore[misc]
    """A call whose gradient is recorded. It handles one level of ``torch.func``, as PyTorch's own kernels do: the
    dispatcher calls it once for each level."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Any) -> Any:
        of, filled, outputs = call.of, call.filled(tensors), NotImplemented
        if of.launch is not None and not torch._C._are_functorch_transforms_active():
            outputs = of.launch(*filled, **call.keywords)
        if outputs is NotImplemented:
            with torch._C._AutoDispatchBelowAutograd(), _recorded_further_out():
                outputs = of.operator.redispatch(call.keys, *filled, **call.keywords)
        ctx.call = call
        ctx.set_materialize_grads(False)
        _, kept = of.needed_gradients(call.names, ctx.needs_input_grad[1:])
        ctx.save_for_backward(*itertools.compress(tensors, kept))
        ctx.others = [
            None if is_kept else ShapeAndType(x.shape, x.dtype) for x, is_kept in zip(tensors, kept, strict=True)
        ]
        return tuple(outputs) if isinstance(outputs, list | tuple) else outputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        call: _Call = ctx.call
        if all(g is None for g in grads):
            return (None,) * (1 + len(call.names))
        saved = iter(ctx.saved_tensors)
        tensors = [next(saved) if other is None else other for other in ctx.others]
        wanted, _ = call.of.needed_gradients(call.names, ctx.needs_input_grad[1:])
        gradients = call.of.rule.backward(call.by_name(tensors), grads, wanted)
        return (None, *[gradients.get(name) if name in wanted else None for name in call.names])


@contextmanager
def _recorded_further_out() -> Iterator[None]:
    """Under nested transforms of ``torch.func``, let the outer one record what the inner one computes. An autograd
    function of PyTorch turns that off."""
    if not torch._C._are_functorch_transforms_active():
        yield
        return
    with torch.enable_grad(), torch.autograd.forward_ad._set_fwd_grad_enabled(True):
        yield


def register(library: torch.library.Library, name: str, key: str, rule: Rule, launch: Launch | None = None) -> Recorder:
    """Register the kernel that records an operator's gradient, under a key of the dispatcher. ``launch`` computes calls
    that need no recording at once, and returns NotImplemented for all others."""
    operator, modes = getattr(torch.ops.gemmill, name).default, torch._C._len_torch_dispatch_stack
    lists = _places_of_lists(operator)
    recorder = Recorder(operator, rule, launch)
    arguments = recorder.arguments
    returns_list = "[]" in str(operator._schema.returns[0].type) or "List" in str(operator._schema.returns[0].type)

    def kernel(keys: Any, *positional: Any, **keywords: Any) -> Any:
        if lists:
            positional = _with_lists(positional, lists)
        if launch is not None and not modes() and (outputs := launch(*positional, **keywords)) is not NotImplemented:
            return outputs
        if "torch.distributed.tensor" in sys.modules:
            shard()
        below = keys & torch._C._after_autograd_keyset
        tensors = [*_tensors(positional)]
        if has_tangent(tensors):
            return _with_tangents(operator, rule, dict(zip(arguments, positional, strict=False)), keywords)
        if not needs_gradients(tensors):
            with torch._C._AutoDispatchBelowAutograd():
                return operator.redispatch(below, *positional, **keywords)
        call = _Call(recorder, below, positional, keywords)
        if torch._C._are_functorch_transforms_active():
            with enable_single_level_autograd_function():
                outputs = _Recorded.apply(call, *tensors)
        else:
            outputs = _Recorded.apply(call, *tensors)
        return [*outputs] if returns_list else outputs

    library.impl(name, kernel, key, with_keyset=True)
    return recorder


@functools.cache
def shard() -> None:
    """Register the operators for DTensors, if the program has imported DTensor."""
    importlib.import_module("gemmill.runtime.torch.transforms.sharding")


def register_mutating(library: torch.library.Library, name: str, key: str, launch: Launch | None = None) -> None:
    """Register the Autograd kernel of a mutating operator, which writes to the caller's tensors. It raises OperandError
    if a gradient would be recorded, and increases the version of the tensors that it writes. ``launch`` is as for
    :func:`register`."""
    operator, modes = getattr(torch.ops.gemmill, name).default, torch._C._len_torch_dispatch_stack
    out = [x.name for x in operator._schema.arguments].index("out")
    lists = _places_of_lists(operator)

    def kernel(keys: Any, *positional: Any, **keywords: Any) -> None:
        if lists:
            positional = _with_lists(positional, lists)
        if launch is not None and not modes() and launch(*positional, **keywords) is not NotImplemented:
            torch.autograd.graph.increment_version(positional[out])
            return
        tensors = [*_tensors(positional)]
        if has_tangent(tensors) or needs_gradients(tensors):
            raise OperandError(OF_CALLERS)
        with torch._C._AutoDispatchBelowAutograd():
            operator.redispatch(keys & torch._C._after_autograd_keyset, *positional, **keywords)

    library.impl(name, kernel, key, with_keyset=True)


def multiply(a: torch.Tensor, b: torch.Tensor, **keywords: Any) -> torch.Tensor:
    """Compute ``a @ b`` by ``mm`` for two matrices, else by ``bmm``."""
    operators = torch.ops.gemmill
    product: torch.Tensor = (operators.mm if a.dim() == b.dim() == 2 else operators.bmm)(a, b, **keywords)
    return product


OF_CALLERS = (
    "an operand requires a gradient, but a call that writes to the caller's tensors has no gradient: leave out those "
    "tensors (out=), or call under torch.no_grad()"
)
"""The error for gradients of calls with ``out`` or other tensors to write to."""


def _with_tangents(operator: Any, rule: Rule, arguments: Arguments, keywords: dict[str, Any]) -> Any:
    """The output with its tangent in forward mode: the sum, over operands, of the product with the operand's tangent in
    its place."""
    levels = torch.autograd.forward_ad
    if not rule.is_linear_in:
        raise OperandError(
            f"{operator.name()} does not support forward-mode derivatives (torch.func.jvp); only mm, addmm, bmm and "
            "baddbmm do: use reverse mode, for example torch.func.vjp"
        )
    parts = {name: levels.unpack_dual(x) for name, x in arguments.items()}
    plain = {name: x.primal for name, x in parts.items()}
    d = operator(*plain.values(), **keywords)
    of_products = {name: x for name, x in keywords.items() if name != "beta"} | {"out_dtype": d.dtype}
    tangents = []
    for name in rule.is_linear_in:
        if parts[name].tangent is not None:
            varied = plain | {name: parts[name].tangent}
            tangents.append(multiply(varied["a"], varied["b"], **of_products))
    if "c" in parts and parts["c"].tangent is not None:
        tangents.append((parts["c"].tangent * keywords.get("beta", 1.0)).to(d.dtype).expand(d.shape))
    return levels.make_dual(d, sum(tangents[1:], start=tangents[0]))


def _places_of_lists(operator: Any) -> list[int]:
    """The positions of an operator's positional arguments that are lists."""
    arguments = enumerate(operator._schema.arguments)
    return [place for place, x in arguments if not x.kwarg_only and str(x.type).startswith("List")]


def _with_lists(positional: tuple[Any, ...], lists: Sequence[int]) -> tuple[Any, ...]:
    """The arguments, with empty lists in place of None, which AOTInductor packages pass for them against the schema."""
    if all(positional[place] is not None for place in lists):
        return positional
    return tuple([[] if x is None and place in lists else x for place, x in enumerate(positional)])


def _tensors(positional: Sequence[Any]) -> Iterator[Any]:
    for x in positional:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from (y for y in x if isinstance(y, torch.Tensor))


def _names(arguments: Sequence[str], positional: Sequence[Any]) -> Iterator[str]:
    """Names of the tensors that :func:`_tensors` yields. Those in the list ``operands`` are named by ``names``."""
    by_name = dict(zip(arguments, positional, strict=False))
    for name, x in by_name.items():
        if isinstance(x, torch.Tensor):
            yield name
        elif isinstance(x, list | tuple) and name == "operands":
            yield from by_name["names"][: len(x)]


def _hollow(argument: Any) -> Any:
    """A positional argument, with placeholders for tensors."""
    if isinstance(argument, torch.Tensor):
        return _TENSOR
    if isinstance(argument, list | tuple) and any(isinstance(x, torch.Tensor) for x in argument):
        return _List([None] * len(argument))
    return argument
