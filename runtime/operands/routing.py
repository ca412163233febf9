"""Binds the tensors of ``route`` and ``combine``: checks their shapes, dtypes and memory, and derives the parameters of
their kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from gemmill.emitters.combining import SLOTS, VECTOR, Combination
from gemmill.emitters.gathering import WIDTHS
from gemmill.emitters.ptx import BITS
from gemmill.emitters.routing import cluster_for
from gemmill.library.dtypes import DTYPES
from gemmill.library.errors import OperandError
from gemmill.library.wording import one_of
from gemmill.runtime.operands.overlap import MemoryCheck
from gemmill.runtime.operands.tensors import TensorView, check_devices, view_table

_LIMIT = 1 << 31
"""Places are 32-bit integers."""


class Strides(NamedTuple):
    """Bytes from a row to the next, and from an element of a row to the next."""

    row: int
    element: int


@dataclass(frozen=True, slots=True)
class BoundRoute:
    """The tensors of ``route``."""

    ids: TensorView
    offsets: TensorView
    rows: TensorView
    places: TensorView

    @property
    def count(self) -> int:
        """Slots of all tokens."""
        return self.rows.shape[0]

    @property
    def kind(self) -> tuple[int, int]:
        """The kernel that reads these tensors: bytes between ids, and CTAs of a cluster."""
        return 4 * self.ids.strides[-1], cluster_for(self.count)


@dataclass(frozen=True, slots=True)
class BoundGather:
    """Rows, and copies of some of them."""

    source: TensorView
    index: TensorView
    """The row of each copy, contiguous s32."""
    out: TensorView
    """The copies: their rows are contiguous, or, of scales, their columns."""

    @property
    def is_turned(self) -> bool:
        """Whether rows are not contiguous, in the source or in the copies."""
        return self.out.shape[1] > 1 and not self.source.strides[1] == self.out.strides[1] == 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of elements; where it has only one, their stride says nothing."""
        return self.out.shape[1] * DTYPES[self.out.dtype].bytes

    @property
    def width(self) -> int:
        """Bytes of the widest vectors that divide all rows."""
        aligned = [x for x in WIDTHS if self.row_bytes % x == 0 and has_aligned_rows(self.source, x)]
        return next(x for x in aligned if has_aligned_rows(self.out, x))


@dataclass(frozen=True, slots=True)
class BoundCombine:
    """The tensors of ``combine``."""

    y: TensorView
    places: TensorView
    weights: TensorView | None
    add: TensorView | None
    out: TensorView

    @property
    def kind(self) -> Combination:
        """The kernel that reads these tensors: it has the widest vectors that divide their rows."""
        weights, add = (x.dtype if x else None for x in (self.weights, self.add))
        slots = max(1, min(SLOTS, self.places.shape[1]))
        rows = [x for x in (self.y, self.add, self.out) if x]
        elements = 8 * VECTOR // BITS[self.y.dtype]
        while True:
            kind = Combination(self.y.dtype, self.out.dtype, add, weights, slots, elements)
            fits = self.y.shape[1] % elements == 0 and all(
                has_aligned_rows(x, kind.vector_bytes(x.dtype)) for x in rows
            )
            if fits or elements == 1:
                return kind
            elements //= 2


def strides_of(tensor: TensorView | None) -> Strides:
    """Return the strides of a matrix in bytes; zeros for a tensor that is not there."""
    if tensor is None:
        return Strides(0, 0)
    size = DTYPES[tensor.dtype].bytes
    return Strides(tensor.strides[0] * size, tensor.strides[1] * size)


def view_ids(tensor: Any, name: str, stream: int = 0) -> TensorView:
    """Read ids in GPU memory: int32, or the low words of int64, two words apart, which the high ones follow.

    Raises:
        OperandError: they are not contiguous integers.
    """
    ids = view_table(tensor, name, stream)
    if isinstance(tensor, TensorView):
        return ids
    step = 2 if str(getattr(tensor, "dtype", "")).endswith("int64") else 1
    if not _is_packed(ids, step):
        raise _not_contiguous(name, ids)
    return replace(ids, strides=tuple([step * prod(ids.shape[axis + 1 :]) for axis in range(len(ids.shape))]))


def _not_contiguous(name: str, ids: TensorView) -> OperandError:
    return OperandError(
        f"{name} has strides {ids.strides} for shape {ids.shape}; it must be contiguous: pass {name}.contiguous()"
    )


def bind_route(ids: TensorView, experts: int, offsets: TensorView, rows: TensorView, places: TensorView) -> BoundRoute:
    """Return the tensors of ``route``.

    Raises:
        OperandError: a tensor does not fit; the message names it.
    """
    tensors = {"topk_ids": ids, "offsets": offsets, "rows": rows, "places": places}
    tokens, slots = shape_of_slots("topk_ids", ids)
    _check_integers(tensors)
    wanted: dict[str, tuple[int, ...]] = {"rows": (tokens * slots,), "places": (tokens, slots)}
    for name, shape in wanted.items():
        _check_shape(name, tensors[name], shape, "topk_ids", ids)
    if offsets.shape != (experts,):
        raise OperandError(f"offsets has shape {offsets.shape}; with {experts} experts it must have shape ({experts},)")
    for name in ("offsets", "rows", "places"):
        if not _is_packed(tensors[name], 1):
            raise OperandError(f"{name} has strides {tensors[name].strides}; it must be contiguous")
    if ids.strides[-1] not in (1, 2) or not _is_packed(ids, ids.strides[-1]):
        raise _not_contiguous("topk_ids", ids)
    _check_memory(tensors, ("offsets", "rows", "places"))
    return BoundRoute(ids, offsets, rows, places)


def bind_combine(
    y: TensorView, places: TensorView, weights: TensorView | None, add: TensorView | None, out: TensorView
) -> BoundCombine:
    """Return the tensors of ``combine``.

    Raises:
        OperandError: a tensor does not fit; the message names it.
    """
    named = {"y": y, "places": places, "weights": weights, "add": add, "out": out}
    tensors = {name: x for name, x in named.items() if x is not None}
    shape = shape_of_sums(y, places)
    _check_integers({"places": places})
    for name in ("y", "weights", "add", "out"):
        if name in tensors and tensors[name].dtype not in BITS:
            raise OperandError(f"{name} is {tensors[name].dtype}; it must be {one_of([*BITS])}: convert it first")
    if weights is not None:
        _check_shape("weights", weights, places.shape, "places", places)
    for name in ("add", "out"):
        if name in tensors:
            _check_shape(name, tensors[name], shape, "y and places", y)
    for name in ("y", "add", "out"):
        if name in tensors and shape[1] > 1 and tensors[name].strides[1] != 1:
            raise OperandError(
                f"{name} has strides {tensors[name].strides}; its rows must be contiguous: pass {name}.contiguous()"
            )
    refuse_shared_elements(out)
    _check_memory(tensors, ("out",), {"add"} if add is not None and add.same_layout(out) else ())
    return BoundCombine(y, places, weights, add, out)


def refuse_shared_elements(out: TensorView) -> None:
    """Raise OperandError for a matrix to write whose contiguous rows overlap."""
    if out.shape[0] > 1 and out.shape[1] > 0 and abs(out.strides[0]) < out.shape[1]:
        raise OperandError(
            f"out has strides {out.strides} for shape {out.shape}, so its elements overlap: pass memory where each has "
            "its own"
        )


def shape_of_slots(name: str, tensor: TensorView) -> tuple[int, int]:
    """Return the number of tokens and that of their slots."""
    if len(tensor.shape) != 2:
        raise OperandError(f"{name} has shape {tensor.shape}; it must be (tokens, slots of a token)")
    tokens, slots = tensor.shape
    if tokens * slots >= _LIMIT:
        raise OperandError(f"{name} has shape {tensor.shape}; tokens times slots must be below 2^31: pass fewer tokens")
    return tokens, slots


def shape_of_sums(y: TensorView, places: TensorView) -> tuple[int, int]:
    """Return the shape of the result of ``combine``."""
    if len(y.shape) != 2:
        raise OperandError(f"y has shape {y.shape}; it must be (rows, N)")
    if max(y.shape) >= _LIMIT:
        raise OperandError(f"y has shape {y.shape}; extents must be below 2^31: pass fewer rows")
    return shape_of_slots("places", places)[0], y.shape[1]


def _check_integers(tensors: Mapping[str, TensorView]) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype != "s32":
            raise OperandError(f"{name} is {tensor.dtype}; it must be int32: pass {name}.int()")


def _check_shape(name: str, tensor: TensorView, shape: tuple[int, ...], other: str, of: TensorView) -> None:
    if tensor.shape != shape:
        raise OperandError(
            f"{name} has shape {tensor.shape}; with {other} of shape {of.shape} it must have shape {shape}"
        )


def _check_memory(tensors: Mapping[str, TensorView], written: Collection[str], in_place: Collection[str] = ()) -> None:
    """Raise OperandError where tensors are on several GPUs, read-only, without memory, or overlap."""
    check_devices(tensors)
    for name, tensor in tensors.items():
        if name in written and not tensor.writable:
            raise OperandError(f"{name} is read-only: pass writable memory")
    places = {name: place for place, name in enumerate(tensors)}
    MemoryCheck(tensors, places, written, in_place)(tuple(x.ptr for x in tensors.values()))


def _is_packed(tensor: TensorView, step: int) -> bool:
    """Whether elements lie in order, ``step`` elements apart."""
    if 0 in tensor.shape:
        return True
    for extent, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return True


def has_aligned_rows(tensor: TensorView, size: int) -> bool:
    """Whether each row starts at a multiple of some bytes."""
    return tensor.ptr % size == 0 and (tensor.shape[0] < 2 or strides_of(tensor).row % size == 0)
