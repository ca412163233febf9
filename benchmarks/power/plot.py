"""A picture of what benchmarks/power/sustained.py recorded: choices for long runs and for lone launches beside cuBLAS,
a line for each problem, with quartiles over turns. An SVG; needs no GPU."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from gemmill.library.drawing.svg import document, element, label  # noqa: E402

LEFT, TOP, WIDTH, ROW = 250, 80, 460, 22
LOW, HIGH, STEP = 0.90, 1.10, 0.05
OBJECTIVES = {"burst": ("for lone launches", "s1"), "sustained": ("for long runs", "s2")}
"""What a kernel was chosen for, and the colour of its marks."""


def main() -> None:
    """Draw a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="what sustained.py wrote")
    parser.add_argument("-o", "--output", type=Path, required=True, help="SVG to write")
    arguments = parser.parse_args()
    arguments.output.write_text(drawn(json.loads(arguments.record.read_text(encoding="utf-8"))), encoding="utf-8")


def drawn(record: Mapping[str, Any]) -> str:
    """The picture."""
    rows = sorted(record["rows"], key=lambda row: row["selected"]["sustained"]["mean"])
    means = {name: statistics.geometric_mean([row["selected"][name]["mean"] for row in rows]) for name in OBJECTIVES}
    title = f"Rates at the power limit of an {record['gpu'].removeprefix('NVIDIA ')}, of cuBLAS's"
    told = "; ".join(f"chosen {OBJECTIVES[name][0]}: {mean:.3f} in the mean" for name, mean in means.items())
    height = TOP + ROW * len(rows) + 30
    parts = [label(12, 24, title, "t"), *_axis(ROW * len(rows)), *_key(means)]
    for number, row in enumerate(rows):
        y = TOP + ROW * number + ROW / 2
        parts += [label(LEFT - 12, y + 4, row["problem"], "r"), *_marks(row["selected"], y)]
    return document(LEFT + WIDTH + 30, height, title, f"{len(rows)} problems; {told}", *parts)


def _x(ratio: float) -> float:
    return LEFT + WIDTH * (min(max(ratio, LOW), HIGH) - LOW) / (HIGH - LOW)


def _axis(height: float) -> Iterator[str]:
    for step in range(round((HIGH - LOW) / STEP) + 1):
        ratio = LOW + step * STEP
        yield element("path", d=f"M{_x(ratio):.1f} {TOP}v{height}", class_="line", stroke_width=2 if step == 2 else 0.5)
        yield label(_x(ratio), TOP + height + 18, f"{ratio:.2f}", "c")


def _key(means: Mapping[str, float]) -> Iterator[str]:
    for number, (name, (words, shade)) in enumerate(OBJECTIVES.items()):
        x = LEFT + number * 270
        yield element("circle", cx=x, cy=50, r=6, class_=f"{shade} line", style=f"fill:var(--{shade})")
        yield label(x + 12, 54, f"chosen {words}: {means[name]:.3f}")


def _marks(selected: Mapping[str, Mapping[str, Any]], y: float) -> Iterator[str]:
    for name, (words, shade) in OBJECTIVES.items():
        middle, low, high = selected[name]["ratio"]
        yield element("path", d=f"M{_x(low):.1f} {y:.1f}H{_x(high):.1f}", class_="line", stroke_width=2)
        told = element("title", f"{words}: {middle:.3f} ({low:.3f} to {high:.3f}), {selected[name]['kernel']}")
        style = f"fill:var(--{shade})"
        yield element("circle", told, cx=_x(middle), cy=y, r=6, class_=f"{shade} line", style=style)


if __name__ == "__main__":
    main()
