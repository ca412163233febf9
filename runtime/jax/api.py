"""``gemmill.jax.matmul`` and ``gemmill.jax.grouped_matmul``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import numpy as jnp

from gemmill.library.errors import KeywordError, OperandError
from gemmill.runtime.api.read import Declaration, alpha_of, beta_of, declares
from gemmill.runtime.jax.description import Description, Setting
from gemmill.runtime.jax.traced_call import run
from gemmill.runtime.operands.binding import require_groups
from gemmill.runtime.operands.call_keywords import DEFAULTS, OPERANDS
from gemmill.runtime.operands.epilogue_arguments import is_number, read_epilogue
from gemmill.runtime.operands.tensors import dtype_named

_TENSORS = tuple(name for name in OPERANDS if name not in ("a", "b", "addresses"))
_DTYPES = ("out_dtype", "accumulator", "a_dtype", "b_dtype")
_SETTINGS: Mapping[str, Any] = {**DEFAULTS._asdict(), "explain": False, "epilogue": None}
"""Keywords that are no arrays, with their defaults."""


def _tracing(declaration: Declaration) -> Callable[..., Any]:
    """What has JAX trace a call."""

    def traced(a: Any, b: Any, **arguments: Any) -> Any:
        keywords = {name: x for name, x in arguments.items() if name in declaration.keywords and x is not None}
        operands = {name: x for name, x in arguments.items() if name not in declaration.keywords}
        return _trace(a, b, keywords, operands)

    return traced


def _tracing_groups(declaration: Declaration) -> Callable[..., Any]:
    trace = _tracing(declaration)

    def traced(a: Any, b: Any, offsets: Any = None, **arguments: Any) -> Any:
        require_groups(offsets, arguments.get("counts"), "gemmill.jax.matmul")
        return trace(a, b, offsets=offsets, **arguments)

    return traced


# Keywords of one subject stand on one line.
# fmt: off


@declares(_tracing)
def matmul(
    a: jax.Array, b: jax.Array, *, out: jax.Array | None = None, c: jax.Array | None = None,
    alpha: float = 1.0, beta: float | None = None, out_dtype: object = None, accumulator: str | None = None,
    tf32: bool = False, fast_accumulation: bool = True,
    a_scale: jax.Array | float | None = None, b_scale: jax.Array | float | None = None,
    a_zero: jax.Array | None = None, b_zero: jax.Array | None = None, a_dtype: object = None, b_dtype: object = None,
    a_major: str | None = None, b_major: str | None = None, kernel: str | None = None, slices: int | None = None,
    sm_count: int | None = None,
    deterministic: bool = False, batch_invariant: bool = False, quick: bool = False,
    objective: str = "sustained", explain: bool = False, epilogue: str | None = None, **operands: jax.Array | float,
) -> Any:
    """``alpha * a @ b + beta * c`` of JAX arrays, as :func:`gemmill.matmul` has it; returns D.

    ``a`` is (..., M, K) or (K,), ``b`` (..., K, N) or (K,); batch extents broadcast, without a copy. All keywords are
    those of :func:`gemmill.matmul`, but for:

    ``a_major`` and ``b_major`` say which extent of A and B is contiguous: ``"k"``, or ``"m"`` of A and ``"n"`` of B.
    Arrays of JAX lie row by row, so by default these are ``"k"`` and ``"n"``, and nothing is copied; a narrower B
    than A is taken with ``"k"``, as kernels want it. With ``b_major="k"`` XLA is asked for a B that lies column by
    column: under ``jax.jit``, of ``w.T`` that is ``w`` itself, without a copy, and of what is computed there what XLA
    computes in that order; of any other array it is a transposed copy.

    ``out`` is an array of D's shape and dtype, whose memory D is written to: one that the program does not use
    afterwards, donated or made under ``jit``; otherwise XLA copies it first. ``c`` may be ``out``.

    ``epilogue`` may write outputs beside D; then a tuple of D and these, in the expression's order, is returned. They
    have the type that the expression names, f32 without one.

    The kernel is selected and compiled when a call is traced, for the GPU at hand, or on a machine without one for
    that which :class:`gemmill.Registry` assumes; ``explain`` prints then. ``kernel`` is a name. Factors and other
    numbers are constants of the trace: what changes is an array of one element in an expression.

    Differentiable in all that is floating-point, more than once, and batched by ``jax.vmap``. Raises what
    :func:`gemmill.matmul` does, where it is traced; a handler that fails raises JAX's own error at run time.
    """


@declares(_tracing_groups)
def grouped_matmul(
    a: jax.Array, b: jax.Array, offsets: jax.Array | None = None, *,
    out: jax.Array | None = None, c: jax.Array | None = None,
    alpha: float = 1.0, beta: float | None = None, out_dtype: object = None, accumulator: str | None = None,
    tf32: bool = False, fast_accumulation: bool = True,
    a_scale: jax.Array | float | None = None, b_scale: jax.Array | float | None = None,
    counts: jax.Array | None = None, expected_rows: int | None = None,
    a_major: str | None = None, b_major: str | None = None, kernel: str | None = None,
    deterministic: bool = False, batch_invariant: bool = False, explain: bool = False,
    epilogue: str | None = None, **operands: jax.Array | float,
) -> Any:
    """``alpha * a @ b + beta * c`` group by group, as :func:`gemmill.grouped_matmul` has it; returns D.

    ``offsets`` (int32 or int64) are ends of groups: of rows of ``a`` (M, K), with ``b`` (groups, K, N); or along K of
    ``a`` (M, K) and ``b`` (K, N), with D (groups, M, N), where A is taken with ``a_major="m"``. ``counts`` are rows in
    slots: ``a`` (groups, capacity, K). Rows of D that no group holds have any values; gradients there are 0.

    All else is as in :func:`matmul`; ``jax.vmap`` makes one call after the other.
    """


# fmt: on


def _trace(a: Any, b: Any, keywords: dict[str, Any], operands: Mapping[str, Any]) -> Any:
    arrays: dict[str, Any] = {"a": _array("a", a), "b": _array("b", b)}
    of_vectors = _without_vectors(arrays, keywords)
    settings, factor = _settings(keywords), 1.0
    for name in _TENSORS:
        value = keywords.get(name)
        if value is None or (name == "out" and value is keywords.get("c")):
            continue
        if is_number(value):  # a scale: a factor of the product
            factor *= value
        else:
            arrays[name] = _array(name, value)
    if factor != 1.0:
        settings["alpha"] = factor * alpha_of(keywords.get("alpha", 1.0))
    numbers = {name: float(x) for name, x in operands.items() if is_number(x)}
    arrays |= {name: _array(name, x) for name, x in operands.items() if name not in numbers}
    description = Description(
        operands=tuple(arrays),
        turned=_turned(arrays, keywords),
        settings=tuple(sorted(settings.items())),
        numbers=tuple(numbers.items()),
        into_c="out" in keywords and keywords["out"] is keywords.get("c"),
    )
    made = run(_checked(description, operands), *arrays.values())
    d = made[0].squeeze(of_vectors)
    return d if len(made) == 1 else (d, *made[1:])


def _checked(description: Description, operands: Mapping[str, Any]) -> Description:
    """The description, unless its expression writes to arrays that a caller passes."""
    for x in description.epilogue.outputs:
        if x.name in operands:
            raise KeywordError(f"{x.name} is passed, but the epilogue writes it: it is returned beside D, leave it out")
    return description


def _array(name: str, value: Any) -> Any:
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise OperandError(
            f"{name} is a {type(value).__qualname__}; gemmill.jax takes arrays of JAX: {error}"
        ) from None


def _settings(keywords: Mapping[str, Any]) -> dict[str, Setting]:
    """Keywords that are no arrays and differ from the defaults, as a description holds them."""
    settings: dict[str, Setting] = {}
    for name, default in _SETTINGS.items():
        value = keywords.get(name, default)
        if isinstance(value, jax.core.Tracer):
            raise OperandError(
                f"{name} is traced, and must be a constant: what changes is an operand of an expression, as in "
                f"epilogue='d = x * acc', x={name}"
            )
        if name == "alpha":
            value = alpha_of(value)
        elif name == "beta":
            value = beta_of(value)
        elif name in _DTYPES and value is not None:
            value = dtype_named(_dtype_text(value), name)
        elif name == "epilogue" and value is not None:
            read_epilogue(value)
        elif name == "kernel" and value is not None and not isinstance(value, str):
            raise OperandError("kernel is a config; gemmill.jax takes its name: gemmill.GemmConfig.name")
        if value != default:
            settings[name] = value
    return settings


def _dtype_text(dtype: Any) -> str:
    """A dtype of JAX's, which are scalar types too, or of gemmill's by its name."""
    return dtype if isinstance(dtype, str) else str(jnp.dtype(dtype))


def _turned(arrays: Mapping[str, Any], keywords: Mapping[str, Any]) -> tuple[str, ...]:
    """Which of A and B XLA is to lay column by column."""
    a, b = arrays["a"], arrays["b"]
    along_k = "offsets" in arrays and b.ndim == 2
    b_is_narrow = b.dtype.itemsize < a.dtype.itemsize or keywords.get("b_dtype") is not None
    majors = {
        "a": keywords.get("a_major") or ("m" if along_k else "k"),
        "b": keywords.get("b_major") or ("k" if b_is_narrow else "n"),
    }
    for name, major in majors.items():
        if major not in (allowed := ("k", "m" if name == "a" else "n")):
            raise OperandError(f"{name}_major is {major!r}; it must be {allowed[0]!r} or {allowed[1]!r}")
    return tuple(name for name, major in majors.items() if major == ("m" if name == "a" else "k"))


def _without_vectors(arrays: dict[str, Any], keywords: dict[str, Any]) -> tuple[int, ...]:
    """Vectors made matrices of one row or column; the axes of D that are these."""
    a, b = arrays["a"], arrays["b"]
    axes = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
    if axes and keywords.get("epilogue") is not None:
        raise OperandError("a or b is a vector: beside an epilogue, pass matrices, as a[None] and b[:, None] are")
    arrays["a"], arrays["b"] = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    for name in ("c", "out"):
        for axis in axes:
            if keywords.get(name) is not None and (name == "out" or keywords[name].ndim > (axis == -2)):
                keywords[name] = jnp.expand_dims(keywords[name], axis)
    return axes
