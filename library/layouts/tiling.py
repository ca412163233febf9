"""Divides and products of CuTe's algebra: a layout cut into tiles, or repeated."""

from __future__ import annotations

from collections.abc import Callable

from gemmill.library.errors import LayoutError
from gemmill.library.layouts import tuples
from gemmill.library.layouts.algebra import Tiler, as_layout, by_mode, complement, composition, ordered
from gemmill.library.layouts.layout import Layout, join
from gemmill.library.layouts.tuples import IntTuple


def logical_divide(layout: Layout, tiler: Tiler) -> Layout:
    """(tile, rest): what a tiler picks of a layout, and how often; a tuple divides mode by mode."""
    if tiler is None:
        return layout
    if isinstance(tiler, tuple):
        return join(logical_divide(mode, of_mode) for mode, of_mode in by_mode(layout, tiler))
    tile = as_layout(tiler)
    return composition(layout, join([tile, complement(tile, layout.size)]))


def logical_product(block: Layout, tiler: Tiler) -> Layout:
    """(block, tiler): a layout, and where its copies lie; a tuple multiplies mode by mode."""
    if tiler is None:
        return block
    if isinstance(tiler, tuple):
        return join(logical_product(mode, of_mode) for mode, of_mode in by_mode(block, tiler))
    copies = as_layout(tiler)
    return join([block, composition(complement(block, block.size * copies.cosize), copies)])


Split = Callable[[Layout, Tiler], Layout]


def zipped(split: Split, layout: Layout, tiler: Tiler) -> Layout:
    """((tiles), (rests)): a divide or product by mode, whose first parts are gathered, and its second."""
    if tiler is None:
        return join([Layout(1, 0), layout])
    if not isinstance(tiler, tuple):
        return split(layout, tiler)
    parts = [zipped(split, mode, of_mode) for mode, of_mode in by_mode(layout, tiler)[: len(tiler)]]
    rests = [*(part[1] for part in parts), *layout.modes[len(tiler) :]]
    return join([join(part[0] for part in parts), join(rests)])


def tiled(split: Split, layout: Layout, tiler: Tiler) -> Layout:
    """((tiles), rest, rest, ...): as :func:`zipped`, with a mode for each rest."""
    result = zipped(split, layout, tiler)
    return join([result[0], *result[1].modes])


def flat(split: Split, layout: Layout, tiler: Tiler) -> Layout:
    """(tile, tile, ..., rest, rest, ...): as :func:`zipped`, with a mode for each part."""
    result = zipped(split, layout, tiler)
    return join([*result[0].modes, *result[1].modes])


def _appended(layout: Layout, rank: int) -> Layout:
    """A layout with modes ``1:0`` behind its own, up to a rank."""
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
    """A block repeated until it fills a shape, in the first mode first unless an order says otherwise.

    Raises:
        LayoutError: the block has more modes than the shape, or an extent that does not divide its own there.
    """
    targets = [tuples.product(mode) for mode in tuples.modes(shape)]
    if block.rank > len(targets):
        raise LayoutError(
            f"tile_to_shape: {block} has {block.rank} modes, and shape {tuples.text(shape)} has {len(targets)}"
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
