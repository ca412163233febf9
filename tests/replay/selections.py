"""Prints what is selected for 2,000 drawn problems of all formats that ship: kernel and predicted time, a line each.

``python tests/replay/selections.py > after``, and the same with another commit's sources on ``PYTHONPATH``: what
differs is what a change did to selection.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
from typing import Any

import gemmill
from gemmill.library.problem import GemmProblem

PROBLEMS = 2000
USUAL = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 14336, 28672)
"""Extents that many problems have, measured ones among them."""
LAYERS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (2112, 7168), (7168, 16384))
EPILOGUES = ("d = relu(acc)", "d = silu(acc + bias[n])", "d = alpha * acc * scale[m]", "d = gelu(acc)")
DTYPES = "bf16|f16|tf32|e4m3|e5m2|s8|u8|s32|f32|f64|u4|s4"
INPUT = re.compile(rf"({DTYPES})(k|mn|any)(\d+)(?:s([0-9x]+z?))?")
OUTPUT = re.compile(rf"({DTYPES})(n|m|any)(\d+)")
SUMS = re.compile(rf"({DTYPES})(?:p(\d+))?")
ORDER = re.compile(r"[mn]\d+([a-z]+)?")


def formats(names: list[str]) -> list[dict[str, Any]]:
    """What problems may ask for, as the names of kernels say it."""
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(names):
        parts = name.split("_")
        if not parts[0].startswith("sm90") or parts[12] != "linear":
            continue
        a, b, d = INPUT.fullmatch(parts[1]), INPUT.fullmatch(parts[2]), OUTPUT.fullmatch(parts[5])
        sums, c, order = SUMS.fullmatch(parts[3]), OUTPUT.fullmatch(parts[4]), ORDER.fullmatch(parts[10])
        if not (a and b and d and sums and order):
            raise SystemExit(f"{name} is written otherwise than expected")
        found.setdefault(
            "_".join([*parts[1:6], order[1] or ""]),
            {
                "a_dtype": a[1],
                "a_major": a[2],
                "a_scale": a[4] or "none",
                "b_dtype": b[1],
                "b_major": b[2],
                "b_scale": b[4] or "none",
                "accumulator": sums[1],
                "promote": int(sums[2] or 0),
                "c_dtype": c[1] if c else None,
                "c_major": c[2] if c else None,
                "d_dtype": d[1],
                "d_major": d[2],
                "batching": order[1] or "strided",
            },
        )
    return list(found.values())


def extent(draw: random.Random, least: int, most: int) -> int:
    """An extent, as often between small ones as between large ones, as often round as not; half of them usual ones."""
    if draw.random() < 0.5:
        return draw.choice([extent for extent in USUAL if least <= extent <= most])
    value = int(least * (most / least) ** draw.random())
    return max(least, value // (step := draw.choice((1, 8, 16, 64, 128))) * step)


def problems() -> list[GemmProblem]:
    """The problems, the same everywhere."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as store:
        kinds = formats([*gemmill.Registry(store=store).configs()])
    usual = [kind for kind in kinds if kind["d_major"] == "n" and not kind["c_dtype"] and kind["a_major"] == "k"]
    found = []
    for index in range(PROBLEMS):
        if index % 3 == 0:  # of formats and extents that were measured
            kind = draw.choice(usual)
            m, (n, k) = draw.choice(USUAL), draw.choice(LAYERS)
            found.append(GemmProblem(m=m, n=n, k=k, batch=1 if kind["batching"] == "strided" else 8, **kind))
            continue
        kind = dict(kinds[index % len(kinds)])
        if kind["batching"] == "strided" and draw.random() < 0.15:
            kind["epilogue"] = draw.choice(EPILOGUES)
        batch = draw.choice((2, 7, 16)) if kind["batching"] != "strided" or draw.random() < 0.1 else 1
        m, n, k = extent(draw, 1, 16384), extent(draw, 8, 32768), extent(draw, 16, 16384)
        aligned = draw.random() < 0.8
        aligns: dict[str, Any] = {f"{x}_align": 16 if aligned else draw.choice((1, 2, 4, 8, 16)) for x in "abcd"}
        found.append(GemmProblem(m=m, n=n, k=k, batch=batch, **kind, **aligns))
    return found


def main() -> None:
    """Select for each and print it."""
    with tempfile.TemporaryDirectory() as store:
        registry = gemmill.Registry(store=store)
        asked = problems()
        for index, problem in enumerate(asked):
            options: dict[str, Any] = {}
            if index % 10 == 6:
                options = {"sm_count": 100}
            elif index % 10 == 9:
                options = {"bits": "invariant"}
            try:
                choice = registry.select(problem, **options)
            except gemmill.GemmillError as error:
                print(index, problem.extents, type(error).__name__)
                continue
            name = re.sub(rf"_k{choice.slices}splitk_", "_splitk_", choice.name)  # of sources of before
            kernel = name, choice.slices, choice.swap_ab
            print(index, problem.extents, *kernel, f"{choice.predicted_us:.9g}", choice.source)
    print(f"{len(asked)} problems, {gemmill.__file__}", file=sys.stderr)


if __name__ == "__main__":
    main()
