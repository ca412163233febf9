"""Draw the records of the program ``sustained`` as an SVG: the speed of the selected kernels relative to cuBLAS.

Each problem has a line, grouped by type, with the kernels selected for sustained load and, if timed, for bursts, and
with quartiles over turns. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmill.library.drawing.svg import document, element, label

LEFT, TOP, WIDTH, ROW = 250, 80, 460, 20
LOW, HIGH, STEP = 0.90, 1.25, 0.05
OBJECTIVES = {"burst": ("for bursts", "s1"), "sustained": ("for sustained load", "s2")}
"""The objectives of the selection, with the colors of their marks."""


def main() -> None:
    """Draw records, and write the SVG."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", help="files of sustained, of one GPU")
    parser.add_argument("-o", "--output", type=Path, required=True, help="SVG to write")
    arguments = parser.parse_args()
    records = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.records]
    arguments.output.write_text(drawn(records), encoding="utf-8")


def drawn(records: Sequence[Mapping[str, Any]]) -> str:
    """The SVG of some records."""
    (gpu,) = {record["gpu"].removeprefix("NVIDIA ") for record in records}
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in (row for record in records for row in record["rows"]):
        groups.setdefault(_type(row["problem"]), []).append(row)
    title = f"Speed relative to cuBLAS at the power limit, {gpu}"
    height = ROW * sum(1 + len(rows) for rows in groups.values())
    parts, told, y = [label(12, 24, title, "t"), *_axis(height), *_key()], [], TOP + ROW / 2
    for words, rows in groups.items():
        mean = statistics.geometric_mean([_mean(row) for row in rows])
        told.append(f"{words}, {len(rows)} problems: geometric mean {mean:.3f}")
        parts.append(label(12, y + 4, f"{words}: {mean:.3f}", "t"))
        for row in sorted(rows, key=_mean):
            y += ROW
            parts += [
                label(LEFT - 12, y + 4, row["problem"].partition(" a_scale")[0], "r"),
                *_marks(row["selected"], y),
            ]
        y += ROW
    description = f"Selected for sustained load: {'; '.join(told)}"
    return document(LEFT + WIDTH + 30, TOP + height + 30, title, description, *parts)


def _type(problem: str) -> str:
    """The type of a problem's operands, and whether they have block scaling."""
    return problem.split()[1] + (", block scaling" if " a_scale=" in problem else "")


def _mean(row: Mapping[str, Any]) -> float:
    """Speed relative to cuBLAS of the kernel selected for sustained load."""
    return float(row["selected"]["sustained"]["mean"])


def _x(ratio: float) -> float:
    return LEFT + WIDTH * (min(max(ratio, LOW), HIGH) - LOW) / (HIGH - LOW)


def _axis(height: float) -> Iterator[str]:
    for step in range(round((HIGH - LOW) / STEP) + 1):
        ratio = LOW + step * STEP
        yield element("path", d=f"M{_x(ratio):.1f} {TOP}v{height}", class_="line", stroke_width=2 if step == 2 else 0.5)
        yield label(_x(ratio), TOP + height + 18, f"{ratio:.2f}", "c")


def _key() -> Iterator[str]:
    for number, (words, shade) in enumerate(OBJECTIVES.values()):
        x = LEFT + number * 270
        yield element("circle", cx=x, cy=50, r=6, class_=f"{shade} line", style=f"fill:var(--{shade})")
        yield label(x + 12, 54, f"selected {words}")


def _marks(selected: Mapping[str, Mapping[str, Any]], y: float) -> Iterator[str]:
    for name, (words, shade) in OBJECTIVES.items():
        if name not in selected:
            continue
        middle, low, high = selected[name]["ratio"]
        yield element("path", d=f"M{_x(low):.1f} {y:.1f}H{_x(high):.1f}", class_="line", stroke_width=2)
        told = element("title", f"{words}: {middle:.3f} ({low:.3f} to {high:.3f}), {selected[name]['kernel']}")
        style = f"fill:var(--{shade})"
        yield element("circle", told, cx=_x(middle), cy=y, r=6, class_=f"{shade} line", style=style)
