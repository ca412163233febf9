"""The panels of a page: tile, shared memory, ownership, epilogue, roles over time, K of a tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType

from gemmill.library.anatomy.anatomy import CHUNK
from gemmill.library.anatomy.raster import Waves
from gemmill.library.anatomy.sheet import Figure, Kernel, Sheet
from gemmill.library.arithmetic import arithmetic_of
from gemmill.library.config.model import DecompositionName
from gemmill.library.drawing.cells import SHADES, Grid
from gemmill.library.drawing.svg import CHARACTER
from gemmill.library.families.wgmma.wgmma_plan import SUBTILE_M
from gemmill.library.layouts.atoms import Operand, is_whole
from gemmill.library.layouts.layout import Layout, Swizzle
from gemmill.library.layouts.picture import grids

_BANKS_BYTES = 128
"""Bytes of all banks."""
_TILE_WIDE, _TILE_HIGH = 280, 280
"""Most width and height of a cluster tile and its operands in pixels."""
_NARROW = 360
"""Width of figures that a phone shows without scrolling."""
_STEP = 60
"""Width in pixels of a unit of time of a role."""
_TEXT_HIGH = 16
"""Height of a box that fits a text."""
_COMPONENTS = {2: ("hi", "lo"), 3: ("hi", "mid", "lo")}
"""Names of the components of split f32, by their number."""
_TERM_WIDE, _TERM_HIGH = 96, 26
"""Width and height of the box of a term."""
_SUBTILE = 48
"""Width and height of a subtile of a symmetric D."""
SHOWN = 16
"""Rows and columns of a table of owners. Further rows and columns repeat the pattern."""
K_IN_WORDS: Mapping[DecompositionName, str] = MappingProxyType(
    {
        "tiles": "one CTA sums all of it.",
        "splitk": "each slice is a unit of work; the launch sets their number, and a second kernel adds the sums.",
        "stream": "clusters share the tiles of a partial last wave along K, and add their sums.",
        "cluster": "each CTA of a cluster processes one slice; they exchange sums through shared memory.",
        "serial": "one CTA sums one slice after another, and adds their sums; the launch sets their number.",
        "tree": "each slice is a unit of work; the launch sets their number; a second kernel adds the sums in pairs.",
    }
)
"""A sentence on how K is processed, by decomposition."""


def tile(sheet: Sheet, kernel: Kernel) -> None:
    """The cluster tile of D with the parts of A and B that its CTAs load."""
    config, (along_m, along_n) = kernel.config, kernel.launch.cluster
    m, n, k = config.tile.m, config.tile.n, config.tile.k
    sheet.heading("The tile over D, and its cluster")
    scale = min(2.0, _TILE_WIDE / (k + along_n * n), _TILE_HIGH / (k + along_m * m))
    high, wide, deep = m * scale, n * scale, k * scale
    text_a, text_b = f"A {m}x{k}", f"B {k}x{n}"
    figure, left_a = Figure(), (len(text_a) + 1) * CHARACTER
    left, top = left_a + deep + 8, 20 + deep + 8
    for column in range(along_n):
        figure.box(left + column * wide, 20, wide, deep, 2)
        if column == along_n - 1 or wide > (len(text_b) + 1) * CHARACTER:
            figure.text(left + (column + 1) * wide, 14, text_b, "r")
    for row in range(along_m):
        figure.box(left_a, top + row * high, deep, high, 0)
        if not row or high >= _TEXT_HIGH:
            figure.text(0, top + row * high + min(high / 2, 8) + 4, text_a)
        for column in range(along_n):
            rank = row + column * along_m
            fits = wide > 6 * CHARACTER and high >= _TEXT_HIGH
            place = left + column * wide, top + row * high
            figure.box(*place, wide, high, rank % SHADES, f"CTA {rank}" if fits else "")
    sheet.figures(figure)
    sheet.words(
        f"A CTA of {kernel.launch.threads} threads computes a {m}x{n} tile of D in steps of {k} along K. "
        f"{_multicast(kernel)} The boxes are to scale."
    )


def _multicast(kernel: Kernel) -> str:
    along_m, along_n = kernel.launch.cluster
    if kernel.launch.cluster_k > 1:
        return (
            f"A cluster of {kernel.launch.cluster_k} CTAs shares K of one tile. Each CTA stores a share of its columns."
        )
    if along_m * along_n == 1:
        return "It loads all of its A and B itself, because there is no cluster."
    shared = [
        f"each of {peers} CTAs loads one of {peers} slices of a stage of {operand} and multicasts it to all of them"
        for operand, peers in (("A", along_n), ("B", along_m))
        if peers > 1
    ]
    return f"A cluster is {along_m}x{along_n} CTAs: {'; '.join(shared)}."


def shared(sheet: Sheet, kernel: Kernel) -> None:
    """The regions of shared memory to scale, and the banks of a stage."""
    sheet.heading("Shared memory")
    total = kernel.plan.shared_bytes
    figure, place = Figure(), 0.0
    for number, region in enumerate(kernel.plan.regions):
        wide = region.bytes / total * _NARROW if total else 0
        many = f"{region.parts} x {region.size:,}" if region.parts > 1 else f"{region.size:,}"
        figure.text(0, 36 * number + 12, f"{region.name}: {many} bytes")
        figure.box(place, 36 * number + 17, max(wide, 1.0), 13, number % SHADES)
        place += wide
    sheet.figures(figure)
    ctas, reason = kernel.occupancy.ctas, kernel.occupancy.reason
    sheet.words(
        f"{total:,} bytes in total, in address order and to scale. An SM holds {ctas} CTA{'s' * (ctas != 1)} of this "
        f"kernel at a time: {reason}."
    )
    spans = {operand: kernel.anatomy.span(operand) for operand in kernel.config.inputs}
    swizzled = {operand: span for operand, span in spans.items() if span > CHUNK}
    if not swizzled:
        sheet.words(kernel.anatomy.unswizzled)
        return
    sheet.words(
        "Banks of a stage: each line is 128 bytes, with banks 0-3, 4-7, ..., 28-31 from left to right. A cell shows "
        "the row (r) and the 16-byte chunk (c) of a panel. The chunks of a column of eight rows are in different banks."
    )
    sheet.tables(
        *(
            banks(f"{name.upper()}: rows of {span} bytes", span, kernel.config.inputs[name].loaded.unpacked_bytes)
            for name, span in swizzled.items()
        )
    )


def banks(title: str, span_bytes: int, element_bytes: int) -> Grid:
    """Eight lines of 128 bytes, with the row and 16-byte chunk of a panel in each group of four banks.

    Rows have the width of a swizzle span, with CuTe's ``Sw<log2(span / 16), 4, 3>``. For 8-byte elements the bits of
    the line are reversed (``swizzled_in_pairs``).
    """
    bits = (span_bytes // CHUNK).bit_length() - 1
    swizzle = Swizzle(bits, 4, 3)
    cells, shades = [], []
    for line in range(8):
        permuted_line = int(f"{line % 2**bits:0{bits}b}"[::-1], 2) if element_bytes == 8 else line
        chunks = [
            divmod(line * _BANKS_BYTES + swizzle(permuted_line * _BANKS_BYTES + place) % _BANKS_BYTES, span_bytes)
            for place in range(0, _BANKS_BYTES, CHUNK)
        ]
        cells.append(tuple(f"r{row} c{within // CHUNK}" for row, within in chunks))
        shades.append(tuple(within // CHUNK % SHADES for _, within in chunks))
    return Grid(title, tuple(cells), tuple(shades))


def terms(sheet: Sheet, kernel: Kernel) -> None:
    """For split f32: the components in a stage, and the products of them in order."""
    split = kernel.config.a.type
    if split.component is None:
        return
    names, count = _COMPONENTS[split.components], len(split.terms)
    sheet.heading("Components of f32, and terms")
    scaled = ", once its row of A or column of B is scaled by a power of two" if split.scales_rows else ""
    unscaled = ", and the epilogue takes the powers of two back" if split.scales_rows else ""
    left_out = f"; the other {split.components**2 - count} are too small" if count < split.components**2 else ""
    sheet.words(
        f"Another kernel has split each f32 into {split.components} components of {split.component}, which add up to "
        f"it{scaled}. A stage holds all components of its A and B. MMAs multiply {count} pairs of them, the smallest "
        f"products first{left_out}. The sums of a stage then move to f32 registers{unscaled}."
    )
    pairs, order = Figure(), Figure()
    for place, name in enumerate(names):
        pairs.box((place + 1) * _TERM_WIDE, 0, _TERM_WIDE - 3, _TERM_HIGH - 3, 2, f"B {name}")
        pairs.box(0, (place + 1) * _TERM_HIGH, _TERM_WIDE - 3, _TERM_HIGH - 3, 0, f"A {name}")
    for number, (of_a, of_b) in enumerate(split.terms):
        size, shade = (_TERM_WIDE - 3, _TERM_HIGH - 3), 3 + of_a + of_b
        pairs.box((of_b + 1) * _TERM_WIDE, (of_a + 1) * _TERM_HIGH, *size, shade, f"#{number}")
        order.box(number * _TERM_WIDE, 0, *size, shade, f"#{number} {names[of_a]} x {names[of_b]}")
    order.box(count * _TERM_WIDE, 0, _TERM_WIDE - 3, _TERM_HIGH - 3, 1, "f32 sums")
    sheet.figures(pairs)
    sheet.figures(order)


def holders(sheet: Sheet, kernel: Kernel) -> None:
    """The warp of each part of the accumulators, and the thread of each element."""
    sheet.heading("Ownership of accumulators and operands")
    layout = kernel.anatomy.accumulators()
    m, n = kernel.config.tile.m, kernel.config.tile.n
    sheet.words(kernel.anatomy.threads)
    owners = _owners(layout)
    sheet.tables(_warps(owners, m, n), _elements("accumulators", owners, m, n))
    atom = kernel.anatomy.instruction()
    if atom is None:
        sheet.words(kernel.anatomy.operands)
        return
    sheet.words(
        f"A and B of one instruction, {atom}: M {atom.shape_mnk[0]}, N {atom.shape_mnk[1]}, K {atom.shape_mnk[2]}."
    )
    drawn = dict(zip("ABC", grids(atom), strict=True))
    parts: dict[Operand, Layout] = {"A": atom.a, "B": atom.b}
    for operand, of_operand in parts.items():
        if is_whole(of_operand[0]):
            sheet.words(f"{operand} is in shared memory: the instruction reads it through a descriptor.")
    sheet.tables(*(_corner(drawn[operand]) for operand, part in parts.items() if not is_whole(part[0])))


def _owners(layout: Layout) -> dict[int, tuple[int, int]]:
    """Thread and value of each coordinate; the lowest thread if there are several."""
    starts = [layout[0](thread) for thread in range(layout[0].size)]
    steps = [layout[1](value) for value in range(layout[1].size)]
    owners: dict[int, tuple[int, int]] = {}
    for thread, start in enumerate(starts):
        for value, step in enumerate(steps):
            owners.setdefault(start + step, (thread, value))
    return owners


def _elements(subject: str, owners: Mapping[int, tuple[int, int]], m: int, n: int) -> Grid:
    """The table of the first rows and columns of a tile."""
    rows, columns = min(m, SHOWN), min(n, SHOWN)
    owner_rows = [[owners[row + column * m] for column in range(columns)] for row in range(rows)]
    title = f"{subject}: rows 0-{rows - 1} of {m}, columns 0-{columns - 1} of {n}"
    return Grid(title, _rows(owner_rows), tuple(tuple(thread % SHADES for thread, _ in row) for row in owner_rows))


def _rows(owner_rows: Sequence[Sequence[tuple[int, int]]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(f"T{thread}V{value}" for thread, value in row) for row in owner_rows)


def _warps(owners: Mapping[int, tuple[int, int]], m: int, n: int) -> Grid:
    """The table of the warps of each part of a tile."""
    high, wide = max(1, min(16, m)), max(8, n // 8)
    cells = []
    for row in range(0, m, high):
        line = []
        for column in range(0, n, wide):
            inside = [(r, c) for r in range(row, min(row + high, m)) for c in range(column, min(column + wide, n))]
            warps = sorted({owners[r + c * m][0] // 32 for r, c in inside})
            line.append(f"w{warps[0]}" if len(warps) == 1 else f"w{warps[0]}-{warps[-1]}")
        cells.append(tuple(line))
    shades = tuple(tuple(int(cell[1:].partition("-")[0]) % SHADES for cell in row) for row in cells)
    return Grid(f"warps: parts of {high}x{wide} of the tile", tuple(cells), shades)


def _corner(grid: Grid) -> Grid:
    """The first rows and columns of a table."""
    cells = tuple(row[:SHOWN] for row in grid.cells[:SHOWN])
    shades = tuple(row[:SHOWN] for row in grid.shades[:SHOWN])
    return Grid(f"{grid.title} (rows 0-{len(cells) - 1}, columns 0-{len(cells[0]) - 1})", cells, shades)


def epilogue(sheet: Sheet, kernel: Kernel) -> None:
    """How threads store D."""
    sheet.heading("Epilogue")
    if (staging := kernel.anatomy.staging()) is None:
        sheet.words("Threads apply the epilogue to the sums in their registers and store them to D without staging.")
        return
    wide, buffers = staging.subtile_n, staging.buffers
    across = -(-staging.columns // wide)
    whose = f"Each of {staging.writers} warpgroups stages" if staging.writers > 1 else "A warpgroup stages"
    overlaps = (
        "The last subtile of a row starts earlier and stores the columns that it shares with the previous one again."
    )
    sheet.words(
        f"{whose} its {64 * staging.down}x{staging.columns} of D in subtiles of "
        f"64x{wide}, one at a time, in {buffers} buffer{'s' * (buffers > 1)}. TMA stores a subtile while the next one "
        f"is written. {overlaps if staging.columns % wide else ''}"
    )
    numbers = [[row * across + column for column in range(across)] for row in range(staging.down)]
    words = " buffer {}" if across <= SHOWN // 2 else "/{}"  # more have no room for the word
    cells = tuple(tuple(f"#{number}{words.format(number % buffers)}" for number in row) for row in numbers)
    shades = tuple(tuple(number % buffers % SHADES for number in row) for row in numbers)
    sheet.tables(Grid("subtiles of a warpgroup", cells, shades))
    if staging.mirrored:
        _mirrors(sheet, kernel)


def _mirrors(sheet: Sheet, kernel: Kernel) -> None:
    """The subtiles of a tile of a symmetric D, and where their mirrors are stored."""
    m, n = kernel.config.tile.m, kernel.config.tile.n
    diagonal = "A tile on the diagonal is" if m == n else "A tile wholly above the diagonal is not stored, one on it"
    sheet.words(
        "D equals its transpose. A buffer holds a subtile twice: as it is, and transposed (T), for the other side of "
        f"the diagonal. {diagonal} {'stored once' if m == n else 'twice'}. The picture is a D of {m + n}x{m + n}, to "
        "scale."
    )
    figure, scale = Figure(), _SUBTILE / SUBTILE_M
    figure.box(0, 0, (m + n) * scale, (m + n) * scale, SHADES - 1)
    for number, (row, column) in enumerate(product(range(0, m, SUBTILE_M), range(0, n, SUBTILE_M))):
        name, wide = chr(ord("a") + number), min(SUBTILE_M, n - column)
        label = name if wide * scale > 4 * CHARACTER else ""
        place = column * scale, (n + row) * scale, wide * scale, _SUBTILE
        figure.box(*place, number % (SHADES - 1), label)
        figure.box(place[1], place[0], _SUBTILE, wide * scale, number % (SHADES - 1), label and f"{label}T")
    sheet.figures(figure)


def roles(sheet: Sheet, kernel: Kernel) -> None:
    """The activities of warps in order, not to scale."""
    sheet.heading("Roles over time (order only, not to scale)")
    figure = Figure()
    for number, lane in enumerate(kernel.anatomy.lanes()):
        top = 46.0 * number
        figure.text(0, top + 12, lane.name)
        for start, end, words, shade in lane.steps:
            figure.box(start * _STEP, top + 17, (end - start) * _STEP - 3, 22, shade, words)
    sheet.figures(figure)


def decomposition(sheet: Sheet, kernel: Kernel, waves: Waves | None) -> None:
    """How CTAs share the K of a tile."""
    sheet.heading("K of a tile")
    k = _k(waves)
    steps = -(-k // kernel.config.tile.k) if k else None
    steps_text = f"{f'{steps:,} ' if steps else ''}step{'s' * (steps != 1)} of {kernel.config.tile.k}"
    splits = max(kernel.launch.cluster_k, waves.slices if waves else 1)
    name = kernel.config.scheduler.decomposition
    figure, drawn = Figure(), min(splits, 16)
    for part in range(drawn):
        wide = _NARROW / drawn
        text = "all of K" if splits == 1 else f"slice {part}"
        figure.box(part * wide, 0, wide - 3, 26, part % SHADES, text if wide > 70 else str(part))
    sheet.figures(figure)
    note = f" The picture shows {drawn} of {splits} slices." if drawn < splits else ""
    sheet.words(f"K has {steps_text}; {K_IN_WORDS[name]}{note}")
    arithmetic = arithmetic_of(kernel.config, waves.slices if waves else 0)
    sheet.words(f"Arithmetic {arithmetic}: {arithmetic.in_words()}.")


def _k(waves: Waves | None) -> int | None:
    """The K of all matrices; None if they differ."""
    extents = {matrix.k for matrix in waves.matrices} if waves else set()
    return extents.pop() if len(extents) == 1 else None
