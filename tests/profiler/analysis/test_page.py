"""The page of a report, in a browser: at every width, light and dark and on paper, for every kind of problem."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cases.browser import Browser, browser
from tests.cli.test_cli import ok
from tests.profiler.measure.test_peak_rates import PEAK_RATES

from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement, read_records
from gemmill.profiler.analysis import charts
from gemmill.profiler.analysis.charts import Axis
from gemmill.profiler.analysis.figures import figures
from gemmill.profiler.analysis.populations import CHOICES, Choices, grouped
from gemmill.profiler.baselines.baseline import BASELINES, CUBLAS, CUBLASLT
from gemmill.runtime.registry import Registry

RECORDS = sorted((Path(__file__).parents[2] / "cases" / "records").glob("*.jsonl.xz"))
CLUSTERS = next(path for path in RECORDS if path.name.startswith("fp8-clusters"))
OTHERS = (
    "4096x7168x2048 bf16 tn epilogue='d = silu(acc + bias[n])'",
    "8192x4096x7168 bf16 tn grouped=64",
    "8192x4096x7168 bf16 tn grouped=8",
    "4096x8192x4096 bf16 tn epilogue='d = silu(gate) * up'",
)
"""Problems of kinds that no record in the repository is of."""
WIDTHS = (400, 800, 1400)

OUTSIDE = """[...document.body.querySelectorAll("*")].filter(x => {
  const box = x.getBoundingClientRect();
  return box.width && (box.right > innerWidth + 1 || box.left < -1) && !(SCROLLS && x.closest(".scroll"));
}).map(x => x.outerHTML.slice(0, 200))"""
OVERLAPS = """[...document.querySelectorAll(".plot > svg")].flatMap(plot => {
  const texts = [...plot.querySelectorAll(":scope > text")], boxes = texts.map(x => x.getBoundingClientRect());
  return texts.filter((x, i) => boxes.some((b, j) => j < i && b.left < boxes[i].right && boxes[i].left < b.right
    && b.top < boxes[i].bottom - 2 && boxes[i].top < b.bottom - 2)).map(x => x.textContent);
})"""
SEEN = "[...document.querySelectorAll('SELECTOR')].filter(x => x.getClientRects().length).length"


def of_other_kinds() -> Iterator[Measurement]:
    """Records of fused and grouped problems: what a selector names, with times as a sweep would note them."""
    registry = Registry(gpu=None)
    first, *_ = (m for m in read_records(CLUSTERS) if m.stage == "final")
    for text in OTHERS:
        problem = GemmProblem.from_text(text)
        choice = registry.select(problem)
        for i, kernel in enumerate((choice.kernel, *(kernel for kernel, _ in choice.runners_up), SlicedKernel(CUBLAS))):
            us = 100.0 + i
            times = {"us": us, "low_us": us - 0.5, "high_us": us + 0.5, "samples": 8, "baseline_us": 105.0}
            update = {"kernel": kernel.name, "slices": kernel.slices, "problem": problem, "launches": 4}
            yield first.model_copy(update=update | times)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "others.jsonl").write_text("".join(m.model_dump_json() + "\n" for m in of_other_kinds()))
    with browser(folder / "profile") as shown:
        (rates := folder / "h200.json").write_text(PEAK_RATES.model_dump_json())
        ok("report", *RECORDS, folder / "others.jsonl", "--peak-rates", rates, "-o", folder / "report.html")
        shown.show(WIDTHS[-1])
        shown.open(folder / "report.html")
        yield shown
        assert shown.errors == []
        assert shown.fetched == [(folder / "report.html").as_uri()], "nothing is loaded"


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [*itertools.product(WIDTHS, (False, True))])
def test_nothing_overflows(page: Browser, width: int, dark: bool) -> None:
    page.show(width, dark=dark)
    root = "document.scrollingElement"
    assert page.value(f"{root}.scrollWidth") <= page.value(f"{root}.clientWidth") == width
    assert page.value(OUTSIDE.replace("SCROLLS", "true")) == []
    assert page.value(OVERLAPS) == [], "numbers of axes"


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_colours_differ_enough_from_the_page(page: Browser, dark: bool) -> None:
    """As WCAG 2.1 AA asks for: 4.5 for texts, 3 for what is drawn."""
    page.show(800, dark=dark)

    def luminance(name: str) -> float:
        text = page.value(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')")
        channels = [int(text.strip()[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        dim, bright = sorted((luminance(one), luminance(other)))
        return (bright + 0.05) / (dim + 0.05)

    assert (luminance("page") < luminance("text")) == dark
    assert all(contrast(text, ground) >= 4.5 for text in ("text", "note") for ground in ("page", "quiet"))
    assert all(contrast(f"c{i}", "page") >= 3 for i in range(charts.COLOURS))
    assert contrast("others", "page") >= 3


@pytest.mark.slow
@pytest.mark.browser
def test_paper_has_all_of_it(page: Browser) -> None:
    """Of A4 in landscape, between its margins."""
    page.show(1032, dark=True, paper=True)
    assert page.value(OUTSIDE.replace("SCROLLS", "false")) == []
    assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    heights = page.value("[...document.querySelectorAll('.scroll')].map(x => x.scrollHeight - x.clientHeight)")
    assert max(heights) <= 1, "no table scrolls"
    assert page.printed().startswith(b"%PDF")


@pytest.mark.slow
@pytest.mark.browser
def test_menus_filter_and_order_work(page: Browser) -> None:
    page.show(1400)

    def choose(name: str, value: str) -> None:
        menu = f"document.querySelector('[data-chooses={name}]')"
        page.value(f"{menu}.value = {value!r}; {menu}.dispatchEvent(new Event('change'))")

    def seen(selector: str) -> int:
        return int(page.value(SEEN.replace("SELECTOR", selector)))

    assert page.value("document.querySelector('[data-chooses=baseline]').value") == CUBLASLT
    assert seen(f'[data-baseline="{CUBLASLT}"]') > 0 == seen(f'[data-baseline="{CUBLAS}"]')
    choose("baseline", CUBLAS)
    assert seen(f'[data-baseline="{CUBLASLT}"]') == 0 < seen(f'[data-baseline="{CUBLAS}"]')

    rows = seen("#problems tbody tr")
    labels = page.value("[...document.querySelectorAll('[data-chooses=group] option')].map(x => x.textContent)")
    assert labels[0] == "all"
    fused, groups = labels.index("bf16 tn epilogue='d = silu(acc + bias[n])'"), labels.index("bf16 tn grouped")
    choose("group", str(groups - 1))
    assert seen("#problems tbody tr") == 2, "of 8 and of 64"
    assert seen(f'[data-group="{fused - 1}"]') == 0
    choose("group", "")
    assert seen("#problems tbody tr") == rows

    page.value("filter.value = '8192x4096x7168 GROUPED=64'; filter.dispatchEvent(new Event('input'))")
    assert seen("#problems tbody tr") == 1
    assert page.value("shown.textContent") == f"1 of {rows} rows"
    page.value("filter.value = ''; filter.dispatchEvent(new Event('input'))")
    column = page.value("[...table.tHead.rows[0].cells].findIndex(x => x.textContent.startsWith('us'))")
    page.value(f"table.tHead.rows[0].cells[{column}].querySelector('button').click()")
    times = page.value(f"[...body.rows].map(row => Number(row.cells[{column}].dataset.value))")
    assert times == sorted(times)


def test_kinds_that_are_unlike_are_not_averaged() -> None:
    """How many groups there are makes no kind; another GPU, or another expression, does."""
    made = [*of_other_kinds()]
    kinds = grouped(figures(made))
    assert [len(kind.found) for kind in kinds] == [1, 2, 1]
    elsewhere = [m.model_copy(update={"gpu": "NVIDIA H100 80GB HBM3"}) for m in made]
    kinds = grouped(figures([*made, *elsewhere]))
    assert [len(kind.found) for kind in kinds] == [1, 2, 1] * 2
    assert {re.split(", ", kind.label)[0] for kind in kinds} == {made[0].gpu, elsewhere[0].gpu}


def test_curves_are_of_the_same_problems() -> None:
    found = figures(read_records(CLUSTERS))
    choices = Choices(found)
    for kind in grouped(found):
        part = [f for f in kind.found if choices.of(f)[0] in f.finalists]
        assert part
        whole = kind.compared(choices, CUBLASLT)
        assert len(whole.best) == len(whole.selected) == len(whole.part) == len(part)
        # Without the selected kernel's measurement a problem goes from both curves, and from all of the regret's.
        gone = choices.of(part[0])[0]
        fewer = [m for m in read_records(CLUSTERS) if (m.problem, m.sliced) != (part[0].run.problem, gone)]
        (other,) = grouped(figures(fewer))
        less = other.compared(choices, CUBLASLT)
        assert len(less.best) == len(less.selected) == len(part) - 1
        (mean, low) = charts.regret([other], choices).series
        assert f"{len(part) - 1} of {len(kind.found)}" in mean.name
        assert [len(series.points) for series in (mean, low)] == [CHOICES] * 2
        assert {name for name in BASELINES if name in found[0].baselines} >= {CUBLASLT}


@pytest.mark.parametrize(
    ("axis", "numbers"),
    [
        (Axis("", 0.9, 2.4, log=True), ["1", "1.5", "2"]),
        (Axis("", 0.5, 20, log=True), ["0.5", "1", "2", "5", "10", "20"]),
        (Axis("", 3, 9000, log=True), ["3", "10", "30", "100", "300", "1k", "3k"]),
        (Axis("", 1e-3, 1e6, log=True), None),
        (Axis("", 0, 1, percent=True), ["0%", "20%", "40%", "60%", "80%", "100%"]),
        (Axis("", 0.95, 1.01), ["0.96", "0.98", "1"]),
        (Axis.over("", [7.0]), None),
        (Axis.over("", [], log=True), None),
    ],
)
def test_axes_have_a_few_round_numbers(axis: Axis, numbers: list[str] | None) -> None:
    ticks = axis.ticks
    assert numbers is None or [text for _, text in ticks] == numbers
    assert 2 <= len(ticks) <= 10
    assert all(0 <= at <= 100 for at, _ in ticks)
