"""Panels of a page: the tile, shared memory, the epilogue, roles over time."""

from __future__ import annotations

from gemmill.library.anatomy import memory
from gemmill.library.anatomy.sheet import LEFT, Kernel, Sheet
from gemmill.library.drawing.grid import SHADES, Grid
from gemmill.library.legality.quantities import element_bytes


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
    total, stages = kernel.launch.shared_bytes, kernel.family.stage_bytes(kernel.fields)
    found = kernel.anatomy.regions(kernel.fields, kernel.launch, stages)
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
    spans = {operand: kernel.anatomy.span(kernel.fields, operand) for operand in "ab"}
    swizzled = {operand.upper(): span for operand, span in spans.items() if span > memory.CHUNK}
    if not swizzled:
        sheet.words(kernel.anatomy.unswizzled)
        return
    sheet.words(
        "Banks of a stage: each line is 128 bytes, across are banks 0-3, 4-7, ..., 28-31; a cell says which row (r) "
        "and chunk of 16 bytes (c) of a panel lies there: chunks of one column of eight rows lie in different banks."
    )
    sheet.tables(
        *(
            memory.banks(f"{operand}: rows of {span} bytes", span, element_bytes(kernel.fields, operand.lower()))
            for operand, span in swizzled.items()
        )
    )


def epilogue(sheet: Sheet, kernel: Kernel) -> None:
    """How D leaves the registers."""
    sheet.heading("Epilogue")
    if (staging := kernel.anatomy.staging(kernel.fields)) is None:
        sheet.words("Threads apply the epilogue to the sums in their registers, and store them to D, without staging.")
        return
    wide, buffers = staging.subtile_n, staging.buffers
    across = -(-staging.columns // wide)
    whose = f"Each of {staging.writers} warpgroups stages" if staging.writers > 1 else "A warpgroup stages"
    overlaps = "The last of a row begins earlier, and writes anew what it shares with the one before."
    sheet.words(
        f"{whose} its {64 * staging.down}x{staging.columns} of D in subtiles of "
        f"64x{wide}, one after the other, in {buffers} buffer{'s' * (buffers > 1)}; TMA stores each while the next is "
        f"written. {overlaps if staging.columns % wide else ''}"
    )
    numbers = [[row * across + column for column in range(across)] for row in range(staging.down)]
    cells = tuple(tuple(f"#{number} buffer {number % buffers}" for number in row) for row in numbers)
    shades = tuple(tuple(number % buffers % SHADES for number in row) for row in numbers)
    sheet.tables(Grid("subtiles of a warpgroup", cells, shades))


def roles(sheet: Sheet, kernel: Kernel) -> None:
    """Who does what when: the order, not to scale."""
    sheet.heading("Roles over time (order only, not to scale)")
    sheet.bottom += 6
    for lane in kernel.anatomy.lanes(kernel.fields):
        sheet.text(LEFT, sheet.bottom + 16, lane.name)
        for start, end, words, shade in lane.steps:
            sheet.box(LEFT + 240 + start * 88, sheet.bottom + 1, (end - start) * 88 - 3, 24, shade, words)
        sheet.bottom += 30
    sheet.bottom += 6
