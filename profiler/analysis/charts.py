"""The charts of a report, with positions in percent of the plot, so that a page can draw them at any width."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import ConfigError
from gemmill.profiler.analysis.figures import Figures, geometric_mean, intensity
from gemmill.profiler.analysis.populations import CHOICES, Choices, Group, baselines
from gemmill.profiler.measure.peak_rates import PeakRates, peak_rate_dtype
from gemmill.runtime.select import gpus

COLOURS = 4
"""Number of colors of series on the page, without grey."""
SHAPES = ("dot", "square", "diamond")
"""Marks of series; the next one is used when all colors are used up."""
OTHERS = "others"
"""The color grey."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The range and scale of an axis."""

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False

    @classmethod
    def over(cls, label: str, values: Iterable[float], *, log: bool = False) -> Axis:
        """An axis that contains all values, with a margin."""
        values = [value for value in values if value > 0 or not log] or [1.0]
        low, high = min(values), max(values)
        if log:
            return cls(label, low / 1.15, high * 1.15, log)
        margin = (high - low or 1.0) * 0.05
        return cls(label, low - margin, high + margin, log)

    def at(self, value: float) -> float:
        """The position of a value, in percent of the axis."""
        low, high, value = map(math.log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return round(100 * (value - low) / (high - low), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Positions and texts of the ticks; few enough for the width of a phone."""
        for steps in ((1, 2, 5), (1, 3), (1,)) if self.log else ():
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            values = [step * 10.0**decade for decade in decades for step in steps]
            if len(values := [value for value in values if self.low <= value <= self.high]) <= 7:
                break
        if not self.log or len(values) < 3:
            step = _step(self.high - self.low)
            values = [i * step for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [(self.at(value), f"{value:.0%}" if self.percent else _number(value)) for value in values]


def _step(length: float) -> float:
    """A round step that divides a length into three to seven parts."""
    power = 10.0 ** math.floor(math.log10(length / 3))
    return next(step * power for step in (5, 2, 1) if step * power <= length / 3)


def _number(value: float) -> str:
    return f"{value / 1000:.4g}k" if value >= 1000 else f"{value:.4g}"


class Point(NamedTuple):
    """A mark with its tooltip."""

    x: float
    y: float
    says: str
    k: int | None = None
    """K of its problem, if the chart has a menu for K."""


@dataclass(frozen=True, slots=True)
class Series:
    """Marks, a line, or both, with one entry in the legend."""

    name: str
    colour: str
    """``c0``, ``c1`` and so on, or :data:`OTHERS`."""
    shape: str = ""
    """One of :data:`SHAPES`; empty: no marks."""
    points: tuple[Point, ...] = ()
    line: str = ""
    """The points of an SVG polyline in a plot of 100 by 100; empty: no line."""
    other: bool = False
    """Whether the series is drawn with hollow marks and a dashed line, for example a baseline."""
    group: int | None = None
    baseline: str | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot with its axes."""

    title: str
    says: str
    x: Axis
    y: Axis
    series: list[Series] = field(default_factory=list)
    ks: tuple[int, ...] = ()
    """The values of K in the menu."""
    one: float | None = None
    """Position of the value 1 on the x axis, if a line marks it."""

    def corners(self, points: Iterable[tuple[float, float]]) -> str:
        """The points of an SVG polyline through values."""
        return " ".join(f"{self.x.at(x):g},{100 - self.y.at(y):g}" for x, y in points)


def _colour(index: int) -> str:
    return f"c{index % COLOURS}"


def _shape(index: int) -> str:
    return SHAPES[index // COLOURS % len(SHAPES)]


def roofline(groups: Sequence[Group], peak_rates: Mapping[str, PeakRates]) -> Chart:
    """Throughput by arithmetic intensity, with the limits of memory and, if measured, of the tensor cores."""
    every_figures = [f for group in groups for f in group.found]
    timed = [(f, m) for f in every_figures for m in (f.best, *f.baselines.values()) if m is not None]
    xs, ys = [intensity(f.run.problem) for f, _ in timed], [m.tflops or 0 for _, m in timed]
    roofs = {gpu: _roofs(gpu, every_figures, peak_rates.get(gpu)) for gpu in sorted({f.run.gpu for f, _ in timed})}
    ridges = [2 * rate / bandwidth for bandwidth, rates in roofs.values() for rate in rates.values()]
    x = Axis.over("arithmetic intensity, FLOP per byte of A, B, C and D", [*xs, *ridges], log=True)
    y = Axis.over("TFLOP/s", [*ys, *(rate for _, rates in roofs.values() for rate in rates.values())], log=True)
    says = "Throughput of the fastest kernel of each problem, and of the baseline. Dashed lines are limits of the GPU."
    chart = Chart("Roofline", says, x, y)
    for gpu, (bandwidth, rates) in roofs.items():
        memory = "copy" if gpu in peak_rates else "DRAM"
        tops = {f"WGMMA {name}, {rate:.0f} TFLOP/s": rate for name, rate in rates.items()}
        name = "; ".join((f"{gpu}: {memory}, {bandwidth:.1f} TB/s", *tops))
        slope = [(max(x.low, y.low / bandwidth), max(y.low, x.low * bandwidth))]
        slope.append((min(x.high, y.high / bandwidth), min(y.high, x.high * bandwidth)))
        chart.series.append(Series(name, OTHERS, line=chart.corners(slope), other=True))
        flat = [chart.corners([(rate / bandwidth, rate), (x.high, rate)]) for rate in rates.values()]
        chart.series.extend(Series("", OTHERS, line=line, other=True) for line in flat)
    for index, group in enumerate(groups):
        for baseline in (*baselines(group.found), None):
            points = tuple(
                Point(x.at(intensity(f.run.problem)), y.at(m.tflops), f"{f.run.problem}\n{m.sliced}: {m.tflops:.0f}")
                for f in group.found
                if (m := f.baselines.get(baseline) if baseline else f.best) and m.tflops
            )
            name, other = f"{group.label}: {baseline or 'fastest kernel'}", baseline is not None
            if points:
                chart.series.append(Series(name, _colour(index), _shape(index), points, "", other, index, baseline))
    return chart


def _roofs(gpu: str, every_figures: Sequence[Figures], measured: PeakRates | None) -> tuple[float, Mapping[str, float]]:
    """TB/s of a GPU's memory, and TFLOP/s of the WGMMA types of its problems, as far as measured."""
    if measured is None:
        return gpus.figures(gpu).dram_gbps / 1000, {}
    dtypes = {peak_rate_dtype(f.run.problem) for f in every_figures if f.run.gpu == gpu}
    rates: dict[str, float] = {name: rate.median for name, rate in measured.compute_tflops.items() if name in dtypes}
    return measured.copy_tbps.median, rates


def winners(groups: Sequence[Group]) -> Chart:
    """The tile of the fastest kernel by M and N, with a menu for K."""
    best = [(f.run.problem, _tile(f.best.sliced)) for group in groups for f in group.found if f.best]
    x = Axis.over("N", (problem.n for problem, _ in best), log=True)
    y = Axis.over("M", (problem.m for problem, _ in best), log=True)
    says = "Tile, schedule and decomposition of the fastest kernel of each problem. The most frequent ones have colors."
    chart = Chart("Fastest tiles by M and N", says, x, y, ks=tuple(sorted({problem.k for problem, _ in best})))
    often = [tile for tile, _ in Counter(tile for _, tile in best).most_common(COLOURS)]
    kinds = [(tile, _colour(i), "square", (tile,)) for i, tile in enumerate(often)]
    rest = tuple({tile for _, tile in best} - {*often})
    for name, colour, shape, tiles in ((f"{len(rest)} others", OTHERS, "dot", rest), *kinds):
        points = tuple(
            Point(x.at(problem.n), y.at(problem.m), f"{problem}\n{tile}", problem.k)
            for problem, tile in best
            if tile in tiles
        )
        if points:
            chart.series.append(Series(f"{name} ({len(points)})", colour, shape, points))
    return chart


def distribution(groups: Sequence[Group], choices: Choices) -> Chart:
    """Cumulative distribution of the speed relative to each baseline, over problems."""
    curves = [
        (index, baseline, group.compared(choices, baseline))
        for index, group in enumerate(groups)
        for baseline in baselines(group.found)
    ]
    ratios = [ratio for _, _, pairs in curves for ratio in (*pairs.best, *pairs.selected)]
    x = Axis.over("speed relative to the baseline", [1.0, *ratios], log=True)
    y = Axis("share of the problems", 0.0, 1.0, percent=True)
    says = (
        "Cumulative distribution over problems; values above 1 are faster than the baseline. Both curves use the same "
        "problems: those where the fastest kernel, the selected kernel and the baseline were timed in the same rounds."
    )
    chart = Chart("Distribution of the speed", says, x, y, one=x.at(1.0))
    for index, baseline, pairs in curves:
        for label, values in (("fastest", pairs.best), ("selected", pairs.selected)):
            if not values:
                continue
            steps = [(x.low, 0.0)]
            for i, ratio in enumerate(sorted(values)):
                steps += [(ratio, i / len(values)), (ratio, (i + 1) / len(values))]
            line = chart.corners([*steps, (x.high, 1.0)])
            problems = f"{len(values)} of {len(groups[index].found)} problems"
            name = f"{groups[index].label}: {label} / {baseline}, {problems}"
            other = label == "selected"
            chart.series.append(Series(name, _colour(index), line=line, other=other, group=index, baseline=baseline))
    return chart


def regret(groups: Sequence[Group], choices: Choices) -> Chart:
    """Speed of the fastest of the selector's first k kernels, relative to the fastest measured kernel."""
    counts = range(1, CHOICES + 1)
    curves: list[tuple[int, str, list[float], int]] = []
    for index, group in enumerate(groups):
        chosen = group.chosen(choices)
        reached = [[f.reached(choices.of(f)[:k]) or math.nan for f in chosen] for k in counts]
        if chosen:
            means = [geometric_mean(values) or math.nan for values in reached]
            low = [float(np.percentile(values, 5)) for values in reached]
            curves += [(index, "geometric mean", means, len(chosen)), (index, "5th percentile", low, len(chosen))]
    x = Axis("k, number of kernels tried in the selector's order", 0.8, CHOICES + 0.2)
    y = Axis.over("speed relative to the fastest", [1.0, *(v for _, _, values, _ in curves for v in values)])
    says = (
        f"Speed of the fastest of the first k kernels that the selector ranks (at most {CHOICES}), relative to the "
        "fastest measured kernel. The selector uses only its model, which may have been fitted to these measurements, "
        "and no measured tables. All k use the same problems: those where the selected kernel was a finalist."
    )
    chart = Chart("Selector regret", says, x, y)
    for index, label, values, count in curves:
        points = tuple(Point(x.at(k), y.at(v), f"{k}: {v:.3f}") for k, v in zip(counts, values, strict=True))
        line = chart.corners(zip(counts, values, strict=True))
        name = f"{groups[index].label}: {label}, {count} of {len(groups[index].found)} problems"
        shape = _shape(index)
        chart.series.append(Series(name, _colour(index), shape, points, line, label != "geometric mean", index))
    return chart


def _tile(kernel: SlicedKernel) -> str:
    """Tile, schedule and decomposition of a kernel."""
    try:
        config = parse_name(kernel.name)
    except ConfigError:
        return str(kernel)
    tile, scheduler = config.tile, config.scheduler
    split = f" {scheduler.decomposition}" if not decomposition_of(config).is_data_parallel else ""
    return f"{tile.m}x{tile.n}x{tile.k} {config.schedule}{split}"
