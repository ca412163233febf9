"""Records as a page: one file that opens offline, in any width, light or dark, and on paper."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from gemmill.library.errors import RecordError
from gemmill.library.extras import install
from gemmill.library.records import Measurement
from gemmill.profiler.analysis import charts
from gemmill.profiler.analysis.figures import Figures, geometric_mean
from gemmill.profiler.analysis.populations import Choices, Group, baselines, grouped
from gemmill.profiler.analysis.report import rows
from gemmill.profiler.baselines.baseline import CUBLASLT, THROUGH_TORCH
from gemmill.profiler.measure.peak_rates import PeakRates


def as_html(found: Sequence[Figures], choices: Choices, peak_rates: Mapping[str, PeakRates]) -> str:
    """One page with everything it needs inside. Menus on it choose the baseline and the formats.

    Raises:
        RecordError: Jinja is not installed.

    """
    try:
        jinja = importlib.import_module("jinja2")
    except ImportError as error:
        raise RecordError(f"a page needs Jinja ({error}); {install('report')}") from error
    groups, present = grouped(found), baselines(found)
    of = {id(f): index for index, group in enumerate(groups) for f in group.found}
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
            rows=[(of[id(f)], f, row) for f, row in zip(found, rows(found, choices, peak_rates), strict=True)],
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


def _machines(found: Sequence[Figures]) -> list[tuple[Any, ...]]:
    """Where and how finalists were measured: each a row, with how many problems and in how many rounds."""
    kinds: dict[tuple[Any, ...], list[Measurement]] = {}
    for figures in found:
        for m in figures.finalists.values():
            kinds.setdefault((m.gpu, m.driver, m.cuda, m.torch, m.commit, m.method, m.regime), []).append(m)
    return sorted(
        ((*kind, _from_to(m.samples for m in own), len({m.problem for m in own})) for kind, own in kinds.items()),
        key=str,
    )


def _from_to(values: Iterable[int]) -> str:
    least, most = min(values := [*values]), max(values)
    return str(least) if least == most else f"{least} to {most}"


class _Mean(NamedTuple):
    """What a group comes to beside a baseline."""

    group: int
    label: str
    baseline: str
    problems: int
    of: int
    best: tuple[float, ...]
    """Geometric mean, quartiles and the least; nothing of no problems."""
    selected: tuple[float, ...]
    part: float | None
    """Of the selected kernel, relative to the best."""


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
