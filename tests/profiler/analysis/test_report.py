"""Reports of real records: figures, tables, pages."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.test_cli import gemmill, ok

from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.records import read_records
from gemmill.profiler.analysis.figures import figures, geometric_mean
from gemmill.profiler.analysis.populations import Choices
from gemmill.profiler.baselines.baseline import BASELINES, CUBLAS, CUBLASLT, PER_TENSOR, THROUGH_TORCH
from gemmill.runtime.select.model_file import model_of

RECORDS = Path(__file__).parents[2] / "cases" / "records"
SCALED = RECORDS / "fp8-scaled-deepseek-20261121T134526Z.jsonl.xz"
CLUSTERS = RECORDS / "fp8-clusters-20261121T194000Z.jsonl.xz"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.summary.json")), ids=lambda path: path.name.partition("-2")[0])
def test_figures_are_those_that_were_published(path: Path) -> None:
    summary = json.loads(path.read_text())
    found = figures(read_records(path.with_name(path.name.replace(".summary.json", ".jsonl.xz"))))
    assert len(found) == len(summary["problems"])
    assert sum(len(f.failed) for f in found) == summary["failed"]
    assert sum(f.baseline is not None for f in found) == summary["with_baseline"]
    others = {name: name.replace("-", "_") for name in BASELINES if name not in THROUGH_TORCH}
    for name, published in {summary["baseline"]: "cublas", **others}.items():
        ratios = [f.over(f.best, name) for f in found if name in f.baselines]
        timed = [ratio for ratio in ratios if ratio is not None]
        mean = geometric_mean(timed) if len(timed) == len(ratios) else None  # no kernel is right
        assert mean == pytest.approx(summary.get(f"best_over_{published}"))
    for f, published in zip(found, summary["problems"], strict=True):
        selected = SlicedKernel.recorded(published["selected"])
        reached = f.reached([selected]) if selected in f.finalists else None
        assert reached == pytest.approx(published["selected_over_best"])
        assert (f.best and f.best.kernel) == published["best"]
        if f.best is not None:
            assert f.reached([selected, f.best.sliced]) == 1
        assert f.reached([]) is None


def test_kernels_of_two_sweeps_are_compared_through_the_cublas_of_each() -> None:
    (first, *_) = figures(read_records(CLUSTERS))
    kernel = first.best
    assert kernel is not None
    faster = {m.kernel: m.model_copy(update={"us": m.us and m.us / 2}) for m in first.baselines.values()}
    later = {name: m.model_copy(update={"baseline_us": faster[CUBLAS].us}) for name, m in faster.items()}
    sweeps = figures([*first.finalists.values(), *later.values()])
    for name in first.baselines:
        assert sweeps[0].over(kernel, name) == pytest.approx(first.over(kernel, name)), "all clocks twice as fast"
    alone = figures([kernel.model_copy(update={"baseline_us": None}), *later.values()])
    assert alone[0].over(alone[0].best, CUBLASLT) == pytest.approx((faster[CUBLASLT].us or 0) / (kernel.us or 1))
    assert alone[0].over(None, CUBLASLT) is alone[0].over(kernel, PER_TENSOR) is None


def test_the_best_of_two_sweeps_is_the_best_over_the_cublas_of_each() -> None:
    """The second sweep was on a GPU that took 5% longer for everything."""
    (first, *_) = figures(read_records(CLUSTERS))
    one, two = list(first.finalists.values())[:2]
    base = first.baselines[CUBLAS]
    rows = [
        one.model_copy(update={"us": 100.0, "baseline_us": 100.0}),
        two.model_copy(update={"us": 102.0, "baseline_us": 105.0}),
        base.model_copy(update={"us": 105.0, "baseline_us": 105.0}),
    ]
    (found,) = figures(rows)
    assert found.best == rows[1]
    assert found.reached([two.sliced]) == 1
    assert found.reached([one.sliced]) == pytest.approx(102 / 105)
    (alone,) = figures([m.model_copy(update={"baseline_us": None}) for m in rows[:2]])
    assert alone.best is not None
    assert alone.best.kernel == one.kernel


class Page(HTMLParser):
    """What a page would load, and the rows of its table of problems."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str | None] = []
        self.scripts = self.rows = 0
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.scripts += tag == "script"
        self.loads += [given[name] for name in ("src", "href", "data") if name in given]
        self._inside |= tag == "tbody"
        self.rows += self._inside and tag == "tr"

    def handle_endtag(self, tag: str) -> None:
        self._inside &= tag != "tbody"


@pytest.mark.slow
def test_a_report_has_every_problem_and_loads_nothing(tmp_path: Path) -> None:
    page, table, tests = (tmp_path / name for name in ("report.html", "table.csv", "tests.xml"))
    ok("report", SCALED, "-o", page, "--csv", table, "--junit", tests)
    measurements = [m for m in read_records(SCALED) if m.kernel not in BASELINES]
    problems = {m.problem for m in measurements}

    parser = Page()
    parser.feed(page.read_text())
    assert parser.loads == []
    assert parser.rows == len(problems)
    assert parser.scripts == 1
    assert page.read_text().count('<svg role="img"') == 4, "charts"
    ok("report", SCALED, "-o", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == page.read_text(), "equal records make equal pages"

    with table.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(problems)
    assert all(0 < float(line["selected_over_best"]) <= 1.1 for line in lines)
    assert {line["best"] for line in lines} <= {m.kernel for m in measurements}
    assert {line["arithmetic"] for line in lines} <= {"k32p4", "k32p4/stream@128"}

    root = ElementTree.fromstring(tests.read_text())
    assert len(root.findall("testsuite")) == len(problems)
    assert len(root.findall("testsuite/testcase")) == len(measurements)


@pytest.mark.slow
def test_a_report_compares_with_every_baseline_of_its_records(tmp_path: Path) -> None:
    page, table = tmp_path / "report.html", tmp_path / "table.csv"
    ok("report", CLUSTERS, SCALED, "-o", page, "--csv", table)
    text = page.read_text()
    options = re.findall(r'<option value="[a-z][^"]*"( selected)?>([^<]*)</option>', text)
    assert [name for _, name in options] == list(BASELINES)
    assert [name for selected, name in options if selected] == [CUBLASLT]
    assert set(re.findall(r'<th class="number" data-baseline="([^"]*)">', text)) == set(BASELINES)
    with table.open(newline="") as file:
        lines = list(csv.DictReader(file))
    for name in BASELINES:
        compared = [line for line in lines if line[f"{name}_us"]]
        assert len(compared) == (11 if name == PER_TENSOR else len(lines) - 11)
        for line in compared:
            ratio = float(line[f"{name}_us"]) / float(line["us"])
            assert float(line[f"{name}_ratio"]) == pytest.approx(ratio)
            assert float(line[f"{name}_low_us"]) <= float(line[f"{name}_us"]) <= float(line[f"{name}_high_us"])
        # The legends of the roofline and, as the selected kernel was timed of some, of two curves of speeds.
        assert len(re.findall(rf'<li [^>]*data-baseline="{name}"', text)) == 3 * len({x["formats"] for x in compared})
    assert all(float(line["low_us"]) <= float(line["us"]) <= float(line["high_us"]) for line in lines)
    assert {(line["rounds"], line["launches"], line["regime"]) for line in lines} == {("16", "0", "burst")}
    items = json.loads(ok("report", CLUSTERS, SCALED, "--json"))["items"]
    assert [{k: "" if v is None else str(v) for k, v in item.items()} for item in items] == lines


def test_failures_and_kernels_of_the_past_are_named(tmp_path: Path) -> None:
    first, second = [m for m in read_records(SCALED) if m.kernel not in BASELINES][:2]
    failed = first.model_copy(update={"stage": "failed", "us": None, "says": "wrong <result>\x1b"})
    past = second.model_copy(update={"kernel": second.kernel.replace("k1_linear", "k1_linear_of_old")})
    illegal = second.model_copy(update={"kernel": second.kernel.replace("_1x1_", "_3x3_")})
    records = tmp_path / "records.jsonl"
    records.write_text("".join(m.model_dump_json() + "\n" for m in (failed, past, illegal)))
    ok("report", records, "-o", tmp_path / "page.html", "--junit", tmp_path / "tests.xml")
    page = (tmp_path / "page.html").read_text()
    assert "wrong &lt;result&gt;" in page
    assert all(f"<li><code>{m.kernel.replace('_', '_<wbr>')}</code></li>" in page for m in (past, illegal))
    (failure,) = ElementTree.parse(tmp_path / "tests.xml").getroot().iter("failure")
    assert failure.get("message") == "wrong <result>\N{REPLACEMENT CHARACTER}"
    records.write_text(second.model_dump_json() + "\n")
    ok("report", records, "-o", tmp_path / "page.html")


def test_regret_is_of_the_model_and_not_of_measurements_that_ship() -> None:
    found = figures(read_records(CLUSTERS))
    choices, tables = Choices(found), model_of("NVIDIA H200")
    assert tables is not None
    fastest = {f.run.problem: shipped[0][1] for f in found if (shipped := tables.times(f.run.problem))}
    assert len(fastest) > 20
    assert any(choices.of(f)[0] != fastest[f.run.problem] for f in found if f.run.problem in fastest)


def test_what_cannot_be_reported_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    result = gemmill("report", empty, "-o", tmp_path / "page.html")
    assert (result.exit_code, list(tmp_path.iterdir())) == (1, [empty])
    assert "no measurement; run gemmill profile" in result.stderr
    result = gemmill("report", SCALED)
    assert result.exit_code == 2
    assert "pass --output, --csv, --junit or --json" in result.stderr
    result = gemmill("report", SCALED, "-o", tmp_path / "none" / "page.html")
    assert result.exit_code == 2
    assert f"directory '{tmp_path / 'none'}' does not exist" in result.stderr
