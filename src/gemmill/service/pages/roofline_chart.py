"""The roofline of the explorer, with positions in percent, so that it fits every width without a script."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from gemmill.profiler.analysis.charts import Axis
from gemmill.profiler.analysis.roofline import DRAM
from gemmill.service.pages.explored_rows import Row, Totals
from gemmill.service.pages.kernel_map import COLOURS

_AROUND = 6
"""The chart extends at least by this factor around the ridge, where the lines meet."""


class Line(NamedTuple):
    """A line of a chart, in percent of its width and height."""

    x1: float
    y1: float
    x2: float
    y2: float
    label: str
    is_flat: bool


class Dot(NamedTuple):
    """A problem in a chart."""

    row: Row
    x: float
    y: float
    radius: float
    """Pixels; the area grows with the time in the pass."""
    colour: int
    """Number of the colour of the types."""


@dataclass(frozen=True)
class Roofline:
    """Rate by arithmetic intensity on logarithmic axes, with the rates of the GPU in library/arch.py."""

    x: Axis
    y: Axis
    lines: list[Line]
    dots: list[Dot]
    colours: dict[str, int]
    """Number of the colour of each type."""

    @classmethod
    def of(cls, totals: Totals) -> Roofline | None:
        """The chart of a pass; None if no problem has a time."""
        rows = [row for row in totals.known if row.flops]
        if not rows:
            return None
        bandwidth = rows[0].gpu.dram_gbps / 1000
        peaks = {row.peak.dtype: row.peak for row in rows}
        rates = [peak.tflops for peak in peaks.values()]
        ridge = max(rates) / bandwidth
        around = ridge / _AROUND, ridge * _AROUND
        x = Axis.over("FLOP per byte", [*(row.flops / row.bytes for row in rows), *around], log=True)
        y = Axis.over("TFLOP/s", [*(row.tflops for row in rows), *rates, max(rates) / _AROUND], log=True)
        low = max(x.low, y.low / bandwidth)
        lines = [_line(x, y, (low, low * bandwidth), (ridge, max(rates)), f"copies in {DRAM}: {bandwidth:.2f} TB/s")]
        for rate in dict.fromkeys(rates):
            names = ", ".join(name for name, peak in peaks.items() if peak.tflops == rate)
            lines.append(_line(x, y, (rate / bandwidth, rate), (x.high, rate), f"{names}: {rate:,.0f} TFLOP/s"))
        colours = {name: i % COLOURS for i, name in enumerate(peaks)}
        dots = [
            Dot(
                row,
                x.at(row.flops / row.bytes),
                round(100 - y.at(row.tflops), 2),
                round(4 + 12 * math.sqrt(totals.share(row)), 1),
                colours[row.peak.dtype],
            )
            for row in rows
        ]
        return cls(x, y, lines, sorted(dots, key=lambda dot: -dot.radius), colours)


def _line(x: Axis, y: Axis, start: tuple[float, float], end: tuple[float, float], label: str) -> Line:
    (x1, y1), (x2, y2) = ((x.at(at), round(100 - y.at(rate), 2)) for at, rate in (start, end))
    return Line(x1, y1, x2, y2, label, y1 == y2)
