"""Values of expressions as tables of cells, and as JSON."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any, cast

from gemmill.library.drawing.cells import SHADES, Grid, Picture
from gemmill.library.errors import LayoutError
from gemmill.library.layouts import tuples, values
from gemmill.library.layouts.algebra import as_layout
from gemmill.library.layouts.atoms import TYPE_BITS, CopyAtom, MmaAtom, Operand, is_whole
from gemmill.library.layouts.layout import MOST_CELLS, AnyLayout, Composed, Layout, Swizzle, column_major
from gemmill.library.layouts.tiled import MODES, Owner, TiledMma
from gemmill.library.layouts.values import ThreadValues, Value

_PLACES: dict[Operand, tuple[int, int]] = {"A": (1, 0), "B": (0, 1), "C": (1, 1)}
"""The places of operands in a picture of D = A B: A left of C, B above C."""


def picture(value: Value) -> Picture:
    """The picture of a value.

    Raises:
        LayoutError: the value has no picture, or too many cells.
    """
    return Picture(title(value), tuple(grids(value)))


def title(value: Value) -> str:
    """The title of a picture: the text of the value in the language."""
    return values.text(value)


def swizzle_note(value: Value) -> str:
    """The swizzle of a value in bytes, for each size of an element; empty without a swizzle that moves elements."""
    swizzle = value.swizzle if isinstance(value, Composed) else value
    if not isinstance(swizzle, Swizzle) or not swizzle.bits:
        return ""
    sizes = [f"{found} for {bits}-bit" for bits, found in _in_bytes(swizzle).items()]
    return f"in bytes, as in CUTLASS: {', '.join(sizes)} elements" if sizes else ""


def _in_bytes(swizzle: Swizzle) -> dict[int, Swizzle]:
    """A swizzle of elements as one of byte addresses, by the bits of an element."""
    sizes = sorted({*TYPE_BITS.values()})
    return {bits: found for bits in sizes if (found := swizzle.in_bytes(bits)) is not None}


def has_picture(value: Value) -> bool:
    """Whether a value has a picture."""
    return isinstance(value, Layout | Composed | MmaAtom | TiledMma | CopyAtom | ThreadValues)


def grids(value: Value) -> list[Grid]:
    """The tables of a value: the indices of a layout, or the owners of the elements of an atom.

    Raises:
        LayoutError: as for :func:`picture`.
    """
    match value:
        case Layout() | Composed():
            return [_indices(value)]
        case ThreadValues():
            return [_held(value.layout, value.shape)]
        case CopyAtom():
            return [_copied("source", value.source, value, 0), _copied("target", value.target, value, 1)]
        case MmaAtom():
            return grids(TiledMma(value, Layout((1, 1, 1), (0, 0, 0)), (None, None, None)))
        case TiledMma():
            _refuse_many(value)
            return [_operand(value, operand) for operand in _PLACES]
        case Swizzle():
            raise LayoutError(f"{value} has no picture; compose it with a layout, for example {value} o (8,64):(64,1)")
        case _:
            raise LayoutError(f"{values.text(value)} has no picture; only layouts and atoms have one")


def _indices(layout: AnyLayout) -> Grid:
    """The indices of a layout: one row for a layout of one mode; otherwise the first mode down, the others across."""
    layout.refuse_many("a table")
    modes = tuples.modes(layout.shape)
    rows = tuples.product(modes[0]) if len(modes) > 1 else 1
    columns = layout.size // rows
    index_rows = [[layout(row + column * rows) for column in range(columns)] for row in range(rows)]
    across = f"mode 0 down, modes 1 to {len(modes) - 1} across" if len(modes) > 2 else ""
    return Grid(across, _strings(index_rows), tuple(tuple(index % SHADES for index in row) for row in index_rows))


def _strings(rows: list[list[int]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(map(str, row)) for row in rows)


def _grid(name: str, owners: dict[int, list[Owner]], rows: int, columns: int, place: tuple[int, int]) -> Grid:
    """Each cell with its first owner, coloured by thread; cells without an owner are empty."""
    cells, shades = [], []
    for row in range(rows):
        first = [next(iter(owners.get(row + column * rows, ())), None) for column in range(columns)]
        cells.append(tuple(f"T{owner.thread}V{owner.value}" if owner else "" for owner in first))
        shades.append(tuple(owner.thread % SHADES if owner else SHADES - 1 for owner in first))
    return Grid(name, tuple(cells), tuple(shades), place)


def _owners(layout: Layout) -> dict[int, list[Owner]]:
    """The owners of each coordinate of a layout (thread, value) -> coordinate."""
    layout.refuse_many("a table of (thread, value)")
    owners_at: dict[int, list[Owner]] = {}
    threads = [layout[0](thread) for thread in range(layout[0].size)]
    for value in range(layout[1].size):
        offset = layout[1](value)
        for thread, start in enumerate(threads):
            owners_at.setdefault(start + offset, []).append(Owner(thread, value))
    return {coordinate: sorted(owners) for coordinate, owners in owners_at.items()}


def _held(layout: Layout, shape: tuple[int, int]) -> Grid:
    if shape[0] * shape[1] > MOST_CELLS:
        column_major(shape).refuse_many("a table")
    return _grid("", _owners(layout), *shape, (0, 0))


def _copied(side: str, layout: Layout, copy: CopyAtom, number: int) -> Grid:
    """One side of a copy, with a row for each 128 bits, in elements or bits."""
    columns = min(max(1, 128 // copy.bits), layout.cosize)
    rows = -(-layout.cosize // columns)
    owners = {
        coordinate // columns + coordinate % columns * rows: holders for coordinate, holders in _owners(layout).items()
    }
    unit = f"elements of {copy.bits} bits" if copy.bits > 1 else "bits"
    return _grid(f"{side}: {unit}, in order", owners, rows, columns, (0, number))


def _refuse_many(mma: TiledMma) -> None:
    for operand, (rows, columns) in MODES.items():
        cells = mma.shape_mnk[rows] * mma.shape_mnk[columns]
        if cells > MOST_CELLS:
            raise LayoutError(
                f"operand {operand} of {mma} has {cells:,} cells; the limit is {MOST_CELLS:,}. Use a smaller tile, or "
                f"get_layout{operand}_TV"
            )


_DOWN_ACROSS: dict[Operand, str] = {"A": "M down, K across", "B": "K down, N across", "C": "M down, N across"}


def _operand(mma: TiledMma, operand: Operand) -> Grid:
    """The table of an operand. B has K down, so that its columns align with those of C."""
    rows, columns = (mma.shape_mnk[mode] for mode in MODES[operand])
    owners = mma.owners(operand)
    if operand == "B":
        owners = {coordinate // rows + coordinate % rows * columns: holders for coordinate, holders in owners.items()}
        rows, columns = columns, rows
    grid = _grid(f"{operand}: {_DOWN_ACROSS[operand]}", owners, rows, columns, _PLACES[operand])
    if not is_whole(mma.fragments(operand)[0][0]):
        return grid
    cells = tuple(tuple(cell[cell.index("V") :] for cell in row) for row in grid.cells)
    return replace(grid, title=f"{grid.title}; in shared memory, accessed by all threads", cells=cells)


def facts(value: Value) -> dict[str, Any]:
    """The JSON of a value without its tables."""
    description: dict[str, Any] = {"kind": _kind(value), "text": values.text(value)}
    match value:
        case Layout():
            description |= _facts_of(value) | {"cosize": value.cosize}
        case Composed(swizzle, offset, inner):
            description |= _facts_of(inner) | _swizzle_facts(swizzle) | {"offset": offset}
        case Swizzle():
            description |= _swizzle_facts(value)
        case MmaAtom():
            description |= {"shape_mnk": value.shape_mnk, "thread_ids": str(value.thread_ids)}
            description |= {"layouts": {"A": str(value.a), "B": str(value.b), "C": str(value.c)}}
        case TiledMma():
            description |= {"atom": value.atom.name, "shape_mnk": value.shape_mnk, "threads": str(value.threads)}
            description |= {"layouts": {operand: str(value.thread_values(operand)) for operand in MODES}}
            description["permutations"] = [None if mode is None else str(as_layout(mode)) for mode in value.tile]
        case CopyAtom():
            description |= {"bits": value.bits, "layouts": {"source": str(value.source), "target": str(value.target)}}
        case ThreadValues():
            description |= {"layout": str(value.layout), "tile": value.shape}
        case _:
            description["value"] = cast("Any", value)
    return description


def _kind(value: Value) -> str:
    if isinstance(value, int) or value is None:
        return "integer"
    names = {Layout: "layout", Composed: "composed", Swizzle: "swizzle", MmaAtom: "mma_atom", TiledMma: "tiled_mma"}
    return {**names, CopyAtom: "copy_atom", ThreadValues: "thread_values"}.get(type(value), "tuple")


def _swizzle_facts(swizzle: Swizzle) -> dict[str, Any]:
    in_bytes = {str(bits): astuple(found) for bits, found in _in_bytes(swizzle).items()}
    return {"swizzle": astuple(swizzle), "swizzle_in_bytes": in_bytes}


def _facts_of(layout: Layout) -> dict[str, Any]:
    sizes = {"rank": layout.rank, "depth": layout.depth, "size": layout.size}
    return {"shape": layout.shape, "stride": layout.stride, **sizes}
