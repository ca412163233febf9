"""A kernel's page: who holds what is where the headers put it, and nothing on it lies on anything else."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from tests.cases.kernels import BASE, DIRECT, GOLDEN, WGMMA, KernelCase

from gemmill.emitters.emit import launch_spec
from gemmill.library.anatomy import panels
from gemmill.library.anatomy.anatomy import anatomy_of
from gemmill.library.anatomy.kernel_page import as_html, as_svg
from gemmill.library.anatomy.raster import Matrix, Raster, Waves
from gemmill.library.anatomy.sheet import Figures, Kernel, Sheet
from gemmill.library.config.names import parse_name
from gemmill.library.drawing.svg import CHARACTER
from gemmill.library.families.families import plan_of
from gemmill.library.families.mma import MmaPlan
from gemmill.library.families.simt import SimtPlan
from gemmill.library.families.wgmma.wgmma_plan import WgmmaPlan
from gemmill.library.occupancy import Occupancy

SVG = "{http://www.w3.org/2000/svg}"
CASES = (*WGMMA, *DIRECT, *GOLDEN)
EACH = (BASE[1], *GOLDEN)


def named(cases: tuple[KernelCase, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", {case.name: case for case in cases}.values(), ids=lambda case: case.id)


def drawn(case: KernelCase) -> Kernel:
    return Kernel(case.name, plan_of(case.config), launch_spec(case.config), Occupancy(1, "a CTA needs all of it"))


@named(CASES)
def test_every_sum_is_somebody_s_and_threads_have_as_many(case: KernelCase) -> None:
    config = case.config
    threads, values = anatomy_of(plan_of(config)).accumulators().modes
    starts, steps = map(threads, range(threads.size)), [*map(values, range(values.size))]
    held = [start + step for start in {*starts} for step in steps]
    assert sorted(held) == [*range(config.tile.m * config.tile.n)]
    assert threads.size <= launch_spec(config).threads


def wgmma_sum(n: int, plan: WgmmaPlan) -> Callable[[int, int], tuple[int, int]]:
    """Row and column of value i of thread t: PTX ISA, "Register fragments for wgmma.mma_async.m64nNk16"."""

    def place(thread: int, value: int) -> tuple[int, int]:
        block, within = divmod(value, n // 2)
        first = thread // 128 * plan.warpgroup_m + 64 * block
        row = first + thread % 128 // 32 * 16 + thread % 32 // 4 + within % 4 // 2 * 8
        return row, within // 4 * 8 + thread % 4 * 2 + within % 2

    return place


@pytest.mark.parametrize(
    "tile", ["128x256x64_2x1_cooperative_s4", "256x96x64_1x1_cooperative_s4", "64x128x64_1x1_pingpong_s8"]
)
def test_accumulators_of_warpgroups_are_those_of_ptx(tile: str) -> None:
    config = parse_name(f"sm90a_bf16k16_bf16k16_f32_none_bf16n16_{tile}_m1_k1_linear")
    m, plan = config.tile.m, WgmmaPlan(config)
    layout, place = anatomy_of(plan).accumulators(), wgmma_sum(config.tile.n, plan)
    for thread, value in itertools.product(range(0, layout[0].size, 3), range(layout[1].size)):
        row, column = place(thread, value)
        assert layout((thread, value)) == row + column * m


@named(tuple(case for case in DIRECT if case.config.family == "simt"))
def test_sums_of_simt_threads_are_where_the_kernel_puts_them(case: KernelCase) -> None:
    plan, m, n = SimtPlan(case.config), case.config.tile.m, case.config.tile.n
    most = 16 // plan.value_bytes
    along_m, along_n = plan.sides
    rows, columns, warps_m = m // along_m, n // along_n, along_m // 4
    layout = anatomy_of(plan).accumulators()

    def position(thread: int, index: int, group: int, threads: int) -> int:
        return (index // group * threads + thread) * group + index % group

    for thread in range(0, plan.threads, 5):
        warp, lane = thread // 32, thread % 32
        thread_m, thread_n = warp % warps_m * 4 + lane // 16 * 2 + lane % 2, warp // warps_m * 8 + lane // 2 % 8
        for row, column in itertools.product(range(rows), range(columns)):
            at_m = position(thread_m, row, min(rows, most), along_m)
            at_n = position(thread_n, column, min(columns, most), along_n)
            assert layout((thread, column + columns * row)) == at_m + at_n * m


@named(tuple(case for case in (*DIRECT, *GOLDEN) if case.config.family == "mma"))
def test_sums_of_mma_threads_are_where_the_kernel_puts_them(case: KernelCase) -> None:
    """``WarpMma``, ``QuadpairMma`` and the positions of their fragments, as the headers have them."""
    plan, m = MmaPlan(case.config), case.config.tile.m
    along_m, along_n, _ = plan.warps
    warp_m, warp_n = m // along_m, case.config.tile.n // along_n
    layout = anatomy_of(plan).accumulators()
    quadpair = case.config.arch == "sm70"

    def position(operand: str, group: int, row: int) -> int:
        if quadpair:
            return group // 2 * 16 + group % 2 * 2 + row if operand == "a" else group * 8 + row
        its = case.config.operands[operand]
        permuted = its.major == "mn" and its.dtype in ("s8", "u8", "e4m3", "e5m2")
        return group // 4 * 32 + row * 4 + group % 4 if permuted else group * 8 + row

    groups_m = warp_m // 8
    for thread in range(0, layout[0].size, 7):
        warp, lane = thread // 32, thread % 32
        row = lane // 16 * 8 + lane // 4 % 2 * 4 + lane % 2 if quadpair else lane // 4
        column = lane // 8 % 2 * 4 + lane // 2 % 2 * 2 if quadpair else lane % 4 * 2
        held = {
            warp % along_m * warp_m
            + position("a", i, row)
            + (warp // along_m * warp_n + position("b", j, column + pair)) * m
            for i, j, pair in itertools.product(range(groups_m), range(warp_n // 8), range(2))
        }
        assert {layout((thread, value)) for value in range(layout[1].size)} == held


@named(CASES)
def test_regions_are_all_of_shared_memory(case: KernelCase) -> None:
    kernel = drawn(case)
    found = kernel.plan.regions
    assert sum(region.bytes for region in found) == kernel.launch.shared_bytes
    assert all(region.size >= 0 for region in found)
    if kernel.config.family == "wgmma":
        assert 16 <= found[-1].size <= 1024, "mbarriers"


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("span", [32, 64, 128])
def test_eight_rows_of_a_chunk_lie_in_as_many_banks_as_can_be(span: int, size: int) -> None:
    cells = [re.findall(r"\d+", cell) for row in panels.banks("", span, size).cells for cell in row]
    places = {(int(row), int(chunk)): number % 8 for number, (row, chunk) in enumerate(cells)}
    assert len(places) == 64
    for chunk in range(span // 16):
        assert len({places[row, chunk] for row in range(8)}) == 8
    if size == 8:  # half a warp reads two chunks of each of four rows
        for first, chunk in itertools.product((0, 4), range(0, span // 16, 2)):
            assert len({places[first + row, chunk + i] for row, i in itertools.product(range(4), range(2))}) == 8


@pytest.mark.parametrize(("raster", "swizzle"), [("m", 1), ("m", 4), ("n", 2), ("n", 8)])
def test_the_raster_goes_through_every_tile_once_in_groups(raster: str, swizzle: int) -> None:
    name = f"sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x128x64_2x1_cooperative_s6_{raster}{swizzle}_k1_linear"
    order = Raster.of(parse_name(name), 5 * 256 - 3, 7 * 128 - 100)
    tiles = [order.origin(index) for index in range(order.count)]
    assert sorted(tiles) == [*itertools.product(range(5), range(7))]
    assert [order.index(*tile) for tile in tiles] == [*range(order.count)]
    across = 1 if raster == "m" else 0
    first = tiles[: swizzle * (5, 7)[across ^ 1]]
    assert {tile[across] for tile in first} == {*range(min(swizzle, (5, 7)[across]))}
    assert [tile[across] for tile in tiles[:swizzle]] == [*range(swizzle)][: (5, 7)[across]] or swizzle > (5, 7)[across]


@pytest.mark.parametrize(("tile", "cluster"), [((128, 128), (1, 1)), ((128, 144), (2, 1)), ((128, 256), (1, 2))])
@pytest.mark.parametrize("swizzle", [1, 4])
def test_the_raster_of_a_symmetric_d_is_its_lower_triangle_once(
    tile: tuple[int, int], cluster: tuple[int, int], swizzle: int
) -> None:
    sizes = f"{tile[0]}x{tile[1]}x64_{cluster[0]}x{cluster[1]}"
    name = f"sm90a_bf16k16_bf16k16_f32_none_bf16n16_{sizes}_cooperative_s3_m{swizzle}symmetric_k1_linear"
    order = Raster.of(parse_name(name), 1500, 1500)
    rows, columns = tile[0] * cluster[0], tile[1] * cluster[1]
    meet = {(i, j) for i in range(-(-1500 // rows)) for j in range(-(-1500 // columns)) if j * columns < (i + 1) * rows}
    tiles = [order.origin(index) for index in range(order.count)]
    assert len(tiles) == len(meet)
    assert {*tiles} == meet
    assert [order.index(*place) for place in tiles] == [*range(order.count)]
    assert order.index(0, -(-1500 // columns) - 1) is None


def boxes(svg: str) -> list[tuple[float, float, float, float, str]]:
    """Left, top, right, bottom of every text."""
    found = []
    for text in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        kind = text.get("class", "")
        wide, high = (10.5, 16) if kind == "h" else (CHARACTER, 12)
        for part in [*text.iter(f"{SVG}tspan")] or [text]:
            if content := part.text or "":
                x, y = float(part.get("x", 0)), float(text.get("y", 0))
                length = len(content) * wide
                left = x - {"c": length / 2, "r": length}.get(kind, 0)
                found.append((left, y - high * 0.8, left + length, y + high * 0.2, content))
    return found


@named(EACH)
def test_nothing_lies_on_anything_else(case: KernelCase) -> None:
    config = case.config
    waves = Waves("a problem", "a GPU", [Matrix(config.tile.m * 9, config.tile.n * 70, 4096)], 132, 9 * 70)
    svg = as_svg(drawn(case), waves)
    assert len(svg) < 1_000_000
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    found = sorted(boxes(svg), key=lambda box: box[1])
    for number, (left, top, right, bottom, text) in enumerate(found):
        assert left >= 0, text
        assert right <= width, text
        assert 0 < top < bottom < height, text
        for other in itertools.takewhile(lambda box: box[1] < bottom - 0.5, found[number + 1 :]):  # noqa: B023
            assert other[0] >= right - 1 or other[2] <= left + 1, (text, other[4])
    for rect in root.iter(f"{SVG}rect"):
        x, y, wide, high = (float(rect.get(name, 0)) for name in ("x", "y", "width", "height"))
        assert x + wide <= width
        assert y + high <= height


Box = tuple[float, ...]


def labelled(panel: Callable[[Sheet, Kernel], None], kernel: Kernel) -> list[dict[str, Box]]:
    """Left, top, width and height of the last box around each text in the figures of a panel."""
    sheet, found = Sheet(), []
    panel(sheet, kernel)
    for figure in (each for block in sheet.blocks if isinstance(block, Figures) for each in block.figures):
        parts = [ElementTree.fromstring(part) for part in figure.placed(0, 0)]
        sizes = ("x", "y", "width", "height")
        rects = [tuple(float(x.get(name, 0)) for name in sizes) for x in parts if x.tag == "rect"]
        boxes: dict[str, Box] = {}
        for text in (x for x in parts if x.tag == "text"):
            x, y = float(text.get("x", 0)), float(text.get("y", 0))
            around = [r for r in rects if r[0] < x < r[0] + r[2] and r[1] < y < r[1] + r[3]]
            boxes[text.text or ""] = around[-1]
        found.append(boxes)
    return found


@pytest.mark.parametrize(("precision", "terms"), [("bf16x9", 9), ("bf16x6", 6), ("bf16x3", 3), ("f16x3", 3)])
def test_the_terms_of_f32_are_drawn_where_their_components_meet_in_order(precision: str, terms: int) -> None:
    name = f"sm90a_{precision}k16_{precision}k16_f32p2_none_f32n16_128x128x32_1x1_cooperative_s3_m8_k1_linear"
    kernel = drawn(KernelCase(precision, "", name))
    pairs, order = labelled(panels.terms, kernel)
    weights = {"hi": 0, "mid": 1, "lo": 2}
    rows = {box[1]: text.removeprefix("A ") for text, box in pairs.items() if text.startswith("A")}
    columns = {box[0]: text.removeprefix("B ") for text, box in pairs.items() if text.startswith("B")}
    assert {*rows.values()} == {*columns.values()} == ({"hi", "lo"} if terms == 3 else {*weights})
    met = {text: (rows[box[1]], columns[box[0]]) for text, box in pairs.items() if text.startswith("#")}
    assert len({*met.values()}) == len(met) == terms
    shown = [text for text, _ in sorted(order.items(), key=lambda item: item[1][0])]
    assert shown == [*(f"#{i} {met[f'#{i}'][0]} x {met[f'#{i}'][1]}" for i in range(terms)), "f32 sums"]
    sizes = [sum(weights[each] for each in met[f"#{i}"]) for i in range(terms)]
    assert sizes == sorted(sizes, reverse=True), "the smallest first"


@named(tuple(case for case in GOLDEN if case.config.scheduler.symmetry == "symmetric"))
def test_the_mirror_of_a_subtile_is_across_the_diagonal(case: KernelCase) -> None:
    [boxes] = [found for found in labelled(panels.epilogue, drawn(case)) if "a" in found]
    mirrored = {text: box for text, box in boxes.items() if text.endswith("T")}
    assert len(boxes) == 2 * len(mirrored) >= 8
    for text, (x, y, wide, high) in mirrored.items():
        assert boxes[text[0]] == (y, x, high, wide)
        assert x >= y + high, "above the diagonal"


def test_html_has_the_figures_of_the_picture_and_a_slider_above_its_raster() -> None:
    kernel = drawn(BASE[0])
    waves = Waves("4096x4096x4096 bf16 tn", "NVIDIA H200", [Matrix(4096, 4096, 4096)], 132, 1024)
    html, svg = as_html(kernel, waves), as_svg(kernel, waves)
    assert html.count('data-i="') == svg.count('data-i="') == 1024
    assert html.count("<tspan") == svg.count("<tspan"), "the cells of all tables"
    [raster] = [section for section in html.split("<section>") if "data-i=" in section]
    assert re.search(r'<div id="control" hidden>.*max="1024".*data-slots="132" data-waves="8".*</div>\n<div', raster)
    assert "Tiles that have started" in raster
    assert 'aria-live="polite"' in html
    assert "<script" not in as_html(kernel, None)
    assert waves.waves == 8
    assert waves.loss == pytest.approx(1 - 1024 / (8 * 132))


@named(EACH)
def test_the_tile_and_its_operands_are_to_scale(case: KernelCase) -> None:
    kernel = drawn(case)
    sheet = Sheet()
    panels.tile(sheet, kernel)
    [figures] = [block for block in sheet.blocks if isinstance(block, Figures)]
    rects = [ElementTree.fromstring(part) for part in figures.figures[0].placed(0, 0) if part.startswith("<rect")]
    sizes = {(float(rect.get("width", 0)), float(rect.get("height", 0))) for rect in rects}
    tile, (m, n) = kernel.config.tile, kernel.launch.cluster
    expected = {(tile.n, tile.m), (tile.k, tile.m), (tile.n, tile.k)}
    scale = max(width for width, _ in sizes) / max(width for width, _ in expected)
    assert len(rects) == m + n + m * n
    for width, height in expected:
        assert any(abs(w - width * scale) < 0.2 and abs(h - height * scale) < 0.2 for w, h in sizes)
