"""Describes a call without its arrays: a static argument when JAX traces, and the attribute that the handler reads.

Exported programs and JAX's compilation cache store the text for other processes, so it contains everything that a
handler needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from gemmill.library.decompositions.workspace_layout import WorkspaceSize
from gemmill.library.dtypes import DTYPES, DTypeName, default_output, find_dtype
from gemmill.library.epilogues.parse import PLAIN
from gemmill.library.epilogues.tree import BLOCK, Epilogue
from gemmill.library.errors import OperandError
from gemmill.library.wording import one_of
from gemmill.runtime.api.read import read_call
from gemmill.runtime.operands.binding import shape_of_d, wider
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.operands.tensors import TABLES, TensorView, dtype_named, unpacked

Setting = str | float | int | bool | None


class Description(NamedTuple):
    """A call of ``matmul`` or ``grouped_matmul``."""

    operands: tuple[str, ...]
    """Names of the arrays in their order: A, B, then others by the names of :func:`gemmill.matmul` and the epilogue.
    ``out`` is only memory that D is written to."""
    turned: tuple[str, ...] = ()
    """Those of A and B whose second last extent is contiguous instead of the last."""
    settings: tuple[tuple[str, Setting], ...] = ()
    """Keywords that are not arrays and differ from their defaults, by name."""
    numbers: tuple[tuple[str, float], ...] = ()
    """Operands of the epilogue that are numbers."""
    into_c: bool = False
    """Whether D is written to the memory of C."""
    scratch: WorkspaceSize = WorkspaceSize(0, 0)
    """The workspace that XLA allocates as an additional result."""

    @property
    def keywords(self) -> dict[str, Any]:
        """The settings as a dict."""
        return dict(self.settings)

    @property
    def epilogue(self) -> Epilogue:
        """The parsed expression; the plain epilogue if there is none."""
        text = self.keywords.get("epilogue")
        return PLAIN if text is None else read_epilogue(str(text))

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the outputs: ``out`` for D, then the further outputs."""
        return ("out", *(x.name for x in self.epilogue.outputs))

    @property
    def groups(self) -> str:
        """``offsets`` or ``counts``, whichever locates the groups; empty without groups."""
        return next((name for name in ("offsets", "counts") if name in self.operands), "")

    def but(self, **settings: Setting) -> Description:
        """A copy with other settings; None removes a setting."""
        changed = {name: x for name, x in {**self.keywords, **settings}.items() if x is not None}
        return self._replace(settings=tuple(sorted(changed.items())))

    def without(self, name: str) -> Description:
        """A copy without one operand."""
        return self._replace(operands=tuple(x for x in self.operands if x != name))


def written(description: Description) -> str:
    """The JSON text of a description; equal descriptions have equal texts."""
    fields = {name: x for name, x in description._asdict().items() if x and x != (0, 0)}
    return json.dumps(fields, separators=(",", ":"), sort_keys=True)


@lru_cache(4096)
def read(text: bytes) -> Description:
    """Parse the text of a description. Raises OperandError if it is invalid, or from an incompatible version."""
    try:
        fields = json.loads(text)
        return Description(
            operands=tuple(fields.pop("operands")),
            turned=tuple(fields.pop("turned", ())),
            settings=tuple((name, x) for name, x in fields.pop("settings", ())),
            numbers=tuple((name, float(x)) for name, x in fields.pop("numbers", ())),
            scratch=WorkspaceSize(*fields.pop("scratch", (0, 0))),
            **fields,
        )
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError, ValueError) as error:
        shown = text.decode(errors="replace")
        raise OperandError(
            f"cannot read the description of the call, {shown:.200}: {error}; it must be from a compatible version of "
            "gemmill: export the program again"
        ) from None


STREAM = 2
"""``CU_STREAM_PER_THREAD``, for calls that are only prepared: XLA never captures this stream."""


class Array(NamedTuple):
    """Shape and dtype of an array. Extents may be symbols. Offsets and counts may also be ``int64`` or ``uint32``."""

    shape: tuple[Any, ...]
    dtype: str

    @classmethod
    def of(cls, name: str, array: Any) -> Array:
        """Shape and dtype of a JAX or NumPy array. Raises OperandError if gemmill does not support the dtype."""
        dtype = str(array.dtype)
        if name in TABLES and dtype in ("int64", "uint32"):
            return cls(tuple(array.shape), dtype)
        if dtype in ("int4", "uint4"):
            raise OperandError(
                f"{name} is {dtype}, whose layout in memory XLA does not define: pass int8 or uint8 with two elements "
                f"in a byte, and {name}_dtype={'s4' if dtype == 'int4' else 'u4'!r}"
            )
        if find_dtype(dtype) is None or dtype not in {x.torch for x in DTYPES.values()}:
            raise OperandError(f"{name} is {dtype}; it must be {one_of([*_TAKEN])}")
        return cls(tuple(array.shape), dtype)


_TAKEN = dict.fromkeys(x.torch for x in DTYPES.values())


class Result(NamedTuple):
    """Shape and dtype of an output."""

    shape: tuple[Any, ...]
    dtype: DTypeName

    @property
    def numpy(self) -> str:
        """The dtype's name in NumPy and JAX."""
        return DTYPES[self.dtype].torch


def view_of(array: Array, address: int, device: int, turned: bool = False) -> TensorView:
    """A packed array at an address; its last two extents are stored transposed if ``turned``."""
    shape, strides = array.shape, _packed(array.shape, turned)
    if array.dtype in ("int64", "uint32"):  # offsets or counts, of which kernels read the low words
        words = 2 if array.dtype == "int64" else 1
        return TensorView(address, shape, tuple(words * step for step in strides), "s32", device)
    return TensorView(address, shape, strides, dtype_named(array.dtype, "an array"), device)


def views(
    description: Description, arrays: Sequence[Array], addresses: Sequence[int], device: int = 0
) -> dict[str, TensorView]:
    """The operands by name, given their arrays and addresses."""
    named = zip(description.operands, arrays, addresses, strict=False)
    return {name: view_of(x, at, device, name in description.turned) for name, x, at in named}


def results(description: Description, arrays: Sequence[Array]) -> list[Result]:
    """Shapes and dtypes of a call's outputs: D, then the further outputs. Raises OperandError if shapes do not
    match."""
    operands = views(description, arrays, (0,) * len(arrays))
    keywords, epilogue, kind = description.keywords, description.epilogue, description.groups
    a, b = _unpacked(operands, keywords)
    shape = shape_of_d({**operands, "a": a, "b": b}, epilogue)
    out_dtype = keywords.get("out_dtype")
    dtype = default_output(wider({"a": a, "b": b})) if out_dtype is None else dtype_named(out_dtype, "out_dtype")
    shares_d = kind == "offsets" and len(b.shape) == 3
    batch = operands[kind].shape if shares_d else shape[:-2]
    shapes: dict[str, tuple[Any, ...]] = {
        "matrix": shape,
        "row": shape[:-1],
        "column": (*batch, shape[-1]),
        "batch": batch,
        "scalar": (),
        "block": (*shape[:-1], shape[-1] // BLOCK),
    }
    return [Result(shape, dtype), *(Result(shapes[x.kind], x.dtype) for x in epilogue.outputs)]


def abstract_call(
    description: Description, arrays: Sequence[Array], aligns: Sequence[int] = (), device: int = 0
) -> GemmCall:
    """The call on made-up addresses, to select a kernel before there is memory. Buffers do not overlap.

    Buffers are aligned as XLA's are. ``aligns`` adds bytes to the addresses of operands and then outputs, for buffers
    with less alignment. Raises OperandError as :func:`gemmill.matmul` does.
    """
    misaligned = [*aligns, *(0,) * (len(arrays) + len(description.results))]
    addresses = [(place + 1 << 40) + misaligned[place] for place in range(len(misaligned))]
    operands = views(description, arrays, addresses, device)
    operands.pop("out", None)
    for place, (name, x) in enumerate(zip(description.results, results(description, arrays), strict=True)):
        at = operands["c"].ptr if name == "out" and description.into_c else addresses[len(arrays) + place]
        operands[name] = view_of(Array(x.shape, x.numpy), at, device)
    return read_call({**description.keywords, **operands, **dict(description.numbers), "stream": STREAM})


def _unpacked(operands: Mapping[str, TensorView], keywords: Mapping[str, Any]) -> tuple[TensorView, TensorView]:
    """A and B with the dtypes and shapes of the elements that their bytes hold."""
    a, b = operands["a"], operands["b"]
    held = {name: keywords.get(f"{name}_dtype") for name in "ab"}
    read_a = a if held["a"] is None else unpacked("a", a, dtype_named(held["a"], "a_dtype"), b.shape[-2])
    read_b = b if held["b"] is None else unpacked("b", b, dtype_named(held["b"], "b_dtype"), a.shape[-1])
    return read_a, read_b


def _packed(shape: Sequence[Any], turned: bool) -> tuple[Any, ...]:
    """Strides in elements of a packed array; its last two extents are stored transposed if ``turned``."""
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if turned:
        strides[-2], strides[-1] = 1, shape[-2]
    return tuple(strides)
