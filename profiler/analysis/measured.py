"""Measurements one by one: rows, CSV, and bars of the fraction of the roofline that each reaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gemmill.library.drawing.svg import CHARACTER, document, element, label
from gemmill.library.records import Measurement
from gemmill.profiler.analysis.figures import formats
from gemmill.profiler.analysis.report import csv_of
from gemmill.profiler.analysis.roofline import Reached, reached
from gemmill.profiler.baselines.baseline import BASELINES

_COLUMNS = (
    *("kernel", "slices", "arithmetic", "gpu", "regime", "stage", "us", "low_us", "high_us", "samples", "launches"),
    *("tflops", "roof", "of_roof", "ratio", "verified", "error", "sm_mhz", "watts", "says"),
)
"""The fields of :func:`rows` that CSV has, besides the problem."""
_BAR, _ROW, _TOP, _MARGIN = 400, 20, 70, 12
"""Width of a bar that reaches the roof, height of a line, and the space above and beside the lines, in pixels."""
_STEPS = 4
"""Lines of the axis up to the roof."""


def rows(found: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The fields of each measurement, with ``roof``, what limits the problem, and ``of_roof``, the fraction of the
    roofline that it reaches; None if it failed."""
    return [m.model_dump(mode="json") | {"roof": at.roof.name, "of_roof": at.fraction} for m, at in _with_roofs(found)]


def _with_roofs(found: Sequence[Measurement]) -> Iterator[tuple[Measurement, Reached]]:
    return ((m, reached(m)) for m in found)


def as_csv(found: Sequence[Measurement]) -> str:
    """CSV with a line for each measurement."""
    return csv_of(
        [
            {"problem": _problem(m), **{name: row[name] for name in _COLUMNS}}
            for m, row in zip(found, rows(found), strict=True)
        ]
    )


def _problem(m: Measurement) -> str:
    return f"{m.problem.extents} {formats(m.problem, m.sizes)}"


def as_svg(found: Sequence[Measurement]) -> str:
    """Bars for the kernels and baselines of each problem: the fraction of the roofline that they reach, with quartiles.

    Kernels that were only screened, and so in other rounds, have no bar; a line says how many these are.
    """
    problems: dict[str, list[tuple[Measurement, Reached]]] = {}
    for m in found:
        problems.setdefault(_problem(m), []).append((m, reached(m)))
    shown = [row for rows_of in problems.values() for row in rows_of if row[0].stage != "screen"]
    left = _MARGIN + CHARACTER * max((len(str(m.sliced)) for m, _ in shown), default=0) + _MARGIN
    right = left + _BAR * max([1.0, *(at.fraction or 0 for _, at in shown)]) + _MARGIN
    parts, told, y = [], [], float(_TOP)
    for problem, measured in problems.items():
        y += _ROW
        parts.append(label(_MARGIN, y, f"{problem}: limited by {measured[0][1].roof.name}", "t"))
        for m, at in sorted((row for row in measured if row[0].stage != "screen"), key=_slowness):
            y += _ROW
            parts += [label(left - _MARGIN, y, str(m.sliced), "r"), *_bar(m, at, left, y), label(right, y, _figures(m))]
        told.append(f"{problem}: {max(_fraction(row) for row in measured):.0%}")
        if screened := sum(m.stage == "screen" for m, _ in measured):
            y += _ROW
            parts.append(label(_MARGIN, y, f"{screened} kernels that were slower in a first short pass"))
        y += _ROW / 2
    gpus = sorted({m.gpu for m in found})
    regime = "sustained" if any(m.regime == "sustained" for m in found) else "burst"  # of what has bars
    title = f"Fraction of the roofline, {', '.join(gpus)}, regime {regime}"
    width = right + CHARACTER * max((len(_figures(m)) for m, _ in shown), default=0) + _MARGIN
    parts = [label(_MARGIN, 24, title, "t"), *_axis(left, right - _MARGIN, y), *parts]
    return document(width, y + _MARGIN, title, f"Best kernels: {'; '.join(told)}", *parts)


def _slowness(row: tuple[Measurement, Reached]) -> float:
    return -(row[1].fraction or 0)


def _fraction(row: tuple[Measurement, Reached]) -> float:
    """The fraction of a kernel that was timed at length; 0 for others."""
    return (row[1].fraction or 0) if row[0].stage == "final" and row[0].kernel not in BASELINES else 0.0


def _axis(left: float, right: float, bottom: float) -> Iterator[str]:
    for step in range(int((right - left) / _BAR * _STEPS) + 1):
        x = left + _BAR * step / _STEPS
        width = 2 if step == _STEPS else 0.5
        yield element("path", d=f"M{x:.1f} {_TOP}V{bottom:.1f}", class_="line", stroke_width=width)
        yield label(x, _TOP - 8, f"{step / _STEPS:.0%}", "c")


def _bar(m: Measurement, at: Reached, left: float, y: float) -> Iterator[str]:
    if at.fraction:
        shade = "s7" if m.kernel in BASELINES else "s0"
        yield element("rect", x=left, y=y - 11, width=_BAR * at.fraction, height=14, class_=shade)
    if m.low_us and m.high_us:
        low, high = (left + _BAR * at.roof.us / us for us in (m.high_us, m.low_us))
        yield element("path", d=f"M{low:.1f} {y - 4:.1f}H{high:.1f}", class_="line", stroke_width=2)


def _figures(m: Measurement) -> str:
    if m.us is None or m.tflops is None:
        return m.says
    beside = f", {m.ratio:.2f}x cuBLAS" if m.ratio and m.kernel not in BASELINES else ""
    return f"{m.us:.1f} us, {m.tflops:.0f} TFLOP/s{beside}"
