"""``gemmill.jax.matmul`` and ``gemmill.jax.grouped_matmul``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import numpy as jnp

from gemmill.library.epilogues.grammar import SCALES
from gemmill.library.errors import KeywordError, OperandError
from gemmill.library.input.keywords import unexpected
from gemmill.runtime.api.read import KEYWORDS, Declaration, alpha_of, beta_of, declares
from gemmill.runtime.jax.description import Description, Setting
from gemmill.runtime.jax.traced_call import run
from gemmill.runtime.jax.traced_numbers import is_traced_number, number, with_traced_factors
from gemmill.runtime.operands.binding import require_groups
from gemmill.runtime.operands.call_keywords import DEFAULTS, JAX, OPERANDS
from gemmill.runtime.operands.epilogue_arguments import is_number, read_epilogue
from gemmill.runtime.operands.tensors import dtype_named

_TENSORS = tuple(name for name, calls in OPERANDS.items() if calls & JAX and name not in ("a", "b"))
_DTYPES = ("out_dtype", "accumulator", "a_dtype", "b_dtype")
_SETTINGS: Mapping[str, Any] = {**DEFAULTS._asdict(), "explain": False, "epilogue": None}
"""Keywords that are not arrays, with their defaults."""


def _tracing(declaration: Declaration) -> Callable[..., Any]:
    """Make the function that traces a call with JAX, from the declaration of its keywords."""

    def traced(a: Any, b: Any, **arguments: Any) -> Any:
        keywords = {name: x for name, x in arguments.items() if name in declaration.keywords and x is not None}
        operands = {name: x for name, x in arguments.items() if name not in declaration.keywords}
        for name in operands:
            if name in KEYWORDS:  # of other functions
                raise unexpected(name, sorted(declaration.keywords))
        return _trace(a, b, keywords, operands)

    return traced


def _tracing_groups(declaration: Declaration) -> Callable[..., Any]:
    trace = _tracing(declaration)

    def traced(a: Any, b: Any, offsets: Any = None, **arguments: Any) -> Any:
        require_groups(offsets, arguments.get("counts"), "gemmill.jax.matmul")
        return trace(a, b, offsets=offsets, **arguments)

    return traced


# Each line has the keywords of one subject.
# fmt: off


@declares(_tracing)
def matmul(
    a: jax.Array, b: jax.Array, *, out: jax.Array | None = None, c: jax.Array | None = None,
    alpha: jax.Array | float = 1.0, beta: jax.Array | float | None = None,
    out_dtype: object = None, accumulator: str | None = None,
    tf32: bool = False, precision: str = "ieee",
    fast_accumulation: bool = True,
    a_scale: jax.Array | float | None = None, b_scale: jax.Array | float | None = None,
    a_zero: jax.Array | None = None, b_zero: jax.Array | None = None, a_dtype: object = None, b_dtype: object = None,
    a_major: str | None = None, b_major: str | None = None, kernel: str | None = None, slices: int | None = None,
    sm_count: int | None = None,
    deterministic: bool = False, bits: str = "any", batch_invariant: bool = False, quick: bool = False,
    objective: str = "sustained", explain: bool = False, epilogue: str | None = None, **operands: jax.Array | float,
) -> Any:
    """Compute ``alpha * a @ b + beta * c`` of JAX arrays, and return D (..., M, N).

    gemmill selects and compiles the kernel when JAX traces the call, for the machine's GPU. Without a GPU it assumes
    the one that :class:`gemmill.Registry` assumes. The call is differentiable in all floating-point operands, in
    forward and reverse mode, any number of times. ``jax.vmap`` turns a batch into one launch.

    Keywords that are not listed here are those of :func:`gemmill.matmul`.

    Args:
        a: (..., M, K), or (K,).
        b: (..., K, N), or (K,). Batch extents broadcast without a copy.
        out: an array of D's shape and dtype, in whose memory D is written. The program must not use it afterwards:
            donate it, or create it under ``jit``. Otherwise XLA copies it first. ``c`` may be the same array.
        a_major: the contiguous extent of A: ``"k"`` (default) or ``"m"``.
        b_major: the contiguous extent of B: ``"n"`` (default), or ``"k"``, which is the default for a B narrower than
            A. JAX arrays are row-major, so the defaults copy nothing. ``"k"`` asks XLA for a column-major B: under
            ``jax.jit``, ``w.T`` then reads ``w`` without a copy, and XLA computes intermediate arrays in this layout.
            Any other array becomes a transposed copy.
        alpha, beta: numbers. A Python number is a constant of the trace. A traced number is an operand of the epilogue,
            and has a derivative.
        kernel: the name of a kernel; the selector is skipped.
        explain: True prints the kernel and the reason for its selection when the call is traced.
        epilogue: an expression. If it has further outputs, the call returns a tuple: D, then these in the expression's
            order. Their dtype is the one in the expression, f32 without one.

    Raises:
        GemmillError: as :func:`gemmill.matmul`, when the call is traced. Errors at run time are JAX's
            ``JaxRuntimeError``, with gemmill's message.
    """


@declares(_tracing_groups)
def grouped_matmul(
    a: jax.Array, b: jax.Array, offsets: jax.Array | None = None, *,
    out: jax.Array | None = None, c: jax.Array | None = None,
    alpha: jax.Array | float = 1.0, beta: jax.Array | float | None = None,
    out_dtype: object = None, accumulator: str | None = None,
    tf32: bool = False, precision: str = "ieee",
    fast_accumulation: bool = True,
    a_scale: jax.Array | float | None = None, b_scale: jax.Array | float | None = None,
    b_zero: jax.Array | None = None, b_dtype: object = None,
    counts: jax.Array | None = None, rows: jax.Array | None = None, expected_rows: int | None = None,
    a_major: str | None = None, b_major: str | None = None, kernel: str | None = None,
    deterministic: bool = False, bits: str = "any", batch_invariant: bool = False, explain: bool = False,
    epilogue: str | None = None, **operands: jax.Array | float,
) -> Any:
    """Compute ``alpha * a @ b + beta * c`` for each group of JAX arrays, and return D.

    Pass ``offsets`` or ``counts``. Values of D in rows outside of all groups are undefined; their derivatives are 0.
    Other keywords are those of :func:`matmul` and :func:`gemmill.grouped_matmul`. ``jax.vmap`` runs one call after the
    other.

    Args:
        a: (M, K) with ``offsets``; (groups, capacity, K) with ``counts``. b: (groups, K, N); or (K, N) for groups along
        K. offsets: int32 or int64 (groups,), the end of each group. With ``b`` (groups, K, N) these are groups of rows
        of A,
            and D is (M, N). With ``b`` (K, N) these are groups along K, D is (groups, M, N), and ``a_major`` defaults
            to ``"m"``.
        counts: int32 or int64 (groups,), the number of rows of each masked group. D is (groups, capacity, N).
        rows: int32 or int64, with ``offsets``: the row of A for each row of D, (M,), or the column of A for each row of
            B of groups along K, (K,). A then has any number of them. Derivatives copy the rows.

    Raises:
        GemmillError: as :func:`gemmill.grouped_matmul`, when the call is traced.
    """


# fmt: on


def _trace(a: Any, b: Any, keywords: dict[str, Any], operands: Mapping[str, Any]) -> Any:
    matrices: dict[str, Any] = {"a": _array("a", a), "b": _array("b", b)}
    of_vectors = _without_vectors(matrices, keywords)
    taken, operands = with_traced_factors(keywords, operands, **matrices)
    values = {name: taken[name] for name in _TENSORS if taken.get(name) is not None} | dict(operands)
    into_c = "out" in values and values["out"] is values.get("c")
    if into_c:
        del values["out"]
    numbers = {name: float(x) for name, x in values.items() if is_number(x) and (name in operands or name in SCALES)}
    arrays = {name: _array(name, x) for name, x in values.items() if name not in numbers}
    arrays = matrices | {name: number(x, **matrices) if is_traced_number(x) else x for name, x in arrays.items()}
    description = Description(
        operands=tuple(arrays),
        turned=_turned(arrays, taken),
        settings=tuple(sorted(_settings(taken).items())),
        numbers=tuple(numbers.items()),
        into_c=into_c,
    )
    outputs = run(_checked(description, operands), *arrays.values())
    d = outputs[0].squeeze(of_vectors)
    return d if len(outputs) == 1 else (d, *outputs[1:])


def _checked(description: Description, operands: Mapping[str, Any]) -> Description:
    """The description. Raises KeywordError if the caller passes an array that its expression writes."""
    for x in description.epilogue.outputs:
        if x.name in operands:
            raise KeywordError(f"{x.name} is an output of the epilogue, which the call returns after D: do not pass it")
    return description


def _array(name: str, value: Any) -> Any:
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise OperandError(
            f"{name} is a {type(value).__qualname__}; it must be a JAX array or convert to one: {error}"
        ) from None


def _settings(keywords: Mapping[str, Any]) -> dict[str, Setting]:
    """The keywords that are not arrays and differ from their defaults, in the form of a description."""
    settings: dict[str, Setting] = {}
    for name, default in _SETTINGS.items():
        value = keywords.get(name, default)
        if isinstance(value, jax.core.Tracer):
            raise OperandError(
                f"{name} is traced; it must be a constant: pass a Python value, or name it in jax.jit's static_argnames"
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
            raise OperandError("kernel is a config; it must be a name: pass kernel=config.name")
        if value != default:
            settings[name] = value
    return settings


def _dtype_text(dtype: Any) -> str:
    """The name of a dtype, which may be a JAX dtype or scalar type, or a name of gemmill's."""
    return dtype if isinstance(dtype, str) else str(jnp.dtype(dtype))


def _turned(arrays: Mapping[str, Any], keywords: Mapping[str, Any]) -> tuple[str, ...]:
    """Which of A and B must be column-major. Raises OperandError for an invalid major."""
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
    """Turn vectors into matrices of one row or column. Returns the axes of D to remove again."""
    a, b = arrays["a"], arrays["b"]
    axes = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
    if axes and keywords.get("epilogue") is not None:
        raise OperandError("a or b is a vector; an epilogue needs matrices: pass a[None] or b[:, None]")
    arrays["a"], arrays["b"] = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    for name in ("c", "out"):
        for axis in axes:
            if keywords.get(name) is not None and (name == "out" or keywords[name].ndim > (axis == -2)):
                keywords[name] = jnp.expand_dims(keywords[name], axis)
    return axes
