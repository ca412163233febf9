"""Reports of records: a table, CSV for spreadsheets, JUnit XML for CI, and a self-contained HTML page."""

from __future__ import annotations

import csv
import importlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import RecordError
from gemmill.library.extras import install
from gemmill.library.records import Measurement
from gemmill.profiler.analysis import charts
from gemmill.profiler.analysis.figures import Figures, formats, geometric_mean
from gemmill.profiler.analysis.populations import Choices, Group, baselines, grouped
from gemmill.profiler.baselines.baseline import CUBLASLT, THROUGH_TORCH
from gemmill.profiler.measure.peak_rates import PeakRates

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow."""


def rows(
    found: Sequence[Figures], choices: Choices, peak_rates: Mapping[str, PeakRates]
) -> list[dict[str, str | float | None]]:
    """A row for each problem of each run, by column; all rows have the same columns, with None for missing values.

    ``us`` is the median over ``rounds``; ``low_us`` and ``high_us`` are the quartiles. For each baseline of any run,
    ``<baseline>_us`` is its time, also with quartiles, and ``<baseline>_ratio`` the speed of the fastest kernel
    relative to it. ``peak_rates`` are by GPU, as far as known.
    """
    present = baselines(found)
    return [_row(figures, choices.of(figures), peak_rates.get(figures.run.gpu), present) for figures in found]


def _row(
    figures: Figures, ranked: Sequence[SlicedKernel], peak_rates: PeakRates | None, present: Sequence[str]
) -> dict[str, str | float | None]:
    best, run = figures.best, figures.run
    roof = peak_rates.roof(run.problem) if peak_rates else None
    against: dict[str, float | None] = {}
    for name in present:
        baseline = figures.baselines.get(name)
        against |= {f"{name}_{key}": value for key, value in _time(baseline).items()}
        against[f"{name}_ratio"] = figures.over(best, name)
    return {
        "problem": run.problem.extents,
        "formats": formats(run.problem, run.sizes),
        "gpu": run.gpu,
        "commit": run.commit,
        "run": run.sweep,
        "best": best.kernel if best else None,
        "slices": best.slices if best else None,
        "arithmetic": best.arithmetic if best else None,
        **_time(best),
        "rounds": best.samples if best else None,
        "launches": best.launches if best else None,
        "regime": run.regime,
        "tflops": best.tflops if best else None,
        **against,
        "selected": ranked[0].name if ranked else None,
        "selected_slices": ranked[0].slices if ranked else None,
        "selected_over_best": figures.reached(ranked[:1]),
        "roof": roof.name if roof else None,
        "of_roof": peak_rates.fraction(best) if peak_rates and best else None,
        "sm_mhz": best.sm_mhz if best else None,
        "watts": best.watts if best else None,
        "throttle": ", ".join(best.throttle) if best else "",
        "kernels": len(figures.finalists) + len(figures.screened),
        "failed": len(figures.failed),
    }


def _time(measurement: Measurement | None) -> dict[str, float | None]:
    """Median and quartiles of the time."""
    return {name: getattr(measurement, name, None) for name in ("us", "low_us", "high_us")}


def as_csv(found: Sequence[Figures], choices: Choices, peak_rates: Mapping[str, PeakRates]) -> str:
    """CSV with a line for each problem of each run."""
    return csv_of(rows(found, choices, peak_rates))


def csv_of(table: Sequence[Mapping[str, object]]) -> str:
    """CSV of rows with the same columns, with a header line (RFC 4180)."""
    text = io.StringIO()
    writer = csv.DictWriter(text, next(iter(table), {}))
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in table)
    return text.getvalue()


def _cell(value: object) -> object:
    """A cell; text that a spreadsheet would read as a formula gets an apostrophe in front."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def as_junit(found: Sequence[Figures]) -> str:
    """A test case for each kernel on each problem, which fails if the kernel failed; times are of one launch."""
    root = ElementTree.Element("testsuites", name="gemmill")
    for figures in found:
        run = figures.run
        name = f"{run.problem.extents} {formats(run.problem, run.sizes)} on {run.gpu}"
        cases: list[Measurement] = [*figures.finalists.values(), *figures.screened.values(), *figures.failed]
        counts = {"name": _xml(name), "tests": str(len(cases)), "failures": str(len(figures.failed))}
        suite = ElementTree.SubElement(root, "testsuite", counts)
        for m in cases:
            seconds = f"{(m.us or 0) / 1e6:.9f}"
            case = ElementTree.SubElement(
                suite, "testcase", name=_xml(str(m.sliced)), classname=_xml(name), time=seconds
            )
            if m.stage == "failed":
                ElementTree.SubElement(case, "failure", message=_xml(m.says))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def as_html(found: Sequence[Figures], choices: Choices, peak_rates: Mapping[str, PeakRates]) -> str:
    """A self-contained HTML page, with menus for the baseline and the formats.

    Raises:
        RecordError: Jinja is not installed.
    """
    try:
        jinja = importlib.import_module("jinja2")
    except ImportError as error:
        raise RecordError(f"an HTML report requires Jinja ({error}); {install('report')}") from error
    groups, present = grouped(found), baselines(found)
    group_indices = {id(f): index for index, group in enumerate(groups) for f in group.found}
    plots = (
        charts.roofline(groups, peak_rates),
        charts.winners(groups),
        charts.distribution(groups, choices),
        charts.regret(groups, choices),
    )
    finals = [m for figures in found for m in figures.finalists.values()]
    template = (resources.files("gemmill.profiler.analysis") / "report.html").read_text(encoding="utf-8")
    environment = jinja.Environment(
        autoescape=True, undefined=jinja.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return str(
        environment.from_string(template).render(
            charts=[chart for chart in plots if any(series.points or series.line for series in chart.series)],
            zip=zip,
            options=[(index, group.label) for index, group in enumerate(groups)],
            groups=groups,
            rows=[
                (group_indices[id(f)], f, row) for f, row in zip(found, rows(found, choices, peak_rates), strict=True)
            ],
            baselines=present,
            first=next((name for name in (CUBLASLT, *THROUGH_TORCH) if name in present), present[0] if present else ""),
            machines=_machines(found),
            several={name: len({getattr(f.run, name) for f in found}) > 1 for name in ("gpu", "sweep")},
            roofs=bool(peak_rates),
            means=[_mean(index, group, choices, name) for index, group in enumerate(groups) for name in present],
            throttle=Counter(reason for m in finals for reason in m.throttle).most_common(),
            finals=len(finals),
            unthrottled=sum(not m.throttle for m in finals),
            state={
                "SM clock, MHz": _quartiles(m.sm_mhz for m in finals if m.sm_mhz is not None),
                "power, W": _quartiles(m.watts for m in finals if m.watts is not None),
            },
            failures=Counter(m.says for figures in found for m in figures.failed).most_common(),
            unknown=sorted(choices.unknown),
        )
    )


def _machines(every_figures: Sequence[Figures]) -> list[tuple[Any, ...]]:
    """The machines and methods of the finalists, a row for each, with the number of rounds and problems."""
    kinds: dict[tuple[Any, ...], list[Measurement]] = {}
    for figures in every_figures:
        for m in figures.finalists.values():
            kinds.setdefault((m.gpu, m.driver, m.cuda, m.torch, m.commit, m.method, m.regime), []).append(m)
    return sorted(
        (
            (*kind, _from_to(m.samples for m in records), len({m.problem for m in records}))
            for kind, records in kinds.items()
        ),
        key=str,
    )


def _from_to(values: Iterable[int]) -> str:
    least, most = min(values := [*values]), max(values)
    return str(least) if least == most else f"{least} to {most}"


class _Mean(NamedTuple):
    """The averages of a group relative to a baseline."""

    group: int
    label: str
    baseline: str
    problems: int
    of: int
    best: tuple[float, ...]
    """Geometric mean, quartiles and minimum for the fastest kernels; empty without problems."""
    selected: tuple[float, ...]
    """The same for the selected kernels."""
    part: float | None
    """Geometric mean of the selected kernels relative to the fastest."""


def _mean(index: int, group: Group, choices: Choices, baseline: str) -> _Mean:
    pairs = group.compared(choices, baseline)
    best, selected = _spread(pairs.best), _spread(pairs.selected)
    part = geometric_mean(pairs.part)
    return _Mean(index, group.label, baseline, len(pairs.best), len(group.found), best, selected, part)


def _spread(values: Sequence[float]) -> tuple[float, ...]:
    mean = geometric_mean(values)
    return () if mean is None else (mean, *(float(q) for q in np.percentile(values, (25, 75, 0))))


def _quartiles(values: Iterable[float]) -> tuple[float, ...]:
    values = [*values]
    return tuple(float(q) for q in np.percentile(values, (0, 25, 50, 75, 100))) if values else ()
