"""Panels of a page: the tile, shared memory, the epilogue, roles over time."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.anatomy import memory
from gemmill.library.anatomy.sheet import LEFT, Kernel, Sheet
from gemmill.library.drawing.grid import SHADES, Grid
from gemmill.library.families.wgmma import shared_memory, subtiles, warpgroups


def tile(sheet: Sheet, kernel: Kernel) -> None:
    """D's cluster tile with the parts of A and B that its CTAs load."""
    config, (along_m, along_n) = kernel.config, kernel.launch.cluster
    m, n, k = config.tile.m, config.tile.n, config.tile.k
    sheet.heading("The tile over D, and its cluster")
    left, top, height = LEFT + 150.0, sheet.bottom + 40, max(30.0, min(110.0, m * 0.5))
    width = max(100.0, min(220.0, n * 0.8))
    for column in range(along_n):
        sheet.box(left + column * width, top - 30, width - 4, 24, 2, f"B {k}x{n}")
    for row in range(along_m):
        sheet.box(LEFT, top + row * height, 140, height - 4, 0, f"A {m}x{k}")
        for column in range(along_n):
            rank = row + column * along_m
            sheet.box(left + column * width, top + row * height, width - 4, height - 4, rank % SHADES, f"CTA {rank}")
    sheet.bottom = top + along_m * height
    sheet.words(
        f"A CTA of {kernel.launch.threads} threads computes a tile of D of {m}x{n}, in steps of {k} along K. "
        f"{_multicast(kernel)}"
    )


def _multicast(kernel: Kernel) -> str:
    along_m, along_n = kernel.launch.cluster
    if kernel.launch.cluster_k > 1:
        return f"{kernel.launch.cluster_k} CTAs, a cluster, share K of one tile, and store a share of its columns each."
    if along_m * along_n == 1:
        return "It loads all of its A and B itself; there is no cluster to share them in."
    shared = [
        f"a stage of {operand} is loaded in {peers} slices, one by each of {peers} CTAs, and multicast to all of them"
        for operand, peers in (("A", along_n), ("B", along_m))
        if peers > 1
    ]
    return f"A cluster is {along_m}x{along_n} CTAs: {'; '.join(shared)}."


def shared(sheet: Sheet, kernel: Kernel) -> None:
    """The regions of shared memory to scale, and the banks of a stage."""
    sheet.heading("Shared memory")
    total, family = kernel.launch.shared_bytes, kernel.config.family
    found = memory.regions(family, kernel.fields, kernel.launch, kernel.family.stage_bytes(kernel.fields))
    sheet.bottom += 6
    place = 0.0
    for number, region in enumerate(found):
        wide = region.size_of_all / total * 560 if total else 0
        many = f"{region.count} x {region.size:,}" if region.count > 1 else f"{region.size:,}"
        sheet.text(LEFT, sheet.bottom + 16, f"{region.name}: {many} bytes")
        sheet.box(LEFT + 380 + place, sheet.bottom + 2, max(wide, 1.0), 18, number % SHADES)
        place += wide
        sheet.bottom += 24
    sheet.words(f"{total:,} bytes in all, from top to bottom in the order in which they lie.")
    spans = {operand: memory.span(family, kernel.fields, operand) for operand in "ab"}
    swizzled = {operand.upper(): span for operand, span in spans.items() if span > memory.CHUNK}
    if not swizzled:
        sheet.words(_PLAIN[family])
        return
    sheet.words(
        "Banks of a stage: each line is 128 bytes, across are banks 0-3, 4-7, ..., 28-31; a cell says which row (r) "
        "and chunk of 16 bytes (c) of a panel lies there: chunks of one column of eight rows lie in different banks."
    )
    sheet.tables(*(memory.banks(f"{operand}: rows of {span} bytes", span) for operand, span in swizzled.items()))


_PLAIN: Mapping[str, str] = MappingProxyType(
    {
        "simt": "Stages are not swizzled: values of the accumulator's type lie K by K, with 16 bytes between rows.",
        "gemv": "A and B do not pass through shared memory: they are loaded straight into the registers of MMAs.",
        "mma": "Stages are not swizzled: rows are copied as they lie, with 16 bytes more each.",
        "wgmma": "Stages are not swizzled.",
    }
)


def epilogue(sheet: Sheet, kernel: Kernel) -> None:
    """How D leaves the registers."""
    sheet.heading("Epilogue")
    fields = kernel.fields
    if kernel.config.family != "wgmma":
        sheet.words("Threads apply the epilogue to the sums in their registers, and store them to D, without staging.")
        return
    columns, wide = subtiles.columns_d(fields), subtiles.subtile_n(fields)
    across, down = -(-columns // wide), warpgroups.warpgroup_m(fields) // warpgroups.SUBTILE_M
    buffers = shared_memory.d_buffers(fields)
    numbers = [[row * across + column for column in range(across)] for row in range(down)]
    cells = tuple(tuple(f"#{number} buffer {number % buffers}" for number in row) for row in numbers)
    shades = tuple(tuple(number % buffers % SHADES for number in row) for row in numbers)
    writers, rows = warpgroups.storing_warpgroups(fields), down * warpgroups.SUBTILE_M
    sheet.words(
        f"Each of {writers} warpgroups stages its {rows}x{columns} of D in subtiles of {warpgroups.SUBTILE_M}x{wide}, "
        f"one after the other, in {buffers} buffer{'s' * (buffers > 1)}; TMA stores each while the next is written. "
        f"{_overlaps(columns, wide)}"
    )
    sheet.tables(Grid("subtiles of a warpgroup", cells, shades))


def _overlaps(columns: int, wide: int) -> str:
    return (
        "The last of a row begins earlier, and writes anew what it shares with the one before."
        if columns % wide
        else ""
    )


Lane = tuple[str, tuple[tuple[float, float, str, int], ...]]
"""Who, and what it does: beginning, end, words, colour."""


def roles(sheet: Sheet, kernel: Kernel) -> None:
    """Who does what when: the order, not to scale."""
    sheet.heading("Roles over time (order only, not to scale)")
    sheet.bottom += 6
    for name, steps in _lanes(kernel):
        sheet.text(LEFT, sheet.bottom + 16, name)
        for start, end, words, shade in steps:
            sheet.box(LEFT + 240 + start * 88, sheet.bottom + 1, (end - start) * 88 - 3, 24, shade, words)
        sheet.bottom += 30
    sheet.bottom += 6


_LOAD, _MULTIPLY, _STORE, _WAIT = 0, 2, 1, 7
"""Colours of what is done."""


def _lanes(kernel: Kernel) -> list[Lane]:
    if kernel.config.family == "wgmma":
        return _warp_specialised(kernel)
    if kernel.config.family == "gemv":
        turns = [(at, at + 2.0, *step) for at, step in enumerate([("load A, B", _LOAD), ("MMAs", _MULTIPLY)] * 2)]
        steps = tuple((2.0 * at, 2.0 * at + 2, words, shade) for at, _, words, shade in turns)
        return [("every warp", (*steps, (8.0, 10.0, "sums, D", _STORE)))]
    simt = kernel.config.family == "simt"
    ahead = "registers" if simt or kernel.config.arch == "sm70" else "cp.async"
    stages, works = kernel.config.stages, "FMAs" if simt else "MMAs"
    fills = tuple((2.0 * step, 2.0 * step + 2, f"{ahead}: s{step % stages}", _LOAD) for step in range(4))
    used = tuple((2.0 * step, 2.0 * step + 2, f"{works} of s{(step - 1) % stages}", _MULTIPLY) for step in range(1, 4))
    first, last = (0.0, 2.0, "wait", _WAIT), (8.0, 10.0, "D", _STORE)
    return [("every warp: copies", fills), ("every warp: multiplies", (first, *used, last))]


def _warp_specialised(kernel: Kernel) -> list[Lane]:
    """A producer, and consumers that share tiles or take them in turn."""
    loads = tuple((float(step), step + 1.0, f"load s{step % kernel.config.stages}", _LOAD) for step in range(9))
    lanes: list[Lane] = [("producer: one thread, TMA", loads)]
    for number in range(warpgroups.consumer_warpgroups(kernel.fields)):
        begins, tiles = [1.0, 5.0], ["tile 0", "tile 1"]
        if kernel.config.schedule == "pingpong":
            begins, tiles = ([1.0, 6.0], ["tile 0", "tile 2"]) if number == 0 else ([3.5], ["tile 1"])
        steps = [(0.0, begins[0], "wait", _WAIT)]
        for at, what in zip(begins, tiles, strict=True):
            steps += [(at, at + 2.5, f"MMAs of {what}", _MULTIPLY), (at + 2.5, at + 4, f"D of {what}", _STORE)]
        lanes.append((f"consumer warpgroup {number}", tuple(steps)))
    return lanes
