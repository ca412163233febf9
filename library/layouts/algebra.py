"""CuTe's layout algebra: coalesce, composition, complement, inverses and more, with CuTe's static_asserts as errors.

``docs/layouts.md`` explains why gemmill does not use ``pycute``; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from gemmill.library.errors import LayoutError
from gemmill.library.layouts import tuples
from gemmill.library.layouts.layout import AnyLayout, Composed, Layout, Swizzle, column_major, join
from gemmill.library.layouts.tuples import IntTuple

Tiler: TypeAlias = "int | Layout | tuple[Tiler, ...] | None"
"""A tiler: a layout, n for ``n:1``, or a tuple of tilers for the modes; None leaves a mode unchanged."""


Slice: TypeAlias = "int | tuple[Slice, ...] | None"
"""A coordinate in which None selects all of a mode."""


def _of_leaves(leaves: list[tuple[int, int]]) -> Layout:
    """A flat layout of extents and strides; an integer layout for one pair, ``1:0`` for none."""
    if len(leaves) < 2:
        return Layout(*(leaves or [(1, 0)])[0])
    return Layout(tuple(extent for extent, _ in leaves), tuple(stride for _, stride in leaves))


def coalesce(layout: Layout, profile: IntTuple | None = None) -> Layout:
    """The same function with as few integers as possible; with a profile, separately for each of its modes."""
    if isinstance(profile, tuple):
        return join(
            mode if number >= len(profile) else coalesce(mode, profile[number])
            for number, mode in enumerate(_as_deep(layout, profile).modes)
        )
    leaves: list[tuple[int, int]] = []
    for extent, stride in layout.leaves:
        if extent == 1:
            continue
        if leaves and leaves[-1][0] * leaves[-1][1] == stride:
            leaves[-1] = (leaves[-1][0] * extent, leaves[-1][1])
        else:
            leaves.append((extent, stride))
    return _of_leaves(leaves)


def filtered(layout: Layout) -> Layout:
    """The coalesced layout without modes of stride 0 (``filter``)."""
    return coalesce(_of_leaves([(extent, stride) for extent, stride in layout.leaves if stride]))


def flattened(layout: Layout) -> Layout:
    """The same integers without nesting (``flatten``)."""
    if isinstance(layout.shape, int):
        return layout
    return Layout(tuples.flat(layout.shape), tuples.flat(layout.stride))


def _as_deep(layout: Layout, tiler: tuple[object, ...]) -> Layout:
    """The layout itself, if it has at least as many modes as a tiler."""
    if layout.rank < len(tiler):
        raise LayoutError(f"{layout} has {layout.rank} modes, but {len(tiler)} were passed; pass at most {layout.rank}")
    return layout


def by_mode(layout: Layout, tiler: tuple[Tiler, ...]) -> list[tuple[Layout, Tiler]]:
    """Each mode of a layout with its tiler."""
    rest: tuple[Tiler, ...] = (None,) * (layout.rank - len(tiler))
    return [*zip(_as_deep(layout, tiler).modes, (*tiler, *rest), strict=True)]


def as_layout(tiler: int | Layout) -> Layout:
    """A tiler as a layout: ``n:1`` for an integer n."""
    return Layout(tiler, 1) if isinstance(tiler, int) else tiler


def composition(outer: Layout, inner: Tiler) -> Layout:
    """R with R(c) = outer(inner(c)) and the shape of inner; a tuple composes mode by mode.

    Raises:
        LayoutError: that function is not a layout, because strides or extents do not divide those of outer.
    """
    if inner is None:
        return outer
    if isinstance(inner, tuple):
        return join(composition(mode, tiler) for mode, tiler in by_mode(outer, inner))
    inner = as_layout(inner)
    if isinstance(inner.shape, tuple):
        return join(composition(outer, mode) for mode in inner.modes)
    assert isinstance(inner.stride, int)
    return _of_mode(outer, inner.shape, inner.stride)


def _of_mode(outer: Layout, extent: int, stride: int) -> Layout:
    """The composition with ``extent:stride``: every ``stride``-th coordinate of outer, ``extent`` of them."""
    if stride == 0:
        return Layout(extent, 0)
    operation = f"composition of {outer} with {extent}:{stride}"
    leaves: list[tuple[int, int]] = []
    counted = coalesce(outer).leaves
    for size, step in counted[:-1]:
        if extent > 1 and stride % size and size % stride and (extent - 1) * stride >= size:
            raise LayoutError(
                f"{operation}: stride {stride} and extent {size} of {coalesce(outer)} do not divide one another, so "
                "the result is not a layout"
            )
        taken = min(max(1, -(-size // stride)), extent)
        if extent % taken:
            raise LayoutError(
                f"{operation}: {taken} of extent {extent} fit into extent {size} of {coalesce(outer)}, but {taken} "
                f"does not divide {extent}, so the result is not a layout"
            )
        if taken > 1:
            leaves.append((taken, stride * step))
        extent //= taken
        stride = -(-stride // size)
    if extent > 1 or not leaves:
        leaves.append((extent, stride * counted[-1][1]))
    return _of_leaves(leaves)


def complement(layout: Layout, cosize: IntTuple = 1) -> Layout:
    """The coalesced layout of the indices that a layout leaves out, up to a cosize.

    Raises:
        LayoutError: the layout has an index twice, or its strides are not multiples of one another.
    """
    leaves: list[tuple[int, int]] = []
    covered = 1
    for stride, extent in sorted((stride, extent) for extent, stride in layout.leaves if stride and extent > 1):
        if stride % covered:
            raise LayoutError(
                f"complement of {layout}: stride {stride} is not a multiple of {covered}, which the smaller strides "
                "cover, so indices overlap or leave uneven gaps"
            )
        leaves.append((stride // covered, covered))
        covered = extent * stride
    leaves.append((-(-tuples.product(cosize) // covered), covered))
    return coalesce(_of_leaves(leaves))


def right_inverse(layout: Layout) -> Layout:
    """The coalesced R with layout(R(i)) = i, for the longest range of i from 0 that the layout covers without gaps."""
    leaves: list[tuple[int, int]] = []
    covered = 1
    for stride, extent, step in _by_stride(layout):
        if stride == covered:
            leaves.append((extent, step))
            covered = extent * stride
    return coalesce(_of_leaves(leaves))


def _by_stride(layout: Layout) -> list[tuple[int, int, int]]:
    """Stride, extent and coordinate step of each integer with nonzero stride, sorted by stride."""
    simple = coalesce(layout)
    steps = tuples.flat(tuples.compact(simple.shape))
    modes = [(stride, extent, step) for (extent, stride), step in zip(simple.leaves, steps, strict=True)]
    return sorted((stride, extent, step) for stride, extent, step in modes if stride and extent > 1)


def left_inverse(layout: Layout) -> Layout:
    """The coalesced R with R(layout(i)) = i for every i, except that R returns 0 for modes of stride 0.

    Raises:
        LayoutError: the layout has an index twice, or its strides are not multiples of one another.
    """
    leaves: list[tuple[int, int]] = []
    covered, last, of_last = 1, 1, 0
    for stride, extent, step in _by_stride(layout):
        if stride < covered or stride % last:
            raise LayoutError(
                f"left_inverse of {layout}: stride {stride} must be at least {covered} and a multiple of {last}; "
                "otherwise the inverse is not a layout"
            )
        leaves.append((stride // last, of_last))
        covered, last, of_last = extent * stride, stride, step
    return coalesce(_of_leaves([*leaves, (covered // last, of_last)]))


def upcast(layout: Layout, count: int) -> Layout:
    """The layout in units of ``count`` elements, for example a layout of bits in units of a type.

    Raises:
        LayoutError: a unit would be split, or the count is below 1.
    """
    if count < 1:
        raise LayoutError(f"upcast of {layout}: n is {count}; it must be at least 1")

    def leaf(extent: int, stride: int) -> tuple[int, int]:
        if stride and stride % count and count % stride:
            raise LayoutError(f"upcast of {layout}: stride {stride} and {count} do not divide one another")
        if stride and stride < count and extent % (count // stride) and extent > 1:
            raise LayoutError(f"upcast of {layout}: {count} elements do not divide extent {extent} of stride {stride}")
        return (extent, 0) if not stride else (-(-extent // -(-count // stride)), -(-stride // count))

    def nested(shape: IntTuple, stride: IntTuple) -> Layout:
        if isinstance(shape, int):
            assert isinstance(stride, int)
            return Layout(*leaf(shape, stride))
        assert isinstance(stride, tuple)
        return join(map(nested, shape, stride))

    return nested(layout.shape, layout.stride)


def sliced(layout: AnyLayout, coordinate: Slice) -> AnyLayout:
    """The layout of the modes at which a coordinate is None, with the offset of the other modes."""
    inner = layout.inner if isinstance(layout, Composed) else layout
    kept_modes: list[Layout] = []
    offset = _slice(inner, coordinate, kept_modes)
    rest = kept_modes[0] if len(kept_modes) == 1 else join(kept_modes)
    if isinstance(layout, Composed):
        return Composed(layout.swizzle, layout.offset + offset, rest)
    return moved(rest, offset)


def _slice(layout: Layout, coordinate: Slice, kept_modes: list[Layout]) -> int:
    if coordinate is None:
        kept_modes.append(layout)
        return 0
    if isinstance(coordinate, int):
        return layout(coordinate)
    if isinstance(layout.shape, int) or layout.rank != len(coordinate):
        raise LayoutError(
            f"the coordinate has {len(coordinate)} modes, but {layout} has {layout.rank}; pass one value per mode"
        )
    return sum(_slice(mode, within, kept_modes) for mode, within in zip(layout.modes, coordinate, strict=True))


def moved(layout: Layout, offset: int) -> AnyLayout:
    """A layout with an offset. If the offset is not 0, the result has a swizzle that changes nothing."""
    return Composed(Swizzle(0, 4, 3), offset, layout) if offset else layout


def ordered(shape: IntTuple, order: IntTuple) -> Layout:
    """The compact layout in which modes with smaller numbers in ``order`` vary faster (``make_ordered_layout``)."""
    if not tuples.congruent(shape, order):
        raise LayoutError(
            f"shape {tuples.text(shape)} and order {tuples.text(order)} have different nesting; pass one number for "
            "each extent"
        )
    extents, numbers = tuples.flat(shape), tuples.flat(order)
    strides = dict.fromkeys(range(len(extents)), 1)
    stride = 1
    for mode in sorted(strides, key=lambda mode: numbers[mode]):
        strides[mode] = stride if extents[mode] > 1 else 0
        stride *= extents[mode]
    by_leaf = iter(strides.values())

    def nested(mode: IntTuple) -> IntTuple:
        return next(by_leaf) if isinstance(mode, int) else tuple(map(nested, mode))

    return column_major(shape) if isinstance(shape, int) else Layout(shape, nested(shape))


def logical_divide(layout: Layout, tiler: Tiler) -> Layout:
    """(tile, rest): the part of a layout that a tiler selects, and its repetitions; a tuple divides mode by mode."""
    if tiler is None:
        return layout
    if isinstance(tiler, tuple):
        return join(logical_divide(mode, of_mode) for mode, of_mode in by_mode(layout, tiler))
    tile = as_layout(tiler)
    return composition(layout, join([tile, complement(tile, layout.size)]))


def logical_product(block: Layout, tiler: Tiler) -> Layout:
    """(block, tiler): a layout and the layout of its copies; a tuple multiplies mode by mode."""
    if tiler is None:
        return block
    if isinstance(tiler, tuple):
        return join(logical_product(mode, of_mode) for mode, of_mode in by_mode(block, tiler))
    copies = as_layout(tiler)
    return join([block, composition(complement(block, block.size * copies.cosize), copies)])


Split = Callable[[Layout, Tiler], Layout]


def zipped(split: Split, layout: Layout, tiler: Tiler) -> Layout:
    """((tiles), (rests)): a divide or product by mode, with the first parts and the second parts gathered."""
    if tiler is None:
        return join([Layout(1, 0), layout])
    if not isinstance(tiler, tuple):
        return split(layout, tiler)
    parts = [zipped(split, mode, of_mode) for mode, of_mode in by_mode(layout, tiler)[: len(tiler)]]
    rests = [*(part[1] for part in parts), *layout.modes[len(tiler) :]]
    return join([join(part[0] for part in parts), join(rests)])


def tiled(split: Split, layout: Layout, tiler: Tiler) -> Layout:
    """((tiles), rest, rest, ...): like :func:`zipped`, with a mode for each rest."""
    result = zipped(split, layout, tiler)
    return join([result[0], *result[1].modes])


def flat(split: Split, layout: Layout, tiler: Tiler) -> Layout:
    """(tile, tile, ..., rest, rest, ...): like :func:`zipped`, with a mode for each part."""
    result = zipped(split, layout, tiler)
    return join([*result[0].modes, *result[1].modes])


def _appended(layout: Layout, rank: int) -> Layout:
    """A layout padded with modes ``1:0`` to a rank."""
    return join([*layout.modes, *[Layout(1, 0)] * (rank - layout.rank)])


def _product_by_mode(block: Layout, tiler: Layout) -> tuple[Layout, Layout]:
    rank = max(block.rank, tiler.rank)
    result = logical_product(_appended(block, rank), _appended(tiler, rank))
    return result[0], result[1]


def _paired(firsts: Layout, seconds: Layout) -> Layout:
    return join(join(pair) for pair in zip(firsts.modes, seconds.modes, strict=True))


def blocked_product(block: Layout, tiler: Layout) -> Layout:
    """A block at each place of a tiler: modes ((block, tiler), ...)."""
    return _paired(*_product_by_mode(block, tiler))


def raked_product(block: Layout, tiler: Layout) -> Layout:
    """A block at each place of a tiler, interleaved: modes ((tiler, block), ...)."""
    return _paired(*reversed(_product_by_mode(block, tiler)))


def tile_to_shape(block: Layout, shape: IntTuple, order: IntTuple | None = None) -> Layout:
    """A block repeated until it fills a shape: along the first mode first, or in the given order.

    Raises:
        LayoutError: the block has more modes than the shape, or an extent that does not divide that of the shape.
    """
    targets = [tuples.product(mode) for mode in tuples.modes(shape)]
    if block.rank > len(targets):
        raise LayoutError(
            f"tile_to_shape: {block} has {block.rank} modes, but shape {tuples.text(shape)} has only {len(targets)}"
        )
    padded = _appended(block, len(targets))
    extents = [mode.size for mode in padded.modes]
    for target, extent in zip(targets, extents, strict=True):
        if target % extent:
            raise LayoutError(
                f"tile_to_shape: extent {extent} of {block} does not divide {target} of shape {tuples.text(shape)}"
            )
    counts = tuple(target // extent for target, extent in zip(targets, extents, strict=True))
    numbers = tuple(range(len(counts))) if order is None else tuples.modes(order)
    return blocked_product(padded, ordered(counts, numbers))
