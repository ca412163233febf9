"""Records as a page that opens offline, as CSV for spreadsheets, and as JUnit XML for CI."""

from __future__ import annotations

import csv
import importlib
import io
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.errors import ConfigError, RecordError
from gemmill.library.extras import install
from gemmill.library.legality.rules import verdicts
from gemmill.library.records import Measurement
from gemmill.profiler.analysis.figures import Figures, formats, geometric_mean, intensity
from gemmill.profiler.baselines.baseline import BASELINES, CUBLASLT, THROUGH_TORCH
from gemmill.profiler.measure.peak_rates import PeakRates, peak_rate_dtype
from gemmill.runtime.select import gpus
from gemmill.runtime.select.choice import RUNNERS_UP
from gemmill.runtime.select.selector import Selector

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no place for."""
CHOICES = 1 + RUNNERS_UP
"""Kernels that a selector names for a problem, and so the longest list that the regret curve tries."""


class Choices:
    """What the selector's model would take of the kernels that were measured, were none of them measured."""

    def __init__(self, found: Sequence[Figures]) -> None:
        kernels: dict[str, dict[str, GemmConfig]] = defaultdict(dict)
        self.unknown: set[str] = set()
        """Names of kernels that were measured, and that gemmill would no longer make."""
        for figures in found:
            for name in (*figures.finalists, *figures.screened):
                config = _config(name)
                if config is None:
                    self.unknown.add(name)
                else:
                    kernels[figures.run.gpu][name] = config
        self._selectors = {gpu: Selector(configs, gpus.figures(gpu)) for gpu, configs in kernels.items()}

    def of(self, figures: Figures) -> tuple[str, ...]:
        """Kernels for the problem of a run, the best first; none where no kernel serves it."""
        selector = self._selectors.get(figures.run.gpu)
        times = selector.times(figures.run.problem) if selector else {}
        return tuple(sorted(times, key=lambda name: times[name])[:CHOICES])


def _config(name: str) -> GemmConfig | None:
    """The config of a kernel name; None where rules refuse it, or it is no name any more."""
    try:
        config = parse_name(name)
    except ConfigError:
        return None
    return None if verdicts(config) else config


def baselines(found: Sequence[Figures]) -> list[str]:
    """Names of the baselines that any run was compared with."""
    return [name for name in BASELINES if any(name in figures.baselines for figures in found)]


def rows(
    found: Sequence[Figures], choices: Choices, peak_rates: Mapping[str, PeakRates]
) -> list[dict[str, str | float | None]]:
    """A row by column for every problem of every run, None for what was not measured; all have the same columns.

    For each baseline of any run, ``<baseline>_us`` is its time and ``<baseline>_ratio`` the speed of the best kernel
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
        against |= {f"{name}_us": baseline.us if baseline else None, f"{name}_ratio": figures.over(best, name)}
    return {
        "problem": run.problem.extents,
        "formats": formats(run.problem, run.sizes),
        "gpu": run.gpu,
        "commit": run.commit,
        "run": run.sweep,
        "best": best.kernel if best else None,
        "us": best.us if best else None,
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
        name = f"{figures.run.problem.extents} ({formats(figures.run.problem, figures.run.sizes)}) on {figures.run.gpu}"
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


def as_html(found: Sequence[Figures], choices: Choices, peak_rates: Mapping[str, PeakRates]) -> str:
    """One page with everything it needs inside; where there are several baselines, a menu on it chooses one.

    Raises:
        RecordError: Plotly or Jinja is not installed.

    """
    jinja, plotly = _library("jinja2"), _library("plotly.offline")
    table, present = rows(found, choices, peak_rates), baselines(found)
    charts = [
        chart
        for chart in (
            _roofline(found, peak_rates),
            _winners(found),
            _distribution(found, choices),
            _regret(found, choices),
        )
        if chart.figure.data
    ]
    template = (resources.files("gemmill.profiler.analysis") / "report.html").read_text(encoding="utf-8")
    environment = jinja.Environment(autoescape=True, undefined=jinja.StrictUndefined)
    finals = [m for figures in found for m in figures.finalists.values()]
    return str(
        environment.from_string(template).render(
            script=plotly.get_plotlyjs(),
            charts=[
                (c.title, c.says, c.figure.to_html(full_html=False, include_plotlyjs=False, div_id=f"chart-{i}"))
                for i, c in enumerate(charts)
            ],
            columns=list(next(iter(table), {})),
            rows=table,
            baselines=present,
            first=next((name for name in (CUBLASLT, *THROUGH_TORCH) if name in present), None),
            against={f"{name}_{what}": name for name in present for what in ("us", "ratio")},
            machines=sorted({(m.gpu, m.driver, m.cuda, m.torch, m.commit, m.method) for m in finals}, key=str),
            means=_means(found, choices),
            throttle=Counter(reason for m in finals for reason in m.throttle).most_common(),
            finals=len(finals),
            unthrottled=sum(not m.throttle for m in finals),
            clocks=_quartiles([m.sm_mhz for m in finals if m.sm_mhz is not None]),
            watts=_quartiles([m.watts for m in finals if m.watts is not None]),
            failures=Counter(m.says for figures in found for m in figures.failed).most_common(),
            unknown=sorted(choices.unknown),
        )
    )


class _Chart(NamedTuple):
    title: str
    says: str
    figure: Any


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RecordError(f"a page needs Plotly and Jinja ({error}); {install('report')}") from error


def _figure(x: str, y: str, **layout: Any) -> Any:
    graphs = _library("plotly.graph_objects")
    return graphs.Figure(layout={"template": "plotly_white", "height": 480, **layout}).update_layout(
        xaxis_title=x, yaxis_title=y
    )


def _by_formats(found: Sequence[Figures]) -> Iterator[tuple[str, list[Figures]]]:
    groups: dict[str, list[Figures]] = defaultdict(list)
    for figures in found:
        groups[formats(figures.run.problem)].append(figures)
    yield from groups.items()


def _roofline(found: Sequence[Figures], peak_rates: Mapping[str, PeakRates]) -> _Chart:
    """Rates over arithmetic intensity, under what the GPU's memory allows and, where it is known, its tensor cores."""
    chart = _figure("operations a byte of A, B, C and D", "TFLOP/s", xaxis_type="log", yaxis_type="log")
    graphs = _library("plotly.graph_objects")
    for name, group in _by_formats(found):
        for baseline in (None, *baselines(found)):
            points = [(f, f.baselines.get(baseline) if baseline else f.best) for f in group]
            known = [(f, m) for f, m in points if m is not None]
            if known:
                chart.add_trace(
                    graphs.Scatter(
                        x=[intensity(f.run.problem) for f, _ in known],
                        y=[m.tflops for _, m in known],
                        text=[f"{f.run.problem.extents}<br>{m.kernel}" for f, m in known],
                        mode="markers",
                        marker={"symbol": "x-thin-open" if baseline else "circle", "size": 9},
                        name=f"{name}: {baseline or 'best kernel'}",
                        meta=baseline,
                    )
                )
    top = max((f.best.tflops or 0 for f in found if f.best), default=1.0)
    for gpu in sorted({f.run.gpu for f in found if f.best}):
        measured = peak_rates.get(gpu)
        bandwidth = measured.copy_tbps.median if measured else gpus.figures(gpu).dram_gbps / 1000
        dtypes = sorted({peak_rate_dtype(f.run.problem) or "" for f in found if f.run.gpu == gpu})
        rates = (
            {name: rate.median for name, rate in measured.compute_tflops.items() if name in dtypes} if measured else {}
        )
        most = max([*(intensity(f.run.problem) for f in found), *(2 * rate / bandwidth for rate in rates.values())])
        memory = "copy" if measured else "DRAM"
        lines = {f"{memory}, {bandwidth:.1f} TB/s": ((1.0, bandwidth), (most, most * bandwidth))}
        for name, rate in rates.items():
            lines[f"WGMMA {name}, {rate:.0f} TFLOP/s"] = ((rate / bandwidth, rate), (most, rate))
            top = max(top, rate)
        for name, ends in lines.items():
            chart.add_trace(
                graphs.Scatter(
                    x=[x for x, _ in ends],
                    y=[y for _, y in ends],
                    mode="lines",
                    line={"dash": "dot", "color": "gray"},
                    name=f"{gpu}: {name}",
                )
            )
    chart.update_yaxes(range=[-1, float(np.log10(max(top, 1.0))) + 0.2])
    return _Chart("Roofline", "The best kernel of each problem, and the baseline.", chart)


def _winners(found: Sequence[Figures]) -> _Chart:
    """The tile that wins at each M and N; a menu chooses K."""
    chart = _figure("N", "M", xaxis_type="log", yaxis_type="log")
    graphs = _library("plotly.graph_objects")
    winners: dict[str, list[Figures]] = defaultdict(list)
    for figures in found:
        if figures.best:
            winners[_tile(figures.best.kernel)].append(figures)

    def points(k: int | None) -> dict[str, list[list[Any]]]:
        """What the traces show, one a tile, of one K or of all."""
        shown = [[f for f in group if k in (None, f.run.problem.k)] for group in winners.values()]
        return {
            "x": [[f.run.problem.n for f in group] for group in shown],
            "y": [[f.run.problem.m for f in group] for group in shown],
            "text": [
                [f"{f.run.problem.extents}<br>{formats(f.run.problem, f.run.sizes)}" for f in group] for group in shown
            ],
        }

    every = points(None)
    for place, tile in enumerate(winners):
        own = {name: values[place] for name, values in every.items()}
        chart.add_trace(
            graphs.Scatter(**own, mode="markers", marker={"size": 12, "symbol": "square"}, name=tile, showlegend=True)
        )
    ks = sorted({f.run.problem.k for group in winners.values() for f in group})
    choices = {"every K": every} | {f"K = {k}": points(k) for k in ks}
    buttons = [{"label": label, "method": "restyle", "args": [shown]} for label, shown in choices.items()]
    chart.update_layout(updatemenus=[{"buttons": buttons, "x": 0, "y": 1.15, "xanchor": "left"}])
    return _Chart("Winners", "Tile, schedule and split of the fastest kernel.", chart)


def _distribution(found: Sequence[Figures], choices: Choices) -> _Chart:
    """How large a part of the problems is at most so fast, relative to each baseline."""
    chart = _figure("speed relative to the baseline", "part of the problems", yaxis_tickformat=".0%", xaxis_type="log")
    graphs = _library("plotly.graph_objects")
    for name, group in _by_formats(found):
        best = [(f, f.best) for f in group]
        selected = [(f, f.finalists.get(next(iter(choices.of(f)), ""))) for f in group]
        for baseline, (what, kernels, dash) in itertools.product(
            baselines(found), (("best", best, "solid"), ("selected", selected, "dot"))
        ):
            ratios = sorted(ratio for f, m in kernels if (ratio := f.over(m, baseline)) is not None)
            if ratios:
                chart.add_trace(
                    graphs.Scatter(
                        x=ratios,
                        y=[(i + 1) / len(ratios) for i in range(len(ratios))],
                        mode="lines+markers",
                        line={"shape": "hv", "dash": dash},
                        name=f"{name}: {what} / {baseline}",
                        meta=baseline,
                    )
                )
    chart.add_vline(x=1)
    return _Chart("Speed relative to a baseline", "Right of 1 is faster. Finalists alone, timed beside it.", chart)


def _regret(found: Sequence[Figures], choices: Choices) -> _Chart:
    """What trying the k best of the selector would reach."""
    chart = _figure("kernels tried, in the selector's order", "speed relative to the best measured")
    graphs = _library("plotly.graph_objects")
    counts = list(range(1, CHOICES + 1))
    for name, group in _by_formats(found):
        reached = [[r for f in group if (r := f.reached(choices.of(f)[:k])) is not None] for k in counts]
        if all(reached):
            for what, dash, value in (
                ("geometric mean", "solid", geometric_mean),
                ("5th percentile", "dot", lambda values: float(np.percentile(values, 5))),
            ):
                chart.add_trace(
                    graphs.Scatter(
                        x=counts, y=[value(values) for values in reached], line={"dash": dash}, name=f"{name}: {what}"
                    )
                )
    says = (
        "The selector's model alone: neither these measurements nor those that ship, though it may have been fitted to "
        f"them. Of {CHOICES} kernels that it names, the fastest of the first k."
    )
    return _Chart("Regret of the selector", says, chart)


def _tile(kernel: str) -> str:
    """What tells kernels of one format apart, without stages and raster."""
    try:
        config = parse_name(kernel)
    except ConfigError:
        return kernel
    tile, scheduler = config.tile, config.scheduler
    split = f" {scheduler.decomposition}" if not decomposition_of(config).is_data_parallel else ""
    return f"{tile.m}x{tile.n}x{tile.k} {config.schedule}{split}"


def _means(
    found: Sequence[Figures], choices: Choices
) -> Mapping[str, tuple[int, Mapping[str, float | None], float | None]]:
    """By formats: problems, and geometric means of the best to each baseline and of the selected to the best."""
    return {
        name: (
            len(group),
            {
                baseline: geometric_mean(ratio for f in group if (ratio := f.over(f.best, baseline)) is not None)
                for baseline in baselines(found)
            },
            geometric_mean(part for f in group if (part := f.reached(choices.of(f)[:1])) is not None),
        )
        for name, group in _by_formats(found)
    }


def _quartiles(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(q) for q in np.percentile(values, (0, 25, 50, 75, 100))) if values else ()
