"""Kernels chosen where there is no GPU, as a compiler does it: a table from shapes to kernels, in JSON.

    python examples/short/choose_without_gpu.py > table.json

Needs nothing but gemmill. For each layer of a model the rows that a program may meet are divided into ranges that one
kernel serves; each entry has what a call of it needs, and the time to expect. On stderr, what it shows.
"""

from __future__ import annotations

import json
import sys
from itertools import groupby
from typing import Any

import gemmill
from gemmill.library.config.names import kernel_name, parse_name

LAYERS = {"qkv": (6144, 4096), "out": (4096, 4096), "gate and up": (28672, 4096), "down": (4096, 14336)}
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)

registry = gemmill.Registry(gpu="H100 80GB HBM3")


def chosen(n: int, k: int, rows: int) -> gemmill.Choice:
    """The kernel of a layer for so many tokens."""
    return registry.select(gemmill.GemmProblem(m=rows, n=n, k=k, a="bf16"))


def ranges(n: int, k: int) -> list[dict[str, Any]]:
    """Neighbouring rows that go to one kernel, with that kernel."""
    choices = {rows: chosen(n, k, rows) for rows in ROWS}
    found = []
    for (kernel, swap_ab), group in groupby(ROWS, key=lambda rows: (choices[rows].kernel, choices[rows].swap_ab)):
        rows = [*group]
        times = {str(m): round(choices[m].predicted_us, 2) for m in rows}
        entry = {"from": rows[0], "to": rows[-1], "kernel": kernel.name, "slices": kernel.slices}
        found.append(entry | {"swap_ab": swap_ab, "us": times})
    return found


table = {"gpu": registry.gpu.name, "layers": {name: ranges(*extents) for name, extents in LAYERS.items()}}
print(text := json.dumps(table, indent=1))

layers = json.loads(text)["layers"]
kernels = {entry["kernel"] for layer in layers.values() for entry in layer}
print(f"{len(LAYERS) * len(ROWS)} problems go to {len(kernels)} kernels", file=sys.stderr)
print(chosen(*LAYERS["down"], 2048).why, file=sys.stderr)
for layer in layers.values():
    assert [int(rows) for entry in layer for rows in entry["us"]] == [*ROWS], "a range is missing"
for name in kernels:
    assert kernel_name(parse_name(name)) == name, "a name does not tell its config"
