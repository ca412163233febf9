"""Select kernels without a GPU, as a compiler would: writes a JSON table from shapes to kernels.

    python examples/short/choose_without_gpu.py > table.json

Needs only gemmill. For each layer of a model, the table divides the numbers of rows into ranges with the same kernel.
Each entry has the arguments of a call, and the predicted times. A summary is printed on stderr.
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

registry = gemmill.Registry(gpu="H100")


def chosen(n: int, k: int, rows: int) -> gemmill.Choice:
    """The kernel selected for a layer and a number of tokens."""
    return registry.select(gemmill.GemmProblem(m=rows, n=n, k=k, a="bf16"))


def ranges(n: int, k: int) -> list[dict[str, Any]]:
    """Ranges of rows with the same kernel."""
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
print(f"{len(LAYERS) * len(ROWS)} problems use {len(kernels)} kernels", file=sys.stderr)
print(chosen(*LAYERS["down"], 2048).why, file=sys.stderr)
for layer in layers.values():
    assert [int(rows) for entry in layer for rows in entry["us"]] == [*ROWS], "a range is missing"
for name in kernels:
    assert kernel_name(parse_name(name)) == name, "the name does not match its config"
