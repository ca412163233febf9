"""The table of epilogue functions. Syntax, CUDA code, reference, gradients and Inductor's pass are derived from it.

The ``array`` of a row uses a module of arrays (:class:`Arrays`): NumPy and PyTorch evaluate it in float64 for the
reference; PyTorch and JAX differentiate it. docs/epilogues.md describes how to add a row.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from gemmill.library.dtypes import DTYPES, FP8, INT8, DTypeName

Type = Literal["number", "condition"]


class Arrays:
    """A module of arrays with NumPy's functions, ``erf``, ``sigmoid`` and ``rounded``, as rows use it.

    Entries of ``functions`` replace the implementation of the row with the same name, if the module has that function.
    """

    def __init__(self, module: Any, **functions: Callable[..., Any]) -> None:
        self._module = module
        overrides: dict[str, Callable[..., Any]] = {} if hasattr(module, "erf") else {"erf": _erf, "sigmoid": _sigmoid}
        overrides["rounded"] = functools.partial(rounded, xp=module)
        self._functions = overrides | functions

    def applied(self, row: Function, *x: Any) -> Any:
        """The result of a row's function."""
        override = self._functions.get(row.name) if row.takes == _X else None
        return override(*x) if override else row.array(self, *x)

    def __getattr__(self, name: str) -> Any:
        return self._functions[name] if name in self._functions else getattr(self._module, name)


def rounded(value: Any, dtype: str, xp: Any) -> Any:
    """Float64 rounded to a narrow type, ties to even; saturated to 8 bits."""
    if dtype == "f32":
        return value
    row = DTYPES[dtype]
    if row.is_integer:
        return xp.clip(xp.round(value), row.least, row.largest)
    exponent = xp.frexp(value)[1] - 1
    step = xp.exp2(xp.clip(exponent, row.least_exponent, 128) * 1.0 + math.log2(row.epsilon) + 0.0 * value)
    result = xp.round(value / step) * step
    if row.bits == 8:
        return xp.clip(result, row.least, row.largest)
    return xp.where(abs(result) > row.largest, xp.copysign(0.0 * result + float("inf"), result), result)


def _erf(x: Any) -> Any:
    """The standard library's erf, element by element: NumPy has none."""
    import numpy  # only if the arrays are NumPy's

    return numpy.vectorize(math.erf, otypes=[float])(x)


def _sigmoid(x: Any) -> Any:
    import numpy

    with numpy.errstate(over="ignore"):
        return 1 / (1 + numpy.exp(-x))


Spread = Callable[[Any, list[Any], list[Any], Any], Any]
"""Takes arrays, the values and errors of the arguments, and the result; returns the error that the arguments cause."""


def _sum(_: Any, __: list[Any], errors: list[Any], ___: Any) -> Any:
    return errors[0] + errors[1]


def _product(_: Any, values: list[Any], errors: list[Any], __: Any) -> Any:
    return abs(values[0]) * errors[1] + abs(values[1]) * errors[0] + errors[0] * errors[1]


def _quotient(xp: Any, values: list[Any], errors: list[Any], result: Any) -> Any:
    least = abs(values[1]) - errors[1]
    return (errors[0] + abs(result) * errors[1]) / xp.where(least > 0, least, 0.0 * least)


def _largest(xp: Any, _: list[Any], errors: list[Any], __: Any) -> Any:
    return functools.reduce(xp.maximum, errors)


def _slope(steepest: float) -> Spread:
    """The spread of a function of one argument that is not monotone: the argument's error times the steepest slope."""
    return lambda _, __, errors, ___: steepest * errors[0]


class Short(NamedTuple):
    """A faster form of a function for results that are rounded to a narrow type (``math::NAME<gemmill::bf16>``); for
    e4m3 only where D is divided by scales of its blocks."""

    error: float
    """Relative error; less than a quarter of half an ulp of the type."""
    beside: Callable[[Any], Any] = lambda x: 0.0 * x
    """Additional absolute error as a function of the argument."""


class Exponential(NamedTuple):
    """How a function uses ``exp``, which rounds its argument and flushes results below the normal range to 0."""

    exponent: Callable[[Any], Any]
    """The argument of ``exp`` as a function of the magnitude of the argument."""
    factor: Callable[[Any], Any] = lambda _: 1.0
    """The factor of ``exp`` as a function of the magnitude of the argument."""


class Function(NamedTuple):
    """A function or operator that epilogues can use. Every row must set the columns without a default."""

    name: str
    takes: tuple[Type, ...]
    """Types of the arguments."""
    cpp: str
    """CUDA C++ code with ``{0}``, ``{1}``, ... for the arguments. ``math::`` functions are defined in
    emitters/include/gemmill/epilogue/math.cuh; ``{short}`` selects their faster form. ``{all}``: all arguments of a
    variadic function."""
    array: Callable[..., Any]
    """The function over arrays. It takes :class:`Arrays`, then the arguments."""
    ulps: float
    """Error in ulps of the result: 0.5 if it is correctly rounded, 0 if it is exact, otherwise the maximum error of the
    CUDA Math API (single precision, intrinsics) plus the roundings around it."""
    registers: Literal["few", "many"]
    """How many registers a thread of a WGMMA kernel needs for it (library/families/wgmma/registers.py)."""
    aten: tuple[str, ...]
    """The overloads of PyTorch with the same arguments and result, such as ``maximum.default``."""
    decompositions: tuple[str, ...] = ()
    """Inductor's decompositions of it, as expressions of ``x``, ``y``, ...; constants must agree to 1e-6."""
    gives: Type = "number"
    is_variadic: bool = False
    """Whether the last argument can be repeated."""
    symbol: str = ""
    """The symbol of an operator."""
    precedence: int = 0
    """The precedence of an operator; 0 for functions, which need no parentheses."""
    passes_error: bool = False
    """Whether it does not amplify a small relative error of an argument."""
    keeps_integers: bool = False
    """Whether it gives integers for integers."""
    spread: Spread | None = None
    """How errors of arguments affect the result; None for monotone functions, which are evaluated at both ends."""
    is_exact_by_argument: bool = False
    """Whether ``ulps`` counts ulps of the argument, not of the result."""
    short: Mapping[DTypeName, Short] = MappingProxyType({})
    """Its faster forms, by the type to which the result is rounded."""
    exponential: Exponential | None = None
    has_derivative: bool = True
    """Whether PyTorch's operators differentiate it; the operators of a function that is flat almost everywhere do
    not."""

    def form(self, rounded_to: DTypeName) -> DTypeName | None:
        """The type whose faster form serves results that are rounded to a type; e4m3 can take that of bf16."""
        types: tuple[DTypeName, ...] = (rounded_to, "bf16") if rounded_to == "e4m3" else (rounded_to,)
        return next((x for x in types if x in self.short), None)


_X: tuple[Type, ...] = ("number",)
_XY: tuple[Type, ...] = ("number", "number")
_FLOATS: tuple[DTypeName, ...] = ("f32", "bf16", "f16")


def _operator(symbol: str, precedence: int, name: str, array: Callable[..., Any], **columns: Any) -> Function:
    """The row of a binary operator with the same symbol in CUDA C++, or of an operator of conditions."""
    common: dict[str, Any] = {
        "takes": _XY,
        "gives": "condition",
        "cpp": f"({{0}} {symbol} {{1}})",
        "ulps": 0,
        "registers": "few",
        "keeps_integers": True,
    }
    common["aten"] = (f"{name}.Tensor", f"{name}.Scalar")[: 1 if columns.get("gives") == "number" else 2]
    function = functools.partial(_without_module, array)
    return Function(name=name, symbol=symbol, precedence=precedence, array=function, **common | columns)


def _without_module(array: Callable[..., Any], _: Any, *x: Any) -> Any:
    return array(*x)


def _function(name: str, array: Callable[..., Any], ulps: float, **columns: Any) -> Function:
    """The row of a function of one number with the same name in math.cuh and PyTorch."""
    common = {"takes": _X, "cpp": f"math::{name}({{0}})", "registers": "few", "aten": (f"{name}.default",)}
    return Function(name=name, array=array, ulps=ulps, **common | columns)


def _gelu_tanh(xp: Any, x: Any) -> Any:
    return x * xp.sigmoid(2 * 0.7978845608028654 * (x + 0.044715 * x * x * x))


_PASSING: Mapping[str, Any] = {"passes_error": True, "spread": _largest, "keeps_integers": True}
_SIGN: Mapping[str, Any] = {"passes_error": True, "spread": _slope(1), "keeps_integers": True}
_ARITHMETIC: Mapping[str, Any] = {"gives": "number", "passes_error": True}
_LOGIC: Mapping[str, Any] = {"takes": ("condition", "condition")}

_ROWS = (
    _operator(
        "or", 1, "or", operator.or_, cpp="({0} || {1})", aten=("logical_or.default", "bitwise_or.Tensor"), **_LOGIC
    ),
    _operator(
        "and", 2, "and", operator.and_, cpp="({0} && {1})", aten=("logical_and.default", "bitwise_and.Tensor"), **_LOGIC
    ),
    _operator(
        "not",
        3,
        "not",
        operator.invert,
        takes=("condition",),
        cpp="(!{0})",
        aten=("logical_not.default", "bitwise_not.default"),
    ),
    _operator("<", 4, "lt", operator.lt),
    _operator("<=", 4, "le", operator.le),
    _operator(">", 4, "gt", operator.gt),
    _operator(">=", 4, "ge", operator.ge),
    _operator("==", 4, "eq", operator.eq),
    _operator("!=", 4, "ne", operator.ne),
    _operator("+", 5, "add", operator.add, ulps=0.5, spread=_sum, cpp="math::add({0}, {1})", **_ARITHMETIC),
    _operator("-", 5, "sub", operator.sub, ulps=0.5, spread=_sum, cpp="math::sub({0}, {1})", **_ARITHMETIC),
    _operator("*", 6, "mul", operator.mul, ulps=0.5, spread=_product, cpp="math::mul({0}, {1})", **_ARITHMETIC),
    _operator(
        "/",
        6,
        "div",
        operator.truediv,
        ulps=2,
        spread=_quotient,
        cpp="math::div({0}, {1})",
        **{**_ARITHMETIC, "keeps_integers": False},
    ),
    _function("neg", lambda _, x: -x, 0, cpp="(-{0})", symbol="-", precedence=7, **_SIGN),
    _function(
        "min",
        lambda xp, *x: functools.reduce(xp.minimum, x),
        0,
        takes=_XY,
        is_variadic=True,
        cpp="math::min({all})",
        aten=("minimum.default", "clamp_max.default"),
        **_PASSING,
    ),
    _function(
        "max",
        lambda xp, *x: functools.reduce(xp.maximum, x),
        0,
        takes=_XY,
        is_variadic=True,
        cpp="math::max({all})",
        aten=("maximum.default", "clamp_min.default"),
        **_PASSING,
    ),
    _function("abs", lambda xp, x: xp.abs(x), 0, **_SIGN),
    _function("exp", lambda xp, x: xp.exp(x), 4, exponential=Exponential(lambda x: x)),
    _function("log", lambda xp, x: xp.log(x), 2),
    _function("sqrt", lambda xp, x: xp.sqrt(x), 0.5),
    _function("rsqrt", lambda xp, x: 1 / xp.sqrt(x), 2),
    _function("erf", lambda xp, x: xp.erf(x), 2),
    _function(
        "tanh",
        lambda xp, x: xp.tanh(x),
        2,
        cpp="math::tanh{short}({0})",
        short={"bf16": Short(2.0**-11)},  # PTX ISA, "tanh.approx.f32"
    ),
    _function(
        "sigmoid",
        lambda xp, x: xp.sigmoid(x),
        6,
        cpp="math::sigmoid{short}({0})",
        exponential=Exponential(lambda x: x),
        decompositions=("1 / (exp(-x) + 1)",),
        short={"e4m3": Short(2.0**-22, lambda x: 0.0 * x + 2.0**-12)},
    ),
    _function(
        "relu",
        lambda xp, x: xp.where(x <= 0, 0.0, x),
        0,
        passes_error=True,
        keeps_integers=True,
        decompositions=("max(x, 0)",),
    ),
    _function(
        "gelu",
        lambda xp, x: 0.5 * x * (1 + xp.erf(x * 0.5**0.5)),
        4,
        cpp="math::gelu{short}({0})",
        registers="many",
        aten=(),
        decompositions=("x * 0.5 * (erf(x * 0.7071067811865476) + 1)",),
        spread=_slope(1.13),
        is_exact_by_argument=True,
        short={
            # Fitted to relative errors of 2^-11.62 and 2^-15.73, or 2^-20 of that where gelu is smaller. Below -6 the
            # f16 form is not fitted and returns 0, where the magnitude of gelu is 6e-9.
            "bf16": Short(2.0**-11.5, lambda _: 2.0**-31.5),
            "f16": Short(2.0**-15.6, lambda x: 2.0**-35.6 + 6e-9 * (x < -6)),
        },
    ),
    _function(
        "gelu_tanh",
        _gelu_tanh,
        12,
        registers="many",
        aten=(),
        decompositions=("x * 0.5 * (tanh((x + x * x * x * 0.044715) * 0.7978845608028654) + 1)",),
        spread=_slope(1.13),
        exponential=Exponential(lambda x: 1.6 * x * (1 + 0.045 * x * x), lambda x: x),
    ),
    _function(
        "silu",
        lambda xp, x: x * xp.sigmoid(x),
        7,
        aten=(),
        decompositions=("x / (exp(-x) + 1)", "x * sigmoid(x)", "sigmoid(x) * x"),
        cpp="math::silu{short}({0})",
        spread=_slope(1.1),
        exponential=Exponential(lambda x: x, lambda x: x),
        # From 128 on, both silu and its form are x or 0: tanh.approx.f32 is 1 where tanh rounds to 1.
        short={"e4m3": Short(2.0**-22, lambda x: 2.0**-12 * (abs(x) * (abs(x) < 128)))},
    ),
    _function(
        "clamp",
        lambda xp, x, low, high: xp.clip(x, low, high),
        0,
        takes=("number", "number", "number"),
        cpp="math::clamp({0}, {1}, {2})",
        aten=(),
        **_PASSING,
    ),
    _function(
        "where",
        lambda xp, p, x, y: xp.where(p, x, y),
        0,
        takes=("condition", "number", "number"),
        cpp="math::where({0}, {1}, {2})",
        aten=("where.self",),
        passes_error=True,
        keeps_integers=True,
    ),
    _function("round", lambda xp, x: xp.round(x), 0, has_derivative=False),
    *(
        _function(dtype, lambda xp, x, to=dtype: xp.rounded(x, to), 0, aten=(), has_derivative=dtype in _FLOATS)
        for dtype in (*_FLOATS, *FP8, *INT8)
    ),
)
FUNCTIONS: Mapping[str, Function] = MappingProxyType({row.name: row for row in _ROWS})
"""Functions by name. ``gelu`` is the form with erf. The names of dtypes convert; 8-bit types saturate."""
