"""Reads the arguments of a call into a :class:`~gemmill.runtime.operands.call.GemmCall`: options, tensor views and
D."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from math import prod
from typing import Any, NamedTuple, ParamSpec, TypeVar

from gemmill.library.dtypes import default_output
from gemmill.library.epilogues.grammar import SCALES
from gemmill.library.errors import OperandError
from gemmill.library.input.keywords import unexpected
from gemmill.runtime.api.streams import allocate, handle_of
from gemmill.runtime.operands.binding import shape_of_d, wider
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.call_keywords import DEFAULTS, OPERANDS, OTHERS, Options
from gemmill.runtime.operands.epilogue_arguments import NO_ARGUMENTS, is_number, read_arguments
from gemmill.runtime.operands.scaling import scaled_epilogue
from gemmill.runtime.operands.tensors import TABLES, TensorView, dtype_named, element_named, unpacked, view, view_table

_DEFAULTS = tuple(DEFAULTS._asdict().items())
_MORE_TENSORS = tuple(name for name in OPERANDS if name not in ("a", "b", "out"))
KEYWORDS = frozenset((*OPERANDS, *Options._fields, *OTHERS))
"""All keywords of a call, except operands of its epilogue."""


Call = ParamSpec("Call")
Result = TypeVar("Result")


class Declaration(NamedTuple):
    """The name and the keywords of a public function."""

    name: str
    keywords: frozenset[str]
    """Names of all its parameters, except operands of an epilogue."""
    takes_operands: bool
    """Whether any other keyword is an operand of an epilogue."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Declaration:
        """Return the declaration of a function from its signature."""
        parameters = inspect.signature(function).parameters.values()
        named = frozenset(p.name for p in parameters if p.kind is not p.VAR_KEYWORD)
        return cls(function.__name__, named, len(named) < len(parameters))

    def read(self, arguments: Mapping[str, Any]) -> GemmCall:
        """Return the call of the function with these arguments."""
        if not self.takes_operands:
            for name in arguments:
                if name not in self.keywords:
                    raise unexpected(name, [*self.keywords])
        return read_call(arguments, self.keywords)


def declares(
    implement: Callable[[Declaration], Callable[..., Any]],
) -> Callable[[Callable[Call, Result]], Callable[Call, Result]]:
    """Decorate a function that has a signature and a docstring but no body: ``implement`` makes its implementation.

    The implementation receives A, B and similar arguments by position, and all others by keyword, if the caller passes
    them.
    """

    def decorate(declared: Callable[Call, Result]) -> Callable[Call, Result]:
        function: Callable[Call, Result] = functools.wraps(declared)(implement(Declaration.of(declared)))
        function.__signature__ = inspect.signature(declared)  # type: ignore[attr-defined]
        return function

    return decorate


def read_call(arguments: Mapping[str, Any], keywords: Collection[str] = KEYWORDS) -> GemmCall:
    """Read a call from its arguments, by the names of ``matmul`` and its variants; missing ones have their defaults.

    Arguments that are not in ``keywords`` are operands of the epilogue.

    Raises:
        OperandError: an argument cannot be read; the message names it.
    """
    by_keyword = {name: x for name, x in arguments.items() if name in keywords}
    operands = {name: x for name, x in arguments.items() if name not in keywords}
    options = Options._make([by_keyword.get(name, default) for name, default in _DEFAULTS])
    options = options._replace(alpha=alpha_of(options.alpha), beta=beta_of(options.beta))
    text = by_keyword.get("epilogue")
    if operands and text is None:
        what = "for an operand of an epilogue, pass epilogue= too, as in epilogue='d = acc + x[n]'"
        raise unexpected(next(iter(operands)), keywords, what)
    numbers = {name: float(by_keyword[name]) for name in SCALES if is_number(by_keyword.get(name))}
    stream = handle_of(by_keyword["a"], by_keyword.get("stream"))
    tensors = {name: view(by_keyword[name], name, stream, may_be_complex=True) for name in ("a", "b")}
    for name, dtype in (("a", options.a_dtype), ("b", options.b_dtype)):
        if dtype is not None:
            other = (tensors["b"].shape[-2:-1] or tensors["b"].shape) if name == "a" else tensors["a"].shape[-1:]
            element_dtype = dtype_named(dtype, f"{name}_dtype")
            tensors[name] = unpacked(name, tensors[name], element_dtype, other[0] if other else 0)
    for name in _MORE_TENSORS:
        if (tensor := by_keyword.get(name)) is not None and name not in numbers:
            reads = view_table if name in TABLES else partial(view, may_be_complex=name == "c")
            tensors[name] = reads(tensor, name, stream)
    if is_complex := any(x.imaginary for x in tensors.values()):
        _check_complex(tensors, arguments)
    out_dtype, out = options.out_dtype, by_keyword.get("out")
    dtype_of_d = None if out_dtype is None else element_named(out_dtype, "out_dtype")
    if any(by_keyword.get(name) is not None for name in SCALES):
        text, scales = scaled_epilogue(text, tensors, numbers)
        operands |= {name: tensors.pop(name, numbers.get(name)) for name in scales}
        if by_keyword.get("epilogue") is None:
            options = options._replace(alpha=prod(numbers.values(), start=options.alpha))
    epilogue_arguments = NO_ARGUMENTS if text is None else read_arguments(text, operands, stream, keywords)
    if out is None:
        if "addresses" in tensors:
            raise OperandError("out is missing: with addresses, pass one of the output matrices")
        shape = shape_of_d(tensors, epilogue_arguments.epilogue)
        dtype = dtype_of_d or (tensors["a"].element if is_complex else default_output(wider(tensors)))
        out = allocate(by_keyword["a"], shape, dtype, tensors["a"].device, by_keyword.get("stream"))
    tensors["out"] = view(out, "out", stream, may_be_complex=True)
    if is_complex or tensors["out"].imaginary:
        _check_complex(tensors, arguments)
    if dtype_of_d is not None and (held := tensors["out"].element) != dtype_of_d:
        raise OperandError(
            f"out is {held} and out_dtype is {dtype_of_d}; they must be equal: leave out out_dtype, or pass another out"
        )
    return GemmCall(tensors, options, epilogue_arguments, out, stream, bool(by_keyword.get("explain")))


def _check_complex(tensors: Mapping[str, TensorView], given: Mapping[str, Any]) -> None:
    from gemmill.runtime.operands.complex_products import check_complex  # deferred: few calls need it

    check_complex(tensors, given)


def beta_of(beta: Any) -> float | None:
    """Return ``beta`` as a number for :class:`Options`, since the hash of a tensor says nothing about its value."""
    try:  # try costs a warm call nothing
        return None if beta is None else float(beta)
    except (TypeError, ValueError) as error:
        raise _number_error("beta", beta, error) from None


def alpha_of(alpha: Any) -> float:
    """Return ``alpha`` as a number for :class:`Options`."""
    try:
        return float(alpha)
    except (TypeError, ValueError) as error:
        raise _number_error("alpha", alpha, error) from None


def _number_error(name: str, value: Any, error: Exception) -> OperandError:
    return OperandError(f"{name} is {value!r}; it must be a number ({error})")
