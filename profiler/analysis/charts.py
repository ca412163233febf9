"""The charts of a report: what is drawn where, in percent of the plot, so that a page draws them at any width."""

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
"""Colours of series; the page has as many, and grey."""
SHAPES = ("dot", "square", "diamond")
"""Marks of series, once the colours are used up."""
OTHERS = "others"
"""Instead of a colour: grey."""


@dataclass(frozen=True, slots=True)
class Axis:
    """From where to where values lie, and on which scale."""

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False

    @classmethod
    def over(cls, label: str, values: Iterable[float], *, log: bool = False) -> Axis:
        """An axis with room for all values."""
        values = [value for value in values if value > 0 or not log] or [1.0]
        low, high = min(values), max(values)
        if log:
            return cls(label, low / 1.15, high * 1.15, log)
        margin = (high - low or 1.0) * 0.05
        return cls(label, low - margin, high + margin, log)

    def at(self, value: float) -> float:
        """Where a value lies, in percent of the axis."""
        low, high, value = map(math.log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return round(100 * (value - low) / (high - low), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Where numbers stand, and which; few enough for a phone."""
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
    """A round step of which three to seven cover a length."""
    power = 10.0 ** math.floor(math.log10(length / 3))
    return next(step * power for step in (5, 2, 1) if step * power <= length / 3)


def _number(value: float) -> str:
    return f"{value / 1000:.4g}k" if value >= 1000 else f"{value:.4g}"


class Point(NamedTuple):
    """A mark, and what it says."""

    x: float
    y: float
    says: str
    k: int | None = None
    """K of its problem, where a menu chooses one."""


@dataclass(frozen=True, slots=True)
class Series:
    """Marks, a line, or both, of one kind."""

    name: str
    colour: str
    """``c0`` and so on, or :data:`OTHERS`."""
    shape: str = ""
    """One of :data:`SHAPES`; none: no marks."""
    points: tuple[Point, ...] = ()
    line: str = ""
    """The corners of a line as SVG has them, of a plot of 100 by 100; empty: no line."""
    other: bool = False
    """Hollow marks, and a dashed line: what the series before is compared with."""
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
    """Extents K among which a menu chooses."""
    one: float | None = None
    """Where on the x axis 1 stands, if a line marks it."""

    def corners(self, points: Iterable[tuple[float, float]]) -> str:
        """A line through points."""
        return " ".join(f"{self.x.at(x):g},{100 - self.y.at(y):g}" for x, y in points)


def _colour(index: int) -> str:
    return f"c{index % COLOURS}"


def _shape(index: int) -> str:
    return SHAPES[index // COLOURS % len(SHAPES)]


def roofline(groups: Sequence[Group], peak_rates: Mapping[str, PeakRates]) -> Chart:
    """Rates over arithmetic intensity, under what the GPU's memory allows and, where it is known, its tensor cores."""
    found = [f for group in groups for f in group.found]
    timed = [(f, m) for f in found for m in (f.best, *f.baselines.values()) if m is not None]
    xs, ys = [intensity(f.run.problem) for f, _ in timed], [m.tflops or 0 for _, m in timed]
    roofs = {gpu: _roofs(gpu, found, peak_rates.get(gpu)) for gpu in sorted({f.run.gpu for f, _ in timed})}
    ridges = [2 * rate / bandwidth for bandwidth, rates in roofs.values() for rate in rates.values()]
    x = Axis.over("operations a byte of A, B, C and D", [*xs, *ridges], log=True)
    y = Axis.over("TFLOP/s", [*ys, *(rate for _, rates in roofs.values() for rate in rates.values())], log=True)
    chart = Chart("Roofline", "The best kernel of each problem, and the baseline.", x, y)
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
            name, other = f"{group.label}: {baseline or 'best kernel'}", baseline is not None
            if points:
                chart.series.append(Series(name, _colour(index), _shape(index), points, "", other, index, baseline))
    return chart


def _roofs(gpu: str, found: Sequence[Figures], measured: PeakRates | None) -> tuple[float, Mapping[str, float]]:
    """TB/s of a GPU's memory, and TFLOP/s of the WGMMAs that its problems need, as far as they were measured."""
    if measured is None:
        return gpus.figures(gpu).dram_gbps / 1000, {}
    dtypes = {peak_rate_dtype(f.run.problem) for f in found if f.run.gpu == gpu}
    rates: dict[str, float] = {name: rate.median for name, rate in measured.compute_tflops.items() if name in dtypes}
    return measured.copy_tbps.median, rates


def winners(groups: Sequence[Group]) -> Chart:
    """The tile that wins at each M and N; a menu chooses K."""
    best = [(f.run.problem, _tile(f.best.sliced)) for group in groups for f in group.found if f.best]
    x = Axis.over("N", (problem.n for problem, _ in best), log=True)
    y = Axis.over("M", (problem.m for problem, _ in best), log=True)
    says = "Tile, schedule and split of the fastest kernel, in colour those that win most often."
    chart = Chart("Winners", says, x, y, ks=tuple(sorted({problem.k for problem, _ in best})))
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
    """How large a part of the problems is at most so fast, relative to each baseline."""
    curves = [
        (index, baseline, group.compared(choices, baseline))
        for index, group in enumerate(groups)
        for baseline in baselines(group.found)
    ]
    ratios = [ratio for _, _, pairs in curves for ratio in (*pairs.best, *pairs.selected)]
    x = Axis.over("speed relative to the baseline", [1.0, *ratios], log=True)
    y = Axis("part of the problems", 0.0, 1.0, percent=True)
    says = (
        "Right of 1 is faster. Both curves are of the same problems: those where both were timed beside the baseline."
    )
    chart = Chart("Speed relative to a baseline", says, x, y, one=x.at(1.0))
    for index, baseline, pairs in curves:
        for what, values in (("best", pairs.best), ("selected", pairs.selected)):
            if not values:
                continue
            steps = [(x.low, 0.0)]
            for i, ratio in enumerate(sorted(values)):
                steps += [(ratio, i / len(values)), (ratio, (i + 1) / len(values))]
            line = chart.corners([*steps, (x.high, 1.0)])
            name = f"{groups[index].label}: {what} / {baseline}, {len(values)} of {len(groups[index].found)}"
            other = what == "selected"
            chart.series.append(Series(name, _colour(index), line=line, other=other, group=index, baseline=baseline))
    return chart


def regret(groups: Sequence[Group], choices: Choices) -> Chart:
    """What trying the k best of the selector would reach."""
    counts = range(1, CHOICES + 1)
    curves: list[tuple[int, str, list[float], int]] = []
    for index, group in enumerate(groups):
        of = group.chosen(choices)
        reached = [[f.reached(choices.of(f)[:k]) or math.nan for f in of] for k in counts]
        if of:
            means = [geometric_mean(values) or math.nan for values in reached]
            low = [float(np.percentile(values, 5)) for values in reached]
            curves += [(index, "geometric mean", means, len(of)), (index, "5th percentile", low, len(of))]
    x = Axis("kernels tried, in the selector's order", 0.8, CHOICES + 0.2)
    y = Axis.over("speed relative to the best measured", [1.0, *(v for _, _, values, _ in curves for v in values)])
    says = (
        "The selector's model alone: neither these measurements nor those that ship, though it may have been fitted to "
        f"them. Of {CHOICES} kernels that it names, the fastest of the first k; for every k over the same problems, "
        "those whose first was timed at length."
    )
    chart = Chart("Regret of the selector", says, x, y)
    for index, what, values, count in curves:
        points = tuple(Point(x.at(k), y.at(v), f"{k}: {v:.3f}") for k, v in zip(counts, values, strict=True))
        line = chart.corners(zip(counts, values, strict=True))
        name = f"{groups[index].label}: {what}, {count} of {len(groups[index].found)}"
        shape = _shape(index)
        chart.series.append(Series(name, _colour(index), shape, points, line, what != "geometric mean", index))
    return chart


def _tile(kernel: SlicedKernel) -> str:
    """What tells kernels of one format apart, without stages and raster."""
    try:
        config = parse_name(kernel.name)
    except ConfigError:
        return str(kernel)
    tile, scheduler = config.tile, config.scheduler
    split = f" {scheduler.decomposition}" if not decomposition_of(config).is_data_parallel else ""
    return f"{tile.m}x{tile.n}x{tile.k} {config.schedule}{split}"
