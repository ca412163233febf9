"""A description and the shapes of its arrays as a call: where JAX traces, of arrays that are nowhere yet, and in the
handler of those at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from gemmill.library.dtypes import DTYPES, DTypeName, called, default_output
from gemmill.library.errors import OperandError
from gemmill.runtime.api.read import read_call
from gemmill.runtime.jax.description import Description
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.shapes import d_shape, grouped_shape
from gemmill.runtime.operands.tensors import TABLES, TensorView, dtype_named, unpacked, wider

STREAM = 2
"""``CU_STREAM_PER_THREAD``, which no capture of XLA's concerns: for calls that are only made ready."""


class Array(NamedTuple):
    """The shape of an array, whose extents may be symbols, and its dtype; of offsets and counts ``int64`` too."""

    shape: tuple[Any, ...]
    dtype: str

    @classmethod
    def of(cls, name: str, array: Any) -> Array:
        """That of an array of JAX or NumPy; OperandError where gemmill has no such dtype."""
        dtype = str(array.dtype)
        if name in TABLES and dtype in ("int64", "uint32"):
            return cls(tuple(array.shape), dtype)
        if dtype in ("int4", "uint4"):
            raise OperandError(
                f"{name} is {dtype}, which XLA lays out as it likes: pass int8 or uint8 that hold two of them a byte, "
                f"and {name}_dtype={'s4' if dtype == 'int4' else 'u4'!r}"
            )
        if called(dtype) is None or dtype not in {x.torch for x in DTYPES.values()}:
            raise OperandError(f"{name} is {dtype}; gemmill takes {', '.join(_TAKEN)}")
        return cls(tuple(array.shape), dtype)


_TAKEN = dict.fromkeys(x.torch for x in DTYPES.values())


class Result(NamedTuple):
    """An array to be made."""

    shape: tuple[Any, ...]
    dtype: DTypeName

    @property
    def numpy(self) -> str:
        """The dtype as NumPy and JAX call it."""
        return DTYPES[self.dtype].torch


def view_of(array: Array, address: int, device: int, turned: bool = False) -> TensorView:
    """A packed array at an address, of which the last two extents may be turned."""
    shape, strides = array.shape, _packed(array.shape, turned)
    if array.dtype in ("int64", "uint32"):  # a table, of which the low words count
        words = 2 if array.dtype == "int64" else 1
        return TensorView(address, shape, tuple(words * step for step in strides), "s32", device)
    return TensorView(address, shape, strides, dtype_named(array.dtype, "an array"), device)


def views(
    description: Description, arrays: Sequence[Array], addresses: Sequence[int], device: int = 0
) -> dict[str, TensorView]:
    """Operands by name, of their arrays at some addresses."""
    named = zip(description.operands, arrays, addresses, strict=False)
    return {name: view_of(x, at, device, name in description.turned) for name, x, at in named}


def results(description: Description, operands: Mapping[str, TensorView]) -> list[Result]:
    """What a call makes: D, then what its expression writes beside it; OperandError where shapes do not fit."""
    keywords, epilogue, kind = description.keywords, description.epilogue, description.groups
    a, b = _unpacked(operands, keywords)
    if kind:
        shape = grouped_shape(a.shape, b.shape, operands[kind].shape, kind, epilogue)
    else:
        shape = d_shape(a.shape, b.shape, epilogue)
    asked = keywords.get("out_dtype")
    dtype = default_output(wider({"a": a, "b": b})) if asked is None else dtype_named(asked, "out_dtype")
    shares_d = kind == "offsets" and len(b.shape) == 3
    each = operands[kind].shape if shares_d else shape[:-2]
    shapes: dict[str, tuple[Any, ...]] = {
        "matrix": shape,
        "row": shape[:-1],
        "column": (*each, shape[-1]),
        "batch": each,
        "scalar": (),
    }
    return [Result(shape, dtype), *(Result(shapes[x.kind], x.dtype) for x in epilogue.outputs)]


def call_of(
    description: Description, operands: Mapping[str, TensorView], made: Mapping[str, TensorView], stream: int = STREAM
) -> GemmCall:
    """The call, of views of operands and results; OperandError as for :func:`gemmill.matmul`."""
    return read_call(
        {**description.keywords, **operands, **made, **dict(description.numbers), "stream": stream},
    )


def nowhere(description: Description, arrays: Sequence[Array], aligns: Sequence[int] = (), device: int = 0) -> GemmCall:
    """The call on memory that there is not: apart, and aligned as XLA's buffers are, or to ``aligns`` bytes beside
    them, of operands and then results."""
    beside = [*aligns, *(0,) * (len(arrays) + len(description.results))]
    addresses = [(place + 1 << 40) + beside[place] for place in range(len(beside))]
    operands = views(description, arrays, addresses, device)
    operands.pop("out", None)
    made = {}
    for place, (name, x) in enumerate(zip(description.results, results(description, operands), strict=True)):
        at = operands["c"].ptr if name == "out" and description.into_c else addresses[len(arrays) + place]
        made[name] = view_of(Array(x.shape, x.numpy), at, device)
    return call_of(description, operands, made)


def _unpacked(operands: Mapping[str, TensorView], keywords: Mapping[str, Any]) -> tuple[TensorView, TensorView]:
    """A and B as what their bytes hold."""
    a, b = operands["a"], operands["b"]
    held = {name: keywords.get(f"{name}_dtype") for name in "ab"}
    read_a = a if held["a"] is None else unpacked("a", a, dtype_named(held["a"], "a_dtype"), b.shape[-2])
    read_b = b if held["b"] is None else unpacked("b", b, dtype_named(held["b"], "b_dtype"), a.shape[-1])
    return read_a, read_b


def _packed(shape: Sequence[Any], turned: bool) -> tuple[Any, ...]:
    """Strides of a packed array, of which the last two extents may be turned."""
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if turned:
        strides[-2], strides[-1] = 1, shape[-2]
    return tuple(strides)
