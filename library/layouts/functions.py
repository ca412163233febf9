"""The table of functions of the language, with CuTe's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from gemmill.library.errors import LayoutError
from gemmill.library.layouts import algebra, tuples, values
from gemmill.library.layouts.algebra import Tiler
from gemmill.library.layouts.atoms import CopyAtom, MmaAtom, Operand
from gemmill.library.layouts.layout import AnyLayout, Composed, Layout, Swizzle, column_major, join
from gemmill.library.layouts.tiled import TiledMma
from gemmill.library.layouts.tuples import IntTuple
from gemmill.library.layouts.values import Kind, ThreadValues, Value, as_shape


@dataclass(frozen=True)
class Function:
    """A function of the language."""

    call: Callable[..., Value]
    parameters: tuple[tuple[str, Kind], ...]
    required: int
    says: str
    """What it returns, in one line."""
    written: str = ""
    """The signature, if the function checks its arguments itself."""

    def signature(self, name: str) -> str:
        """``complement(layout[, cosize])``."""
        if self.written:
            return self.written
        names = [parameter for parameter, _ in self.parameters]
        rest = "".join(f"[, {parameter}" for parameter in names[self.required :])
        return f"{name}({', '.join(names[: self.required])}{rest}{']' * (len(names) - self.required)})"


def _row(call: Callable[..., Value], parameters: str, says: str) -> Function:
    """A function with parameters such as ``layout:swizzled cosize:integers?``. A question mark means optional."""
    names = [word.rstrip("?").partition(":") for word in parameters.split()]
    kinds = tuple((name, cast("Kind", kind or name)) for name, _, kind in names)
    return Function(call, kinds, sum(not word.endswith("?") for word in parameters.split()), says)


def _inside(function: Callable[..., Layout]) -> Callable[..., AnyLayout]:
    """Extend a function of layouts to layouts with a swizzle, which it applies to the inner layout."""

    def applied(layout: AnyLayout, *rest: Any) -> AnyLayout:
        if isinstance(layout, Composed):
            return Composed(layout.swizzle, layout.offset, function(layout.inner, *rest))
        return function(layout, *rest)

    return applied


def compose(outer: AnyLayout | Swizzle, inner: Tiler | Composed, offset: int = 0) -> AnyLayout:
    """The function c -> outer(offset + inner(c)).

    Raises:
        LayoutError: that function is not a layout with at most one swizzle in front of it.
    """
    if isinstance(inner, Composed):
        if isinstance(outer, Layout) and not inner.swizzle.bits:
            raise LayoutError(f"{outer} o {inner}: a layout cannot be composed with an offset layout")
        raise LayoutError(f"{outer} o {inner}: a swizzle must be the leftmost term, and there can be only one")
    if isinstance(outer, Swizzle):
        if inner is None or isinstance(inner, tuple):
            raise LayoutError(f"{values.text(cast('Value', inner))} follows {outer}; it must be a layout")
        return Composed(outer, offset, algebra.as_layout(inner))
    return _inside(algebra.composition)(outer, inner)


def _make_layout(first: Value, *rest: Value) -> Layout:
    """``make_layout(shape[, stride])``, or ``make_layout(layout, ...)`` with layouts as modes."""
    if isinstance(first, Layout):
        return join(values.checked(mode, "layout", "each mode") for mode in (first, *rest))
    shape = as_shape(values.checked(first, "integers", "shape"))
    if len(rest) > 1:
        raise LayoutError(f"make_layout has {1 + len(rest)} arguments; pass a shape and a stride, or layouts")
    return Layout(shape, values.checked(rest[0], "integers", "stride")) if rest else column_major(shape)


def _get(of: Value, *modes: int) -> Value:
    for mode in modes:
        within = tuples.rank(of.shape) if isinstance(of, Layout | Composed) else tuples.rank(cast("IntTuple", of))
        if not 0 <= mode < within:
            raise LayoutError(f"{values.text(of)} has no mode {mode}; the mode must be from 0 to {within - 1}")
        if isinstance(of, Composed):
            of = Composed(of.swizzle, of.offset, of.inner[mode])
        else:
            of = of[mode] if isinstance(of, Layout | tuple) else of
    return of


def _shape(of: Value) -> IntTuple:
    return of.shape if isinstance(of, Layout | Composed) else cast("IntTuple", of)


def _crd2idx(coordinate: IntTuple, shape: IntTuple, stride: IntTuple | None = None) -> int:
    layout = column_major(as_shape(shape)) if stride is None else Layout(as_shape(shape), stride)
    return layout(coordinate)


def _hier_coord(layout: AnyLayout, index: int) -> IntTuple:
    layout.refuse_many("the search for an index")
    coordinates = [coordinate for coordinate in range(layout.size) if layout(coordinate) == index]
    if len(coordinates) != 1:
        many = f"{len(coordinates)} coordinates have it, such as {', '.join(map(str, coordinates[:3]))}"
        raise LayoutError(
            f"index {index} of {layout} has no unique coordinate: {many if coordinates else 'no coordinate has it'}"
        )
    return tuples.idx2crd(coordinates[0], layout.shape)


def _1d_coord(layout: AnyLayout, index: int) -> int:
    return tuples.crd2idx(_hier_coord(layout, index), layout.shape, tuples.compact(layout.shape))


def _flat_coord(layout: AnyLayout, index: int) -> IntTuple:
    return tuples.idx2crd(_1d_coord(layout, index), tuple(map(tuples.product, tuples.modes(layout.shape))))


def _tiled_mma(mma: MmaAtom, atoms: Tiler = None, tile: Tiler = None) -> TiledMma:
    """A tiled MMA from a layout of atoms along M, N and K, or its shape, and extents or permutations of M, N and K."""
    if isinstance(atoms, tuple):
        atoms = column_major(as_shape(values.checked(cast("Value", atoms), "integers", "atoms")))
    laid = Layout((1, 1, 1), (0, 0, 0)) if atoms is None else algebra.as_layout(atoms)
    laid = join([*laid.modes, *[Layout(1, 0)] * (3 - laid.rank)])
    modes: list[Tiler] = [None] * 3 if tile is None else [*tile] if isinstance(tile, tuple) else [tile]
    if len(modes) > 3 or any(isinstance(mode, tuple) for mode in modes):
        raise LayoutError("tile must be (M,N,K), each an extent, a permutation such as (4,4,2):(1,8,4), or '_'")
    modes += [None] * (3 - len(modes))
    return TiledMma(mma, laid, cast("Any", tuple(modes)))


def _thread_values(operand: Operand, mma: MmaAtom | TiledMma) -> Layout:
    return (_tiled_mma(mma) if isinstance(mma, MmaAtom) else mma).thread_values(operand)


def _layout_tv(threads: Layout, held: Layout) -> Layout:
    """The TV layout of a tiled copy of ``threads`` with ``held`` values each: (thread, value) -> coordinate."""
    inverse = algebra.right_inverse(algebra.raked_product(threads, held))
    return algebra.composition(inverse, column_major((threads.size, held.size)))


def _tv(layout: Layout, shape: IntTuple) -> ThreadValues:
    extents = [*map(tuples.product, tuples.modes(as_shape(shape)))]
    if len(extents) != 2:
        raise LayoutError(f"{tuples.text(shape)} has {len(extents)} modes; a tile must have two: (rows,columns)")
    return ThreadValues(layout, (extents[0], extents[1]))


def _split(shaped: Callable[..., Layout], split: algebra.Split) -> Callable[..., AnyLayout]:
    return _inside(lambda layout, tiler: shaped(split, layout, tiler))


_DIVIDED = "layout:swizzled tiler:tiler"

FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "size": _row(lambda of: tuples.product(_shape(of)), "of:any", "the number of coordinates"),
        "cosize": _row(lambda of: of.cosize, "layout:swizzled", "one more than the greatest index"),
        "rank": _row(lambda of: tuples.rank(_shape(of)), "of:any", "the number of modes"),
        "depth": _row(lambda of: tuples.depth(_shape(of)), "of:any", "the nesting depth of the shape"),
        "shape": _row(lambda of: of.shape, "layout:swizzled", "its shape"),
        "stride": _row(lambda of: of.stride, "layout", "its strides"),
        "get": _row(_get, "of:any i:integer j:integer? k:integer?", "mode i; of that, mode j, and so on"),
        "make_layout": Function(
            _make_layout,
            (),
            0,
            "from a shape and strides (default: column-major), or with layouts as modes",
            "make_layout(shape[, stride]) or make_layout(layout, layout, ...)",
        ),
        "make_ordered_layout": _row(
            lambda shape, order: algebra.ordered(as_shape(shape), order),
            "shape:integers order:integers",
            "a compact layout; the mode with the smallest number varies fastest",
        ),
        "idx2crd": _row(
            lambda index, shape: tuples.idx2crd(index, as_shape(shape)),
            "index:integers shape:integers",
            "the natural coordinate of the index-th coordinate of a shape",
        ),
        "crd2idx": _row(
            _crd2idx, "coordinate shape:integers stride:integers?", "the index of a coordinate of a shape and strides"
        ),
        "get_hier_coord": _row(_hier_coord, "layout:swizzled index:integer", "the natural coordinate of an index"),
        "get_flat_coord": _row(
            _flat_coord, "layout:swizzled index:integer", "the coordinate of an index, one integer per mode"
        ),
        "get_1d_coord": _row(_1d_coord, "layout:swizzled index:integer", "the coordinate of an index as one integer"),
        "coalesce": _row(
            _inside(algebra.coalesce), "layout:swizzled profile:integers?", "the same function with fewer integers"
        ),
        "flatten": _row(_inside(algebra.flattened), "layout:swizzled", "the same integers without nesting"),
        "filter": _row(algebra.filtered, "layout", "without modes of stride 0; coalesced"),
        "composition": _row(compose, "outer inner:tiler", "c -> outer(inner(c)): outer o inner"),
        "complement": _row(
            algebra.complement, "layout cosize:integers?", "the indices that a layout leaves out, up to a cosize"
        ),
        "right_inverse": _row(algebra.right_inverse, "layout", "R with layout(R(i)) = i"),
        "left_inverse": _row(algebra.left_inverse, "layout", "R with R(layout(i)) = i"),
        "upcast": _row(algebra.upcast, "layout n:integer", "in units of n elements"),
        "logical_divide": _row(_inside(algebra.logical_divide), _DIVIDED, "(tile, rest), mode by mode"),
        "zipped_divide": _row(_split(algebra.zipped, algebra.logical_divide), _DIVIDED, "((tiles), (rests))"),
        "tiled_divide": _row(_split(algebra.tiled, algebra.logical_divide), _DIVIDED, "((tiles), rest, rest, ...)"),
        "flat_divide": _row(
            _split(algebra.flat, algebra.logical_divide), _DIVIDED, "(tile, tile, ..., rest, rest, ...)"
        ),
        "logical_product": _row(_inside(algebra.logical_product), _DIVIDED, "(block, copies), mode by mode"),
        "zipped_product": _row(_split(algebra.zipped, algebra.logical_product), _DIVIDED, "((blocks), (copies))"),
        "tiled_product": _row(_split(algebra.tiled, algebra.logical_product), _DIVIDED, "((blocks), copies, ...)"),
        "flat_product": _row(_split(algebra.flat, algebra.logical_product), _DIVIDED, "(block, ..., copies, ...)"),
        "blocked_product": _row(
            _inside(algebra.blocked_product), "block:swizzled tiler:layout", "a block at each place of a tiler"
        ),
        "raked_product": _row(
            _inside(algebra.raked_product), "block:swizzled tiler:layout", "the same with blocks interleaved"
        ),
        "tile_to_shape": _row(
            _inside(algebra.tile_to_shape),
            "block:swizzled shape:integers order:integers?",
            "a block repeated until it fills a shape, the mode with the smallest number in order first",
        ),
        "ThrID": _row(lambda atom: atom.thread_ids, "atom", "thread of an atom -> thread of the warp or warpgroup"),
        "Shape_MNK": _row(lambda mma: mma.shape_mnk, "mma", "M, N and K"),
        "ALayout": _row(lambda atom: atom.a, "atom", "(thread, value) -> m + k M"),
        "BLayout": _row(lambda atom: atom.b, "atom", "(thread, value) -> n + k N"),
        "CLayout": _row(lambda atom: atom.c, "atom", "(thread, value) -> m + n M"),
        "make_tiled_mma": _row(_tiled_mma, "atom atoms:tiler? tile:tiler?", "atoms side by side, M, N, K permuted"),
        **{
            f"get_layout{operand}_TV": _row(
                partial(_thread_values, cast("Operand", operand)), "mma", f"(thread, value) -> coordinate in {operand}"
            )
            for operand in "ABC"
        },
        "SrcLayout": _row(lambda copy: cast(CopyAtom, copy).source, "copy", "(thread, value) -> source index"),
        "DstLayout": _row(lambda copy: cast(CopyAtom, copy).target, "copy", "(thread, value) -> destination index"),
        "make_layout_tv": _row(
            _layout_tv, "threads:layout values:layout", "(thread, value) -> coordinate of a tiled copy"
        ),
        "tv": _row(
            _tv,
            "layout shape:integers",
            "the thread and value of each element of a tile: a drawn inverse of a TV layout",
        ),
    }
)
"""Every function, by its name."""
