"""How gradients of the operators are recorded: a kernel of each for the dispatcher's Autograd keys.

``torch.library.register_autograd`` would do, but for ``torch.func``, which it does not take, and forward-mode tangents,
which it drops. What is here is one function of PyTorch's autograd for all operators, and for each a rule
(product_rules.py, epilogue_rule.py), which is plain PyTorch and operators again, so that whatever
transforms a call transforms its gradient.
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
"""Arguments of an operator by name, defaults included; operands of an epilogue under their own names too."""


class ShapeAndType(NamedTuple):
    """What is kept of a tensor that no gradient reads."""

    shape: torch.Size
    dtype: torch.dtype


class Rule(NamedTuple):
    """The gradient of an operator."""

    backward: Callable[[Arguments, Sequence[Any], frozenset[str]], Mapping[str, Any]]
    """Of arguments, gradients of the outputs (None where there is none) and names of the tensors whose gradients are
    wanted; returns these by name."""
    reads: Mapping[str, tuple[str, ...]] | None = None
    """Names of the tensors that each one's gradient reads; of others the :class:`ShapeAndType` is kept. None: all."""
    is_linear_in: tuple[str, ...] = ()
    """Names of tensors in each of which it is linear with the others at rest, C aside; where forward mode has it."""


class Recorder:
    """What is known of an operator once and for all."""

    def __init__(self, operator: Any, rule: Rule, launch: Launch | None) -> None:
        schema = operator._schema.arguments
        self.operator, self.rule, self.launch = operator, rule, launch
        self.arguments = [x.name for x in schema if not x.kwarg_only]
        self.defaults = {x.name: x.default_value if x.has_default_value() else None for x in schema}
        self._needed_gradients: dict[Any, tuple[frozenset[str], list[bool]]] = {}

    def needed_gradients(
        self, names: tuple[str, ...], are_needed: tuple[bool, ...]
    ) -> tuple[frozenset[str], list[bool]]:
        """Of the tensors of a call: those whose gradients are wanted, and of each whether these read it."""
        needs = self._needed_gradients.get((names, are_needed))
        if needs is None:
            mine = frozenset(itertools.compress(names, are_needed))
            reads = self.rule.reads
            kept = {*names} if reads is None else {other for name in mine for other in reads[name]}
            needs = self._needed_gradients[names, are_needed] = mine, [name in kept for name in names]
        return needs

    def recording(self, tensors: Sequence[Any], keywords: dict[str, Any]) -> Callable[..., Any]:
        """Of tensors like these, by position: the result, whose gradient is recorded."""
        keys = functools.reduce(lambda x, y: x | y, map(torch._C._dispatch_keys, tensors))
        return functools.partial(
            _Recorded.apply, _Call(self, keys & torch._C._after_autograd_keyset, tensors, keywords)
        )


class _Call:
    """A call of an operator, less its tensors."""

    __slots__ = ("keys", "keywords", "names", "of", "positional")

    def __init__(self, of: Recorder, keys: Any, positional: Sequence[Any], keywords: dict[str, Any]) -> None:
        self.of = of
        self.keys = keys
        """Of the dispatcher, of what comes after Autograd."""
        self.positional = tuple(map(_hollow, positional))
        """With stand-ins for tensors."""
        self.keywords = keywords
        self.names = tuple(_names(of.arguments, positional))
        """Of tensors, in order."""

    def filled(self, tensors: Sequence[Any]) -> list[Any]:
        """Its positional arguments with these tensors."""
        left = iter(tensors)
        return [
            [next(left) for _ in x] if isinstance(x, _List) else next(left) if x is _TENSOR else x
            for x in self.positional
        ]

    def by_name(self, tensors: Sequence[Any]) -> Arguments:
        """All its arguments by name, with these tensors."""
        positional = zip(self.of.arguments, self.filled(tensors), strict=False)
        named = zip(self.names, tensors, strict=True)
        return {**self.of.defaults, **dict(positional), **self.keywords, **dict(named)}


class _List(list[None]):
    """Stands for a list of tensors, as long as it."""


_TENSOR = object()
"""Stands for a tensor."""


class _Recorded(_SingleLevelFunction):  # type: ignore[misc]
    """A call whose gradient is recorded. At one level of ``torch.func``, as PyTorch's own kernels are: each level's
    dispatcher comes here anew."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Any) -> Any:
        of, filled, made = call.of, call.filled(tensors), NotImplemented
        if of.launch is not None and not torch._C._are_functorch_transforms_active():
            made = of.launch(*filled, **call.keywords)
        if made is NotImplemented:
            with torch._C._AutoDispatchBelowAutograd(), _recorded_further_out():
                made = of.operator.redispatch(call.keys, *filled, **call.keywords)
        ctx.call = call
        ctx.set_materialize_grads(False)
        _, kept = of.needed_gradients(call.names, ctx.needs_input_grad[1:])
        ctx.save_for_backward(*itertools.compress(tensors, kept))
        ctx.others = [
            None if is_kept else ShapeAndType(x.shape, x.dtype) for x, is_kept in zip(tensors, kept, strict=True)
        ]
        return tuple(made) if isinstance(made, list | tuple) else made

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
    """Where a transform of ``torch.func`` lies within another, the outer one records too what the inner one does: a
    function of PyTorch's autograd turns that off."""
    if not torch._C._are_functorch_transforms_active():
        yield
        return
    with torch.enable_grad(), torch.autograd.forward_ad._set_fwd_grad_enabled(True):
        yield


def register(library: torch.library.Library, name: str, key: str, rule: Rule, launch: Launch | None = None) -> Recorder:
    """Register what records the gradient of an operator, under a key of the dispatcher. ``launch`` computes a call at
    once, or gives NotImplemented."""
    operator, modes = getattr(torch.ops.gemmill, name).default, torch._C._len_torch_dispatch_stack
    lists = _places_of_lists(operator)
    recorder = Recorder(operator, rule, launch)
    arguments = recorder.arguments
    returns_list = "[]" in str(operator._schema.returns[0].type) or "List" in str(operator._schema.returns[0].type)

    def kernel(keys: Any, *positional: Any, **keywords: Any) -> Any:
        if lists:
            positional = _with_lists(positional, lists)
        if launch is not None and not modes() and (made := launch(*positional, **keywords)) is not NotImplemented:
            return made
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
                made = _Recorded.apply(call, *tensors)
        else:
            made = _Recorded.apply(call, *tensors)
        return [*made] if returns_list else made

    library.impl(name, kernel, key, with_keyset=True)
    return recorder


@functools.cache
def shard() -> None:
    """Have DTensors multiplied where they are, once a program has imported them."""
    importlib.import_module("gemmill.runtime.torch.transforms.sharding")


def register_mutating(library: torch.library.Library, name: str, key: str, launch: Launch | None = None) -> None:
    """Register what refuses to record gradients of an operator that writes to tensors of its caller, and tells
    autograd that it wrote to them. ``launch`` as for :func:`register`."""
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
    """``a @ b`` by the operator of their ranks."""
    operators = torch.ops.gemmill
    product: torch.Tensor = (operators.mm if a.dim() == b.dim() == 2 else operators.bmm)(a, b, **keywords)
    return product


OF_CALLERS = (
    "an operand requires a gradient, and results that are written to tensors of the caller have none: leave out the "
    "tensors, or call under torch.no_grad()"
)
"""What is said of gradients of a call with ``out``."""


def _with_tangents(operator: Any, rule: Rule, arguments: Arguments, keywords: dict[str, Any]) -> Any:
    """The result and its tangent in forward mode: the sum of what each operand's tangent makes of the others."""
    levels = torch.autograd.forward_ad
    if not rule.is_linear_in:
        raise OperandError(
            f"{operator.name()} has no derivative in forward mode (torch.func.jvp); mm, addmm, bmm and baddbmm have: "
            "use reverse mode, as torch.func.vjp does"
        )
    parts = {name: levels.unpack_dual(x) for name, x in arguments.items()}
    plain = {name: x.primal for name, x in parts.items()}
    made = operator(*plain.values(), **keywords)
    of_products = {name: x for name, x in keywords.items() if name != "beta"} | {"out_dtype": made.dtype}
    tangents = []
    for name in rule.is_linear_in:
        if parts[name].tangent is not None:
            varied = plain | {name: parts[name].tangent}
            tangents.append(multiply(varied["a"], varied["b"], **of_products))
    if "c" in parts and parts["c"].tangent is not None:
        tangents.append((parts["c"].tangent * keywords.get("beta", 1.0)).to(made.dtype).expand(made.shape))
    return levels.make_dual(made, sum(tangents[1:], start=tangents[0]))


def _places_of_lists(operator: Any) -> list[int]:
    """Where among its positional arguments an operator takes lists."""
    arguments = enumerate(operator._schema.arguments)
    return [place for place, x in arguments if not x.kwarg_only and str(x.type).startswith("List")]


def _with_lists(positional: tuple[Any, ...], lists: Sequence[int]) -> tuple[Any, ...]:
    """Arguments with empty lists for what packages of AOTInductor give in their place: None, which no schema takes."""
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
    """Names of the tensors of :func:`_tensors`: of those in the list ``operands``, those in the list ``names``."""
    by_name = dict(zip(arguments, positional, strict=False))
    for name, x in by_name.items():
        if isinstance(x, torch.Tensor):
            yield name
        elif isinstance(x, list | tuple) and name == "operands":
            yield from by_name["names"][: len(x)]


def _hollow(argument: Any) -> Any:
    """A positional argument, with what stands for tensors in their place."""
    if isinstance(argument, torch.Tensor):
        return _TENSOR
    if isinstance(argument, list | tuple) and any(isinstance(x, torch.Tensor) for x in argument):
        return _List([None] * len(argument))
    return argument
