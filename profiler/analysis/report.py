"""Records as a table, as CSV for spreadsheets, and as JUnit XML for CI."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from gemmill.library.records import Measurement
from gemmill.profiler.analysis.figures import Figures, formats
from gemmill.profiler.analysis.populations import Choices, baselines
from gemmill.profiler.measure.peak_rates import PeakRates

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no place for."""


def rows(
    found: Sequence[Figures], choices: Choices, peak_rates: Mapping[str, PeakRates]
) -> list[dict[str, str | float | None]]:
    """A row by column for every problem of every run, None for what was not measured; all have the same columns.

    Times are medians, ``low_us`` and ``high_us`` their quartiles, over so many rounds. For each baseline of any run,
    ``<baseline>_us`` is its time, with quartiles likewise, and ``<baseline>_ratio`` the speed of the best kernel
    relative to it. ``peak_rates`` are by GPU, as far as they are known.
    """
    present = baselines(found)
    return [_row(figures, choices.of(figures), peak_rates.get(figures.run.gpu), present) for figures in found]


def _row(
    figures: Figures, ranked: Sequence[str], peak_rates: PeakRates | None, present: Sequence[str]
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
        **_time(best),
        "rounds": best.samples if best else None,
        "launches": best.launches if best else None,
        "regime": run.regime,
        "tflops": best.tflops if best else None,
        **against,
        "selected": ranked[0] if ranked else None,
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
    """Median and quartiles."""
    return {name: getattr(measurement, name, None) for name in ("us", "low_us", "high_us")}


def as_csv(found: Sequence[Figures], choices: Choices, peak_rates: Mapping[str, PeakRates]) -> str:
    """A line for every problem of every run, under a line of names (RFC 4180)."""
    text = io.StringIO()
    table = rows(found, choices, peak_rates)
    writer = csv.DictWriter(text, next(iter(table), {}))
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in table)
    return text.getvalue()


def _cell(value: object) -> object:
    """A cell that no spreadsheet takes for a formula: such a text begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def as_junit(found: Sequence[Figures]) -> str:
    """A test case for every kernel on every problem, which fails where the kernel did; times are of one launch."""
    root = ElementTree.Element("testsuites", name="gemmill")
    for figures in found:
        run = figures.run
        name = f"{run.problem.extents} {formats(run.problem, run.sizes)} on {run.gpu}"
        cases: list[Measurement] = [*figures.finalists.values(), *figures.screened.values(), *figures.failed]
        counts = {"name": _xml(name), "tests": str(len(cases)), "failures": str(len(figures.failed))}
        suite = ElementTree.SubElement(root, "testsuite", counts)
        for m in cases:
            seconds = f"{(m.us or 0) / 1e6:.9f}"
            case = ElementTree.SubElement(suite, "testcase", name=_xml(m.kernel), classname=_xml(name), time=seconds)
            if m.stage == "failed":
                ElementTree.SubElement(case, "failure", message=_xml(m.says))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
